//! From bytes to a component that can be instantiated, or a reason that its author can use.

use crate::denied;
use crate::link::{self, LINKED, Parts};
use crate::linker::OFFERED;
use crate::names::{cause, listed};
use crate::sampling::{self, SamplerPre};
use crate::soundness;
use crate::state::State;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime_wasi::p2::bindings::CommandPre as Command2;
use wasmtime_wasi::p3::bindings::CommandPre as Command3;
use wasmtime_wasi_http::handler::ProxyPre;
use wasmtime_wasi_http::p2::bindings::ProxyPre as Http2;
use wasmtime_wasi_http::p3::bindings::ServicePre as Http3;

/// Why a file is no plugin. Each text says what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file can't be read.
    #[error("cannot read the plugin {path}: {cause}", path = path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The file is larger than the host accepts.
    #[error(
        "the plugin {plugin} has {bytes} bytes, but this host accepts {limit}; strip its debug information (wasm-tools strip) or raise the limit"
    )]
    TooLarge {
        /// The plugin's name.
        plugin: String,
        /// Its size.
        bytes: u64,
        /// The largest accepted.
        limit: usize,
    },
    /// It and what it is linked with are larger together than the host accepts.
    #[error(
        "the plugin {plugin} and what it is linked with have more bytes together than the {limit} that this host accepts; strip their debug information (wasm-tools strip), link less, or raise the limit"
    )]
    TooLargeTogether {
        /// The plugin's name.
        plugin: String,
        /// Most bytes that all of them may have.
        limit: usize,
    },
    /// The bytes are no WebAssembly.
    #[error(
        "the plugin {plugin} is not a WebAssembly component: it {found}; give the .wasm file that the component's build made"
    )]
    NotWasm {
        /// The plugin's name.
        plugin: String,
        /// What it is instead.
        found: &'static str,
    },
    /// The bytes are a core module.
    #[error(
        "the plugin {plugin} is a core WebAssembly module, not a component; build it for wasm32-wasip2, or wrap it with `wasm-tools component new {plugin}.wasm --adapt wasi_snapshot_preview1.reactor.wasm -o plugin.wasm`"
    )]
    CoreModule {
        /// The plugin's name.
        plugin: String,
    },
    /// It is not in order, or Wasmtime can't compile it.
    #[error("the plugin {plugin} cannot be compiled: {cause}")]
    Compile {
        /// The plugin's name.
        plugin: String,
        /// What is wrong.
        cause: String,
    },
    /// It imports what this host does not have.
    #[error(
        "the plugin {plugin} imports what this host does not offer: {}. It offers: {}",
        listed(unknown),
        offered()
    )]
    Imports {
        /// The plugin's name.
        plugin: String,
        /// The imports that are not offered.
        unknown: Vec<String>,
    },
    /// It imports something under a name that we offer, but not as we offer it.
    #[error(
        "the plugin {plugin} does not fit this host's interfaces: {cause}; rebuild it against the versions that this host offers: {}",
        offered()
    )]
    Mismatch {
        /// The plugin's name.
        plugin: String,
        /// What wasmtime said.
        cause: String,
    },
    /// It exports nothing that could be called.
    #[error(
        "the plugin {plugin} exports no role; export one of {}, or, to be linked, one of {}",
        ROLES.join(", "),
        LINKED.join(", ")
    )]
    NoRole {
        /// The plugin's name.
        plugin: String,
    },
    /// It is not called itself.
    #[error(
        "the plugin {plugin} exports {role}, which is linked to a handler and not called itself; deploy a handler, and name this one in its corral.toml: [links] {} = \"FILE.wasm\"",
        link::field(role)
    )]
    ToBeLinked {
        /// The plugin's name.
        plugin: String,
        /// What it exports.
        role: &'static str,
    },
    /// It imports what only a linked component has.
    #[error(
        "the plugin {plugin} imports {role}, which a linked component answers, but it is linked with {linked} that could; link it with one: [links] {} = \"FILE.wasm\" in corral.toml",
        link::field(role)
    )]
    NotLinked {
        /// The plugin's name.
        plugin: String,
        /// What it imports.
        role: &'static str,
        /// How many of the components that it is linked with could answer.
        linked: usize,
    },
    /// It is linked with a template that it does not use.
    #[error(
        "the plugin {plugin} is linked with a template, but does not import {role}; leave the link away, or build the plugin with that import"
    )]
    NotImported {
        /// The plugin's name.
        plugin: String,
        /// What it does not import.
        role: &'static str,
    },
    /// What it is linked with does not export what it is linked for.
    #[error(
        "the plugin {part} exports no {role}, for which it is linked; it exports {}",
        if exports.is_empty() { "nothing".to_owned() } else { listed(exports) }
    )]
    WrongLink {
        /// Whose it is, and which link.
        part: String,
        /// What it should export.
        role: &'static str,
        /// What it exports.
        exports: Vec<String>,
    },
    /// What it is linked with imports more than it may have.
    #[error(
        "the plugin {part} imports what a linked component is not given: {}; build it without{}",
        listed(refused),
        if *may_inherit { ", or, if it may use the deployment's models and see its environment, link it with inherit = true" } else { "" }
    )]
    LinkImports {
        /// Whose it is, and which link.
        part: String,
        /// The imports that are not given.
        refused: Vec<String>,
        /// Whether it could inherit them.
        may_inherit: bool,
    },
    /// It and what it is linked with make no component.
    #[error(
        "the plugin {plugin} cannot be put together with what it is linked with: {cause}{}",
        if *mismatch { "; build both against one version of corral:plugin" } else { "" }
    )]
    Compose {
        /// The plugin's name.
        plugin: String,
        /// What is wrong.
        cause: String,
        /// Each would do by itself: what one exports is not what the other imports.
        mismatch: bool,
    },
    /// It may open only models that there are not.
    #[error("the plugin {plugin} is to open the model '{model}', which this server does not have; it has: {}", have.join(", "))]
    NoModel {
        /// The plugin's name.
        plugin: String,
        /// The model that was named.
        model: String,
        /// The models that there are.
        have: Vec<String>,
    },
    /// The host failed.
    #[error("the plugin {plugin} could not be loaded, since the host stopped")]
    Stopped {
        /// The plugin's name.
        plugin: String,
    },
}

const HTTP_3: &str = "wasi:http/handler@0.3.0";
const HTTP_2: &str = "wasi:http/incoming-handler@0.2.0";
const RUN_3: &str = "wasi:cli/run@0.3.0";
const RUN_2: &str = "wasi:cli/run@0.2.0";
const ROLES: [&str; 4] = [HTTP_3, HTTP_2, RUN_3, RUN_2];

impl PluginError {
    /// A name for programs that never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLarge { .. } | Self::TooLargeTogether { .. } => "component-too-large",
            Self::NotWasm { .. } | Self::CoreModule { .. } => "not-a-component",
            Self::Compile { .. } => "does-not-compile",
            Self::Imports { .. } => "unknown-import",
            Self::Mismatch { .. } => "interface-mismatch",
            Self::NoRole { .. } => "no-role",
            Self::ToBeLinked { .. } => "to-be-linked",
            Self::NotLinked { .. } => "not-linked",
            Self::NotImported { .. } => "link-not-imported",
            Self::WrongLink { .. } => "wrong-link",
            Self::LinkImports { .. } => "link-import",
            Self::Compose { .. } => "does-not-compose",
            Self::NoModel { .. } => "no-model",
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// The packages that we offer, each once: more than sixty interfaces would fill the screen.
fn offered() -> String {
    let packages: BTreeSet<_> = OFFERED
        .iter()
        .map(|name| {
            let (package, rest) = name.split_once('/').unwrap_or((name, ""));
            let version = rest.split_once('@').map_or("", |(_, version)| version);
            format!("{package}@{version}")
        })
        .collect();
    Vec::from_iter(packages).join(", ") + ", and by a link corral:plugin@0.1.0"
}

/// A compiled plugin with its imports linked, by role.
pub(crate) struct Compiled {
    pub(crate) http: Option<ProxyPre<State>>,
    pub(crate) cli: Option<CliPre>,
    /// The sampling plugins that it is linked with, by their names.
    pub(crate) samplers: BTreeMap<String, SamplerPre>,
}

/// A plugin with the role `wasi:cli/run`.
pub(crate) enum CliPre {
    P2(Command2<State>),
    P3(Command3<State>),
}

/// Compiles a plugin with what it is linked with, none of which is larger than `limit` bytes. Takes as long
/// as compiling takes: not for async threads.
pub(crate) fn compile(
    engine: &Engine,
    linker: &Linker<State>,
    plugin: &str,
    parts: &Parts,
    limit: usize,
) -> Result<Compiled, PluginError> {
    recognise(plugin, &parts.handler)?;
    let whole = link::whole(plugin, parts, limit)?;
    let component = match &whole {
        Cow::Borrowed(bytes) => compile_component(engine, plugin, bytes)?,
        Cow::Owned(bytes) => compile_component(engine, plugin, bytes)
            .map_err(|error| link::blame(engine, plugin, parts, error))?,
    };
    let pre = instantiate_pre(engine, linker, plugin, &component)?;
    let mut compiled = roles(engine, &component, &pre).map_err(|error| PluginError::Mismatch {
        plugin: plugin.to_owned(),
        cause: cause(&error),
    })?;
    if compiled.http.is_none() && compiled.cli.is_none() {
        return Err(no_role(plugin, &exports(engine, &component)));
    }
    for (name, bytes) in &parts.sampling {
        let part = link::part_name(plugin, &link::sampling_name(name));
        let sampler = compile_sampling(engine, linker, &part, bytes)?;
        compiled.samplers.insert(name.clone(), sampler);
    }
    Ok(compiled)
}

/// Compiles a component with the role `corral:plugin/sampling`. It imports nothing that would show it
/// more than it is handed; a store in which it runs has no environment.
pub(crate) fn compile_sampling(
    engine: &Engine,
    linker: &Linker<State>,
    name: &str,
    bytes: &[u8],
) -> Result<SamplerPre, PluginError> {
    recognise(name, bytes)?;
    link::check_sampling(name, bytes)?;
    let component = compile_component(engine, name, bytes)?;
    let pre = instantiate_pre(engine, linker, name, &component)?;
    sampling::checked(pre).map_err(|error| PluginError::Mismatch {
        plugin: name.to_owned(),
        cause: format!("{error:#}"),
    })
}

pub(crate) fn compile_component(
    engine: &Engine,
    plugin: &str,
    bytes: &[u8],
) -> Result<Component, PluginError> {
    Component::from_binary(engine, bytes).map_err(|error| PluginError::Compile {
        plugin: plugin.to_owned(),
        cause: cause(&error),
    })
}

fn instantiate_pre(
    engine: &Engine,
    linker: &Linker<State>,
    plugin: &str,
    component: &Component,
) -> Result<InstancePre<State>, PluginError> {
    linker.instantiate_pre(component).map_err(|error| {
        let ty = component.component_type();
        let imports = ty.imports(engine).map(|(name, _)| name);
        // What is denied is there too, though nobody is told to import it.
        let unknown = unknown_imports(imports.filter(|name| !name.starts_with(denied::PACKAGE)));
        let plugin = plugin.to_owned();
        if unknown.is_empty() {
            PluginError::Mismatch {
                plugin,
                cause: cause(&error),
            }
        } else {
            PluginError::Imports { plugin, unknown }
        }
    })
}

/// Why what exports this can't be called.
pub(crate) fn no_role(plugin: &str, exports: &BTreeSet<String>) -> PluginError {
    let has = |role: &&str| {
        exports
            .iter()
            .any(|name| compatible(name) == compatible(role))
    };
    let plugin = plugin.to_owned();
    match LINKED.into_iter().find(has) {
        Some(role) => PluginError::ToBeLinked { plugin, role },
        None => PluginError::NoRole { plugin },
    }
}

/// Whether something of this name is called by the host.
pub(crate) fn is_role(export: &str) -> bool {
    ROLES
        .iter()
        .any(|role| compatible(export) == compatible(role))
}

enum Found {
    CoreModule,
    Other(&'static str),
}

/// Whether these may be the bytes of a component. What is compiled was looked at here, as it is or as a part
/// of the whole.
pub(crate) fn recognise(plugin: &str, bytes: &[u8]) -> Result<(), PluginError> {
    let plugin = || plugin.to_owned();
    look(bytes).map_err(|found| match found {
        Found::CoreModule => PluginError::CoreModule { plugin: plugin() },
        Found::Other(found) => PluginError::NotWasm {
            plugin: plugin(),
            found,
        },
    })?;
    soundness::check(bytes).map_err(|error| PluginError::Compile {
        plugin: plugin(),
        cause: error.to_string(),
    })
}

/// Looks at the first bytes: the magic number, then version and layer (a component's layer is 1).
fn look(bytes: &[u8]) -> Result<(), Found> {
    match bytes {
        [b'\0', b'a', b's', b'm', _, _, 1, 0, ..] => Ok(()),
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(Found::CoreModule),
        [] => Err(Found::Other("is empty")),
        [0x7f, b'E', b'L', b'F', ..] => Err(Found::Other(
            "is native code, which may have been compiled ahead of time, and native code is never taken from a file",
        )),
        [b'(', ..] => Err(Found::Other(
            "is WebAssembly text, which `wasm-tools parse` turns into a binary",
        )),
        _ => Err(Found::Other("does not begin as WebAssembly does")),
    }
}

/// `name@version` without the part of the version that may differ between compatible ones.
pub(crate) fn compatible(name: &str) -> (&str, Option<&str>) {
    let Some((interface, version)) = name.split_once('@') else {
        return (name, None);
    };
    let parts = if version.starts_with("0.") { 2 } else { 1 };
    let end = version
        .match_indices('.')
        .nth(parts - 1)
        .map_or(version.len(), |(at, _)| at);
    (interface, Some(&version[..end]))
}

/// Those of the imports that we offer to nobody.
pub(crate) fn unknown_imports<'a>(imports: impl Iterator<Item = &'a str>) -> Vec<String> {
    let offered: BTreeSet<_> = OFFERED.iter().copied().map(compatible).collect();
    imports
        .filter(|name| !offered.contains(&compatible(name)))
        .map(str::to_owned)
        .collect()
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
) -> wasmtime::Result<Compiled> {
    let exports = exports(engine, component);
    let exports: BTreeSet<_> = exports.iter().map(|name| compatible(name)).collect();
    let has = |role: &str| exports.contains(&compatible(role));
    Ok(Compiled {
        http: if has(HTTP_3) {
            Some(ProxyPre::P3(Http3::new(pre.clone())?))
        } else if has(HTTP_2) {
            Some(ProxyPre::P2(Http2::new(pre.clone())?))
        } else {
            None
        },
        cli: if has(RUN_3) {
            Some(CliPre::P3(Command3::new(pre.clone())?))
        } else if has(RUN_2) {
            Some(CliPre::P2(Command2::new(pre.clone())?))
        } else {
            None
        },
        samplers: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engine;
    use crate::linker::linker;
    use crate::settings::Settings;

    fn refused(wat: &str) -> String {
        let settings = Settings {
            instances: 1,
            ..Settings::default()
        };
        let engine = engine(&settings).unwrap();
        let linker = linker(&engine).unwrap();
        let bytes = match wat.strip_prefix("raw:") {
            Some(raw) => raw.as_bytes().to_vec(),
            None => wat::parse_str(wat).unwrap(),
        };
        let parts = Parts::alone(bytes);
        match compile(&engine, &linker, "chat", &parts, 1 << 20) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_no_component_is_named() {
        assert!(refused("(module)").contains("is a core WebAssembly module, not a component"));
        assert!(refused("raw:").contains("it is empty"));
        assert!(refused("raw:(component)").contains("WebAssembly text"));
        assert!(refused("raw:\u{7f}ELF").contains("native code"));
        assert!(refused("raw:hello").contains("does not begin"));
        assert!(refused("raw:\0asm\u{d}\0\u{1}\0rest").contains("cannot be compiled"));
    }

    #[test]
    fn a_component_without_a_role_is_told_the_roles() {
        let error = refused("(component)");
        assert!(error.contains("exports no role"), "{error}");
        assert!(error.contains("wasi:http/handler@0.3.0"), "{error}");
        assert!(
            error.contains("to be linked, one of corral:plugin/templating@0.1.0, "),
            "{error}"
        );
    }

    #[test]
    fn unknown_imports_are_all_named() {
        let error = refused(
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
    fn a_known_import_of_another_shape_is_explained() {
        let error = refused(
            r#"(component (import "wasi:random/random@0.2.3" (instance (export "get-random-u64" (func (result u32))))))"#,
        );
        assert!(
            error.contains("does not fit this host's interfaces"),
            "{error}"
        );
    }

    #[test]
    fn versions_are_compared_as_the_linker_does() {
        assert_eq!(compatible("a:b/c@0.2.12"), compatible("a:b/c@0.2.0"));
        assert_ne!(compatible("a:b/c@0.2.12"), compatible("a:b/c@0.3.0"));
        assert_eq!(compatible("a:b/c@1.2.3"), compatible("a:b/c@1.9.0"));
        assert_ne!(compatible("a:b/c@1.2.3"), compatible("a:b/c@2.0.0"));
        assert_eq!(compatible("f"), ("f", None));
    }

    #[test]
    fn everything_offered_is_linked() {
        let settings = Settings {
            instances: 1,
            ..Settings::default()
        };
        let mut linker = linker(&engine(&settings).unwrap()).unwrap();
        // Interfaces of types alone need no definition.
        let types = ["wasi:cli/types@0.3.0", "wasi:clocks/types@0.3.0"];
        for name in OFFERED.iter().filter(|name| !types.contains(name)) {
            // What is defined can't be defined again.
            let again = linker.root().func_wrap(name, |_, (): ()| Ok(()));
            assert!(again.is_err(), "{name} is not linked");
        }
    }
}
