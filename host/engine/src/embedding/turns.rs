//! Whose input is taken up next.
//!
//! Priority first, strictly; then the tenant, and within a tenant the request, for whom fewest
//! tokens were taken up. So a request with a million tokens gives way to a small one after each of
//! its inputs, and a tenant with a hundred requests to one with a single request. Who is new begins
//! where the least served of the others stands: to have been away is worth nothing.

use corral_scheduler::{Priority, Tenant};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Names a request; later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u64);

struct Standing {
    tenant: Tenant,
    priority: Priority,
    /// Tokens that were taken up for it.
    served: u64,
}

#[derive(Default)]
struct Share {
    requests: usize,
    served: u64,
}

/// All requests that are not done, and what each got.
#[derive(Default)]
pub struct Turns {
    requests: HashMap<Key, Standing>,
    /// Only those that have a request.
    tenants: HashMap<Tenant, Share>,
}

impl Turns {
    /// Adds a request.
    pub fn enter(&mut self, key: Key, tenant: Tenant, priority: Priority) {
        let least = self.tenants.values().map(|share| share.served).min();
        let share = self.tenants.entry(tenant).or_insert_with(|| Share {
            requests: 0,
            served: least.unwrap_or(0),
        });
        share.requests += 1;
        let siblings = self.requests.values().filter(|r| r.tenant == tenant);
        let served = siblings.map(|request| request.served).min().unwrap_or(0);
        let standing = Standing {
            tenant,
            priority,
            served,
        };
        let before = self.requests.insert(key, standing);
        debug_assert!(before.is_none(), "{key:?} is there already");
    }

    /// Whose turn it is among those that `open` lets through.
    pub fn next(&self, open: impl Fn(Key) -> bool) -> Option<Key> {
        let candidates = self.requests.iter().filter(|(key, _)| open(**key));
        let first = candidates.min_by_key(|(key, request)| {
            let tenant = self.tenants.get(&request.tenant);
            (
                Reverse(request.priority),
                tenant.map_or(0, |share| share.served),
                request.served,
                **key,
            )
        });
        first.map(|(key, _)| *key)
    }

    /// Notes that tokens of a request were taken up.
    pub fn charge(&mut self, key: Key, tokens: u64) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.served += tokens;
            if let Some(share) = self.tenants.get_mut(&request.tenant) {
                share.served += tokens;
            }
        }
    }

    /// Removes a request.
    pub fn leave(&mut self, key: Key) {
        let Some(request) = self.requests.remove(&key) else {
            return;
        };
        if let Some(share) = self.tenants.get_mut(&request.tenant) {
            share.requests -= 1;
            if share.requests == 0 {
                self.tenants.remove(&request.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes up inputs of `sizes` tokens each, in turn, and says whose they were.
    fn order(turns: &mut Turns, inputs: &mut HashMap<Key, Vec<u64>>, many: usize) -> Vec<u64> {
        let mut order = Vec::new();
        for _ in 0..many {
            let open = |key: Key| inputs.get(&key).is_some_and(|left| !left.is_empty());
            let Some(key) = turns.next(open) else { break };
            let tokens = inputs.get_mut(&key).and_then(Vec::pop);
            turns.charge(key, tokens.expect("it is open"));
            order.push(key.0);
        }
        order
    }

    #[test]
    fn a_giant_gives_way_to_small_ones_after_each_input() {
        let mut turns = Turns::default();
        let mut inputs = HashMap::from([(Key(0), vec![10; 1000])]);
        turns.enter(Key(0), Tenant(0), Priority(0));
        assert_eq!(order(&mut turns, &mut inputs, 5), [0; 5]);
        for small in 1..4 {
            turns.enter(Key(small), Tenant(0), Priority(0));
            inputs.insert(Key(small), vec![10]);
        }
        // Nobody is behind the giant: what it had before they came does not count.
        assert_eq!(order(&mut turns, &mut inputs, 5), [0, 1, 2, 3, 0]);
    }

    #[test]
    fn tenants_share_by_tokens_however_many_requests_they_have() {
        let mut turns = Turns::default();
        let mut inputs = HashMap::new();
        for many in 0..50 {
            turns.enter(Key(many), Tenant(1), Priority(0));
            inputs.insert(Key(many), vec![8]);
        }
        turns.enter(Key(50), Tenant(2), Priority(0));
        inputs.insert(Key(50), vec![4; 20]);
        let order = order(&mut turns, &mut inputs, 30);
        let single = order.iter().filter(|&&key| key == 50).count();
        // Two inputs of 4 tokens for each of 8.
        assert_eq!(single, 20);
    }

    #[test]
    fn a_higher_priority_goes_first_and_who_leaves_is_forgotten() {
        let mut turns = Turns::default();
        turns.enter(Key(0), Tenant(0), Priority(1));
        turns.enter(Key(1), Tenant(1), Priority(2));
        turns.charge(Key(1), 1_000_000);
        assert_eq!(turns.next(|_| true), Some(Key(1)));
        assert_eq!(turns.next(|key| key != Key(1)), Some(Key(0)));
        turns.leave(Key(1));
        turns.leave(Key(1));
        assert_eq!(turns.next(|_| true), Some(Key(0)));
        turns.leave(Key(0));
        assert_eq!(turns.next(|_| true), None);
        assert!(turns.tenants.is_empty());
    }

    #[test]
    fn having_been_away_is_worth_nothing() {
        let mut turns = Turns::default();
        turns.enter(Key(0), Tenant(0), Priority(0));
        turns.charge(Key(0), 500);
        turns.enter(Key(1), Tenant(1), Priority(0));
        turns.charge(Key(1), 1);
        // 501 tokens each and not 500 in a row for the newcomer.
        assert_eq!(turns.next(|_| true), Some(Key(0)));
    }
}
