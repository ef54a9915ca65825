//! Advances wasmtime's epoch every ten milliseconds while calls run. The thread sleeps without wake-ups
//! while none do.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wasmtime::{Engine, EngineWeak};

/// Length of an epoch.
pub(crate) const EPOCH: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<TickerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TickerState {
    calls: usize,
    stop: bool,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut TickerState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if state.calls == 1 || state.stop {
            self.changed.notify_one();
        }
    }
}

/// Owns the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ticker(Arc<Shared>);

impl Ticker {
    /// Starts the thread for `engines`.
    pub(crate) fn start<'a>(
        engines: impl IntoIterator<Item = &'a Engine>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread_shared = Arc::clone(&shared);
        let engines: Vec<_> = engines.into_iter().map(Engine::weak).collect();
        std::thread::Builder::new()
            .name("corral-epoch".into())
            .spawn(move || {
                loop {
                    let state = thread_shared
                        .state
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    let state = thread_shared
                        .changed
                        .wait_while(state, |state| state.calls == 0 && !state.stop)
                        .unwrap_or_else(PoisonError::into_inner);
                    if state.stop {
                        return;
                    }
                    drop(state);
                    std::thread::sleep(EPOCH);
                    let mut alive = engines.iter().filter_map(EngineWeak::upgrade).peekable();
                    if alive.peek().is_none() {
                        return;
                    }
                    alive.for_each(|engine| engine.increment_epoch());
                }
            })?;
        Ok(Self(shared))
    }

    /// Keeps epochs advancing until the guard is dropped.
    pub(crate) fn tick(&self) -> TickGuard {
        self.0.update(|state| state.calls += 1);
        TickGuard(Arc::clone(&self.0))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.update(|state| state.stop = true);
    }
}

/// Keeps epochs advancing for a running call.
#[derive(Debug)]
pub(crate) struct TickGuard(Arc<Shared>);

impl Drop for TickGuard {
    fn drop(&mut self) {
        self.0.update(|state| state.calls -= 1);
    }
}
