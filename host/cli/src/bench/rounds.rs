//! The rounds of a bench, one after the other.

use crate::arguments::Rounds as Asked;
use std::time::{Duration, Instant};

/// The rounds by their numbers, each told on standard error unless there is but one: large models take minutes, and it is to be seen that it
/// goes on. One with the number 0 is there to warm up; what it found does not count.
pub(super) struct Rounds {
    asked: Asked,
    /// There is a round 0.
    warm: bool,
    began: Instant,
    /// How many have begun, and when the last of them did.
    begun: u64,
    last: Duration,
}

impl Rounds {
    /// Round 0 to warm up, and then those that are asked for.
    pub(super) fn after_one(asked: Asked) -> Self {
        Self::new(asked, true)
    }

    /// With a round 0 where there are several: one alone is measured as it is.
    pub(super) fn of_several(asked: Asked) -> Self {
        Self::new(asked, asked.most > 1)
    }

    fn new(asked: Asked, warm: bool) -> Self {
        Self {
            asked,
            warm,
            began: Instant::now(),
            begun: 0,
            last: Duration::ZERO,
        }
    }

    /// How many have begun that count; after the last one of the loop, how many were measured.
    pub(super) fn measured(&self) -> u64 {
        self.begun.saturating_sub(u64::from(self.warm))
    }

    /// The number of the next one, `elapsed` after the first one began.
    fn next_after(&mut self, elapsed: Duration) -> Option<u64> {
        let measured = self.measured();
        if measured == self.asked.most {
            return None;
        }
        let through = elapsed + elapsed.saturating_sub(self.last);
        if measured > 0
            && self
                .asked
                .within
                .time
                .is_some_and(|within| through > within)
        {
            let most = self.asked.most;
            eprintln!("the time is spent after {measured} of {most} rounds");
            return None;
        }
        self.last = elapsed;
        self.begun += 1;
        Some(if self.warm {
            self.begun - 1
        } else {
            self.begun
        })
    }
}

impl Iterator for Rounds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = self.next_after(self.began.elapsed())?;
        if self.asked.most > 1 || self.warm {
            eprintln!("round {number} of {}", self.asked.most);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, Duration, Rounds};

    fn asked(most: u64, within: Option<u64>) -> Asked {
        let mut asked = Asked {
            most,
            within: Default::default(),
        };
        asked.within.time = within.map(Duration::from_secs);
        asked
    }

    /// The numbers of rounds that take so many seconds each.
    fn numbers(rounds: Rounds, seconds: u64) -> (Vec<u64>, u64) {
        at(rounds, (0..).map(|round| round * seconds))
    }

    /// The numbers of rounds of which each begins so many seconds after the beginning.
    fn at(mut rounds: Rounds, starts: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
        let times = starts.map(Duration::from_secs);
        let numbers = times.map_while(|time| rounds.next_after(time)).collect();
        (numbers, rounds.measured())
    }

    #[test]
    fn round_0_comes_before_those_that_are_asked_for() {
        let rounds = Rounds::after_one(asked(3, None));
        assert_eq!(numbers(rounds, 1000), (vec![0, 1, 2, 3], 3));
        assert_eq!(
            numbers(Rounds::after_one(asked(1, None)), 1),
            (vec![0, 1], 1)
        );
        assert_eq!(
            numbers(Rounds::of_several(asked(2, None)), 1),
            (vec![0, 1, 2], 2)
        );
        assert_eq!(numbers(Rounds::of_several(asked(1, None)), 1), (vec![1], 1));
    }

    #[test]
    fn no_round_begins_that_would_end_too_late() {
        // Rounds 0 to 2 end after 30 s.
        let within = |seconds| Rounds::after_one(asked(9, Some(seconds)));
        assert_eq!(numbers(within(30), 10), (vec![0, 1, 2], 2));
        assert_eq!(numbers(within(39), 10), (vec![0, 1, 2], 2));
        assert_eq!(numbers(within(40), 10), (vec![0, 1, 2, 3], 3));
        assert_eq!(numbers(within(1000), 10).1, 9);
        // One is measured in any case.
        assert_eq!(numbers(within(1), 10), (vec![0, 1], 1));
        let several = Rounds::of_several(asked(9, Some(1)));
        assert_eq!(numbers(several, 10), (vec![0, 1], 1));
        // The round before counts, not the usual one: the third took 10 s, and is followed by none that would end at 22.
        let third = [0, 1, 2, 12, 22];
        assert_eq!(at(within(21), third.into_iter()), (vec![0, 1, 2], 2));
        assert_eq!(at(within(22), third.into_iter()), (vec![0, 1, 2, 3], 3));
    }
}
