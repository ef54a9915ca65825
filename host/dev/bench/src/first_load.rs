//! `corral-bench first-load`: from the load of a model file to its first token, by what precedes the load.
//!
//! Each variant loads the model in this process and generates one token. A file is checked in a child process before
//! its first load. The variants take turns, and each is compared with the load without a check in the same round. The
//! file lies in the page cache after the warm-up.

use crate::args::EngineArgs;
use crate::workload::{config, generate, prompt};
use clap::Args;
use corral_cli::Error;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::isolated_job;
use corral_engine::{Engine, FileAccess, ModelCheck};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct FirstLoadArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// Tokens of the prompt.
const PROMPT_TOKENS: u64 = 16;

/// How the file is loaded.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    /// Mapped, as `--mmap` does, without a check.
    Mapped,
    /// Read, without a check.
    Unchecked,
    /// Read; the file passed its check before.
    Checked,
    /// Checked and read.
    First,
}

impl Variant {
    const ALL: [Self; 4] = [
        Variant::Mapped,
        Variant::Unchecked,
        Variant::Checked,
        Variant::First,
    ];

    fn name(self) -> &'static str {
        match self {
            Variant::Mapped => "mapped, no check",
            Variant::Unchecked => "read, no check",
            Variant::Checked => "read, checked before",
            Variant::First => "read, first load",
        }
    }
}

const COLUMNS: [Column; 6] = [
    ("file", "file", Unit::Plain),
    ("first token", "first_token_s", Unit::Milliseconds),
    ("min", "first_token_min_s", Unit::Milliseconds),
    ("max", "first_token_max_s", Unit::Milliseconds),
    ("to mapped", "ratio_to_mapped", Unit::Ratio),
    ("to no check", "ratio_to_unchecked", Unit::Ratio),
];

/// Seconds of each variant in a round, in the order of [`Variant::ALL`].
type Round = [f64; Variant::ALL.len()];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &FirstLoadArgs) -> Result<(), Error> {
    let known = Arc::new(new_check()?);
    let mut measured = Vec::new();
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        let mut seconds = Round::default();
        for (index, variant) in Variant::ALL.into_iter().enumerate() {
            seconds[index] = load(args, variant, &known).await?;
        }
        // The check of round 0 counts for all rounds.
        if round > 0 {
            measured.push(seconds);
        }
    }
    let rows = Variant::ALL.map(|variant| report(variant, &measured));
    let rounds = rounds.measured();
    let setup = json!({"bench": "first-load", "rounds": rounds});
    let title = format!(
        "from the load of a model file to its first token, ms; medians of {rounds} rounds, and of the ratios within them"
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

/// A check that knows no file.
fn new_check() -> Result<ModelCheck, Error> {
    Ok(ModelCheck::new(isolated_job::children()?, None, None))
}

/// Loads the model and generates a token; returns the seconds.
async fn load(
    args: &FirstLoadArgs,
    variant: Variant,
    known: &Arc<ModelCheck>,
) -> Result<f64, Error> {
    let mut config = config(&args.engine, 0)?;
    config.check = match variant {
        Variant::Mapped | Variant::Unchecked => None,
        Variant::Checked => Some(known.clone()),
        Variant::First => Some(Arc::new(new_check()?)),
    };
    if variant == Variant::Mapped {
        config.file_access = FileAccess::Map;
    }
    let start = Instant::now();
    let engine = Engine::load(config)?;
    generate(&engine, prompt(&engine, 0, PROMPT_TOKENS), 1).await?;
    let seconds = start.elapsed().as_secs_f64();
    engine.shutdown();
    Ok(seconds)
}

fn report(variant: Variant, rounds: &[Round]) -> Value {
    let of = |round: &Round, variant: Variant| round[variant as usize];
    let seconds: Vec<_> = rounds.iter().map(|round| of(round, variant)).collect();
    let [first_token, min, max] = median_min_max(&seconds);
    let ratios = |base| {
        rounds
            .iter()
            .map(move |round| of(round, variant) / of(round, base))
    };
    let [to_mapped, to_mapped_min, to_mapped_max] =
        median_min_max(&Vec::from_iter(ratios(Variant::Mapped)));
    json!({
        "file": variant.name(),
        "first_token_s": first_token,
        "first_token_min_s": min,
        "first_token_max_s": max,
        "ratio_to_mapped": to_mapped,
        "ratio_to_mapped_min": to_mapped_min,
        "ratio_to_mapped_max": to_mapped_max,
        "ratio_to_unchecked": median(ratios(Variant::Unchecked)),
    })
}
