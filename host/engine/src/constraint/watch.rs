//! Ends calls of matchers that take too long.
//!
//! `llguidance` bounds the work for a mask by items and lexer fuel, but not all of the work for going
//! on by a token, which in an ambiguous grammar grows with the square of the text. It asks a flag now
//! and then whether to give up. One thread sets that flag; it lives as long as there are matchers.

use super::limits;
use llguidance::CancellationHandle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(25);

/// Watches over the matchers of a model.
pub struct Watcher {
    /// Times count from here.
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: Vec<Weak<Slot>>,
    /// Whether the thread is there.
    running: bool,
}

struct Slot {
    /// When the call that runs has to be over, in milliseconds; 0 if none runs.
    until: AtomicU64,
    handle: CancellationHandle,
}

/// A matcher's place at the watcher's.
pub struct Watched {
    slot: Arc<Slot>,
    origin: Instant,
}

impl Default for Watcher {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            state: Mutex::default(),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches over whoever obeys this handle, until the answer is dropped.
    pub fn watch(self: &Arc<Self>, handle: CancellationHandle) -> Watched {
        let slot = Arc::new(Slot {
            until: AtomicU64::new(0),
            handle,
        });
        let mut state = self.lock();
        state.slots.push(Arc::downgrade(&slot));
        if !state.running {
            let watcher = Arc::clone(self);
            let thread = std::thread::Builder::new().name("corral-watch".into());
            // Without it, what the other bounds let through takes as long as it takes.
            match thread.spawn(move || watcher.run()) {
                Ok(_) => state.running = true,
                Err(cause) => tracing::warn!(%cause, "no thread to watch over grammars"),
            }
        }
        drop(state);
        Watched {
            slot,
            origin: self.origin,
        }
    }

    fn run(&self) {
        loop {
            std::thread::sleep(PERIOD);
            let now = millis(self.origin.elapsed());
            let mut state = self.lock();
            state.slots.retain(|slot| {
                let Some(slot) = slot.upgrade() else {
                    return false;
                };
                let until = slot.until.load(Ordering::Relaxed);
                if until != 0 && until <= now {
                    slot.handle.cancel();
                }
                true
            });
            if state.slots.is_empty() {
                state.running = false;
                return;
            }
        }
    }
}

impl Watched {
    /// A call begins.
    pub fn begin(&self) {
        let until = millis(self.origin.elapsed() + limits::STEP_TIME);
        self.slot.until.store(until, Ordering::Relaxed);
    }

    /// The call is over.
    pub fn end(&self) {
        self.slot.until.store(0, Ordering::Relaxed);
    }
}
