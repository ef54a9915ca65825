//! Hosts sampling plugins: components that choose the tokens of generations, one instance per generation. To the engine
//! each instance is an external sampler.
//!
//! A handler selects one with `options.sample-with` (`host/sampling.rs`). That starts an instance to check the
//! settings, and stores a [`CheckedSampler`] in the options. The engine thread then starts one instance per
//! generation and requests tokens over a channel (`external_sampler.rs`). Each instance runs in a task of its
//! own (`instance.rs`), in a store without grants.
//!
//! Limits: as many instances as plugin instances, and fewer that check settings (`permits.rs`); the time of
//! each call; the deployment's memory limit. Their CPU time counts as the request's.

mod bindings;
mod external_sampler;
mod instance;
mod permits;
#[cfg(test)]
mod tests;

use crate::config::{Limits, check_instances};
use crate::counters::{DeploymentCounters, ProcessCounters};
use crate::interfaces::SAMPLING;
use crate::meter::Meter;
use crate::output::Output;
use crate::state::{State, StoreGrants};
use crate::ticker::Ticker;
use bindings::SamplingPluginPre;
use bindings::exports::corral::plugin::sampling as guest;
use corral_engine::{Error, ExternalSamplerFactory, SamplingRequestOptions};
use instance::{Instance, Purpose};
use permits::SamplerPermits;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentNamedList, InstancePre, Lift, Lower, ResourceAny};

/// How long an instance waits for a permit.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A sampling plugin, ready to be instantiated.
pub(crate) type SamplerPre = SamplingPluginPre<State>;

/// Checks that a component has the functions of a sampling plugin.
///
/// # Errors
/// Which function is missing or has another type.
pub(crate) fn check_sampler(pre: InstancePre<State>) -> wasmtime::Result<SamplerPre> {
    use guest::{Beginning, Distribution, Needs};
    type StartResult = Result<ResourceAny, String>;
    type SampleResult = Result<u32, String>;
    let plugin = SamplerPre::new(pre.clone())?;
    // `SamplerPre::new` checks the names. The types would only be checked in an instance.
    check_function::<(&Beginning,), (StartResult,)>(&pre, "[static]sampler.start")?;
    check_function::<(ResourceAny,), (Needs,)>(&pre, "[method]sampler.needs")?;
    check_function::<(ResourceAny, &Distribution), (SampleResult,)>(
        &pre,
        "[method]sampler.sample",
    )?;
    Ok(plugin)
}

fn check_function<Params, Results>(pre: &InstancePre<State>, name: &str) -> wasmtime::Result<()>
where
    Params: ComponentNamedList + Lower,
    Results: ComponentNamedList + Lift,
{
    let component = pre.component();
    let interface = component.get_export_index(None, SAMPLING);
    let item = interface.and_then(|interface| component.get_export(Some(&interface), name));
    let Some((ComponentItem::ComponentFunc(function), _)) = item else {
        wasmtime::bail!("{name} is not a function");
    };
    let checked = function.typecheck::<Params, Results>(&pre.instance_type());
    checked.map_err(|error| error.context(format!("{name} has another type")))
}

/// What the sampling plugins of a deployment share: its part of the permits of all deployments.
pub(crate) struct SamplerResources {
    generation_permits: SamplerPermits,
    /// Separate, so that checks do not wait for generations.
    check_permits: SamplerPermits,
    permit_timeout: Duration,
    ticker: Arc<Ticker>,
    counters: Arc<ProcessCounters>,
}

impl SamplerResources {
    /// With permits for the instances of this many generations.
    pub(crate) fn new(
        instances: usize,
        ticker: Arc<Ticker>,
        counters: Arc<ProcessCounters>,
    ) -> Self {
        Self {
            generation_permits: SamplerPermits::new(instances),
            check_permits: SamplerPermits::new(check_instances(instances)),
            permit_timeout: PERMIT_TIMEOUT,
            ticker,
            counters,
        }
    }

    /// The same permits, for another deployment.
    pub(crate) fn for_another_deployment(&self) -> Self {
        Self {
            generation_permits: self.generation_permits.for_another_deployment(),
            check_permits: self.check_permits.for_another_deployment(),
            permit_timeout: self.permit_timeout,
            ticker: Arc::clone(&self.ticker),
            counters: Arc::clone(&self.counters),
        }
    }
}

impl std::fmt::Debug for SamplerResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplerResources")
            .field("generation_permits", &self.generation_permits)
            .field("check_permits", &self.check_permits)
            .finish_non_exhaustive()
    }
}

/// A sampling plugin with the settings and limits of one request.
struct RequestSampler {
    name: String,
    settings: String,
    plugin: SamplerPre,
    grants: StoreGrants,
    limits: Arc<Limits>,
    request_meter: Arc<Meter>,
    counters: Arc<DeploymentCounters>,
    outputs: Option<[Output; 2]>,
    resources: Arc<SamplerResources>,
    span: Span,
}

impl RequestSampler {
    /// Whether the request has used up its CPU time.
    fn is_cpu_exhausted(&self) -> bool {
        self.request_meter.used() > self.limits.cpu
    }

    /// An error that names the plugin.
    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::Failed(format!("the sampling plugin {} {what}", self.name))
    }
}

/// A sampling plugin with unchecked settings.
pub(crate) struct UncheckedSampler(Arc<RequestSampler>);

impl UncheckedSampler {
    /// A plugin for the request of the instance with this state.
    pub(crate) fn new(
        state: &mut State,
        name: String,
        plugin: SamplerPre,
        settings: String,
    ) -> Self {
        Self(Arc::new(RequestSampler {
            name,
            settings,
            plugin,
            grants: StoreGrants {
                models: state.grants.models.none(),
                snapshots: state.grants.snapshots.none(),
                tokenization: Arc::clone(&state.grants.tokenization),
                samplers: Arc::default(),
                sampling: Arc::clone(&state.grants.sampling),
                // Its time limits leave no room for a wait, and it has a tight CPU limit.
                turns: None,
            },
            limits: Arc::clone(&state.limits),
            request_meter: Arc::clone(&state.meter),
            counters: Arc::clone(&state.counters),
            outputs: state.sampler_outputs(),
            resources: Arc::clone(&state.grants.sampling),
            span: Span::current(),
        }))
    }

    /// Starts an instance for a model of this vocabulary, to check the settings and read the plugin's needs.
    /// Runs in a task, since a guest cannot run inside another guest's call. Dropping this stops the check.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the plugin's text if it refuses the settings, [`Error::Failed`] if it fails,
    /// [`Error::Overloaded`] if there was no permit in time.
    pub(crate) async fn check(self, vocabulary: u32) -> Result<CheckedSampler, Error> {
        let Self(sampler) = self;
        let mut task = JoinSet::new();
        let start = Instance::start(Arc::clone(&sampler), Purpose::CheckSettings, vocabulary);
        let span = sampler.span.clone();
        task.spawn(async move { start.await.map(|instance| instance.options()) }.instrument(span));
        let options = match task.join_next().await {
            Some(Ok(options)) => options?,
            _ => return Err(sampler.failed("was stopped by the host")),
        };
        Ok(CheckedSampler {
            sampler,
            options,
            runtime: Handle::current(),
        })
    }
}

/// A sampling plugin whose settings are valid.
pub(crate) struct CheckedSampler {
    sampler: Arc<RequestSampler>,
    options: SamplingRequestOptions,
    /// Runs the instances. The engine thread, which starts them, has no runtime.
    runtime: Handle,
}

impl CheckedSampler {
    /// Bytes of its settings.
    pub(crate) fn settings_bytes(&self) -> usize {
        self.sampler.settings.len()
    }

    /// Starts samplers for generations with a model of this vocabulary.
    pub(crate) fn factory(&self, vocabulary: u32) -> Arc<dyn ExternalSamplerFactory> {
        Arc::new(external_sampler::SamplerFactory {
            sampler: Arc::clone(&self.sampler),
            options: self.options,
            runtime: self.runtime.clone(),
            vocabulary,
        })
    }
}
