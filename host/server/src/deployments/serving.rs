//! What serves now: from a path to the plugin that answers it.
//!
//! Readers take the table as it is and hold it for a moment; a change puts another one in its place. So
//! a request finds either all of a change or nothing of it.

use super::capacity::Capacity;
use super::change::ChangeError;
use super::load::COMPILE_TIME;
use super::name::Name;
use super::revision::Share;
use super::slow::Slow;
use super::store::Store;
use super::tally::Standing;
use crate::metrics_text::Families;
use crate::problem::ErrorFormat;
use crate::routes::{Prefix, RouteTaken, Routes};
use crate::terms::{Access, Terms};
use corral_engine::Kind;
use corral_runtime::{Limits, Plugin, Quota, Runtime};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Components that are compiled at once.
const COMPILING: usize = 2;

/// The deployments of the process. Cheap to clone.
#[derive(Clone)]
pub struct Deployments(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) runtime: Runtime,
    pub(super) store: Option<Store>,
    /// What holds where a manifest says nothing.
    pub(super) limits: Limits,
    pub(super) access: Access,
    pub(super) capacity: Capacity,
    table: RwLock<Arc<Table>>,
    /// Deployments by name, also while their first revision is being compiled.
    pub(super) standings: Mutex<BTreeMap<String, Arc<Standing>>>,
    /// Held while the store and the table are changed.
    pub(super) changing: tokio::sync::Mutex<()>,
    pub(super) compiling: Arc<Semaphore>,
    pub(super) compile_time: Duration,
    pub(super) slow: Mutex<Slow>,
    /// Changes under way, those that wait included.
    pub(super) changes: Arc<Semaphore>,
}

/// All that serves.
#[derive(Default)]
pub(super) struct Table {
    routes: Routes<Arc<Served>>,
    pub(super) by_name: BTreeMap<String, Arc<Served>>,
}

/// A deployment that serves, or would if it could.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) standing: Arc<Standing>,
    pub(crate) routes: Vec<Prefix>,
    pub(crate) paused: bool,
    /// Whether it is in the store, and not one that lasts as long as the process.
    pub(crate) kept: bool,
    pub(crate) parts: Vec<Part>,
    turn: AtomicU64,
}

/// A revision that gets requests.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) share: Share,
    pub(crate) terms: Terms,
    /// Its plugin, or why there is none.
    pub(crate) plugin: Result<Plugin, Unloaded>,
}

/// Why a revision could not be loaded.
#[derive(Clone, Debug)]
pub(crate) struct Unloaded {
    problem: String,
    /// The reason may pass, so it is tried again.
    pub(super) passing: bool,
}

impl Unloaded {
    pub(super) fn new(problem: &ChangeError, passing: bool) -> Self {
        Unloaded {
            problem: problem.to_string(),
            passing,
        }
    }
}

impl fmt::Display for Unloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        match self.passing {
            true => f.write_str("; it is tried again by itself"),
            false => Ok(()),
        }
    }
}

/// Why a deployment does not answer itself.
pub(crate) enum NotServing {
    /// An operator said so.
    Paused,
    /// None of its revisions could be loaded; the text is for the operator.
    Failed,
}

impl Deployments {
    /// No deployments yet. Those in `store` serve once they are [restored](Deployments::restore);
    /// `limits` and `access` hold where a manifest says nothing.
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
            standings: Mutex::default(),
            changing: tokio::sync::Mutex::new(()),
            compiling: Arc::new(Semaphore::new(COMPILING)),
            compile_time: COMPILE_TIME,
            slow: Mutex::default(),
            changes: Arc::new(Semaphore::new(super::change::WAITING)),
        }))
    }

    /// Adds a deployment that lasts as long as the process and is known by its route. Such ones go
    /// first: a deployment of the store that wants the same route does not serve.
    pub fn add_fixed(&self, route: Prefix, plugin: Plugin, terms: Terms) -> Result<(), RouteTaken> {
        let name = route.as_str().to_owned();
        let account = plugin.deployment().clone();
        let standing = Arc::new(Standing::fixed(account, terms.quota.clone()));
        self.0.keep(&name, &standing);
        let served = Served {
            name,
            standing,
            routes: vec![route],
            paused: false,
            kept: false,
            parts: vec![Part {
                share: Share {
                    revision: 0,
                    weight: 1,
                },
                terms,
                plugin: Ok(plugin),
            }],
            turn: AtomicU64::new(0),
        };
        self.0.replace(|by_name| {
            by_name.insert(served.name.clone(), Arc::new(served));
        })
    }

    /// Where it keeps them, if anywhere.
    pub fn store(&self) -> Option<&Store> {
        self.0.store.as_ref()
    }

    /// Whose the path is.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<Served>> {
        self.0.table().routes.find(path).cloned()
    }

    /// The deployment of this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Served>> {
        self.0.table().by_name.get(name).cloned()
    }

    /// All that serve, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Served>> {
        self.0.table().by_name.values().cloned().collect()
    }

    /// The quotas, one of those that share their books.
    pub(crate) fn quotas(&self) -> Vec<Arc<Quota>> {
        let mut quotas: Vec<Arc<Quota>> = Vec::new();
        for served in self.all() {
            for quota in served
                .parts
                .iter()
                .filter_map(|part| part.terms.quota.as_ref())
            {
                if !quotas.iter().any(|seen| seen.shares_usage_with(quota)) {
                    quotas.push(Arc::clone(quota));
                }
            }
        }
        quotas
    }

    /// Writes what is counted.
    pub(crate) fn write(&self, families: &mut Families) {
        let all = self.all();
        families.sample(
            "corral_deployments",
            "Deployments, those that can't serve included.",
            Kind::Gauge,
            &[],
            all.len() as f64,
        );
        for served in all {
            served.standing.write(&served.name, families);
        }
    }
}

impl Inner {
    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What lasts of the deployment of this name.
    pub(super) fn standing(&self, name: &str) -> Arc<Standing> {
        let mut standings = self
            .standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let standing = standings
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Standing::new(self.runtime.new_deployment())));
        Arc::clone(standing)
    }

    /// Has `standing` last under this name.
    fn keep(&self, name: &str, standing: &Arc<Standing>) {
        let mut standings = self
            .standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        standings.insert(name.to_owned(), Arc::clone(standing));
    }

    /// Whether this is what lasts of the deployment of this name, and not of one that was removed.
    pub(super) fn stands(&self, name: &Name, standing: &Arc<Standing>) -> bool {
        let standings = self
            .standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = standings.get(name.as_str());
        now.is_some_and(|now| Arc::ptr_eq(now, standing))
    }

    /// Forgets what lasts of the deployment of this name: it was removed. A change that has it already
    /// finds that it [stands](Inner::stands) no more.
    pub(super) fn dismiss(&self, name: &str) {
        let mut standings = self
            .standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        standings.remove(name);
    }

    /// Forgets the standing of a deployment that there is not, unless another change has it too, which
    /// does this when it ends.
    pub(super) fn forget(&self, name: &str) {
        let mut standings = self
            .standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let alone = standings
            .get(name)
            .is_some_and(|standing| Arc::strong_count(standing) == 1);
        if alone && !self.table().by_name.contains_key(name) {
            standings.remove(name);
        }
    }

    /// Puts a table with other deployments in the place of the present one, unless two of them want
    /// one route.
    pub(super) fn replace(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Arc<Served>>),
    ) -> Result<(), RouteTaken> {
        let mut by_name = self.table().by_name.clone();
        change(&mut by_name);
        let mut routes = Routes::default();
        for served in by_name.values() {
            for route in &served.routes {
                routes.add(route.clone(), Arc::clone(served))?;
            }
        }
        let new = Arc::new(Table { routes, by_name });
        let old = std::mem::replace(
            &mut *self.table.write().unwrap_or_else(PoisonError::into_inner),
            new,
        );
        // Out of the lock, since the last of a plugin may go with it.
        drop(old);
        Ok(())
    }

    /// Who has one of these routes already, other than `name`.
    pub(super) fn holder(&self, name: &str, routes: &[Prefix]) -> Option<(Prefix, String)> {
        let table = self.table();
        routes.iter().find_map(|route| {
            let holder = table.routes.get(route)?;
            (holder.name != name).then(|| (route.clone(), holder.name.clone()))
        })
    }
}

impl Served {
    pub(super) fn new(
        name: String,
        standing: Arc<Standing>,
        routes: Vec<Prefix>,
        paused: bool,
        parts: Vec<Part>,
    ) -> Self {
        Served {
            name,
            standing,
            routes,
            paused,
            kept: true,
            parts,
            turn: AtomicU64::new(0),
        }
    }

    /// How the host answers in its place before a revision is picked.
    pub(crate) fn error_format(&self) -> ErrorFormat {
        self.parts
            .first()
            .map_or_else(ErrorFormat::default, |part| part.terms.errors)
    }

    /// The plugin whose turn it is. Requests are dealt out among the parts that could be loaded, evenly
    /// also over a few requests.
    pub(crate) fn pick(&self) -> Result<(&Plugin, &Terms), NotServing> {
        if self.paused {
            return Err(NotServing::Paused);
        }
        let loaded = || {
            self.parts
                .iter()
                .filter_map(|part| Some((part, part.plugin.as_ref().ok()?)))
        };
        let mut all = loaded();
        if let (Some((part, plugin)), None) = (all.next(), all.next()) {
            return Ok((plugin, &part.terms));
        }
        let sum = loaded().map(|(part, _)| u64::from(part.share.weight)).sum();
        let mut point = deal(self.turn.fetch_add(1, Ordering::Relaxed), sum);
        for (part, plugin) in loaded() {
            let weight = u64::from(part.share.weight);
            if point < weight {
                return Ok((plugin, &part.terms));
            }
            point -= weight;
        }
        Err(NotServing::Failed)
    }
}

/// A point below `sum` for each turn; the points of successive turns lie evenly (Weyl's sequence with
/// the golden ratio).
fn deal(turn: u64, sum: u64) -> u64 {
    let fraction = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (fraction * sum) >> 32
}

#[cfg(test)]
mod tests {
    use super::deal;

    #[test]
    fn turns_are_dealt_by_weight_also_in_the_short_run() {
        for (weight, sum, turns) in [(1, 2, 10), (9, 10, 100), (1, 100, 1000), (5000, 10_000, 20)] {
            let got = (0..turns).filter(|turn| deal(*turn, sum) < weight).count() as f64;
            let due = (turns * weight) as f64 / sum as f64;
            assert!(
                (got - due).abs() <= 2.0,
                "{weight} of {sum}: {got}, not {due}"
            );
        }
        assert_eq!(deal(7, 0), 0);
    }
}
