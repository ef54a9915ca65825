//! The host functions that plugins may import, linked once per process.

use crate::denied;
use crate::host;
use crate::state::State;
use crate::wasm_engine::SetupError;
use wasmtime::Engine;
use wasmtime::component::Linker;

/// The interfaces that [`linker`] provides. A plugin may import a compatible version of each: the same major
/// version, or the same minor version before 1.0.
pub(crate) const OFFERED: &[&str] = &[
    "corral:inference/blocking@0.1.0",
    "corral:inference/inference@0.1.0",
    "corral:inference/constraints@0.1.0",
    "corral:inference/budget@0.1.0",
    "corral:inference/models@0.1.0",
    "corral:inference/types@0.1.0",
    "wasi:cli/environment@0.2.12",
    "wasi:cli/environment@0.3.0",
    "wasi:cli/exit@0.2.12",
    "wasi:cli/exit@0.3.0",
    "wasi:cli/stderr@0.2.12",
    "wasi:cli/stderr@0.3.0",
    "wasi:cli/stdin@0.2.12",
    "wasi:cli/stdin@0.3.0",
    "wasi:cli/stdout@0.2.12",
    "wasi:cli/stdout@0.3.0",
    "wasi:cli/terminal-input@0.2.12",
    "wasi:cli/terminal-input@0.3.0",
    "wasi:cli/terminal-output@0.2.12",
    "wasi:cli/terminal-output@0.3.0",
    "wasi:cli/terminal-stderr@0.2.12",
    "wasi:cli/terminal-stderr@0.3.0",
    "wasi:cli/terminal-stdin@0.2.12",
    "wasi:cli/terminal-stdin@0.3.0",
    "wasi:cli/terminal-stdout@0.2.12",
    "wasi:cli/terminal-stdout@0.3.0",
    "wasi:cli/types@0.3.0",
    "wasi:clocks/monotonic-clock@0.2.12",
    "wasi:clocks/monotonic-clock@0.3.0",
    "wasi:clocks/system-clock@0.3.0",
    "wasi:clocks/types@0.3.0",
    "wasi:clocks/wall-clock@0.2.12",
    "wasi:filesystem/preopens@0.2.12",
    "wasi:filesystem/preopens@0.3.0",
    "wasi:filesystem/types@0.2.12",
    "wasi:filesystem/types@0.3.0",
    "wasi:http/client@0.3.0",
    "wasi:http/outgoing-handler@0.2.12",
    "wasi:http/types@0.2.12",
    "wasi:http/types@0.3.0",
    "wasi:io/error@0.2.12",
    "wasi:io/poll@0.2.12",
    "wasi:io/streams@0.2.12",
    "wasi:random/insecure-seed@0.2.12",
    "wasi:random/insecure-seed@0.3.0",
    "wasi:random/insecure@0.2.12",
    "wasi:random/insecure@0.3.0",
    "wasi:random/random@0.2.12",
    "wasi:random/random@0.3.0",
    "wasi:sockets/instance-network@0.2.12",
    "wasi:sockets/ip-name-lookup@0.2.12",
    "wasi:sockets/ip-name-lookup@0.3.0",
    "wasi:sockets/network@0.2.12",
    "wasi:sockets/tcp-create-socket@0.2.12",
    "wasi:sockets/tcp@0.2.12",
    "wasi:sockets/types@0.3.0",
    "wasi:sockets/udp-create-socket@0.2.12",
    "wasi:sockets/udp@0.2.12",
];

/// Links WASI 0.2 and 0.3 and `corral:inference`. Sockets, files and outbound requests are linked, since most
/// standard libraries import them, but every use of them is refused.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<State>, SetupError> {
    let mut linker = Linker::new(engine);
    let link = |error: wasmtime::Error| SetupError::HostFunctions(format!("{error:#}"));
    wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(link)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker).map_err(link)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).map_err(link)?;
    wasmtime_wasi_http::p3::add_to_linker(&mut linker).map_err(link)?;
    host::add_to_linker(&mut linker).map_err(link)?;
    denied::add_to_linker(&mut linker).map_err(link)?;
    Ok(linker)
}
