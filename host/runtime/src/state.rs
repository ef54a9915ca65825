//! What the host keeps for one instance: the data of its store.

use crate::host::{Bodies, Handles, Snapshots};
use crate::limiter::Limiter;
use crate::meter::Meter;
use crate::models::Visible;
use crate::outbound::Outbound;
use crate::output::{Origin, Output};
use crate::quota::Visit;
use crate::sampling::{SamplerPre, Sampling};
use crate::settings::{FIELD_BYTES, Limits, RANDOM_BYTES, RESOURCES};
use crate::tally::Tally;
use corral_engine::{Caller, Lease};
use std::collections::BTreeMap;
use std::sync::Arc;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

/// What a deployment lets its plugins use.
#[derive(Clone)]
pub(crate) struct Grants {
    pub(crate) models: Visible,
    pub(crate) snapshots: Snapshots,
    /// The sampling plugins that it links, by their names there.
    pub(crate) samplers: Arc<BTreeMap<String, SamplerPre>>,
    /// What they share.
    pub(crate) sampling: Arc<Sampling>,
}

/// The data of a store.
pub(crate) struct State {
    pub(crate) table: ResourceTable,
    pub(crate) handles: Handles,
    pub(crate) models: Visible,
    pub(crate) snapshots: Snapshots,
    pub(crate) samplers: Arc<BTreeMap<String, SamplerPre>>,
    pub(crate) sampling: Arc<Sampling>,
    /// On whose behalf the engine works for it.
    pub(crate) caller: Caller,
    /// Whose tokens it uses, if somebody counts them.
    pub(crate) visit: Option<Arc<Visit>>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) limiter: Limiter,
    pub(crate) tally: Arc<Tally>,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    outbound: Outbound,
    /// Whose lines those of its linked plugins are; none for a command.
    pub(crate) origin: Option<Origin>,
    /// Where they go, once there are any.
    outputs: Option<[Output; 2]>,
    /// Streams of bytes that it was given, and that may be on their way to a client.
    pub(crate) bodies: Bodies,
    /// Of every model that it has opened, the one that was opened last at the end: they stay in memory until the call ends. Dropped after all
    /// that uses them.
    pub(crate) leases: Vec<Lease>,
}

impl State {
    /// State for an instance that sees nothing of this machine but what `wasi` was given.
    pub(crate) fn new(
        wasi: &mut WasiCtxBuilder,
        grants: Grants,
        caller: Caller,
        visit: Option<Arc<Visit>>,
        limits: &Arc<Limits>,
        meter: Arc<Meter>,
        tally: Arc<Tally>,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(FIELD_BYTES);
        Self {
            table,
            handles: Handles::default(),
            models: grants.models,
            snapshots: grants.snapshots,
            samplers: grants.samplers,
            sampling: grants.sampling,
            caller,
            visit,
            limits: Arc::clone(limits),
            limiter: Limiter::new(limits.memory, Arc::clone(&meter), Arc::clone(&tally)),
            meter,
            tally,
            wasi: wasi
                .allow_tcp(false)
                .allow_udp(false)
                .allow_ip_name_lookup(false)
                .max_random_size(RANDOM_BYTES)
                .build(),
            http,
            outbound: Outbound,
            origin: None,
            outputs: None,
            bodies: Bodies::default(),
            leases: Vec::new(),
        }
    }

    /// Where the linked plugins of this call write, its standard output and error: all to the same two,
    /// so that together they have the lines that one has.
    pub(crate) fn outputs(&mut self) -> Option<[Output; 2]> {
        let origin = self.origin.as_ref()?;
        let new = || ["stdout", "stderr"].map(|stream| Output::new(stream, origin.clone()));
        Some(self.outputs.get_or_insert_with(new).clone())
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
