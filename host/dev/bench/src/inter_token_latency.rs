//! `corral-bench inter-token-latency`: the time between two tokens while prompts are prefilled.
//!
//! A few streams generate all the time. Long and short prompts arrive one after the other, and the bench takes every gap
//! between two tokens of the streams. A pause before and after each prompt leaves the streams alone; its median gap is
//! the decode step. Steps get longer as sequences do, so a gap during a prefill is compared with the decode step
//! interpolated between the pauses around it. Each round measures both prefill policies, the budgeted one with the latency 'stream'.

use crate::args::EngineArgs;
use crate::workload::{check_context, config, exactly, generate, metric, prompt};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::{Caller, Engine, Latency, PrefillPolicy};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct InterTokenLatencyArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Sequences that generate all the time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=32))]
    streams: u64,
    /// Prompts of a round, one after the other; every other one is short
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = whole(2..=10_000))]
    prompts: u64,
    /// Tokens of a long prompt
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = whole(33..=3000))]
    prompt_tokens: u64,
}

/// Tokens of a short prompt.
const SHORT_PROMPT: u64 = 32;
/// Tokens generated after each prompt.
const OUTPUT_TOKENS: u64 = 16;
/// Tokens of a stream's sequence, after which it starts the next one.
const STREAM_TOKENS: u64 = 1200;
/// Tokens of each stream before the first prompt.
const TOKENS_BEFORE: u64 = 50;
/// Tokens of each stream in a pause.
const PAUSE_TOKENS: u32 = 20;

/// A prefill policy, its engine, and its figures.
struct Policy {
    name: &'static str,
    engine: Engine,
    rounds: Vec<Round>,
}

/// The figures of a round. Gaps are multiples of the decode step around them.
struct Round {
    /// The decode step: the median gap without a prefill, in seconds.
    decode_step: f64,
    /// The p99 gap without a prefill: what the machine adds.
    decode_p99: f64,
    gaps: Quantiles,
    gap_seconds: Quantiles,
    /// Seconds from long prompts, and from short ones, to their first tokens.
    first_token: Quantiles,
    short_first_token: Quantiles,
}

const COLUMNS: [Column; 16] = [
    ("prefill", "prefill", Unit::Plain),
    ("decode step", "decode_step_s", Unit::Milliseconds),
    ("its p99/step", "decode_p99_ratio", Unit::Ratio),
    ("p50/step", "p50_ratio", Unit::Ratio),
    ("p99/step", "p99_ratio", Unit::Ratio),
    ("max/step", "max_ratio", Unit::Ratio),
    ("p50", "p50_s", Unit::Milliseconds),
    ("p99", "p99_s", Unit::Milliseconds),
    ("max", "max_s", Unit::Milliseconds),
    ("first token", "first_token_s", Unit::Milliseconds),
    ("first token p99", "first_token_p99_s", Unit::Milliseconds),
    ("max", "first_token_max_s", Unit::Milliseconds),
    ("of short", "short_first_token_s", Unit::Milliseconds),
    (
        "of short p99",
        "short_first_token_p99_s",
        Unit::Milliseconds,
    ),
    ("skipped rows", "skipped_rows", Unit::Whole),
    ("prefill/budget", "prefill_budget_ratio", Unit::Ratio),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &InterTokenLatencyArgs) -> Result<(), Error> {
    let mut policies = Vec::new();
    for (name, prefill) in [
        ("budgeted", PrefillPolicy::default()),
        ("unbudgeted", PrefillPolicy::Unbudgeted),
    ] {
        let stream_cells = args.streams * (SHORT_PROMPT + STREAM_TOKENS);
        let cells = stream_cells + args.prompt_tokens + SHORT_PROMPT + TOKENS_BEFORE;
        let mut config = config(&args.engine, cells)?;
        config.prefill = prefill;
        let engine = Engine::load(config)?;
        // Streams may be cut short by the context.
        let context = engine.info().context;
        check_context(
            context,
            "--prompt-tokens",
            args.prompt_tokens,
            OUTPUT_TOKENS,
        )?;
        policies.push(Policy {
            name,
            engine,
            rounds: Vec::new(),
        });
    }
    let mut rounds = Rounds::with_warmup(args.rounds);
    for number in rounds.by_ref() {
        for policy in &mut policies {
            eprintln!("prefill: {}", policy.name);
            let round = policy.round(args).await?;
            if number > 0 {
                policy.rounds.push(round);
            }
        }
    }
    let rounds = rounds.measured();
    let rows: Vec<_> = policies.iter().map(Policy::report).collect();
    for policy in policies {
        policy.engine.shutdown();
    }
    let setup = json!({
        "bench": "inter-token-latency",
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "rounds": rounds,
    });
    let title = format!(
        "{} streams generate while prompts of {} and {SHORT_PROMPT} tokens arrive; medians of {rounds} rounds, \
         times in ms",
        args.streams, args.prompt_tokens
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

impl Policy {
    async fn round(&self, args: &InterTokenLatencyArgs) -> Result<Round, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut streams = JoinSet::new();
        for number in 0..args.streams {
            let (engine, stop) = (self.engine.clone(), stop.clone());
            streams.spawn(async move { run_stream(&engine, number, &stop).await });
        }
        let warmup = prompt(&self.engine, 999, SHORT_PROMPT);
        let start = Instant::now();
        let times = generate(&self.engine, warmup, TOKENS_BEFORE).await?;
        let steps = u32::try_from(times.len().max(1)).unwrap_or(1);
        let pause = (start.elapsed() / steps) * PAUSE_TOKENS;
        let mut spans = Vec::new();
        let mut first_token = Quantiles::default();
        let mut short_first_token = Quantiles::default();
        let before = Instant::now();
        tokio::time::sleep(pause).await;
        spans.push((before, Instant::now()));
        for number in 0..args.prompts {
            let (length, first_tokens) = match number % 2 {
                0 => (args.prompt_tokens, &mut first_token),
                _ => (SHORT_PROMPT, &mut short_first_token),
            };
            let sent = Instant::now();
            let prompt = prompt(&self.engine, number, length);
            let times = generate(&self.engine, prompt, OUTPUT_TOKENS).await?;
            first_tokens.extend(times.first().map(|&time| (time - sent).as_secs_f64()));
            let end = Instant::now();
            spans.push((sent, end));
            tokio::time::sleep(pause).await;
            spans.push((end, Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        while let Some(stream) = streams.join_next().await {
            times.extend(stream.map_err(Error::context("a stream crashed"))??);
        }
        let (baseline_gaps, prefill_gaps) = split_gaps(&spans, &times);
        let baseline_ratios: Quantiles = baseline_gaps.iter().map(|gap| gap.ratio).collect();
        Ok(Round {
            decode_step: median(baseline_gaps.iter().map(|gap| gap.seconds)),
            decode_p99: baseline_ratios.at(0.99),
            gaps: prefill_gaps.iter().map(|gap| gap.ratio).collect(),
            gap_seconds: prefill_gaps.iter().map(|gap| gap.seconds).collect(),
            first_token,
            short_first_token,
        })
    }

    fn report(&self) -> Value {
        let of = |value: fn(&Round) -> f64| median(self.rounds.iter().map(value));
        let count = |name| metric(&self.engine, name);
        let prefilled = count("corral_engine_mixed_prefill_tokens_total");
        let budget = count("corral_engine_mixed_prefill_budget_tokens_total");
        let quantile = |times: &Quantiles, at| (!times.is_empty()).then(|| times.at(at));
        let p99s = self.rounds.iter().map(|round| round.gaps.at(0.99));
        let p99s: Vec<_> = p99s.collect();
        let [p99, p99_min, p99_max] = median_min_max(&p99s);
        let (mut first, mut short) = (Quantiles::default(), Quantiles::default());
        for round in &self.rounds {
            first.merge(&round.first_token);
            short.merge(&round.short_first_token);
        }
        json!({
            "prefill": self.name,
            "decode_step_s": of(|round| round.decode_step),
            "decode_p99_ratio": of(|round| round.decode_p99),
            "p50_ratio": of(|round| round.gaps.at(0.5)),
            "p99_ratio": p99,
            "p99_ratio_min": p99_min,
            "p99_ratio_max": p99_max,
            "max_ratio": of(|round| round.gaps.at(1.0)),
            "p50_s": of(|round| round.gap_seconds.at(0.5)),
            "p99_s": of(|round| round.gap_seconds.at(0.99)),
            "max_s": of(|round| round.gap_seconds.at(1.0)),
            "first_token_s": quantile(&first, 0.5),
            "first_token_p99_s": quantile(&first, 0.99),
            "first_token_max_s": quantile(&first, 1.0),
            "short_first_token_s": quantile(&short, 0.5),
            "short_first_token_p99_s": quantile(&short, 0.99),
            "short_first_token_max_s": quantile(&short, 1.0),
            "skipped_rows": count("corral_engine_decode_rows_skipped_total"),
            "prefill_budget_ratio": prefilled / budget,
        })
    }
}

/// A gap between two tokens.
#[derive(Debug)]
struct Gap {
    seconds: f64,
    /// The gap as a multiple of the decode step around it.
    ratio: f64,
}

/// Splits gaps into those without a prefill and those during one. `spans` alternates between pauses and prompts and
/// starts and ends with a pause. A gap belongs to the pause that contains it, and to every prompt that it touches.
fn split_gaps(spans: &[(Instant, Instant)], times: &[Vec<Instant>]) -> (Vec<Gap>, Vec<Gap>) {
    let gaps: Vec<_> = times
        .iter()
        .flat_map(|times| times.windows(2))
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let seconds = |(start, end): (Instant, Instant)| (end - start).as_secs_f64();
    let (mut baseline_gaps, mut prefill_gaps) = (Vec::new(), Vec::new());
    let mut steps = Vec::new();
    for &(start, end) in spans.iter().step_by(2) {
        let inside = gaps.iter().filter(|gap| gap.0 >= start && gap.1 <= end);
        let inside: Vec<_> = inside.map(|&gap| seconds(gap)).collect();
        let step = median(inside.iter().copied());
        steps.push(step);
        if step > 0.0 {
            baseline_gaps.extend(inside.into_iter().map(|seconds| Gap {
                seconds,
                ratio: seconds / step,
            }));
        }
    }
    let prompts = spans.iter().skip(1).step_by(2);
    for (&(start, end), around) in prompts.zip(steps.windows(2)) {
        // A pause may be too short for a gap.
        let [before, after] = match *around {
            [before, after] if before > 0.0 && after > 0.0 => [before, after],
            [before, after] => [before.max(after); 2],
            _ => continue,
        };
        if before <= 0.0 {
            continue;
        }
        for &gap in gaps.iter().filter(|gap| gap.1 > start && gap.0 < end) {
            let middle = gap.0 + (gap.1 - gap.0) / 2;
            let elapsed = seconds((start, middle.clamp(start, end)));
            let step = before + (after - before) * elapsed / seconds((start, end)).max(1e-9);
            prefill_gaps.push(Gap {
                seconds: seconds(gap),
                ratio: seconds(gap) / step,
            });
        }
    }
    (baseline_gaps, prefill_gaps)
}

/// A caller whose gaps are never stretched.
fn stream_caller() -> Caller {
    Caller {
        latency: Latency::STREAM,
        ..Caller::default()
    }
}

/// Generates one sequence after the other until `stop` is set; returns the times of each one's tokens.
async fn run_stream(
    engine: &Engine,
    number: u64,
    stop: &AtomicBool,
) -> Result<Vec<Vec<Instant>>, Error> {
    let mut times = vec![Vec::new()];
    let mut generation = None;
    while !stop.load(Ordering::Relaxed) {
        let running = match &mut generation {
            Some(running) => running,
            none => {
                let prompt = prompt(engine, 1000 + number, SHORT_PROMPT);
                let options = exactly(STREAM_TOKENS);
                none.insert(engine.generate(prompt, options, stream_caller())?)
            }
        };
        match running.next().await {
            Some(chunk) => {
                let now = Instant::now();
                if let Some(times) = times.last_mut() {
                    times.extend(chunk.tokens.iter().map(|_| now));
                }
            }
            None => {
                if let Some(Err(error)) = running.outcome() {
                    return Err(error.into());
                }
                generation = None;
                times.push(Vec::new());
            }
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::split_gaps;
    use std::time::{Duration, Instant};

    #[test]
    fn gaps_are_compared_with_interpolated_decode_step() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        // Steps of 10 ms, then two of 30 ms during a prefill, then steps of 20 ms.
        let times: Vec<_> = [0, 10, 20, 30, 40, 70, 100, 120, 140, 160].map(at).to_vec();
        let spans = [(at(0), at(40)), (at(40), at(100)), (at(100), at(160))];
        let (baseline_gaps, prefill_gaps) = split_gaps(&spans, &[times]);
        assert_eq!(baseline_gaps.len(), 4 + 3);
        assert!(
            baseline_gaps
                .iter()
                .all(|gap| (gap.ratio - 1.0).abs() < 1e-6)
        );
        // At 55 ms a decode step takes 12.5 ms, and at 85 ms it takes 17.5 ms.
        let expected = [30.0 / 12.5, 30.0 / 17.5];
        assert_eq!(prefill_gaps.len(), expected.len());
        for (gap, expected) in prefill_gaps.iter().zip(expected) {
            assert!((gap.ratio - expected).abs() < 1e-6, "{prefill_gaps:?}");
        }
    }

    #[test]
    fn pause_without_gap_uses_the_other_pause() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let times: Vec<_> = [0, 10, 20, 50].map(at).to_vec();
        let spans = [(at(0), at(20)), (at(20), at(50)), (at(50), at(51))];
        let (_, prefill_gaps) = split_gaps(&spans, &[times]);
        assert_eq!(prefill_gaps.len(), 1);
        assert!((prefill_gaps[0].ratio - 3.0).abs() < 1e-6);
    }
}
