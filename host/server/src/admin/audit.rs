//! One log line for each change through the admin listener, and for each attempt: who, what, of which deployment and
//! revision, with which outcome.

use super::AdminState;
use super::prefix_cache::owner_in;
use crate::connection_info::ConnectionInfo;
use crate::problem::Problem;
use corral_runtime::Body;
use http::{Method, Request, Response, StatusCode, Uri};
use std::time::Instant;

/// Target of these lines.
pub const AUDIT_TARGET: &str = "corral::audit";
/// Longest name in the log.
const MAX_NAME_CHARS: usize = 128;

/// An extension of a response: what the change led to.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeResult {
    /// Number of a new revision.
    pub(super) revision: Option<u64>,
    /// Revisions that receive requests since the change, with their weights, e.g. `3=90,4=10`.
    pub(super) traffic: Option<String>,
    /// Whether the deployment is paused since the change.
    pub(super) paused: Option<bool>,
}

/// A request that may change something, or that calls a route.
#[derive(Debug)]
pub(super) struct AuditedChange {
    actor: &'static str,
    connection: Option<ConnectionInfo>,
    action: &'static str,
    /// What it changes, and its name.
    target: Option<(Target, String)>,
    began: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Deployment,
    Component,
    Model,
    Request,
}

impl AuditedChange {
    /// None if the request only reads.
    pub(super) fn begin<B>(state: &AdminState, request: &Request<B>) -> Option<Self> {
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let action = action(request.method(), request.uri());
        Some(Self::new(state, request, action))
    }

    /// A call of a deployment's route.
    pub(super) fn begin_call<B>(
        state: &AdminState,
        request: &Request<B>,
        deployment: Option<String>,
    ) -> Self {
        let target = deployment.map(|name| (Target::Deployment, name));
        Self::new(state, request, ("call", target))
    }

    fn new<B>(
        state: &AdminState,
        request: &Request<B>,
        (action, target): (&'static str, Option<(Target, String)>),
    ) -> Self {
        AuditedChange {
            actor: state.guard.actor(request.headers()),
            connection: request.extensions().get().copied(),
            action,
            target,
            began: Instant::now(),
        }
    }

    /// Writes the line.
    pub(super) fn log(self, answered: &Result<Response<Body>, Problem>) {
        match answered {
            Ok(response) => {
                let result = response.extensions().get();
                let result = result.cloned().unwrap_or_default();
                self.write(response.status(), outcome(response.status()), &result);
            }
            Err(problem) => self.log_problem(problem),
        }
    }

    /// Writes the line of a call that was answered.
    pub(super) fn log_status(self, status: StatusCode) {
        self.write(status, outcome(status), &ChangeResult::default());
    }

    /// Writes the line of a request that was refused.
    pub(super) fn log_problem(self, problem: &Problem) {
        self.write(problem.status(), problem.code(), &ChangeResult::default());
    }

    fn write(self, status: StatusCode, outcome: &str, result: &ChangeResult) {
        let action = match (self.action, result.paused) {
            ("pause", Some(false)) => "resume",
            (action, _) => action,
        };
        let address = self.connection.and_then(|connection| connection.address);
        let address = address.map(tracing::field::display);
        let name = |kind: Target| match &self.target {
            Some((target, name)) if *target == kind => Some(name.as_str()),
            _ => None,
        };
        tracing::info!(
            target: AUDIT_TARGET,
            action,
            outcome,
            actor = self.actor,
            address,
            deployment = name(Target::Deployment),
            revision = result.revision,
            traffic = result.traffic,
            component = name(Target::Component),
            model = name(Target::Model),
            canceled_request = name(Target::Request),
            status = status.as_u16(),
            duration_ms = self.began.elapsed().as_micros() as f64 / 1e3,
            "change"
        );
    }
}

fn outcome(status: StatusCode) -> &'static str {
    match status.is_server_error() {
        true => "internal",
        false => "ok",
    }
}

/// What a request with this target changes.
fn action(method: &Method, uri: &Uri) -> (&'static str, Option<(Target, String)>) {
    let segments = Vec::from_iter(uri.path().split('/').skip(1));
    let name = |name: &str| name.chars().take(MAX_NAME_CHARS).collect::<String>();
    match segments[..] {
        ["components", digest] => ("upload", Some((Target::Component, name(digest)))),
        ["deployments", deployment, ref rest @ ..] => {
            let action = match (method, rest) {
                (&Method::POST, [] | ["artifact"]) => "deploy",
                (&Method::DELETE, []) => "remove",
                (_, ["traffic"]) => "split",
                (_, ["rollback"]) => "rollback",
                // Or resume, as the request's body says.
                (_, ["paused"]) => "pause",
                (_, ["jobs", _, "retry"]) => "retry-job",
                (_, ["jobs", _, "cancel"]) => "cancel-job",
                (&Method::DELETE, ["jobs"]) => "purge-jobs",
                _ => "unknown",
            };
            (action, Some((Target::Deployment, name(deployment))))
        }
        ["models", model] => {
            let action = match *method {
                Method::PUT => "load-model",
                Method::DELETE => "unload-model",
                _ => "unknown",
            };
            (action, Some((Target::Model, name(model))))
        }
        ["prefix-cache"] => {
            let owner = owner_in(uri.query()).ok().flatten();
            let owner = owner.map(|owner| (Target::Deployment, name(&owner)));
            ("clear-prefix-cache", owner)
        }
        ["prefix-cache", model, _] => ("drop-prefix", Some((Target::Model, name(model)))),
        ["requests", id] => ("cancel-request", Some((Target::Request, name(id)))),
        _ => ("unknown", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_named_as_commands() {
        let action =
            |method: &Method, target: &str| action(method, &target.parse::<Uri>().expect("a URI"));
        for (method, path, expected) in [
            (Method::POST, "/deployments/a", "deploy"),
            (Method::POST, "/deployments/a/artifact", "deploy"),
            (Method::DELETE, "/deployments/a", "remove"),
            (Method::PUT, "/deployments/a/traffic", "split"),
            (Method::POST, "/deployments/a/rollback", "rollback"),
            (Method::PUT, "/deployments/a/paused", "pause"),
            (Method::POST, "/deployments/a/jobs/1/retry", "retry-job"),
            (Method::POST, "/deployments/a/jobs/1/cancel", "cancel-job"),
            (Method::DELETE, "/deployments/a/jobs", "purge-jobs"),
            (Method::PUT, "/components/sha256:0", "upload"),
            (Method::PUT, "/models/tiny", "load-model"),
            (Method::DELETE, "/models/tiny", "unload-model"),
            (Method::DELETE, "/prefix-cache", "clear-prefix-cache"),
            (Method::DELETE, "/prefix-cache/tiny/1", "drop-prefix"),
            (Method::DELETE, "/requests/0-1", "cancel-request"),
            (Method::POST, "/", "unknown"),
        ] {
            assert_eq!(action(&method, path).0, expected, "{method} {path}");
        }
        let owner = action(&Method::DELETE, "/prefix-cache?deployment=%2Fchat").1;
        assert_eq!(owner, Some((Target::Deployment, "/chat".to_owned())));
        let long = format!("/models/{}", "x".repeat(1000));
        let Some((Target::Model, name)) = action(&Method::PUT, &long).1 else {
            panic!("a model");
        };
        assert_eq!(name.len(), MAX_NAME_CHARS);
    }
}
