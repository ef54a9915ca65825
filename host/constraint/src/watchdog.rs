//! Cancels calls of matchers that take too long.
//!
//! `llguidance` limits the work for a mask by items and lexer fuel, but not all of the work for
//! consuming a token, which in an ambiguous grammar is quadratic in the text. It checks a cancellation
//! flag from time to time; one thread per model sets the flag. The thread lives while there are
//! matchers. It measures time by its own ticks, so a stall of the whole machine cancels nothing; a
//! stall of the calling thread alone does.

use crate::limits;
use llguidance::CancellationHandle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(25);
const TICKS_PER_CALL: u64 = (limits::MAX_CALL_TIME.as_millis() / TICK.as_millis()) as u64;

/// Times the calls of a model's matchers.
#[derive(Default)]
pub struct Watchdog {
    /// Ticks so far.
    ticks: Arc<AtomicU64>,
    state: Mutex<WatchdogState>,
}

#[derive(Default)]
struct WatchdogState {
    timers: Vec<Weak<Timer>>,
    /// Whether the thread runs.
    running: bool,
}

struct Timer {
    /// The tick at which the current call is canceled; 0 between calls.
    deadline: AtomicU64,
    handle: CancellationHandle,
}

/// A matcher's timer.
pub struct CallTimer {
    timer: Arc<Timer>,
    ticks: Arc<AtomicU64>,
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, WatchdogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A timer that cancels by `handle`; the watchdog forgets it when it is dropped.
    pub fn timer(self: &Arc<Self>, handle: CancellationHandle) -> CallTimer {
        let timer = Arc::new(Timer {
            deadline: AtomicU64::new(0),
            handle,
        });
        let mut state = self.lock();
        state.timers.push(Arc::downgrade(&timer));
        if !state.running {
            let watchdog = Arc::clone(self);
            let thread = std::thread::Builder::new().name("corral-watchdog".into());
            // Without the thread, only the other limits apply.
            match thread.spawn(move || watchdog.run()) {
                Ok(_) => state.running = true,
                Err(cause) => tracing::warn!(%cause, "cannot start the watchdog of grammars"),
            }
        }
        drop(state);
        CallTimer {
            timer,
            ticks: Arc::clone(&self.ticks),
        }
    }

    fn run(&self) {
        loop {
            std::thread::sleep(TICK);
            let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
            let mut state = self.lock();
            state.timers.retain(|timer| {
                let Some(timer) = timer.upgrade() else {
                    return false;
                };
                let deadline = timer.deadline.load(Ordering::Relaxed);
                if deadline != 0 && deadline <= now {
                    timer.handle.cancel();
                }
                true
            });
            if state.timers.is_empty() {
                state.running = false;
                return;
            }
        }
    }
}

impl CallTimer {
    /// A call starts.
    pub fn start(&self) {
        // The first tick may come at any moment.
        let deadline = self.ticks.load(Ordering::Relaxed) + TICKS_PER_CALL + 1;
        self.timer.deadline.store(deadline, Ordering::Relaxed);
    }

    /// The call ended.
    pub fn stop(&self) {
        self.timer.deadline.store(0, Ordering::Relaxed);
    }
}
