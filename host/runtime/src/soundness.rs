//! What is refused of a component before wasmtime reads it, since reading it would take too much.
//!
//! Wasmtime's reader calls itself for each type within a type, without counting: some kilobytes of types in
//! types overflow its thread's stack, which ends the process. What it keeps for each component within
//! components grows with how deep they lie: 20,000 in each other took 8 GB. So all of a component's types are read
//! here first, by a later version of the same reader, which refuses types that are deeper than 100; and what a
//! component consists of is counted. No build comes near these numbers: a component is made of some ten
//! modules, of a hundred or two if each of its libraries is one, and each time that components are put together adds
//! one to the depth.

use wasmparser::{BinaryReaderError, Parser, Payload};

/// How deep components and modules may lie within each other.
const DEPTH: usize = 100;
/// Most components and modules within a component.
const PARTS: usize = 1_000;
/// Most imports of a component, and most exports.
const NAMES: usize = 1_000;

/// Why a component is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsound {
    #[error("{0}")]
    Binary(#[from] BinaryReaderError),
    #[error("components lie more than {DEPTH} deep within each other in it")]
    Depth,
    #[error("it consists of more than {PARTS} components and modules")]
    Parts,
    #[error("it has more than {NAMES} {0}")]
    Names(&'static str),
}

/// Reads what a component consists of, and all of its types.
pub(crate) fn check(component: &[u8]) -> Result<(), Unsound> {
    let (mut depth, mut parts, mut imports, mut exports) = (0_usize, 0, 0, 0);
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                count(&mut parts, PARTS, Unsound::Parts)?;
                count(&mut depth, DEPTH, Unsound::Depth)?;
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
            // What they say of their number is not trusted: they are counted one by one.
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    import?;
                    count(&mut imports, NAMES, Unsound::Names("imports"))?;
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    export?;
                    count(&mut exports, NAMES, Unsound::Names("exports"))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn count(so_far: &mut usize, most: usize, error: Unsound) -> Result<(), Unsound> {
    *so_far += 1;
    if *so_far > most {
        return Err(error);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    /// A number as the format has it.
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

    /// A section with a type of a component within one, `depth` times.
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

    /// A component with an empty one within one, `depth` times.
    fn deep_components(depth: usize) -> Vec<u8> {
        (0..depth).fold(EMPTY.to_vec(), |inner, _| component(&[section(4, &inner)]))
    }

    /// A component with `parts` empty ones, half of them in another one.
    fn many_components(parts: usize) -> Vec<u8> {
        let some = |number| vec![section(4, EMPTY); number];
        let half = some((parts - 1) / 2);
        let other = some(parts - 1 - half.len());
        component(&[vec![section(4, &component(&half))], other].concat())
    }

    /// A component with so many imports of a function.
    fn many_imports(imports: usize) -> Vec<u8> {
        let ty = section(7, &[1, 0x40, 0, 1, 0]);
        let mut bytes = number(imports);
        for import in 0..imports {
            let name = format!("f{import}");
            bytes.extend([0, name.len() as u8]);
            bytes.extend(name.as_bytes());
            bytes.extend([1, 0]);
        }
        component(&[ty, section(10, &bytes)])
    }

    /// A component that exports its only type under so many names.
    fn many_exports(exports: usize) -> Vec<u8> {
        let ty = section(7, &[1, 0x40, 0, 1, 0]);
        let mut bytes = number(exports);
        for export in 0..exports {
            let name = format!("f{export}");
            bytes.extend([0, name.len() as u8]);
            bytes.extend(name.as_bytes());
            bytes.extend([3, 0, 0]);
        }
        component(&[ty, section(11, &bytes)])
    }

    #[test]
    fn what_wasmtime_could_not_bear_is_refused() {
        let refused = |bytes: &[u8]| {
            let text = check(bytes).err().map(|error| error.to_string());
            text.unwrap_or_default()
        };
        for (make, most, expected) in [
            (
                deep_types as fn(usize) -> Vec<u8>,
                100,
                "component type nesting is too deep",
            ),
            (
                deep_components,
                DEPTH,
                "components lie more than 100 deep within each other",
            ),
            (
                many_components,
                PARTS,
                "consists of more than 1000 components and modules",
            ),
            (many_imports, NAMES, "has more than 1000 imports"),
            (many_exports, NAMES, "has more than 1000 exports"),
        ] {
            assert_eq!(refused(&make(most)), "", "{expected}");
            for more in [most + 1, 10 * most] {
                let text = refused(&make(more));
                assert!(text.contains(expected), "{expected}: {text}");
            }
        }
        // Deep types wherever they are.
        let within = component(&[section(4, &deep_types(101))]);
        assert!(refused(&within).contains("too deep"));
        let text = refused(&deep_types(200_000));
        assert!(text.contains("too deep"), "{text}");
    }
}
