//! A deployment that serves, its loaded revisions, and which of them answers a request.

use super::change_error::ChangeError;
use super::deployment_context::DeploymentContext;
use super::revision::TrafficShare;
use crate::request_log::RoutedDeployment;
use crate::request_policy::RequestPolicy;
use crate::routes::Route;
use crate::triggers::TriggerSettings;
use corral_runtime::Plugin;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A deployment with its loaded revisions.
pub(crate) struct ServingDeployment {
    pub(crate) name: Arc<str>,
    pub(crate) context: Arc<DeploymentContext>,
    pub(crate) routes: Vec<Route>,
    pub(crate) paused: bool,
    /// Whether the store holds it; false for deployments of the command line.
    pub(crate) stored: bool,
    pub(crate) revisions: Vec<ServingRevision>,
    requests: AtomicU64,
}

/// A revision that receives requests.
#[derive(Clone)]
pub(crate) struct ServingRevision {
    pub(crate) share: TrafficShare,
    pub(crate) policy: RequestPolicy,
    pub(crate) triggers: Arc<TriggerSettings>,
    pub(crate) plugin: Result<Plugin, LoadError>,
}

/// Why a revision is not loaded.
#[derive(Clone, Debug)]
pub(crate) struct LoadError {
    message: String,
    /// The cause may be temporary, so loading is retried.
    pub(super) retryable: bool,
    /// The server is developing and compiles the revision for the first time.
    pub(crate) compiling: bool,
}

impl LoadError {
    pub(super) fn new(error: &ChangeError, retryable: bool) -> Self {
        LoadError {
            message: error.to_string(),
            retryable,
            compiling: false,
        }
    }

    /// A revision of a developing server that is not compiled yet.
    pub(super) fn compiling() -> Self {
        LoadError {
            message: "it is being compiled".to_owned(),
            retryable: true,
            compiling: true,
        }
    }

    /// A plugin of the command line that cannot be loaded.
    pub(super) fn of_static(message: String) -> Self {
        LoadError {
            message,
            retryable: false,
            compiling: false,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.retryable && !self.compiling {
            true => f.write_str("; loading is retried automatically"),
            false => Ok(()),
        }
    }
}

/// Why a deployment answers no requests.
pub(crate) enum Unavailable {
    /// An operator paused it.
    Paused,
    /// None of its revisions is loaded; one is being compiled.
    Compiling,
    /// None of its revisions could be loaded.
    LoadFailed,
}

impl ServingDeployment {
    pub(super) fn new(
        name: Arc<str>,
        context: Arc<DeploymentContext>,
        routes: Vec<Route>,
        paused: bool,
        revisions: Vec<ServingRevision>,
    ) -> Self {
        ServingDeployment {
            name,
            context,
            routes,
            paused,
            stored: true,
            revisions,
            requests: AtomicU64::new(0),
        }
    }

    /// A stored deployment with the same name and routes, paused or not, with these revisions.
    pub(super) fn with(&self, paused: bool, revisions: Vec<ServingRevision>) -> Self {
        let (context, routes) = (Arc::clone(&self.context), self.routes.clone());
        ServingDeployment::new(Arc::clone(&self.name), context, routes, paused, revisions)
    }

    /// Counts a request.
    pub(crate) fn count_request(&self) {
        self.context.deployment.count_request();
    }

    /// The policy of its first revision, which applies until a revision is picked.
    pub(crate) fn first_policy(&self) -> Option<&RequestPolicy> {
        self.revisions.first().map(|revision| &revision.policy)
    }

    /// The triggers of its first revision.
    pub(crate) fn triggers(&self) -> Option<Arc<TriggerSettings>> {
        let first = self.revisions.first();
        first.map(|revision| Arc::clone(&revision.triggers))
    }

    /// Whether a revision is loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.revisions
            .iter()
            .any(|revision| revision.plugin.is_ok())
    }

    /// Largest body of a request, once a revision is loaded.
    pub(crate) fn request_bytes(&self) -> Option<u64> {
        let mut loaded = self.revisions.iter();
        let plugin = loaded.find_map(|revision| revision.plugin.as_ref().ok())?;
        Some(plugin.limits().request_bytes as u64)
    }

    /// This deployment as the log of a request for `path` needs it.
    pub(crate) fn routed(&self, path: &str) -> RoutedDeployment {
        RoutedDeployment {
            name: Arc::clone(&self.name),
            route: self.route_of(path).cloned(),
            context: Arc::clone(&self.context),
        }
    }

    /// Its longest route that matches `path`.
    fn route_of(&self, path: &str) -> Option<&Route> {
        let matching = self.routes.iter().filter(|route| route.matches(path));
        matching.max_by_key(|route| route.as_str().len())
    }

    /// Picks the revision for the next request. Distributes requests among the loaded revisions by weight,
    /// evenly even over few requests.
    pub(crate) fn pick(&self) -> Result<(&Plugin, &RequestPolicy), Unavailable> {
        if self.paused {
            return Err(Unavailable::Paused);
        }
        let loaded = || {
            self.revisions
                .iter()
                .filter_map(|revision| Some((revision, revision.plugin.as_ref().ok()?)))
        };
        let mut all = loaded();
        if let (Some((revision, plugin)), None) = (all.next(), all.next()) {
            return Ok((plugin, &revision.policy));
        }
        let sum = loaded()
            .map(|(revision, _)| u64::from(revision.share.weight))
            .sum();
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut point = spread_point(request, sum);
        for (revision, plugin) in loaded() {
            let weight = u64::from(revision.share.weight);
            if point < weight {
                return Ok((plugin, &revision.policy));
            }
            point -= weight;
        }
        let mut errors = self.errors();
        match errors.any(|error| error.compiling) {
            true => Err(Unavailable::Compiling),
            false => Err(Unavailable::LoadFailed),
        }
    }

    fn errors(&self) -> impl Iterator<Item = &LoadError> {
        let revisions = self.revisions.iter();
        revisions.filter_map(|revision| revision.plugin.as_ref().err())
    }

    /// Why its revisions are not loaded.
    pub(crate) fn load_errors(&self) -> String {
        let errors: Vec<_> = self.errors().map(ToString::to_string).collect();
        errors.join("; ")
    }
}

/// A point below `sum` for the request of this number. Points of successive requests are spread evenly:
/// Weyl's sequence with the golden ratio.
fn spread_point(request: u64, sum: u64) -> u64 {
    let fraction = request.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (fraction * sum) >> 32
}

#[cfg(test)]
mod tests {
    use super::spread_point;

    #[test]
    fn requests_follow_weights_even_in_short_runs() {
        for (weight, sum, requests) in
            [(1, 2, 10), (9, 10, 100), (1, 100, 1000), (5000, 10_000, 20)]
        {
            let got = (0..requests)
                .filter(|request| spread_point(*request, sum) < weight)
                .count() as f64;
            let expected = (requests * weight) as f64 / sum as f64;
            assert!(
                (got - expected).abs() <= 2.0,
                "{weight} of {sum}: {got}, not {expected}"
            );
        }
        assert_eq!(spread_point(7, 0), 0);
    }
}
