//! A thread that spins while steps are computed, to find out whether another core is free. No step waits for it.

use crate::cpu_time::thread_cpu_time;
use corral_llama::queue_delay;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The probe spins at most this long, even if a step takes longer.
const MAX_SPIN: Duration = Duration::from_millis(100);
/// Rounds between two looks at the clock.
const ROUNDS: u32 = 256;

const SLEEP: u8 = 0;
const SPIN: u8 = 1;
const END: u8 = 2;

/// What a probe found.
#[derive(Clone, Copy, Debug)]
pub struct ProbeResult {
    /// CPU time of its thread, plus `waited`.
    pub computed: Duration,
    /// How long it waited for a core.
    pub waited: Duration,
}

#[derive(Debug, Default)]
struct ProbeState {
    state: AtomicU8,
    result: OnceLock<ProbeResult>,
}

/// A running probe. Dropping it ends its thread.
#[derive(Debug)]
pub struct CoreProbe {
    shared: Arc<ProbeState>,
    thread: Thread,
}

impl CoreProbe {
    /// Starts a probe, which sleeps. `None` if no thread can be started.
    pub fn start() -> Option<Self> {
        let shared = Arc::new(ProbeState::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("core-probe".into());
        let handle = thread.spawn(move || own.run()).ok()?;
        Some(Self {
            shared,
            thread: handle.thread().clone(),
        })
    }

    /// Spins until [`CoreProbe::sleep`].
    pub fn spin(&self) {
        self.set(SPIN);
    }

    /// Sleeps until [`CoreProbe::spin`].
    pub fn sleep(&self) {
        // The spinning thread reads the state, so it needs no wake-up.
        let state = &self.shared.state;
        let _ = state.compare_exchange(SPIN, SLEEP, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends the probe. Its thread sets the result once it gets a core.
    pub fn end(&self) {
        self.set(END);
    }

    /// Whether the probe was told to end.
    pub fn is_ending(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) == END
    }

    /// The result of a probe that has ended.
    pub fn result(&self) -> Option<ProbeResult> {
        self.shared.result.get().copied()
    }

    fn set(&self, state: u8) {
        self.shared.state.store(state, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Drop for CoreProbe {
    fn drop(&mut self) {
        self.end();
    }
}

impl ProbeState {
    fn run(&self) {
        let waited_before = queue_delay();
        let cpu_before = thread_cpu_time();
        let mut spun = Duration::ZERO;
        loop {
            match self.state.load(Ordering::Relaxed) {
                SPIN if spun < MAX_SPIN => spun += self.spin(MAX_SPIN.saturating_sub(spun)),
                END => break,
                _ => std::thread::park(),
            }
        }
        let waited = queue_delay().zip(waited_before);
        let waited = waited.map_or(Duration::ZERO, |(after, before)| {
            after.saturating_sub(before)
        });
        let result = ProbeResult {
            computed: thread_cpu_time().saturating_sub(cpu_before) + waited,
            waited,
        };
        // Only this thread sets the result.
        let _ = self.result.set(result);
    }

    /// Spins while the state is [`SPIN`], for at most `limit`. Returns how long.
    fn spin(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        while self.state.load(Ordering::Relaxed) == SPIN && start.elapsed() < limit {
            (0..ROUNDS).for_each(|_| spin_loop());
        }
        start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(probe: &CoreProbe) -> ProbeResult {
        loop {
            if let Some(result) = probe.result() {
                return result;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn probe_spins_only_when_told() {
        let probe = CoreProbe::start().expect("a thread starts");
        probe.end();
        assert!(probe.is_ending());
        let idle = result(&probe);
        assert!(idle.computed < MAX_SPIN, "{idle:?}");

        let probe = CoreProbe::start().expect("a thread starts");
        probe.spin();
        // It runs as long as this thread waits, and not longer than its limit.
        std::thread::sleep(2 * MAX_SPIN);
        probe.sleep();
        assert!(probe.result().is_none());
        probe.end();
        let busy = result(&probe);
        assert!(busy.computed > idle.computed, "{busy:?}");
        assert!(busy.waited <= busy.computed);
    }
}
