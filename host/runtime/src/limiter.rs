//! Bounds what one instance may allocate.

use crate::meter::Meter;
use crate::settings::{CORE_INSTANCES, MEMORIES, TABLE_ELEMENTS, TABLES};
use crate::tally::Tally;
use std::sync::Arc;
use wasmtime::ResourceLimiter;

/// Counts the linear memory of an instance, all its memories together.
#[derive(Debug)]
pub(crate) struct Limiter {
    used: usize,
    limit: usize,
    meter: Arc<Meter>,
    tally: Arc<Tally>,
}

impl Limiter {
    /// At most `limit` bytes; a refusal is noted in `meter`, and that a memory grows in `tally`.
    pub(crate) fn new(limit: usize, meter: Arc<Meter>, tally: Arc<Tally>) -> Self {
        Self {
            used: 0,
            limit,
            meter,
            tally,
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
        // Not what it has to begin with; of a memory that has nothing then, its first growth is taken for that.
        if current > 0 && desired > current {
            self.tally.grew();
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
        let tally = Arc::new(Tally::default());
        let grown = || tally.counts()[6].value;
        let mut limiter = Limiter::new(100, Arc::clone(&meter), Arc::clone(&tally));
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.memory_growing(0, 30, None).unwrap());
        assert_eq!(grown(), 0.0);
        assert!(limiter.memory_growing(30, 30, None).unwrap());
        assert!(limiter.memory_growing(30, 40, None).unwrap());
        assert!(!meter.memory_refused());
        assert!(!limiter.memory_growing(40, 41, None).unwrap());
        assert!(meter.memory_refused());
        assert_eq!(grown(), 1.0);
    }
}
