//! The bindings as `wit-bindgen` makes them of `wit/`, for whatever the other modules don't offer. They
//! compile on every target, and work on WebAssembly alone.
// Generated: documented in the WIT, and with unsafe code.
#![allow(missing_docs, unsafe_code, clippy::all)]

pub use wasip3;

pub use imports::corral::inference::{budget, constraints, inference, models, types};

mod imports {
    wit_bindgen::generate!({
        world: "corral:inference/imports",
        path: "../../wit",
        additional_derives: [PartialEq],
        additional_derives_ignore: ["look"],
    });
}

/// What a handler with a linked templating plugin imports.
#[cfg(feature = "linked-templating")]
pub mod templated {
    wit_bindgen::generate!({
        world: "corral:plugin/templated",
        path: "../../wit",
    });
}

/// What a templating plugin exports.
pub mod templating_plugin {
    wit_bindgen::generate!({
        world: "corral:plugin/templating-plugin",
        path: "../../wit",
        pub_export_macro: true,
    });
}

/// What a sampling plugin exports.
pub mod sampling_plugin {
    wit_bindgen::generate!({
        world: "corral:plugin/sampling-plugin",
        path: "../../wit",
        pub_export_macro: true,
    });
}
