//! What a component imports and exports, by name: enough to know how it can be linked, and known without
//! compiling it.

use wasmparser::{BinaryReaderError, Chunk, Parser, Payload};

/// The names, in the component's order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outline {
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
}

impl Outline {
    /// Of these bytes, of which only the outermost component is looked at.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut outline = Outline::default();
        sections(bytes, |payload| {
            match payload {
                Payload::ComponentImportSection(section) => {
                    for import in section {
                        outline.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) => {
                    for export in section {
                        outline.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
            Ok::<_, BinaryReaderError>(())
        })?;
        Ok(outline)
    }
}

/// Shows `see` what the outermost component consists of, in its order. What lies in modules and components
/// within it is passed over.
pub(super) fn sections<'a, E: From<BinaryReaderError>>(
    bytes: &'a [u8],
    mut see: impl FnMut(Payload<'a>) -> Result<(), E>,
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
            payload => see(payload)?,
        }
    }
}
