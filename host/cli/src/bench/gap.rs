//! `corral bench gap`: the time between two tokens while prompts are read.
//!
//! A few sequences generate without end. Long and short prompts come, one after the other, and every
//! gap between two tokens of the generating sequences is taken. Before and after each prompt there is a
//! pause, in which they are alone: its median gap is the decode step. Steps get longer as the sequences do, so a gap
//! while a prompt is read is compared with the decode step of its time, between that of the pause before and that of
//! the pause after. Both ways of reading prompts are measured in each round.

use super::load::{check_room, config, generate, metric, prompt};
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{median, median_and_ends, quantile};
use crate::arguments::GapBench;
use crate::complaint::Complaint;
use corral_engine::{Caller, Engine, Error, Options, PrefillPolicy};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// Tokens of a short prompt, and what follows each prompt.
const SHORT: u64 = 32;
const AFTER: u64 = 16;
/// Tokens of a background sequence; when they are through, the next one begins.
const BACKGROUND: u64 = 1200;
/// Tokens of each background sequence that pass before the first prompt comes, and of a pause.
const ALONE: u64 = 50;
const PAUSE: u32 = 20;

/// One way of reading prompts, and what was found.
struct Way {
    name: &'static str,
    engine: Engine,
    rounds: Vec<Round>,
}

/// Of one round. Gaps are told as multiples of the decode step around them, and their tails in seconds as well.
struct Round {
    /// The decode step: the median gap without prompts, in seconds.
    decode: f64,
    /// What the machine adds to it.
    decode_p99: f64,
    p50: f64,
    p99: f64,
    longest: f64,
    /// The same three, in seconds.
    seconds: [f64; 3],
    /// From prompts to their first tokens, in seconds: of long ones, and of short ones.
    first: Vec<f64>,
    first_of_short: Vec<f64>,
}

const COLUMNS: [Column; 14] = [
    ("prefill", "prefill", Unit::Plain),
    ("decode step", "decode_step_s", Unit::Milliseconds),
    ("its p99/step", "decode_p99_ratio", Unit::Ratio),
    ("p50/step", "p50_ratio", Unit::Ratio),
    ("p99/step", "p99_ratio", Unit::Ratio),
    ("longest/step", "max_ratio", Unit::Ratio),
    ("p50", "p50_s", Unit::Milliseconds),
    ("p99", "p99_s", Unit::Milliseconds),
    ("longest", "max_s", Unit::Milliseconds),
    ("first token", "first_token_s", Unit::Milliseconds),
    ("first token p99", "first_token_p99_s", Unit::Milliseconds),
    ("latest", "first_token_max_s", Unit::Milliseconds),
    ("of short", "short_first_token_s", Unit::Milliseconds),
    (
        "of short p99",
        "short_first_token_p99_s",
        Unit::Milliseconds,
    ),
];

/// Measures and prints.
pub(super) async fn measure(arguments: &GapBench) -> Result<(), Complaint> {
    let mut ways = Vec::new();
    for (name, prefill) in [
        ("budgeted", PrefillPolicy::default()),
        ("slot order", PrefillPolicy::SlotOrder),
    ] {
        let cells = arguments.streams * (SHORT + BACKGROUND) + arguments.length + SHORT + ALONE;
        let mut config = config(&arguments.measuring, arguments.threads, cells)?;
        config.prefill = prefill;
        let engine = Engine::load(config)?;
        // The engine cuts the others down to what the context leaves them.
        check_room(engine.info().context, "--length", arguments.length, AFTER)?;
        ways.push(Way {
            name,
            engine,
            rounds: Vec::new(),
        });
    }
    let mut rounds = Rounds::after_one(arguments.measuring.rounds);
    for number in rounds.by_ref() {
        for way in &mut ways {
            eprintln!("prompts are read {}", way.name);
            let round = way.round(arguments).await?;
            // The first one warms up: the cost model, caches, threads.
            if number > 0 {
                way.rounds.push(round);
            }
        }
    }
    let rounds = rounds.measured();
    let rows: Vec<_> = ways.iter().map(Way::report).collect();
    for way in ways {
        way.engine.shutdown();
    }
    let setup = json!({
        "bench": "gap",
        "streams": arguments.streams,
        "length": arguments.length,
        "rounds": rounds,
    });
    let title = format!(
        "{} sequences generate while prompts of {} and {SHORT} tokens come; medians of {rounds} rounds, times in ms",
        arguments.streams, arguments.length
    );
    tell(arguments.measuring.json, setup, &title, &COLUMNS, &rows);
    for row in rows.iter().filter(|_| !arguments.measuring.json) {
        println!(
            "{}: {} generating rows skipped; {} prompt tokens in mixed steps, {} allowed",
            row["prefill"].as_str().unwrap_or(""),
            row["skipped_rows"],
            row["mixed_prefill_tokens"],
            row["mixed_budget_tokens"],
        );
    }
    Ok(())
}

impl Way {
    async fn round(&self, arguments: &GapBench) -> Result<Round, Complaint> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut streams = JoinSet::new();
        for number in 0..arguments.streams {
            let (engine, stop) = (self.engine.clone(), stop.clone());
            streams.spawn(async move { background(&engine, number, &stop).await });
        }
        let pilot = prompt(&self.engine, 999, SHORT);
        let began = Instant::now();
        let times = generate(&self.engine, pilot, ALONE).await?;
        let steps = u32::try_from(times.len().max(1)).unwrap_or(1);
        let pause = (began.elapsed() / steps) * PAUSE;
        let (mut spans, mut first, mut first_of_short) = (Vec::new(), Vec::new(), Vec::new());
        let before = Instant::now();
        tokio::time::sleep(pause).await;
        spans.push((before, Instant::now()));
        for number in 0..arguments.prompts {
            let length = if number % 2 == 0 {
                arguments.length
            } else {
                SHORT
            };
            let sent = Instant::now();
            let times = generate(&self.engine, prompt(&self.engine, number, length), AFTER).await?;
            let told = times.first().map(|&time| (time - sent).as_secs_f64());
            match length == SHORT {
                true => first_of_short.extend(told),
                false => first.extend(told),
            }
            let read = Instant::now();
            spans.push((sent, read));
            tokio::time::sleep(pause).await;
            spans.push((read, Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        while let Some(of_one) = streams.join_next().await {
            times.extend(of_one.map_err(Complaint::telling("a stream crashed"))??);
        }
        let (alone, mixed) = ratios(&spans, &times);
        let (steps, mut alone): (Vec<_>, Vec<_>) = alone.into_iter().unzip();
        let (mut gaps, mut mixed): (Vec<_>, Vec<_>) = mixed.into_iter().unzip();
        Ok(Round {
            decode: median(steps.into_iter()),
            decode_p99: quantile(&mut alone, 0.99),
            p50: quantile(&mut mixed, 0.5),
            p99: quantile(&mut mixed, 0.99),
            longest: quantile(&mut mixed, 1.0),
            seconds: [0.5, 0.99, 1.0].map(|part| quantile(&mut gaps, part)),
            first,
            first_of_short,
        })
    }

    fn report(&self) -> Value {
        let of = |value: fn(&Round) -> f64| median(self.rounds.iter().map(value));
        let count = |name| metric(&self.engine, name);
        let of_times =
            |times: &mut Vec<f64>, part| (!times.is_empty()).then(|| quantile(times, part));
        let p99s: Vec<_> = self.rounds.iter().map(|round| round.p99).collect();
        let [p99, least, most] = median_and_ends(&p99s);
        let mut first = self.all(|round| &round.first);
        let mut short = self.all(|round| &round.first_of_short);
        json!({
            "prefill": self.name,
            "decode_step_s": of(|round| round.decode),
            "decode_p99_ratio": of(|round| round.decode_p99),
            "p50_ratio": of(|round| round.p50),
            "p99_ratio": p99,
            "p99_ratio_min": least,
            "p99_ratio_max": most,
            "max_ratio": of(|round| round.longest),
            "p50_s": of(|round| round.seconds[0]),
            "p99_s": of(|round| round.seconds[1]),
            "max_s": of(|round| round.seconds[2]),
            "first_token_s": of_times(&mut first, 0.5),
            "first_token_p99_s": of_times(&mut first, 0.99),
            "first_token_max_s": of_times(&mut first, 1.0),
            "short_first_token_s": of_times(&mut short, 0.5),
            "short_first_token_p99_s": of_times(&mut short, 0.99),
            "short_first_token_max_s": of_times(&mut short, 1.0),
            "skipped_rows": count("corral_engine_decode_rows_skipped_total"),
            "mixed_prefill_tokens": count("corral_engine_mixed_prefill_tokens_total"),
            "mixed_budget_tokens": count("corral_engine_mixed_prefill_budget_tokens_total"),
        })
    }

    /// Times of all rounds.
    fn all(&self, of: fn(&Round) -> &Vec<f64>) -> Vec<f64> {
        self.rounds.iter().flat_map(of).copied().collect()
    }
}

/// Gaps as (seconds, multiple of the decode step around them): without prompts, and while one is read.
type Gaps = (Vec<(f64, f64)>, Vec<(f64, f64)>);

/// `spans` are pauses and prompts in turn, from a pause to a pause. A gap belongs to a pause that it
/// lies in, and to every prompt that it touches.
fn ratios(spans: &[(Instant, Instant)], times: &[Vec<Instant>]) -> Gaps {
    let gaps: Vec<_> = times
        .iter()
        .flat_map(|of_one| of_one.windows(2))
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let seconds = |(from, to): (Instant, Instant)| (to - from).as_secs_f64();
    let (mut alone, mut mixed) = (Vec::new(), Vec::new());
    let mut steps = Vec::new();
    for &(begin, end) in spans.iter().step_by(2) {
        let inside = gaps
            .iter()
            .filter(|&&(from, to)| from >= begin && to <= end);
        let inside: Vec<_> = inside.map(|&gap| seconds(gap)).collect();
        let step = median(inside.iter().copied());
        steps.push(step);
        if step > 0.0 {
            alone.extend(inside.into_iter().map(|gap| (gap, gap / step)));
        }
    }
    let prompts = spans.iter().skip(1).step_by(2);
    for (&(begin, end), around) in prompts.zip(steps.windows(2)) {
        // A pause may have been too short for a gap.
        let [before, after] = match *around {
            [before, after] if before > 0.0 && after > 0.0 => [before, after],
            [before, after] => [before.max(after); 2],
            _ => continue,
        };
        if before <= 0.0 {
            continue;
        }
        for &(from, to) in gaps.iter().filter(|&&(from, to)| to > begin && from < end) {
            let middle = from + (to - from) / 2;
            let passed = seconds((begin, middle.clamp(begin, end)));
            let step = before + (after - before) * passed / seconds((begin, end)).max(1e-9);
            mixed.push((seconds((from, to)), seconds((from, to)) / step));
        }
    }
    (alone, mixed)
}

/// Generates until it is told to stop; a sequence that is through is followed by the next one.
/// Returns the times of each one's tokens.
async fn background(
    engine: &Engine,
    number: u64,
    stop: &AtomicBool,
) -> Result<Vec<Vec<Instant>>, Error> {
    let mut times = vec![Vec::new()];
    let options = Options {
        max_tokens: u32::try_from(BACKGROUND).unwrap_or(u32::MAX),
        ignore_end: true,
        ..Options::default()
    };
    let mut generation = None;
    while !stop.load(Ordering::Relaxed) {
        let running = match &mut generation {
            Some(running) => running,
            none => {
                let prompt = prompt(engine, 1000 + number, SHORT);
                none.insert(engine.generate(prompt, options.clone(), Caller::default())?)
            }
        };
        match running.next().await {
            Some(chunk) => {
                let now = Instant::now();
                if let Some(of_one) = times.last_mut() {
                    of_one.extend(chunk.tokens.iter().map(|_| now));
                }
            }
            None => {
                if let Some(Err(error)) = running.outcome() {
                    return Err(error);
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
    use super::ratios;
    use std::time::{Duration, Instant};

    #[test]
    fn a_prompts_gaps_are_compared_with_the_decode_step_of_their_time() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        // Steps of 10 ms, then two of 30 while a prompt is read, then steps of 20.
        let times: Vec<_> = [0, 10, 20, 30, 40, 70, 100, 120, 140, 160].map(at).to_vec();
        let spans = [(at(0), at(40)), (at(40), at(100)), (at(100), at(160))];
        let (alone, mixed) = ratios(&spans, &[times]);
        assert_eq!(alone.len(), 4 + 3);
        assert!(alone.iter().all(|(_, ratio)| (ratio - 1.0).abs() < 1e-6));
        // At 55 ms a decode step takes 12.5, and at 85 it takes 17.5.
        let expected = [30.0 / 12.5, 30.0 / 17.5];
        assert_eq!(mixed.len(), expected.len());
        for ((_, ratio), expected) in mixed.iter().zip(expected) {
            assert!((ratio - expected).abs() < 1e-6, "{mixed:?}");
        }
    }

    #[test]
    fn a_pause_without_a_gap_is_made_up_for_by_the_other() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let times: Vec<_> = [0, 10, 20, 50].map(at).to_vec();
        let spans = [(at(0), at(20)), (at(20), at(50)), (at(50), at(51))];
        let (_, mixed) = ratios(&spans, &[times]);
        assert_eq!(mixed.len(), 1);
        assert!((mixed[0].1 - 3.0).abs() < 1e-6);
    }
}
