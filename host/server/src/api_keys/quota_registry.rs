//! Quotas by owner, kept for a while after their entries disappear from the file.
//!
//! A file may be read while only half of it is written, and an entry may be removed and added again. In
//! neither case does the owner get a fresh budget.

use corral_runtime::{Quota, QuotaLimits};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long past usage can matter: quotas count a day in slots of a quarter of an hour.
const RETENTION: Duration = Duration::from_secs(25 * 3600);
/// Most quotas without an entry; the longest absent go first. As many as a file may have keys; each takes
/// 2 KiB.
const MAX_ABSENT: usize = 10_000;

/// Quotas of owners that are identified by `K`.
#[derive(Debug)]
pub(super) struct QuotaRegistry<K>(HashMap<K, RegisteredQuota>);

#[derive(Debug)]
struct RegisteredQuota {
    quota: Arc<Quota>,
    /// When the entry disappeared from the file.
    absent_since: Option<Instant>,
}

impl<K> Default for QuotaRegistry<K> {
    fn default() -> Self {
        QuotaRegistry(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> QuotaRegistry<K> {
    /// Starts a reload: owners without a [`get`](Self::get) before [`end_reload`](Self::end_reload) are
    /// absent.
    pub(super) fn begin_reload(&mut self, now: Instant) {
        for registered in self.0.values_mut() {
            registered.absent_since.get_or_insert(now);
        }
    }

    pub(super) fn contains(&self, owner: &K) -> bool {
        self.0.contains_key(owner)
    }

    /// The quota of an owner in the file, with new limits. Creates it with `new_quota` if needed.
    pub(super) fn get(
        &mut self,
        owner: &K,
        limits: QuotaLimits,
        new_quota: impl FnOnce(QuotaLimits) -> Arc<Quota>,
    ) -> Arc<Quota> {
        let registered = self
            .0
            .entry(owner.clone())
            .or_insert_with(|| RegisteredQuota {
                quota: new_quota(limits),
                absent_since: None,
            });
        registered.absent_since = None;
        registered.quota.set_limits(limits);
        registered.quota.clone()
    }

    /// Ends a reload: drops quotas that have been absent for [`RETENTION`], and the longest absent beyond
    /// [`MAX_ABSENT`].
    pub(super) fn end_reload(&mut self, now: Instant) {
        let matters = |since: &Instant| now.saturating_duration_since(*since) < RETENTION;
        self.0
            .retain(|_, quota| quota.absent_since.as_ref().is_none_or(matters));
        let mut absent = Vec::from_iter(self.0.values().filter_map(|quota| quota.absent_since));
        let Some(last_dropped) = absent.len().checked_sub(MAX_ABSENT + 1) else {
            return;
        };
        let (earlier, cutoff, _) = absent.select_nth_unstable(last_dropped);
        let cutoff = *cutoff;
        // Of those absent since exactly the cutoff, drop only as many as needed.
        let mut equal = last_dropped + 1 - earlier.iter().filter(|at| **at < cutoff).count();
        self.0.retain(
            |_, quota| match quota.absent_since.map(|at| at.cmp(&cutoff)) {
                Some(Ordering::Less) => false,
                Some(Ordering::Equal) if equal > 0 => {
                    equal -= 1;
                    false
                }
                _ => true,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reload(
        registry: &mut QuotaRegistry<u32>,
        now: Instant,
        owners: impl IntoIterator<Item = u32>,
    ) {
        registry.begin_reload(now);
        for owner in owners {
            let quota = |allowance| Quota::new("key", owner.to_string(), allowance);
            registry.get(&owner, QuotaLimits::default(), quota);
        }
        registry.end_reload(now);
    }

    #[test]
    fn absent_quota_is_retained_for_a_day() {
        let (mut registry, begin) = (QuotaRegistry::default(), Instant::now());
        let after = |hours: u64| begin + Duration::from_secs(hours * 3600);
        reload(&mut registry, begin, [1, 2]);
        reload(&mut registry, after(1), [1]);
        reload(&mut registry, after(20), [1]);
        assert!(registry.contains(&2), "absent for 19 hours");
        reload(&mut registry, after(25), [1]);
        assert!(registry.contains(&2), "absent for 24 hours");
        reload(&mut registry, after(26), [1]);
        assert!(!registry.contains(&2));
        reload(&mut registry, after(100), [1]);
        assert!(registry.contains(&1), "always in the file");
    }

    #[test]
    fn returning_owner_is_no_longer_absent() {
        let (mut registry, begin) = (QuotaRegistry::default(), Instant::now());
        let after = |hours: u64| begin + Duration::from_secs(hours * 3600);
        reload(&mut registry, begin, [1]);
        reload(&mut registry, after(1), []);
        reload(&mut registry, after(2), [1]);
        reload(&mut registry, after(26), []);
        assert!(registry.contains(&1), "absent from now on");
    }

    #[test]
    fn longest_absent_quotas_are_dropped_first() {
        let (mut registry, begin) = (QuotaRegistry::default(), Instant::now());
        let all = 2 * MAX_ABSENT as u32;
        reload(&mut registry, begin, 0..all);
        // Three go, then as many as are kept, and one stays.
        let second = Duration::from_secs(1);
        reload(&mut registry, begin + second, 3..all);
        assert_eq!(registry.0.len(), 2 * MAX_ABSENT);
        reload(
            &mut registry,
            begin + 2 * second,
            MAX_ABSENT as u32 + 1..all,
        );
        assert_eq!(registry.0.len(), 2 * MAX_ABSENT - 1);
        assert_eq!((0..3).filter(|owner| registry.contains(owner)).count(), 2);
        assert!((3..all).all(|owner| registry.contains(&owner)));
        reload(&mut registry, begin + 3 * second, [all - 1]);
        assert_eq!(registry.0.len(), MAX_ABSENT + 1);
        assert!(registry.contains(&(all - 1)));
        assert!(
            !(0..3).any(|owner| registry.contains(&owner)),
            "absent longest"
        );
    }
}
