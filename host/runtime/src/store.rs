//! The store of an instance, with its limits.

use crate::epoch_ticker::EPOCH;
use crate::runtime_config::{HOSTCALL_BYTES, RESOURCES};
use crate::state::State;
use std::sync::Arc;
use wasmtime::{AsContextMut, Engine, Store, UpdateDeadline};

/// A store that applies the limits of `state`, and whose guest yields at each epoch.
pub(crate) fn store(engine: &Engine, state: State) -> Store<State> {
    let meter = Arc::clone(&state.meter);
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(HOSTCALL_BYTES);
    if let Some(table) = store.as_context_mut().concurrent_resource_table() {
        table.set_max_capacity(RESOURCES);
    }
    store.set_epoch_deadline(1);
    // Epochs advance while the guest waits. It yields only if it has really used the thread for a while, so
    // that guests that were just woken do not go to the back of the queue.
    store.epoch_deadline_callback(move |_| {
        if meter.in_poll() < EPOCH / 2 {
            return Ok(UpdateDeadline::Continue(1));
        }
        meter.yields();
        // With tokio's own yield, the worker also polls timers and sockets. It would otherwise do that only after
        // many polls of guests that compute.
        let yielded = Box::pin(tokio::task::yield_now());
        Ok(UpdateDeadline::YieldCustom(1, yielded))
    });
    store
}
