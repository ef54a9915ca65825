//! Limits on open requests, their tokens and the numbers of their results. One tenant may use a quarter
//! of each, so that no tenant causes another's refusals.

use corral_scheduler::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A tenant may use one part in this many of each limit.
pub const TENANT_DIVISOR: u64 = 4;

/// What requests use of the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: u64,
    /// Tokens of their inputs.
    pub tokens: u64,
    /// Numbers of their results.
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

    /// The limit of one tenant.
    pub fn tenant_limit(self) -> Self {
        Self {
            requests: self.requests.div_ceil(TENANT_DIVISOR),
            tokens: self.tokens.div_ceil(TENANT_DIVISOR),
            numbers: self.numbers.div_ceil(TENANT_DIVISOR),
        }
    }
}

#[derive(Debug, Default)]
struct QuotaUsage {
    all: Load,
    /// Tenants with open requests.
    tenants: HashMap<Tenant, Load>,
}

/// Counts the load of open requests.
#[derive(Debug)]
pub struct EmbeddingQuota {
    limit: Load,
    usage: Arc<Mutex<QuotaUsage>>,
}

/// A request's part of the quota, returned when dropped.
#[derive(Debug)]
pub struct EmbeddingPermit {
    tenant: Tenant,
    load: Load,
    usage: Arc<Mutex<QuotaUsage>>,
}

impl EmbeddingQuota {
    /// A quota of `limit`.
    pub fn new(limit: Load) -> Self {
        Self {
            limit,
            usage: Arc::default(),
        }
    }

    /// Acquires a permit. Fails with the load of all requests if the quota is full, and with that of the
    /// tenant if its part is.
    pub fn acquire(&self, tenant: Tenant, load: Load) -> Result<EmbeddingPermit, Load> {
        let mut usage = lock(&self.usage);
        let all = usage.all.plus(load);
        if !all.fits(self.limit) {
            return Err(usage.all);
        }
        let before = usage.tenants.get(&tenant).copied().unwrap_or_default();
        let own = before.plus(load);
        if !own.fits(self.limit.tenant_limit()) {
            return Err(before);
        }
        usage.all = all;
        usage.tenants.insert(tenant, own);
        Ok(EmbeddingPermit {
            tenant,
            load,
            usage: self.usage.clone(),
        })
    }
}

impl Drop for EmbeddingPermit {
    fn drop(&mut self) {
        let mut usage = lock(&self.usage);
        usage.all = usage.all.minus(self.load);
        if let Some(own) = usage.tenants.get_mut(&self.tenant) {
            *own = own.minus(self.load);
            if own.requests == 0 {
                usage.tenants.remove(&self.tenant);
            }
        }
    }
}

fn lock(usage: &Mutex<QuotaUsage>) -> MutexGuard<'_, QuotaUsage> {
    // No change under this lock panics half done.
    usage.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn tenant_limit_is_a_quarter() {
        let quota = EmbeddingQuota::new(LIMIT);
        let acquire =
            |tenant, tokens, numbers| quota.acquire(Tenant(tenant), load(tokens, numbers));
        assert!(acquire(0, 101, 1).is_err() && acquire(0, 1, 1001).is_err());
        let held = acquire(0, 60, 1).expect("there is room");
        assert_eq!(acquire(0, 41, 1).unwrap_err(), load(60, 1));
        let others: Vec<_> = (1..4).map(|t| acquire(t, 100, 1000).unwrap()).collect();
        assert_eq!(acquire(4, 41, 1).unwrap_err().tokens, 360);
        drop(held);
        let last = acquire(4, 100, 1000).expect("there is room again");
        assert!(acquire(0, 1, 1).is_err());
        drop((others, last));
        let usage = quota.usage.lock().unwrap();
        assert!(usage.tenants.is_empty() && usage.all == Load::default());
    }

    #[test]
    fn number_of_requests_is_limited() {
        let quota = EmbeddingQuota::new(LIMIT);
        let two = [(); 2].map(|()| quota.acquire(Tenant(0), load(1, 1)).unwrap());
        assert!(quota.acquire(Tenant(0), load(1, 1)).is_err());
        assert_eq!(two.len(), 2);
    }
}
