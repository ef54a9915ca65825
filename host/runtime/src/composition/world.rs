//! The imports and exports of a component by name, read without compiling it.

use std::collections::BTreeMap;
use wasmparser::{
    BinaryReaderError, Chunk, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind,
    ComponentType, ComponentTypeRef, InstanceTypeDeclaration, Parser, Payload,
};

/// Names of imports and exports, in the component's order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
    /// The functions of each imported interface. Imports of other kinds are missing.
    functions: BTreeMap<String, Vec<String>>,
}

/// The functions of each type of the index space that is an instance's.
type InstanceTypes = Vec<Option<Vec<String>>>;

/// Adds the types that a section defines.
fn add_types(types: &mut InstanceTypes, payload: &Payload<'_>) -> Result<(), BinaryReaderError> {
    match payload {
        Payload::ComponentTypeSection(section) => {
            for ty in section.clone() {
                types.push(match ty? {
                    ComponentType::Instance(declarations) => Some(functions(&declarations)),
                    _ => None,
                });
            }
        }
        Payload::ComponentAliasSection(section) => {
            for alias in section.clone() {
                if let ComponentAlias::InstanceExport {
                    kind: ComponentExternalKind::Type,
                    ..
                }
                | ComponentAlias::Outer {
                    kind: ComponentOuterAliasKind::Type,
                    ..
                } = alias?
                {
                    types.push(None);
                }
            }
        }
        Payload::ComponentExportSection(section) => {
            for export in section.clone() {
                if export?.kind == ComponentExternalKind::Type {
                    types.push(None);
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// The functions among the exports of an instance type.
fn functions(declarations: &[InstanceTypeDeclaration<'_>]) -> Vec<String> {
    let declarations = declarations.iter();
    let functions = declarations.filter_map(|declaration| match declaration {
        InstanceTypeDeclaration::Export {
            name,
            ty: ComponentTypeRef::Func(_),
        } => Some(name.name.to_owned()),
        _ => None,
    });
    functions.collect()
}

impl World {
    /// Reads the outermost component of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut world = World::default();
        let mut types = InstanceTypes::new();
        for_each_section(bytes, |payload| {
            add_types(&mut types, &payload)?;
            match payload {
                Payload::ComponentImportSection(section) => {
                    for import in section {
                        let import = import?;
                        let name = import.name.name.to_owned();
                        match import.ty {
                            ComponentTypeRef::Instance(index) => {
                                let ty = types.get(index as usize).cloned().flatten();
                                world.functions.extend(ty.map(|ty| (name.clone(), ty)));
                            }
                            ComponentTypeRef::Type(_) => types.push(None),
                            _ => {}
                        }
                        world.imports.push(name);
                    }
                }
                Payload::ComponentExportSection(section) => {
                    for export in section {
                        world.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
            Ok::<_, BinaryReaderError>(())
        })?;
        Ok(world)
    }

    /// Whether an import is an interface that gives the component at most these functions.
    pub(super) fn has_at_most(&self, import: &str, allowed: &[&str]) -> bool {
        let functions = self.functions.get(import);
        functions.is_some_and(|functions| functions.iter().all(|one| allowed.contains(&&**one)))
    }
}

/// Passes each section of the outermost component to `visit`. Skips nested modules and components.
pub(super) fn for_each_section<'a, E: From<BinaryReaderError>>(
    bytes: &'a [u8],
    mut visit: impl FnMut(Payload<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let (mut parser, mut rest) = (Parser::new(0), bytes);
    loop {
        let (payload, consumed) = match parser.parse(rest, true)? {
            Chunk::Parsed { payload, consumed } => (payload, consumed),
            Chunk::NeedMoreData(_) => return Ok(()),
        };
        rest = rest.get(consumed..).unwrap_or_default();
        match payload {
            Payload::ModuleSection {
                unchecked_range, ..
            }
            | Payload::ComponentSection {
                unchecked_range, ..
            } => {
                let length = unchecked_range.end.saturating_sub(unchecked_range.start);
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                rest = rest.get(length..).unwrap_or_default();
            }
            Payload::End(_) => return Ok(()),
            payload => visit(payload)?,
        }
    }
}
