//! Composition: which linked component answers which import of a handler, and what a linked component may
//! import itself.
//!
//! A linked component is third-party code and gets nothing that its handler is granted: no inference, no values, no
//! configuration or secrets, no outbound requests, and an empty environment and standard input ([`DENIED`]). Clocks, random numbers and
//! standard output are available; files and sockets refuse every use, as they do for every plugin. A template
//! inherits the handler's grants if the deployment says so; a sampler never does.
//!
//! A linked component shares the call with its handler: `wasi:cli/exit` ends the call, as a trap does.
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
use crate::denied::DENIED;
use crate::interfaces::{SAMPLING, TEMPLATING, compatible, is_role, unknown_imports};
use crate::plugin_error::PluginError;
use crate::structure::{check_bytes, check_structure};
use bytes::Bytes;
use encode::{EncodeError, LinkedPart, Part, encode};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use world::World;

/// Imports that a linked component gets only if it inherits: these packages, and outbound requests.
const PACKAGES: [&str; 3] = ["corral:inference/", "wasi:keyvalue/", "wasi:config/"];
const OUTBOUND: [&str; 2] = ["wasi:http/client@0.3.0", "wasi:http/outgoing-handler@0.2.0"];

/// A handler and its linked components.
#[derive(Debug)]
pub(crate) struct PluginComponents {
    pub(crate) handler: Bytes,
    pub(crate) templating: Option<TemplatingComponent>,
    /// Sampling components by name.
    pub(crate) sampling: BTreeMap<String, Bytes>,
}

/// A linked template.
#[derive(Debug)]
pub(crate) struct TemplatingComponent {
    pub(crate) bytes: Bytes,
    /// It may import what the handler may.
    pub(crate) inherit: bool,
}

impl PluginComponents {
    /// Size of all components together.
    pub(crate) fn bytes(&self) -> usize {
        let templating = self.templating.iter().map(|linked| linked.bytes.len());
        let sampling = self.sampling.values().map(Bytes::len);
        self.handler.len() + templating.chain(sampling).sum::<usize>()
    }

    /// A handler without linked components.
    #[cfg(test)]
    pub(crate) fn unlinked(handler: Vec<u8>) -> Self {
        Self {
            handler: handler.into(),
            templating: None,
            sampling: BTreeMap::new(),
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
        Err(_) if components.templating.is_none() && components.sampling.is_empty() => {
            return Ok(unchanged);
        }
        Err(error) => return Err(unreadable(plugin.to_owned(), &error)),
    };
    let linked_parts = linked_parts(plugin, components, &world)?;
    if linked_parts.is_empty() {
        return Ok(unchanged);
    }
    let replaced = |import: &String| {
        linked_parts
            .iter()
            .any(|linked| linked.replaces.contains(import))
    };
    let passed_on = || world.imports.iter().filter(|import| !replaced(import));
    let unknown = unknown_imports(passed_on().map(String::as_str));
    if !unknown.is_empty() {
        return Err(PluginError::Imports {
            plugin: plugin.to_owned(),
            unknown,
        });
    }
    let exports = world.exports.iter().filter(|export| is_role(export));
    let exports = Vec::from_iter(exports.cloned());
    if exports.is_empty() {
        return Err(PluginError::no_role(
            plugin,
            &BTreeSet::from_iter(world.exports),
        ));
    }
    let handler = Part {
        bytes: &components.handler,
        imports: passed_on()
            .map(|name| (name.clone(), name.clone()))
            .collect(),
    };
    let failed = |cause: String| PluginError::Compose {
        plugin: plugin.to_owned(),
        cause,
        mismatch: false,
    };
    let composition = match encode(&handler, &linked_parts, &exports, limit) {
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
    let templating = components
        .templating
        .iter()
        .map(|template| (component_name(plugin, "templating"), &template.bytes));
    let sampling = components.sampling.iter().map(|(name, bytes)| {
        let link = sampling_link_name(name);
        (component_name(plugin, &link), bytes)
    });
    let faulty = handler
        .chain(templating)
        .chain(sampling)
        .find_map(|(component, bytes)| {
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
        let component = component_name(self.plugin, self.name);
        check_bytes(&component, bytes)?;
        let world = World::read(bytes).map_err(|error| unreadable(component.clone(), &error))?;
        let export = find_export(&component, &world, self.interface)?;
        check_imports(&component, &world, self.interface, self.inherit)?;
        let imports = world.imports.into_iter().map(|import| {
            let name = self.import_name(&import);
            (import, name)
        });
        Ok(LinkedPart {
            part: Part {
                bytes,
                imports: imports.collect(),
            },
            export,
            replaces,
        })
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
        let version = without_draft(version);
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
        return Err(PluginError::Imports {
            plugin: component.to_owned(),
            unknown,
        });
    }
    let needs_grant = |import: &&String| {
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
        may_inherit: interface == TEMPLATING,
    })
}

/// The version that this one is a draft of, with its build metadata; see `host::add_to_linker`.
fn without_draft(version: &str) -> String {
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
