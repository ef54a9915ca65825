//! Implements `corral:inference` by a session on a Corral host (see the crate `session-protocol`), so that a composed
//! plugin runs under any WebAssembly runtime with `wasi:http`, on any machine.
//!
//! The environment variable `CORRAL_REMOTE_URL` names the route of the plugin `sessions`, such as
//! `http://127.0.0.1:8080/sessions`; `corral compose --remote URL` writes it into the component. `CORRAL_REMOTE_KEY` is the
//! API key, if the host wants one. An instance opens one session with its first call, and everything in it ends with the
//! instance.
//!
//! Functions that only change a list of tokens (`append`, `fork`, `truncate`) do not wait for the host: the component
//! checks their arguments itself and keeps a copy of the tokens. All others wait for one reply. A waiting call blocks
//! the whole program, also one of `inference-async`.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod connect;
mod connection;
mod convert;
mod generations;
mod models;
mod options;
mod sequences;
mod session;

use provider::{OriginGuard, SettingSlot, bindings, collect};

#[allow(unsafe_code)]
mod exports {
    use super::Remote;
    provider::bindings::export!(Remote with_types_in provider::bindings);
}

/// `corral compose --remote` writes the URL here.
static URL: SettingSlot<2048> = SettingSlot::new();

/// The component.
struct Remote;
