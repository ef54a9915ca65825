//! The figures of each stage from the measurements of the rounds.

use super::cpu_time::Measurement;
use super::stage::Stage;
use corral_cli::bench::stats::{float, median, set_range};
use corral_cli::bench::table::{Column, Unit};
use serde_json::{Value, json};

/// A stage and its measurements, round by round.
pub(super) struct StageRounds {
    pub(super) stage: Stage,
    pub(super) own: Vec<Measurement>,
    /// Of its raw loop in the same rounds.
    pub(super) raw: Vec<Measurement>,
}

pub(super) const COLUMNS: [Column; 10] = [
    ("stage", "stage", Unit::Plain),
    ("layer", "name", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("ratio to raw", "ratio", Unit::Thousandths),
    ("min", "ratio_min", Unit::Thousandths),
    ("max", "ratio_max", Unit::Thousandths),
    ("tokens a step", "tokens_per_step", Unit::Tenths),
    ("raw's", "raw_tokens_per_step", Unit::Tenths),
    ("µs CPU a token", "cpu_us_per_token", Unit::Tenths),
    ("added", "cpu_us_added", Unit::Tenths),
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
    let ratios = pairs.map(|(own, raw)| throughput(own) / throughput(raw));
    let ratios: Vec<_> = ratios.collect();
    let added = below.and_then(|below| {
        let pairs = stage.own.iter().zip(&below.own);
        median_of(pairs.map(|(own, below)| Some(cpu_micros(own)? - cpu_micros(below)?)))
    });
    let pairs = stage.own.iter().zip(&stage.raw);
    let over_raw = median_of(pairs.map(|(own, raw)| Some(cpu_micros(own)? - cpu_micros(raw)?)));
    let mut row = json!({
        "stage": stage.stage.number,
        "name": stage.stage.name,
        "tokens_per_second": median(stage.own.iter().map(throughput)),
        "raw_tokens_per_second": median(stage.raw.iter().map(throughput)),
        "tokens_per_step": median(stage.own.iter().map(tokens_per_step)),
        "raw_tokens_per_step": median(stage.raw.iter().map(tokens_per_step)),
        "cpu_us_per_token": median_of(stage.own.iter().map(cpu_micros)),
        "cpu_us_added": added,
        "cpu_us_over_raw": over_raw,
    });
    set_range(&mut row, "ratio", &ratios);
    row
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

    fn load(seconds: f64, cpu: Option<f64>) -> Measurement {
        Measurement {
            tokens: 100,
            steps: 20,
            seconds,
            cpu,
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
            },
            StageRounds {
                stage: STAGES[1],
                own,
                raw,
            },
        ];
        let rows = rows(&stages);
        for key in ["ratio", "ratio_min", "ratio_max"] {
            assert_eq!(rows[0][key], 1.0, "{key}");
            let ratio = rows[1][key].as_f64().expect(key);
            assert!((ratio - 0.8).abs() < 1e-9, "{key} {ratio}");
        }
        assert_eq!(rows[1]["tokens_per_second"], 40.0);
        assert_eq!(rows[1]["raw_tokens_per_second"], 50.0);
        assert_eq!(rows[1]["tokens_per_step"], 5.0);
        assert_eq!(rows[1]["raw_tokens_per_step"], 5.0);
        let micros = |row: usize, key: &str| rows[row][key].as_f64();
        assert!(micros(0, "cpu_us_per_token").is_some_and(|time| (time - 10.0).abs() < 1e-6));
        assert!(micros(1, "cpu_us_per_token").is_some_and(|time| (time - 30.0).abs() < 1e-6));
        assert!(micros(1, "cpu_us_added").is_some_and(|time| (time - 20.0).abs() < 1e-6));
        assert!(rows[0]["cpu_us_added"].is_null(), "no stage is below");
    }

    #[test]
    fn unknown_figures_are_null() {
        let stages = [StageRounds {
            stage: STAGES[4],
            own: vec![load(1.0, None)],
            raw: vec![load(1.0, None)],
        }];
        let rows = rows(&stages);
        for (_, key, _) in COLUMNS {
            assert!(rows[0].get(key).is_some(), "{key}");
        }
        assert!(rows[0]["cpu_us_per_token"].is_null());
        assert_eq!(rows[0]["name"], STAGES[4].name);
    }
}
