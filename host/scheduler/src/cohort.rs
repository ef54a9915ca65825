//! Callers that run the loop themselves, or leave the choice to a plugin, and how long a step waits for
//! them.
//!
//! Who was told what may come next samples, and comes back with one token more. A step that goes
//! without it takes nearly as long as one with it, so where all that could be computed is of such
//! callers, a step waits for the others of those that were told lately: at most as long as the step
//! took that they were told by, and 2 ms, or a small part of what it took where that is more. Who came back later than that is not waited for the next
//! time, until it has been in time once. Whoever generates or reads without such a caller never waits.

use super::Time;
use super::words::{Retention, WeakRetention};
use std::time::Duration;

/// How long a step waits at most after a short step, and for what part of a long one.
const LONGEST: Duration = Duration::from_millis(2);
const PART: f64 = 0.04;
/// How long it waits at most after any.
const LONGEST_OF_ALL: Duration = Duration::from_millis(10);
/// Callers that are remembered: more than there are ids.
const REMEMBERED: usize = 256;

/// Those that were told something and have not come back.
#[derive(Clone, Debug, Default)]
pub(super) struct Cohort(Vec<Member>);

#[derive(Clone, Debug)]
struct Member {
    /// By which it is known when it comes back, and by which is seen that it does not.
    claim: WeakRetention,
    /// How long it is waited for.
    patience: Duration,
    /// When it was told: known at the plan after.
    told: Option<Time>,
    /// It came back in time when it was told before, or was not told before.
    punctual: bool,
}

impl Member {
    /// Until when it is waited for.
    fn until(&self) -> Option<Time> {
        Some(self.told? + self.patience)
    }
}

impl Cohort {
    /// Somebody was told, by a step that took so long.
    pub fn tell(&mut self, claim: WeakRetention, punctual: bool, took: Duration) {
        // One that had to give way before it came back is told again.
        self.0
            .retain(|member| member.claim.is_held() && !member.claim.is(&claim));
        if !claim.is_held() {
            return;
        }
        if self.0.len() >= REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(Member {
            claim,
            patience: took.min(LONGEST.max(took.mul_f64(PART)).min(LONGEST_OF_ALL)),
            told: None,
            punctual,
        });
    }

    /// The step that told them is over.
    pub fn begin(&mut self, now: Time) {
        for member in &mut self.0 {
            member.told.get_or_insert(now);
        }
    }

    /// Somebody who goes on with this came at that time. Whether it is punctual: who was not told
    /// anything is taken to be.
    pub fn back(&mut self, claim: &Retention, at: Time) -> bool {
        self.returned(|watch| watch.is_of(claim), at)
    }

    /// The same of one whose token was chosen at that time; it is known by its own claim.
    pub fn chosen(&mut self, claim: &WeakRetention, at: Time) -> bool {
        self.returned(|watch| watch.is(claim), at)
    }

    fn returned(&mut self, is_it: impl Fn(&WeakRetention) -> bool, at: Time) -> bool {
        let Some(place) = self.0.iter().position(|member| is_it(&member.claim)) else {
            return true;
        };
        let member = self.0.remove(place);
        member.until().is_none_or(|until| at <= until)
    }

    /// Until when a step waits for those that are still away, if it does now.
    pub fn awaits(&self, now: Time) -> Option<Time> {
        let away = self.0.iter().filter(|member| member.punctual);
        let until = away
            .filter(|member| member.claim.is_held())
            .filter_map(Member::until);
        until.max().filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_was_told_is_waited_for_until_it_is_back_gone_or_late() {
        let (one, other) = (Retention::default(), Retention::default());
        let mut cohort = Cohort::default();
        cohort.tell(one.downgrade(), true, MS);
        cohort.tell(other.downgrade(), true, 9 * MS);
        assert_eq!(cohort.awaits(10 * MS), None, "the step is not over");
        cohort.begin(10 * MS);
        assert_eq!(cohort.awaits(10 * MS), Some(12 * MS), "2 ms at most");
        assert!(cohort.back(&other, 11 * MS));
        assert_eq!(cohort.awaits(10 * MS), Some(11 * MS), "and one step");
        assert_eq!(cohort.awaits(11 * MS), None);
        drop(one);
        assert_eq!(cohort.awaits(10 * MS), None);
        assert!(cohort.back(&other, 20 * MS), "it was told nothing since");
    }

    #[test]
    fn who_was_late_is_waited_for_again_when_it_was_in_time() {
        let claim = Retention::default();
        let mut cohort = Cohort::default();
        let mut round = |told: u32, back: u32, punctual: bool| {
            cohort.tell(claim.downgrade(), punctual, 5 * MS);
            cohort.begin(told * MS);
            let waits = cohort.awaits(told * MS).is_some();
            (waits, cohort.back(&claim, back * MS))
        };
        assert_eq!(round(0, 3, true), (true, false));
        assert_eq!(round(10, 11, false), (false, true));
        assert_eq!(round(20, 21, true), (true, true));
    }

    #[test]
    fn after_long_steps_they_are_waited_for_longer() {
        let claim = Retention::default();
        let until = |took: u32| {
            let mut cohort = Cohort::default();
            cohort.tell(claim.downgrade(), true, took * MS);
            cohort.begin(Time::ZERO);
            cohort.awaits(Time::ZERO)
        };
        let waits = [1, 20, 100, 1_000].map(until);
        assert_eq!(waits, [MS, 2 * MS, 4 * MS, 10 * MS].map(Some));
    }

    #[test]
    fn who_is_told_again_before_it_came_back_is_waited_for_from_then_on() {
        let claim = Retention::default();
        let mut cohort = Cohort::default();
        for told in [0, 20] {
            cohort.tell(claim.downgrade(), true, 5 * MS);
            cohort.begin(told * MS);
        }
        assert!(cohort.chosen(&claim.downgrade(), 21 * MS));
        assert_eq!(cohort.awaits(21 * MS), None);
    }

    #[test]
    fn those_that_never_come_back_are_forgotten() {
        let mut cohort = Cohort::default();
        let held: Vec<_> = (0..2 * REMEMBERED).map(|_| Retention::default()).collect();
        for claim in &held {
            cohort.tell(claim.downgrade(), true, MS);
        }
        assert_eq!(cohort.0.len(), REMEMBERED);
        drop(held);
        cohort.tell(Retention::default().downgrade(), true, MS);
        assert_eq!(cohort.0.len(), 1);
    }
}
