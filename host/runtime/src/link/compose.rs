//! Puts a handler and what is linked with it into one component.
//!
//! The new component holds the parts as they are, byte for byte, and makes an instance of each: first of
//! those that are linked, then of the handler, which gets their exports in the place of its imports. What
//! the parts import beyond that, the new component imports for them: each part's imports one by one, the
//! linked ones' under names of their own. So nothing of the parts has to be merged, what one part imports is
//! never handed to another, and the name alone says for whom the host does something.
//!
//! To import is to repeat the types of what is imported: those sections of a part that define them are
//! written again with other indices. Whatever comes of that is checked by wasmtime like any component, so
//! a mistake here refuses a deployment and does no more.

use super::outline::sections;
use std::collections::BTreeMap;
use std::convert::Infallible;
use wasm_encoder::reencode::{Error, Reencode, ReencodeComponent};
use wasm_encoder::{
    Alias, Component, ComponentAliasSection, ComponentExportKind, ComponentExportSection,
    ComponentImportSection, ComponentInstanceSection, ComponentSection, ComponentSectionId,
    ComponentTypeRef, ComponentTypeSection, RawSection,
};
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind,
    ComponentType, Payload,
};

/// Most types that are written again: as many as wasmtime takes in a component.
const TYPES: u32 = 1_000_000;

/// A component as a part of another one.
pub(super) struct Part<'a> {
    pub(super) bytes: &'a [u8],
    /// What the new component's import is called, for each of the part's imports that it passes on.
    pub(super) imports: BTreeMap<String, String>,
}

/// A part that answers imports of the handler.
pub(super) struct Answer<'a> {
    pub(super) part: Part<'a>,
    /// The export that answers.
    pub(super) export: String,
    /// The handler's imports that it answers.
    pub(super) imports: Vec<String>,
}

/// Why parts make no component.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error("{0}")]
    Binary(#[from] BinaryReaderError),
    #[error("it cannot be written again: {0}")]
    Encode(#[from] Error),
    #[error("its import '{0}' is of a kind that cannot be passed on")]
    Import(String),
    #[error("they import what is made of more than {TYPES} types")]
    Types,
    /// The new component would be larger than it may be.
    #[error("what is made of them is too large")]
    TooLarge,
}

/// The new component, of at most `limit` bytes. It exports those instances of the handler's that `exports`
/// names.
pub(super) fn compose(
    handler: &Part<'_>,
    answers: &[Answer<'_>],
    exports: &[String],
    limit: usize,
) -> Result<Vec<u8>, Unfit> {
    let mut whole = Whole {
        limit,
        ..Whole::default()
    };
    let mut given = Vec::new();
    for answer in answers {
        let imports = whole.pass_on(&answer.part)?;
        let instance = whole.instance_of(answer.part.bytes, &imports)?;
        let export = whole.export_of(instance, &answer.export)?;
        given.extend(answer.imports.iter().map(|name| (name.clone(), export)));
    }
    given.extend(whole.pass_on(handler)?);
    let instance = whole.instance_of(handler.bytes, &given)?;
    for name in exports {
        let export = whole.export_of(instance, name)?;
        let mut section = ComponentExportSection::new();
        section.export(name.as_str(), ComponentExportKind::Instance, export, None);
        whole.write(&section)?;
        whole.instances += 1;
    }
    Ok(whole.component.finish())
}

/// The new component as far as it is written.
#[derive(Default)]
struct Whole {
    component: Component,
    types: u32,
    instances: u32,
    components: u32,
    /// Most bytes of it.
    limit: usize,
}

impl Whole {
    fn write(&mut self, section: &impl ComponentSection) -> Result<(), Unfit> {
        self.component.section(section);
        match self.component.as_slice().len() > self.limit {
            true => Err(Unfit::TooLarge),
            false => Ok(()),
        }
    }

    /// Counts a type that was written. Returns its index.
    fn new_type(&mut self) -> Result<u32, Unfit> {
        self.types += 1;
        match self.types > TYPES {
            true => Err(Unfit::Types),
            false => Ok(self.types - 1),
        }
    }

    /// Imports what the part imports, and says which instance is for which import.
    fn pass_on(&mut self, part: &Part<'_>) -> Result<Vec<(String, u32)>, Unfit> {
        let mut known = Known::default();
        let mut given = Vec::new();
        sections(part.bytes, |payload| {
            match payload {
                Payload::ComponentTypeSection(section) => {
                    for ty in section {
                        let index = self.write_type(ty?, &mut known)?;
                        known.types.push(index);
                    }
                }
                Payload::ComponentImportSection(section) => {
                    for import in section {
                        let import = import?;
                        let name = import.name.name;
                        match import.ty {
                            wasmparser::ComponentTypeRef::Instance(ty) => {
                                let new = part.imports.get(name);
                                let new = new.map(|new| match known.ty(ty) {
                                    Some(ty) => self.import(new, ty),
                                    None => Err(Unfit::Import(name.to_owned())),
                                });
                                let instance = new.transpose()?;
                                given.extend(instance.map(|instance| (name.to_owned(), instance)));
                                known.instances.push(instance);
                            }
                            wasmparser::ComponentTypeRef::Type(_) => known.types.push(None),
                            _ => {}
                        }
                    }
                }
                Payload::ComponentAliasSection(section) => {
                    for alias in section {
                        self.write_alias(&alias?, &mut known)?;
                    }
                }
                Payload::ComponentInstanceSection(section) => {
                    // One by one: what the section says of their number is not trusted.
                    for instance in section {
                        instance?;
                        known.instances.push(None);
                    }
                }
                Payload::ComponentExportSection(section) => {
                    for export in section {
                        match export?.kind {
                            ComponentExternalKind::Type => known.types.push(None),
                            ComponentExternalKind::Instance => known.instances.push(None),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
            Ok::<_, Unfit>(())
        })?;
        Ok(given)
    }

    /// Defines a type again, unless it is made of what is not here. Returns its new index.
    fn write_type(
        &mut self,
        ty: ComponentType<'_>,
        known: &mut Known,
    ) -> Result<Option<u32>, Unfit> {
        if let ComponentType::Resource { .. } = ty {
            return Ok(None);
        }
        known.missing = false;
        let mut section = ComponentTypeSection::new();
        known.parse_component_type(section.ty(), ty)?;
        if known.missing {
            return Ok(None);
        }
        self.write(&section)?;
        self.new_type().map(Some)
    }

    fn write_alias(&mut self, alias: &ComponentAlias<'_>, known: &mut Known) -> Result<(), Unfit> {
        match alias {
            ComponentAlias::InstanceExport {
                kind: ComponentExternalKind::Type,
                instance_index,
                name,
            } => {
                let instance = known.instances.get(*instance_index as usize);
                let index = instance.copied().flatten().map(|instance| {
                    self.alias(instance, ComponentExportKind::Type, name)?;
                    self.new_type()
                });
                known.types.push(index.transpose()?);
            }
            ComponentAlias::InstanceExport {
                kind: ComponentExternalKind::Instance,
                ..
            } => known.instances.push(None),
            ComponentAlias::Outer {
                kind: ComponentOuterAliasKind::Type,
                count,
                index,
            } => {
                let same = known.ty(*index).filter(|_| *count == 0);
                known.types.push(same);
            }
            _ => {}
        }
        Ok(())
    }

    fn import(&mut self, name: &str, ty: u32) -> Result<u32, Unfit> {
        let mut section = ComponentImportSection::new();
        section.import(name, ComponentTypeRef::Instance(ty));
        self.write(&section)?;
        self.instances += 1;
        Ok(self.instances - 1)
    }

    fn alias(&mut self, instance: u32, kind: ComponentExportKind, name: &str) -> Result<(), Unfit> {
        let mut section = ComponentAliasSection::new();
        section.alias(Alias::InstanceExport {
            instance,
            kind,
            name,
        });
        self.write(&section)
    }

    /// The instance that an instance exports.
    fn export_of(&mut self, instance: u32, name: &str) -> Result<u32, Unfit> {
        self.alias(instance, ComponentExportKind::Instance, name)?;
        self.instances += 1;
        Ok(self.instances - 1)
    }

    /// Takes a part in and makes an instance of it.
    fn instance_of(&mut self, part: &[u8], given: &[(String, u32)]) -> Result<u32, Unfit> {
        self.write(&RawSection {
            id: ComponentSectionId::Component.into(),
            data: part,
        })?;
        let given = given
            .iter()
            .map(|(name, instance)| (name, ComponentExportKind::Instance, *instance));
        let mut section = ComponentInstanceSection::new();
        section.instantiate(self.components, given);
        self.write(&section)?;
        self.components += 1;
        self.instances += 1;
        Ok(self.instances - 1)
    }
}

/// What a part's indices are in the new component; nothing for what is not there.
#[derive(Default)]
struct Known {
    types: Vec<Option<u32>>,
    instances: Vec<Option<u32>>,
    /// How deep within a type of an instance or a component: what is numbered there is numbered anew.
    depth: u32,
    /// Something that is not in the new component was named.
    missing: bool,
}

impl Known {
    /// The new index of one of the part's own types.
    fn ty(&self, index: u32) -> Option<u32> {
        self.types.get(index as usize).copied().flatten()
    }

    fn outermost(&mut self, index: u32) -> u32 {
        self.ty(index).unwrap_or_else(|| {
            self.missing = true;
            0
        })
    }
}

impl Reencode for Known {
    type Error = Infallible;

    fn type_index(&mut self, index: u32) -> Result<u32, Error> {
        // Core types of the part are not written again.
        self.missing |= self.depth == 0;
        Ok(index)
    }
}

impl ReencodeComponent for Known {
    fn component_type_index(&mut self, index: u32) -> u32 {
        match self.depth {
            0 => self.outermost(index),
            _ => index,
        }
    }

    fn outer_component_type_index(&mut self, count: u32, index: u32) -> u32 {
        match count == self.depth {
            true => self.outermost(index),
            false => index,
        }
    }

    fn outer_type_index(&mut self, count: u32, index: u32) -> Result<u32, Error> {
        self.missing |= count >= self.depth;
        Ok(index)
    }

    fn push_depth(&mut self) {
        self.depth += 1;
    }

    fn pop_depth(&mut self) {
        self.depth -= 1;
    }
}
