//! Which request starts its next input.
//!
//! The highest priority goes first, then the tenant with the fewest served tokens, then that tenant's request with the
//! fewest. A small request can go ahead of a large one between two inputs, and a tenant with one request can go ahead of a
//! tenant with a hundred. A new tenant or request starts at the lowest count of the others, so being idle gives no
//! advantage.

use corral_scheduler::{Priority, Tenant};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Identifies a request in a [`FairQueue`]; later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FairQueueId(pub u64);

struct QueuedRequest {
    tenant: Tenant,
    priority: Priority,
    /// Tokens of its started inputs.
    served: u64,
}

#[derive(Default)]
struct TenantUsage {
    requests: usize,
    served: u64,
}

/// The open requests, and what each was served.
#[derive(Default)]
pub struct FairQueue {
    requests: HashMap<FairQueueId, QueuedRequest>,
    /// Tenants with open requests.
    tenants: HashMap<Tenant, TenantUsage>,
}

impl FairQueue {
    /// Adds a request.
    pub fn add(&mut self, id: FairQueueId, tenant: Tenant, priority: Priority) {
        let least = self.tenants.values().map(|usage| usage.served).min();
        let usage = self.tenants.entry(tenant).or_insert_with(|| TenantUsage {
            requests: 0,
            served: least.unwrap_or(0),
        });
        usage.requests += 1;
        let siblings = self.requests.values().filter(|r| r.tenant == tenant);
        let served = siblings.map(|request| request.served).min().unwrap_or(0);
        let request = QueuedRequest {
            tenant,
            priority,
            served,
        };
        let before = self.requests.insert(id, request);
        debug_assert!(before.is_none(), "{id:?} was added twice");
    }

    /// The next request among those that `eligible` accepts.
    pub fn next(&self, eligible: impl Fn(FairQueueId) -> bool) -> Option<FairQueueId> {
        let candidates = self.requests.iter().filter(|(id, _)| eligible(**id));
        let first = candidates.min_by_key(|(id, request)| {
            let tenant = self.tenants.get(&request.tenant);
            (
                Reverse(request.priority),
                tenant.map_or(0, |usage| usage.served),
                request.served,
                **id,
            )
        });
        first.map(|(id, _)| *id)
    }

    /// Counts tokens of a started input.
    pub fn charge(&mut self, id: FairQueueId, tokens: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.served += tokens;
            if let Some(usage) = self.tenants.get_mut(&request.tenant) {
                usage.served += tokens;
            }
        }
    }

    /// Removes a request.
    pub fn remove(&mut self, id: FairQueueId) {
        let Some(request) = self.requests.remove(&id) else {
            return;
        };
        if let Some(usage) = self.tenants.get_mut(&request.tenant) {
            usage.requests -= 1;
            if usage.requests == 0 {
                self.tenants.remove(&request.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts the next `count` inputs, given as their tokens, and returns their requests.
    fn order(
        queue: &mut FairQueue,
        inputs: &mut HashMap<FairQueueId, Vec<u64>>,
        count: usize,
    ) -> Vec<u64> {
        let mut order = Vec::new();
        for _ in 0..count {
            let eligible = |id: FairQueueId| inputs.get(&id).is_some_and(|left| !left.is_empty());
            let Some(id) = queue.next(eligible) else {
                break;
            };
            let tokens = inputs.get_mut(&id).and_then(Vec::pop);
            queue.charge(id, tokens.expect("it has inputs"));
            order.push(id.0);
        }
        order
    }

    #[test]
    fn tenants_share_tokens_evenly() {
        let mut queue = FairQueue::default();
        let mut inputs = HashMap::new();
        for many in 0..50 {
            queue.add(FairQueueId(many), Tenant(1), Priority(0));
            inputs.insert(FairQueueId(many), vec![8]);
        }
        queue.add(FairQueueId(50), Tenant(2), Priority(0));
        inputs.insert(FairQueueId(50), vec![4; 20]);
        let order = order(&mut queue, &mut inputs, 30);
        let single = order.iter().filter(|&&id| id == 50).count();
        // Two inputs of 4 tokens for each of 8 tokens.
        assert_eq!(single, 20);
    }

    #[test]
    fn higher_priority_goes_first() {
        let mut queue = FairQueue::default();
        queue.add(FairQueueId(0), Tenant(0), Priority(1));
        queue.add(FairQueueId(1), Tenant(1), Priority(2));
        queue.charge(FairQueueId(1), 1_000_000);
        assert_eq!(queue.next(|_| true), Some(FairQueueId(1)));
        assert_eq!(queue.next(|id| id != FairQueueId(1)), Some(FairQueueId(0)));
        queue.remove(FairQueueId(1));
        queue.remove(FairQueueId(1));
        assert_eq!(queue.next(|_| true), Some(FairQueueId(0)));
        queue.remove(FairQueueId(0));
        assert_eq!(queue.next(|_| true), None);
        assert!(queue.tenants.is_empty());
    }

    #[test]
    fn absence_earns_no_credit() {
        let mut queue = FairQueue::default();
        queue.add(FairQueueId(0), Tenant(0), Priority(0));
        queue.charge(FairQueueId(0), 500);
        queue.add(FairQueueId(1), Tenant(1), Priority(0));
        queue.charge(FairQueueId(1), 1);
        // The new tenant does not get 500 tokens in a row.
        assert_eq!(queue.next(|_| true), Some(FairQueueId(0)));
    }
}
