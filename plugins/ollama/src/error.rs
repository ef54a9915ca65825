//! Errors in Ollama's format.

use conversation::with_ignored;
use corral_sdk::{Error, Response};
use serde_json::{Value, json};

/// An error of a route.
pub struct ApiError(pub Error);

impl From<ApiError> for Response {
    fn from(ApiError(error): ApiError) -> Self {
        let mut response = Response::json(&body(&error)).with_status(error.status());
        for (name, value) in error.headers() {
            response = response.with_header(&name, &value);
        }
        with_ignored(response)
    }
}

/// The body of an error response, and the last line of a stream that fails.
pub fn body(error: &Error) -> Value {
    json!({"error": error.to_string()})
}
