//! The data of an instance's store: what the instance may use, and what belongs to its current call.
//!
//! *Invariant*: [`State::end_call`] releases all that belongs to the call, so the next call of the tenant finds nothing of it
//! in the host. It does not clear the guest's memory.

use crate::call_context::CallContext;
use crate::call_trace::CallTrace;
use crate::clocks::StoppedClocks;
use crate::compute_turns::ComputeTurns;
use crate::counters::DeploymentCounters;
use crate::cpu_meter::Meter;
use crate::deployment_calls::DeploymentCaller;
use crate::deployment_config::DeploymentConfig;
use crate::deployment_lookup::{DeploymentGrants, MessageGrants};
use crate::deployment_snapshots::DeploymentSnapshots;
use crate::folders::{FolderAccess, OpenFiles};
use crate::framed_bodies::FramedBodies;
use crate::held_resources::Handles;
use crate::http_bytes;
use crate::key_values::KeyValues;
use crate::logs::LogLevel;
use crate::messages::MessageSender;
use crate::models::VisibleModels;
use crate::outbound::{Outbound, OutboundAccess};
use crate::plugin_output::{LogOrigin, Output};
use crate::quota::QuotaPermit;
use crate::random;
use crate::resource_limiter::Limiter;
use crate::runtime_config::{FIELD_BYTES, Limits, RANDOM_BYTES, RESOURCES, SystemGrants};
use crate::sampling::bindings::SamplingPre;
use crate::sampling::resources::SamplerResources;
use crate::tokenization::TokenizationPermits;
use corral_engine::{Caller, ModelLease, TokenUsage};
use std::collections::BTreeMap;
use std::sync::Arc;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

/// A sampling plugin, ready to be instantiated.
pub(crate) type SamplerPre = SamplingPre<State>;

/// What a plugin may use.
#[derive(Clone)]
pub(crate) struct StoreGrants {
    pub(crate) models: VisibleModels,
    pub(crate) snapshots: DeploymentSnapshots,
    /// The deployment's values, without a tenant, if it is granted any.
    pub(crate) key_values: Option<KeyValues>,
    /// Its configuration and secrets, if it has any.
    pub(crate) config: Option<Arc<DeploymentConfig>>,
    /// Folders that it may read, if any.
    pub(crate) folders: Option<Arc<FolderAccess>>,
    /// Outgoing requests, if any are granted.
    pub(crate) outbound: Option<Arc<OutboundAccess>>,
    /// Other deployments that it may call, if any.
    pub(crate) deployments: Option<Arc<DeploymentGrants>>,
    /// Messages that it may publish, if any.
    pub(crate) messages: Option<Arc<MessageGrants>>,
    pub(crate) system: SystemGrants,
    pub(crate) tokenization: Arc<TokenizationPermits>,
    /// Linked sampling plugins, by name.
    pub(crate) samplers: Arc<BTreeMap<String, SamplerPre>>,
    pub(crate) sampling: Arc<SamplerResources>,
    /// Where the samplers of its generations wait for turns to compute.
    pub(crate) turns: Option<Arc<ComputeTurns>>,
}

/// The data of a store.
pub(crate) struct State {
    pub(crate) table: ResourceTable,
    pub(crate) handles: Handles,
    pub(crate) grants: Arc<StoreGrants>,
    /// The engine's requests run on behalf of this caller.
    pub(crate) caller: Caller,
    /// Name of the tenant of the caller's API key; empty for none.
    pub(crate) tenant_name: Arc<str>,
    /// Who publishes the call's messages, if any are granted.
    pub(crate) message_sender: Option<MessageSender>,
    /// Token reservations come from here, if a quota applies.
    pub(crate) quota_permit: Option<Arc<QuotaPermit>>,
    /// Tokens of the call's generations.
    pub(crate) usage: Arc<TokenUsage>,
    /// The trace that the call belongs to.
    pub(crate) trace: Option<Arc<dyn CallTrace>>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) limiter: Limiter,
    pub(crate) counters: Arc<DeploymentCounters>,
    /// Files in folders that the instance has open.
    pub(crate) open_files: OpenFiles,
    /// Its clocks, if it is granted none that run.
    pub(crate) stopped_clocks: Option<StoppedClocks>,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    outbound: Outbound,
    /// Standard output and error of the guest; none for a command.
    pub(crate) outputs: Option<[Output; 2]>,
    /// Origin of the log lines of sampling plugins and `wasi:logging`; none for a command.
    log_origin: Option<Arc<LogOrigin>>,
    /// The output of `wasi:logging`, once created.
    pub(crate) log_output: Option<Output>,
    /// The outputs of sampling plugins, once created.
    sampler_outputs: Option<[Output; 3]>,
    /// Framed bodies, which may be on their way to a client.
    pub(crate) bodies: FramedBodies,
    /// Leases of all models that the instance opened, the most recent last. They keep the models in memory
    /// until the call ends, so they are dropped after everything that uses a model.
    pub(crate) leases: Vec<ModelLease>,
}

impl State {
    /// State for an instance that sees nothing of this machine beyond what `wasi` grants.
    pub(crate) fn new(
        wasi: &mut WasiCtxBuilder,
        grants: Arc<StoreGrants>,
        limits: &Arc<Limits>,
        meter: Arc<Meter>,
        counters: Arc<DeploymentCounters>,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(FIELD_BYTES);
        let stopped_clocks = (!grants.system.clocks).then(|| StoppedClocks::install(wasi));
        if !grants.system.random {
            random::install_fixed(wasi);
        }
        let limiter = Limiter::new(limits.memory, Arc::clone(&meter), Arc::clone(&counters));
        let (access, deployments) = (grants.outbound.clone(), grants.deployments.clone());
        let outbound = Outbound::new(access, deployments, &counters, limiter.memory());
        Self {
            table,
            handles: Handles::new(&counters),
            grants,
            caller: Caller::default(),
            tenant_name: Arc::default(),
            message_sender: None,
            quota_permit: None,
            usage: Arc::default(),
            trace: None,
            limits: Arc::clone(limits),
            limiter,
            meter,
            counters,
            open_files: OpenFiles::default(),
            stopped_clocks,
            wasi: wasi
                .allow_tcp(false)
                .allow_udp(false)
                .allow_ip_name_lookup(false)
                .max_random_size(RANDOM_BYTES)
                .build(),
            http,
            outbound,
            log_origin: None,
            outputs: None,
            log_output: None,
            sampler_outputs: None,
            bodies: FramedBodies::default(),
            leases: Vec::new(),
        }
    }

    /// Begins the first call, or another one of the same tenant after [`Self::end_call`].
    pub(crate) fn begin_call(&mut self, call: CallContext) {
        if let Some(clocks) = &self.stopped_clocks {
            clocks.begin_call();
        }
        let caller = self
            .grants
            .deployments
            .as_ref()
            .map(|_| DeploymentCaller::of(&call));
        let messages = self.grants.messages.as_ref();
        self.message_sender = messages.map(|_| MessageSender::of(&call));
        self.trace = call.log_origin.trace.clone();
        self.outbound.begin_call(caller, self.trace.clone());
        self.caller = call.caller;
        self.tenant_name = call.tenant_name;
        self.quota_permit = call.quota_permit;
        self.usage = call.usage;
        for output in self.outputs.iter().flatten() {
            output.begin_call(&call.log_origin);
        }
        self.log_origin = Some(call.log_origin);
    }

    /// Releases what belongs to the call that ended. Returns whether another call may use the instance: it holds no handle,
    /// and has memory and entries in its table left.
    pub(crate) fn end_call(&mut self) -> bool {
        for output in self.outputs.iter().flatten() {
            output.end_call();
        }
        self.quota_permit = None;
        self.usage = Arc::default();
        self.trace = None;
        let is_idle = self.outbound.is_idle();
        // It holds the permit of the quota, the caller and the trace.
        self.outbound.begin_call(None, None);
        self.sampler_outputs = None;
        self.log_output = None;
        self.log_origin = None;
        self.bodies = FramedBodies::default();
        let is_empty = self.handles.is_empty();
        self.handles.images = 0;
        if is_empty {
            self.leases.clear();
        }
        let is_held = http_bytes::is_any_held(&mut self.table);
        let has_memory = self.limiter.end_call(is_held) && !self.meter.memory_refused();
        is_empty && is_idle && has_memory && self.table.iter_mut().count() <= RESOURCES / 2
    }

    /// The trace of the call, if it wants to know what happens.
    pub(crate) fn sampled_trace(&self) -> Option<&Arc<dyn CallTrace>> {
        self.trace.as_ref().filter(|trace| trace.is_sampled())
    }

    /// The values that the call may use.
    pub(crate) fn key_values(&self) -> Option<KeyValues> {
        let mut values = self.grants.key_values.clone()?;
        values.tenant = Arc::clone(&self.tenant_name);
        Some(values)
    }

    /// Logs a line of the host for whoever deploys the plugin.
    pub(crate) fn log_line(&mut self, level: LogLevel, text: &str) {
        match self.log_output() {
            Some(output) => output.log(level, text),
            None => tracing::warn!("{text}"),
        }
    }

    /// The output of `wasi:logging`; none for a command.
    pub(crate) fn log_output(&mut self) -> Option<&Output> {
        if self.log_output.is_none() {
            let origin = self.log_origin.clone()?;
            self.log_output = Some(Output::new("log", origin));
        }
        self.log_output.as_ref()
    }

    /// Standard output, standard error and `wasi:logging` of the call's sampling plugins. All share these three, and so
    /// the limit on lines of one call.
    pub(crate) fn sampler_outputs(&mut self) -> Option<[Output; 3]> {
        let origin = self.log_origin.as_ref()?;
        let new = || ["stdout", "stderr", "log"].map(|stream| Output::new(stream, origin.clone()));
        Some(self.sampler_outputs.get_or_insert_with(new).clone())
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.outbound,
            table: &mut self.table,
            ctx: &mut self.http,
        }
    }
}
