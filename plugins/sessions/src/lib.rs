//! Serves the session protocol (see the crate `session-protocol`): `corral:inference` over HTTP, for programs that run
//! elsewhere.
//!
//! One request is one session, and one instance serves it, for as long as the client keeps its connection. So sessions
//! need nothing from the host that other plugins do not: the deployment limits their number, time, memory and
//! tokens, API keys and quotas apply, the engine shares its time fairly between tenants, and the end of the connection
//! drops the instance with every sequence. Operators who do not deploy this plugin have no such route.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod convert;
mod handles;
mod line_reader;
mod reply_writer;
mod session;

use corral_sdk::Error;
use corral_sdk::bindings::wasip3;
use wasip3::http::types::{ErrorCode, Fields, Method, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

struct Handler;

#[allow(unsafe_code)]
mod exports {
    use super::{Handler, wasip3};
    wasip3::http::service::export!(Handler with_types_in wasip3);
}

impl wasip3::exports::http::handler::Guest for Handler {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        if !matches!(request.get_method(), Method::Post) {
            let detail = "a session is a POST whose body stays open; see docs/remote.md";
            return refuse(&Error::method_not_allowed("POST", detail));
        }
        // Dropping the writer reports that the request was processed.
        let (_, processed) = wit_future::new(|| Ok(()));
        let (body, trailers) = Request::consume_body(request, processed);
        let (writer, reader) = wit_stream::new();
        spawn_local(session::serve(body, trailers, writer));
        // The last header keeps a proxy from holding lines back.
        let headers = [
            ("content-type", "application/x-ndjson"),
            ("cache-control", "no-store"),
            ("x-accel-buffering", "no"),
        ];
        respond(200, &headers, Some(reader))
    }
}

fn refuse(error: &Error) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    let body = error.to_json().into_bytes();
    spawn_local(async move { writer.write_all(body).await });
    let headers = error.headers();
    let headers = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .chain([("content-type", "application/problem+json")]);
    respond(error.status(), &headers.collect::<Vec<_>>(), Some(reader))
}

fn respond(
    status: u16,
    headers: &[(&str, &str)],
    body: Option<wasip3::wit_bindgen::StreamReader<u8>>,
) -> Result<Response, ErrorCode> {
    let headers = headers.iter();
    let headers: Vec<_> = headers
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect();
    let refused = |_| ErrorCode::InternalError(Some("the host refused the response's head".into()));
    let fields = Fields::from_list(&headers).map_err(|_| refused(()))?;
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = Response::new(fields, body, trailers);
    response.set_status_code(status).map_err(refused)?;
    Ok(response)
}
