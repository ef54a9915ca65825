//! The clock of epoch interruption: a thread that advances wasmtime's epoch every ten milliseconds
//! while calls are live, and sleeps without waking while there are none.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wasmtime::Engine;

/// Length of an epoch.
pub(crate) const TICK: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    live: usize,
    stop: bool,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if state.live == 1 || state.stop {
            self.changed.notify_one();
        }
    }
}

/// Owns the thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ticker(Arc<Shared>);

impl Ticker {
    /// Starts the thread for `engine`.
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (theirs, engine) = (Arc::clone(&shared), engine.weak());
        std::thread::Builder::new()
            .name("corral-epoch".into())
            .spawn(move || {
                loop {
                    let state = theirs.state.lock().unwrap_or_else(PoisonError::into_inner);
                    let state = theirs
                        .changed
                        .wait_while(state, |state| state.live == 0 && !state.stop)
                        .unwrap_or_else(PoisonError::into_inner);
                    if state.stop {
                        return;
                    }
                    drop(state);
                    std::thread::sleep(TICK);
                    match engine.upgrade() {
                        Some(engine) => engine.increment_epoch(),
                        None => return,
                    }
                }
            })?;
        Ok(Self(shared))
    }

    /// Keeps the epochs going until the guard is dropped.
    pub(crate) fn tick(&self) -> Ticking {
        self.0.update(|state| state.live += 1);
        Ticking(Arc::clone(&self.0))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.update(|state| state.stop = true);
    }
}

/// A call is live.
#[derive(Debug)]
pub(crate) struct Ticking(Arc<Shared>);

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.update(|state| state.live -= 1);
    }
}
