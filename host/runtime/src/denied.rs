//! What a linked component finds where it may not see what its handler has: nothing, in the shape that it
//! asked for.

use crate::state::State;
use std::iter::empty;
use wasmtime::StoreContextMut;
use wasmtime::component::{FutureReader, Linker, StreamReader};
use wasmtime_wasi::p2::DynInputStream;
use wasmtime_wasi::p2::pipe::ClosedInputStream;
use wasmtime_wasi::p3::bindings::cli::types::ErrorCode;

/// What the names of those begin with that are there instead.
pub(crate) const PACKAGE: &str = "corral:denied/";
const ENVIRONMENT: &str = "corral:denied/environment";
const STDIN: &str = "corral:denied/stdin";

/// Interfaces that a linked component is not given, each with the one that it gets instead; both are there as
/// in WASI 0.2 and as in 0.3, whatever the component's version.
pub(crate) const DENIED: [(&str, &str); 2] = [
    ("wasi:cli/environment", ENVIRONMENT),
    ("wasi:cli/stdin", STDIN),
];

/// Links an environment without variables, arguments and a folder, and a standard input that has ended.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    for (version, folder) in [("0.2.0", "initial-cwd"), ("0.3.0", "get-initial-cwd")] {
        let mut denied = linker.instance(&format!("{ENVIRONMENT}@{version}"))?;
        denied.func_wrap("get-environment", |_, (): ()| {
            Ok((Vec::<(String, String)>::new(),))
        })?;
        denied.func_wrap("get-arguments", |_, (): ()| Ok((Vec::<String>::new(),)))?;
        denied.func_wrap(folder, |_, (): ()| Ok((None::<String>,)))?;
    }
    let mut denied = linker.instance(&format!("{STDIN}@0.2.0"))?;
    denied.func_wrap(
        "get-stdin",
        |mut store: StoreContextMut<'_, State>, (): ()| {
            let ended: DynInputStream = Box::new(ClosedInputStream);
            Ok((store.data_mut().table.push(ended)?,))
        },
    )?;
    let mut denied = linker.instance(&format!("{STDIN}@0.3.0"))?;
    denied.func_wrap(
        "read-via-stream",
        |mut store: StoreContextMut<'_, State>, (): ()| {
            let ended = StreamReader::<u8>::new(&mut store, empty())?;
            let good = async { wasmtime::error::Ok(Ok::<(), ErrorCode>(())) };
            let how = FutureReader::new(&mut store, good)?;
            Ok(((ended, how),))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engine;
    use crate::host::{Snapshots, turns};
    use crate::linker::linker;
    use crate::models::Visible;
    use crate::sampling::Sampling;
    use crate::settings::Settings;
    use crate::state::Grants;
    use crate::ticker::Ticker;
    use corral_engine::{Caller, Models};
    use std::sync::Arc;
    use wasmtime::Store;
    use wasmtime::component::Component;
    use wasmtime_wasi::WasiCtxBuilder;
    use wasmtime_wasi::p2::pipe::MemoryInputPipe;

    /// Reads from the standard input that it imports under a name, and says whether that has ended.
    fn reader(stdin: &str) -> Vec<u8> {
        let text = include_str!("stdin.wat").replace("{stdin}", stdin);
        wat::parse_str(text).unwrap()
    }

    #[tokio::test]
    async fn a_standard_input_that_is_denied_has_ended() {
        let settings = Settings {
            instances: 1,
            ..Settings::default()
        };
        let engine = engine(&settings).unwrap();
        let linker = linker(&engine).unwrap();
        for (stdin, expected) in [
            ("wasi:cli/stdin@0.2.3", 0),
            ("corral:denied/stdin@0.2.3+templating", 1),
        ] {
            let ticker = Arc::new(Ticker::start(&engine).unwrap());
            let grants = Grants {
                models: Visible::new(&Models::loaded(Vec::new()), None).unwrap(),
                snapshots: Snapshots::new("x", turns()),
                samplers: Arc::default(),
                sampling: Arc::new(Sampling::new(1, ticker, Arc::default())),
            };
            let state = State::new(
                WasiCtxBuilder::new().stdin(MemoryInputPipe::new("secret")),
                grants,
                Caller::default(),
                None,
                &Arc::default(),
                Arc::default(),
                Arc::default(),
            );
            let mut store = Store::new(&engine, state);
            store.set_epoch_deadline(1_000_000);
            let component = Component::new(&engine, reader(stdin)).unwrap();
            let reader = linker.instantiate_async(&mut store, &component);
            let reader = reader.await.unwrap();
            let ended = reader.get_typed_func::<(), (u32,)>(&mut store, "ended");
            let (ended,) = ended.unwrap().call_async(&mut store, ()).await.unwrap();
            assert_eq!(ended, expected, "{stdin}");
        }
    }
}
