//! The rounds of a bench: how many, and for how long.

use crate::args::{seconds, whole};
use clap::Args;
use std::time::{Duration, Instant};

#[derive(Args, Clone, Copy, Debug)]
pub struct RoundArgs {
    /// Rounds; each measures everything that is compared
    #[arg(id = "rounds", long = "rounds", value_name = "N", default_value_t = 5, value_parser = whole(1..=1000))]
    pub count: u64,
    #[command(flatten)]
    pub within: WithinArgs,
}

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct WithinArgs {
    /// Start no round that would end later than this many seconds after the start; one is always measured
    #[arg(id = "within", long = "within", value_name = "SECONDS", value_parser = seconds)]
    pub time: Option<Duration>,
}

/// Iterates over the numbers of the rounds and reports each on stderr, since a round of a large model takes minutes.
/// A round 0 warms up and does not count.
pub struct Rounds {
    args: RoundArgs,
    has_warmup: bool,
    start: Instant,
    /// Rounds started, and when the last one started.
    started: u64,
    last_start: Duration,
}

impl Rounds {
    /// Starts with a round 0.
    pub fn with_warmup(args: RoundArgs) -> Self {
        Self::new(args, true)
    }

    /// Starts with a round 0 if there is more than one round.
    pub fn with_warmup_if_several(args: RoundArgs) -> Self {
        Self::new(args, args.count > 1)
    }

    fn new(args: RoundArgs, has_warmup: bool) -> Self {
        Self {
            args,
            has_warmup,
            start: Instant::now(),
            started: 0,
            last_start: Duration::ZERO,
        }
    }

    /// Rounds that count, of those that started.
    pub fn measured(&self) -> u64 {
        self.started.saturating_sub(u64::from(self.has_warmup))
    }

    /// The number of the next round, `elapsed` after the first one started.
    fn next_after(&mut self, elapsed: Duration) -> Option<u64> {
        let measured = self.measured();
        if measured == self.args.count {
            return None;
        }
        // The next round is expected to take as long as the last.
        let expected_end = elapsed + elapsed.saturating_sub(self.last_start);
        let within = self.args.within.time;
        if measured > 0 && within.is_some_and(|within| expected_end > within) {
            let count = self.args.count;
            eprintln!("out of time after {measured} of {count} rounds");
            return None;
        }
        self.last_start = elapsed;
        self.started += 1;
        Some(self.started - u64::from(self.has_warmup))
    }
}

impl Iterator for Rounds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = self.next_after(self.start.elapsed())?;
        if self.args.count > 1 || self.has_warmup {
            eprintln!("round {number} of {}", self.args.count);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(count: u64, within: Option<u64>) -> RoundArgs {
        let time = within.map(Duration::from_secs);
        RoundArgs {
            count,
            within: WithinArgs { time },
        }
    }

    /// The numbers of rounds that take `seconds` each, and how many count.
    fn run(rounds: Rounds, seconds: u64) -> (Vec<u64>, u64) {
        run_at(rounds, (0..).map(|round| round * seconds))
    }

    fn run_at(mut rounds: Rounds, starts: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
        let times = starts.map(Duration::from_secs);
        let numbers = times.map_while(|time| rounds.next_after(time)).collect();
        (numbers, rounds.measured())
    }

    #[test]
    fn warmup_precedes_counted_rounds() {
        let always = |count| run(Rounds::with_warmup(args(count, None)), 1000);
        assert_eq!(always(3), (vec![0, 1, 2, 3], 3));
        assert_eq!(always(1), (vec![0, 1], 1));
        let several = |count| run(Rounds::with_warmup_if_several(args(count, None)), 1);
        assert_eq!(several(2), (vec![0, 1, 2], 2));
        assert_eq!(several(1), (vec![1], 1));
    }

    #[test]
    fn no_round_starts_that_would_end_late() {
        // Rounds 0 to 2 end after 30 s.
        let within = |seconds| Rounds::with_warmup(args(9, Some(seconds)));
        assert_eq!(run(within(30), 10), (vec![0, 1, 2], 2));
        assert_eq!(run(within(39), 10), (vec![0, 1, 2], 2));
        assert_eq!(run(within(40), 10), (vec![0, 1, 2, 3], 3));
        assert_eq!(run(within(1000), 10).1, 9);
        // One is always measured.
        assert_eq!(run(within(1), 10), (vec![0, 1], 1));
        let several = Rounds::with_warmup_if_several(args(9, Some(1)));
        assert_eq!(run(several, 10), (vec![0, 1], 1));
        // The estimate is the last round, here 10 s.
        let starts = [0, 1, 2, 12, 22];
        assert_eq!(run_at(within(21), starts.into_iter()), (vec![0, 1, 2], 2));
        assert_eq!(
            run_at(within(22), starts.into_iter()),
            (vec![0, 1, 2, 3], 3)
        );
    }
}
