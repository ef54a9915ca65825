//! Sampling plugins: components that choose the tokens of generations, one instance for each text.
//!
//! A handler names one in `options.sample-with` (`host/sampling.rs`), which starts an instance to check
//! the settings, and leaves a [`Linked`] with its [`Options`](crate::host::Options). The engine's thread
//! starts the others and asks them over channels (`chooser.rs`); each runs in a task of its own
//! (`instance.rs`), in a store that is granted nothing.
//!
//! Bounds: as many instances as there are of handlers, which wait for a place for a while, and fewer that
//! check settings (`places.rs`); the time of each call; the memory of the deployment; and their processor
//! time counts as the request's.

mod bindings;
mod chooser;
mod instance;
mod places;
#[cfg(test)]
mod tests;

use crate::link;
use crate::meter::Meter;
use crate::metrics::Counters;
use crate::output::Output;
use crate::settings::Limits;
use crate::state::{Grants, State};
use crate::tally::Tally;
use crate::ticker::Ticker;
use bindings::SamplingPluginPre;
use bindings::exports::corral::plugin::sampling as guest;
use corral_engine::{Choosers, Error, Wanted};
use instance::{Aim, Instance};
use places::Places;
pub(crate) use places::check_places;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentNamedList, InstancePre, Lift, Lower, ResourceAny};

/// How long an instance waits for a place.
const PATIENCE: Duration = Duration::from_secs(5);

/// A sampling plugin, ready to be instantiated.
pub(crate) type SamplerPre = SamplingPluginPre<State>;

/// A component as a sampling plugin.
///
/// # Errors
/// If its functions are not those of one; says which, and why.
pub(crate) fn checked(pre: InstancePre<State>) -> wasmtime::Result<SamplerPre> {
    use guest::{Beginning, Distribution, Needs};
    type Started = Result<ResourceAny, String>;
    type Chosen = Result<u32, String>;
    let plugin = SamplerPre::new(pre.clone())?;
    // The names are there, but what stands behind them is looked at only in an instance.
    check::<(&Beginning,), (Started,)>(&pre, "[static]sampler.start")?;
    check::<(ResourceAny,), (Needs,)>(&pre, "[method]sampler.needs")?;
    check::<(ResourceAny, &Distribution), (Chosen,)>(&pre, "[method]sampler.sample")?;
    Ok(plugin)
}

/// Checks the type of a function of a sampling plugin.
fn check<Params, Results>(pre: &InstancePre<State>, name: &str) -> wasmtime::Result<()>
where
    Params: ComponentNamedList + Lower,
    Results: ComponentNamedList + Lift,
{
    let component = pre.component();
    let interface = component.get_export_index(None, link::SAMPLING);
    let item = interface.and_then(|interface| component.get_export(Some(&interface), name));
    let Some((ComponentItem::ComponentFunc(function), _)) = item else {
        wasmtime::bail!("{name} is no function");
    };
    let found = function.typecheck::<Params, Results>(&pre.instance_type());
    found.map_err(|error| error.context(format!("{name} has another type")))
}

/// What sampling plugins share: places with those of all deployments, of which each has its own share.
pub(crate) struct Sampling {
    /// For generations.
    texts: Places,
    /// For instances whose settings are checked, so that those wait for no generation.
    checks: Places,
    /// How long an instance waits for a place.
    patience: Duration,
    ticker: Arc<Ticker>,
    counters: Arc<Counters>,
}

impl Sampling {
    /// With so many places for generations.
    pub(crate) fn new(places: usize, ticker: Arc<Ticker>, counters: Arc<Counters>) -> Self {
        Self {
            texts: Places::new(places),
            checks: Places::new(check_places(places)),
            patience: PATIENCE,
            ticker,
            counters,
        }
    }

    /// The same for another deployment.
    pub(crate) fn for_another(&self) -> Self {
        Self {
            texts: self.texts.for_another(),
            checks: self.checks.for_another(),
            patience: self.patience,
            ticker: Arc::clone(&self.ticker),
            counters: Arc::clone(&self.counters),
        }
    }
}

impl std::fmt::Debug for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampling")
            .field("texts", &self.texts)
            .field("checks", &self.checks)
            .finish_non_exhaustive()
    }
}

/// A sampling plugin as one request wants it.
struct Ordered {
    name: String,
    settings: String,
    plugin: SamplerPre,
    grants: Grants,
    limits: Arc<Limits>,
    /// The request's.
    meter: Arc<Meter>,
    tally: Arc<Tally>,
    outputs: Option<[Output; 2]>,
    sampling: Arc<Sampling>,
    span: Span,
}

impl Ordered {
    /// Whether the request has no processor time left, whoever used it.
    fn is_spent(&self) -> bool {
        self.meter.used() > self.limits.cpu
    }

    /// An error that names the plugin.
    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::Failed(format!("the sampling plugin {} {what}", self.name))
    }
}

/// A sampling plugin whose settings are to be checked.
pub(crate) struct Unchecked(Arc<Ordered>);

impl Unchecked {
    /// A plugin under its name, for the request whose instance has this state.
    pub(crate) fn new(
        state: &mut State,
        name: String,
        plugin: SamplerPre,
        settings: String,
    ) -> Self {
        Self(Arc::new(Ordered {
            name,
            settings,
            plugin,
            grants: Grants {
                models: state.models.none(),
                snapshots: state.snapshots.none(),
                samplers: Arc::default(),
                sampling: Arc::clone(&state.sampling),
            },
            limits: Arc::clone(&state.limits),
            meter: Arc::clone(&state.meter),
            tally: Arc::clone(&state.tally),
            outputs: state.outputs(),
            sampling: Arc::clone(&state.sampling),
            span: Span::current(),
        }))
    }

    /// Starts an instance once, as for a model with so many tokens, to hear what it says to its settings
    /// and what it needs. In a task, since no guest can run inside a call of another one.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the plugin's words if it refuses the settings, [`Error::Failed`] if it
    /// fails, [`Error::Refused`] if there was no place for it in time. Dropping this stops it.
    pub(crate) async fn check(self, vocabulary: u32) -> Result<Linked, Error> {
        let Self(ordered) = self;
        let mut task = JoinSet::new();
        let started = Instance::start(Arc::clone(&ordered), Aim::Check, vocabulary);
        let span = ordered.span.clone();
        task.spawn(async move { started.await.map(|instance| instance.wanted()) }.instrument(span));
        let wanted = match task.join_next().await {
            Some(Ok(wanted)) => wanted?,
            _ => return Err(ordered.failed("was stopped by the host")),
        };
        Ok(Linked {
            ordered,
            wanted,
            runtime: Handle::current(),
        })
    }
}

/// A sampling plugin whose settings are in order.
pub(crate) struct Linked {
    ordered: Arc<Ordered>,
    wanted: Wanted,
    /// Where its instances run: the engine's thread, which starts them, has no runtime.
    runtime: Handle,
}

impl Linked {
    /// The choosers of generations with a model of so many tokens.
    pub(crate) fn choosers(&self, vocabulary: u32) -> Arc<dyn Choosers> {
        Arc::new(chooser::Samplers {
            ordered: Arc::clone(&self.ordered),
            wanted: self.wanted,
            runtime: self.runtime.clone(),
            vocabulary,
        })
    }
}
