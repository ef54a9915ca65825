//! A handler with an import that Corral does not provide. Loading it must fail and name the
//! interface.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::wit_future;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "imports", path: "wit" });
}

struct Handler;

#[allow(unsafe_code)]
mod exports {
    use super::Handler;
    wasip3::http::service::export!(Handler);
}

impl wasip3::exports::http::handler::Guest for Handler {
    async fn handle(_: Request) -> Result<Response, ErrorCode> {
        let headers = Fields::new();
        let _ = headers.append(
            "x-unknown",
            bindings::test::unknown_import::unknown::call().as_bytes(),
        );
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(headers, None, trailers).0)
    }
}
