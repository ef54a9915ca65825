//! Clocks of a plugin that is not granted any: they stand still, and its timers work.
//!
//! Both clocks of `wasi:clocks` show the start of the call. Only a timer that ends moves them, to the time for which the plugin
//! set it: a program that waits for a time then finds that it has come. So the plugin cannot measure how long anything takes,
//! beyond what it learns from timers that run meanwhile. The clocks never go back, and are never ahead of the machine's. The
//! budget's time (`host/budget.rs`) counts with them, and outcomes have no times (`host/generation.rs`).
//!
//! The functions that make timers are in `host/clocks.rs`.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use wasmtime_wasi::p2::Pollable;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder, async_trait};

/// Resolution that the clocks announce, in nanoseconds.
const RESOLUTION: u64 = 1;

/// The clocks of an instance that is not granted any. Clones are the same clocks.
#[derive(Clone)]
pub(crate) struct StoppedClocks(Arc<Inner>);

struct Inner {
    created: Instant,
    /// Time since the Unix epoch when the instance was created.
    unix_created: Duration,
    /// Nanoseconds that the clocks have moved since the instance was created.
    moved: AtomicU64,
}

impl StoppedClocks {
    /// Makes these the clocks of a new instance.
    pub(crate) fn install(wasi: &mut WasiCtxBuilder) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the plugin reads the time of day once"
        )]
        let now = SystemTime::now();
        let clocks = Self(Arc::new(Inner {
            created: Instant::now(),
            unix_created: now
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default(),
            moved: AtomicU64::new(0),
        }));
        wasi.wall_clock(clocks.clone())
            .monotonic_clock(clocks.clone());
        clocks
    }

    /// Moves the clocks to the present.
    pub(crate) fn begin_call(&self) {
        let elapsed = self.0.created.elapsed().as_nanos();
        self.move_to(u64::try_from(elapsed).unwrap_or(u64::MAX));
    }

    /// Where the clocks stand, on the machine's.
    pub(crate) fn instant(&self) -> std::time::Instant {
        let moved = Duration::from_nanos(HostMonotonicClock::now(self));
        let instant = self.0.created.into_std();
        instant.checked_add(moved).unwrap_or(instant)
    }

    fn move_to(&self, time: u64) {
        self.0.moved.fetch_max(time, Ordering::Relaxed);
    }

    /// A timer that ends at `time` on these clocks.
    pub(crate) fn timer(&self, time: u64) -> Timer {
        let wait = Duration::from_nanos(time.saturating_sub(HostMonotonicClock::now(self)));
        Timer {
            clocks: self.clone(),
            time,
            until: Instant::now().checked_add(wait),
            yielded: false,
        }
    }

    /// Waits for `nanoseconds`, until `time` on these clocks.
    pub(crate) async fn wait(&self, time: u64, nanoseconds: u64) {
        if nanoseconds > 0 {
            sleep(Duration::from_nanos(nanoseconds)).await;
            self.move_to(time);
        }
    }
}

impl HostMonotonicClock for StoppedClocks {
    fn resolution(&self) -> u64 {
        RESOLUTION
    }

    fn now(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed)
    }
}

impl HostWallClock for StoppedClocks {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(RESOLUTION)
    }

    fn now(&self) -> Duration {
        let moved = Duration::from_nanos(HostMonotonicClock::now(self));
        self.0.unix_created.saturating_add(moved)
    }
}

/// A timer of WASI 0.2.
pub(crate) struct Timer {
    clocks: StoppedClocks,
    /// When it ends on the plugin's clocks.
    time: u64,
    /// When it ends. `None` is never.
    until: Option<Instant>,
    yielded: bool,
}

#[async_trait]
impl Pollable for Timer {
    async fn ready(&mut self) {
        match self.until {
            // A guest that polls without a wait must not starve the runtime's other tasks.
            Some(until) if until <= Instant::now() => {
                if !std::mem::replace(&mut self.yielded, true) {
                    yield_now().await;
                }
            }
            Some(until) => sleep_until(until).await,
            None => pending().await,
        }
        self.clocks.move_to(self.time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_timers_and_calls_move_clocks() {
        let clocks = StoppedClocks::install(&mut WasiCtxBuilder::new());
        let now = || HostMonotonicClock::now(&clocks);
        let start = HostWallClock::now(&clocks);
        sleep(Duration::from_millis(5)).await;
        assert_eq!(now(), 0);
        let mut short = clocks.timer(1_000_000);
        clocks.timer(3_000_000).ready().await;
        assert_eq!(now(), 3_000_000);
        short.ready().await;
        assert_eq!(now(), 3_000_000, "they do not go back");
        clocks.wait(4_000_000, 1_000_000).await;
        let moved = HostWallClock::now(&clocks) - start;
        assert_eq!(moved, Duration::from_millis(4));
        clocks.begin_call();
        assert!(now() >= 9_000_000, "{}", now());
    }
}
