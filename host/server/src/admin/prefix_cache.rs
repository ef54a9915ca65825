//! `/prefix-cache`: the entries of all models, by owner; `DELETE` drops them all, those of an owner, or one.
//!
//! Entries are listed in the order of the prefix tree, each with the number of tokens that it shares with the one before it
//! of its model. Those of a model in a long step may be of an [earlier moment](super::prefix_lists), or missing; the list says
//! so. Retained entries stay, and those that a request waits for.

use super::AdminState;
use super::engine_status::{self, Owners, long_step, query_problem, stopped};
use super::prefix_lists::LIST_TIMEOUT;
use crate::json_response::json_response;
use crate::problem::Problem;
use corral_engine::{DroppedPrefixes, EntryId, EntryStatus};
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
        (["prefix-cache", model, entry], &Method::DELETE) => match first_tokens_in(uri.query()) {
            Ok(first) => drop_entry(state, &decoded(model), entry, first).await,
            Err(problem) => Err(problem),
        },
        (["prefix-cache", _, _], _) => Err(Problem::method("DELETE")),
        _ => return None,
    })
}

/// The owner that a query names: `deployment=NAME`. A mistyped query must not stand for all owners.
pub(super) fn owner_in(query: Option<&str>) -> Result<Option<String>, Problem> {
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

/// The number of tokens that a query names: `first_tokens=N`. A mistyped query must not stand for one entry.
fn first_tokens_in(query: Option<&str>) -> Result<Option<u32>, Problem> {
    let Some(query) = query else {
        return Ok(None);
    };
    let tokens = query.strip_prefix("first_tokens=");
    match tokens.and_then(|tokens| tokens.parse().ok()) {
        Some(tokens) if tokens > 0 => Ok(Some(tokens)),
        _ => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid-query",
            "the query must be first_tokens=N with a number of at least 1, or absent for one entry",
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
    let (mut entries, mut omitted) = (Vec::new(), 0);
    let (mut stale, mut missing) = (Vec::new(), Vec::new());
    let until = Instant::now() + LIST_TIMEOUT;
    // Engines are not held while waiting: one that is held stays loaded.
    let lists = state.prefix_lists.ask(&services.models.engines());
    for pending in lists {
        let model = pending.model().to_owned();
        let list = match pending.wait(until).await {
            Ok((list, None)) => list,
            Ok((list, Some(age))) => {
                stale.push(json!({"model": model, "age_seconds": age.as_secs_f64()}));
                list
            }
            Err(problem) => {
                missing.push(json!({"model": model, "reason": problem.detail()}));
                continue;
            }
        };
        for entry in &*list.entries {
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
    let json = json!({"entries": entries, "omitted": omitted, "stale": stale, "missing": missing});
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
        let select = move |entries: &[EntryStatus]| {
            let of_owner = |entry: &&EntryStatus| scopes.contains(&entry.scope.prefix_group());
            entries
                .iter()
                .filter(of_owner)
                .map(|entry| entry.id)
                .collect()
        };
        let dropped = drop_selected(state, &model, select).await?;
        total.dropped += dropped.dropped;
        total.kept += dropped.kept;
    }
    Ok(dropped_response(total))
}

/// Drops one entry, or all that have its `first` tokens.
async fn drop_entry(
    state: &AdminState,
    model: &str,
    entry: &str,
    first: Option<u32>,
) -> Result<Response<Body>, Problem> {
    let unknown = || {
        let [model, entry] =
            [model, entry].map(|text| text.chars().take(MAX_NAME_CHARS).collect::<String>());
        let length = first.map_or(String::new(), |tokens| {
            format!(" of at least {tokens} tokens")
        });
        let detail = format!(
            "the model {model:?} has no entry {entry:?}{length} now; GET /prefix-cache lists entries"
        );
        Problem::new(StatusCode::NOT_FOUND, "no-entry", detail)
    };
    let id = EntryId(entry.parse().map_err(|_| unknown())?);
    let select = move |entries: &[EntryStatus]| branch(entries, id, first);
    let result = drop_selected(state, model, select).await?;
    match (result.dropped, result.kept) {
        (0, 0) => Err(unknown()),
        (0, 1) => Err(Problem::new(
            StatusCode::CONFLICT,
            "entry-in-use",
            "the entry is retained for a caller that may return, or a request waits for it; try again later",
        )),
        _ => Ok(dropped_response(result)),
    }
}

/// The entries that have the `first` tokens of an entry; without a number that entry alone.
fn branch(entries: &[EntryStatus], id: EntryId, first: Option<u32>) -> Vec<EntryId> {
    // No two entries share this many tokens.
    let shared = first.unwrap_or(u32::MAX);
    let found =
        |entry: &EntryStatus| entry.id == id && first.is_none_or(|first| entry.tokens >= first);
    let Some(index) = entries.iter().position(found) else {
        return Vec::new();
    };
    let shares = |entry: &&EntryStatus| entry.shared >= shared;
    let before = entries[1..=index].iter().rev().take_while(shares).count();
    let after = entries[index + 1..].iter().take_while(shares).count();
    let branch = &entries[index - before..=index + after];
    branch.iter().map(|entry| entry.id).collect()
}

fn dropped_response(result: DroppedPrefixes) -> Response<Body> {
    let json = json!({"dropped": result.dropped, "kept": result.kept});
    json_response(StatusCode::OK, json.to_string())
}

/// Drops the entries of a model that `select` names of all, if the model is loaded.
async fn drop_selected(
    state: &AdminState,
    model: &str,
    select: impl FnOnce(&[EntryStatus]) -> Vec<EntryId> + Send + 'static,
) -> Result<DroppedPrefixes, Problem> {
    let until = Instant::now() + engine_status::CHANGE_TIMEOUT;
    let permit = engine_status::permit(state, until).await?;
    let (sender, receiver) = oneshot::channel();
    // A client that was refused must not find its entries dropped later.
    let waits = Arc::new(());
    let still_waits = Arc::downgrade(&waits);
    let select = move |entries: &[EntryStatus]| match still_waits.upgrade() {
        Some(_) => select(entries),
        None => Vec::new(),
    };
    // Not held while waiting: an engine that is held stays loaded.
    let queried = {
        let engines = state.server.services()?.models.engines();
        let Some(engine) = engines.iter().find(|engine| engine.info().name == model) else {
            return Ok(DroppedPrefixes::default());
        };
        engine.drop_prefixes(select, move |dropped| {
            drop(permit);
            // The receiver is gone after the timeout.
            let _ = sender.send(dropped);
        })
    };
    queried.map_err(|error| query_problem(model, error))?;
    match timeout_at(until, receiver).await {
        Ok(Ok(dropped)) => Ok(dropped),
        Ok(Err(_)) => Err(stopped(model)),
        Err(_) => Err(long_step(model)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{EntryLocation, PrefixScope};

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
    fn first_tokens_are_a_number() {
        let tokens = |query| first_tokens_in(query).map_err(|problem| problem.code());
        assert_eq!(tokens(Some("first_tokens=12")), Ok(Some(12)));
        assert_eq!(tokens(None), Ok(None));
        for query in [
            "",
            "first_tokens=0",
            "first_tokens=-1",
            "first_tokens",
            "first=1",
        ] {
            assert_eq!(tokens(Some(query)), Err("invalid-query"), "{query}");
        }
    }

    fn entry(id: u64, tokens: u32, shared: u32) -> EntryStatus {
        EntryStatus {
            id: EntryId(id),
            scope: PrefixScope(1),
            seq: None,
            tokens,
            retained: false,
            location: EntryLocation::Disk,
            shared,
            hits: 3,
        }
    }

    #[test]
    fn branch_has_the_entries_that_begin_alike() {
        let entries = [
            entry(1, 9, 0),
            entry(2, 20, 5),
            entry(3, 30, 20),
            entry(4, 30, 12),
            entry(5, 9, 0),
        ];
        let branch = |id, first| {
            let ids = branch(&entries, EntryId(id), first);
            Vec::from_iter(ids.into_iter().map(|id| id.0))
        };
        assert_eq!(branch(2, Some(5)), [1, 2, 3, 4]);
        assert_eq!(branch(3, Some(12)), [2, 3, 4]);
        assert_eq!(branch(3, Some(13)), [2, 3]);
        assert_eq!(branch(1, Some(6)), [1]);
        assert_eq!(branch(5, Some(1)), [5]);
        assert_eq!(branch(2, None), [2]);
        for (id, first) in [(6, Some(1)), (2, Some(21))] {
            assert_eq!(branch(id, first), [0_u64; 0]);
        }
    }

    #[test]
    fn entry_says_its_location_and_uses() {
        let expected = json!({
            "model": "tiny", "entry": 4, "deployment": "/chat", "adapter": 0, "tokens": 7, "hits": 3,
            "shared_tokens": 0, "location": "disk", "retained": false,
        });
        assert_eq!(entry_json("tiny", &entry(4, 7, 0), Some("/chat")), expected);
    }
}
