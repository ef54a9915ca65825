//! `/models`: where each model is, and a way to have one loaded or unloaded now.
//!
//! `PUT` and `DELETE`, since a browser lets any page send a `POST`.

use crate::probes;
use crate::problem::Problem;
use crate::server::Shared;
use corral_engine::{Caller, Error, ModelPool, ModelState, ModelStatus, OpenError};
use corral_runtime::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long whoever asks for a load waits for it at most; the load goes on.
const LOAD_TIME: Duration = Duration::from_secs(600);

/// Answers `path` if it is about models.
pub(crate) async fn answer(
    shared: &Shared,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Problem>> {
    let rest = path.strip_prefix("/models")?;
    let name = match rest.strip_prefix('/') {
        Some(name) => Some(decoded(name)?),
        None if rest.is_empty() => None,
        None => return None,
    };
    let Some(house) = shared.house.get() else {
        return Some(Err(probes::not_ready(&shared.missing())));
    };
    let models = &house.models;
    Some(match (name, method) {
        (None, &Method::GET | &Method::HEAD) => Ok(all(models)),
        (None, _) => Err(Problem::method("GET, HEAD")),
        (Some(name), &Method::GET | &Method::HEAD) => one(models, &name, StatusCode::OK),
        (Some(name), &Method::PUT) => load(models, &name).await,
        (Some(name), &Method::DELETE) => unload(models, &name),
        (Some(_), _) => Err(Problem::method("GET, HEAD, PUT, DELETE")),
    })
}

fn all(models: &ModelPool) -> Response<Body> {
    let all: Vec<_> = models.status().iter().map(whole).collect();
    json_response(StatusCode::OK, &json!({ "models": all }))
}

fn one(models: &ModelPool, name: &str, status: StatusCode) -> Result<Response<Body>, Problem> {
    let all = models.status();
    let found = all.iter().find(|model| model.name == name);
    let found = found.ok_or_else(|| {
        let names: Vec<_> = models.names().collect();
        unknown(&format!(
            "there is no model {name}; there is {}",
            names.join(", ")
        ))
    })?;
    Ok(json_response(status, &whole(found)))
}

async fn load(models: &ModelPool, name: &str) -> Result<Response<Body>, Problem> {
    let caller = Caller {
        deadline: Instant::now().checked_add(LOAD_TIME),
        ..Caller::default()
    };
    // The lease is given back at once: the model stays as long as one stays that nobody uses.
    drop(models.open(Some(name), &caller).await.map_err(problem)?);
    one(models, name, StatusCode::OK)
}

fn unload(models: &ModelPool, name: &str) -> Result<Response<Body>, Problem> {
    let begun = models.unload(name).map_err(problem)?;
    let all = models.status();
    let state = all.iter().find(|model| model.name == name);
    let there = state.is_some_and(|model| {
        matches!(model.state, ModelState::Loaded | ModelState::Loading { .. })
    });
    if there && !begun {
        let detail = format!(
            "the model {name} is in use or being loaded; try again when GET /models/{name} says \
             that it is loaded and has no leases"
        );
        return Err(Problem::new(StatusCode::CONFLICT, "model-in-use", detail));
    }
    one(models, name, StatusCode::ACCEPTED)
}

fn problem(error: OpenError) -> Problem {
    let text = error.to_string();
    match error {
        OpenError::Unknown { .. } => unknown(&text),
        OpenError::NotLoaded { .. } => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "model-failed", text)
        }
        OpenError::Unavailable(error) => {
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "model-busy", text);
            match error {
                Error::Refused { retry_after, .. } | Error::Overdue { retry_after, .. } => {
                    problem.retry_after(retry_after)
                }
                _ => problem.retry_after(Duration::from_secs(1)),
            }
        }
    }
}

fn unknown(detail: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-model", detail)
}

/// Where a model is.
pub(crate) fn state(model: &ModelStatus) -> Value {
    let mut told = json!({
        "model": model.name,
        "state": model.state.name(),
        "calls_waiting": model.waiting,
    });
    if let ModelState::Loading { progress } = model.state {
        // Thousandths are all that anybody reads of it.
        told["progress"] = json!(f64::from((progress * 1e3).round()) / 1e3);
    }
    if let Some(error) = &model.error {
        told["error"] = json!(error);
    }
    told
}

/// All that is known of it.
fn whole(model: &ModelStatus) -> Value {
    let mut told = state(model);
    told["memory_bytes"] = json!(model.memory);
    told["leases"] = json!(model.leases);
    if let Some(unused) = model.unused_for {
        told["unused_seconds"] = json!(unused.as_secs_f64());
    }
    if let ModelState::Failed { retry_after } = model.state {
        told["retry_seconds"] = json!(retry_after.as_secs_f64());
    }
    told
}

fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A name in a path, where what is not plain stands as `%` and two digits.
fn decoded(part: &str) -> Option<String> {
    let mut bytes = part.bytes();
    let mut name = Vec::new();
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(bytes.next())? * 16 + digit(bytes.next())?;
                u8::try_from(value).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_paths() {
        assert_eq!(decoded("a.b-c").as_deref(), Some("a.b-c"));
        assert_eq!(decoded("a%20b%C3%a9").as_deref(), Some("a b\u{e9}"));
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_told_depends_on_the_state() {
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
        let told = json!({
            "model": "tiny", "state": "loading", "progress": 0.123, "calls_waiting": 2,
            "memory_bytes": 7, "leases": 0,
        });
        assert_eq!(whole(&model), told);
        model.state = ModelState::Failed {
            retry_after: Duration::from_secs(4),
        };
        model.error = Some("it is broken".to_owned());
        let told = whole(&model);
        assert_eq!(told["state"], "failed");
        assert_eq!(told["error"], "it is broken");
        assert_eq!(told["retry_seconds"], 4.0);
        assert_eq!(told["progress"], Value::Null);
    }
}
