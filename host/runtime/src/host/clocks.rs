//! The functions of `wasi:clocks` that make timers, linked in place of those of `wasmtime-wasi`, which they call where clocks are
//! granted. Elsewhere the timers move the instance's [`StoppedClocks`](crate::clocks::StoppedClocks).

use crate::clocks::Timer;
use crate::state::State;
use wasmtime::StoreContextMut;
use wasmtime::component::{Accessor, Linker, Resource};
use wasmtime_wasi::HostMonotonicClock;
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock::Host;
use wasmtime_wasi::p2::{DynPollable, subscribe};
use wasmtime_wasi::p3::bindings::clocks::monotonic_clock::HostWithStore;

pub(super) fn link_p2(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut clock = linker.instance("wasi:clocks/monotonic-clock@0.2.12")?;
    clock.func_wrap(
        "subscribe-instant",
        |mut store: StoreContextMut<'_, State>, (time,): (u64,)| {
            let state = store.data_mut();
            let pollable = match state.stopped_clocks.clone() {
                Some(clocks) => start(state, clocks.timer(time))?,
                None => state.clocks().subscribe_instant(time)?,
            };
            Ok((pollable,))
        },
    )?;
    clock.func_wrap(
        "subscribe-duration",
        |mut store: StoreContextMut<'_, State>, (wait,): (u64,)| {
            let state = store.data_mut();
            let pollable = match state.stopped_clocks.clone() {
                Some(clocks) => {
                    let time = HostMonotonicClock::now(&clocks).saturating_add(wait);
                    start(state, clocks.timer(time))?
                }
                None => state.clocks().subscribe_duration(wait)?,
            };
            Ok((pollable,))
        },
    )
}

fn start(state: &mut State, timer: Timer) -> wasmtime::Result<Resource<DynPollable>> {
    let timer = state.table.push(timer)?;
    subscribe(&mut state.table, timer)
}

pub(super) fn link_p3(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut clock = linker.instance("wasi:clocks/monotonic-clock@0.3.0")?;
    clock.func_wrap_concurrent("wait-until", |store: &Accessor<State>, (time,): (u64,)| {
        Box::pin(async move {
            match store.with(|mut access| access.data_mut().stopped_clocks.clone()) {
                Some(clocks) => {
                    let now = HostMonotonicClock::now(&clocks);
                    clocks.wait(time, time.saturating_sub(now)).await;
                }
                None => {
                    let store = store.with_getter::<WasiClocks>(State::clocks);
                    WasiClocks::wait_until(&store, time).await?;
                }
            }
            Ok(())
        })
    })?;
    clock.func_wrap_concurrent("wait-for", |store: &Accessor<State>, (time,): (u64,)| {
        Box::pin(async move {
            match store.with(|mut access| access.data_mut().stopped_clocks.clone()) {
                Some(clocks) => {
                    let now = HostMonotonicClock::now(&clocks);
                    clocks.wait(now.saturating_add(time), time).await;
                }
                None => {
                    let store = store.with_getter::<WasiClocks>(State::clocks);
                    WasiClocks::wait_for(&store, time).await?;
                }
            }
            Ok(())
        })
    })
}
