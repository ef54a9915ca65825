//! Limits what one instance may allocate, in its own memories and in the host.

use crate::counters::{DeploymentCounters, ResourceCounts, ResourceKind};
use crate::cpu_meter::Meter;
use crate::runtime_config::{CORE_INSTANCES, MEMORIES, TABLE_ELEMENTS, TABLES};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wasmtime::ResourceLimiter;

/// Memory of an instance. It does not fall during a call: memories do not shrink, and bytes in the host count until a
/// call ends that leaves none.
#[derive(Debug)]
pub(crate) struct InstanceMemory {
    used: AtomicUsize,
    /// Those in the host.
    in_host: AtomicUsize,
    limit: usize,
}

impl InstanceMemory {
    /// Adds bytes unless they would exceed the limit.
    pub(crate) fn try_add(&self, bytes: usize) -> bool {
        let add = |used: usize| Some(used.saturating_add(bytes)).filter(|sum| *sum <= self.limit);
        let relaxed = Ordering::Relaxed;
        self.used.fetch_update(relaxed, relaxed, add).is_ok()
    }

    /// Adds bytes in the host until the call ends, unless they would exceed the limit.
    pub(crate) fn try_add_in_host(&self, bytes: usize) -> bool {
        let added = self.try_add(bytes);
        if added {
            self.in_host.fetch_add(bytes, Ordering::Relaxed);
        }
        added
    }

    /// Forgets the bytes in the host.
    fn end_call(&self) {
        let bytes = self.in_host.swap(0, Ordering::Relaxed);
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the bytes are at most half of the limit.
    fn is_half_free(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit / 2
    }
}

/// Counts the memory of an instance: all its linear memories, and what it stores in the host.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory: Arc<InstanceMemory>,
    /// Counts the bytes that the instance stores in the host.
    counts: ResourceCounts,
    meter: Arc<Meter>,
    counters: Arc<DeploymentCounters>,
}

impl Limiter {
    /// Allows `limit` bytes. Records refusals in `meter` and growth in `counters`.
    pub(crate) fn new(limit: usize, meter: Arc<Meter>, counters: Arc<DeploymentCounters>) -> Self {
        let memory = InstanceMemory {
            used: AtomicUsize::new(0),
            in_host: AtomicUsize::new(0),
            limit,
        };
        Self {
            memory: Arc::new(memory),
            counts: ResourceCounts::new(&counters),
            meter,
            counters,
        }
    }

    /// The memory that it counts.
    pub(crate) fn memory(&self) -> &Arc<InstanceMemory> {
        &self.memory
    }

    /// Counts bytes that the instance stores in the host until its call ends.
    ///
    /// # Errors
    /// If the instance would exceed its limit. The caller must end the instance.
    pub(crate) fn count_host_bytes(&mut self, bytes: usize) -> wasmtime::Result<()> {
        if !self.memory.try_add_in_host(bytes) {
            self.meter.refuse_memory();
            wasmtime::bail!(
                "the plugin and what it stores in the host would need more than its {} bytes",
                self.memory.limit
            );
        }
        self.counts.add(ResourceKind::HttpBytes, bytes);
        Ok(())
    }

    /// Forgets the bytes in the host at the end of a call, unless the instance holds some of them. Returns whether half of the
    /// memory is left for another call.
    pub(crate) fn end_call(&mut self, is_held: bool) -> bool {
        if !is_held {
            let bytes = self.counts.get(ResourceKind::HttpBytes);
            self.counts.remove(ResourceKind::HttpBytes, bytes);
            self.memory.end_call();
        }
        self.memory.is_half_free()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if !self.memory.try_add(desired.saturating_sub(current)) {
            self.meter.refuse_memory();
            return Ok(false);
        }
        // The initial size does not count. A memory that starts empty gets its initial size by its first
        // growth.
        if current > 0 && desired > current {
            self.counters.memory_growths.increment();
        }
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

    #[test]
    fn bytes_in_the_host_count_as_memory() {
        let meter = Arc::new(Meter::default());
        let counters = Arc::new(DeploymentCounters::default());
        let mut limiter = Limiter::new(100, Arc::clone(&meter), Arc::clone(&counters));
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        limiter.count_host_bytes(30).unwrap();
        assert!(limiter.memory_growing(60, 70, None).unwrap());
        assert!(!meter.memory_refused());
        assert!(limiter.count_host_bytes(1).is_err());
        assert!(meter.memory_refused());
        assert!(!limiter.memory_growing(70, 71, None).unwrap());
    }

    #[test]
    fn bytes_in_the_host_end_with_their_call() {
        let mut limiter = Limiter::new(100, Arc::default(), Arc::default());
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        limiter.count_host_bytes(50).unwrap();
        // Headers of a response.
        assert!(limiter.memory().try_add_in_host(10));
        assert!(!limiter.memory().try_add_in_host(1));
        assert!(!limiter.end_call(true), "the instance holds bytes");
        assert!(limiter.end_call(false));
        limiter.count_host_bytes(60).unwrap();
        assert!(limiter.end_call(false));
        assert!(limiter.memory_growing(40, 51, None).unwrap());
        assert!(
            !limiter.end_call(false),
            "too little is left for another call"
        );
    }
}
