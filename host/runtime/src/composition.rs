//! Composition: which linked component answers which import of a handler, and what a linked component may
//! import itself.
//!
//! A linked component is third-party code and gets nothing that its handler is granted: no inference, no values, no
//! configuration or secrets, no outbound requests, no messages, no folders, and an empty environment and standard input ([`DENIED`]).
//! Standard output is available, and so are clocks and random numbers, unless the deployment denies them to all its components.
//! Sockets refuse every use, as they do for every plugin. A template inherits the handler's grants if the deployment says so; a
//! sampler never does.
//!
//! A linked component shares the call with its handler: `wasi:cli/exit` ends the call, as a trap does.
//!
//! Middleware stands before the handler: each part of the chain answers `wasi:http/handler` with its export, and passes requests
//! to the next part through its import of the same name. It is linked on the same terms as a template. The whole chain imports
//! `wasi:http/types` once, since a request must be of one type for all parts.
//!
//! In the composition, denied imports get the name of their stand-in. Other imports of a linked component
//! keep their names, with the link's name as build metadata of the version, which the linker ignores
//! (`wasi:io/streams@0.2.6+templating`).

mod encode;
pub(crate) mod program;
#[cfg(test)]
mod tests;
mod world;

use crate::compiler::Compiler;
use crate::component_structure::{check_bytes, check_structure};
use crate::denied_interfaces::DENIED;
use crate::interfaces::{
    HTTP_2, HTTP_3, MESSAGES, SAMPLING, TEMPLATING, compatible, is_role, unknown_imports,
};
use crate::plugin_error::PluginError;
use crate::runtime_config::MAX_MIDDLEWARE;
use bytes::Bytes;
use encode::{Chain, EncodeError, HTTP_TYPES, LinkedPart, Middleware, Part, encode};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use world::World;

/// Imports that a linked component gets only if it inherits: these packages, and outbound requests.
const PACKAGES: [&str; 4] = [
    "corral:inference/",
    "wasi:keyvalue/",
    "wasi:config/",
    "wasmcloud:messaging/",
];
const OUTBOUND: [&str; 2] = ["wasi:http/client@0.3.0", "wasi:http/outgoing-handler@0.2.0"];

const INFERENCE: &str = "corral:inference/";
/// Functions of `corral:inference` that read and write bodies and use no model. The SDK calls them in every handler.
const BODY_FUNCTIONS: [&str; 2] = ["collect", "frame"];

/// A handler and its linked components.
#[derive(Debug)]
pub(crate) struct PluginComponents {
    pub(crate) handler: Bytes,
    pub(crate) templating: Option<LinkedBytes>,
    /// Sampling components by name.
    pub(crate) sampling: BTreeMap<String, Bytes>,
    /// Middleware, outermost first.
    pub(crate) middleware: Vec<LinkedBytes>,
}

/// A linked component that may inherit its handler's grants.
#[derive(Debug)]
pub(crate) struct LinkedBytes {
    pub(crate) bytes: Bytes,
    /// It may import what the handler may.
    pub(crate) inherit: bool,
}

impl PluginComponents {
    /// Size of all components together.
    pub(crate) fn bytes(&self) -> usize {
        self.handler.len() + self.linked().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    /// The linked components, each with the name of its link.
    fn linked(&self) -> impl Iterator<Item = (String, &Bytes)> {
        let templating = self.templating.iter();
        let templating = templating.map(|linked| ("templating".to_owned(), &linked.bytes));
        let sampling = self.sampling.iter();
        let sampling = sampling.map(|(name, bytes)| (sampling_link_name(name), bytes));
        let middleware = self.middleware.iter().enumerate();
        let middleware =
            middleware.map(|(index, linked)| (middleware_link_name(index), &linked.bytes));
        templating.chain(sampling).chain(middleware)
    }

    /// A handler without linked components.
    #[cfg(test)]
    pub(crate) fn unlinked(handler: Vec<u8>) -> Self {
        Self {
            handler: handler.into(),
            templating: None,
            sampling: BTreeMap::new(),
            middleware: Vec::new(),
        }
    }
}

/// Name of a linked component of `plugin` in messages.
pub(crate) fn component_name(plugin: &str, link: &str) -> String {
    format!("{plugin} (linked component '{link}')")
}

/// Name of the link of a sampling component.
pub(crate) fn sampling_link_name(name: &str) -> String {
    format!("sampling.{name}")
}

/// Name of the link of middleware by its index; the outermost is 1.
pub(crate) fn middleware_link_name(index: usize) -> String {
    format!("middleware.{}", index + 1)
}

/// Composes a plugin into a component of at most `limit` bytes. Returns the handler unchanged if no linked
/// component answers one of its imports.
pub(crate) fn compose<'a>(
    plugin: &str,
    components: &'a PluginComponents,
    limit: usize,
) -> Result<Cow<'a, [u8]>, PluginError> {
    let unchanged = Cow::Borrowed(&*components.handler);
    let world = match World::read(&components.handler) {
        Ok(world) => world,
        // Wasmtime reports what is wrong.
        Err(_) if components.linked().next().is_none() => return Ok(unchanged),
        Err(error) => return Err(unreadable(plugin.to_owned(), &error)),
    };
    let linked_parts = linked_parts(plugin, components, &world)?;
    let middleware = middleware_parts(plugin, &components.middleware)?;
    if linked_parts.is_empty() && middleware.is_empty() {
        return Ok(unchanged);
    }
    let replaced = |import: &String| {
        linked_parts
            .iter()
            .any(|linked| linked.answers.contains_key(import))
    };
    let passed_on = || world.imports.iter().filter(|import| !replaced(import));
    let unknown = unknown_imports(passed_on().map(String::as_str));
    if !unknown.is_empty() {
        return Err(PluginError::imports(plugin, unknown));
    }
    let exports = world.exports.iter().filter(|export| is_role(export));
    let mut exports = Vec::from_iter(exports.cloned());
    if exports.is_empty() {
        return Err(PluginError::no_role(
            plugin,
            &BTreeSet::from_iter(world.exports),
        ));
    }
    let chain = chain(plugin, &middleware, &mut exports)?;
    let import_name = |name: &String| match chain {
        Some(_) if is_http_types(name) => HTTP_TYPES.to_owned(),
        _ => name.clone(),
    };
    let handler = Part {
        bytes: &components.handler,
        imports: passed_on()
            .map(|name| (name.clone(), import_name(name)))
            .collect(),
    };
    let failed = |cause: String| PluginError::Compose {
        plugin: plugin.to_owned(),
        cause,
        mismatch: false,
    };
    let composition = match encode(&handler, &linked_parts, chain.as_ref(), &exports, limit) {
        Ok(composition) => composition,
        Err(EncodeError::TooLarge) => {
            return Err(PluginError::TooLargeTogether {
                plugin: plugin.to_owned(),
                limit,
            });
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    // Each component passed this check alone, but their structures add up.
    check_structure(&composition).map_err(|error| failed(error.to_string()))?;
    Ok(Cow::Owned(composition))
}

/// The linked components that answer imports of the handler.
fn linked_parts<'a>(
    plugin: &str,
    components: &'a PluginComponents,
    handler: &World,
) -> Result<Vec<LinkedPart<'a>>, PluginError> {
    let imports_of = |interface: &str| {
        let imports = handler.imports.iter();
        let imports = imports.filter(|import| compatible(import) == compatible(interface));
        Vec::from_iter(imports.cloned())
    };
    let not_linked = |interface, linked| PluginError::NotLinked {
        plugin: plugin.to_owned(),
        interface,
        linked,
    };
    let mut parts = Vec::new();
    match (&components.templating, imports_of(TEMPLATING)) {
        (None, imports) if imports.is_empty() => {}
        (None, _) => return Err(not_linked(TEMPLATING, 0)),
        (Some(_), imports) if imports.is_empty() => {
            return Err(PluginError::NotImported {
                plugin: plugin.to_owned(),
                interface: TEMPLATING,
            });
        }
        (Some(template), imports) => {
            let link = Link {
                plugin,
                name: "templating",
                interface: TEMPLATING,
                inherit: template.inherit,
            };
            parts.push(link.part(&template.bytes, imports)?);
        }
    }
    let imports = imports_of(SAMPLING);
    if !imports.is_empty() {
        let (1, Some((name, sampler))) = (
            components.sampling.len(),
            components.sampling.first_key_value(),
        ) else {
            return Err(not_linked(SAMPLING, components.sampling.len()));
        };
        let link = Link {
            plugin,
            name: &sampling_link_name(name),
            interface: SAMPLING,
            inherit: false,
        };
        parts.push(link.part(sampler, imports)?);
    }
    Ok(parts)
}

/// The middleware as parts, outermost first.
fn middleware_parts<'a>(
    plugin: &str,
    middleware: &'a [LinkedBytes],
) -> Result<Vec<Middleware<'a>>, PluginError> {
    if middleware.len() > MAX_MIDDLEWARE {
        return Err(PluginError::TooMuchMiddleware {
            plugin: plugin.to_owned(),
            count: middleware.len(),
        });
    }
    let parts = middleware.iter().enumerate().map(|(index, linked)| {
        let link = Link {
            plugin,
            name: &middleware_link_name(index),
            interface: HTTP_3,
            inherit: linked.inherit,
        };
        link.middleware(&linked.bytes)
    });
    parts.collect()
}

/// The chain of middleware before the handler, if there is any. Removes other exports for HTTP and messages from the handler's
/// `exports`: requests must not pass the chain by, and messages come as requests then.
fn chain<'a, 'b>(
    plugin: &str,
    middleware: &'b [Middleware<'a>],
    exports: &mut Vec<String>,
) -> Result<Option<Chain<'a, 'b>>, PluginError> {
    if middleware.is_empty() {
        return Ok(None);
    }
    let is = |export: &String, role| compatible(export) == compatible(role);
    let Some(entry) = exports.iter().find(|export| is(export, HTTP_3)).cloned() else {
        return Err(PluginError::NoHandlerForMiddleware {
            plugin: plugin.to_owned(),
            exports: std::mem::take(exports),
        });
    };
    let roles = [HTTP_3, HTTP_2, MESSAGES];
    let passes_by = |export: &String| roles.iter().any(|role| is(export, *role));
    exports.retain(|export| *export == entry || !passes_by(export));
    Ok(Some(Chain { middleware, entry }))
}

/// Whether an import is the interface that all parts of a chain share.
fn is_http_types(import: &str) -> bool {
    compatible(import) == compatible(HTTP_TYPES)
}

/// Checks that a component exports `corral:plugin/sampling`, and imports nothing that shows it more than the
/// distributions that it samples from.
pub(crate) fn check_sampling(component: &str, bytes: &[u8]) -> Result<(), PluginError> {
    let world = World::read(bytes).map_err(|error| unreadable(component.to_owned(), &error))?;
    find_export(component, &world, SAMPLING)?;
    check_imports(component, &world, SAMPLING, false)
}

/// Why a composition does not compile: the error of the first component that does not compile alone, else
/// that they do not match.
pub(crate) fn find_faulty(
    compiler: &Compiler,
    plugin: &str,
    components: &PluginComponents,
    error: PluginError,
) -> PluginError {
    let handler = std::iter::once((plugin.to_owned(), &components.handler));
    let linked = components.linked();
    let linked = linked.map(|(link, bytes)| (component_name(plugin, &link), bytes));
    let faulty = handler.chain(linked).find_map(|(component, bytes)| {
        check_bytes(&component, bytes)
            .and_then(|()| compiler.compile(&component, bytes))
            .err()
    });
    match (faulty, error) {
        (Some(faulty), _) => faulty,
        (None, PluginError::Compile { plugin, cause }) => PluginError::Compose {
            plugin,
            cause,
            mismatch: true,
        },
        (None, error) => error,
    }
}

/// How a component is linked.
struct Link<'a> {
    plugin: &'a str,
    name: &'a str,
    interface: &'static str,
    inherit: bool,
}

impl Link<'_> {
    /// The component as a part that replaces these imports of the handler.
    fn part<'a>(
        &self,
        bytes: &'a [u8],
        replaces: Vec<String>,
    ) -> Result<LinkedPart<'a>, PluginError> {
        let (world, export) = self.read(bytes)?;
        check_imports(&self.component(), &world, self.interface, self.inherit)?;
        let answers = replaces.into_iter();
        Ok(LinkedPart {
            part: self.with_imports(bytes, world.imports),
            answers: answers.map(|import| (import, export.clone())).collect(),
        })
    }

    /// The component as a part of a chain.
    fn middleware<'a>(&self, bytes: &'a [u8]) -> Result<Middleware<'a>, PluginError> {
        let (mut world, export) = self.read(bytes)?;
        let is_next = |import: &String| compatible(import) == compatible(HTTP_3);
        let (next, imports) = world.imports.into_iter().partition::<Vec<_>, _>(is_next);
        if next.is_empty() {
            return Err(PluginError::NotMiddleware {
                component: self.component(),
            });
        }
        world.imports = imports;
        check_imports(&self.component(), &world, self.interface, self.inherit)?;
        Ok(Middleware {
            part: self.with_imports(bytes, world.imports),
            export,
            next,
        })
    }

    /// The component's name in messages.
    fn component(&self) -> String {
        component_name(self.plugin, self.name)
    }

    /// The component's world and its export of the link's interface.
    fn read(&self, bytes: &[u8]) -> Result<(World, String), PluginError> {
        let component = self.component();
        check_bytes(&component, bytes)?;
        let world = World::read(bytes).map_err(|error| unreadable(component.clone(), &error))?;
        let export = find_export(&component, &world, self.interface)?;
        Ok((world, export))
    }

    /// The component as a part whose imports get names of their own.
    fn with_imports<'a>(&self, bytes: &'a [u8], imports: Vec<String>) -> Part<'a> {
        let imports = imports.into_iter().map(|import| {
            let name = match self.interface == HTTP_3 && is_http_types(&import) {
                true => HTTP_TYPES.to_owned(),
                false => self.import_name(&import),
            };
            (import, name)
        });
        Part {
            bytes,
            imports: imports.collect(),
        }
    }

    /// The composition's name for an import of the component, different from every other part's.
    fn import_name(&self, import: &str) -> String {
        let (interface, version) = import.split_once('@').unwrap_or((import, "0.0.0"));
        let denied = DENIED.iter().find(|(name, _)| *name == interface);
        let interface = match denied.filter(|_| !self.inherit) {
            Some((_, stand_in)) => stand_in,
            None => interface,
        };
        let joint = if version.contains('+') { '.' } else { '+' };
        let version = without_prerelease(version);
        format!("{interface}@{version}{joint}{}", self.name)
    }
}

/// The export of the interface.
fn find_export(
    component: &str,
    world: &World,
    interface: &'static str,
) -> Result<String, PluginError> {
    let mut exports = world.exports.iter();
    let export = exports.find(|export| compatible(export) == compatible(interface));
    export
        .cloned()
        .ok_or_else(|| PluginError::LinkedExportMissing {
            component: component.to_owned(),
            interface,
            exports: world.exports.clone(),
        })
}

fn check_imports(
    component: &str,
    world: &World,
    interface: &'static str,
    inherit: bool,
) -> Result<(), PluginError> {
    let unknown = unknown_imports(world.imports.iter().map(String::as_str));
    if !unknown.is_empty() {
        return Err(PluginError::imports(component, unknown));
    }
    let needs_grant = |import: &&String| {
        let is_body = interface == HTTP_3
            && import.starts_with(INFERENCE)
            && world.has_at_most(import, &BODY_FUNCTIONS);
        if is_body {
            return false;
        }
        PACKAGES.iter().any(|package| import.starts_with(package))
            || OUTBOUND
                .iter()
                .any(|outbound| compatible(import) == compatible(outbound))
    };
    let refused = Vec::from_iter(world.imports.iter().filter(needs_grant).cloned());
    if refused.is_empty() || inherit {
        return Ok(());
    }
    Err(PluginError::LinkedImports {
        component: component.to_owned(),
        refused,
        may_inherit: interface != SAMPLING,
    })
}

/// A version without its pre-release part, such as `-draft`, but with its build metadata; see `host::add_to_linker`.
fn without_prerelease(version: &str) -> String {
    let (version, metadata) = match version.split_once('+') {
        Some((version, metadata)) => (version, format!("+{metadata}")),
        None => (version, String::new()),
    };
    let (version, _) = version.split_once('-').unwrap_or((version, ""));
    version.to_owned() + &metadata
}

fn unreadable(plugin: String, error: &wasmparser::BinaryReaderError) -> PluginError {
    PluginError::Compile {
        plugin,
        cause: error.to_string(),
    }
}
