//! Encodes core modules as components: C compilers and Debian's Rust make only core modules.
//!
//! Generated bindings store the world in custom sections of the module. Wasmtime's reactor adapter provides the functions of WASI
//! 0.1 on top of WASI 0.2.

use crate::Error;
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wit_component::ComponentEncoder;

/// Encodes a core module and the adapter as a component, and validates it.
pub(super) fn from_core_module(module: &[u8]) -> Result<Vec<u8>, Error> {
    let mut encoder = ComponentEncoder::default();
    let encoder = encoder.validate(true).module(module);
    let encoder = encoder.and_then(|encoder| {
        encoder.adapter(
            WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
            WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
        )
    });
    let component = encoder.and_then(|encoder| encoder.encode());
    component.map_err(|error| {
        Error::failed(format!(
            "cannot make a component of what the compiler built: {error:#}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_module_becomes_a_component() {
        let component = from_core_module(b"\0asm\x01\0\0\0").map_err(|error| error.message(true));
        // The layer field of the header tells a component from a core module.
        assert_eq!(&component.expect("valid")[..8], b"\0asm\x0d\0\x01\0");
        let error = from_core_module(b"#!/bin/sh\n").expect_err("no module");
        assert!(error.message(false).contains("cannot make a component"));
    }
}
