//! Counts of the resources that the calls of a deployment hold in the host.

use super::{DeploymentCounters, ResourceKind};
use std::sync::Arc;
use strum::VariantArray;

/// Numbers of resources that a call holds, by kind. The deployment's gauges include them until this is dropped.
#[derive(Debug)]
pub(crate) struct ResourceCounts {
    counts: [usize; ResourceKind::VARIANTS.len()],
    counters: Arc<DeploymentCounters>,
}

impl ResourceCounts {
    pub(crate) fn new(counters: &Arc<DeploymentCounters>) -> Self {
        Self {
            counts: [0; ResourceKind::VARIANTS.len()],
            counters: Arc::clone(counters),
        }
    }

    pub(crate) fn get(&self, kind: ResourceKind) -> usize {
        self.counts[kind as usize]
    }

    pub(crate) fn are_zero(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    pub(crate) fn add(&mut self, kind: ResourceKind, count: usize) {
        self.counts[kind as usize] += count;
        self.counters.resource_count(kind).add(count as u64);
    }

    pub(crate) fn remove(&mut self, kind: ResourceKind, count: usize) {
        self.counts[kind as usize] -= count;
        self.counters.resource_count(kind).subtract(count as u64);
    }
}

impl Drop for ResourceCounts {
    fn drop(&mut self) {
        for (&kind, &count) in ResourceKind::VARIANTS.iter().zip(&self.counts) {
            // Most counts are zero at the end, and threads contend for the gauge.
            if count > 0 {
                self.counters.resource_count(kind).subtract(count as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_counts_leave_the_gauge() {
        let counters = Arc::<DeploymentCounters>::default();
        let gauge = || counters.resource_count(ResourceKind::Tokens).get();
        let mut one = ResourceCounts::new(&counters);
        let mut other = ResourceCounts::new(&counters);
        one.add(ResourceKind::Tokens, 5);
        other.add(ResourceKind::Tokens, 7);
        one.remove(ResourceKind::Tokens, 2);
        let tokens = |counts: &ResourceCounts| counts.get(ResourceKind::Tokens);
        assert_eq!((tokens(&one), tokens(&other), gauge()), (3, 7, 10));
        assert!(!one.are_zero());
        drop(one);
        assert_eq!(gauge(), 7);
        other.remove(ResourceKind::Tokens, 7);
        assert!(other.are_zero());
        drop(other);
        assert_eq!(gauge(), 0);
    }
}
