//! What a handler is linked with: which component answers which of its imports, and what a linked one may
//! import itself.
//!
//! A linked component is somebody's library, and gets nothing of what its handler is given: no function
//! that reaches a model or the network, and an environment and a standard input without anything in them.
//! Clocks, random numbers, and standard output are there, as are files and sockets, which refuse everybody.
//! What it has in common with the handler, beside the log, is the call: `wasi:cli/exit` ends that, as a trap
//! does, and so an exit without an error ends a command with success. A template may inherit what the handler has
//! where the deployment says so; a sampler never.
//!
//! What is denied has another name: where a linked component asks for `wasi:cli/environment`, which every
//! standard library does, or for `wasi:cli/stdin`, the component that is made imports what stands beside it in
//! [`DENIED`]. Other imports of linked ones keep their names, and their versions get the link's
//! name as build metadata (`wasi:io/streams@0.2.6+templating`), which the linker does not look at.

mod compose;
mod outline;
#[cfg(test)]
mod tests;

use crate::denied::DENIED;
use crate::soundness;
use crate::validate::{
    PluginError, compatible, compile_component, is_role, no_role, recognise, unknown_imports,
};
use bytes::Bytes;
use compose::{Answer, Part, Unfit, compose};
use outline::Outline;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use wasmtime::Engine;

const TEMPLATING: &str = "corral:plugin/templating@0.1.0";
pub(crate) const SAMPLING: &str = "corral:plugin/sampling@0.1.0";
/// What a component exports to be linked.
pub(crate) const LINKED: [&str; 2] = [TEMPLATING, SAMPLING];

/// What a linked component is given only if it inherits; what begins with the first of these, as well.
const INFERENCE: &str = "corral:inference/";
const OUTBOUND: [&str; 2] = ["wasi:http/client@0.3.0", "wasi:http/outgoing-handler@0.2.0"];

/// A handler and the components that it is linked with.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) handler: Bytes,
    pub(crate) templating: Option<Templating>,
    /// By their names.
    pub(crate) sampling: BTreeMap<String, Bytes>,
}

/// A template that is linked.
#[derive(Debug)]
pub(crate) struct Templating {
    pub(crate) bytes: Bytes,
    /// It may import what the handler may.
    pub(crate) inherit: bool,
}

impl Parts {
    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        let templating = self.templating.iter().map(|linked| linked.bytes.len());
        let sampling = self.sampling.values().map(Bytes::len);
        self.handler.len() + templating.chain(sampling).sum::<usize>()
    }

    /// A handler that is linked with nothing.
    #[cfg(test)]
    pub(crate) fn alone(handler: Vec<u8>) -> Self {
        Parts {
            handler: handler.into(),
            templating: None,
            sampling: BTreeMap::new(),
        }
    }
}

/// How a component that `plugin` is linked with is called in messages.
pub(crate) fn part_name(plugin: &str, link: &str) -> String {
    format!("{plugin} (its link {link})")
}

/// What the link of a sampling component of this name is called.
pub(crate) fn sampling_name(name: &str) -> String {
    format!("sampling.{name}")
}

/// Where a manifest links what exports `role`.
pub(crate) fn field(role: &str) -> &'static str {
    match role {
        TEMPLATING => "templating",
        _ => "sampling.NAME",
    }
}

/// The component to be compiled, of at most `limit` bytes: the handler as it is, if nothing that it is
/// linked with answers an import of it.
pub(crate) fn whole<'a>(
    plugin: &str,
    parts: &'a Parts,
    limit: usize,
) -> Result<Cow<'a, [u8]>, PluginError> {
    let alone = Cow::Borrowed(&*parts.handler);
    let outline = match Outline::of(&parts.handler) {
        Ok(outline) => outline,
        // Wasmtime will say what is wrong with it.
        Err(_) if parts.templating.is_none() && parts.sampling.is_empty() => return Ok(alone),
        Err(error) => return Err(unreadable(plugin.to_owned(), &error)),
    };
    let wanted = |role: &str| {
        let imports = outline.imports.iter();
        let wanted = imports.filter(|import| compatible(import) == compatible(role));
        Vec::from_iter(wanted.cloned())
    };
    let not_linked = |role, linked| PluginError::NotLinked {
        plugin: plugin.to_owned(),
        role,
        linked,
    };
    let templating = match (&parts.templating, wanted(TEMPLATING)) {
        (None, wanted) if wanted.is_empty() => None,
        (None, _) => return Err(not_linked(TEMPLATING, 0)),
        (Some(_), wanted) if wanted.is_empty() => {
            return Err(PluginError::NotImported {
                plugin: plugin.to_owned(),
                role: TEMPLATING,
            });
        }
        (Some(linked), wanted) => {
            let link = Link {
                plugin,
                name: "templating",
                role: TEMPLATING,
                inherit: linked.inherit,
            };
            Some(link.answer(&linked.bytes, wanted)?)
        }
    };
    let only = match parts.sampling.len() {
        1 => parts.sampling.first_key_value(),
        _ => None,
    };
    let sampling = match (only, wanted(SAMPLING)) {
        (_, wanted) if wanted.is_empty() => None,
        (Some((name, sampler)), wanted) => {
            let link = Link {
                plugin,
                name: &sampling_name(name),
                role: SAMPLING,
                inherit: false,
            };
            Some(link.answer(sampler, wanted)?)
        }
        (None, _) => return Err(not_linked(SAMPLING, parts.sampling.len())),
    };
    let answers = Vec::from_iter(templating.into_iter().chain(sampling));
    if answers.is_empty() {
        return Ok(alone);
    }
    let answered = |import: &String| answers.iter().any(|one| one.imports.contains(import));
    let own = || outline.imports.iter().filter(|import| !answered(import));
    let unknown = unknown_imports(own().map(String::as_str));
    if !unknown.is_empty() {
        return Err(PluginError::Imports {
            plugin: plugin.to_owned(),
            unknown,
        });
    }
    let exports = outline.exports.iter().filter(|export| is_role(export));
    let exports = Vec::from_iter(exports.cloned());
    if exports.is_empty() {
        return Err(no_role(plugin, &BTreeSet::from_iter(outline.exports)));
    }
    let handler = Part {
        bytes: &parts.handler,
        imports: own().map(|name| (name.clone(), name.clone())).collect(),
    };
    let unfit = |cause: String| PluginError::Compose {
        plugin: plugin.to_owned(),
        cause,
        mismatch: false,
    };
    let whole = match compose(&handler, &answers, &exports, limit) {
        Ok(whole) => whole,
        Err(Unfit::TooLarge) => {
            return Err(PluginError::TooLargeTogether {
                plugin: plugin.to_owned(),
                limit,
            });
        }
        Err(error) => return Err(unfit(error.to_string())),
    };
    // Each part was looked at, but they add up.
    soundness::check(&whole).map_err(|error| unfit(error.to_string()))?;
    Ok(Cow::Owned(whole))
}

/// Whether a component can choose tokens: what it exports, and that it imports nothing that would show it
/// more than it is handed.
pub(crate) fn check_sampling(part: &str, bytes: &[u8]) -> Result<(), PluginError> {
    let outline = Outline::of(bytes).map_err(|error| unreadable(part.to_owned(), &error))?;
    exported(part, &outline, SAMPLING)?;
    may_import(part, &outline, SAMPLING, false)
}

/// Why the whole does not compile: one of its parts doesn't either, or they don't fit each other.
pub(crate) fn blame(
    engine: &Engine,
    plugin: &str,
    parts: &Parts,
    error: PluginError,
) -> PluginError {
    let own = std::iter::once((plugin.to_owned(), &parts.handler));
    let templating = parts.templating.iter();
    let templating = templating.map(|linked| (part_name(plugin, "templating"), &linked.bytes));
    let sampling = parts.sampling.iter();
    let sampling = sampling.map(|(name, bytes)| (part_name(plugin, &sampling_name(name)), bytes));
    let bad = own
        .chain(templating)
        .chain(sampling)
        .find_map(|(part, bytes)| {
            let compiled =
                recognise(&part, bytes).and_then(|()| compile_component(engine, &part, bytes));
            compiled.err()
        });
    match (bad, error) {
        (Some(bad), _) => bad,
        (None, PluginError::Compile { plugin, cause }) => PluginError::Compose {
            plugin,
            cause,
            mismatch: true,
        },
        (None, error) => error,
    }
}

/// A component as it is linked.
struct Link<'a> {
    plugin: &'a str,
    name: &'a str,
    role: &'static str,
    inherit: bool,
}

impl Link<'_> {
    /// The component with these bytes as what answers these imports of the handler.
    fn answer<'a>(&self, bytes: &'a [u8], wanted: Vec<String>) -> Result<Answer<'a>, PluginError> {
        let part = part_name(self.plugin, self.name);
        recognise(&part, bytes)?;
        let outline = Outline::of(bytes).map_err(|error| unreadable(part.clone(), &error))?;
        let export = exported(&part, &outline, self.role)?;
        may_import(&part, &outline, self.role, self.inherit)?;
        let imports = outline.imports.into_iter().map(|import| {
            let new = self.own_name(&import);
            (import, new)
        });
        Ok(Answer {
            part: Part {
                bytes,
                imports: imports.collect(),
            },
            export,
            imports: wanted,
        })
    }

    /// What the whole calls an import of the linked component, so that it is nobody else's.
    fn own_name(&self, import: &str) -> String {
        let (interface, version) = import.split_once('@').unwrap_or((import, "0.0.0"));
        let denied = DENIED.iter().find(|(name, _)| *name == interface);
        let interface = match denied.filter(|_| !self.inherit) {
            Some((_, instead)) => instead,
            None => interface,
        };
        let joint = if version.contains('+') { '.' } else { '+' };
        format!("{interface}@{version}{joint}{}", self.name)
    }
}

/// The export that has the role.
fn exported(part: &str, outline: &Outline, role: &'static str) -> Result<String, PluginError> {
    let mut exports = outline.exports.iter();
    let export = exports.find(|export| compatible(export) == compatible(role));
    export.cloned().ok_or_else(|| PluginError::WrongLink {
        part: part.to_owned(),
        role,
        exports: outline.exports.clone(),
    })
}

fn may_import(
    part: &str,
    outline: &Outline,
    role: &'static str,
    inherit: bool,
) -> Result<(), PluginError> {
    let unknown = unknown_imports(outline.imports.iter().map(String::as_str));
    if !unknown.is_empty() {
        return Err(PluginError::Imports {
            plugin: part.to_owned(),
            unknown,
        });
    }
    let granted = |import: &&String| {
        import.starts_with(INFERENCE)
            || OUTBOUND
                .iter()
                .any(|out| compatible(import) == compatible(out))
    };
    let refused = Vec::from_iter(outline.imports.iter().filter(granted).cloned());
    if refused.is_empty() || inherit {
        return Ok(());
    }
    Err(PluginError::LinkImports {
        part: part.to_owned(),
        refused,
        may_inherit: role == TEMPLATING,
    })
}

fn unreadable(plugin: String, error: &wasmparser::BinaryReaderError) -> PluginError {
    PluginError::Compile {
        plugin,
        cause: error.to_string(),
    }
}
