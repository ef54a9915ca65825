//! Ends calls of matchers that take too long.
//!
//! `llguidance` bounds the work for a mask by items and lexer fuel, but not all of the work for going
//! on by a token, which in an ambiguous grammar grows with the square of the text. It asks a flag now
//! and then whether to give up. One thread sets that flag; it lives as long as there are matchers. It counts
//! time by how often it has looked, so that no call is ended because the whole machine stood still a while; one
//! whose thread alone gets no processor for so long is.

use super::limits;
use llguidance::CancellationHandle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(25);
/// How often it looks in [`limits::STEP_TIME`].
const LOOKS: u64 = (limits::STEP_TIME.as_millis() / PERIOD.as_millis()) as u64;

/// Watches over the matchers of a model.
#[derive(Default)]
pub struct Watcher {
    /// How often it has looked.
    looks: Arc<AtomicU64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: Vec<Weak<Slot>>,
    /// Whether the thread is there.
    running: bool,
}

struct Slot {
    /// By which look the call that runs has to be over; 0 if none runs.
    until: AtomicU64,
    handle: CancellationHandle,
}

/// A matcher's place at the watcher's.
pub struct Watched {
    slot: Arc<Slot>,
    looks: Arc<AtomicU64>,
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
            looks: Arc::clone(&self.looks),
        }
    }

    fn run(&self) {
        loop {
            std::thread::sleep(PERIOD);
            let now = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
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
        // The first look comes at any moment.
        let until = self.looks.load(Ordering::Relaxed) + LOOKS + 1;
        self.slot.until.store(until, Ordering::Relaxed);
    }

    /// The call is over.
    pub fn end(&self) {
        self.slot.until.store(0, Ordering::Relaxed);
    }
}
