//! Turns bytes into a component that can be instantiated, or a [`PluginError`] for its author.

use crate::compiler::{Compiler, WasmEngine};
use crate::component_instances::component_instances;
use crate::component_structure::check_bytes;
use crate::composition::{
    PluginComponents, check_sampling, component_name, compose, find_faulty, sampling_link_name,
};
use crate::denied_interfaces;
use crate::initialization::{InitializationLimits, Initialized, Snapshot};
use crate::interfaces::{HTTP_2, HTTP_3, MESSAGES, RUN_2, RUN_3, compatible, unknown_imports};
use crate::messages::bindings::HandlerServicePre;
use crate::plugin_error::PluginError;
use crate::sampling::check_sampler;
use crate::state::{SamplerPre, State};
use crate::truncate::cause;
use crate::wasm_engine::{
    PERMIT_MEMORIES, PERMIT_TABLES, SMALL_COMPONENT_INSTANCES, plugin_permits,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};
use wasmtime_wasi::p2::bindings::CommandPre as Command2;
use wasmtime_wasi::p3::bindings::CommandPre as Command3;
use wasmtime_wasi_http::handler::ProxyPre;
use wasmtime_wasi_http::p2::bindings::ProxyPre as Http2;
use wasmtime_wasi_http::p3::bindings::ServicePre as Http3;

/// A compiled plugin with its imports linked, by role.
pub(crate) struct CompiledPlugin {
    /// Runs it.
    pub(crate) engine: Engine,
    pub(crate) http: Option<ProxyPre<State>>,
    pub(crate) messages: Option<MessagesPre>,
    pub(crate) cli: Option<CliPre>,
    /// Permits of the instance pool that an instance of it needs.
    pub(crate) permits: u32,
    /// Linked sampling plugins, by name.
    pub(crate) samplers: BTreeMap<String, SamplerPre>,
    /// What its initialization did, if it had one.
    pub(crate) initialized: Option<Initialized>,
}

/// A plugin that exports `wasmcloud:messaging/handler`.
pub(crate) type MessagesPre = HandlerServicePre<State>;

/// A plugin that exports `wasi:cli/run`.
pub(crate) enum CliPre {
    P2(Command2<State>),
    P3(Command3<State>),
}

/// Composes and compiles a plugin. The composition may have `limit` bytes. Blocks while compiling.
pub(crate) fn compile(
    compiler: &Compiler,
    plugin: &str,
    components: &PluginComponents,
    limit: usize,
) -> Result<CompiledPlugin, PluginError> {
    check_bytes(plugin, &components.handler)?;
    let composition = compose(plugin, components, limit)?;
    let (component, wasm) = match &composition {
        Cow::Borrowed(bytes) => compiler.compile(plugin, bytes)?,
        Cow::Owned(bytes) => compiler
            .compile(plugin, bytes)
            .map_err(|error| match error {
                PluginError::Compile { .. } => find_faulty(compiler, plugin, components, error),
                // A limit, or no child: compiling the components one by one would take as long again.
                error => error,
            })?,
    };
    let engine = &wasm.engine;
    let pre = instantiate_pre(wasm, plugin, &component)?;
    let mut compiled = roles(engine, &component, &pre).map_err(|error| PluginError::Mismatch {
        plugin: plugin.to_owned(),
        cause: cause(&error),
    })?;
    if compiled.http.is_none() && compiled.messages.is_none() && compiled.cli.is_none() {
        return Err(PluginError::no_role(plugin, &exports(engine, &component)));
    }
    compiled.permits = plugin_permits(
        component_instances(&composition),
        component.resources_required(),
    );
    for (name, bytes) in &components.sampling {
        let component = component_name(plugin, &sampling_link_name(name));
        let sampler = compile_sampler(compiler, &component, bytes)?;
        compiled.samplers.insert(name.clone(), sampler);
    }
    Ok(compiled)
}

/// Calls the handler's initialization, and replaces the handler with what begins as that left it. Blocks.
pub(crate) fn initialize(
    compiler: &Compiler,
    plugin: &str,
    components: &mut PluginComponents,
    limits: InitializationLimits,
) -> Result<Initialized, PluginError> {
    check_bytes(plugin, &components.handler)?;
    let Snapshot {
        instructions,
        component,
    } = compiler.initialize(plugin, &components.handler, limits)?;
    let added = component.len().saturating_sub(components.handler.len());
    components.handler = component.into();
    Ok(Initialized {
        instructions,
        added_bytes: added as u64,
    })
}

/// Compiles a component that exports `corral:plugin/sampling`. It may not import anything that shows it
/// more than the distributions that it samples from; its store has no environment.
fn compile_sampler(
    compiler: &Compiler,
    name: &str,
    bytes: &[u8],
) -> Result<SamplerPre, PluginError> {
    check_bytes(name, bytes)?;
    check_sampling(name, bytes)?;
    let instances = component_instances(bytes);
    if instances > SMALL_COMPONENT_INSTANCES {
        return Err(PluginError::Compile {
            plugin: name.to_owned(),
            cause: format!(
                "it consists of {instances} components; a sampling plugin may have {SMALL_COMPONENT_INSTANCES}"
            ),
        });
    }
    let (component, wasm) = compiler.compile(name, bytes)?;
    if plugin_permits(instances, component.resources_required()) > 1 {
        return Err(PluginError::Compile {
            plugin: name.to_owned(),
            cause: format!(
                "it has more memories or tables than a sampling plugin may have: {PERMIT_MEMORIES} and {PERMIT_TABLES}"
            ),
        });
    }
    let pre = instantiate_pre(wasm, name, &component)?;
    check_sampler(pre).map_err(|error| PluginError::Mismatch {
        plugin: name.to_owned(),
        cause: format!("{error:#}"),
    })
}

fn instantiate_pre(
    wasm: &WasmEngine,
    plugin: &str,
    component: &Component,
) -> Result<InstancePre<State>, PluginError> {
    wasm.linker.instantiate_pre(component).map_err(|error| {
        let ty = component.component_type();
        let imports = ty.imports(&wasm.engine).map(|(name, _)| name);
        // Stand-ins are linked but not offered: only a composition imports them.
        let unknown =
            unknown_imports(imports.filter(|name| !name.starts_with(denied_interfaces::PACKAGE)));
        if unknown.is_empty() {
            PluginError::Mismatch {
                plugin: plugin.to_owned(),
                cause: cause(&error),
            }
        } else {
            PluginError::imports(plugin, unknown)
        }
    })
}

fn exports(engine: &Engine, component: &Component) -> BTreeSet<String> {
    component
        .component_type()
        .exports(engine)
        .map(|(name, _)| name.to_owned())
        .collect()
}

fn roles(
    engine: &Engine,
    component: &Component,
    pre: &InstancePre<State>,
) -> wasmtime::Result<CompiledPlugin> {
    let exports = exports(engine, component);
    let exports: BTreeSet<_> = exports.iter().map(|name| compatible(name)).collect();
    let has = |role: &str| exports.contains(&compatible(role));
    Ok(CompiledPlugin {
        engine: engine.clone(),
        http: if has(HTTP_3) {
            Some(ProxyPre::P3(Http3::new(pre.clone())?))
        } else if has(HTTP_2) {
            Some(ProxyPre::P2(Http2::new(pre.clone())?))
        } else {
            None
        },
        messages: match has(MESSAGES) {
            true => Some(MessagesPre::new(pre.clone())?),
            false => None,
        },
        cli: if has(RUN_3) {
            Some(CliPre::P3(Command3::new(pre.clone())?))
        } else if has(RUN_2) {
            Some(CliPre::P2(Command2::new(pre.clone())?))
        } else {
            None
        },
        permits: 1,
        samplers: BTreeMap::new(),
        initialized: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::OFFERED;
    use crate::test_support::{compiler, engine_and_linker};

    /// The error of compiling WebAssembly text, or bytes after `raw:`.
    fn error_of(wat: &str) -> String {
        let compiler = compiler();
        let bytes = match wat.strip_prefix("raw:") {
            Some(raw) => raw.as_bytes().to_vec(),
            None => wat::parse_str(wat).unwrap(),
        };
        let components = PluginComponents::unlinked(bytes);
        match compile(&compiler, "chat", &components, 1 << 20) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn error_names_what_is_no_component() {
        assert!(error_of("(module)").contains("is a core WebAssembly module, not a component"));
        assert!(error_of("raw:").contains("it is empty"));
        assert!(error_of("raw:(component)").contains("WebAssembly text"));
        assert!(error_of("raw:\u{7f}ELF").contains("native code"));
        assert!(error_of("raw:hello").contains("does not start"));
        assert!(error_of("raw:\0asm\u{d}\0\u{1}\0rest").contains("cannot be compiled"));
    }

    #[test]
    fn component_without_role_learns_the_roles() {
        let error = error_of("(component)");
        assert!(
            error.contains("exports nothing that Corral can call"),
            "{error}"
        );
        assert!(error.contains("wasi:http/handler@0.3.0"), "{error}");
        assert!(
            error.contains("to be linked, one of corral:plugin/templating@0.1.0, "),
            "{error}"
        );
    }

    #[test]
    fn error_names_all_unknown_imports() {
        let error = error_of(
            r#"(component
                (import "acme:db/sql@1.0.0" (instance (export "query" (func))))
                (import "wasi:random/random@0.2.3" (instance (export "get-random-u64" (func (result u64)))))
                (import "wasi:http/types@0.4.0" (instance (export "x" (func)))))"#,
        );
        let (unknown, offered) = error.split_once("It offers").unwrap();
        assert!(unknown.contains("acme:db/sql@1.0.0, wasi:http/types@0.4.0"));
        assert!(!unknown.contains("random"));
        assert!(offered.contains("corral:inference@0.1.0, wasi:cli@0.2.12"));
        assert!(error.len() < 600, "{error}");
    }

    #[test]
    fn known_import_of_wrong_type_is_refused() {
        let error = error_of(
            r#"(component (import "wasi:random/random@0.2.3" (instance (export "get-random-u64" (func (result u32))))))"#,
        );
        assert!(
            error.contains("does not fit this host's interfaces"),
            "{error}"
        );
    }

    #[test]
    fn all_offered_interfaces_are_linked() {
        let (_, mut linker) = engine_and_linker();
        // Interfaces that only define types need no definition.
        let types = ["wasi:cli/types@0.3.0", "wasi:clocks/types@0.3.0"];
        for name in OFFERED.iter().filter(|name| !types.contains(name)) {
            // A second definition of the same name fails.
            let second = linker.root().func_wrap(name, |_, (): ()| Ok(()));
            assert!(second.is_err(), "{name} is not linked");
        }
    }
}
