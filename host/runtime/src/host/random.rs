//! The functions of `wasi:random/random`, linked in place of those of `wasmtime-wasi`, which they call if they are granted.
//! Otherwise they end the call.

use crate::logs::LogLevel;
use crate::random::RandomDenied;
use crate::state::State;
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;
use wasmtime_wasi::p2::bindings::random::random::Host as P2;
use wasmtime_wasi::p3::bindings::random::random::Host as P3;
use wasmtime_wasi::random::WasiRandomView;

type Store<'a> = StoreContextMut<'a, State>;

pub(super) fn link_p2(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut random = linker.instance("wasi:random/random@0.2.12")?;
    random.func_wrap("get-random-bytes", |mut store: Store<'_>, (length,)| {
        let state = granted(store.data_mut())?;
        Ok((P2::get_random_bytes(state.random(), length)?,))
    })?;
    random.func_wrap("get-random-u64", |mut store: Store<'_>, (): ()| {
        let state = granted(store.data_mut())?;
        Ok((P2::get_random_u64(state.random())?,))
    })
}

pub(super) fn link_p3(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut random = linker.instance("wasi:random/random@0.3.0")?;
    random.func_wrap("get-random-bytes", |mut store: Store<'_>, (length,)| {
        let state = granted(store.data_mut())?;
        Ok((P3::get_random_bytes(state.random(), length)?,))
    })?;
    random.func_wrap("get-random-u64", |mut store: Store<'_>, (): ()| {
        let state = granted(store.data_mut())?;
        Ok((P3::get_random_u64(state.random())?,))
    })
}

/// The state of an instance that is granted random numbers.
fn granted(state: &mut State) -> Result<&mut State, RandomDenied> {
    if state.grants.system.random {
        return Ok(state);
    }
    state.log_line(
        LogLevel::Error,
        &format!("the plugin was stopped: {RandomDenied}"),
    );
    Err(RandomDenied)
}
