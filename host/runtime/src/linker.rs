//! The host functions that plugins may import, linked once per wasmtime engine: one, or two with `--develop`.

use crate::denied_interfaces;
use crate::host::{self, clocks, folders, http_bytes, random};
use crate::state::State;
use crate::wasm_engine::SetupError;
use wasmtime::Engine;
use wasmtime::component::Linker;

/// Links WASI 0.2 and 0.3, `wasi:keyvalue`, `wasi:config`, `wasi:logging`, `wasmcloud:messaging` and `corral:inference`. Sockets are
/// linked, since most standard libraries import them, but every use of them is refused. Files and outgoing requests need grants;
/// clocks and random numbers may be denied.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<State>, SetupError> {
    let mut linker = Linker::new(engine);
    let link = |error: wasmtime::Error| SetupError::HostFunctions(format!("{error:#}"));
    wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(link)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker).map_err(link)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).map_err(link)?;
    wasmtime_wasi_http::p3::add_to_linker(&mut linker).map_err(link)?;
    clocks::add_to_linker(&mut linker).map_err(link)?;
    random::add_to_linker(&mut linker).map_err(link)?;
    folders::add_to_linker(&mut linker).map_err(link)?;
    http_bytes::add_to_linker(&mut linker).map_err(link)?;
    host::add_to_linker(&mut linker).map_err(link)?;
    denied_interfaces::add_to_linker(&mut linker).map_err(link)?;
    Ok(linker)
}
