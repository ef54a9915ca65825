//! Jobs of a deployment, sent and read as a client does.

use crate::deployments::deploy_plugin;
use crate::{Corral, Response, wait_for};
use serde_json::{Value, json};

/// Deploys `misbehave` as `name` with jobs for `behavior`; `more` is added to `jobs`.
pub fn deploy_jobs(corral: &Corral, name: &str, behavior: &str, more: Value) {
    let mut jobs = json!({"path": format!("/{name}/{behavior}")});
    let more = more.as_object().expect("an object").clone();
    jobs.as_object_mut().expect("an object").extend(more);
    deploy_plugin(corral, name, "misbehave", json!({ "jobs": jobs }));
}

/// Sends a job, which must be accepted, and returns its id.
pub fn send(corral: &Corral, name: &str, body: &str) -> String {
    let answer = corral.post(&format!("/jobs/{name}"), body);
    id_of(&answer)
}

/// The id of an accepted job.
pub fn id_of(answer: &Response) -> String {
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let location = answer.header("location").expect("a location");
    assert!(location.ends_with(&id), "{answer:?}");
    id
}

/// The status of a job.
pub fn status(corral: &Corral, name: &str, id: &str) -> Value {
    corral.get(&format!("/jobs/{name}/{id}")).ok_json()
}

/// Waits until a job is in this state, and returns its status.
pub fn wait_for_state(corral: &Corral, name: &str, id: &str, state: &str) -> Value {
    wait_for(state, || {
        Some(status(corral, name, id)).filter(|job| job["state"] == state)
    })
}

/// The response to a request for the result of a job.
pub fn result(corral: &Corral, name: &str, id: &str) -> Response {
    corral.get(&format!("/jobs/{name}/{id}/result"))
}
