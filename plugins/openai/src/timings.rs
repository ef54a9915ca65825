//! `timings`, as in llama.cpp's server.

use std::time::{Duration, Instant};

use corral_sdk::Outcome;
use serde_json::{Value, json};

/// The version of this plugin, in the form of llama.cpp's builds.
pub const SYSTEM_FINGERPRINT: &str = concat!("b", env!("CARGO_PKG_VERSION"), "-corral");

/// The timings of a finished generation, measured by the host. `prompt_ms` excludes the time in the
/// queue, which is `queue_ms`.
pub fn of_outcome(outcome: &Outcome) -> Value {
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let mut timings = json(
        outcome.prompt_tokens.saturating_sub(outcome.cached_tokens),
        milliseconds(outcome.prefill_time),
        outcome.generated_tokens,
        milliseconds(outcome.decode_time),
    );
    timings["cache_n"] = outcome.cached_tokens.into();
    timings["queue_ms"] = milliseconds(outcome.queue_time).into();
    timings
}

fn json(prompt: u32, prompt_ms: f64, predicted: u32, predicted_ms: f64) -> Value {
    let each = |ms: f64, count: u32| ms / f64::from(count.max(1));
    // The time begins with the first token, so it is that of the others.
    let steps = predicted.saturating_sub(1);
    let rate = |count: u32, ms: f64| match ms > 0.0 {
        true => f64::from(count) / ms * 1e3,
        false => 0.0,
    };
    json!({
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": each(prompt_ms, prompt),
        "prompt_per_second": rate(prompt, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": each(predicted_ms, steps),
        "predicted_per_second": rate(steps, predicted_ms),
    })
}

/// Timings of a generation in progress, measured by the plugin: the time until the first chunk contains
/// the queue, and the number of cached tokens is not known yet.
pub struct Stopwatch {
    start: Instant,
    first: Option<Duration>,
    prompt: u32,
}

impl Stopwatch {
    /// Starts with the generation after a prompt of this many tokens.
    pub fn start(prompt: u32) -> Self {
        Stopwatch {
            start: Instant::now(),
            first: None,
            prompt,
        }
    }

    /// The timings once this many tokens are generated.
    pub fn at(&mut self, predicted: u32) -> Value {
        let now = self.start.elapsed();
        let first = *self.first.get_or_insert(now);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        json(
            self.prompt,
            milliseconds(first),
            predicted,
            milliseconds(now - first),
        )
    }

    /// The progress of the prompt at its first token, which is all that the host reports. Cached tokens
    /// count as processed, since their number is not known yet.
    pub fn progress(&self) -> Value {
        json!({
            "total": self.prompt,
            "cache": 0,
            "processed": self.prompt,
            "time_ms": self.start.elapsed().as_millis() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::Finish;

    #[test]
    fn rates_follow_from_counts_and_times() {
        let timings = of_outcome(&Outcome {
            finish: Finish::End,
            prompt_tokens: 10,
            cached_tokens: 6,
            generated_tokens: 5,
            queue_time: 3_000_000,
            prefill_time: 2_000_000,
            decode_time: 10_000_000,
        });
        for (name, value) in [
            ("prompt_n", 4.0),
            ("cache_n", 6.0),
            ("prompt_ms", 2.0),
            ("prompt_per_token_ms", 0.5),
            ("prompt_per_second", 2000.0),
            ("predicted_n", 5.0),
            ("predicted_per_token_ms", 2.5),
            ("predicted_per_second", 400.0),
            ("queue_ms", 3.0),
        ] {
            assert_eq!(timings[name].as_f64(), Some(value), "{name}: {timings}");
        }
        // A generation of one token takes no time after its first.
        assert_eq!(json(1, 0.0, 1, 0.0)["predicted_per_second"], 0.0);
    }

    #[test]
    fn stopwatch_counts_tokens() {
        let mut stopwatch = Stopwatch::start(7);
        stopwatch.at(2);
        let timings = stopwatch.at(5);
        assert_eq!(timings["prompt_n"], 7);
        assert_eq!(timings["predicted_n"], 5);
        assert_eq!(stopwatch.progress()["total"], 7);
    }
}
