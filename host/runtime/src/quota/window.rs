//! A sliding window that counts recent usage in slots.
//!
//! The window keeps one slot more than its length, so its sum is never less than the usage of any span of
//! the window's length that ends now. Usage that stays within a limit at every addition therefore stays
//! within it in every such span, not only in spans that start at full minutes. The cost: usage expires up to
//! one slot late.

use std::time::Duration;

/// Sums over the slots of a window. Time counts from any fixed moment and never goes back.
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow {
    slot: Duration,
    /// A ring. The slot with number n is at n modulo its length.
    slots: Box<[u64]>,
    /// Number of the current slot, as of the last call.
    newest: u64,
    /// Sum of all slots.
    sum: u64,
}

/// The slot of an addition, for releasing a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotNumber(u64);

impl SlidingWindow {
    /// A window of `count` slots, `slot` long each.
    pub(crate) fn new(slot: Duration, count: usize) -> Self {
        Self {
            slot,
            slots: vec![0; count + 1].into(),
            newest: 0,
            sum: 0,
        }
    }

    /// Usage within the window that ends `now`.
    pub(crate) fn used(&mut self, now: Duration) -> u64 {
        self.advance(now);
        self.sum
    }

    /// Adds `amount`, whatever the limit.
    pub(crate) fn add(&mut self, now: Duration, amount: u64) -> SlotNumber {
        self.advance(now);
        let at = self.index(self.newest);
        // Callers check a limit first, so the sum stays far below the maximum.
        let amount = amount.min(u64::MAX - self.sum);
        self.slots[at] += amount;
        self.sum += amount;
        SlotNumber(self.newest)
    }

    /// Subtracts `amount` of an addition to `slot`, unless the slot has expired.
    pub(crate) fn release(&mut self, now: Duration, slot: SlotNumber, amount: u64) {
        self.advance(now);
        if slot.0 + (self.slots.len() as u64) <= self.newest {
            return;
        }
        let at = self.index(slot.0);
        let amount = amount.min(self.slots[at]);
        self.slots[at] -= amount;
        self.sum -= amount;
    }

    /// Time until `amount` fits into `limit` if nothing else is added before. None if it never fits.
    pub(crate) fn wait(&mut self, now: Duration, amount: u64, limit: u64) -> Option<Duration> {
        let room = limit.checked_sub(amount)?;
        self.advance(now);
        let mut held = self.sum;
        let slots = self.slots.len() as u64;
        // Expires slots, oldest first, until the amount fits.
        let oldest = (self.newest + 1).saturating_sub(slots);
        let mut expired = None;
        for number in oldest..=self.newest {
            if held <= room {
                break;
            }
            held -= self.slots[self.index(number)];
            expired = Some(number);
        }
        let Some(expired) = expired else {
            return Some(Duration::ZERO);
        };
        Some(self.begin(expired + slots).saturating_sub(now))
    }

    /// Clears expired slots.
    fn advance(&mut self, now: Duration) {
        let number = now.as_nanos() / self.slot.as_nanos().max(1);
        let number = u64::try_from(number).unwrap_or(u64::MAX).max(self.newest);
        let passed = (number - self.newest).min(self.slots.len() as u64);
        for step in 1..=passed {
            let at = self.index(self.newest.saturating_add(step));
            self.sum -= std::mem::take(&mut self.slots[at]);
        }
        self.newest = number;
    }

    fn index(&self, number: u64) -> usize {
        // The remainder is less than the length, so it fits.
        (number % self.slots.len() as u64) as usize
    }

    /// Start of the slot with this number.
    fn begin(&self, number: u64) -> Duration {
        let nanos = self.slot.as_nanos().saturating_mul(u128::from(number));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn usage_expires_within_one_slot_of_the_window() {
        let mut window = SlidingWindow::new(SECOND, 60);
        window.add(millis(500), 7);
        assert_eq!(window.used(millis(60_500)), 7);
        assert_eq!(window.used(millis(60_999)), 7);
        assert_eq!(window.used(millis(61_000)), 0);
        // A long pause does no harm.
        window.add(millis(62_000), 1);
        assert_eq!(window.used(Duration::from_secs(u64::MAX / 4)), 0);
    }

    #[test]
    fn late_release_changes_nothing() {
        let mut window = SlidingWindow::new(SECOND, 2);
        let slot = window.add(millis(0), 5);
        window.release(millis(1000), slot, 3);
        assert_eq!(window.used(millis(1000)), 2);
        window.add(millis(3500), 4);
        window.release(millis(3500), slot, 2);
        assert_eq!(window.used(millis(3500)), 4);
    }

    #[test]
    fn wait_ends_when_enough_expired() {
        let mut window = SlidingWindow::new(SECOND, 60);
        window.add(millis(100), 5);
        window.add(millis(10_100), 5);
        let mut wait = |amount| window.wait(millis(20_000), amount, 10);
        assert_eq!(wait(0), Some(Duration::ZERO));
        assert_eq!(wait(1), Some(millis(41_000)));
        assert_eq!(wait(5), Some(millis(41_000)));
        assert_eq!(wait(6), Some(millis(51_000)));
        assert_eq!(wait(10), Some(millis(51_000)));
        assert_eq!(wait(11), None);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Add {
            after: u64,
            amount: u64,
        },
        Release {
            after: u64,
            which: prop::sample::Index,
            part: u64,
        },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let add =
            (0..4_000_u64, 1..12_u64).prop_map(|(after, amount)| Event::Add { after, amount });
        let release = (0..4_000_u64, any::<prop::sample::Index>(), 0..12_u64)
            .prop_map(|(after, which, part)| Event::Release { after, which, part });
        prop::collection::vec(prop_oneof![4 => add, 1 => release], 1..300)
    }

    proptest! {
        /// No span of the window's length exceeds the limit, wherever it starts. After the wait, and not
        /// before, the refused amount fits.
        #[test]
        fn no_span_holds_more_than_the_limit(events in events(), limit in 12..40_u64) {
            let span = millis(10_000);
            let mut window = SlidingWindow::new(SECOND, 10);
            let mut now = millis(0);
            let mut added: Vec<(Duration, u64, SlotNumber)> = Vec::new();
            for event in events {
                match event {
                    Event::Add { after, amount } => {
                        now += millis(after);
                        let wait = window.wait(now, amount, limit).unwrap();
                        if wait.is_zero() {
                            let slot = window.add(now, amount);
                            added.push((now, amount, slot));
                        } else {
                            let then = |at| window.clone().wait(at, amount, limit);
                            prop_assert_eq!(then(now + wait), Some(Duration::ZERO));
                            let before = now + wait - Duration::from_nanos(1);
                            prop_assert!(then(before) != Some(Duration::ZERO), "the wait is too long");
                        }
                    }
                    Event::Release { after, which, part } => {
                        now += millis(after);
                        if added.is_empty() {
                            continue;
                        }
                        let which = which.index(added.len());
                        let (_, amount, slot) = &mut added[which];
                        let part = part.min(*amount);
                        window.release(now, *slot, part);
                        *amount -= part;
                    }
                }
                for (begin, _, _) in &added {
                    let sum: u64 = added
                        .iter()
                        .filter(|(at, _, _)| at >= begin && *at <= *begin + span)
                        .map(|(_, amount, _)| amount)
                        .sum();
                    prop_assert!(sum <= limit, "{} within {:?} of {:?}", sum, span, begin);
                }
            }
        }
    }
}
