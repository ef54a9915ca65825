//! Implements `corral:inference` from a script, so that a composed plugin runs under any WebAssembly runtime, without a
//! host and without a model.
//!
//! The script is JSON (see [`script`]), in the environment variable `CORRAL_MOCK`: the text itself, or the path of a file
//! that the runtime lets the program read. `corral compose --mock FILE` writes the text into the component. The model is
//! the one of `corral_sdk::testing`: a token for each byte, the most likely token always, and an error for what the
//! script does not cover.
//!
//! A waiting call blocks the whole program, also one of `inference-async`.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod convert;
mod generations;
mod models;
mod options;
mod script;
mod sequences;

use provider::{OriginGuard, SettingSlot, bindings};

#[allow(unsafe_code)]
mod exports {
    use super::Mock;
    provider::bindings::export!(Mock with_types_in provider::bindings);
}

/// `corral compose --mock` writes the script here.
static SCRIPT: SettingSlot<65536> = SettingSlot::new();

/// The component.
struct Mock;

impl Mock {
    /// Installs the script before the first call that needs it.
    fn start() {
        use std::sync::Once;
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            let text = SCRIPT.read("CORRAL_MOCK").unwrap_or_else(|| {
                panic!("there is no script; set CORRAL_MOCK to its JSON or to the path of its file")
            });
            let text = match text.trim_start().starts_with('{') {
                true => text,
                false => std::fs::read_to_string(&text).unwrap_or_else(|error| {
                    panic!("cannot read the script {text:?}: {error}; give the program access to its directory")
                }),
            };
            match script::parse(&text) {
                Ok(script) => script.install(),
                Err(error) => panic!("the script is not valid: {error}"),
            }
        });
    }
}
