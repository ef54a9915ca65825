//! Random numbers of a plugin that is not granted any: `wasi:random/random` ends the call, and the others are the same in each
//! instance.
//!
//! `wasi:random/random` promises numbers that nobody can guess, so it refuses to answer rather than to answer others.
//! `insecure` and `insecure-seed` promise less: standard libraries take the keys of their hash tables from them.

use crate::linker::replace;
use crate::logs::LogLevel;
use crate::state::State;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p2::bindings::random::random::Host as P2;
use wasmtime_wasi::p3::bindings::random::random::Host as P3;
use wasmtime_wasi::random::WasiRandomView;

/// The error of a plugin that asks for random numbers without their grant.
#[derive(Debug, thiserror::Error)]
#[error(
    "it called 'wasi:random/random', which its manifest denies; set 'grants.random' to true if it may have random numbers"
)]
pub(crate) struct RandomDenied;

/// Makes the insecure numbers of a new instance the same as in any other.
pub(crate) fn install_fixed(wasi: &mut WasiCtxBuilder) {
    wasi.insecure_random(ChaCha8Rng::seed_from_u64(0))
        .insecure_random_seed(0);
}

/// Links the functions of `wasi:random/random` in place of those of `wasmtime-wasi`, which they call if they are granted.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    replace(linker, &[link_p2, link_p3])
}

type Store<'a> = StoreContextMut<'a, State>;

fn link_p2(linker: &mut Linker<State>) -> wasmtime::Result<()> {
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

fn link_p3(linker: &mut Linker<State>) -> wasmtime::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::check_wasmtime_links_too;

    #[test]
    fn wasmtime_links_the_same_functions() {
        check_wasmtime_links_too(&[link_p2, link_p3]);
    }
}
