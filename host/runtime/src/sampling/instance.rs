//! One instance of a sampling plugin, for one text.

use super::Ordered;
use super::bindings::SamplingPlugin;
use super::bindings::exports::corral::plugin::sampling as guest;
use super::places::Permit;
use crate::bounds::{Over, within};
use crate::failure::Failure;
use crate::meter::Meter;
use crate::metrics::Counters;
use crate::state::State;
use crate::store::store;
use crate::tally::Bound;
use crate::ticker::Ticking;
use corral_engine::{Caller, Error, MAX_CANDIDATES, Shown, Token, Wanted};
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use wasmtime::Store;
use wasmtime::component::ResourceAny;
use wasmtime_wasi::WasiCtxBuilder;

/// When to ask again for a place.
const RETRY: Duration = Duration::from_secs(1);
/// What it may take from being made to its first question, and for each question.
const START: Time = Time {
    cpu: Duration::from_millis(250),
    wall: Duration::from_secs(5),
};
const SAMPLE: Time = Time {
    cpu: Duration::from_millis(50),
    wall: Duration::from_secs(1),
};
/// Most tokens of the text that it may want to see.
const HISTORY: u32 = 65_536;
/// Most bytes of a plugin's own words that are passed on.
const WORDS: usize = 1024;

/// Time for one thing that it does.
#[derive(Clone, Copy)]
struct Time {
    cpu: Duration,
    wall: Duration,
}

/// What an instance is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    /// To hear what it says to its settings; with the seed 0.
    Check,
    /// One text.
    Text { seed: u64 },
}

/// An instance that was started. Dropping it frees its place.
pub(super) struct Instance {
    store: Store<State>,
    plugin: SamplingPlugin,
    sampler: ResourceAny,
    wanted: Wanted,
    meter: Arc<Meter>,
    ordered: Arc<Ordered>,
    _place: Place,
}

/// What an instance holds as long as it lives; dropped after its store.
struct Place {
    counters: Arc<Counters>,
    _permit: Permit,
    _ticking: Ticking,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counters.sampler_ended();
    }
}

impl Instance {
    /// Waits for a place, makes an instance, and starts its sampler for a model with so many tokens.
    ///
    /// # Errors
    /// [`Error::Refused`] if no place came free in time, [`Error::Invalid`] if it refuses its settings, and
    /// [`Error::Failed`] for all else.
    pub(super) async fn start(
        ordered: Arc<Ordered>,
        aim: Aim,
        vocabulary: u32,
    ) -> Result<Self, Error> {
        let place = Place::take(&ordered, aim).await?;
        let meter = Arc::new(Meter::part_of(Arc::clone(&ordered.meter)));
        let mut wasi = WasiCtxBuilder::new();
        match ordered.outputs.clone() {
            Some([out, err]) => wasi.stdout(out).stderr(err),
            None => wasi.inherit_stderr(),
        };
        let state = State::new(
            &mut wasi,
            ordered.grants.clone(),
            Caller::default(),
            None,
            &ordered.limits,
            Arc::clone(&meter),
            Arc::clone(&ordered.tally),
        );
        let mut store = store(ordered.plugin.engine(), state);
        let beginning = guest::Beginning {
            settings: ordered.settings.clone(),
            seed: match aim {
                Aim::Check => 0,
                Aim::Text { seed } => seed,
            },
            vocabulary,
        };
        let work = async {
            let plugin = ordered.plugin.instantiate_async(&mut store).await?;
            let sampler = plugin.corral_plugin_sampling().sampler();
            let sampler = match sampler.call_start(&mut store, &beginning).await? {
                Ok(started) => started,
                Err(words) => return Ok(Err(words)),
            };
            let guest = plugin.corral_plugin_sampling().sampler();
            let needs = guest.call_needs(&mut store, sampler).await?;
            Ok(Ok((plugin, sampler, needs)))
        };
        let (plugin, sampler, needs) = match bounded(&ordered, &meter, START, work).await? {
            Ok(started) => started,
            Err(words) => {
                let name = &ordered.name;
                let words = cut(words);
                return Err(Error::Invalid(format!(
                    "the sampling plugin {name} refuses its settings: {words}"
                )));
            }
        };
        Ok(Self {
            wanted: wanted(&ordered, needs)?,
            store,
            plugin,
            sampler,
            meter,
            ordered,
            _place: place,
        })
    }

    /// What it wants to be shown.
    pub(super) fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Lets it choose one of the tokens that it is shown.
    ///
    /// # Errors
    /// [`Error::Failed`] if it fails, gives an error or takes too long, and if it chooses another one.
    pub(super) async fn sample(&mut self, shown: Shown) -> Result<Token, Error> {
        let shown = guest::Distribution::from(shown);
        let guest = self.plugin.corral_plugin_sampling().sampler();
        let work = guest.call_sample(&mut self.store, self.sampler, &shown);
        let token = match bounded(&self.ordered, &self.meter, SAMPLE, work).await? {
            Ok(token) => token,
            Err(words) => {
                let words = cut(words);
                return Err(self.ordered.failed(format_args!("gave up: {words}")));
            }
        };
        if !shown.candidates.iter().any(|one| one.token == token) {
            return Err(self.ordered.failed(format_args!(
                "chose the token {token}, which is not among the {} that it was shown",
                shown.candidates.len()
            )));
        }
        Ok(token)
    }
}

impl Place {
    /// Waits for one, but not for good: whoever has them may itself wait for what this one's text holds.
    async fn take(ordered: &Ordered, aim: Aim) -> Result<Self, Error> {
        let sampling = &ordered.sampling;
        let places = match aim {
            Aim::Check => &sampling.checks,
            Aim::Text { .. } => &sampling.texts,
        };
        let Ok(permit) = timeout(sampling.patience, places.take()).await else {
            ordered.tally.trip(Bound::Pool);
            let (name, waited) = (&ordered.name, sampling.patience.as_secs_f32());
            return Err(Error::Refused {
                reason: format!(
                    "no place for the sampling plugin {name} came free within {waited} s"
                ),
                retry_after: RETRY,
            });
        };
        let permit = permit.ok_or_else(|| ordered.failed("was stopped by the host"))?;
        sampling.counters.sampler_began();
        Ok(Self {
            counters: Arc::clone(&sampling.counters),
            _permit: permit,
            _ticking: sampling.ticker.tick(),
        })
    }
}

/// Runs `work` for as long as it may take, and as the request has processor time.
async fn bounded<R>(
    ordered: &Ordered,
    meter: &Meter,
    time: Time,
    work: impl Future<Output = wasmtime::Result<R>>,
) -> Result<R, Error> {
    let (most, deadline) = (meter.used() + time.cpu, Instant::now() + time.wall);
    let spent = |_: &mut Context<'_>| meter.used() > most || ordered.is_spent();
    let (much, kind) = match within(meter, spent, deadline, pin!(work)).await {
        Ok(done) => {
            return done.map_err(|error| {
                let failure = Failure::from_wasmtime(&error, meter, &ordered.limits);
                ordered.failed(format_args!("failed: {failure}"))
            });
        }
        Err(Over::Cpu) if ordered.is_spent() => {
            // The handler may be asleep.
            ordered.meter.spend();
            return Err(ordered.failed(format_args!(
                "was stopped, since the request's {} s of processor time are used up; raise its cpu limit",
                ordered.limits.cpu.as_secs_f32()
            )));
        }
        Err(Over::Cpu) => (time.cpu, "of processor time"),
        Err(Over::Wall) => (time.wall, "that a call may take"),
    };
    Err(ordered.failed(format_args!(
        "was not done after the {} ms {kind}",
        much.as_millis()
    )))
}

/// What is to be shown to a plugin that needs this.
fn wanted(ordered: &Ordered, needs: guest::Needs) -> Result<Wanted, Error> {
    let most = u32::try_from(MAX_CANDIDATES).unwrap_or(u32::MAX);
    if !(1..=most).contains(&needs.candidates) {
        return Err(ordered.failed(format_args!(
            "needs {} candidates; it may have 1 to {most}",
            needs.candidates
        )));
    }
    if needs.history > HISTORY {
        return Err(ordered.failed(format_args!(
            "needs {} tokens of the text; it may have {HISTORY} at most",
            needs.history
        )));
    }
    Ok(Wanted {
        candidates: needs.candidates,
        statistics: needs.statistics,
        history: needs.history,
    })
}

/// A plugin's own words, as far as they are passed on.
fn cut(mut words: String) -> String {
    words.truncate(words.floor_char_boundary(WORDS));
    words
}

impl From<Shown> for guest::Distribution {
    fn from(shown: Shown) -> Self {
        // Both kinds of candidate are as large, so they stay in the same memory.
        let candidates = shown.candidates.into_iter();
        Self {
            candidates: candidates
                .map(|(token, logit)| guest::Candidate { token, logit })
                .collect(),
            statistics: shown.statistics.map(|statistics| guest::Statistics {
                log_normalizer: statistics.log_normalizer,
                entropy: statistics.entropy,
            }),
            since: shown.since,
            position: shown.position,
        }
    }
}
