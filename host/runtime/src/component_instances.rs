//! Counts the component instances that an instance of a component consists of.
//!
//! Each of them may have one blocked task, which keeps a stack. Wasmtime reports core instances only, but an
//! ordinary component has three or four of those and blocks in one at a time.

use crate::runtime_config::CORE_INSTANCES;
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, Encoding, Instance, Parser, Payload,
};

/// Wasmtime refuses components with more core instances, and each counted instance has one.
const MAX: u32 = CORE_INSTANCES;

/// The component instances with code, from 1 to [`MAX`]. [`MAX`] if the component cannot be read, or
/// instantiates components that it imports.
pub(crate) fn component_instances(component: &[u8]) -> u32 {
    count(component).unwrap_or(MAX).clamp(1, MAX)
}

/// A component or module that is being read.
#[derive(Default)]
struct Scope {
    is_module: bool,
    /// It instantiates core modules.
    has_code: bool,
    /// Instances of components within it.
    inner: u32,
    /// Instances that each component of the index space consists of.
    components: Vec<u32>,
}

impl Scope {
    fn instances(&self) -> u32 {
        self.inner.saturating_add(self.has_code.into()).min(MAX)
    }

    fn component(&self, index: u32) -> u32 {
        self.components.get(index as usize).copied().unwrap_or(MAX)
    }
}

fn count(component: &[u8]) -> Result<u32, BinaryReaderError> {
    let mut scopes: Vec<Scope> = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        let payload = payload?;
        if let Payload::Version { encoding, .. } = payload {
            scopes.push(Scope {
                is_module: encoding == Encoding::Module,
                ..Scope::default()
            });
            continue;
        }
        if let Payload::End(_) = payload {
            let Some(ended) = scopes.pop() else { continue };
            match scopes.last_mut() {
                Some(outer) if !ended.is_module => outer.components.push(ended.instances()),
                Some(_) => {}
                None => return Ok(ended.instances()),
            }
            continue;
        }
        let depth = scopes.len();
        let outer = |count: u32, index| {
            let scope = depth.checked_sub(1 + count as usize);
            scope.map_or(MAX, |scope| scopes[scope].component(index))
        };
        let (mut has_code, mut inner, mut components) = (false, 0_u32, Vec::new());
        match payload {
            Payload::InstanceSection(section) => {
                for instance in section {
                    has_code |= matches!(instance?, Instance::Instantiate { .. });
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section {
                    if let ComponentInstance::Instantiate {
                        component_index, ..
                    } = instance?
                    {
                        inner = inner.saturating_add(outer(0, component_index));
                    }
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section {
                    match alias? {
                        ComponentAlias::Outer {
                            kind: ComponentOuterAliasKind::Component,
                            count,
                            index,
                        } => components.push(outer(count, index)),
                        ComponentAlias::InstanceExport {
                            kind: ComponentExternalKind::Component,
                            ..
                        } => components.push(MAX),
                        _ => {}
                    }
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    if matches!(import?.ty, ComponentTypeRef::Component(_)) {
                        components.push(MAX);
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    let export = export?;
                    if export.kind == ComponentExternalKind::Component {
                        components.push(outer(0, export.index));
                    }
                }
            }
            _ => {}
        }
        if let Some(scope) = scopes.last_mut() {
            scope.has_code |= has_code;
            scope.inner = scope.inner.saturating_add(inner);
            scope.components.extend(components);
        }
    }
    Ok(MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> u32 {
        component_instances(&wat::parse_str(text).unwrap())
    }

    #[test]
    fn instances_with_code_are_counted() {
        let code =
            "(core module $m) (core instance (instantiate $m)) (core instance (instantiate $m))";
        let empty = "(component $e)";
        for (expected, text) in [
            (1, "(component)".to_owned()),
            (1, format!("(component {code})")),
            // Not instantiated.
            (1, format!("(component {code} (component {code}))")),
            // Instantiated without code.
            (
                1,
                format!("(component {code} {empty} (instance (instantiate $e)))"),
            ),
            (
                3,
                format!(
                    "(component {code} (component $c {code})
                        (instance (instantiate $c)) (instance (instantiate $c)))"
                ),
            ),
            // Twice two, through an alias and an export.
            (
                4,
                format!(
                    r#"(component (component $c {code}) (export $d "d" (component $c))
                        (component $two
                            (alias outer 1 $d (component $a))
                            (instance (instantiate $a)) (instance (instantiate $a)))
                        (instance (instantiate $two)) (instance (instantiate $two)))"#
                ),
            ),
        ] {
            assert_eq!(of(&text), expected, "{text}");
        }
    }

    #[test]
    fn unknown_and_many_instances_count_as_the_maximum() {
        let import = r#"(component (import "a" (component $c)) (instance (instantiate $c)))"#;
        assert_eq!(of(import), MAX);
        let doubled = (0..40).fold(
            "(component $c (core module $m) (core instance (instantiate $m)))".to_owned(),
            |inner, _| {
                format!(
                    "(component $c {inner} (instance (instantiate $c)) (instance (instantiate $c)))"
                )
            },
        );
        assert_eq!(of(&doubled), MAX);
        assert_eq!(component_instances(b"\0asm\x0d\0\x01\0\xff"), MAX);
    }
}
