//! One bench of all, and for how long it may run.

use super::targets::Target;
use serde_json::Value;
use std::time::Duration;

/// The shortest time in which a bench is asked to be through: it measures one round in any case.
const LEAST: Duration = Duration::from_secs(1);
/// What a bench may take before its rounds and for those that it needs in any case, beside three times its share.
const START: Duration = Duration::from_secs(120);

/// One bench.
pub(super) struct Part {
    /// What stands after `corral bench`, but for `--rounds`, `--within` and `--json`.
    pub(super) words: Vec<String>,
    /// The rounds that it is asked for, which it leaves out where they would take too long; none if it has none.
    pub(super) rounds: Option<u64>,
    /// What it takes of the time of all.
    pub(super) share: Duration,
    pub(super) way: Way,
    pub(super) targets: Vec<Target>,
}

/// How a bench is run.
pub(super) enum Way {
    /// By itself.
    Alone,
    /// Against `corral serve` with these words, which is there for as long as the bench runs; its URL comes
    /// after the peer's.
    Against(Vec<String>),
    /// Not at all: there is nobody to compare with.
    Not,
}

/// For how long a bench may run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Time {
    /// It begins no round that would be through later.
    within: Duration,
    /// Then it is stopped.
    pub(super) limit: Duration,
}

impl Part {
    /// With rounds, and `minutes` as its share.
    pub(super) fn in_rounds(words: Vec<String>, rounds: u64, minutes: u64) -> Self {
        Self {
            rounds: Some(rounds),
            ..Self::whole(words, minutes)
        }
    }

    /// Without rounds, and `minutes` as its share.
    pub(super) fn whole(words: Vec<String>, minutes: u64) -> Self {
        Self {
            words,
            rounds: None,
            share: Duration::from_secs(60 * minutes),
            way: Way::Alone,
            targets: Vec::new(),
        }
    }

    pub(super) fn targets(mut self, targets: Vec<Target>) -> Self {
        self.targets = targets;
        self
    }

    /// For how long it may run if it begins after `elapsed`, and the parts before it have the shares `before`. What they left
    /// of them is its own too, and what they took beyond them it does without.
    pub(super) fn time(&self, before: Duration, elapsed: Duration) -> Time {
        let left = before.saturating_sub(elapsed);
        Time {
            within: (before + self.share).saturating_sub(elapsed).max(LEAST),
            limit: 3 * self.share + START + left,
        }
    }

    /// All words for a run of such a time, but for `--json`.
    pub(super) fn line(&self, time: Time) -> Vec<String> {
        let mut words = self.words.clone();
        if let Some(rounds) = self.rounds {
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
            words.extend(["--within".to_owned(), time.within.as_secs().to_string()]);
        }
        words
    }

    /// What is to be said if it measured fewer rounds than it was asked for.
    pub(super) fn fewer(&self, found: &Value) -> Option<String> {
        let (asked, measured) = (self.rounds?, found["rounds"].as_u64()?);
        let words = self.words.join(" ");
        (measured < asked).then(|| format!("{measured} of {asked} rounds: corral bench {words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MINUTE: Duration = Duration::from_secs(60);

    fn part() -> Part {
        Part::in_rounds(vec!["gap".to_owned()], 7, 4)
    }

    #[test]
    fn what_others_left_is_for_those_after_them_and_what_they_took_too_much_is_not() {
        let time = |before, elapsed| {
            let time = part().time(before * MINUTE, elapsed * MINUTE);
            (time.within, time.limit)
        };
        assert_eq!(time(10, 10), (4 * MINUTE, 14 * MINUTE));
        assert_eq!(time(10, 3), (11 * MINUTE, 21 * MINUTE));
        assert_eq!(time(10, 11), (3 * MINUTE, 14 * MINUTE));
        // One round is measured all the same, and not stopped for what others took.
        assert_eq!(time(10, 30), (LEAST, 14 * MINUTE));
    }

    #[test]
    fn a_bench_with_rounds_is_told_its_time() {
        let time = part().time(Duration::ZERO, Duration::ZERO);
        assert_eq!(part().line(time).join(" "), "gap --rounds 7 --within 240");
        let whole = Part::whole(vec!["flat".to_owned()], 1);
        assert_eq!(whole.line(time), ["flat"]);
    }

    #[test]
    fn rounds_that_were_left_out_are_told() {
        let fewer = part().fewer(&json!({"rounds": 5}));
        assert_eq!(fewer.as_deref(), Some("5 of 7 rounds: corral bench gap"));
        assert_eq!(part().fewer(&json!({"rounds": 7})), None);
        assert_eq!(part().fewer(&Value::Null), None);
        let whole = Part::whole(vec!["flat".to_owned()], 1);
        assert_eq!(whole.fewer(&json!({"rounds": 1})), None);
    }
}
