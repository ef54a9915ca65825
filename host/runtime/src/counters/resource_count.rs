//! Counts of the resources that the calls of a deployment hold in the host.

use super::{DeploymentCounters, ResourceKind};
use std::sync::Arc;

/// Number of resources of one kind that a call holds. The deployment's gauge includes it until this is dropped.
#[derive(Debug)]
pub(crate) struct ResourceCount {
    count: usize,
    kind: ResourceKind,
    counters: Arc<DeploymentCounters>,
}

impl ResourceCount {
    pub(crate) fn new(kind: ResourceKind, counters: &Arc<DeploymentCounters>) -> Self {
        Self {
            count: 0,
            kind,
            counters: Arc::clone(counters),
        }
    }

    pub(crate) fn get(&self) -> usize {
        self.count
    }

    pub(crate) fn add(&mut self, count: usize) {
        self.count += count;
        self.counters.resource_count(self.kind).add(count as u64);
    }

    pub(crate) fn remove(&mut self, count: usize) {
        self.count -= count;
        self.counters
            .resource_count(self.kind)
            .subtract(count as u64);
    }
}

impl Drop for ResourceCount {
    fn drop(&mut self) {
        // Most counts are zero at the end, and threads contend for the gauge.
        if self.count > 0 {
            self.remove(self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_count_leaves_the_gauge() {
        let counters = Arc::<DeploymentCounters>::default();
        let gauge = || counters.resource_count(ResourceKind::Tokens).get();
        let mut one = ResourceCount::new(ResourceKind::Tokens, &counters);
        let mut other = ResourceCount::new(ResourceKind::Tokens, &counters);
        one.add(5);
        other.add(7);
        one.remove(2);
        assert_eq!((one.get(), other.get(), gauge()), (3, 7, 10));
        drop(one);
        assert_eq!(gauge(), 7);
        drop(other);
        assert_eq!(gauge(), 0);
    }
}
