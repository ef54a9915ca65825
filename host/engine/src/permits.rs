//! Bounds the requests that run or wait, in total and per tenant.

use corral_scheduler::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Grants a [`RequestPermit`] to each request, up to a total limit and a limit per tenant.
pub struct RequestPermits {
    /// Most permits in total.
    pub limit: usize,
    tenant_limit: usize,
    granted: Arc<Mutex<Granted>>,
}

#[derive(Debug, Default)]
struct Granted {
    total: usize,
    /// Tenants with at least one permit.
    tenants: HashMap<Tenant, usize>,
}

/// Held by a request until its end; dropping it returns the permit.
#[derive(Debug)]
pub struct RequestPermit {
    tenant: Tenant,
    granted: Arc<Mutex<Granted>>,
}

impl RequestPermits {
    /// Permits up to `limit` in total and `tenant_limit` per tenant.
    pub fn new(limit: usize, tenant_limit: usize) -> Self {
        Self {
            limit,
            tenant_limit,
            granted: Arc::default(),
        }
    }

    /// Grants a permit, or returns the limit that is reached.
    pub fn acquire(&self, tenant: Tenant) -> Result<RequestPermit, usize> {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if granted.total >= self.limit {
            return Err(self.limit);
        }
        let of_tenant = granted.tenants.entry(tenant).or_default();
        if *of_tenant >= self.tenant_limit {
            return Err(self.tenant_limit);
        }
        *of_tenant += 1;
        granted.total += 1;
        Ok(RequestPermit {
            tenant,
            granted: self.granted.clone(),
        })
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        granted.total = granted.total.saturating_sub(1);
        if let Some(of_tenant) = granted.tenants.get_mut(&self.tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                granted.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
impl RequestPermit {
    /// A permit without limits.
    pub fn unlimited() -> Self {
        Self {
            tenant: Tenant(0),
            granted: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_all_permits() {
        let permits = RequestPermits::new(5, 3);
        let acquire = |tenant| permits.acquire(Tenant(tenant));
        let held: Vec<_> = (0..3).map(|_| acquire(1).unwrap()).collect();
        assert_eq!(acquire(1).unwrap_err(), 3);
        let others = [acquire(2), acquire(3)];
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(acquire(4).unwrap_err(), 5);
        drop((held, others));
        assert!(permits.granted.lock().unwrap().tenants.is_empty());
        assert!(acquire(1).is_ok());
    }
}
