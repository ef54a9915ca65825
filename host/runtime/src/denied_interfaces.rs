//! Stand-ins for the interfaces that a linked component may not use. Each answers, but gives nothing.

use crate::state::State;
use std::iter::empty;
use wasmtime::StoreContextMut;
use wasmtime::component::{FutureReader, Linker, Resource, StreamReader};
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::DynInputStream;
use wasmtime_wasi::p2::pipe::ClosedInputStream;
use wasmtime_wasi::p3::bindings::cli::types::ErrorCode;

/// Prefix of the stand-ins' names.
pub(crate) const PACKAGE: &str = "corral:denied/";
const ENVIRONMENT: &str = "corral:denied/environment";
const STDIN: &str = "corral:denied/stdin";
const PREOPENS: &str = "corral:denied/preopens";

/// Denied interfaces with their stand-ins. Each stand-in exists for WASI 0.2 and 0.3.
pub(crate) const DENIED: [(&str, &str); 3] = [
    ("wasi:cli/environment", ENVIRONMENT),
    ("wasi:cli/stdin", STDIN),
    ("wasi:filesystem/preopens", PREOPENS),
];

/// Links an environment without variables, arguments and working directory, an ended standard input, and no preopened
/// directories.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    for (version, cwd) in [("0.2.0", "initial-cwd"), ("0.3.0", "get-initial-cwd")] {
        let mut denied = linker.instance(&format!("{ENVIRONMENT}@{version}"))?;
        denied.func_wrap("get-environment", |_, (): ()| {
            Ok((Vec::<(String, String)>::new(),))
        })?;
        denied.func_wrap("get-arguments", |_, (): ()| Ok((Vec::<String>::new(),)))?;
        denied.func_wrap(cwd, |_, (): ()| Ok((None::<String>,)))?;
        let mut denied = linker.instance(&format!("{PREOPENS}@{version}"))?;
        denied.func_wrap("get-directories", |_, (): ()| {
            Ok((Vec::<(Resource<Descriptor>, String)>::new(),))
        })?;
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
            let success = async { wasmtime::error::Ok(Ok::<(), ErrorCode>(())) };
            let result = FutureReader::new(&mut store, success)?;
            Ok(((ended, result),))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch_ticker::Ticker;
    use crate::sampling::resources::SamplerResources;
    use crate::test_support::{engine_and_linker, grants};
    use std::sync::Arc;
    use wasmtime::Store;
    use wasmtime::component::Component;
    use wasmtime_wasi::WasiCtxBuilder;
    use wasmtime_wasi::p2::pipe::MemoryInputPipe;

    /// A component that reads the standard input imported as `stdin` and returns whether it has ended.
    fn stdin_reader(stdin: &str) -> Vec<u8> {
        let text = include_str!("denied_interfaces/stdin.wat").replace("{stdin}", stdin);
        wat::parse_str(text).unwrap()
    }

    #[tokio::test]
    async fn denied_standard_input_has_ended() {
        let (engine, linker) = engine_and_linker();
        for (stdin, expected) in [
            ("wasi:cli/stdin@0.2.3", 0),
            ("corral:denied/stdin@0.2.3+templating", 1),
        ] {
            let ticker = Arc::new(Ticker::start([&engine]).unwrap());
            let state = State::new(
                WasiCtxBuilder::new().stdin(MemoryInputPipe::new("secret")),
                grants(Arc::new(SamplerResources::new(1, ticker, Arc::default()))),
                &Arc::default(),
                Arc::default(),
                Arc::default(),
            );
            let mut store = Store::new(&engine, state);
            store.set_epoch_deadline(1_000_000);
            let component = Component::new(&engine, stdin_reader(stdin)).unwrap();
            let reader = linker.instantiate_async(&mut store, &component);
            let reader = reader.await.unwrap();
            let ended = reader.get_typed_func::<(), (u32,)>(&mut store, "ended");
            let (ended,) = ended.unwrap().call_async(&mut store, ()).await.unwrap();
            assert_eq!(ended, expected, "{stdin}");
        }
    }
}
