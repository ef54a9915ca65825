//! The queue of waiting requests: priority first, then the tenant with the least service, then the earliest
//! deadline.
//!
//! Fairness between tenants uses *virtual token counters* (Sheng et al., "Fairness in Serving Large Language
//! Models", 2024). Each tenant has a counter of the service that it received; the tenant with the lowest counter goes
//! first. A tenant that becomes active starts at the lowest counter of the active tenants, so idle time earns no
//! credit. A tenant with a higher counter than that is *in debt*. It keeps its counter while it is idle, so idle time
//! clears no debt. Idle tenants in debt are stored apart from the active ones: they may be many.
//!
//! Within a tenant the earliest deadline goes first. A request without a deadline is ordered as if it expired
//! [`DEFAULT_DEADLINE`] after its arrival, so a stream of urgent requests can't delay it for longer.
//!
//! The next request is *blocked* while it waits for room. Changes of the counters do not move it. Two kinds of requests
//! overtake it: those of higher priority; and, if its tenant runs several requests, those of equal priority whose
//! tenant runs none and received no more service. A request that overtakes another may be blocked in turn; once it has
//! started, the other is next again.

#[cfg(test)]
mod tests;

use crate::Time;
use crate::request::{Priority, Request, RequestId, Tenant};
use crate::retry_after::RetryAfter;
use crate::step::EnqueueError;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// What a generated token adds to its tenant's counter; a prompt token adds 1. A decoding request has a step nearly
/// to itself, while prompts share theirs.
const GENERATED_WEIGHT: u64 = 2;
/// Sampling time that costs a tenant as much as a prompt token. Common samplers take less for a token.
const SAMPLING_PER_TOKEN: Duration = Duration::from_micros(500);
/// The deadline after its arrival that orders a request without one.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// The order of a request within its tenant; the first is served first.
type Order = (Reverse<Priority>, Time, RequestId);

/// A tenant's service and requests.
#[derive(Clone, Debug, Default)]
struct TenantShare {
    /// Service, in prompt tokens.
    counter: u64,
    /// Requests that run.
    running: usize,
    waiting: BTreeSet<Order>,
}

impl TenantShare {
    fn is_active(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }

    /// Whether this tenant runs several requests and got no less service than `other`, which runs none. A tenant that
    /// was idle begins with the counter of the others, so equal counters must suffice: a step may take long.
    fn yields_to(&self, other: &Self) -> bool {
        other.running == 0 && self.running > 1 && self.counter >= other.counter
    }
}

/// Waiting requests, and the service of each tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    max_requests: usize,
    max_tenant_requests: usize,
    /// Tenants with requests. Ordered, so that equal counters always resolve in the same way.
    active: BTreeMap<Tenant, TenantShare>,
    /// The counters of idle tenants in debt.
    idle: HashMap<Tenant, u64>,
    /// The same by counter.
    idle_order: BTreeSet<(u64, Tenant)>,
    requests: BTreeMap<RequestId, Request>,
    /// Blocked requests. Each one overtook the earlier ones, or became next while they were not eligible.
    blocked: Vec<RequestId>,
    retry_after: RetryAfter,
}

/// The deadline that orders a request.
fn effective_deadline(request: &Request) -> Time {
    request
        .deadline
        .unwrap_or(request.arrived_at + DEFAULT_DEADLINE)
}

fn order(request: &Request) -> Order {
    let priority = Reverse(request.priority);
    (priority, effective_deadline(request), request.id)
}

impl Queue {
    /// An empty queue of this size.
    pub fn new(max_requests: usize, max_tenant_requests: usize) -> Self {
        Self {
            max_requests,
            max_tenant_requests,
            ..Self::default()
        }
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// When the queue is expected to be half as long.
    pub fn retry_after(&self, now: Time) -> Duration {
        self.retry_after.estimate(now, self.len())
    }

    /// A tenant's service; the lower, the sooner it is served.
    pub fn counter(&self, tenant: Tenant) -> u64 {
        let active = self.active.get(&tenant).map(|share| share.counter);
        let idle = || self.idle.get(&tenant).copied();
        active.or_else(idle).unwrap_or(0)
    }

    /// The tenant that loses a running request to a waiting one of `tenant`, which runs none: the one with the most
    /// service of the `candidates` that run several and got no less service.
    pub fn tenant_to_preempt(
        &self,
        tenant: Tenant,
        candidates: impl Iterator<Item = Tenant>,
    ) -> Option<Tenant> {
        let waiting = self.active.get(&tenant);
        // Usually it runs some, and no candidate has to be looked at.
        let waiting = waiting.filter(|share| share.running == 0)?;
        let share = |tenant: Tenant| Some((tenant, self.active.get(&tenant)?));
        let yielding = candidates.filter_map(share);
        let yielding = yielding.filter(|(_, other)| other.yields_to(waiting));
        let most = yielding.max_by_key(|(tenant, other)| (other.counter, *tenant));
        most.map(|(tenant, _)| tenant)
    }

    /// Whether there is room for one more request of a tenant.
    pub fn check_room(&self, now: Time, tenant: Tenant) -> Result<(), EnqueueError> {
        let retry_after = self.retry_after(now);
        if self.len() >= self.max_requests {
            return Err(EnqueueError::QueueFull { retry_after });
        }
        let waiting = self.active.get(&tenant).map_or(0, |s| s.waiting.len());
        if waiting >= self.max_tenant_requests {
            return Err(EnqueueError::TenantQueueFull { retry_after });
        }
        Ok(())
    }

    /// Adds a request, however full the queue is: a preempted one always gets back in.
    pub fn push(&mut self, request: Request) {
        let tenant = request.tenant;
        let counter = match self.active.contains_key(&tenant) {
            true => 0,
            false => self.starting_counter(tenant),
        };
        let share = self.active.entry(tenant).or_insert_with(|| TenantShare {
            counter,
            ..TenantShare::default()
        });
        share.waiting.insert(order(&request));
        self.requests.insert(request.id, request);
    }

    /// The next request of those that are `eligible`: the last one that was blocked, or the first of those that overtake
    /// it.
    pub fn next(&self, eligible: impl Fn(&Request) -> bool) -> Option<&Request> {
        let mut blocked = self.blocked.iter().rev().filter_map(|id| self.get(*id));
        let Some(blocked) = blocked.find(|request| eligible(request)) else {
            return self.first(&eligible, |_| true);
        };
        let share = |request: &Request| self.active.get(&request.tenant);
        let overtakes = |request: &Request| {
            blocked.priority < request.priority
                || (blocked.priority == request.priority
                    && share(blocked)
                        .zip(share(request))
                        .is_some_and(|(one, other)| one.yields_to(other)))
        };
        Some(self.first(&eligible, overtakes).unwrap_or(blocked))
    }

    /// The first in the order of service of all tenants' next requests, if they are `selected`. A request that is not
    /// eligible holds back the later ones of its tenant and quota group, and no others.
    fn first(
        &self,
        eligible: impl Fn(&Request) -> bool,
        selected: impl Fn(&Request) -> bool,
    ) -> Option<&Request> {
        let heads = self.active.values().filter_map(|share| {
            let mut held_back = BTreeSet::new();
            let mut is_free = |request: &&Request| {
                let group = request.quota.map(|quota| quota.group);
                let free =
                    group.is_none_or(|group| !held_back.contains(&group)) && eligible(request);
                held_back.extend(group.filter(|_| !free));
                free
            };
            let mut waiting = share
                .waiting
                .iter()
                .filter_map(|(.., id)| self.requests.get(id));
            let request = waiting.find(&mut is_free).filter(|one| selected(one))?;
            let (priority, deadline, id) = order(request);
            let order = (priority, share.counter, share.running, deadline, id);
            Some((order, request))
        });
        let first = heads.min_by_key(|(order, _)| *order);
        first.map(|(_, request)| request)
    }

    /// A waiting request.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(&id)
    }

    /// A waiting request, to add tokens to.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.requests.get_mut(&id)
    }

    /// Reserves the head of the queue for the next request until it starts: there is no room for it yet.
    pub fn block(&mut self, id: RequestId) {
        if !self.blocked.contains(&id) {
            self.blocked.push(id);
        }
    }

    /// Removes a request that starts to run, and charges its tenant for the tokens that are not `cached`.
    pub fn admit(&mut self, id: RequestId, now: Time, cached: u32) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        self.blocked.retain(|one| *one != id);
        self.retry_after.admitted(now);
        let share = self.active.entry(request.tenant).or_default();
        share.waiting.remove(&order(&request));
        share.running += 1;
        // Charged at once, not as it is computed: else a tenant could take all ids in one step. A preempted
        // request has been charged. A next-token request pays for its new tokens, and for its last token as for
        // a generated one.
        if request.progress.preempted == 0 {
            share.counter += if request.is_next_token() {
                u64::from(request.prompt_tokens().saturating_sub(cached)) + GENERATED_WEIGHT - 1
            } else {
                u64::from(request.prompt_tokens())
            };
        }
        Some(request)
    }

    /// Removes a request that is not to be served.
    pub fn remove(&mut self, id: RequestId) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        self.blocked.retain(|one| *one != id);
        if let Some(share) = self.active.get_mut(&request.tenant) {
            share.waiting.remove(&order(&request));
        }
        self.retire(request.tenant);
        Some(request)
    }

    /// Ends a round of admissions.
    pub fn admissions_done(&mut self) {
        if self.is_empty() {
            self.retry_after.queue_emptied();
        }
    }

    /// Charges a tenant for a generated token.
    pub fn charge_generated(&mut self, tenant: Tenant) {
        self.charge(tenant, GENERATED_WEIGHT);
    }

    /// Charges a tenant for the time that sampling its tokens took.
    pub fn charge_sampling(&mut self, tenant: Tenant, took: Duration) {
        let tokens = took.as_micros() / SAMPLING_PER_TOKEN.as_micros();
        self.charge(tenant, u64::try_from(tokens).unwrap_or(u64::MAX));
    }

    fn charge(&mut self, tenant: Tenant, tokens: u64) {
        if let Some(share) = self.active.get_mut(&tenant) {
            share.counter = share.counter.saturating_add(tokens);
        }
    }

    /// Number of tenants with requests.
    pub fn active_tenants(&self) -> usize {
        self.active.len()
    }

    /// The fewest and the most requests that a tenant runs, if several run some.
    pub fn running_range(&self) -> Option<(u32, u32)> {
        if self.active.len() < 2 {
            return None;
        }
        let (mut tenants, mut fewest, mut most) = (0, usize::MAX, 0);
        for share in self.active.values().filter(|share| share.running > 0) {
            tenants += 1;
            fewest = fewest.min(share.running);
            most = most.max(share.running);
        }
        let count = |requests| u32::try_from(requests).unwrap_or(u32::MAX);
        (tenants > 1).then(|| (count(fewest), count(most)))
    }

    /// Records that a request of a tenant stopped running.
    pub fn stopped_running(&mut self, tenant: Tenant) {
        if let Some(share) = self.active.get_mut(&tenant) {
            share.running = share.running.saturating_sub(1);
        }
        self.retire(tenant);
    }

    /// The lowest counter of active tenants; 0 if there are none.
    fn lowest(&self) -> u64 {
        let counters = self.active.values().map(|share| share.counter);
        counters.min().unwrap_or(0)
    }

    /// Takes the counter of a tenant that becomes active from the idle ones: at least the lowest of the active tenants.
    fn starting_counter(&mut self, tenant: Tenant) -> u64 {
        let before = self.idle.remove(&tenant);
        if let Some(before) = before {
            self.idle_order.remove(&(before, tenant));
        }
        before.unwrap_or(0).max(self.lowest())
    }

    /// Makes a tenant idle if it has no requests left, and forgets idle tenants that are no longer in debt: all of
    /// them if no tenant is active.
    fn retire(&mut self, tenant: Tenant) {
        let idle = self.active.get(&tenant).is_some_and(|s| !s.is_active());
        if idle && let Some(share) = self.active.remove(&tenant) {
            self.idle.insert(tenant, share.counter);
            self.idle_order.insert((share.counter, tenant));
        }
        let lowest = match self.active.is_empty() {
            true => u64::MAX,
            false => self.lowest(),
        };
        while let Some(&(counter, tenant)) = self.idle_order.first() {
            if counter > lowest {
                break;
            }
            self.idle_order.pop_first();
            self.idle.remove(&tenant);
        }
    }

    /// Tenants that are remembered.
    #[cfg(test)]
    fn tenants(&self) -> usize {
        self.active.len() + self.idle.len()
    }
}
