//! The imports and exports of a component by name, read without compiling it.

use wasmparser::{BinaryReaderError, Chunk, Parser, Payload};

/// Names of imports and exports, in the component's order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
}

impl World {
    /// Reads the outermost component of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut world = World::default();
        for_each_section(bytes, |payload| {
            match payload {
                Payload::ComponentImportSection(section) => {
                    for import in section {
                        world.imports.push(import?.name.name.to_owned());
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
