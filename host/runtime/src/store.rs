//! The store of an instance: where its limits hold while guest code runs, and what keeps its polls few.

use crate::settings::{HOSTCALL_BYTES, RESOURCES};
use crate::state::State;
use crate::ticker::TICK;
use std::future::pending;
use std::sync::Arc;
use wasmtime::component::{Accessor, AccessorTask};
use wasmtime::{AsContextMut, Engine, Store, UpdateDeadline};

/// A store in which the limits of `state` hold, and whose guest gives way to others at each epoch.
pub(crate) fn store(engine: &Engine, state: State) -> Store<State> {
    let meter = Arc::clone(&state.meter);
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(HOSTCALL_BYTES);
    if let Some(table) = store.as_context_mut().concurrent_resource_table() {
        table.set_max_capacity(RESOURCES);
    }
    store.set_epoch_deadline(1);
    // After a wait the epoch has moved on without the guest: it yields only when it really had
    // the thread for a while, so that woken guests don't go to the back of the queue.
    store.epoch_deadline_callback(move |_| {
        Ok(if meter.in_poll() < TICK / 2 {
            UpdateDeadline::Continue(1)
        } else {
            // Tokio's own yield also lets it look for timers and sockets, which it would do
            // only after many turns of a guest that wakes itself.
            UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))
        })
    });
    store
}

/// Gives a store a task that never does anything, so that a guest which waits for one thing is not polled
/// twice.
///
/// wasmtime keeps all that a store waits for in one `FuturesUnordered`. When that has polled every one of its
/// futures and none was ready it wakes itself, in case they only gave way, and is polled once more. A guest
/// that streams tokens waits for one thing at a time, which is every one: so each token had a second poll that
/// found nothing, for which tokio woke another worker, since the first one had more to do. With a future
/// beside it that is polled once and never again, they are never all.
///
/// A guest that waits for nothing that could come is not found out by this, nor is it without: `run_concurrent`
/// leaves it to its deadline. A plain call of a function does find that out, where nothing else is in the store, so
/// a store of such calls is to be given no company.
pub(crate) fn keep_company(store: &mut Store<State>) -> wasmtime::Result<()> {
    // It goes with the store.
    store.spawn(Company).map(drop)
}

struct Company;

impl AccessorTask<State> for Company {
    async fn run(self, _: &Accessor<State>) -> wasmtime::Result<()> {
        pending().await
    }
}
