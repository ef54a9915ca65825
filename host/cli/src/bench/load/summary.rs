//! The figures of one endpoint over all rounds.

use super::driver::RoundResults;
use crate::bench::stats::{Quantiles, float, median_min_max};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Figures that are compared between endpoints: the key in a report, and the title. Of times it is the median of a
/// round.
pub(super) const COMPARED: [(&str, &str); 5] = [
    ("tokens_per_second", "tok/s"),
    ("requests_per_second", "requests/s"),
    ("first_token_s", "first token"),
    ("gap_s", "gap"),
    ("whole_s", "whole response"),
];

#[derive(Default)]
pub(super) struct Summary {
    /// The compared figures of each round, in the order of [`COMPARED`].
    rounds: Vec<[Option<f64>; COMPARED.len()]>,
    /// Seconds of all responses.
    first_token: Quantiles,
    gaps: Quantiles,
    total: Quantiles,
    pub(super) done: u64,
    not_sent: u64,
    /// By kind: how many requests failed, and the message of one.
    pub(super) failures: BTreeMap<String, (u64, String)>,
    /// Tokens that complete responses asked for and contained.
    asked: u64,
    generated: u64,
    events: u64,
    prompt: u64,
    cached: Option<u64>,
    /// Responses with a token usage.
    with_usage: u64,
    max_delay: f64,
}

impl Summary {
    pub(super) fn add(&mut self, round: RoundResults) {
        let mut first_token = Quantiles::default();
        let mut gaps = Quantiles::default();
        let mut total = Quantiles::default();
        let (done_before, generated_before) = (self.done, self.generated);
        for result in round.results {
            let response = match result.response {
                Ok(response) => response,
                Err(failure) => {
                    let counted = self.failures.entry(failure.kind.key());
                    let counted = counted.or_insert_with(|| {
                        let message = format!("{}: {}", failure.kind, failure.message);
                        (0, message)
                    });
                    counted.0 += 1;
                    continue;
                }
            };
            self.done += 1;
            self.asked += result.max_tokens;
            self.events += response.events;
            match response.usage {
                Some(usage) => {
                    self.with_usage += 1;
                    self.prompt += usage.prompt;
                    self.generated += usage.generated;
                    if let Some(cached) = usage.cached {
                        *self.cached.get_or_insert(0) += cached;
                    }
                }
                None => self.generated += response.events,
            }
            first_token.extend(response.first_token);
            gaps.extend(response.gaps);
            total.add(response.total);
        }
        let done = self.done - done_before;
        let per_second = |count: u64| (done > 0).then(|| float(count) / round.seconds);
        let median = |times: &Quantiles| (!times.is_empty()).then(|| times.at(0.5));
        self.rounds.push([
            per_second(self.generated - generated_before),
            per_second(done),
            median(&first_token),
            median(&gaps),
            median(&total),
        ]);
        self.first_token.merge(&first_token);
        self.gaps.merge(&gaps);
        self.total.merge(&total);
        self.not_sent += round.not_sent;
        self.max_delay = self.max_delay.max(round.max_delay);
    }

    /// The report as JSON, with ratios to the endpoint `first` if this is another one.
    pub(super) fn report(&self, url: &str, first: Option<&Summary>) -> Value {
        let throughput = |at: usize| {
            let rounds = self.rounds.iter().filter_map(|round| round[at]);
            median_min_max(&rounds.collect::<Vec<_>>())
        };
        let (tokens, requests) = (throughput(0), throughput(1));
        let ratios = first.map(|first| self.ratios(first));
        let failures = self.failures.iter().map(|(key, (count, _))| (key, count));
        json!({
            "url": url,
            "done": self.done,
            "failed": self.failures.values().map(|(count, _)| count).sum::<u64>(),
            "failures": failures.collect::<BTreeMap<_, _>>(),
            "refused_by_client": self.not_sent,
            "tokens_per_second": tokens[0],
            "tokens_per_second_least": tokens[1],
            "tokens_per_second_most": tokens[2],
            "requests_per_second": requests[0],
            "prompt_tokens": (self.with_usage > 0).then_some(self.prompt),
            "cached_tokens": self.cached,
            "generated_tokens": self.generated,
            "asked_tokens": self.asked,
            "events": self.events,
            "counted_by": self.counted_by(),
            "first_token_s": quantiles(&self.first_token),
            "gap_s": quantiles(&self.gaps),
            "whole_s": quantiles(&self.total),
            "latest_start_s": self.max_delay,
            "ratios": ratios,
        })
    }

    /// The source of the token counts.
    fn counted_by(&self) -> &'static str {
        match self.with_usage {
            0 => "events",
            count if count == self.done => "usage",
            _ => "usage and events",
        }
    }

    fn ratios(&self, first: &Summary) -> Value {
        let mut ratios = Map::new();
        for (at, (key, _)) in COMPARED.into_iter().enumerate() {
            let figures = |summary: &Summary| {
                let rounds = summary.rounds.iter().map(|round| round[at]);
                rounds.collect::<Vec<_>>()
            };
            let ratio = ratio(&figures(self), &figures(first));
            let ratio = ratio
                .map(|[median, min, max]| json!({"median": median, "least": min, "most": max}));
            ratios.insert(key.to_owned(), json!(ratio));
        }
        Value::Object(ratios)
    }
}

/// Median, minimum and maximum of the ratios of the rounds in which both have a figure.
pub(super) fn ratio(own: &[Option<f64>], other: &[Option<f64>]) -> Option<[f64; 3]> {
    let pairs = own.iter().zip(other);
    let ratios: Vec<f64> = pairs
        .filter_map(|(own, other)| Some((*own)? / other.filter(|other| *other > 0.0)?))
        .collect();
    (!ratios.is_empty()).then(|| median_min_max(&ratios))
}

fn quantiles(times: &Quantiles) -> Value {
    if times.is_empty() {
        return Value::Null;
    }
    json!({
        "p50": times.at(0.5),
        "p90": times.at(0.9),
        "p99": times.at(0.99),
        "max": times.at(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::RequestResult;
    use super::super::response::{Failure, FailureKind, ResponseTimes, TokenUsage};
    use super::*;

    fn result(usage: Option<TokenUsage>, first_token: f64) -> RequestResult {
        RequestResult {
            max_tokens: 5,
            response: Ok(ResponseTimes {
                first_token: Some(first_token),
                gaps: vec![1.0, 1.0, 2.0],
                total: first_token + 3.0,
                events: 3,
                usage,
            }),
        }
    }

    fn round(results: Vec<RequestResult>, seconds: f64) -> RoundResults {
        RoundResults {
            results,
            seconds,
            ..RoundResults::default()
        }
    }

    /// Whether two figures agree to the precision of quantiles.
    fn close(value: &Value, expected: f64) -> bool {
        value
            .as_f64()
            .is_some_and(|value| (value / expected - 1.0).abs() < 2e-3)
    }

    const USAGE: Option<TokenUsage> = Some(TokenUsage {
        prompt: 7,
        cached: None,
        generated: 4,
    });

    #[test]
    fn usage_counts_tokens_or_else_events() {
        let mut summary = Summary::default();
        summary.add(round(vec![result(USAGE, 1.0), result(USAGE, 2.0)], 2.0));
        let report = summary.report("a", None);
        assert_eq!(report["counted_by"], "usage");
        assert_eq!(report["generated_tokens"], 8);
        assert_eq!(report["prompt_tokens"], 14);
        assert_eq!(report["cached_tokens"], Value::Null);
        assert_eq!(report["asked_tokens"], 10);
        assert_eq!(report["tokens_per_second"], 4.0);
        assert_eq!(report["requests_per_second"], 1.0);
        assert!(close(&report["gap_s"]["p50"], 1.0), "{report}");
        assert!(close(&report["gap_s"]["p99"], 2.0), "{report}");
        assert!(close(&report["whole_s"]["max"], 5.0), "{report}");
        summary.add(round(vec![result(None, 1.0)], 1.0));
        let report = summary.report("a", None);
        assert_eq!(report["counted_by"], "usage and events");
        let counts = (&report["generated_tokens"], &report["events"]);
        assert_eq!(counts, (&json!(11), &json!(9)));
        let mut no_usage = Summary::default();
        no_usage.add(round(vec![result(None, 1.0)], 1.0));
        let report = no_usage.report("a", None);
        assert_eq!(report["counted_by"], "events");
        assert_eq!(report["prompt_tokens"], Value::Null);
    }

    #[test]
    fn failures_are_counted_by_kind() {
        let failed = |kind| RequestResult {
            max_tokens: 5,
            response: Err(Failure::new(kind, "x")),
        };
        let kinds = [
            FailureKind::Status(500),
            FailureKind::Cut,
            FailureKind::Status(500),
        ];
        let mut summary = Summary::default();
        summary.add(round(kinds.map(failed).into(), 1.0));
        let report = summary.report("a", None);
        assert_eq!(report["failed"], 3);
        assert_eq!(report["failures"], json!({"status_500": 2, "cut": 1}));
        let counts = (&report["done"], &report["asked_tokens"]);
        assert_eq!(counts, (&json!(0), &json!(0)));
        assert_eq!(report["whole_s"], Value::Null);
        assert_eq!(summary.failures["cut"].1, "the response ended early: x");
    }

    #[test]
    fn ratios_compare_the_same_round() {
        let (mut first, mut second) = (Summary::default(), Summary::default());
        for (one, two) in [(1.0, 2.0), (2.0, 2.0), (4.0, 1.0)] {
            first.add(round(vec![result(USAGE, one)], one));
            second.add(round(vec![result(USAGE, two)], two));
        }
        let report = second.report("b", Some(&first));
        let expected = json!({"median": 1.0, "least": 0.5, "most": 4.0});
        assert_eq!(report["ratios"]["tokens_per_second"], expected);
        let ratio = &report["ratios"]["first_token_s"];
        for (key, expected) in [("median", 1.0), ("least", 0.25), ("most", 2.0)] {
            assert!(close(&ratio[key], expected), "{ratio}");
        }
        assert_eq!(first.report("a", None)["ratios"], Value::Null);
    }

    #[test]
    fn round_without_counterpart_has_no_ratio() {
        let own = [Some(3.0), None, Some(8.0), Some(1.0)];
        let other = [Some(2.0), Some(1.0), None, Some(0.0)];
        assert_eq!(ratio(&own, &other), Some([1.5; 3]));
        assert_eq!(ratio(&own, &[None]), None);
    }
}
