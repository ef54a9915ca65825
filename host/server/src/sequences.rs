//! `/sequences` and `/cache`: what holds ids, cells and memory in each model, for people, and a way to
//! have back what is only kept.
//!
//! An engine's thread tells it between two steps, so an answer waits for the step that runs, but no
//! longer than [`PATIENCE`]. A look that nobody waits for any more stays in the engine's channel until
//! that step ends; so no more than [`LOOKS`] of them are under way at once.

use crate::house::House;
use crate::keys::Keys;
use crate::models;
use crate::problem::Problem;
use corral_engine::{
    Caller, EntryStatus, Error, ModelState, ModelStatus, RequestStatus, Tenant, View,
};
use corral_runtime::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// How long a model may take to look up from its step.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks at the models that may be under way at once.
pub(crate) const LOOKS: usize = 4;

/// What goes on in all models, as one JSON object; with `clear` once what is kept and nobody means to
/// go on with is dropped.
pub(crate) async fn answer(
    house: &House,
    keys: Option<&Keys>,
    looks: &Arc<Semaphore>,
    clear: bool,
) -> Result<Response<Body>, Problem> {
    let until = Instant::now() + PATIENCE;
    let permit = match timeout_at(until, Arc::clone(looks).acquire_owned()).await {
        Ok(Ok(permit)) => Arc::new(permit),
        _ => {
            return Err(busy(
                "others asked already and the models have told nobody yet",
            ));
        }
    };
    // All are asked before the first answer is waited for, since each may be in the midst of a step.
    let mut asked = Vec::new();
    for engine in house.models.engines() {
        let (tell, told) = oneshot::channel();
        let permit = Arc::clone(&permit);
        let tell = move |view| {
            drop(permit);
            // Nobody is there any more when the patience was over.
            let _ = tell.send(view);
        };
        let clearing = if clear { engine.clear_cache() } else { Ok(()) };
        let looking = clearing.and_then(|()| engine.view(tell));
        // No longer than this: who is looked at may be unloaded.
        let name = engine.info().name.clone();
        asked.push((name, looking, told));
    }
    let mut views = HashMap::new();
    for (name, looking, told) in asked {
        let view = match looking {
            Ok(()) => wait(&name, told, until).await,
            Err(error) => Err(refused(&name, error)),
        };
        views.insert(name, view);
    }
    let visitors = keys.map(Keys::tenants).unwrap_or_default();
    let routes = Routes::of(house, visitors);
    let mut models = Vec::new();
    for status in house.models.status() {
        models.push(match views.remove(&status.name) {
            Some(Ok(view)) => routes.model(&status.name, &view),
            // Not if it was unloaded meanwhile.
            Some(Err(problem)) if status.state == ModelState::Loaded => return Err(problem),
            Some(Err(_)) | None => absent(&status),
        });
    }
    let text = json!({ "models": models }).to_string();
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A model in which nothing goes on, since it is not loaded.
fn absent(status: &ModelStatus) -> Value {
    let mut model = models::state(status);
    model["sequences"] = json!([]);
    model["kept"] = json!([]);
    model
}

async fn wait(model: &str, told: oneshot::Receiver<View>, until: Instant) -> Result<View, Problem> {
    match timeout_at(until, told).await {
        Ok(Ok(view)) => Ok(view),
        Ok(Err(_)) => Err(stopped(model)),
        Err(_) => Err(busy(&format!(
            "the model {model} is in the midst of a step that lasts longer than {} s",
            PATIENCE.as_secs()
        ))),
    }
}

fn refused(model: &str, error: Error) -> Problem {
    match error {
        Error::Refused { reason, .. } => {
            busy(&format!("the model {model} does not listen: {reason}"))
        }
        _ => stopped(model),
    }
}

/// It is there, but has no time now.
fn busy(what: &str) -> Problem {
    let detail = format!("{what}; try again later, /metrics answers at any time");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "model-busy", detail)
        .retry_after(Duration::from_secs(1))
}

/// It is there no more.
fn stopped(model: &str) -> Problem {
    let detail = format!("the model {model} has stopped; restart the server, its log says why");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "model-stopped", detail)
}

/// The deployments by what engines know them as.
struct Routes {
    tenants: HashMap<Tenant, String>,
    /// Those that share prefixes with nobody else. A scope that is not here has no single owner.
    scopes: HashMap<u64, String>,
}

impl Routes {
    /// Of all deployments, and of the tenants of keys, who have no route: their name stands for it.
    fn of(house: &House, visitors: HashMap<Tenant, String>) -> Self {
        let served = house.deployments.all();
        let tenants: HashMap<_, _> = served
            .iter()
            .map(|served| (served.standing.deployment.tenant(), served.name.clone()))
            .chain(visitors)
            .collect();
        let own_scope = |tenant| Caller {
            tenant,
            ..Caller::default()
        };
        let scopes = tenants
            .iter()
            .map(|(tenant, name)| (own_scope(*tenant).scope().0, name.clone()))
            .collect();
        Routes { tenants, scopes }
    }

    fn model(&self, name: &str, view: &View) -> Value {
        let tally = view.tally;
        let sequences = view
            .sequences
            .iter()
            .map(|sequence| self.sequence(sequence));
        let kept = view.entries.iter().map(|entry| self.entry(entry));
        json!({
            "model": name,
            "state": "loaded",
            "cells": {
                "all": view.cells,
                "pinned": view.cells_pinned,
                "used": view.cells_used,
                "n_kv": view.n_kv,
            },
            "ids": {"all": view.ids, "used": view.ids_used},
            "waiting": view.waiting,
            "spilled_bytes": {"memory": view.spilled_ram, "disk": view.spilled_disk},
            "prefix_bytes": view.prefixes_ram,
            "tally": {
                "evicted": tally.evicted,
                "spilled": tally.swapped_out,
                "prefixes": tally.offloaded,
                "restored": tally.swapped_in,
                "lost": tally.lost,
                "preempted": tally.preempted,
                "relocated": tally.compacted,
                "adapter_changes": tally.adapter_switches,
            },
            "sequences": sequences.collect::<Vec<_>>(),
            "kept": kept.collect::<Vec<_>>(),
        })
    }

    fn sequence(&self, sequence: &RequestStatus) -> Value {
        json!({
            "key": sequence.id.0,
            "tenant": sequence.tenant.0,
            "route": self.tenants.get(&sequence.tenant),
            "priority": sequence.priority.0,
            "adapter": sequence.adapter.0,
            "id": sequence.seq.0,
            "prompt": sequence.prompt,
            "generated": sequence.generated,
            "computed": sequence.computed,
            "cached": sequence.cached,
            "state": sequence.state.as_str(),
        })
    }

    fn entry(&self, entry: &EntryStatus) -> Value {
        json!({
            "entry": entry.id.0,
            "scope": entry.scope.group(),
            "route": self.scopes.get(&entry.scope.group()),
            "adapter": entry.scope.adapter().0,
            "id": entry.seq.map(|seq| seq.0),
            "tokens": entry.tokens,
            "claimed": entry.retained,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{AdapterId, Priority, SchedulerCounters};
    use corral_engine::{EntryId, PrefixScope, RequestId, RequestState, SeqId};

    fn view() -> View {
        View {
            cells: 100,
            cells_pinned: 3,
            cells_used: 10,
            n_kv: 32,
            ids: 4,
            ids_used: 2,
            waiting: 1,
            spilled_ram: 5,
            spilled_disk: 6,
            prefixes_ram: 7,
            sequences: vec![RequestStatus {
                id: RequestId(9),
                tenant: Tenant(1),
                priority: Priority(7),
                adapter: AdapterId::NONE,
                seq: SeqId(0),
                prompt: 2,
                generated: 2,
                computed: 3,
                cached: 0,
                state: RequestState::Decode,
            }],
            entries: [
                (PrefixScope(1), Some(SeqId(2))),
                (PrefixScope(1 << 32), None),
            ]
            .map(|(scope, seq)| EntryStatus {
                id: EntryId(scope.0),
                scope,
                seq,
                tokens: 7,
                retained: seq.is_none(),
            })
            .into(),
            tally: SchedulerCounters::default(),
        }
    }

    #[test]
    fn routes_are_told_where_there_is_one() {
        let routes = Routes {
            tenants: HashMap::from([(Tenant(1), "/chat".to_owned())]),
            scopes: HashMap::from([(1, "/chat".to_owned())]),
        };
        let model = routes.model("tiny", &view());
        assert_eq!(model["model"], "tiny");
        assert_eq!(
            model["cells"],
            json!({"all": 100, "pinned": 3, "used": 10, "n_kv": 32})
        );
        assert_eq!(model["sequences"][0]["route"], "/chat");
        assert_eq!(model["sequences"][0]["key"], 9);
        assert_eq!(model["kept"][0]["route"], "/chat");
        assert_eq!(model["kept"][0]["id"], 2);
        assert_eq!(model["kept"][1]["route"], Value::Null, "several share it");
        assert_eq!(model["kept"][1]["id"], Value::Null, "put aside");
    }

    #[tokio::test]
    async fn a_long_step_and_a_thread_that_ended_are_problems() {
        let (tell, told) = oneshot::channel();
        let now = Instant::now();
        let problem = wait("big", told, now).await.expect_err("no time");
        assert_eq!(problem.status(), 503);
        assert!(format!("{problem:?}").contains("model-busy"), "{problem:?}");
        drop(tell);
        let (tell, told) = oneshot::channel();
        drop(tell);
        let later = now + Duration::from_secs(60);
        let problem = wait("big", told, later).await.expect_err("nobody tells");
        assert!(
            format!("{problem:?}").contains("model-stopped"),
            "{problem:?}"
        );
        let (tell, told) = oneshot::channel();
        assert!(tell.send(view()).is_ok());
        assert_eq!(wait("big", told, later).await.expect("told").cells, 100);
    }
}
