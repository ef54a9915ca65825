//! `GET /session`: what its caller may do, so that the console knows whether to ask for the admin token.

use super::AdminState;
use crate::json_response::json_response;
use corral_runtime::Body;
use http::{HeaderMap, Response, StatusCode};
use serde_json::json;

/// Answers any caller, but tells one that may not read nothing else.
pub(super) fn answer(state: &AdminState, headers: &HeaderMap) -> Response<Body> {
    let (server, guard) = (&state.server, &state.guard);
    let can_read = guard.check_read(headers).is_ok();
    let mut json = json!({
        "token_required": guard.requires_token(),
        "authorized": guard.check_manage_models(headers).is_ok(),
        "can_read": can_read,
    });
    if can_read {
        let services = server.services.get();
        let scheme = if server.tls.is_some() {
            "https"
        } else {
            "http"
        };
        json["version"] = json!(env!("CARGO_PKG_VERSION"));
        json["ready"] = json!(server.not_ready_reasons().is_empty());
        json["has_store"] =
            json!(services.is_some_and(|services| services.deployments.store().is_some()));
        json["develop"] = json!(server.develop);
        json["keys"] = json!(server.api_keys.is_some());
        json["public_url"] = json!(format!("{scheme}://{}", server.public_address));
    }
    json_response(StatusCode::OK, json.to_string())
}
