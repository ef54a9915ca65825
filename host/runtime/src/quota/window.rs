//! How much was used lately.
//!
//! A window of time is cut into slots, each with the sum of what was taken in it. One slot more is
//! kept than the window has, so the slots together always reach back further than the window: what
//! they hold is never less than what was taken in any span of the window's length that ends now. So a
//! sum that stays within its limit at every taking stays within it in *every* span of that length, and
//! not only in those that begin at a full minute. The price: a limit that is used up comes back after
//! the window and at most one slot more.

use std::time::Duration;

/// Sums over the slots of a window. Time is counted from any moment, and never goes back.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    slot: Duration,
    /// A ring; the slot with the number n is at n modulo its length.
    slots: Box<[u64]>,
    /// Number of the slot in which something was last asked.
    newest: u64,
    /// Sum of all slots.
    sum: u64,
}

/// Where something was taken, so that a part of it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Window {
    /// A window of `count` slots, `slot` long each.
    pub(crate) fn new(slot: Duration, count: usize) -> Self {
        Self {
            slot,
            slots: vec![0; count + 1].into(),
            newest: 0,
            sum: 0,
        }
    }

    /// What was taken and not given back, as of `now`.
    pub(crate) fn used(&mut self, now: Duration) -> u64 {
        self.advance(now);
        self.sum
    }

    /// Takes `amount`, whatever the limit.
    pub(crate) fn take(&mut self, now: Duration, amount: u64) -> Place {
        self.advance(now);
        let at = self.index(self.newest);
        // What is asked is checked against a limit before, so this ends far from the largest number.
        let amount = amount.min(u64::MAX - self.sum);
        self.slots[at] += amount;
        self.sum += amount;
        Place(self.newest)
    }

    /// Gives back a part of what was taken at `place`, unless that is no longer counted anyway.
    pub(crate) fn give_back(&mut self, now: Duration, place: Place, amount: u64) {
        self.advance(now);
        if place.0 + (self.slots.len() as u64) <= self.newest {
            return;
        }
        let at = self.index(place.0);
        let amount = amount.min(self.slots[at]);
        self.slots[at] -= amount;
        self.sum -= amount;
    }

    /// How long until `amount` can be taken without passing `limit`, if nobody takes anything before;
    /// nothing if it never can.
    pub(crate) fn wait(&mut self, now: Duration, amount: u64, limit: u64) -> Option<Duration> {
        let room = limit.checked_sub(amount)?;
        self.advance(now);
        let mut held = self.sum;
        let slots = self.slots.len() as u64;
        // From the oldest on, until enough of them have left.
        let oldest = (self.newest + 1).saturating_sub(slots);
        let mut gone = None;
        for number in oldest..=self.newest {
            if held <= room {
                break;
            }
            held -= self.slots[self.index(number)];
            gone = Some(number);
        }
        let Some(gone) = gone else {
            return Some(Duration::ZERO);
        };
        Some(self.begin(gone + slots).saturating_sub(now))
    }

    /// Forgets the slots that have become too old.
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
        // The remainder is smaller than a length in memory.
        (number % self.slots.len() as u64) as usize
    }

    /// When the slot with this number begins.
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
    fn what_was_taken_is_counted_for_the_window_and_a_slot_at_most() {
        let mut window = Window::new(SECOND, 60);
        window.take(millis(500), 7);
        assert_eq!(window.used(millis(60_500)), 7);
        assert_eq!(window.used(millis(60_999)), 7);
        assert_eq!(window.used(millis(61_000)), 0);
        // Long silence is no harm.
        window.take(millis(62_000), 1);
        assert_eq!(window.used(Duration::from_secs(u64::MAX / 4)), 0);
    }

    #[test]
    fn what_is_given_back_late_changes_nothing() {
        let mut window = Window::new(SECOND, 2);
        let place = window.take(millis(0), 5);
        window.give_back(millis(1000), place, 3);
        assert_eq!(window.used(millis(1000)), 2);
        window.take(millis(3500), 4);
        window.give_back(millis(3500), place, 2);
        assert_eq!(window.used(millis(3500)), 4);
    }

    #[test]
    fn the_wait_is_until_enough_has_left() {
        let mut window = Window::new(SECOND, 60);
        window.take(millis(100), 5);
        window.take(millis(10_100), 5);
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
        Ask {
            after: u64,
            amount: u64,
        },
        GiveBack {
            after: u64,
            which: prop::sample::Index,
            part: u64,
        },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let ask =
            (0..4_000_u64, 1..12_u64).prop_map(|(after, amount)| Event::Ask { after, amount });
        let give = (0..4_000_u64, any::<prop::sample::Index>(), 0..12_u64)
            .prop_map(|(after, which, part)| Event::GiveBack { after, which, part });
        prop::collection::vec(prop_oneof![4 => ask, 1 => give], 1..300)
    }

    proptest! {
        /// In no span of the window's length is more taken than the limit, wherever it begins; and
        /// after the wait that was told, the same amount is to be had.
        #[test]
        fn no_span_holds_more_than_the_limit(events in events(), limit in 12..40_u64) {
            let span = millis(10_000);
            let mut window = Window::new(SECOND, 10);
            let mut now = millis(0);
            let mut taken: Vec<(Duration, u64, Place)> = Vec::new();
            for event in events {
                match event {
                    Event::Ask { after, amount } => {
                        now += millis(after);
                        let wait = window.wait(now, amount, limit).expect("less than the limit");
                        if wait.is_zero() {
                            let place = window.take(now, amount);
                            taken.push((now, amount, place));
                        } else {
                            let then = |at| window.clone().wait(at, amount, limit);
                            prop_assert_eq!(then(now + wait), Some(Duration::ZERO));
                            let before = now + wait - Duration::from_nanos(1);
                            prop_assert!(then(before) != Some(Duration::ZERO), "too long a wait");
                        }
                    }
                    Event::GiveBack { after, which, part } => {
                        now += millis(after);
                        if taken.is_empty() {
                            continue;
                        }
                        let which = which.index(taken.len());
                        let (_, amount, place) = &mut taken[which];
                        let part = part.min(*amount);
                        window.give_back(now, *place, part);
                        *amount -= part;
                    }
                }
                for (begin, _, _) in &taken {
                    let sum: u64 = taken
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
