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
    /// The thread waits for a call.
    waiting: bool,
    stop: bool,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut TickerState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        // A thread that sleeps for an epoch looks at the state by itself.
        if state.waiting && (state.calls > 0 || state.stop) {
            state.waiting = false;
            self.changed.notify_one();
        }
    }

    /// Waits until calls run. False if the thread must end.
    fn wait_for_calls(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.calls == 0 && !state.stop {
            state.waiting = true;
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting = false;
        !state.stop
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
                while thread_shared.wait_for_calls() {
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
