//! From what each round took to what is told of each stage.

use super::super::table::{Column, Unit};
use super::super::{median, median_and_ends, quantile};
use super::processor::Took;
use super::stage::Stage;
use super::visits::Visit;
use serde_json::{Value, json};

/// A stage and what was found, round by round.
pub(super) struct Found {
    pub(super) stage: Stage,
    pub(super) turns: Vec<Took>,
    /// The raw loop that it is measured beside, in the same rounds.
    pub(super) twins: Vec<Took>,
    /// The raw loop with the arrivals of each of the turns, where clients ask.
    pub(super) same_arrivals: Vec<Took>,
}

pub(super) const COLUMNS: [Column; 13] = [
    ("stage", "stage", Unit::Plain),
    ("what", "name", Unit::Plain),
    ("tok/s", "tok_s", Unit::Whole),
    ("ratio to raw", "ratio", Unit::Thousandths),
    ("least", "ratio_min", Unit::Thousandths),
    ("most", "ratio_max", Unit::Thousandths),
    ("tokens a step", "tok_step", Unit::Tenths),
    ("raw's", "raw_tok_step", Unit::Tenths),
    ("µs CPU a token", "cpu_us_per_token", Unit::Tenths),
    ("added", "cpu_us_added", Unit::Tenths),
    ("same arrivals", "same_arrivals_ratio", Unit::Thousandths),
    ("answer p50 / raw's", "answer_p50_ratio", Unit::Thousandths),
    ("p99 / raw's", "answer_p99_ratio", Unit::Thousandths),
];

/// Each stage in a row: ratios are taken round by round, and so is what it adds to the one below it.
pub(super) fn rows(found: &[Found]) -> Vec<Value> {
    let below = |one: &Found| {
        let below = one.stage.below?;
        found.iter().find(|other| other.stage.number == below)
    };
    found.iter().map(|one| row(one, below(one))).collect()
}

fn row(one: &Found, below: Option<&Found>) -> Value {
    let pairs = one.turns.iter().zip(&one.twins);
    let ratios: Vec<_> = pairs.map(|(own, twin)| speed(own) / speed(twin)).collect();
    let [ratio, least, most] = median_and_ends(&ratios);
    let added = below.and_then(|below| {
        let pairs = one.turns.iter().zip(&below.turns);
        median_of(pairs.map(|(own, below)| Some(micros(own)? - micros(below)?)))
    });
    let pairs = one.turns.iter().zip(&one.twins);
    let over_raw = median_of(pairs.map(|(own, twin)| Some(micros(own)? - micros(twin)?)));
    let answers = |part| same_arrivals_ratio(one, |took| answer_time(took, part));
    json!({
        "stage": one.stage.number,
        "name": one.stage.name,
        "tok_s": median(one.turns.iter().map(speed)),
        "raw_tok_s": median(one.twins.iter().map(speed)),
        "ratio": ratio,
        "ratio_min": least,
        "ratio_max": most,
        "tok_step": median(one.turns.iter().map(together)),
        "raw_tok_step": median(one.twins.iter().map(together)),
        "cpu_us_per_token": median_of(one.turns.iter().map(micros)),
        "cpu_us_added": added,
        "cpu_us_over_raw": over_raw,
        "same_arrivals_ratio": same_arrivals_ratio(one, |took| Some(speed(took))),
        "answer_p50_ratio": answers(0.5),
        "answer_p99_ratio": answers(0.99),
    })
}

/// What a turn has by what the raw loop has with the same arrivals: the median of the rounds.
fn same_arrivals_ratio(one: &Found, of: impl Fn(&Took) -> Option<f64>) -> Option<f64> {
    let pairs = one.turns.iter().zip(&one.same_arrivals);
    median_of(pairs.map(|(own, raw)| Some(of(own)? / of(raw)?)))
}

/// Seconds within which such a part of the requests was answered.
fn answer_time(took: &Took, part: f64) -> Option<f64> {
    let mut times: Vec<_> = took.visits.iter().map(Visit::seconds).collect();
    (!times.is_empty()).then(|| quantile(&mut times, part))
}

/// Tokens a second.
#[allow(clippy::cast_precision_loss)]
fn speed(took: &Took) -> f64 {
    took.tokens as f64 / took.seconds
}

/// Generated tokens by steps, of which some read prompts alone.
#[allow(clippy::cast_precision_loss)]
fn together(took: &Took) -> f64 {
    took.tokens as f64 / took.steps.max(1) as f64
}

/// Microseconds of processor time a token.
#[allow(clippy::cast_precision_loss)]
fn micros(took: &Took) -> Option<f64> {
    Some(1e6 * took.processor? / took.tokens.max(1) as f64)
}

/// None where one of them is missing.
fn median_of(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    (!values.is_empty()).then(|| median(values.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::super::stage::STAGES;
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn took(seconds: f64, processor: Option<f64>) -> Took {
        Took {
            tokens: 100,
            steps: 20,
            seconds,
            processor,
            visits: Arc::default(),
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine got slower from round to round, and the stage has four fifths of the raw loop's speed.
        let raw: Vec<_> = [1.0, 2.0, 8.0].map(|s| took(s, Some(1e-3))).to_vec();
        let turns: Vec<_> = [1.25, 2.5, 10.0].map(|s| took(s, Some(3e-3))).to_vec();
        let found = [
            Found {
                stage: STAGES[0],
                turns: raw.clone(),
                twins: raw.clone(),
                same_arrivals: Vec::new(),
            },
            Found {
                stage: STAGES[1],
                turns,
                twins: raw,
                same_arrivals: Vec::new(),
            },
        ];
        let rows = rows(&found);
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
        assert!(rows[0]["cpu_us_added"].is_null(), "nothing is below it");
    }

    #[test]
    fn the_same_arrivals_are_compared_round_by_round() {
        let answered = |seconds: f64, times: [u64; 4]| Took {
            visits: times
                .map(|time| Visit {
                    asked: Duration::from_secs(100),
                    answered: Duration::from_secs(100 + time),
                })
                .into(),
            ..took(seconds, None)
        };
        let found = [Found {
            stage: STAGES[3],
            turns: vec![
                answered(2.0, [6, 6, 6, 30]),
                answered(20.0, [60, 60, 60, 300]),
            ],
            twins: vec![took(1.0, None), took(10.0, None)],
            same_arrivals: vec![
                answered(1.0, [3, 3, 3, 10]),
                answered(10.0, [30, 30, 30, 100]),
            ],
        }];
        let rows = rows(&found);
        for (key, expected) in [
            ("same_arrivals_ratio", 0.5),
            ("answer_p50_ratio", 2.0),
            // 0.97 of the way from the third to the fourth: 6 to 30, and 3 to 10.
            ("answer_p99_ratio", 29.28 / 9.79),
        ] {
            let ratio = rows[0][key].as_f64().expect(key);
            assert!((ratio - expected).abs() < 1e-9, "{key} {ratio}");
        }
    }

    #[test]
    fn every_column_has_its_member_and_what_is_not_known_is_null() {
        let found = [Found {
            stage: STAGES[4],
            turns: vec![took(1.0, None)],
            twins: vec![took(1.0, None)],
            same_arrivals: Vec::new(),
        }];
        let rows = rows(&found);
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
