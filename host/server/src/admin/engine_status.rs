//! `GET /requests` and `DELETE /prefix-cache`: what occupies sequence ids, cells and memory in each
//! model, as JSON, and a way to free what is only cached.
//!
//! An engine thread answers between two steps. A request therefore waits for the current step, but at
//! most [`STATUS_TIMEOUT`], and [`CHANGE_TIMEOUT`] to free something. A query that nobody waits for any
//! more stays in the engine's channel until that step ends, so at most [`MAX_STATUS_QUERIES`] are in flight.

use super::{AdminState, models};
use crate::api_keys::ApiKeys;
use crate::json_response::json_response;
use crate::problem::Problem;
use crate::services::Services;
use corral_engine::{
    Caller, Engine, EngineStatus, EntryStatus, Error, ModelState, ModelStatus, PrefixScope,
    RequestStatus, Tenant,
};
use corral_runtime::Body;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

/// Longest wait for a model that is in the middle of a step.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a model that is to drop something after its step.
pub(super) const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Status queries in flight.
pub(super) const MAX_STATUS_QUERIES: usize = 4;

/// Answers with the status of all models.
pub(super) async fn status(state: &AdminState) -> Result<Response<Body>, Problem> {
    status_after(state, |_| Ok(()), STATUS_TIMEOUT).await
}

/// Drops all prefix cache entries that are not retained, and answers with the status of all models.
pub(super) async fn clear_prefix_cache(state: &AdminState) -> Result<Response<Body>, Problem> {
    status_after(state, Engine::clear_prefix_cache, CHANGE_TIMEOUT).await
}

/// Answers with the status of all models after `change` of each.
async fn status_after(
    state: &AdminState,
    change: fn(&Engine) -> Result<(), Error>,
    wait: Duration,
) -> Result<Response<Body>, Problem> {
    let services = state.server.services()?;
    let statuses = query_after(state, change, wait).await?;
    let mut statuses = HashMap::<_, _>::from_iter(statuses);
    let owners = Owners::new(services, state.server.api_keys.as_deref());
    let mut models = Vec::new();
    for status in services.models.status() {
        models.push(match statuses.remove(&status.name) {
            Some(Ok(engine)) => owners.model_json(&status.name, &engine),
            // Unless the model was unloaded in the meantime.
            Some(Err(problem)) if status.state == ModelState::Loaded => return Err(problem),
            Some(Err(_)) | None => unloaded_json(&status),
        });
    }
    Ok(json_response(
        StatusCode::OK,
        json!({ "models": models }).to_string(),
    ))
}

/// The status of each loaded model, by name, or why there is none.
type EngineStatuses = Vec<(String, Result<EngineStatus, Problem>)>;

/// A permit to ask engines something.
pub(super) async fn permit(
    state: &AdminState,
    until: Instant,
) -> Result<OwnedSemaphorePermit, Problem> {
    let permit = Arc::clone(&state.status_queries).acquire_owned();
    match timeout_at(until, permit).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(busy("other status queries are waiting for the models")),
    }
}

async fn query_after(
    state: &AdminState,
    change: fn(&Engine) -> Result<(), Error>,
    wait: Duration,
) -> Result<EngineStatuses, Problem> {
    let services = state.server.services()?;
    let until = Instant::now() + wait;
    let permit = Arc::new(permit(state, until).await?);
    // Ask all engines before waiting for the first: each may be in the middle of a step.
    let mut queries = Vec::new();
    for engine in services.models.engines() {
        let (sender, receiver) = oneshot::channel();
        let permit = Arc::clone(&permit);
        let send = move |status| {
            drop(permit);
            // The receiver is gone after the timeout.
            let _ = sender.send(status);
        };
        let queried = change(&engine).and_then(|()| engine.status(send));
        // Keep the name only: holding the engine would keep the model loaded.
        queries.push((engine.info().name.clone(), queried, receiver));
    }
    let mut statuses = Vec::new();
    for (name, queried, receiver) in queries {
        let status = match queried {
            Ok(()) => receive(&name, receiver, until).await,
            Err(error) => Err(query_problem(&name, error)),
        };
        statuses.push((name, status));
    }
    Ok(statuses)
}

/// A model that is not loaded has no requests and no cache.
fn unloaded_json(status: &ModelStatus) -> Value {
    let mut model = models::state_json(status);
    model["requests"] = json!([]);
    model["prefix_cache"] = json!([]);
    model
}

async fn receive(
    model: &str,
    receiver: oneshot::Receiver<EngineStatus>,
    until: Instant,
) -> Result<EngineStatus, Problem> {
    match timeout_at(until, receiver).await {
        Ok(Ok(status)) => Ok(status),
        Ok(Err(_)) => Err(stopped(model)),
        Err(_) => Err(long_step(model)),
    }
}

pub(super) fn query_problem(model: &str, error: Error) -> Problem {
    match error {
        Error::Overloaded { reason, .. } => busy(&format!(
            "the status of the model {model} is not available: {reason}"
        )),
        _ => stopped(model),
    }
}

fn busy(what: &str) -> Problem {
    let detail = format!("{what}; try again later; /metrics answers at any time");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "model-busy", detail)
        .retry_after(Duration::from_secs(1))
}

/// The model did not answer in time.
pub(super) fn long_step(model: &str) -> Problem {
    busy(&format!("a step of the model {model} takes long"))
}

pub(super) fn stopped(model: &str) -> Problem {
    let detail = format!("the model {model} has stopped; see the log and restart the server");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "model-stopped", detail)
}

/// Names of deployments, and of tenants of API keys, by the ids that engines use.
pub(super) struct Owners {
    tenants: HashMap<Tenant, String>,
    /// Prefix scopes of a single tenant. A shared scope is absent.
    scopes: HashMap<u64, String>,
}

impl Owners {
    pub(super) fn new(services: &Services, keys: Option<&ApiKeys>) -> Self {
        let deployments = services.deployments.all();
        let tenants: HashMap<_, _> = deployments
            .iter()
            .map(|deployment| {
                let tenant = deployment.context.deployment.tenant();
                (tenant, deployment.name.to_string())
            })
            .chain(keys.map(ApiKeys::tenants).unwrap_or_default())
            .collect();
        let own_scope = |tenant| Caller {
            tenant,
            ..Caller::default()
        };
        let scopes = tenants
            .iter()
            .map(|(tenant, name)| (own_scope(*tenant).scope().0, name.clone()))
            .collect();
        Owners { tenants, scopes }
    }

    /// The owner of a scope, unless it is shared.
    pub(super) fn owner(&self, scope: PrefixScope) -> Option<&str> {
        self.scopes.get(&scope.prefix_group()).map(String::as_str)
    }

    /// The scopes of the deployments and tenants of this name.
    pub(super) fn scopes_of(&self, owner: &str) -> HashSet<u64> {
        let scopes = self.scopes.iter().filter(|(_, name)| *name == owner);
        scopes.map(|(scope, _)| *scope).collect()
    }

    fn model_json(&self, name: &str, status: &EngineStatus) -> Value {
        let counters = status.counters;
        let requests = status.requests.iter();
        let requests = requests.map(|request| self.request_json(request));
        let entries = status
            .prefix_cache
            .iter()
            .map(|entry| self.entry_json(entry));
        json!({
            "model": name,
            "state": "loaded",
            "cells": {
                "total": status.cells,
                "running": status.cells_running,
                "cached": status.cells_cached,
                "attention": status.attention_cells,
            },
            "sequence_ids": {
                "total": status.sequence_ids,
                "running": status.sequence_ids_running,
                "cached": status.sequence_ids_cached,
            },
            "requests_waiting": status.waiting,
            "generated_tokens": status.generated_tokens,
            "swapped_bytes": {"memory": status.swap_ram_bytes, "disk": status.swap_disk_bytes},
            "offloaded_prefix_bytes": status.prefix_offload_bytes,
            "counters": {
                "dropped": counters.dropped,
                "swapped_out": counters.swapped_out,
                "prefixes_offloaded": counters.offloaded,
                "swapped_in": counters.swapped_in,
                "lost": counters.lost,
                "preempted": counters.preempted,
                "compacted": counters.compacted,
                "adapter_switches": counters.adapter_switches,
            },
            "requests": requests.collect::<Vec<_>>(),
            "prefix_cache": entries.collect::<Vec<_>>(),
        })
    }

    fn request_json(&self, request: &RequestStatus) -> Value {
        json!({
            "request": request.id.0,
            "tenant": request.tenant.0,
            "owner": self.tenants.get(&request.tenant),
            "priority": request.priority.0,
            "latency": request.latency.to_string(),
            "adapter": request.adapter.0,
            "sequence_id": request.seq.0,
            "prompt_tokens": request.prompt,
            "generated_tokens": request.generated,
            "computed_tokens": request.computed,
            "cached_tokens": request.cached,
            "state": request.state.as_str(),
        })
    }

    fn entry_json(&self, entry: &EntryStatus) -> Value {
        json!({
            "entry": entry.id.0,
            "scope": entry.scope.prefix_group(),
            "owner": self.owner(entry.scope),
            "adapter": entry.scope.adapter().0,
            "sequence_id": entry.seq.map(|seq| seq.0),
            "tokens": entry.tokens,
            "retained": entry.retained,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{AdapterId, Latency, Priority, SchedulerCounters};
    use corral_engine::{EntryId, EntryLocation, RequestId, RequestState, SeqId};

    fn status() -> EngineStatus {
        EngineStatus {
            cells: 100,
            cells_running: 3,
            cells_cached: 7,
            attention_cells: 32,
            sequence_ids: 4,
            sequence_ids_running: 1,
            sequence_ids_cached: 1,
            waiting: 1,
            generated_tokens: 2,
            swap_ram_bytes: 5,
            swap_disk_bytes: 6,
            prefix_offload_bytes: 7,
            requests: vec![RequestStatus {
                id: RequestId(9),
                tenant: Tenant(1),
                priority: Priority(7),
                latency: Latency::STREAM,
                adapter: AdapterId::NONE,
                seq: SeqId(0),
                prompt: 2,
                generated: 2,
                computed: 3,
                cached: 0,
                state: RequestState::Decode,
            }],
            prefix_cache: [
                (PrefixScope(1), Some(SeqId(2))),
                (PrefixScope(1 << 32), None),
            ]
            .map(|(scope, seq)| EntryStatus {
                id: EntryId(scope.0),
                scope,
                seq,
                tokens: 7,
                retained: seq.is_none(),
                location: EntryLocation::Cells,
                shared: 0,
                hits: 0,
            })
            .into(),
            counters: SchedulerCounters::default(),
        }
    }

    #[test]
    fn status_names_the_owner_unless_shared() {
        let owners = Owners {
            tenants: HashMap::from([(Tenant(1), "/chat".to_owned())]),
            scopes: HashMap::from([(1, "/chat".to_owned())]),
        };
        let model = owners.model_json("tiny", &status());
        assert_eq!(model["model"], "tiny");
        assert_eq!(
            model["cells"],
            json!({"total": 100, "running": 3, "cached": 7, "attention": 32})
        );
        assert_eq!(model["requests"][0]["owner"], "/chat");
        assert_eq!(model["requests"][0]["request"], 9);
        assert_eq!(model["prefix_cache"][0]["owner"], "/chat");
        assert_eq!(model["prefix_cache"][0]["sequence_id"], 2);
        assert_eq!(model["prefix_cache"][1]["owner"], Value::Null, "shared");
        assert_eq!(
            model["prefix_cache"][1]["sequence_id"],
            Value::Null,
            "offloaded"
        );
    }

    #[tokio::test]
    async fn busy_and_stopped_engines_are_problems() {
        let (sender, receiver) = oneshot::channel();
        let now = Instant::now();
        let problem = receive("big", receiver, now).await.expect_err("timeout");
        assert_eq!(problem.status(), 503);
        assert_eq!(problem.code(), "model-busy");
        drop(sender);
        let (sender, receiver) = oneshot::channel();
        drop(sender);
        let later = now + Duration::from_secs(60);
        let problem = receive("big", receiver, later).await;
        assert_eq!(problem.expect_err("no sender").code(), "model-stopped");
        let (sender, receiver) = oneshot::channel();
        assert!(sender.send(status()).is_ok());
        let received = receive("big", receiver, later).await.expect("a status");
        assert_eq!(received.cells, 100);
    }
}
