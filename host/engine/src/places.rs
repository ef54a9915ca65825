//! How many sequences may run or wait, in all and for each tenant.

use corral_scheduler::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the sequences that run or wait, up to a limit, and up to one for each tenant.
pub struct Places {
    /// In all.
    pub limit: usize,
    tenant_limit: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only those that have any.
    tenants: HashMap<Tenant, usize>,
}

/// One sequence's place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    tenant: Tenant,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    /// Places in all, and for each tenant.
    pub fn new(limit: usize, tenant_limit: usize) -> Self {
        Self {
            limit,
            tenant_limit,
            taken: Arc::default(),
        }
    }

    /// A place, or how many there are that are all taken.
    pub fn take(&self, tenant: Tenant) -> Result<Place, usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.limit {
            return Err(self.limit);
        }
        let own = taken.tenants.entry(tenant).or_default();
        if *own >= self.tenant_limit {
            return Err(self.tenant_limit);
        }
        *own += 1;
        taken.all += 1;
        Ok(Place {
            tenant,
            taken: self.taken.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
impl Place {
    /// A place that nobody counts.
    pub fn uncounted() -> Self {
        Self {
            tenant: Tenant(0),
            taken: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_all_places() {
        let places = Places::new(5, 3);
        let held: Vec<_> = (0..3).map(|_| places.take(Tenant(1)).unwrap()).collect();
        assert_eq!(places.take(Tenant(1)).unwrap_err(), 3);
        let others = [places.take(Tenant(2)), places.take(Tenant(3))];
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(places.take(Tenant(4)).unwrap_err(), 5);
        drop((held, others));
        assert!(places.taken.lock().unwrap().tenants.is_empty());
        assert!(places.take(Tenant(1)).is_ok());
    }
}
