//! The deployments that serve, by route.
//!
//! Requests read an immutable table; a change replaces the table as a whole. A request therefore sees
//! either all of a change or nothing of it.

use super::capacity::Capacity;
use super::change_error::ChangeError;
use super::context::DeploymentContext;
use super::directory::Directory;
use super::name::DeploymentName;
use super::refused_compilations::RefusedCompilations;
use super::revision::TrafficShare;
use super::store::{Store, StoreError};
use crate::prometheus::MetricFamilies;
use crate::request_log::RoutedDeployment;
use crate::request_policy::{Access, RequestPolicy};
use crate::routes::{Route, RouteTable, RouteTaken};
use crate::triggers::{QueueError, TriggerSettings, Triggers};
use corral_engine::MetricKind;
use corral_runtime::{DeploymentState, Limits, Plugin, Quota, QuotaLimits, Runtime};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Changes in progress, including those that wait to be compiled.
const MAX_CHANGES: usize = 16;
/// Concurrent compilations.
const MAX_COMPILATIONS: usize = 2;
/// Time limit for an initialization and a compilation, above those of the child processes.
pub(super) const COMPILE_TIMEOUT: Duration = corral_runtime::MAX_COMPILE_TIME
    .saturating_add(corral_runtime::MAX_INITIALIZE_TIME)
    .saturating_add(Duration::from_secs(10));
/// How long a change waits for a compile permit: as long as a compilation may take, so that slow ones before it do not
/// fail it. At most [`MAX_CHANGES`] changes wait.
pub(super) const COMPILE_QUEUE_TIMEOUT: Duration = COMPILE_TIMEOUT;
/// Components of this size or more compile one at a time, so that slow compilations leave a permit to quick ones. One of
/// 4 MiB takes seconds.
pub(super) const LARGE_COMPONENT_BYTES: u64 = 4 << 20;

/// The deployments of the process. Cheap to clone.
#[derive(Clone)]
pub struct Deployments(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) runtime: Runtime,
    pub(super) store: Option<Store>,
    /// Defaults for what a manifest omits.
    pub(super) limits: Limits,
    pub(super) access: Access,
    pub(super) capacity: Capacity,
    table: RwLock<Arc<DeploymentTable>>,
    /// Contexts by name, including deployments whose first revision is being compiled.
    pub(super) contexts: Mutex<BTreeMap<String, Arc<DeploymentContext>>>,
    /// Held while the store and the table change.
    pub(super) change_lock: tokio::sync::Mutex<()>,
    pub(super) compile_permits: Arc<Semaphore>,
    /// The permit for a large component, which needs one of `compile_permits`, too.
    pub(super) large_compile_permit: Arc<Semaphore>,
    pub(super) compile_timeout: Duration,
    pub(super) refused_compilations: Mutex<RefusedCompilations>,
    /// Permits for changes in progress.
    pub(super) change_permits: Arc<Semaphore>,
    /// Jobs and schedules, once they are open.
    pub(super) triggers: OnceLock<Arc<Triggers>>,
}

/// All deployments, by route and by name.
#[derive(Default)]
pub(super) struct DeploymentTable {
    routes: RouteTable<Arc<ServingDeployment>>,
    pub(super) by_name: BTreeMap<String, Arc<ServingDeployment>>,
}

/// A deployment with its loaded revisions.
pub(crate) struct ServingDeployment {
    pub(crate) name: String,
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

impl Deployments {
    /// Creates an empty table. Deployments of `store` serve once they are
    /// [restored](Deployments::restore). `limits` and `access` are the defaults for manifests; without
    /// API keys `access` is [`Access::Open`].
    pub fn new(runtime: Runtime, store: Option<Store>, limits: Limits, access: Access) -> Self {
        let capacity = Capacity {
            calls: runtime.max_calls(),
            memory: corral_engine::machine_memory(),
        };
        Deployments(Arc::new(Inner {
            runtime,
            capacity,
            store,
            limits,
            access,
            table: RwLock::default(),
            contexts: Mutex::default(),
            change_lock: tokio::sync::Mutex::new(()),
            compile_permits: Arc::new(Semaphore::new(MAX_COMPILATIONS)),
            large_compile_permit: Arc::new(Semaphore::new(1)),
            compile_timeout: COMPILE_TIMEOUT,
            refused_compilations: Mutex::default(),
            change_permits: Arc::new(Semaphore::new(MAX_CHANGES)),
            triggers: OnceLock::new(),
        }))
    }

    /// Lets plugins call deployments.
    pub(crate) fn open_to_plugins(&self) {
        let directory = Directory(Arc::downgrade(&self.0));
        self.0.runtime.set_directory(Arc::new(directory));
    }

    /// Opens the jobs and the records of schedules in the store, if there is one.
    ///
    /// # Errors
    /// If their file cannot be read.
    pub fn open_triggers(&self) -> Result<(), StoreError> {
        let Some(store) = self.store() else {
            return Ok(());
        };
        let directory = store.directory();
        let names = store.list().into_keys().map(String::from).collect();
        let failed = |error: QueueError| StoreError::Database {
            path: directory.to_owned(),
            cause: error.to_string(),
        };
        let triggers = Triggers::open(directory, &names).map_err(failed)?;
        // Only the first call has an effect.
        let _ = self.0.triggers.set(Arc::new(triggers));
        Ok(())
    }

    /// Jobs and schedules, if they are open.
    pub(crate) fn triggers(&self) -> Option<&Arc<Triggers>> {
        self.0.triggers.get()
    }

    /// Most calls at once that a deployment may have.
    pub(crate) fn max_calls(&self) -> usize {
        self.0.capacity.calls
    }

    /// Adds a deployment of the command line, named by its route. It lasts as long as the process and wins
    /// over a stored deployment with the same route, which then does not serve.
    pub fn add_static(
        &self,
        route: Route,
        plugin: Plugin,
        policy: RequestPolicy,
    ) -> Result<(), RouteTaken> {
        let state = plugin.deployment().clone();
        self.insert_static(route, &state, Ok(plugin), policy)
    }

    /// The same for a developing server: the route answers 503 until `load` has loaded the plugin, and afterwards if it
    /// has failed. Must be called in a tokio runtime.
    pub fn add_static_while_loading<F>(
        &self,
        route: Route,
        policy: RequestPolicy,
        load: impl FnOnce(DeploymentState) -> F + Send + 'static,
    ) -> Result<(), RouteTaken>
    where
        F: Future<Output = Result<Plugin, String>> + Send,
    {
        let state = self.0.runtime.new_deployment();
        let compiling = Err(LoadError::compiling());
        self.insert_static(route.clone(), &state, compiling, policy)?;
        let deployments = self.clone();
        tokio::spawn(async move {
            let _permit = deployments.0.compile_permits.acquire().await;
            let loaded = load(state).await;
            match &loaded {
                Ok(_) => tracing::info!("{route} serves"),
                Err(error) => tracing::error!("{route} cannot serve: {error}"),
            }
            let loaded = loaded.map_err(LoadError::of_static);
            let change = |revision: &mut ServingRevision| revision.plugin = loaded.clone();
            deployments.change_static(&route, change).await;
        });
        Ok(())
    }

    fn insert_static(
        &self,
        route: Route,
        state: &DeploymentState,
        plugin: Result<Plugin, LoadError>,
        policy: RequestPolicy,
    ) -> Result<(), RouteTaken> {
        let name = route.as_str().to_owned();
        let context = DeploymentContext::with_quota(state.clone(), policy.quota.clone());
        let context = Arc::new(context);
        self.0.contexts().insert(name.clone(), Arc::clone(&context));
        let deployment = ServingDeployment {
            name,
            context,
            routes: vec![route],
            paused: false,
            stored: false,
            revisions: vec![ServingRevision {
                share: TrafficShare::all(0),
                policy,
                triggers: Arc::default(),
                plugin,
            }],
            requests: AtomicU64::new(0),
        };
        self.0.update_table(|by_name| {
            by_name.insert(deployment.name.clone(), Arc::new(deployment));
        })
    }

    /// Replaces the policy of a deployment of the command line, if there is one at this route. Its quota keeps its
    /// usage.
    pub async fn set_static_policy(&self, route: &Route, mut policy: RequestPolicy) {
        let Some(old) = self.get(route.as_str()).filter(|old| !old.stored) else {
            return;
        };
        let limits = policy
            .quota
            .map_or_else(QuotaLimits::default, |quota| quota.limits());
        policy.quota = old.context.quotas(&old.name, &[limits]).pop().flatten();
        let change = |revision: &mut ServingRevision| revision.policy = policy.clone();
        self.change_static(route, change).await;
    }

    /// Changes the one revision of a deployment of the command line, if there is one at this route.
    async fn change_static(&self, route: &Route, change: impl Fn(&mut ServingRevision)) {
        let _lock = self.0.change_lock.lock().await;
        let serving = self.get(route.as_str());
        let Some(old) = serving.filter(|deployment| !deployment.stored) else {
            return;
        };
        let mut revisions = old.revisions.clone();
        revisions.iter_mut().for_each(change);
        let new = ServingDeployment {
            stored: false,
            ..old.with(old.paused, revisions)
        };
        // Fails only if routes change.
        let _ = self.0.update_table(|by_name| {
            by_name.insert(new.name.clone(), Arc::new(new));
        });
    }

    /// The store, if the server has one.
    pub fn store(&self) -> Option<&Store> {
        self.0.store.as_ref()
    }

    /// The deployment that owns the route of `path`.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<ServingDeployment>> {
        self.0.table().routes.find(path).cloned()
    }

    /// The deployment of this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<ServingDeployment>> {
        self.0.table().by_name.get(name).cloned()
    }

    /// All deployments, by name.
    pub(crate) fn all(&self) -> Vec<Arc<ServingDeployment>> {
        self.0.table().by_name.values().cloned().collect()
    }

    /// The quotas; of those that share usage, one.
    pub(crate) fn quotas(&self) -> Vec<Arc<Quota>> {
        let mut quotas: Vec<Arc<Quota>> = Vec::new();
        for deployment in self.all() {
            for quota in deployment
                .revisions
                .iter()
                .filter_map(|revision| revision.policy.quota.as_ref())
            {
                if !quotas.iter().any(|seen| seen.shares_usage_with(quota)) {
                    quotas.push(Arc::clone(quota));
                }
            }
        }
        quotas
    }

    /// Writes the metrics of all deployments.
    pub(crate) fn write_metrics(&self, families: &mut MetricFamilies) {
        let all = self.all();
        families.sample(
            "corral_deployments",
            "Deployments, including those that cannot serve.",
            MetricKind::Gauge,
            &[],
            all.len() as f64,
        );
        for deployment in all {
            deployment.context.write_metrics(&deployment.name, families);
        }
        if let Some(triggers) = self.triggers() {
            triggers.write_metrics(families);
        }
    }
}

impl Inner {
    pub(super) fn table(&self) -> Arc<DeploymentTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn contexts(&self) -> MutexGuard<'_, BTreeMap<String, Arc<DeploymentContext>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context of this deployment, created if needed.
    pub(super) fn context(&self, name: &str) -> Arc<DeploymentContext> {
        let mut contexts = self.contexts();
        let context = contexts
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(DeploymentContext::new(self.runtime.new_deployment())));
        Arc::clone(context)
    }

    /// Whether `context` belongs to the current deployment of this name, not to a removed one.
    pub(super) fn is_current(
        &self,
        name: &DeploymentName,
        context: &Arc<DeploymentContext>,
    ) -> bool {
        let contexts = self.contexts();
        let current = contexts.get(name.as_str());
        current.is_some_and(|current| Arc::ptr_eq(current, context))
    }

    /// Removes the context of a removed deployment. A change in progress then finds its own context no
    /// longer [current](Inner::is_current).
    pub(super) fn remove_context(&self, name: &str) {
        self.contexts().remove(name);
    }

    /// Removes the context of a deployment that does not exist, unless another change uses it too, which
    /// removes it at its end.
    pub(super) fn remove_unused_context(&self, name: &str) {
        let mut contexts = self.contexts();
        let unused = contexts
            .get(name)
            .is_some_and(|context| Arc::strong_count(context) == 1);
        if unused && !self.table().by_name.contains_key(name) {
            contexts.remove(name);
        }
    }

    /// Replaces the table by a changed copy.
    ///
    /// # Errors
    /// If two deployments have the same route; the table stays as it was.
    pub(super) fn update_table(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Arc<ServingDeployment>>),
    ) -> Result<(), RouteTaken> {
        let mut by_name = self.table().by_name.clone();
        change(&mut by_name);
        let mut routes = RouteTable::default();
        for deployment in by_name.values() {
            for route in &deployment.routes {
                routes.add(route.clone(), Arc::clone(deployment))?;
            }
        }
        let new = Arc::new(DeploymentTable { routes, by_name });
        let old = std::mem::replace(
            &mut *self.table.write().unwrap_or_else(PoisonError::into_inner),
            new,
        );
        // Outside the lock: this may free a plugin.
        drop(old);
        if let Some(triggers) = self.triggers.get() {
            triggers.wake();
        }
        Ok(())
    }

    /// The first of `routes` that belongs to a deployment other than `name`, and its owner.
    pub(super) fn other_owner(&self, name: &str, routes: &[Route]) -> Option<(Route, String)> {
        let table = self.table();
        routes.iter().find_map(|route| {
            let owner = table.routes.get(route)?;
            (owner.name != name).then(|| (route.clone(), owner.name.clone()))
        })
    }
}

impl ServingDeployment {
    pub(super) fn new(
        name: String,
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
        ServingDeployment::new(self.name.clone(), context, routes, paused, revisions)
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
            name: self.name.clone(),
            route: self
                .route_of(path)
                .map(Route::to_string)
                .unwrap_or_default(),
            context: Arc::clone(&self.context),
        }
    }

    /// Its longest route that matches `path`.
    fn route_of(&self, path: &str) -> Option<&Route> {
        let matches = |route: &&Route| {
            let rest = path.strip_prefix(route.as_str().trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let matching = self.routes.iter().filter(matches);
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
