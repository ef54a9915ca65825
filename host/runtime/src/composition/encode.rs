//! Encodes a handler and its linked components as one component.
//!
//! The composition contains its parts unchanged, byte for byte, and instantiates them: first the linked parts,
//! then the handler with their exports in place of its imports. It imports what the parts import beyond that.
//! Linked parts' imports get names of their own, so imports are not merged, no part sees another's imports,
//! and an import's name tells the host which part calls it. The one exception is [`HTTP_TYPES`] of a chain of middleware:
//! each part imports a subset of the interface, and the composition imports all of it once, from `http_types.wat`.
//!
//! Importing an interface means repeating its types: the type sections of a part are encoded again with
//! other indices. Wasmtime validates the result like any component, so a bug here only refuses a deployment.

use super::world::for_each_section;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use wasm_encoder::reencode::{Error as ReencodeError, Reencode, ReencodeComponent};
use wasm_encoder::{
    Alias, Component, ComponentAliasSection, ComponentExportKind, ComponentExportSection,
    ComponentImportSection, ComponentInstanceSection, ComponentSection, ComponentSectionId,
    ComponentTypeRef, ComponentTypeSection, RawSection,
};
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind,
    ComponentType, Payload,
};

/// The interface that the parts of a chain share.
pub(super) const HTTP_TYPES: &str = "wasi:http/types@0.3.0";
/// A component that imports the whole of it: `http_types.wat`, encoded by a test.
pub(super) const HTTP_TYPES_IMPORTER: &[u8] = include_bytes!("http_types.wasm");

/// Most types encoded again: wasmtime's limit for a component.
const MAX_TYPES: u32 = 1_000_000;

/// A component within the composition.
pub(super) struct Part<'a> {
    pub(super) bytes: &'a [u8],
    /// Its imports that no other part answers, with the names under which the composition imports them.
    pub(super) imports: BTreeMap<String, String>,
}

/// A part whose exports replace imports of the handler.
pub(super) struct LinkedPart<'a> {
    pub(super) part: Part<'a>,
    /// The handler's imports, each with the export that replaces it.
    pub(super) answers: BTreeMap<String, String>,
}

/// A part that passes requests to another part.
pub(super) struct Middleware<'a> {
    pub(super) part: Part<'a>,
    /// Answers requests.
    pub(super) export: String,
    /// Its imports that the next part answers.
    pub(super) next: Vec<String>,
}

/// Middleware before a handler.
pub(super) struct Chain<'a, 'b> {
    /// The outermost first.
    pub(super) middleware: &'b [Middleware<'a>],
    /// The export of the handler that the chain answers in its place.
    pub(super) entry: String,
}

/// Why the parts cannot be encoded as one component.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncodeError {
    #[error("{0}")]
    Binary(#[from] BinaryReaderError),
    #[error("its types cannot be encoded again: {0}")]
    Reencode(#[from] ReencodeError),
    #[error("its import '{0}' is not an instance of a known type")]
    Import(String),
    #[error(
        "its components need the import '{0}' twice, and a component has each name once; give it other build metadata, \
         which follows '+', in one of them"
    )]
    SameImport(String),
    #[error("their imports have more than {MAX_TYPES} types")]
    Types,
    #[error("the composition is too large")]
    TooLarge,
}

/// Encodes the composition, of at most `limit` bytes. It exports the handler's `exports`.
pub(super) fn encode(
    handler: &Part<'_>,
    linked_parts: &[LinkedPart<'_>],
    chain: Option<&Chain<'_, '_>>,
    exports: &[String],
    limit: usize,
) -> Result<Vec<u8>, EncodeError> {
    let mut encoder = Encoder {
        limit,
        ..Encoder::default()
    };
    if chain.is_some() {
        encoder.import_http_types()?;
    }
    let mut arguments = Vec::new();
    for linked in linked_parts {
        let imports = encoder.import_for(&linked.part)?;
        let instance = encoder.instantiate(linked.part.bytes, &imports)?;
        for (import, export) in &linked.answers {
            arguments.push((import.clone(), encoder.export_of(instance, export)?));
        }
    }
    arguments.extend(encoder.import_for(handler)?);
    let instance = encoder.instantiate(handler.bytes, &arguments)?;
    for name in exports {
        let export = match chain.filter(|chain| chain.entry == *name) {
            Some(chain) => encoder.chain(chain, instance)?,
            None => encoder.export_of(instance, name)?,
        };
        encoder.export(export, name)?;
    }
    Ok(encoder.component.finish())
}

/// The composition so far, with the sizes of its index spaces.
#[derive(Default)]
struct Encoder {
    component: Component,
    types: u32,
    instances: u32,
    components: u32,
    /// Names of its imports.
    imports: BTreeSet<String>,
    /// The instance that all parts import under the name [`HTTP_TYPES`], if there is a chain.
    http_types: Option<u32>,
    /// Most bytes of the composition.
    limit: usize,
}

impl Encoder {
    fn write(&mut self, section: &impl ComponentSection) -> Result<(), EncodeError> {
        self.component.section(section);
        match self.component.as_slice().len() > self.limit {
            true => Err(EncodeError::TooLarge),
            false => Ok(()),
        }
    }

    /// Returns the index of a type that was just written.
    fn new_type(&mut self) -> Result<u32, EncodeError> {
        self.types += 1;
        match self.types > MAX_TYPES {
            true => Err(EncodeError::Types),
            false => Ok(self.types - 1),
        }
    }

    /// Adds the imports of the composition that are for `part`. Returns the part's arguments: the instance for
    /// each of its imports.
    fn import_for(&mut self, part: &Part<'_>) -> Result<Vec<(String, u32)>, EncodeError> {
        let mut known = KnownIndices::default();
        let mut arguments = Vec::new();
        for_each_section(part.bytes, |payload| {
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
                                    None => Err(EncodeError::Import(name.to_owned())),
                                });
                                let instance = new.transpose()?;
                                arguments
                                    .extend(instance.map(|instance| (name.to_owned(), instance)));
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
                    // Counts items one by one: the section's own count is not trusted.
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
            Ok::<_, EncodeError>(())
        })?;
        Ok(arguments)
    }

    /// Encodes a type again and returns its new index. None if it needs a type that the composition lacks.
    fn write_type(
        &mut self,
        ty: ComponentType<'_>,
        known: &mut KnownIndices,
    ) -> Result<Option<u32>, EncodeError> {
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

    fn write_alias(
        &mut self,
        alias: &ComponentAlias<'_>,
        known: &mut KnownIndices,
    ) -> Result<(), EncodeError> {
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

    /// Imports what the parts of a chain share.
    fn import_http_types(&mut self) -> Result<(), EncodeError> {
        let name = HTTP_TYPES.to_owned();
        let importer = Part {
            bytes: HTTP_TYPES_IMPORTER,
            imports: BTreeMap::from([(name.clone(), name)]),
        };
        let imported = self.import_for(&importer)?;
        self.http_types = imported.first().map(|(_, instance)| *instance);
        Ok(())
    }

    /// Instantiates the middleware before the instance of a handler. Returns the export that answers requests.
    fn chain(&mut self, chain: &Chain<'_, '_>, handler: u32) -> Result<u32, EncodeError> {
        let mut next = self.export_of(handler, &chain.entry)?;
        for middleware in chain.middleware.iter().rev() {
            let mut arguments = self.import_for(&middleware.part)?;
            arguments.extend(middleware.next.iter().map(|name| (name.clone(), next)));
            let instance = self.instantiate(middleware.part.bytes, &arguments)?;
            next = self.export_of(instance, &middleware.export)?;
        }
        Ok(next)
    }

    fn import(&mut self, name: &str, ty: u32) -> Result<u32, EncodeError> {
        if let Some(shared) = self.http_types.filter(|_| name == HTTP_TYPES) {
            return Ok(shared);
        }
        if !self.imports.insert(name.to_owned()) {
            return Err(EncodeError::SameImport(name.to_owned()));
        }
        let mut section = ComponentImportSection::new();
        section.import(name, ComponentTypeRef::Instance(ty));
        self.write(&section)?;
        self.instances += 1;
        Ok(self.instances - 1)
    }

    fn alias(
        &mut self,
        instance: u32,
        kind: ComponentExportKind,
        name: &str,
    ) -> Result<(), EncodeError> {
        let mut section = ComponentAliasSection::new();
        section.alias(Alias::InstanceExport {
            instance,
            kind,
            name,
        });
        self.write(&section)
    }

    /// The instance that `instance` exports under `name`.
    fn export_of(&mut self, instance: u32, name: &str) -> Result<u32, EncodeError> {
        self.alias(instance, ComponentExportKind::Instance, name)?;
        self.instances += 1;
        Ok(self.instances - 1)
    }

    /// Exports an instance.
    fn export(&mut self, instance: u32, name: &str) -> Result<(), EncodeError> {
        let mut section = ComponentExportSection::new();
        section.export(name, ComponentExportKind::Instance, instance, None);
        self.write(&section)?;
        self.instances += 1;
        Ok(())
    }

    /// Embeds a part and instantiates it.
    fn instantiate(
        &mut self,
        part: &[u8],
        arguments: &[(String, u32)],
    ) -> Result<u32, EncodeError> {
        self.write(&RawSection {
            id: ComponentSectionId::Component.into(),
            data: part,
        })?;
        let arguments = arguments
            .iter()
            .map(|(name, instance)| (name, ComponentExportKind::Instance, *instance));
        let mut section = ComponentInstanceSection::new();
        section.instantiate(self.components, arguments);
        self.write(&section)?;
        self.components += 1;
        self.instances += 1;
        Ok(self.instances - 1)
    }
}

/// Maps a part's indices to those of the composition. None for items that the composition lacks.
#[derive(Default)]
struct KnownIndices {
    types: Vec<Option<u32>>,
    instances: Vec<Option<u32>>,
    /// Nesting within instance and component types, which have index spaces of their own.
    depth: u32,
    /// The type refers to an item that the composition lacks.
    missing: bool,
}

impl KnownIndices {
    /// The index in the composition of one of the part's types.
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

impl Reencode for KnownIndices {
    type Error = Infallible;

    fn type_index(&mut self, index: u32) -> Result<u32, ReencodeError> {
        // Core types of the part are not encoded again.
        self.missing |= self.depth == 0;
        Ok(index)
    }
}

impl ReencodeComponent for KnownIndices {
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

    fn outer_type_index(&mut self, count: u32, index: u32) -> Result<u32, ReencodeError> {
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
