//! Reports times and token counts of generations to their caller.
//!
//! The engine's own metrics ([`EngineMetrics`](crate::metrics::EngineMetrics)) have no notion of a deployment. A
//! caller may attach a [`RequestObserver`] to a generation; the engine thread writes to it as the generation runs, so a
//! generation that is canceled counts with the tokens that it had.

use crate::generation_trace::GenerationTrace;
use crate::histogram::Histogram;
use crate::histogram_names;
use crate::metric_sample::Metric;
use crate::metrics::{add, get};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strum::IntoStaticStr;

/// Upper bounds in seconds for requests and their waits: from a cached prompt of a small model to five minutes.
pub const REQUEST_SECONDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
/// Upper bounds in seconds for the time between two tokens: dense where readers notice the difference.
const TOKEN_SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5,
];

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum GenerationPhase {
    /// It is in the model's queue for the first time.
    Waiting,
    /// It was admitted and has no token yet.
    Prefill,
    /// It has its first token.
    Decode,
}

impl GenerationPhase {
    const ALL: [Self; 3] = [Self::Waiting, Self::Prefill, Self::Decode];

    /// Its name in status reports.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Tokens of generations, and how many are in each phase: of one HTTP request, or of many.
#[derive(Debug, Default)]
pub struct TokenUsage {
    prompt: AtomicU64,
    cached: AtomicU64,
    generated: AtomicU64,
    /// Generations that have not ended, by phase.
    phases: [AtomicU64; GenerationPhase::ALL.len()],
    model: OnceLock<Box<str>>,
}

impl TokenUsage {
    /// Prompt tokens of admitted generations.
    pub fn prompt(&self) -> u64 {
        get(&self.prompt)
    }

    /// Prompt tokens that came from the prefix cache. Counted at the first token of a generation.
    pub fn cached(&self) -> u64 {
        get(&self.cached)
    }

    /// Tokens generated.
    pub fn generated(&self) -> u64 {
        get(&self.generated)
    }

    /// The phase of the generation that is furthest; `None` if none runs or waits.
    pub fn phase(&self) -> Option<GenerationPhase> {
        let mut phases = GenerationPhase::ALL.into_iter().rev();
        phases.find(|phase| get(&self.phases[*phase as usize]) > 0)
    }

    /// Records the model of the first generation. Later calls have no effect.
    pub fn set_model(&self, name: &str) {
        self.model.get_or_init(|| name.into());
    }

    /// The model of the first generation.
    pub fn model(&self) -> Option<&str> {
        self.model.get().map(|name| &**name)
    }
}

/// Metrics of the generations of one deployment on one model.
#[derive(Debug)]
pub struct GenerationMetrics {
    usage: TokenUsage,
    queue_time: Histogram,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    duration: Histogram,
}

impl Default for GenerationMetrics {
    fn default() -> Self {
        Self {
            usage: TokenUsage::default(),
            queue_time: Histogram::new(&REQUEST_SECONDS),
            time_to_first_token: Histogram::new(&REQUEST_SECONDS),
            inter_token_latency: Histogram::new(&TOKEN_SECONDS),
            duration: Histogram::new(&REQUEST_SECONDS),
        }
    }
}

impl GenerationMetrics {
    /// The current samples.
    pub fn samples(&self) -> Vec<Metric> {
        let mut samples = vec![
            Metric::counter(
                "corral_deployment_prompt_tokens_total",
                "Prompt tokens of generations, by deployment and model.",
                self.usage.prompt(),
            ),
            Metric::counter(
                "corral_deployment_cached_tokens_total",
                "Prompt tokens of generations that came from the prefix cache, by deployment and model.",
                self.usage.cached(),
            ),
            Metric::counter(
                "corral_deployment_generated_tokens_total",
                "Tokens generated, by deployment and model.",
                self.usage.generated(),
            ),
        ];
        for (histogram, names, help) in [
            (
                &self.queue_time,
                histogram_names!("corral_deployment_queue_time_seconds"),
                "Seconds that a generation waits in the model's queue, by deployment and model.",
            ),
            (
                &self.time_to_first_token,
                histogram_names!("corral_deployment_time_to_first_token_seconds"),
                "Seconds from a generation's arrival to its first token, by deployment and model.",
            ),
            (
                &self.inter_token_latency,
                histogram_names!("corral_deployment_inter_token_latency_seconds"),
                "Seconds between two tokens of a generation, by deployment and model; tokens of one step count as \
                 one.",
            ),
            (
                &self.duration,
                histogram_names!("corral_deployment_generation_duration_seconds"),
                "Seconds from a generation's arrival to its last token, by deployment and model.",
            ),
        ] {
            histogram.append_samples(names, help, &mut samples);
        }
        samples
    }
}

/// Receives the times and tokens of one generation.
#[derive(Clone, Debug)]
pub struct RequestObserver {
    /// Of all generations of the deployment on the model.
    pub metrics: Arc<GenerationMetrics>,
    /// Of the HTTP request that asked for it.
    pub usage: Arc<TokenUsage>,
    /// Records it, if the HTTP request is traced.
    pub trace: Option<Arc<GenerationTrace>>,
}

impl RequestObserver {
    fn count(&self, counter: fn(&TokenUsage) -> &AtomicU64, amount: u32) {
        add(counter(&self.metrics.usage), amount.into());
        add(counter(&self.usage), amount.into());
    }

    pub(crate) fn admitted(&self, waited: Duration, prompt_tokens: u32) {
        self.metrics.queue_time.observe(waited.as_secs_f64());
        self.count(|usage| &usage.prompt, prompt_tokens);
    }

    /// The first token, `since` the arrival. The whole prompt is known then, so `cached_tokens` no longer grow.
    pub(crate) fn first_token(&self, since: Duration, cached_tokens: u32) {
        self.metrics
            .time_to_first_token
            .observe(since.as_secs_f64());
        self.count(|usage| &usage.cached, cached_tokens);
    }

    pub(crate) fn next_token(&self, since_last: Duration) {
        self.metrics
            .inter_token_latency
            .observe(since_last.as_secs_f64());
    }

    pub(crate) fn generated(&self, tokens: u32) {
        self.count(|usage| &usage.generated, tokens);
    }

    pub(crate) fn finished(&self, since_arrival: Duration) {
        self.metrics.duration.observe(since_arrival.as_secs_f64());
    }
}

/// A generation with its observer, from its arrival to its end. Counts it in its phase.
#[derive(Debug)]
pub(crate) struct ObservedGeneration {
    observer: RequestObserver,
    phase: GenerationPhase,
}

impl ObservedGeneration {
    pub(crate) fn new(observer: RequestObserver) -> Self {
        let phase = GenerationPhase::Waiting;
        add(&observer.usage.phases[phase as usize], 1);
        Self { observer, phase }
    }

    pub(crate) fn enter(&mut self, phase: GenerationPhase) {
        let phases = &self.observer.usage.phases;
        // The new one first: a generation is always in some phase.
        add(&phases[phase as usize], 1);
        phases[self.phase as usize].fetch_sub(1, Ordering::Relaxed);
        self.phase = phase;
    }
}

impl Deref for ObservedGeneration {
    type Target = RequestObserver;

    fn deref(&self) -> &RequestObserver {
        &self.observer
    }
}

impl Drop for ObservedGeneration {
    fn drop(&mut self) {
        let phases = &self.observer.usage.phases;
        phases[self.phase as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ascending() {
        for bounds in [&REQUEST_SECONDS[..], &TOKEN_SECONDS[..]] {
            assert!(bounds.is_sorted_by(|one, next| one < next));
        }
    }

    #[test]
    fn phase_is_that_of_the_furthest_generation() {
        let usage = Arc::<TokenUsage>::default();
        let begin = || {
            ObservedGeneration::new(RequestObserver {
                metrics: Arc::default(),
                usage: Arc::clone(&usage),
                trace: None,
            })
        };
        assert_eq!(usage.phase(), None);
        let (mut one, other) = (begin(), begin());
        assert_eq!(usage.phase(), Some(GenerationPhase::Waiting));
        one.enter(GenerationPhase::Prefill);
        assert_eq!(usage.phase(), Some(GenerationPhase::Prefill));
        one.enter(GenerationPhase::Decode);
        assert_eq!(usage.phase(), Some(GenerationPhase::Decode));
        drop(one);
        assert_eq!(usage.phase(), Some(GenerationPhase::Waiting));
        drop(other);
        assert_eq!(usage.phase(), None);
        usage.set_model("a");
        usage.set_model("b");
        assert_eq!(usage.model(), Some("a"));
        for (index, phase) in GenerationPhase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, index);
        }
    }

    #[test]
    fn tokens_count_for_deployment_and_request() {
        let metrics = Arc::<GenerationMetrics>::default();
        let observer = || RequestObserver {
            metrics: Arc::clone(&metrics),
            usage: Arc::default(),
            trace: None,
        };
        let (one, other) = (observer(), observer());
        one.admitted(Duration::ZERO, 10);
        one.first_token(Duration::from_millis(3), 4);
        one.generated(1);
        other.admitted(Duration::ZERO, 7);
        let usage = |usage: &TokenUsage| (usage.prompt(), usage.cached(), usage.generated());
        assert_eq!(usage(&one.usage), (10, 4, 1));
        assert_eq!(usage(&other.usage), (7, 0, 0));
        assert_eq!(usage(&metrics.usage), (17, 4, 1));
    }
}
