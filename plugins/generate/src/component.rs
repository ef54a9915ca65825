//! The component: bindings, and what it exports.

mod command;
mod generation;
mod http;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "imports", path: "../../wit" });
}

/// The type that carries the exports.
struct Generate;

#[allow(unsafe_code)]
mod exports {
    use super::Generate;

    wasip3::http::service::export!(Generate);
    wasip3::cli::command::export!(Generate);
}
