//! Programs outside the host that use its models over a session.

mod remote_client;
mod remote_python;
mod sessions;
mod stock_wasmtime;
