//! The store of an instance: where its limits hold while guest code runs.

use crate::settings::{HOSTCALL_BYTES, RESOURCES};
use crate::state::State;
use crate::ticker::TICK;
use std::sync::Arc;
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
