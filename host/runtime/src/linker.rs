//! The host functions that plugins may import, linked once per wasmtime engine: one, or two with `--develop`.

use crate::denied_interfaces;
use crate::host;
use crate::state::State;
use crate::wasm_engine::SetupError;
use wasmtime::Engine;
use wasmtime::component::Linker;

/// Links WASI 0.2 and 0.3, `wasi:keyvalue`, `wasi:config`, `wasi:logging`, `wasmcloud:messaging` and `corral:inference`. Sockets are
/// linked, since most standard libraries import them, but every use of them is refused. Files and outgoing requests need grants;
/// clocks and random numbers may be denied.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<State>, SetupError> {
    let link = |error: wasmtime::Error| SetupError::HostFunctions(format!("{error:#}"));
    let mut linker = wasi_linker(engine).map_err(link)?;
    host::replace_functions(&mut linker).map_err(link)?;
    host::add_to_linker(&mut linker).map_err(link)?;
    denied_interfaces::add_to_linker(&mut linker).map_err(link)?;
    Ok(linker)
}

/// Links WASI as wasmtime implements it.
fn wasi_linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p3::add_to_linker(&mut linker)?;
    Ok(linker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::engine_and_linker;

    #[test]
    fn wasmtime_links_the_replaced_functions_too() {
        let (engine, _) = engine_and_linker();
        let mut linker = wasi_linker(&engine).unwrap();
        // Without shadowing, a function of the same name in the same interface is an error.
        for link in host::REPLACEMENTS {
            let error = link(&mut linker).unwrap_err().to_string();
            assert!(error.contains("defined twice"), "{error}");
        }
    }
}
