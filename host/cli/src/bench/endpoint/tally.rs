//! What an endpoint's rounds come to.

use super::drive::Round;
use crate::bench::{float, median, median_and_ends, quantile};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What is compared between endpoints: the member of a report, and in words. Of times it is the median
/// of a round.
pub(super) const COMPARED: [(&str, &str); 5] = [
    ("tokens_per_second", "tok/s"),
    ("requests_per_second", "requests/s"),
    ("first_token_s", "first token"),
    ("gap_s", "gap"),
    ("whole_s", "whole answer"),
];

/// All rounds of one endpoint.
#[derive(Default)]
pub(super) struct Tally {
    /// Of each round, what is compared, in that order; nothing where there was none.
    rounds: Vec<[Option<f64>; COMPARED.len()]>,
    /// Seconds of all answers.
    firsts: Vec<f64>,
    gaps: Vec<f64>,
    wholes: Vec<f64>,
    pub(super) done: u64,
    refused: u64,
    /// Why others failed, how many did, and what one of them was told.
    pub(super) failures: BTreeMap<String, (u64, String)>,
    /// Tokens that were asked for by the answers that came whole, and that were generated.
    asked: u64,
    generated: u64,
    events: u64,
    prompt: u64,
    cached: Option<u64>,
    /// Answers whose tokens the server counted.
    counted: u64,
    late: f64,
}

impl Tally {
    /// Takes note of a round.
    pub(super) fn add(&mut self, round: Round) {
        let (mut firsts, mut gaps, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
        let generated = self.generated;
        for outcome in round.outcomes {
            let answer = match outcome.answer {
                Ok(answer) => answer,
                Err(failure) => {
                    let key = failure.kind.key();
                    let told = self.failures.entry(key).or_insert_with(|| {
                        let said = format!("{}: {}", failure.kind, failure.said);
                        (0, said)
                    });
                    told.0 += 1;
                    continue;
                }
            };
            self.asked += outcome.asked;
            self.events += answer.events;
            match answer.usage {
                Some(usage) => {
                    self.counted += 1;
                    self.prompt += usage.prompt;
                    self.generated += usage.generated;
                    if let Some(cached) = usage.cached {
                        *self.cached.get_or_insert(0) += cached;
                    }
                }
                None => self.generated += answer.events,
            }
            firsts.extend(answer.first);
            gaps.extend(answer.gaps);
            wholes.push(answer.whole);
        }
        let done = wholes.len() as u64;
        let each = |count: u64| Some(float(count) / round.seconds).filter(|_| done > 0);
        let half = |values: &[f64]| (!values.is_empty()).then(|| median(values.iter().copied()));
        self.rounds.push([
            each(self.generated - generated),
            each(done),
            half(&firsts),
            half(&gaps),
            half(&wholes),
        ]);
        self.firsts.append(&mut firsts);
        self.gaps.append(&mut gaps);
        self.wholes.append(&mut wholes);
        self.done += done;
        self.refused += round.refused;
        self.late = self.late.max(round.late);
    }

    /// Beside the endpoint `first`, unless this is that.
    pub(super) fn report(&mut self, url: &str, first: Option<&Tally>) -> Value {
        let speed = |at: usize| {
            let speeds = self.rounds.iter().filter_map(|round| round[at]);
            median_and_ends(&speeds.collect::<Vec<_>>())
        };
        let (tokens, requests) = (speed(0), speed(1));
        let ratios = first.map(|first| self.ratios(first));
        let failures: BTreeMap<_, _> = self
            .failures
            .iter()
            .map(|(key, told)| (key, told.0))
            .collect();
        json!({
            "url": url,
            "done": self.done,
            "failed": self.failures.values().map(|told| told.0).sum::<u64>(),
            "failures": failures,
            "refused_by_client": self.refused,
            "tokens_per_second": tokens[0],
            "tokens_per_second_least": tokens[1],
            "tokens_per_second_most": tokens[2],
            "requests_per_second": requests[0],
            "prompt_tokens": (self.counted > 0).then_some(self.prompt),
            "cached_tokens": self.cached,
            "generated_tokens": self.generated,
            "asked_tokens": self.asked,
            "events": self.events,
            "counted_by": self.counted_by(),
            "first_token_s": spread(&mut self.firsts),
            "gap_s": spread(&mut self.gaps),
            "whole_s": spread(&mut self.wholes),
            "latest_start_s": self.late,
            "ratios": ratios,
        })
    }

    /// Who says how many tokens there were.
    fn counted_by(&self) -> &'static str {
        match self.counted {
            0 => "events",
            counted if counted == self.done => "usage",
            _ => "usage and events",
        }
    }

    fn ratios(&self, first: &Tally) -> Value {
        let mut all = Map::new();
        for (at, (key, _)) in COMPARED.into_iter().enumerate() {
            let of =
                |tally: &Tally| -> Vec<_> { tally.rounds.iter().map(|round| round[at]).collect() };
            let ratio = ratio(&of(self), &of(first));
            let ratio = ratio.map(
                |[median, least, most]| json!({"median": median, "least": least, "most": most}),
            );
            all.insert(key.to_owned(), json!(ratio));
        }
        Value::Object(all)
    }
}

/// Median, least and most of the ratios of each round's value to the other's in the same round; nothing if no
/// round has both.
pub(super) fn ratio(own: &[Option<f64>], other: &[Option<f64>]) -> Option<[f64; 3]> {
    let pairs = own.iter().zip(other);
    let ratios: Vec<f64> = pairs
        .filter_map(|(own, other)| Some((*own)? / other.filter(|other| *other > 0.0)?))
        .collect();
    (!ratios.is_empty()).then(|| median_and_ends(&ratios))
}

/// How values are spread; null if there are none.
fn spread(values: &mut [f64]) -> Value {
    if values.is_empty() {
        return Value::Null;
    }
    json!({
        "p50": quantile(values, 0.5),
        "p90": quantile(values, 0.9),
        "p99": quantile(values, 0.99),
        "max": quantile(values, 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::answer::{Answer, Failure, Kind, Usage};
    use super::super::target::Outcome;
    use super::*;

    fn answer(usage: Option<Usage>, first: f64) -> Outcome {
        let answer = Answer {
            first: Some(first),
            gaps: vec![1.0, 2.0],
            whole: first + 3.0,
            events: 3,
            usage,
        };
        Outcome {
            asked: 5,
            answer: Ok(answer),
        }
    }

    fn round(outcomes: Vec<Outcome>, seconds: f64) -> Round {
        Round {
            outcomes,
            seconds,
            ..Round::default()
        }
    }

    const USAGE: Option<Usage> = Some(Usage {
        prompt: 7,
        cached: None,
        generated: 4,
    });

    #[test]
    fn tokens_are_those_the_server_counts_and_else_those_that_came() {
        let mut tally = Tally::default();
        tally.add(round(vec![answer(USAGE, 1.0), answer(USAGE, 2.0)], 2.0));
        let report = tally.report("a", None);
        assert_eq!(report["counted_by"], "usage");
        assert_eq!(report["generated_tokens"], 8);
        assert_eq!(report["prompt_tokens"], 14);
        assert_eq!(report["cached_tokens"], Value::Null);
        assert_eq!(report["asked_tokens"], 10);
        assert_eq!(report["tokens_per_second"], 4.0);
        assert_eq!(report["requests_per_second"], 1.0);
        assert_eq!(report["gap_s"]["p50"], 1.5);
        assert_eq!(report["whole_s"]["max"], 5.0);
        tally.add(round(vec![answer(None, 1.0)], 1.0));
        let report = tally.report("a", None);
        assert_eq!(report["counted_by"], "usage and events");
        assert_eq!(
            (&report["generated_tokens"], &report["events"]),
            (&json!(11), &json!(9))
        );
        let mut silent = Tally::default();
        silent.add(round(vec![answer(None, 1.0)], 1.0));
        let report = silent.report("a", None);
        assert_eq!(report["counted_by"], "events");
        assert_eq!(report["prompt_tokens"], Value::Null);
    }

    #[test]
    fn failures_are_counted_by_kind_and_not_among_the_answers() {
        let failed = |kind| Outcome {
            asked: 5,
            answer: Err(Failure::new(kind, "x")),
        };
        let mut tally = Tally::default();
        let all = [Kind::Status(500), Kind::Cut, Kind::Status(500)].map(failed);
        tally.add(round(all.into(), 1.0));
        let report = tally.report("a", None);
        assert_eq!(report["failed"], 3);
        assert_eq!(report["failures"], json!({"status_500": 2, "cut": 1}));
        assert_eq!(
            (&report["done"], &report["asked_tokens"]),
            (&json!(0), &json!(0))
        );
        assert_eq!(report["whole_s"], Value::Null);
        assert_eq!(tally.failures["cut"].1, "the answer ended early: x");
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut first = Tally::default();
        let mut second = Tally::default();
        for (one, two) in [(1.0, 2.0), (2.0, 2.0), (4.0, 1.0)] {
            first.add(round(vec![answer(USAGE, one)], one));
            second.add(round(vec![answer(USAGE, two)], two));
        }
        let report = second.report("b", Some(&first));
        let expected = json!({"median": 1.0, "least": 0.5, "most": 4.0});
        assert_eq!(report["ratios"]["tokens_per_second"], expected);
        let expected = json!({"median": 1.0, "least": 0.25, "most": 2.0});
        assert_eq!(report["ratios"]["first_token_s"], expected);
        assert_eq!(first.report("a", None)["ratios"], Value::Null);
    }

    #[test]
    fn a_round_without_its_twin_has_no_ratio() {
        let own = [Some(3.0), None, Some(8.0), Some(1.0)];
        let other = [Some(2.0), Some(1.0), None, Some(0.0)];
        assert_eq!(ratio(&own, &other), Some([1.5; 3]));
        assert_eq!(ratio(&own, &[None]), None);
    }
}
