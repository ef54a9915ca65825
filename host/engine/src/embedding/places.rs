//! How much may wait: requests, their tokens and the numbers of their answers. Each is bounded, and
//! one tenant may have a quarter of each, so that nobody is refused for another's sake.

use corral_scheduler::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Part of everything that one tenant may have.
pub const TENANT_SHARE: u64 = 4;

/// An amount of what is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: u64,
    /// Tokens of their inputs.
    pub tokens: u64,
    /// Numbers of their answers.
    pub numbers: u64,
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.saturating_add(other.tokens),
            numbers: self.numbers.saturating_add(other.numbers),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: self.tokens.saturating_sub(other.tokens),
            numbers: self.numbers.saturating_sub(other.numbers),
        }
    }

    fn fits(self, limit: Self) -> bool {
        self.requests <= limit.requests
            && self.tokens <= limit.tokens
            && self.numbers <= limit.numbers
    }

    /// What one tenant may have of it.
    pub fn share(self) -> Self {
        Self {
            requests: self.requests.div_ceil(TENANT_SHARE),
            tokens: self.tokens.div_ceil(TENANT_SHARE),
            numbers: self.numbers.div_ceil(TENANT_SHARE),
        }
    }
}

#[derive(Debug, Default)]
struct Taken {
    all: Load,
    /// Only those that have any.
    tenants: HashMap<Tenant, Load>,
}

/// Counts what waits or is computed.
#[derive(Debug)]
pub struct Places {
    limit: Load,
    taken: Arc<Mutex<Taken>>,
}

/// One request's place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    tenant: Tenant,
    load: Load,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    /// Room for `limit`.
    pub fn new(limit: Load) -> Self {
        Self {
            limit,
            taken: Arc::default(),
        }
    }

    /// A place, or all that is taken, by the tenant alone if it is its share that is full.
    pub fn take(&self, tenant: Tenant, load: Load) -> Result<Place, Load> {
        let mut taken = lock(&self.taken);
        let all = taken.all.plus(load);
        if !all.fits(self.limit) {
            return Err(taken.all);
        }
        let before = taken.tenants.get(&tenant).copied().unwrap_or_default();
        let own = before.plus(load);
        if !own.fits(self.limit.share()) {
            return Err(before);
        }
        taken.all = all;
        taken.tenants.insert(tenant, own);
        Ok(Place {
            tenant,
            load,
            taken: self.taken.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.all = taken.all.minus(self.load);
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own = own.minus(self.load);
            if own.requests == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    // Nothing under this lock panics half-way.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Load = Load {
        requests: 8,
        tokens: 400,
        numbers: 4000,
    };

    fn load(tokens: u64, numbers: u64) -> Load {
        Load {
            requests: 1,
            tokens,
            numbers,
        }
    }

    #[test]
    fn a_tenant_has_a_quarter_and_all_together_no_more_than_there_is() {
        let places = Places::new(LIMIT);
        let take = |tenant, tokens, numbers| places.take(Tenant(tenant), load(tokens, numbers));
        assert!(take(0, 101, 1).is_err() && take(0, 1, 1001).is_err());
        let held = take(0, 60, 1).expect("there is room");
        assert_eq!(take(0, 41, 1).unwrap_err(), load(60, 1));
        let others: Vec<_> = (1..4).map(|t| take(t, 100, 1000).unwrap()).collect();
        assert_eq!(take(4, 41, 1).unwrap_err().tokens, 360);
        drop(held);
        let last = take(4, 100, 1000).expect("there is room again");
        assert!(take(0, 1, 1).is_err());
        drop((others, last));
        let taken = places.taken.lock().unwrap();
        assert!(taken.tenants.is_empty() && taken.all == Load::default());
    }

    #[test]
    fn requests_are_counted_too() {
        let places = Places::new(LIMIT);
        let two = [(); 2].map(|()| places.take(Tenant(0), load(1, 1)).unwrap());
        assert!(places.take(Tenant(0), load(1, 1)).is_err());
        assert_eq!(two.len(), 2);
    }
}
