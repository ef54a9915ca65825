//! Quotas by whose they are, kept for a while when their entries are gone.
//!
//! A file may be read when only a half of it is written, and an entry may be taken out and put in
//! again: in neither case does its budget begin anew.

use corral_runtime::{Quota, QuotaLimits};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long what was used can matter: a day, which quotas count with a quarter of an hour more.
const MATTERS: Duration = Duration::from_secs(25 * 3600);
/// Quotas whose entries are gone. Of more, those that have been gone longest are forgotten. As many as a
/// file may have keys; each takes 2 KiB.
const GONE: usize = 10_000;

/// The quotas of those who are named `K`.
#[derive(Debug)]
pub(super) struct Kept<K>(HashMap<K, One>);

#[derive(Debug)]
struct One {
    quota: Arc<Quota>,
    /// Since when its entry is gone.
    gone: Option<Instant>,
}

impl<K> Default for Kept<K> {
    fn default() -> Self {
        Kept(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> Kept<K> {
    /// The file is read again: who is not [named](Kept::of) until the [end](Kept::end) is gone.
    pub(super) fn begin(&mut self, now: Instant) {
        for one in self.0.values_mut() {
            one.gone.get_or_insert(now);
        }
    }

    /// Whether there is a quota of that name.
    pub(super) fn knows(&self, name: &K) -> bool {
        self.0.contains_key(name)
    }

    /// The quota of somebody who is named in the file, with what it allows from now on. A new one is
    /// `made`.
    pub(super) fn of(
        &mut self,
        name: &K,
        allowance: QuotaLimits,
        made: impl FnOnce(QuotaLimits) -> Arc<Quota>,
    ) -> Arc<Quota> {
        let one = self.0.entry(name.clone()).or_insert_with(|| One {
            quota: made(allowance),
            gone: None,
        });
        one.gone = None;
        one.quota.set_limits(allowance);
        one.quota.clone()
    }

    /// The file has been read: forgets those who have been gone for so long that nothing they used still
    /// counts.
    pub(super) fn end(&mut self, now: Instant) {
        let matters = |gone: &Instant| now.saturating_duration_since(*gone) < MATTERS;
        self.0
            .retain(|_, one| one.gone.as_ref().is_none_or(matters));
        let mut gone = Vec::from_iter(self.0.values().filter_map(|one| one.gone));
        let Some(spare) = gone.len().checked_sub(GONE + 1) else {
            return;
        };
        let (older, last, _) = gone.select_nth_unstable(spare);
        let last = *last;
        // Of those that went with the last one of them, as many as are to be forgotten.
        let mut equal = spare + 1 - older.iter().filter(|gone| **gone < last).count();
        self.0
            .retain(|_, one| match one.gone.map(|gone| gone.cmp(&last)) {
                Some(Ordering::Less) => false,
                Some(Ordering::Equal) if equal > 0 => {
                    equal -= 1;
                    false
                }
                _ => true,
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(kept: &mut Kept<u32>, now: Instant, names: impl IntoIterator<Item = u32>) {
        kept.begin(now);
        for name in names {
            let quota = |allowance| Quota::new("key", name.to_string(), allowance);
            kept.of(&name, QuotaLimits::default(), quota);
        }
        kept.end(now);
    }

    #[test]
    fn who_is_gone_is_kept_for_as_long_as_it_matters() {
        let (mut kept, begin) = (Kept::default(), Instant::now());
        let after = |hours: u64| begin + Duration::from_secs(hours * 3600);
        reading(&mut kept, begin, [1, 2]);
        reading(&mut kept, after(1), [1]);
        reading(&mut kept, after(20), [1]);
        assert!(kept.knows(&2), "it has been gone for 19 hours");
        reading(&mut kept, after(25), [1]);
        assert!(kept.knows(&2), "it has been gone for 24 hours");
        reading(&mut kept, after(26), [1]);
        assert!(!kept.knows(&2));
        reading(&mut kept, after(100), [1]);
        assert!(kept.knows(&1), "it was there all the time");
    }

    #[test]
    fn who_comes_back_is_there_again() {
        let (mut kept, begin) = (Kept::default(), Instant::now());
        let after = |hours: u64| begin + Duration::from_secs(hours * 3600);
        reading(&mut kept, begin, [1]);
        reading(&mut kept, after(1), []);
        reading(&mut kept, after(2), [1]);
        reading(&mut kept, after(26), []);
        assert!(kept.knows(&1), "it is gone only now");
    }

    #[test]
    fn of_very_many_the_first_that_went_are_forgotten() {
        let (mut kept, begin) = (Kept::default(), Instant::now());
        let all = 2 * GONE as u32;
        reading(&mut kept, begin, 0..all);
        // Three go, then as many as are kept, and one stays.
        let second = Duration::from_secs(1);
        reading(&mut kept, begin + second, 3..all);
        assert_eq!(kept.0.len(), 2 * GONE);
        reading(&mut kept, begin + 2 * second, GONE as u32 + 1..all);
        assert_eq!(kept.0.len(), 2 * GONE - 1);
        assert_eq!((0..3).filter(|name| kept.knows(name)).count(), 2);
        assert!((3..all).all(|name| kept.knows(&name)));
        reading(&mut kept, begin + 3 * second, [all - 1]);
        assert_eq!(kept.0.len(), GONE + 1);
        assert!(kept.knows(&(all - 1)));
        assert!(!(0..3).any(|name| kept.knows(&name)), "they went first");
    }
}
