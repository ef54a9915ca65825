//! Who is served next: priority, then the tenant that got least, then the earliest deadline.
//!
//! Fairness between tenants is by *virtual token counters* (Sheng et al., "Fairness in Serving Large
//! Language Models", 2024): each tenant has a counter of the work done for it, and the one with the
//! lowest counter goes next. A tenant that comes back from doing nothing is lifted to the lowest
//! counter of the others, so idling earns no credit; and one that was ahead when it went idle stays
//! ahead until the others have caught up, so leaving pays no debt. Those that are idle and ahead stand
//! apart, in order of their counters: there may be many, and nobody looks at them but who comes back.
//!
//! Within a tenant the earliest deadline goes first. A request without one is taken to have
//! [`PATIENCE`], so that a stream of urgent ones passes it for so long and no longer.

use super::{Priority, Request, RequestId, Tenant, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// What a generated token adds to its tenant's counter; a prompt token adds 1. A generating
/// sequence has a step nearly to itself where prompts share theirs.
pub const GENERATED_WEIGHT: u64 = 2;
/// The deadline, from its arrival, by which a request without one is ordered.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Position among those that wait in one tenant: the first is served first.
type Place = (Reverse<Priority>, Time, RequestId);

#[derive(Clone, Debug, Default)]
struct Share {
    /// Work done, in prompt tokens.
    counter: u64,
    /// Sequences of the tenant that hold an id.
    running: usize,
    waiting: BTreeSet<Place>,
}

impl Share {
    fn is_active(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }
}

/// Requests that wait, and what each tenant has had.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Of those that have something to do. Ordered, so that equal counters are always resolved in the
    /// same way.
    shares: BTreeMap<Tenant, Share>,
    /// The counters of those that have nothing to do and were ahead, and the same in their order.
    resting: HashMap<Tenant, u64>,
    ahead: BTreeSet<(u64, Tenant)>,
    waiting: HashMap<RequestId, Request>,
}

/// By what a request is ordered within its tenant.
pub fn due(request: &Request) -> Time {
    request.deadline.unwrap_or(request.arrived_at + PATIENCE)
}

fn place(request: &Request) -> Place {
    (Reverse(request.priority), due(request), request.id)
}

impl Queue {
    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Requests of one tenant that wait.
    pub fn len_of(&self, tenant: Tenant) -> usize {
        self.shares.get(&tenant).map_or(0, |s| s.waiting.len())
    }

    /// What a tenant has had; the lower, the sooner it is served.
    pub fn counter(&self, tenant: Tenant) -> u64 {
        let active = self.shares.get(&tenant).map(|share| share.counter);
        let resting = || self.resting.get(&tenant).copied();
        active.or_else(resting).unwrap_or(0)
    }

    /// Puts a request in its place.
    pub fn push(&mut self, request: Request) {
        let tenant = request.tenant;
        let counter = match self.shares.contains_key(&tenant) {
            true => 0,
            false => self.wakes(tenant),
        };
        let share = self.shares.entry(tenant).or_insert_with(|| Share {
            counter,
            ..Share::default()
        });
        share.waiting.insert(place(&request));
        self.waiting.insert(request.id, request);
    }

    /// The request that is to be served next, of those that `may` be. Who may not holds up the others
    /// of its tenant that share cells with it, and nobody else.
    pub fn first(&self, may: impl Fn(&Request) -> bool) -> Option<&Request> {
        let heads = self.shares.values().filter_map(|share| {
            let mut held_up = BTreeSet::new();
            let mut next = |request: &&Request| {
                let group = request.quota.map(|share| share.group);
                let free = group.is_none_or(|group| !held_up.contains(&group)) && may(request);
                held_up.extend(group.filter(|_| !free));
                free
            };
            let mut waiting = share
                .waiting
                .iter()
                .filter_map(|(.., key)| self.waiting.get(key));
            let request = waiting.find(&mut next)?;
            let (priority, due, key) = place(request);
            Some(((priority, share.counter, share.running, due, key), request))
        });
        let first = heads.min_by_key(|(order, _)| *order);
        first.map(|(_, request)| request)
    }

    /// A request that waits.
    pub fn get(&self, key: RequestId) -> Option<&Request> {
        self.waiting.get(&key)
    }

    /// The same, to add to its tokens.
    pub fn get_mut(&mut self, key: RequestId) -> Option<&mut Request> {
        self.waiting.get_mut(&key)
    }

    /// Takes a request out because it got an id, and charges its tenant. So many of its tokens are
    /// there already.
    pub fn admit(&mut self, key: RequestId, there: u32) -> Option<Request> {
        let request = self.waiting.remove(&key)?;
        let share = self.shares.entry(request.tenant).or_default();
        share.waiting.remove(&place(&request));
        share.running += 1;
        // At once, and not as it is computed: else a tenant could take all ids in one step. But
        // one that had to give way is not charged twice. Who looks again and again pays for what is
        // new, and for the last token as for one that was generated.
        if request.progress.preempted == 0 {
            share.counter += if request.looks() {
                u64::from(request.prompt().saturating_sub(there)) + GENERATED_WEIGHT - 1
            } else {
                u64::from(request.prompt())
            };
        }
        Some(request)
    }

    /// Takes a request out because it is not to be served any more.
    pub fn remove(&mut self, key: RequestId) -> Option<Request> {
        let request = self.waiting.remove(&key)?;
        if let Some(share) = self.shares.get_mut(&request.tenant) {
            share.waiting.remove(&place(&request));
        }
        self.rest(request.tenant);
        Some(request)
    }

    /// A token was generated for `tenant`.
    pub fn generated(&mut self, tenant: Tenant) {
        if let Some(share) = self.shares.get_mut(&tenant) {
            share.counter += GENERATED_WEIGHT;
        }
    }

    /// A sequence of `tenant` gave its id back.
    pub fn ended(&mut self, tenant: Tenant) {
        if let Some(share) = self.shares.get_mut(&tenant) {
            share.running = share.running.saturating_sub(1);
        }
        self.rest(tenant);
    }

    /// The lowest counter of those that have something to do; 0 if nobody has.
    fn lowest(&self) -> u64 {
        let counters = self.shares.values().map(|share| share.counter);
        counters.min().unwrap_or(0)
    }

    /// The counter of one that had nothing to do until now: no lower than the others'.
    fn wakes(&mut self, tenant: Tenant) -> u64 {
        let before = self.resting.remove(&tenant);
        if let Some(before) = before {
            self.ahead.remove(&(before, tenant));
        }
        before.unwrap_or(0).max(self.lowest())
    }

    /// Something of a tenant is over. If that was all it rests; and those that rest are forgotten when
    /// they are owed nothing: without others all start anew.
    fn rest(&mut self, tenant: Tenant) {
        let idle = self.shares.get(&tenant).is_some_and(|s| !s.is_active());
        if idle && let Some(share) = self.shares.remove(&tenant) {
            self.resting.insert(tenant, share.counter);
            self.ahead.insert((share.counter, tenant));
        }
        let lowest = match self.shares.is_empty() {
            true => u64::MAX,
            false => self.lowest(),
        };
        while let Some(&(counter, tenant)) = self.ahead.first() {
            if counter > lowest {
                break;
            }
            self.ahead.pop_first();
            self.resting.remove(&tenant);
        }
    }

    /// Tenants that are remembered.
    #[cfg(test)]
    pub fn tenants(&self) -> usize {
        self.shares.len() + self.resting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: u64, tenant: u32, priority: u8, deadline: Option<u64>) -> Request {
        Request {
            id: RequestId(key),
            tenant: Tenant(tenant),
            priority: Priority(priority),
            scope: super::super::PrefixScope(0),
            tokens: vec![0; 10],
            max_tokens: 5,
            arrived_at: Duration::ZERO,
            queue_until: None,
            deadline: deadline.map(Duration::from_secs),
            quota: None,
            retention: Default::default(),
            continues: None,
            logits: super::super::LogitsKind::All,
            progress: Default::default(),
        }
    }

    fn drain(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| {
            let key = queue.first(|_| true)?.id;
            queue.admit(key, 0);
            Some(key.0)
        })
        .collect()
    }

    #[test]
    fn priority_goes_before_tenant_and_tenant_before_deadline() {
        let mut queue = Queue::default();
        queue.push(request(1, 1, 0, None));
        queue.push(request(2, 1, 0, Some(5)));
        queue.push(request(3, 1, 0, Some(900)));
        queue.push(request(4, 2, 0, Some(901)));
        queue.push(request(5, 2, 1, None));
        // 5 by priority; then tenant 1, which has had nothing, with its earliest deadline; then
        // both have had one each, and so on in turns.
        assert_eq!(drain(&mut queue), [5, 2, 1, 4, 3]);
    }

    #[test]
    fn tenants_take_turns_however_many_requests_one_has() {
        let mut queue = Queue::default();
        for key in 0..50 {
            queue.push(request(key, 1, 0, None));
        }
        queue.push(request(50, 2, 0, None));
        queue.push(request(51, 3, 0, None));
        let order = drain(&mut queue);
        let place = |key| order.iter().position(|&k| k == key).unwrap();
        assert!(place(50) <= 2 && place(51) <= 2, "{order:?}");
    }

    #[test]
    fn idling_earns_no_credit_and_leaving_pays_no_debt() {
        let mut queue = Queue::default();
        queue.push(request(0, 1, 0, None));
        drain(&mut queue);
        for _ in 0..100 {
            queue.generated(Tenant(1));
        }
        // A newcomer starts level with the others, not two hundred tokens behind, and being taken
        // up does not change that.
        queue.push(request(1, 2, 0, None));
        assert_eq!(queue.counter(Tenant(2)), 210);
        drain(&mut queue);
        assert_eq!(queue.counter(Tenant(2)), 220);
        // Tenant 1 runs ahead, leaves and comes back: it is still ahead.
        for _ in 0..10 {
            queue.generated(Tenant(1));
        }
        queue.ended(Tenant(1));
        queue.push(request(2, 1, 0, None));
        queue.push(request(3, 2, 0, None));
        assert_eq!(queue.counter(Tenant(1)), 230);
        assert_eq!(drain(&mut queue), [3, 2]);
        for tenant in [1, 2, 2] {
            queue.ended(Tenant(tenant));
        }
        assert_eq!(queue.tenants(), 0);
    }

    #[test]
    fn those_that_rest_are_remembered_until_the_others_have_caught_up() {
        let mut queue = Queue::default();
        for tenant in 1..=4 {
            queue.push(request(u64::from(tenant), tenant, 0, None));
        }
        drain(&mut queue);
        for (tenant, tokens) in [(2, 5), (3, 20), (4, 5)] {
            (0..tokens).for_each(|_| queue.generated(Tenant(tenant)));
            queue.ended(Tenant(tenant));
        }
        assert_eq!(queue.tenants(), 4);
        assert_eq!(queue.counter(Tenant(3)), 50);
        // The one that did not rest gets as far as two of them.
        (0..5).for_each(|_| queue.generated(Tenant(1)));
        queue.push(request(9, 1, 0, None));
        queue.remove(RequestId(9));
        assert_eq!(queue.tenants(), 2);
        assert_eq!(
            (queue.counter(Tenant(2)), queue.counter(Tenant(3))),
            (0, 50)
        );
        // Back again, and counted once.
        queue.push(request(10, 3, 0, None));
        assert_eq!((queue.tenants(), queue.counter(Tenant(3))), (2, 50));
        queue.ended(Tenant(1));
        assert_eq!(queue.tenants(), 1);
    }
}
