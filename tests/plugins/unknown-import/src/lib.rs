//! A handler that imports what Corral does not offer: it must be refused when it is loaded, by name
//! of the interface.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::wit_future;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "imports", path: "wit" });
}

struct Alien;

#[allow(unsafe_code)]
mod exports {
    use super::Alien;
    wasip3::http::service::export!(Alien);
}

impl wasip3::exports::http::handler::Guest for Alien {
    async fn handle(_: Request) -> Result<Response, ErrorCode> {
        let headers = Fields::new();
        let _ = headers.append(
            "x-alien",
            bindings::test::alien::elsewhere::call().as_bytes(),
        );
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(headers, None, trailers).0)
    }
}
