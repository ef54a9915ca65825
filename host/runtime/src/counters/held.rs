//! What the calls of a deployment hold in the host now.

use super::{DeploymentCounters, HeldKind};
use std::sync::Arc;

/// How many things of one kind a call holds. Also counted for its deployment, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    count: usize,
    kind: HeldKind,
    counters: Arc<DeploymentCounters>,
}

impl Held {
    pub(crate) fn new(kind: HeldKind, counters: &Arc<DeploymentCounters>) -> Self {
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
        self.counters.held(self.kind).add(count as u64);
    }

    pub(crate) fn remove(&mut self, count: usize) {
        self.count -= count;
        self.counters.held(self.kind).subtract(count as u64);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.remove(self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_count_leaves_the_gauge() {
        let counters = Arc::<DeploymentCounters>::default();
        let gauge = || counters.held(HeldKind::Tokens).get();
        let mut one = Held::new(HeldKind::Tokens, &counters);
        let mut other = Held::new(HeldKind::Tokens, &counters);
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
