//! Limits what one instance may allocate.

use crate::config::{CORE_INSTANCES, MEMORIES, TABLE_ELEMENTS, TABLES};
use crate::counters::DeploymentCounters;
use crate::meter::Meter;
use std::sync::Arc;
use wasmtime::ResourceLimiter;

/// Counts the linear memory of an instance, over all its memories.
#[derive(Debug)]
pub(crate) struct Limiter {
    used: usize,
    limit: usize,
    meter: Arc<Meter>,
    counters: Arc<DeploymentCounters>,
}

impl Limiter {
    /// Allows `limit` bytes. Records refusals in `meter` and growth in `counters`.
    pub(crate) fn new(limit: usize, meter: Arc<Meter>, counters: Arc<DeploymentCounters>) -> Self {
        Self {
            used: 0,
            limit,
            meter,
            counters,
        }
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let used = self.used.saturating_add(desired.saturating_sub(current));
        if used > self.limit {
            self.meter.refuse_memory();
            return Ok(false);
        }
        // The initial size does not count. A memory that starts empty gets its initial size by its first
        // growth.
        if current > 0 && desired > current {
            self.counters.memory_growths.increment();
        }
        self.used = used;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_share_one_limit() {
        let meter = Arc::new(Meter::default());
        let counters = Arc::new(DeploymentCounters::default());
        let mut limiter = Limiter::new(100, Arc::clone(&meter), Arc::clone(&counters));
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.memory_growing(0, 30, None).unwrap());
        assert_eq!(counters.memory_growths.get(), 0);
        assert!(limiter.memory_growing(30, 30, None).unwrap());
        assert!(limiter.memory_growing(30, 40, None).unwrap());
        assert!(!meter.memory_refused());
        assert!(!limiter.memory_growing(40, 41, None).unwrap());
        assert!(meter.memory_refused());
        assert_eq!(counters.memory_growths.get(), 1);
    }
}
