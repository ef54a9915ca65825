//! The bindings that `wit-bindgen` generates from `wit/`, for uses that the other modules do not
//! cover. They compile on every target but work only on WebAssembly.
// Generated code: documented in the WIT, and unsafe.
#![allow(missing_docs, unsafe_code, clippy::all)]

pub use wasip3;

pub use imports::corral::inference::{
    budget, constraints, inference, inference_async, models, types,
};

mod imports {
    wit_bindgen::generate!({
        world: "corral:inference/imports",
        path: "../../wit",
        additional_derives: [PartialEq],
        additional_derives_ignore: ["next-token-request"],
    });
}

/// Imports of a plugin that keeps values.
#[cfg(feature = "key-values")]
pub mod key_values {
    wit_bindgen::generate!({
        world: "corral:inference/imports-key-values",
        path: "../../wit",
        generate_all,
    });
}

/// Imports of a plugin that reads configuration or secrets.
#[cfg(feature = "config")]
pub mod config {
    wit_bindgen::generate!({
        world: "corral:inference/imports-config",
        path: "../../wit",
        generate_all,
    });
}

/// Imports of a plugin that logs with levels.
#[cfg(feature = "logging")]
pub mod logging {
    wit_bindgen::generate!({
        world: "corral:inference/imports-logging",
        path: "../../wit",
        generate_all,
    });
}

/// Import and export of a plugin that publishes and handles messages.
#[cfg(feature = "messages")]
pub mod messages {
    wit_bindgen::generate!({
        inline: "package corral:sdk; world messages {
            import wasmcloud:messaging/consumer@0.3.0;
            export wasmcloud:messaging/handler@0.3.0;
        }",
        path: "../../wit",
        generate_all,
        pub_export_macro: true,
    });
}

/// Imports of a handler with a linked templating plugin.
#[cfg(feature = "linked-templating")]
pub mod templated {
    wit_bindgen::generate!({
        world: "corral:plugin/templated",
        path: "../../wit",
    });
}

/// The import of middleware.
pub mod next_handler {
    wit_bindgen::generate!({
        inline: "package corral:sdk; world next { import wasi:http/handler@0.3.0; }",
        path: "../../wit",
        with: {
            "wasi:clocks/types@0.3.0": wasip3::clocks::types,
            "wasi:http/handler@0.3.0": generate,
            "wasi:http/types@0.3.0": wasip3::http::types,
        },
    });
}

/// Exports of a templating plugin.
pub mod templating_plugin {
    wit_bindgen::generate!({
        world: "corral:inference/templating",
        path: "../../wit",
        pub_export_macro: true,
    });
}

/// Exports of a sampling plugin.
pub mod sampling_plugin {
    wit_bindgen::generate!({
        world: "corral:inference/sampling",
        path: "../../wit",
        pub_export_macro: true,
    });
}

/// Exports of a plugin that is initialized when it is deployed.
pub mod initialized {
    wit_bindgen::generate!({
        world: "corral:plugin/initialized",
        path: "../../wit",
        pub_export_macro: true,
    });
}
