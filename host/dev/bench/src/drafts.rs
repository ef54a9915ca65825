//! `corral-bench drafts`: tokens a second with a draft model and without, by the number of streams.
//!
//! Each stream asks one question of the demo model after the other, so the model must be that one, or the same
//! [padded](crate::model). Both variants run in one engine in turns: a request without drafts says so. Answers are
//! compared; a step of other rows rounds differently, so a few may differ.

use crate::args::{EngineArgs, check_distinct};
use crate::workload::{config, metric};
use clap::Args;
use corral_cli::Error;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::{Caller, Engine, GenerateOptions};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct DraftsArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The draft model
    #[arg(long, value_name = "FILE")]
    draft: PathBuf,
    /// Numbers of streams
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1_u16, 2, 4, 8],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: Vec<u16>,
    /// Questions of each stream in a round
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    questions: u32,
}

/// Most tokens of an answer.
const MAX_TOKENS: u32 = 80;
/// Cells of a stream: a question and its answer.
const STREAM_CELLS: u64 = 512;

/// Figures of one number of streams.
#[derive(Default)]
struct StreamsRow {
    streams: u16,
    /// Of each round, without and with the draft model.
    plain: Vec<Run>,
    drafted: Vec<Run>,
    different: u64,
}

/// One variant in a round.
struct Run {
    tokens: u64,
    seconds: f64,
    gaps: Quantiles,
    counted: Counters,
    texts: Vec<Vec<String>>,
}

/// Counters of the engine, or their growth.
#[derive(Clone, Copy)]
struct Counters {
    steps: f64,
    accepted: f64,
    rejected: f64,
    draft_seconds: f64,
}

const COLUMNS: [Column; 12] = [
    ("streams", "streams", Unit::Plain),
    ("tokens/s", "plain_tokens_per_s", Unit::Tenths),
    ("with drafts", "draft_tokens_per_s", Unit::Tenths),
    ("ratio", "ratio", Unit::Ratio),
    ("min", "ratio_min", Unit::Ratio),
    ("max", "ratio_max", Unit::Ratio),
    ("tokens/step", "tokens_per_step", Unit::Ratio),
    ("accepted", "accepted_ratio", Unit::Ratio),
    ("drafting time", "drafting_ratio", Unit::Ratio),
    ("gap p99", "plain_gap_p99_s", Unit::Milliseconds),
    ("with drafts", "draft_gap_p99_s", Unit::Milliseconds),
    ("other answers", "different_answers", Unit::Plain),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &DraftsArgs) -> Result<(), Error> {
    check_distinct("--streams", &args.streams)?;
    let most = args.streams.iter().copied().max().unwrap_or(1);
    let mut config = config(&args.engine, u64::from(most) * STREAM_CELLS)?;
    config.draft = Some(args.draft.clone());
    let engine = Engine::load(config)?;
    let row = |&streams: &u16| StreamsRow {
        streams,
        ..StreamsRow::default()
    };
    let mut rows: Vec<_> = args.streams.iter().map(row).collect();
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        for row in &mut rows {
            let first = u64::from(args.questions) * u64::from(most) * round;
            let plain = Run::new(&engine, args, (row.streams, first), Some(0)).await?;
            let drafted = Run::new(&engine, args, (row.streams, first), None).await?;
            if round > 0 {
                let pairs = plain
                    .texts
                    .iter()
                    .flatten()
                    .zip(drafted.texts.iter().flatten());
                row.different += pairs.filter(|(a, b)| a != b).count() as u64;
                row.plain.push(plain);
                row.drafted.push(drafted);
            }
        }
    }
    let rounds = rounds.measured();
    engine.shutdown();
    let rows: Vec<_> = rows.iter().map(StreamsRow::report).collect();
    let setup = json!({
        "bench": "drafts",
        "questions": args.questions,
        "rounds": rounds,
    });
    let title = format!(
        "{} questions in each stream, without and with a draft model; medians of {rounds} rounds, gaps between tokens in ms",
        args.questions
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

impl StreamsRow {
    fn report(&self) -> Value {
        let ratios = self.plain.iter().zip(&self.drafted);
        let ratios = ratios.map(|(plain, drafted)| drafted.rate() / plain.rate());
        let ratios: Vec<_> = ratios.collect();
        let [ratio, min, max] = median_min_max(&ratios);
        let sum = |of: fn(&Run) -> f64| self.drafted.iter().map(of).sum::<f64>();
        let accepted = sum(|run| run.counted.accepted);
        let computed = accepted + sum(|run| run.counted.rejected);
        let p99 = |runs: &[Run]| median(runs.iter().map(|run| run.gaps.at(0.99)));
        json!({
            "streams": self.streams,
            "plain_tokens_per_s": median(self.plain.iter().map(Run::rate)),
            "draft_tokens_per_s": median(self.drafted.iter().map(Run::rate)),
            "ratio": ratio,
            "ratio_min": min,
            "ratio_max": max,
            "tokens_per_step": sum(|run| run.tokens as f64) / sum(|run| run.counted.steps),
            "accepted_ratio": (computed > 0.0).then(|| accepted / computed),
            "drafting_ratio": sum(|run| run.counted.draft_seconds) / sum(|run| run.seconds),
            "plain_gap_p99_s": p99(&self.plain),
            "draft_gap_p99_s": p99(&self.drafted),
            "different_answers": self.different,
        })
    }
}

impl Run {
    /// Runs streams that ask the questions from number `first` on.
    async fn new(
        engine: &Engine,
        args: &DraftsArgs,
        (streams, first): (u16, u64),
        max_draft_tokens: Option<u8>,
    ) -> Result<Self, Error> {
        let before = Counters::of(engine);
        let start = Instant::now();
        let mut running = JoinSet::new();
        for stream in 0..u64::from(streams) {
            let engine = engine.clone();
            // At any time the streams ask questions of different tasks. With answers of the same length they would stay in
            // step without drafts, share the steps of their prompts, and lose that with drafts.
            let numbers = (0..u64::from(args.questions))
                .map(move |turn| first + turn * u64::from(streams) + stream);
            running.spawn(async move {
                let mut answers = Vec::new();
                for number in numbers {
                    answers.push(answer(&engine, &question(number), max_draft_tokens).await?);
                }
                Ok::<_, Error>((stream, answers))
            });
        }
        let mut run = Self {
            tokens: 0,
            seconds: 0.0,
            gaps: Quantiles::default(),
            counted: before,
            texts: vec![Vec::new(); usize::from(streams)],
        };
        while let Some(stream) = running.join_next().await {
            let (stream, answers) = stream.map_err(Error::context("a stream crashed"))??;
            for answer in answers {
                run.tokens += answer.times.len() as u64;
                let gaps = answer.times.windows(2);
                run.gaps
                    .extend(gaps.map(|pair| (pair[1] - pair[0]).as_secs_f64()));
                run.texts[stream as usize].push(answer.text);
            }
        }
        run.seconds = start.elapsed().as_secs_f64();
        let after = Counters::of(engine);
        run.counted = Counters {
            steps: after.steps - before.steps,
            accepted: after.accepted - before.accepted,
            rejected: after.rejected - before.rejected,
            draft_seconds: after.draft_seconds - before.draft_seconds,
        };
        Ok(run)
    }

    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

impl Counters {
    fn of(engine: &Engine) -> Self {
        let get = |name: &str| metric(engine, &format!("corral_engine_{name}_total"));
        Self {
            steps: get("steps"),
            accepted: get("draft_model_tokens_accepted"),
            rejected: get("draft_model_tokens_rejected"),
            draft_seconds: get("draft_model_seconds"),
        }
    }
}

struct Answer {
    text: String,
    /// When each token arrived.
    times: Vec<Instant>,
}

async fn answer(
    engine: &Engine,
    question: &str,
    max_draft_tokens: Option<u8>,
) -> Result<Answer, Error> {
    let options = GenerateOptions {
        max_tokens: MAX_TOKENS,
        max_draft_tokens,
        ..GenerateOptions::default()
    };
    let tokens = engine.tokenize(question, true)?;
    let mut generation = engine.generate(tokens, options, Caller::default())?;
    let mut answer = Answer {
        text: String::new(),
        times: Vec::new(),
    };
    while let Some(chunk) = generation.next().await {
        let now = Instant::now();
        answer.times.extend(chunk.tokens.iter().map(|_| now));
        answer.text.push_str(&chunk.text);
    }
    generation.outcome().transpose()?;
    Ok(answer)
}

/// A question of the demo model; its tasks take turns.
fn question(number: u64) -> String {
    const NAMES: [&str; 6] = ["Ada", "Tom", "Eve", "Max", "Zoe", "Kim"];
    const WORDS: [&str; 6] = ["table", "river", "stone", "green", "paper", "light"];
    let pick = |from: [&'static str; 6], by: u64| from[(number / by % 6) as usize];
    let (a, b) = (number * 37 % 90 + 5, number * 53 % 90 + 5);
    let (name, word) = (pick(NAMES, 1), pick(WORDS, 7));
    match number % 6 {
        0 => format!("{a}+{b}="),
        1 => format!("{name} is {a} years old\n"),
        2 => format!("tools: calculator\nWhat is {a}+{b}?\n"),
        3 => format!("repeat: {name} looks at the {word}\n"),
        4 => format!("reverse: {word}\n"),
        _ => format!("tools: calculator\nCompute {a}*{b}.\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;

    #[test]
    fn numbers_of_streams_are_distinct() {
        let args = parse::<DraftsArgs>("--model a --draft b --streams 1,1").expect("valid");
        let error = check_distinct("--streams", &args.streams).expect_err("twice");
        assert!(error.message(false).contains("--streams"));
        assert!(parse::<DraftsArgs>("--model a").is_err(), "no draft model");
    }

    #[test]
    fn questions_cover_the_tasks() {
        assert_eq!(question(0), "5+5=");
        let all: Vec<_> = (0..12).map(question).collect();
        for part in ["years old", "calculator", "repeat: ", "reverse: ", "*"] {
            assert!(all.iter().any(|one| one.contains(part)), "{part}: {all:?}");
        }
    }
}
