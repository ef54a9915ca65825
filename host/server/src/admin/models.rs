//! `/models`: the state of each model; `PUT` loads one, `DELETE` unloads one.
//!
//! Changes use `PUT` and `DELETE`, since a browser lets any page send a `POST`.

use crate::json_response::json_response;
use crate::problem::Problem;
use crate::state::ServerState;
use corral_engine::{Caller, Error, ModelPool, ModelState, ModelStatus, OpenError};
use corral_runtime::Body;
use http::{Method, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longest wait of a client for a load; the load continues.
const LOAD_TIMEOUT: Duration = Duration::from_secs(600);

/// Answers `path` if it is about models.
pub(super) async fn answer(
    state: &ServerState,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Problem>> {
    let rest = path.strip_prefix("/models")?;
    let name = match rest.strip_prefix('/') {
        Some(name) => Some(percent_decode_str(name).decode_utf8().ok()?),
        None if rest.is_empty() => None,
        None => return None,
    };
    let models = match state.services() {
        Ok(services) => &services.models,
        Err(problem) => return Some(Err(problem)),
    };
    Some(match (name, method) {
        (None, &Method::GET | &Method::HEAD) => Ok(list(models)),
        (None, _) => Err(Problem::method("GET, HEAD")),
        (Some(name), &Method::GET | &Method::HEAD) => show(models, &name, StatusCode::OK),
        (Some(name), &Method::PUT) => load(models, &name).await,
        (Some(name), &Method::DELETE) => unload(models, &name),
        (Some(_), _) => Err(Problem::method("GET, HEAD, PUT, DELETE")),
    })
}

fn list(models: &ModelPool) -> Response<Body> {
    let models: Vec<_> = models.status().iter().map(status_json).collect();
    json_response(StatusCode::OK, json!({ "models": models }).to_string())
}

fn show(models: &ModelPool, name: &str, status: StatusCode) -> Result<Response<Body>, Problem> {
    let all = models.status();
    let model = all.iter().find(|model| model.name == name);
    let model = model.ok_or_else(|| {
        let names: Vec<_> = models.names().collect();
        unknown(format!(
            "there is no model {name}; there is {}",
            names.join(", ")
        ))
    })?;
    Ok(json_response(status, status_json(model).to_string()))
}

async fn load(models: &ModelPool, name: &str) -> Result<Response<Body>, Problem> {
    let caller = Caller {
        deadline: Instant::now().checked_add(LOAD_TIMEOUT),
        ..Caller::default()
    };
    // Return the lease at once: the model stays loaded like any other unused one.
    drop(models.open(Some(name), &caller).await.map_err(problem)?);
    show(models, name, StatusCode::OK)
}

fn unload(models: &ModelPool, name: &str) -> Result<Response<Body>, Problem> {
    let begun = models.unload(name).map_err(problem)?;
    let all = models.status();
    let model = all.iter().find(|model| model.name == name);
    let in_use = model.is_some_and(|model| {
        matches!(model.state, ModelState::Loaded | ModelState::Loading { .. })
    });
    if in_use && !begun {
        let detail = format!(
            "the model {name} is in use or being loaded; try again when GET /models/{name} reports \
             it as loaded with 0 leases"
        );
        return Err(Problem::new(StatusCode::CONFLICT, "model-in-use", detail));
    }
    show(models, name, StatusCode::ACCEPTED)
}

fn problem(error: OpenError) -> Problem {
    let text = error.to_string();
    match error {
        OpenError::Unknown { .. } => unknown(text),
        OpenError::NotLoaded { .. } => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "model-failed", text)
        }
        OpenError::Unavailable(error) => {
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "model-busy", text);
            match error {
                Error::Overloaded { retry_after, .. } | Error::QueueTimeout { retry_after, .. } => {
                    problem.retry_after(retry_after)
                }
                _ => problem.retry_after(Duration::from_secs(1)),
            }
        }
    }
}

fn unknown(detail: String) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-model", detail)
}

/// The state of a model.
pub(super) fn state_json(model: &ModelStatus) -> Value {
    let mut json = json!({
        "model": model.name,
        "state": model.state.name(),
        "calls_waiting": model.waiting,
    });
    if let ModelState::Loading { progress } = model.state {
        json["progress"] = json!(f64::from((progress * 1e3).round()) / 1e3);
    }
    if let Some(error) = &model.error {
        json["error"] = json!(error);
    }
    json
}

/// The state of a model, with its memory and usage.
pub(super) fn status_json(model: &ModelStatus) -> Value {
    let mut json = state_json(model);
    json["memory_bytes"] = json!(model.memory);
    json["leases"] = json!(model.leases);
    if let Some(unused) = model.unused_for {
        json["idle_seconds"] = json!(unused.as_secs_f64());
    }
    if let ModelState::Failed { retry_after } = model.state {
        json["retry_seconds"] = json!(retry_after.as_secs_f64());
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_depends_on_model_state() {
        let mut model = ModelStatus {
            name: "tiny".to_owned(),
            state: ModelState::Loading { progress: 0.12345 },
            memory: 7,
            leases: 0,
            waiting: 2,
            unused_for: None,
            error: None,
            stopped: false,
        };
        let expected = json!({
            "model": "tiny", "state": "loading", "progress": 0.123, "calls_waiting": 2,
            "memory_bytes": 7, "leases": 0,
        });
        assert_eq!(status_json(&model), expected);
        model.state = ModelState::Failed {
            retry_after: Duration::from_secs(4),
        };
        model.error = Some("it is broken".to_owned());
        let status = status_json(&model);
        assert_eq!(status["state"], "failed");
        assert_eq!(status["error"], "it is broken");
        assert_eq!(status["retry_seconds"], 4.0);
        assert_eq!(status["progress"], Value::Null);
    }
}
