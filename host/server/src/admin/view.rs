//! What the admin API answers, as JSON. `openapi.json` is made of these.

use crate::deployments::{Deployments, Digest, Kept, Links, Name, Part, Revision, Served, Share};
use serde::{Deserialize, Serialize};

/// Whether a deployment, or a revision, answers requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It answers requests.
    Serving,
    /// Its requests are refused until somebody lets it go on.
    Paused,
    /// It could not be loaded.
    Failed,
}

/// A deployment.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentView {
    /// Its name; the route of one that lasts as long as the process.
    pub(super) name: String,
    /// Whether it is in the store. What is not was named on the command line.
    pub(super) kept: bool,
    /// Whether it answers requests.
    pub(super) state: State,
    /// Path prefixes below which it answers.
    pub(super) routes: Vec<String>,
    /// The number of its latest revision; 0 if it is not in the store.
    pub(super) latest: u64,
    /// Which revisions get its requests.
    pub(super) traffic: Vec<PartView>,
}

/// A revision's part of the requests.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct PartView {
    /// The revision's number.
    pub(super) revision: u64,
    /// Its part of the sum of all weights.
    pub(super) weight: u32,
    /// Whether it answers requests.
    pub(super) state: State,
    /// Why it doesn't.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
    /// The components that its handler is linked with, by their digests.
    #[serde(default, skip_serializing_if = "Links::is_none")]
    pub(super) links: Links,
}

/// All deployments.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ListView {
    /// HOST:PORT where they are called.
    pub(super) public: String,
    /// The deployments by name.
    pub(super) deployments: Vec<DeploymentView>,
}

/// A deployment with its revisions.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DetailView {
    /// HOST:PORT where it is called.
    pub(super) public: String,
    /// The deployment.
    pub(super) deployment: DeploymentView,
    /// Its revisions, the oldest first.
    pub(super) revisions: Vec<Revision>,
}

/// A new revision.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DeployedView {
    /// The deployment as it is now.
    pub(super) deployment: DeploymentView,
    /// The new revision.
    pub(super) revision: Revision,
}

/// A deployment that is gone.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RemovedView {
    /// Its name.
    pub(super) removed: Name,
}

/// A component that the server has.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ComponentView {
    /// Its digest.
    pub(super) digest: Digest,
    /// Its size.
    pub(super) bytes: u64,
}

/// A line that a plugin wrote; one JSON object on a line of its own.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct LineView<'a> {
    /// Counts the lines of the deployment, from 1. A gap says that lines came too fast to be kept.
    pub(super) number: u64,
    /// When it was written, in milliseconds since 1970.
    pub(super) time_ms: u64,
    /// The revision whose plugin wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<u64>,
    /// The id of the request.
    pub(super) call: &'a str,
    /// 'stdout' or 'stderr'.
    pub(super) stream: &'a str,
    /// The line.
    pub(super) text: &'a str,
}

/// How to share out requests.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficWanted {
    /// Who gets how much. Those that are not named get nothing.
    pub(super) traffic: Vec<Share>,
}

/// Where to roll back to.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackWanted {
    /// The revision that gets all requests; left out, requests are shared out as they were before the
    /// last change of that.
    #[serde(default)]
    pub(super) revision: Option<u64>,
}

/// Whether to refuse requests.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct PauseWanted {
    /// True refuses them, false serves them again.
    pub(super) paused: bool,
}

/// A problem document, RFC 9457.
#[cfg(test)]
#[derive(schemars::JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProblemView {
    /// Always 'about:blank'.
    r#type: String,
    /// The status in words.
    title: String,
    /// The status.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
    /// A name for programs that never changes.
    code: String,
    /// What happened, what was expected, and what to do.
    detail: String,
}

impl DeploymentView {
    /// How a deployment of the store is now.
    pub(super) fn of(name: &Name, kept: &Kept, deployments: &Deployments) -> Self {
        let served = deployments.get(name.as_str());
        let parts = served.as_ref().map_or(&[][..], |served| &served.parts);
        let traffic = kept.record.traffic.iter().map(|share| {
            let part = parts
                .iter()
                .find(|part| part.share.revision == share.revision);
            let links = match kept.revisions.get(&share.revision) {
                Some(revision) => revision.manifest.links.clone(),
                None => Links::default(),
            };
            PartView::of(*share, part, links)
        });
        let traffic = Vec::from_iter(traffic);
        let routes = served.as_ref().map_or(&[][..], |served| &served.routes);
        DeploymentView {
            name: name.to_string(),
            kept: true,
            state: state(kept.record.paused, &traffic),
            routes: routes.iter().map(|route| route.to_string()).collect(),
            latest: kept.record.latest,
            traffic,
        }
    }

    /// One that is not in the store.
    pub(super) fn of_fixed(served: &Served) -> Self {
        DeploymentView {
            name: served.name.clone(),
            kept: false,
            state: State::Serving,
            routes: served
                .routes
                .iter()
                .map(|route| route.to_string())
                .collect(),
            latest: 0,
            traffic: Vec::new(),
        }
    }
}

impl PartView {
    fn of(share: Share, part: Option<&Part>, links: Links) -> Self {
        let problem = match part {
            Some(part) => part.plugin.as_ref().err().map(ToString::to_string),
            None => Some("it is not loaded; deploy it again, or restart the server".to_owned()),
        };
        PartView {
            revision: share.revision,
            weight: share.weight,
            state: match problem {
                None => State::Serving,
                Some(_) => State::Failed,
            },
            problem,
            links,
        }
    }
}

/// One revision that answers is enough to serve.
fn state(paused: bool, traffic: &[PartView]) -> State {
    let serves = traffic.iter().any(|part| part.state == State::Serving);
    match (paused, serves) {
        (true, _) => State::Paused,
        (false, true) => State::Serving,
        (false, false) => State::Failed,
    }
}
