//! `/prefix-cache`: the entries of all models, by owner; `DELETE` drops them all, those of an owner, or one.
//!
//! Entries are listed in the order of the prefix tree, each with the number of tokens that it shares with the one before it
//! of its model. The entries of a model that does not answer in time are missing, and the list says so. Retained entries
//! stay, and those that a request waits for.

use super::engine_status::{self, Owners, busy, query_problem, stopped};
use super::{AdminState, json_response};
use crate::problem::Problem;
use corral_engine::{DroppedPrefixes, EntryStatus};
use corral_runtime::Body;
use http::{Method, Response, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Most entries in a list; further ones are only counted.
const MAX_ENTRIES: usize = 1000;
/// Longest name in an error.
const MAX_NAME_CHARS: usize = 128;

/// Answers `path` if it is about prefixes.
pub(super) async fn answer(
    state: &AdminState,
    method: &Method,
    uri: &Uri,
) -> Option<Result<Response<Body>, Problem>> {
    let segments = Vec::from_iter(uri.path().split('/').skip(1));
    Some(match (&segments[..], method) {
        (["prefix-cache"], &Method::GET | &Method::HEAD) => match owner_in(uri.query()) {
            Ok(owner) => list(state, owner.as_deref()).await,
            Err(problem) => Err(problem),
        },
        (["prefix-cache"], &Method::DELETE) => match owner_in(uri.query()) {
            Ok(None) => engine_status::clear_prefix_cache(state).await,
            Ok(Some(owner)) => drop_of(state, &owner).await,
            Err(problem) => Err(problem),
        },
        (["prefix-cache"], _) => Err(Problem::method("GET, HEAD, DELETE")),
        (["prefix-cache", model, entry], &Method::DELETE) => {
            drop_entry(state, &decoded(model), entry).await
        }
        (["prefix-cache", _, _], _) => Err(Problem::method("DELETE")),
        _ => return None,
    })
}

/// The owner that a query names: `deployment=NAME`. A mistyped query must not stand for all owners.
fn owner_in(query: Option<&str>) -> Result<Option<String>, Problem> {
    let Some(query) = query else {
        return Ok(None);
    };
    match query.strip_prefix("deployment=") {
        Some(name) if !name.is_empty() && !name.contains(['&', '=']) => Ok(Some(decoded(name))),
        _ => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid-query",
            "the query must be deployment=NAME, or absent for all deployments",
        )),
    }
}

fn decoded(name: &str) -> String {
    percent_decode_str(name).decode_utf8_lossy().into_owned()
}

async fn list(state: &AdminState, owner: Option<&str>) -> Result<Response<Body>, Problem> {
    let services = state.server.services()?;
    let owners = Owners::new(services, state.server.api_keys.as_deref());
    if let Some(owner) = owner {
        scopes_of(&owners, owner)?;
    }
    let (mut entries, mut omitted, mut missing) = (Vec::new(), 0, Vec::new());
    for (model, status) in engine_status::query(state).await? {
        let status = match status {
            Ok(status) => status,
            Err(problem) => {
                missing.push(json!({"model": model, "reason": problem.detail()}));
                continue;
            }
        };
        for entry in &status.prefix_cache {
            let found = owners.owner(entry.scope);
            if owner.is_some() && found != owner {
                continue;
            }
            if entries.len() == MAX_ENTRIES {
                omitted += 1;
                continue;
            }
            entries.push(entry_json(&model, entry, found));
        }
    }
    let json = json!({"entries": entries, "omitted": omitted, "missing": missing});
    Ok(json_response(StatusCode::OK, json.to_string()))
}

fn entry_json(model: &str, entry: &EntryStatus, owner: Option<&str>) -> Value {
    json!({
        "model": model,
        "entry": entry.id.0,
        "deployment": owner,
        "adapter": entry.scope.adapter().0,
        "tokens": entry.tokens,
        "shared_tokens": entry.shared,
        "hits": entry.hits,
        "location": entry.location.name(),
        "retained": entry.retained,
    })
}

/// The scopes of an owner.
fn scopes_of(owners: &Owners, owner: &str) -> Result<HashSet<u64>, Problem> {
    let scopes = owners.scopes_of(owner);
    match scopes.is_empty() {
        false => Ok(scopes),
        true => {
            let name: String = owner.chars().take(MAX_NAME_CHARS).collect();
            let detail = format!(
                "no deployment and no tenant of API keys has the name {name:?}; GET /prefix-cache shows owners"
            );
            Err(Problem::new(StatusCode::NOT_FOUND, "no-deployment", detail))
        }
    }
}

/// Drops the entries of an owner in all models.
async fn drop_of(state: &AdminState, owner: &str) -> Result<Response<Body>, Problem> {
    let services = state.server.services()?;
    let owners = Owners::new(services, state.server.api_keys.as_deref());
    let scopes = Arc::new(scopes_of(&owners, owner)?);
    let mut total = DroppedPrefixes::default();
    let models = services.models.engines();
    let models = Vec::from_iter(models.iter().map(|engine| engine.info().name.clone()));
    for model in models {
        let scopes = Arc::clone(&scopes);
        let matches = move |entry: &EntryStatus| scopes.contains(&entry.scope.prefix_group());
        let dropped = drop_matching(state, &model, matches).await?;
        total.dropped += dropped.dropped;
        total.kept += dropped.kept;
    }
    Ok(dropped_response(total))
}

/// Drops one entry.
async fn drop_entry(
    state: &AdminState,
    model: &str,
    entry: &str,
) -> Result<Response<Body>, Problem> {
    let unknown = || {
        let [model, entry] =
            [model, entry].map(|text| text.chars().take(MAX_NAME_CHARS).collect::<String>());
        let detail = format!(
            "the model {model:?} has no entry {entry:?} now; GET /prefix-cache lists entries"
        );
        Problem::new(StatusCode::NOT_FOUND, "no-entry", detail)
    };
    let number: u64 = entry.parse().map_err(|_| unknown())?;
    let matches = move |entry: &EntryStatus| entry.id.0 == number;
    let result = drop_matching(state, model, matches).await?;
    match (result.dropped, result.kept) {
        (0, 0) => Err(unknown()),
        (0, _) => Err(Problem::new(
            StatusCode::CONFLICT,
            "entry-in-use",
            "the entry is retained for a caller that may return, or a request waits for it; try again later",
        )),
        _ => Ok(dropped_response(result)),
    }
}

fn dropped_response(result: DroppedPrefixes) -> Response<Body> {
    let json = json!({"dropped": result.dropped, "kept": result.kept});
    json_response(StatusCode::OK, json.to_string())
}

/// Drops entries of a model, if it is loaded.
async fn drop_matching(
    state: &AdminState,
    model: &str,
    matches: impl Fn(&EntryStatus) -> bool + Send + 'static,
) -> Result<DroppedPrefixes, Problem> {
    let until = Instant::now() + engine_status::STATUS_TIMEOUT;
    let permit = engine_status::permit(state, until).await?;
    let (sender, receiver) = oneshot::channel();
    // Not held while waiting: an engine that is held stays loaded.
    let queried = {
        let engines = state.server.services()?.models.engines();
        let Some(engine) = engines.iter().find(|engine| engine.info().name == model) else {
            return Ok(DroppedPrefixes::default());
        };
        engine.drop_prefixes(matches, move |dropped| {
            drop(permit);
            // The receiver is gone after the timeout.
            let _ = sender.send(dropped);
        })
    };
    queried.map_err(|error| query_problem(model, error))?;
    match timeout_at(until, receiver).await {
        Ok(Ok(dropped)) => Ok(dropped),
        Ok(Err(_)) => Err(stopped(model)),
        Err(_) => Err(busy(&format!("the model {model} computes a long step"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{EntryId, EntryLocation, PrefixScope};

    #[test]
    fn owner_is_decoded_from_the_query() {
        let named = |query| owner_in(query).map_err(|problem| problem.code());
        assert_eq!(named(Some("deployment=%2Fv1")), Ok(Some("/v1".to_owned())));
        assert_eq!(named(None), Ok(None));
        for query in [
            "",
            "deployment",
            "deployment=",
            "deployments=x",
            "a=b&deployment=x",
            "deployment=x&a",
        ] {
            assert_eq!(named(Some(query)), Err("invalid-query"), "{query}");
        }
    }

    #[test]
    fn entry_says_where_it_is_and_how_often_it_was_used() {
        let entry = EntryStatus {
            id: EntryId(4),
            scope: PrefixScope(1),
            seq: None,
            tokens: 7,
            retained: false,
            location: EntryLocation::Disk,
            shared: 0,
            hits: 3,
        };
        let expected = json!({
            "model": "tiny", "entry": 4, "deployment": "/chat", "adapter": 0, "tokens": 7, "hits": 3,
            "shared_tokens": 0, "location": "disk", "retained": false,
        });
        assert_eq!(entry_json("tiny", &entry, Some("/chat")), expected);
    }
}
