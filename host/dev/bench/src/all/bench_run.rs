//! One bench of `all`, and its time.

use super::targets::Target;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The least time that a bench is given; it always measures one round.
const MIN_TIME: Duration = Duration::from_secs(1);
/// Time for startup and the first rounds, besides three times the share.
const STARTUP_TIME: Duration = Duration::from_secs(120);

pub(super) struct BenchRun {
    /// The name of the bench and its arguments, without `--rounds`, `--within` and `--json`.
    pub(super) arguments: Vec<String>,
    /// Most rounds; none for a bench without rounds.
    pub(super) rounds: Option<u64>,
    /// Its share of the total time.
    pub(super) share: Duration,
    pub(super) kind: Kind,
    pub(super) targets: Vec<Target>,
}

/// How to run a bench.
pub(super) enum Kind {
    Alone,
    /// Against `corral serve` with these arguments; the server's URL is the last argument.
    AgainstServer(Vec<String>),
    /// Not at all: there is no peer or no GPU.
    Skipped,
}

/// The time of a bench.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeBudget {
    /// It starts no round that would end later.
    within: Duration,
    /// It is stopped after this time.
    pub(super) limit: Duration,
}

impl BenchRun {
    /// The bench of `words`, separated by blanks, with the files that are values of options.
    pub(super) fn new(words: &str, files: &[(&str, &Path)]) -> Self {
        let mut arguments: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        for (option, file) in files {
            arguments.extend([(*option).to_owned(), file.to_string_lossy().into_owned()]);
        }
        Self {
            arguments,
            rounds: None,
            share: Duration::ZERO,
            kind: Kind::Alone,
            targets: Vec::new(),
        }
    }

    /// Sets the most rounds.
    pub(super) fn rounds(mut self, rounds: u64) -> Self {
        self.rounds = Some(rounds);
        self
    }

    /// Sets the share of the time.
    pub(super) fn minutes(mut self, minutes: u64) -> Self {
        self.share = Duration::from_secs(60 * minutes);
        self
    }

    pub(super) fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    pub(super) fn targets(mut self, targets: impl Into<Vec<Target>>) -> Self {
        self.targets = targets.into();
        self
    }

    /// The time of a bench that starts after `elapsed`, when the benches before it have the shares `earlier`. It gets the
    /// time that they left, or loses the time that they took too much.
    pub(super) fn time_budget(&self, earlier: Duration, elapsed: Duration) -> TimeBudget {
        let unused = earlier.saturating_sub(elapsed);
        TimeBudget {
            within: (earlier + self.share).saturating_sub(elapsed).max(MIN_TIME),
            limit: 3 * self.share + STARTUP_TIME + unused,
        }
    }

    /// All arguments but `--json`.
    pub(super) fn arguments_within(&self, budget: TimeBudget) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        if let Some(rounds) = self.rounds {
            let within = budget.within.as_secs();
            arguments.extend(["--rounds".to_owned(), rounds.to_string()]);
            arguments.extend(["--within".to_owned(), within.to_string()]);
        }
        arguments
    }

    /// A message if fewer rounds were measured than requested.
    pub(super) fn missing_rounds(&self, result: &Value) -> Option<String> {
        let (requested, measured) = (self.rounds?, result["rounds"].as_u64()?);
        let line = self.arguments.join(" ");
        (measured < requested).then(|| format!("{measured} of {requested} rounds of {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MINUTE: Duration = Duration::from_secs(60);

    fn bench() -> BenchRun {
        BenchRun::new("http", &[]).rounds(7).minutes(4)
    }

    #[test]
    fn unused_time_carries_over() {
        let budget = |earlier, elapsed| {
            let budget = bench().time_budget(earlier * MINUTE, elapsed * MINUTE);
            (budget.within, budget.limit)
        };
        assert_eq!(budget(10, 10), (4 * MINUTE, 14 * MINUTE));
        assert_eq!(budget(10, 3), (11 * MINUTE, 21 * MINUTE));
        assert_eq!(budget(10, 11), (3 * MINUTE, 14 * MINUTE));
        // One round is always measured.
        assert_eq!(budget(10, 30), (MIN_TIME, 14 * MINUTE));
    }

    #[test]
    fn bench_with_rounds_gets_its_time() {
        let budget = bench().time_budget(Duration::ZERO, Duration::ZERO);
        let line = bench().arguments_within(budget).join(" ");
        assert_eq!(line, "http --rounds 7 --within 240");
        let drift = BenchRun::new("latency-drift", &[]);
        assert_eq!(drift.arguments_within(budget), ["latency-drift"]);
    }

    #[test]
    fn missing_rounds_are_reported() {
        let missing = bench().missing_rounds(&json!({"rounds": 5}));
        assert_eq!(missing.as_deref(), Some("5 of 7 rounds of http"));
        assert_eq!(bench().missing_rounds(&json!({"rounds": 7})), None);
        assert_eq!(bench().missing_rounds(&Value::Null), None);
        let drift = BenchRun::new("latency-drift", &[]);
        assert_eq!(drift.missing_rounds(&json!({"rounds": 1})), None);
    }
}
