//! Sampling plugins: components that choose the tokens of generations, one instance for each text.
//!
//! A handler names one in `options.sample-with` (`host/sampling.rs`), which starts an instance to check
//! the settings, and leaves a [`Linked`] with its [`Options`](crate::host::Options). The engine's thread
//! starts the others and asks them over channels (`chooser.rs`); each runs in a task of its own
//! (`instance.rs`), in a store that is granted nothing.
//!
//! Bounds: as many instances as there are of handlers, which wait for a place; the time of each call;
//! the memory of the deployment; and their processor time counts as the request's.

mod bindings;
mod chooser;
mod instance;
#[cfg(test)]
mod tests;

use crate::meter::Meter;
use crate::metrics::Counters;
use crate::output::Output;
use crate::settings::Limits;
use crate::state::{Grants, State};
use crate::tally::Tally;
use crate::ticker::Ticker;
use bindings::SamplingPluginPre;
use corral_engine::{Choosers, Error, Wanted};
use instance::Instance;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};
use wasmtime::component::InstancePre;

/// What the sampling plugins of all deployments share.
pub(crate) struct Sampling {
    /// Instances that may live at once.
    places: Arc<Semaphore>,
    ticker: Arc<Ticker>,
    counters: Arc<Counters>,
}

impl Sampling {
    /// With so many places.
    pub(crate) fn new(places: usize, ticker: Arc<Ticker>, counters: Arc<Counters>) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            ticker,
            counters,
        }
    }
}

/// A sampling plugin as one request wants it.
struct Ordered {
    name: String,
    settings: String,
    plugin: SamplingPluginPre<State>,
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
    /// The plugin `pre` under its name, for the request whose instance has this state.
    ///
    /// # Errors
    /// [`Error::Failed`] if it is no sampling plugin.
    pub(crate) fn new(
        state: &mut State,
        name: String,
        pre: InstancePre<State>,
        settings: String,
    ) -> Result<Self, Error> {
        let plugin = SamplingPluginPre::new(pre).map_err(|error| {
            Error::Failed(format!("the plugin {name} can't be asked: {error:#}"))
        })?;
        Ok(Self(Arc::new(Ordered {
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
        })))
    }

    /// Starts an instance once, as for a model with so many tokens, to hear what it says to its settings
    /// and what it needs. In a task, since no guest can run inside a call of another one.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the plugin's words if it refuses the settings, [`Error::Failed`] if it
    /// fails. Dropping this stops it.
    pub(crate) async fn check(self, vocabulary: u32) -> Result<Linked, Error> {
        let Self(ordered) = self;
        let mut task = JoinSet::new();
        let started = Instance::start(Arc::clone(&ordered), 0, vocabulary);
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
