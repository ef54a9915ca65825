//! What the host keeps for one instance: the data of its store.

use crate::host::{Handles, Snapshots};
use crate::limiter::Limiter;
use crate::meter::Meter;
use crate::models::Visible;
use crate::outbound::Outbound;
use crate::quota::Visit;
use crate::settings::{FIELD_BYTES, Limits, RANDOM_BYTES, RESOURCES};
use crate::tally::Tally;
use corral_engine::{Caller, Lease};
use std::collections::BTreeMap;
use std::sync::Arc;
use wasmtime::component::{InstancePre, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

/// What a deployment lets its plugins use.
#[derive(Clone)]
pub(crate) struct Grants {
    pub(crate) models: Visible,
    pub(crate) snapshots: Snapshots,
    /// The sampling plugins that it may name.
    pub(crate) samplers: Arc<BTreeMap<String, InstancePre<State>>>,
}

/// The data of a store.
pub(crate) struct State {
    pub(crate) table: ResourceTable,
    pub(crate) handles: Handles,
    pub(crate) models: Visible,
    pub(crate) snapshots: Snapshots,
    /// The sampling plugins that it may name.
    pub(crate) samplers: Arc<BTreeMap<String, InstancePre<State>>>,
    /// On whose behalf the engine works for it.
    pub(crate) caller: Caller,
    /// Whose tokens it uses, if somebody counts them.
    pub(crate) visit: Option<Arc<Visit>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) limiter: Limiter,
    pub(crate) tally: Arc<Tally>,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    outbound: Outbound,
    /// Of every model that it has opened: they stay in memory until the call ends. Dropped after all
    /// that uses them.
    pub(crate) leases: Vec<Lease>,
}

impl State {
    /// State for an instance that sees nothing of this machine but what `wasi` was given.
    pub(crate) fn new(
        wasi: &mut WasiCtxBuilder,
        Grants {
            models,
            snapshots,
            samplers,
        }: Grants,
        caller: Caller,
        visit: Option<Arc<Visit>>,
        limits: &Limits,
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
            models,
            snapshots,
            samplers,
            caller,
            visit,
            limiter: Limiter::new(limits.memory, Arc::clone(&meter)),
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
            leases: Vec::new(),
        }
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
