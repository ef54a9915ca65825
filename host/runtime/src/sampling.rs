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

pub(crate) mod bindings;
mod external_sampler;
mod instance;
mod permits;
pub(crate) mod resources;
#[cfg(test)]
mod tests;

use crate::compute_turns::TurnQueue;
use crate::counters::DeploymentCounters;
use crate::cpu_meter::Meter;
use crate::interfaces::SAMPLING;
use crate::plugin_output::Output;
use crate::runtime_config::Limits;
use crate::state::{SamplerPre, State, StoreGrants};
use bindings::exports::corral::plugin::sampling as guest;
use corral_engine::{Error, ExternalSamplerFactory, SamplingRequestOptions};
use instance::{Instance, Purpose};
use resources::SamplerResources;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentNamedList, InstancePre, Lift, Lower, ResourceAny};

/// Checks that a component has the functions of a sampling plugin.
///
/// # Errors
/// Which function is missing or has another type.
pub(crate) fn check_sampler(pre: InstancePre<State>) -> wasmtime::Result<SamplerPre> {
    use guest::{Distribution, Needs, SamplerContext};
    type StartResult = Result<ResourceAny, String>;
    type SampleResult = Result<u32, String>;
    let plugin = SamplerPre::new(pre.clone())?;
    // `SamplerPre::new` checks the names. The types would only be checked in an instance.
    check_function::<(&SamplerContext,), (StartResult,)>(&pre, "[static]sampler.start")?;
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

/// A sampling plugin with the settings and limits of one request.
struct RequestSampler {
    name: String,
    settings: String,
    plugin: SamplerPre,
    grants: Arc<StoreGrants>,
    limits: Arc<Limits>,
    request_meter: Arc<Meter>,
    counters: Arc<DeploymentCounters>,
    outputs: Option<[Output; 3]>,
    resources: Arc<SamplerResources>,
    /// Where its instances wait for turns to compute, like the guest of the request. The last call of any of them decides
    /// whether all are slow.
    turns: Option<TurnQueue>,
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
            grants: Arc::new(StoreGrants {
                models: state.grants.models.none(),
                snapshots: state.grants.snapshots.none(),
                key_values: None,
                config: None,
                folders: None,
                outbound: None,
                deployments: None,
                messages: None,
                system: state.grants.system,
                tokenization: Arc::clone(&state.grants.tokenization),
                samplers: Arc::default(),
                sampling: Arc::clone(&state.grants.sampling),
                turns: None,
            }),
            limits: Arc::clone(&state.limits),
            request_meter: Arc::clone(&state.meter),
            counters: Arc::clone(&state.counters),
            outputs: state.sampler_outputs(),
            resources: Arc::clone(&state.grants.sampling),
            turns: state
                .grants
                .turns
                .as_ref()
                .map(|turns| TurnQueue::new(turns, state.caller.tenant, &state.counters)),
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
