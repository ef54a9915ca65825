//! Checks a component's structure before wasmtime reads it.
//!
//! Wasmtime's reader recurses for each type within a type without a limit: a few kilobytes of nested types
//! overflow the thread's stack, which ends the process. Its memory for nested components grows with their
//! depth: 20,000 levels took 8 GB. A later version of the same reader checks all types here first and
//! refuses types nested more than 100 deep; this module also counts components, imports and exports.
//!
//! Real builds stay far below these limits. A component consists of about ten modules, or one to two hundred
//! if each library is one, and each composition adds one level of depth.

use crate::plugin_error::PluginError;
use wasmparser::{BinaryReaderError, Parser, Payload};

/// Deepest nesting of components and modules.
const MAX_DEPTH: usize = 100;
/// Most components and modules within a component.
const MAX_PARTS: usize = 1_000;
/// Most imports, and most exports.
const MAX_NAMES: usize = 1_000;

/// Why a component is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StructureError {
    #[error("{0}")]
    Binary(#[from] BinaryReaderError),
    #[error("its components are nested more than {MAX_DEPTH} deep")]
    Depth,
    #[error("it consists of more than {MAX_PARTS} components and modules")]
    Parts,
    #[error("it has more than {MAX_NAMES} {0}")]
    Names(&'static str),
}

/// Checks all types, and counts components, modules, imports and exports.
pub(crate) fn check_structure(component: &[u8]) -> Result<(), StructureError> {
    let (mut depth, mut parts, mut imports, mut exports) = (0_usize, 0, 0, 0);
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                count(&mut parts, MAX_PARTS, StructureError::Parts)?;
                count(&mut depth, MAX_DEPTH, StructureError::Depth)?;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentTypeSection(section) => {
                for ty in section {
                    ty?;
                }
            }
            Payload::CoreTypeSection(section) => {
                for ty in section {
                    ty?;
                }
            }
            // Counts items one by one: a section's own count is not trusted.
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    import?;
                    count(&mut imports, MAX_NAMES, StructureError::Names("imports"))?;
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    export?;
                    count(&mut exports, MAX_NAMES, StructureError::Names("exports"))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn count(so_far: &mut usize, max: usize, error: StructureError) -> Result<(), StructureError> {
    *so_far += 1;
    if *so_far > max {
        return Err(error);
    }
    Ok(())
}

/// Checks the header and the structure of a component. Runs for every component before it is compiled.
pub(crate) fn check_bytes(plugin: &str, bytes: &[u8]) -> Result<(), PluginError> {
    let not_wasm = |found| {
        Err(PluginError::NotWasm {
            plugin: plugin.to_owned(),
            found,
        })
    };
    // The magic number, then version and layer. A component's layer is 1.
    match bytes {
        [b'\0', b'a', b's', b'm', _, _, 1, 0, ..] => {}
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => {
            return Err(PluginError::CoreModule {
                plugin: plugin.to_owned(),
            });
        }
        [] => return not_wasm("is empty"),
        [0x7f, b'E', b'L', b'F', ..] => {
            return not_wasm(
                "is native code, possibly compiled ahead of time, which this host never loads",
            );
        }
        [b'(', ..] => {
            return not_wasm("is WebAssembly text, which `wasm-tools parse` turns into a binary");
        }
        _ => return not_wasm("does not start with the WebAssembly header"),
    }
    check_structure(bytes).map_err(|error| PluginError::Compile {
        plugin: plugin.to_owned(),
        cause: error.to_string(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    /// An unsigned LEB128 number.
    fn number(mut n: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while n > 127 {
            bytes.push((n & 127) as u8 | 128);
            n >>= 7;
        }
        bytes.push(n as u8);
        bytes
    }

    fn section(id: u8, bytes: &[u8]) -> Vec<u8> {
        [&[id], &*number(bytes.len()), bytes].concat()
    }

    fn component(sections: &[Vec<u8>]) -> Vec<u8> {
        [EMPTY, &sections.concat()].concat()
    }

    /// A section with a component type nested `depth` deep.
    pub(crate) fn deep_type(depth: usize) -> Vec<u8> {
        let mut types = vec![1];
        for _ in 1..depth {
            types.extend([0x41, 1, 1]);
        }
        types.extend([0x41, 0]);
        section(7, &types)
    }

    fn deep_types(depth: usize) -> Vec<u8> {
        component(&[deep_type(depth)])
    }

    /// Components nested `depth` deep.
    fn deep_components(depth: usize) -> Vec<u8> {
        (0..depth).fold(EMPTY.to_vec(), |inner, _| component(&[section(4, &inner)]))
    }

    /// A component of `parts` empty ones, half of them nested one level deeper.
    fn many_components(parts: usize) -> Vec<u8> {
        let some = |number| vec![section(4, EMPTY); number];
        let half = some((parts - 1) / 2);
        let other = some(parts - 1 - half.len());
        component(&[vec![section(4, &component(&half))], other].concat())
    }

    /// A component with this many imports or exports: a section of this id with names, `item` after each.
    fn many_names(id: u8, item: &[u8], names: usize) -> Vec<u8> {
        let ty = section(7, &[1, 0x40, 0, 1, 0]);
        let mut bytes = number(names);
        for name in 0..names {
            let name = format!("f{name}");
            bytes.extend([0, name.len() as u8]);
            bytes.extend(name.as_bytes());
            bytes.extend(item);
        }
        component(&[ty, section(id, &bytes)])
    }

    #[test]
    fn structure_beyond_the_limits_is_refused() {
        let refused = |bytes: &[u8]| {
            let text = check_structure(bytes).err().map(|error| error.to_string());
            text.unwrap_or_default()
        };
        for (make, max, expected) in [
            (
                deep_types as fn(usize) -> Vec<u8>,
                100,
                "component type nesting is too deep",
            ),
            (deep_components, MAX_DEPTH, "nested more than 100 deep"),
            (
                many_components,
                MAX_PARTS,
                "consists of more than 1000 components and modules",
            ),
            (
                |imports| many_names(10, &[1, 0], imports),
                MAX_NAMES,
                "has more than 1000 imports",
            ),
            (
                |exports| many_names(11, &[3, 0, 0], exports),
                MAX_NAMES,
                "has more than 1000 exports",
            ),
        ] {
            assert_eq!(refused(&make(max)), "", "{expected}");
            for more in [max + 1, 10 * max] {
                let text = refused(&make(more));
                assert!(text.contains(expected), "{expected}: {text}");
            }
        }
        // The limit holds for nested components too.
        let within = component(&[section(4, &deep_types(101))]);
        assert!(refused(&within).contains("too deep"));
        let text = refused(&deep_types(200_000));
        assert!(text.contains("too deep"), "{text}");
    }
}
