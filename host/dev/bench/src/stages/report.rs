//! The figures of each stage from the measurements of the rounds.

use super::arrivals::RequestSpan;
use super::cpu_time::Measurement;
use super::stage::Stage;
use corral_cli::bench::stats::{Quantiles, float, median, median_min_max};
use corral_cli::bench::table::{Column, Unit};
use serde_json::{Value, json};

/// A stage and its measurements, round by round.
pub(super) struct StageRounds {
    pub(super) stage: Stage,
    pub(super) own: Vec<Measurement>,
    /// Of its raw loop in the same rounds.
    pub(super) raw: Vec<Measurement>,
    /// Of the raw loop with the same arrivals, for stages with clients.
    pub(super) same_arrivals: Vec<Measurement>,
}

pub(super) const COLUMNS: [Column; 13] = [
    ("stage", "stage", Unit::Plain),
    ("layer", "name", Unit::Plain),
    ("tok/s", "tok_s", Unit::Whole),
    ("ratio to raw", "ratio", Unit::Thousandths),
    ("min", "ratio_min", Unit::Thousandths),
    ("max", "ratio_max", Unit::Thousandths),
    ("tokens a step", "tok_step", Unit::Tenths),
    ("raw's", "raw_tok_step", Unit::Tenths),
    ("µs CPU a token", "cpu_us_per_token", Unit::Tenths),
    ("added", "cpu_us_added", Unit::Tenths),
    ("same arrivals", "same_arrivals_ratio", Unit::Thousandths),
    (
        "response p50 / raw's",
        "answer_p50_ratio",
        Unit::Thousandths,
    ),
    ("p99 / raw's", "answer_p99_ratio", Unit::Thousandths),
];

/// The figures of each stage. Ratios, and differences to the stage below, are taken round by round.
pub(super) fn rows(stages: &[StageRounds]) -> Vec<Value> {
    let below = |stage: &StageRounds| {
        let below = stage.stage.below?;
        stages.iter().find(|other| other.stage.number == below)
    };
    stages
        .iter()
        .map(|stage| row(stage, below(stage)))
        .collect()
}

fn row(stage: &StageRounds, below: Option<&StageRounds>) -> Value {
    let pairs = stage.own.iter().zip(&stage.raw);
    let ratios: Vec<_> = pairs
        .map(|(own, raw)| throughput(own) / throughput(raw))
        .collect();
    let [ratio, min, max] = median_min_max(&ratios);
    let added = below.and_then(|below| {
        let pairs = stage.own.iter().zip(&below.own);
        median_of(pairs.map(|(own, below)| Some(cpu_micros(own)? - cpu_micros(below)?)))
    });
    let pairs = stage.own.iter().zip(&stage.raw);
    let over_raw = median_of(pairs.map(|(own, raw)| Some(cpu_micros(own)? - cpu_micros(raw)?)));
    let response_ratio =
        |quantile| same_arrivals_ratio(stage, |load| response_seconds(load, quantile));
    json!({
        "stage": stage.stage.number,
        "name": stage.stage.name,
        "tok_s": median(stage.own.iter().map(throughput)),
        "raw_tok_s": median(stage.raw.iter().map(throughput)),
        "ratio": ratio,
        "ratio_min": min,
        "ratio_max": max,
        "tok_step": median(stage.own.iter().map(tokens_per_step)),
        "raw_tok_step": median(stage.raw.iter().map(tokens_per_step)),
        "cpu_us_per_token": median_of(stage.own.iter().map(cpu_micros)),
        "cpu_us_added": added,
        "cpu_us_over_raw": over_raw,
        "same_arrivals_ratio": same_arrivals_ratio(stage, |load| Some(throughput(load))),
        "answer_p50_ratio": response_ratio(0.5),
        "answer_p99_ratio": response_ratio(0.99),
    })
}

/// The median ratio of a figure to that of the raw loop with the same arrivals.
fn same_arrivals_ratio(
    stage: &StageRounds,
    figure: impl Fn(&Measurement) -> Option<f64>,
) -> Option<f64> {
    let pairs = stage.own.iter().zip(&stage.same_arrivals);
    median_of(pairs.map(|(own, raw)| Some(figure(own)? / figure(raw)?)))
}

/// A quantile of the response times.
fn response_seconds(load: &Measurement, quantile: f64) -> Option<f64> {
    let times: Quantiles = load.spans.iter().map(RequestSpan::seconds).collect();
    (!times.is_empty()).then(|| times.at(quantile))
}

/// Tokens a second.
fn throughput(load: &Measurement) -> f64 {
    float(load.tokens) / load.seconds
}

/// Generated tokens per step, including steps that only prefill.
fn tokens_per_step(load: &Measurement) -> f64 {
    float(load.tokens) / float(load.steps.max(1))
}

/// Microseconds of CPU time per token.
fn cpu_micros(load: &Measurement) -> Option<f64> {
    Some(1e6 * load.cpu? / float(load.tokens.max(1)))
}

/// The median, unless a value is missing.
fn median_of(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    (!values.is_empty()).then(|| median(values))
}

#[cfg(test)]
mod tests {
    use super::super::stage::STAGES;
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn load(seconds: f64, cpu: Option<f64>) -> Measurement {
        Measurement {
            tokens: 100,
            steps: 20,
            seconds,
            cpu,
            spans: Arc::default(),
        }
    }

    #[test]
    fn ratios_are_medians_of_rounds() {
        // The machine slows down from round to round; the stage has four fifths of the raw loop's throughput.
        let raw: Vec<_> = [1.0, 2.0, 8.0].map(|s| load(s, Some(1e-3))).to_vec();
        let own: Vec<_> = [1.25, 2.5, 10.0].map(|s| load(s, Some(3e-3))).to_vec();
        let stages = [
            StageRounds {
                stage: STAGES[0],
                own: raw.clone(),
                raw: raw.clone(),
                same_arrivals: Vec::new(),
            },
            StageRounds {
                stage: STAGES[1],
                own,
                raw,
                same_arrivals: Vec::new(),
            },
        ];
        let rows = rows(&stages);
        for key in ["ratio", "ratio_min", "ratio_max"] {
            assert_eq!(rows[0][key], 1.0, "{key}");
            let ratio = rows[1][key].as_f64().expect(key);
            assert!((ratio - 0.8).abs() < 1e-9, "{key} {ratio}");
        }
        assert_eq!(rows[1]["tok_s"], 40.0);
        assert_eq!(rows[1]["raw_tok_s"], 50.0);
        assert_eq!(rows[1]["tok_step"], 5.0);
        assert_eq!(rows[1]["raw_tok_step"], 5.0);
        let micros = |row: usize, key: &str| rows[row][key].as_f64();
        assert!(micros(0, "cpu_us_per_token").is_some_and(|time| (time - 10.0).abs() < 1e-6));
        assert!(micros(1, "cpu_us_per_token").is_some_and(|time| (time - 30.0).abs() < 1e-6));
        assert!(micros(1, "cpu_us_added").is_some_and(|time| (time - 20.0).abs() < 1e-6));
        assert!(rows[0]["cpu_us_added"].is_null(), "no stage is below");
    }

    #[test]
    fn same_arrivals_are_compared_within_rounds() {
        let answered = |seconds: f64, times: [u64; 4]| Measurement {
            spans: times
                .map(|time| RequestSpan {
                    sent: Duration::from_secs(100),
                    answered: Duration::from_secs(100 + time),
                })
                .into(),
            ..load(seconds, None)
        };
        let stages = [StageRounds {
            stage: STAGES[3],
            own: vec![
                answered(2.0, [6, 6, 6, 30]),
                answered(20.0, [60, 60, 60, 300]),
            ],
            raw: vec![load(1.0, None), load(10.0, None)],
            same_arrivals: vec![
                answered(1.0, [3, 3, 3, 10]),
                answered(10.0, [30, 30, 30, 100]),
            ],
        }];
        let rows = rows(&stages);
        for (key, expected) in [
            ("same_arrivals_ratio", 0.5),
            ("answer_p50_ratio", 2.0),
            ("answer_p99_ratio", 3.0),
        ] {
            let ratio = rows[0][key].as_f64().expect(key);
            assert!((ratio / expected - 1.0).abs() < 2e-3, "{key} {ratio}");
        }
    }

    #[test]
    fn unknown_figures_are_null() {
        let stages = [StageRounds {
            stage: STAGES[4],
            own: vec![load(1.0, None)],
            raw: vec![load(1.0, None)],
            same_arrivals: Vec::new(),
        }];
        let rows = rows(&stages);
        for (_, key, _) in COLUMNS {
            assert!(rows[0].get(key).is_some(), "{key}");
        }
        for key in [
            "cpu_us_per_token",
            "same_arrivals_ratio",
            "answer_p50_ratio",
        ] {
            assert!(rows[0][key].is_null(), "{key}");
        }
        assert_eq!(rows[0]["name"], STAGES[4].name);
    }
}
