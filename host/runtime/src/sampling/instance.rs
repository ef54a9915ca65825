//! One instance of a sampling plugin, for one generation.
//!
//! *Invariant*: the wait for a permit, the start and each token have time limits. A plugin that fails, takes too long, or
//! returns a token that it was not offered ends only this generation.

use super::RequestSampler;
use super::bindings::Sampling;
use super::bindings::exports::corral::plugin::sampling as guest;
use super::permits::SamplerPermit;
use crate::call_error::CallError;
use crate::counters::{CallLimit, ProcessCounters};
use crate::cpu_meter::Meter;
use crate::epoch_ticker::TickGuard;
use crate::state::State;
use crate::store::store;
use crate::time_limits::{TimeExceeded, run_within};
use corral_engine::{Error, MAX_CANDIDATES, SamplingRequest, SamplingRequestOptions, Token};
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use wasmtime::Store;
use wasmtime::component::ResourceAny;
use wasmtime_wasi::WasiCtxBuilder;

/// Suggested wait after a permit timeout.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Limits of starting an instance, up to its first sampling request.
const START: TimeLimits = TimeLimits {
    cpu: Duration::from_millis(250),
    wall: Duration::from_secs(5),
};
/// Limits of sampling one token. Waiting for a turn to compute is wall time.
const SAMPLE: TimeLimits = TimeLimits {
    cpu: Duration::from_millis(50),
    wall: Duration::from_secs(5),
};
/// A plugin whose last call used this much CPU time is slow: see [`compute_turns`](crate::compute_turns).
const SLOW_CALL: Duration = Duration::from_millis(1);
/// Most tokens of history that a plugin may need.
const MAX_HISTORY: u32 = 65_536;
/// Most bytes of a plugin's error text.
const MAX_TEXT_BYTES: usize = 1024;

#[derive(Clone, Copy)]
struct TimeLimits {
    cpu: Duration,
    wall: Duration,
}

/// The purpose of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Check the settings, with seed 0.
    CheckSettings,
    /// Sample the tokens of a generation.
    Generate { seed: u64 },
}

/// A started instance. Dropping it releases its permit.
pub(super) struct Instance {
    store: Store<State>,
    plugin: Sampling,
    resource: ResourceAny,
    options: SamplingRequestOptions,
    meter: Arc<Meter>,
    sampler: Arc<RequestSampler>,
    _guard: InstanceGuard,
}

/// Permit and counter of an instance. It outlives the store.
struct InstanceGuard {
    counters: Arc<ProcessCounters>,
    _permit: SamplerPermit,
    _tick: TickGuard,
}

impl Drop for InstanceGuard {
    fn drop(&mut self) {
        self.counters.sampler_instances.decrement();
    }
}

impl Instance {
    /// Waits for a permit, creates an instance, and starts its sampler for a model of this vocabulary.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if there was no permit in time, [`Error::Invalid`] if the plugin refuses its
    /// settings, else [`Error::Failed`].
    pub(super) async fn start(
        sampler: Arc<RequestSampler>,
        purpose: Purpose,
        vocabulary: u32,
    ) -> Result<Self, Error> {
        let guard = InstanceGuard::acquire(&sampler, purpose).await?;
        let meter = Arc::new(Meter::part_of(Arc::clone(&sampler.request_meter)));
        let mut wasi = WasiCtxBuilder::new();
        let log_output = match sampler.outputs.clone() {
            Some([out, err, log]) => {
                wasi.stdout(out).stderr(err);
                Some(log)
            }
            None => {
                wasi.inherit_stderr();
                None
            }
        };
        let mut state = State::new(
            &mut wasi,
            Arc::clone(&sampler.grants),
            &sampler.limits,
            Arc::clone(&meter),
            Arc::clone(&sampler.counters),
        );
        state.log_output = log_output;
        let mut store = store(sampler.plugin.engine(), state);
        let context = guest::SamplerContext {
            settings: sampler.settings.clone(),
            seed: match purpose {
                Purpose::CheckSettings => 0,
                Purpose::Generate { seed } => seed,
            },
            vocabulary,
        };
        let work = async {
            let plugin = sampler.plugin.instantiate_async(&mut store).await?;
            let functions = plugin.corral_plugin_sampling().sampler();
            let resource = match functions.call_start(&mut store, &context).await? {
                Ok(resource) => resource,
                Err(text) => return Ok(Err(text)),
            };
            let needs = functions.call_needs(&mut store, resource).await?;
            Ok(Ok((plugin, resource, needs)))
        };
        let (plugin, resource, needs) = match run(&sampler, &meter, START, work).await? {
            Ok(started) => started,
            Err(text) => {
                let name = &sampler.name;
                let text = truncate(text);
                return Err(Error::Invalid(format!(
                    "the sampling plugin {name} refuses its settings: {text}"
                )));
            }
        };
        Ok(Self {
            options: request_options(&sampler, needs)?,
            store,
            plugin,
            resource,
            meter,
            sampler,
            _guard: guard,
        })
    }

    /// What the plugin needs to sample a token.
    pub(super) fn options(&self) -> SamplingRequestOptions {
        self.options
    }

    /// Samples one of the candidates.
    ///
    /// # Errors
    /// [`Error::Failed`] if the plugin fails, takes too long, or returns another token.
    pub(super) async fn sample(&mut self, request: SamplingRequest) -> Result<Token, Error> {
        let distribution = guest::Distribution::from(request);
        let functions = self.plugin.corral_plugin_sampling().sampler();
        let work = functions.call_sample(&mut self.store, self.resource, &distribution);
        let before = self.meter.used();
        let sampled = run(&self.sampler, &self.meter, SAMPLE, work).await;
        if let Some(turns) = &self.sampler.turns {
            turns.set_slow(self.meter.used() - before >= SLOW_CALL);
        }
        let token = match sampled? {
            Ok(token) => token,
            Err(text) => {
                let text = truncate(text);
                return Err(self
                    .sampler
                    .failed(format_args!("returned an error: {text}")));
            }
        };
        let candidates = &distribution.candidates;
        if !candidates.iter().any(|candidate| candidate.token == token) {
            return Err(self.sampler.failed(format_args!(
                "chose the token {token}, which is not among the {} that it was shown",
                candidates.len()
            )));
        }
        Ok(token)
    }
}

impl InstanceGuard {
    /// Waits for a permit, with a timeout: a request with a permit may wait for cells that this request holds.
    async fn acquire(sampler: &RequestSampler, purpose: Purpose) -> Result<Self, Error> {
        let resources = &sampler.resources;
        let permits = match purpose {
            Purpose::CheckSettings => &resources.check_permits,
            Purpose::Generate { .. } => &resources.generation_permits,
        };
        let Ok(permit) = timeout(resources.permit_timeout, permits.acquire()).await else {
            sampler.counters.limit_hit(CallLimit::Pool);
            let (name, waited) = (&sampler.name, resources.permit_timeout.as_secs_f32());
            return Err(Error::Overloaded {
                reason: format!(
                    "no instance of the sampling plugin {name} became available within {waited} s"
                ),
                retry_after: RETRY_AFTER,
            });
        };
        let permit = permit.ok_or_else(|| sampler.failed("was stopped by the host"))?;
        resources.counters.sampler_instances.increment();
        Ok(Self {
            counters: Arc::clone(&resources.counters),
            _permit: permit,
            _tick: resources.ticker.tick(),
        })
    }
}

/// Runs `work` within `limits` and the request's CPU time.
async fn run<R>(
    sampler: &RequestSampler,
    meter: &Meter,
    limits: TimeLimits,
    work: impl Future<Output = wasmtime::Result<R>>,
) -> Result<R, Error> {
    let (cpu, deadline) = (meter.used() + limits.cpu, Instant::now() + limits.wall);
    let is_exhausted = |_: &mut Context<'_>| meter.used() > cpu || sampler.is_cpu_exhausted();
    let (limit, kind) = match run_within(
        meter,
        sampler.turns.as_ref(),
        is_exhausted,
        deadline,
        pin!(work),
    )
    .await
    {
        Ok(done) => {
            return done.map_err(|error| {
                let error = CallError::from_wasmtime(&error, meter, sampler.limits.memory);
                sampler.failed(format_args!("failed: {error}"))
            });
        }
        Err(TimeExceeded::Cpu) if sampler.is_cpu_exhausted() => {
            // The handler may be asleep.
            sampler.request_meter.report_exhausted();
            return Err(sampler.failed(format_args!(
                "was stopped, because the request has used its {} s of CPU time; raise its CPU limit",
                sampler.limits.cpu.as_secs_f32()
            )));
        }
        Err(TimeExceeded::Cpu) => (limits.cpu, "CPU time"),
        Err(TimeExceeded::Wall) => (limits.wall, "time"),
    };
    Err(sampler.failed(format_args!(
        "exceeded the {} ms of {kind} that a call may take",
        limit.as_millis()
    )))
}

/// Checks the plugin's needs.
fn request_options(
    sampler: &RequestSampler,
    needs: guest::Needs,
) -> Result<SamplingRequestOptions, Error> {
    let max = u32::try_from(MAX_CANDIDATES).unwrap_or(u32::MAX);
    if !(1..=max).contains(&needs.candidates) {
        return Err(sampler.failed(format_args!(
            "needs {} candidates; it may have 1 to {max}",
            needs.candidates
        )));
    }
    if needs.history > MAX_HISTORY {
        return Err(sampler.failed(format_args!(
            "needs {} tokens of history; it may have at most {MAX_HISTORY}",
            needs.history
        )));
    }
    Ok(SamplingRequestOptions {
        candidates: needs.candidates,
        statistics: needs.statistics,
        history: needs.history,
    })
}

/// Truncates a plugin's text.
fn truncate(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

impl From<SamplingRequest> for guest::Distribution {
    fn from(request: SamplingRequest) -> Self {
        // Both candidate types have the same size, so the vector's memory is reused.
        let candidates = request.candidates.into_iter();
        Self {
            candidates: candidates
                .map(|(token, logit)| guest::Candidate { token, logit })
                .collect(),
            statistics: request.statistics.map(|statistics| guest::Statistics {
                log_normalizer: statistics.log_normalizer,
                entropy: statistics.entropy,
            }),
            new_tokens: request.new_tokens,
            position: request.position,
        }
    }
}
