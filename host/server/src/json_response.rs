//! Responses of the server itself, which are not to be cached.

use corral_runtime::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

/// A value as JSON that is not to be cached.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // These types have text keys only, so this does not fail.
    json_response(status, serde_json::to_string(value).unwrap_or_default())
}

/// A JSON answer that is not to be cached.
pub(crate) fn json_response(status: StatusCode, text: impl Into<Body>) -> Response<Body> {
    let mut response = no_store(text.into(), "application/json");
    *response.status_mut() = status;
    response
}

/// A response that is not to be cached.
pub(crate) fn no_store(body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
