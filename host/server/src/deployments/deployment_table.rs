//! The deployments that serve, by route.
//!
//! Requests read an immutable table; a change replaces the table as a whole. A request therefore sees
//! either all of a change or nothing of it.

use super::capacity::Capacity;
use super::cluster::Cluster;
use super::deployment_context::DeploymentContext;
use super::name::DeploymentName;
use super::refused_compilations::RefusedCompilations;
use super::revision::TrafficShare;
use super::serving_deployment::{LoadError, ServingDeployment, ServingRevision};
use super::store::{Store, StoreError};
use crate::prometheus::MetricFamilies;
use crate::request_policy::{Access, RequestPolicy};
use crate::routes::{Route, RouteTable, RouteTaken};
use crate::triggers::{QueueError, Triggers};
use corral_engine::MetricKind;
use corral_runtime::{DeploymentState, Limits, Plugin, Quota, QuotaLimits, Runtime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
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

/// The deployments of the process, unless they are gone.
pub(crate) struct WeakDeployments(Weak<Inner>);

impl WeakDeployments {
    /// The deployments. `None` once they are gone.
    pub(crate) fn upgrade(&self) -> Option<Deployments> {
        self.0.upgrade().map(Deployments)
    }
}

pub(super) struct Inner {
    pub(super) runtime: Runtime,
    /// In a cluster, the copy of what this host serves.
    pub(super) store: Option<Arc<Store>>,
    /// The cluster, once this host has joined one.
    pub(super) cluster: OnceLock<Arc<Cluster>>,
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
    pub(super) by_name: BTreeMap<Arc<str>, Arc<ServingDeployment>>,
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
            store: store.map(Arc::new),
            cluster: OnceLock::new(),
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

    /// A handle that does not keep them alive.
    pub(crate) fn downgrade(&self) -> WeakDeployments {
        WeakDeployments(Arc::downgrade(&self.0))
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
        let names = store.list().into_keys();
        let names = names.map(|name| name.to_string()).collect();
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
        let name = route.as_str();
        let context = DeploymentContext::with_quota(state.clone(), policy.quota.clone());
        let context = Arc::new(context);
        self.0.contexts().insert(name.into(), Arc::clone(&context));
        let revision = ServingRevision {
            share: TrafficShare::all(0),
            policy,
            triggers: Arc::default(),
            plugin,
        };
        let mut deployment =
            ServingDeployment::new(name.into(), context, vec![route], false, vec![revision]);
        deployment.stored = false;
        self.0.update_table(|by_name| {
            by_name.insert(Arc::clone(&deployment.name), Arc::new(deployment));
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
        let mut new = old.with(old.paused, revisions);
        new.stored = false;
        // Fails only if routes change.
        let _ = self.0.update_table(|by_name| {
            by_name.insert(Arc::clone(&new.name), Arc::new(new));
        });
    }

    /// The store, if the server has one.
    pub fn store(&self) -> Option<&Store> {
        self.0.store.as_deref()
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
        if let Some(cluster) = self.cluster() {
            cluster.write_metrics(families);
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
        change: impl FnOnce(&mut BTreeMap<Arc<str>, Arc<ServingDeployment>>),
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
            (*owner.name != *name).then(|| (route.clone(), owner.name.to_string()))
        })
    }
}
