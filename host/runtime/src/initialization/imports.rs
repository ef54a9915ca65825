//! Stand-ins for a component's imports, which an initialization may have but not call.

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, LinkerInstance, ResourceType};
use wasmtime::{Engine, Error, Result, bail};

/// The error of a call of the host.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "its initialization calls {function} of the host{}; an initialization may call nothing of the host",
    self.reason()
)]
pub(super) struct HostCall {
    /// The interface and the function.
    function: String,
}

impl HostCall {
    /// What usually makes this call, where its author may not know.
    fn reason(&self) -> &'static str {
        let is_of = |package: &str| self.function.starts_with(package);
        if is_of("wasi:random/") {
            ", as a HashMap of Rust's standard library does for its keys (a BTreeMap does not)"
        } else if is_of("wasi:cli/stderr") {
            ", as a panic does for its text"
        } else {
            ""
        }
    }
}

/// Links all imports of a component with functions that fail.
pub(super) fn refuse_imports<T: 'static>(
    linker: &mut Linker<T>,
    component: &Component,
) -> Result<()> {
    let engine = component.engine().clone();
    let ty = component.component_type();
    for (name, import) in ty.imports(&engine) {
        refuse(&mut linker.root(), None, name, &import.ty, &engine)?;
    }
    Ok(())
}

fn refuse<T: 'static>(
    linker: &mut LinkerInstance<'_, T>,
    interface: Option<&str>,
    name: &str,
    item: &ComponentItem,
    engine: &Engine,
) -> Result<()> {
    match item {
        ComponentItem::ComponentFunc(function) => {
            let error = HostCall {
                function: match interface {
                    Some(interface) => format!("{interface}.{name}"),
                    None => name.to_owned(),
                },
            };
            match function.async_() {
                true => linker.func_new_concurrent(name, move |_, _, _, _| {
                    let error = Error::new(error.clone());
                    Box::pin(std::future::ready(Err(error)))
                }),
                false => linker.func_new(name, move |_, _, _, _| Err(Error::new(error.clone()))),
            }
        }
        ComponentItem::ComponentInstance(instance) => {
            let mut inner = linker.instance(name)?;
            for (item_name, item) in instance.exports(engine) {
                refuse(&mut inner, Some(name), item_name, &item.ty, engine)?;
            }
            Ok(())
        }
        // No function returns one.
        ComponentItem::Resource(_) => {
            linker.resource(name, ResourceType::host::<()>(), |_, _| Ok(()))
        }
        ComponentItem::Type(_) => Ok(()),
        _ => bail!("it imports {name}, which is neither a function nor an interface"),
    }
}
