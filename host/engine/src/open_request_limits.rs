//! Limits on the open requests of an engine, in total and per tenant, so that no tenant causes another's refusals.

use corral_scheduler::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The load of open requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLoad {
    /// Requests.
    pub requests: u64,
    /// Size of their inputs: tokens of texts, bytes of pictures.
    pub input_size: u64,
    /// Numbers (`f32`) in their results, for embeddings.
    pub numbers: u64,
}

impl RequestLoad {
    /// The load of this many requests without inputs and results.
    pub fn of_requests(requests: usize) -> Self {
        Self {
            requests: requests as u64,
            ..Self::default()
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            input_size: self.input_size.saturating_add(other.input_size),
            numbers: self.numbers.saturating_add(other.numbers),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            input_size: self.input_size.saturating_sub(other.input_size),
            numbers: self.numbers.saturating_sub(other.numbers),
        }
    }

    fn fits(self, limit: Self) -> bool {
        self.requests <= limit.requests
            && self.input_size <= limit.input_size
            && self.numbers <= limit.numbers
    }

    /// A part of the load, rounded up.
    pub fn divided_by(self, divisor: u64) -> Self {
        Self {
            requests: self.requests.div_ceil(divisor),
            input_size: self.input_size.div_ceil(divisor),
            numbers: self.numbers.div_ceil(divisor),
        }
    }
}

#[derive(Debug, Default)]
struct OpenRequests {
    all: RequestLoad,
    /// Tenants with open requests.
    tenants: HashMap<Tenant, RequestLoad>,
}

/// Grants a [`RequestPermit`] to each request, up to its limits.
#[derive(Debug)]
pub struct OpenRequestLimits {
    limit: RequestLoad,
    tenant_limit: RequestLoad,
    usage: Arc<Mutex<OpenRequests>>,
}

/// A request's part of the limits. Held until the request ends; dropping it returns the part.
#[derive(Debug)]
pub struct RequestPermit {
    tenant: Tenant,
    load: RequestLoad,
    usage: Arc<Mutex<OpenRequests>>,
}

impl OpenRequestLimits {
    /// At most `limit` in total and `tenant_limit` per tenant.
    pub fn new(limit: RequestLoad, tenant_limit: RequestLoad) -> Self {
        Self {
            limit,
            tenant_limit,
            usage: Arc::default(),
        }
    }

    /// Acquires a permit. Fails with the load of all requests if the total limit is reached, and with that of the
    /// tenant if its limit is.
    pub fn acquire(&self, tenant: Tenant, load: RequestLoad) -> Result<RequestPermit, RequestLoad> {
        let mut usage = lock(&self.usage);
        let all = usage.all.plus(load);
        if !all.fits(self.limit) {
            return Err(usage.all);
        }
        let before = usage.tenants.get(&tenant).copied().unwrap_or_default();
        let own = before.plus(load);
        if !own.fits(self.tenant_limit) {
            return Err(before);
        }
        usage.all = all;
        usage.tenants.insert(tenant, own);
        Ok(RequestPermit {
            tenant,
            load,
            usage: self.usage.clone(),
        })
    }
}

impl Drop for RequestPermit {
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

fn lock(usage: &Mutex<OpenRequests>) -> MutexGuard<'_, OpenRequests> {
    // No code under this lock panics midway.
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl RequestPermit {
    /// A permit without limits.
    pub fn unlimited() -> Self {
        Self {
            tenant: Tenant(0),
            load: RequestLoad::default(),
            usage: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RequestLoad = RequestLoad {
        requests: 8,
        input_size: 400,
        numbers: 4000,
    };

    fn load(input_size: u64, numbers: u64) -> RequestLoad {
        RequestLoad {
            requests: 1,
            input_size,
            numbers,
        }
    }

    #[test]
    fn loads_are_limited_per_tenant_and_in_total() {
        let limits = OpenRequestLimits::new(LIMIT, LIMIT.divided_by(4));
        let acquire =
            |tenant, input_size, numbers| limits.acquire(Tenant(tenant), load(input_size, numbers));
        assert!(acquire(0, 101, 1).is_err() && acquire(0, 1, 1001).is_err());
        let held = acquire(0, 60, 1).expect("there is room");
        assert_eq!(acquire(0, 41, 1).unwrap_err(), load(60, 1));
        let others: Vec<_> = (1..4).map(|t| acquire(t, 100, 1000).unwrap()).collect();
        assert_eq!(acquire(4, 41, 1).unwrap_err().input_size, 360);
        drop(held);
        let last = acquire(4, 100, 1000).expect("there is room again");
        assert!(acquire(0, 1, 1).is_err());
        drop((others, last));
        let usage = limits.usage.lock().unwrap();
        assert!(usage.tenants.is_empty() && usage.all == RequestLoad::default());
    }

    #[test]
    fn one_tenant_cannot_take_all_requests() {
        let requests = RequestLoad::of_requests;
        let limits = OpenRequestLimits::new(requests(5), requests(3));
        let acquire = |tenant| limits.acquire(Tenant(tenant), requests(1));
        let held: Vec<_> = (0..3).map(|_| acquire(1).unwrap()).collect();
        assert_eq!(acquire(1).unwrap_err(), requests(3));
        let others = [acquire(2), acquire(3)];
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(acquire(4).unwrap_err(), requests(5));
        drop((held, others));
        assert!(acquire(1).is_ok());
    }
}
