//! Keeps the kernel from ending the process for lack of memory.
//!
//! A thread reads how short memory is while requests run, and sleeps without a timer when none does. As memory gets
//! short, in this order: requests that arrive wait; the engines evict offloaded prefixes; they write swapped-out states
//! to disk; requests get 503. Requests that run already go on. A request that has waited for [`HOLD_TIME`] gets 503
//! too.

use crate::http_counters::HttpCounters;
use crate::problem::Problem;
use crate::prometheus::MetricFamilies;
use corral_engine::{MemoryFiles, MemoryPressure, MetricKind, ModelPool, release_free_memory};
use http::StatusCode;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a request waits for memory.
const HOLD_TIME: Duration = Duration::from_secs(2);
/// Requests that may wait; more get 503 at once.
const MAX_HELD: usize = 64;
/// `Retry-After` of a refused request.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What the guard reads, and how much it keeps free.
#[derive(Clone, Debug, Default)]
pub struct MemoryGuardConfig {
    /// Where the system reports memory.
    pub files: MemoryFiles,
    /// Bytes to keep free; 0 for no guard. By default [`MemoryReading::default_reserve`].
    ///
    /// [`MemoryReading::default_reserve`]: corral_engine::MemoryReading::default_reserve
    pub reserve: Option<u64>,
}

/// Holds and refuses requests; see the module. Dropping it ends its thread.
pub(crate) struct MemoryGuard {
    shared: Arc<Shared>,
    /// A permit for each request that may wait.
    held: Semaphore,
}

struct Shared {
    config: MemoryGuardConfig,
    reserve: u64,
    thread: Mutex<ThreadState>,
    work: Condvar,
    pressure: watch::Sender<MemoryPressure>,
    held: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct ThreadState {
    asleep: bool,
    /// A request has arrived since the last reading.
    arrived: bool,
    stopped: bool,
}

impl MemoryGuard {
    /// Starts the thread. `None` if the guard is off or the system does not report its memory.
    pub(crate) fn start(
        config: MemoryGuardConfig,
        models: ModelPool,
        counters: Arc<HttpCounters>,
    ) -> io::Result<Option<Self>> {
        let reading = config.files.read().filter(|_| config.reserve != Some(0));
        let Some(reading) = reading else {
            return Ok(None);
        };
        let reserve = config.reserve.unwrap_or(reading.default_reserve());
        let shared = Arc::new(Shared {
            config,
            reserve,
            thread: Mutex::default(),
            work: Condvar::new(),
            pressure: watch::Sender::new(reading.pressure(reserve)),
            held: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let watched = shared.clone();
        std::thread::Builder::new()
            .name("memory".into())
            .spawn(move || watched.watch(&models, &counters))?;
        Ok(Some(MemoryGuard {
            shared,
            held: Semaphore::new(MAX_HELD),
        }))
    }

    /// Returns once a request may start, or the problem to answer.
    pub(crate) async fn admit(&self) -> Result<(), Problem> {
        let now = match self.shared.wake() {
            // The last reading is old.
            true => self.shared.measure(),
            false => *self.shared.pressure.borrow(),
        };
        if now == MemoryPressure::None {
            return Ok(());
        }
        if now < MemoryPressure::Refuse
            && let Ok(_held) = self.held.try_acquire()
        {
            self.shared.held.fetch_add(1, Ordering::Relaxed);
            let mut pressure = self.shared.pressure.subscribe();
            let decided = pressure.wait_for(|pressure| {
                matches!(pressure, MemoryPressure::None | MemoryPressure::Refuse)
            });
            if let Ok(Ok(pressure)) = timeout(HOLD_TIME, decided).await
                && *pressure == MemoryPressure::None
            {
                return Ok(());
            }
        }
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        let detail = "the server is short of memory; try again later";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Err(Problem::new(status, "memory-pressure", detail).retry_after(RETRY_AFTER))
    }

    /// Writes the level and the counters to `families`.
    pub(crate) fn write(&self, families: &mut MetricFamilies) {
        let pressure = self.shared.read();
        families.sample(
            "corral_memory_pressure",
            "How short memory is: 1 requests wait, 2 offloaded prefixes are evicted, 3 swapped-out states go to disk, 4 requests are refused.",
            MetricKind::Gauge,
            &[],
            f64::from(pressure as u8),
        );
        for (name, help, count) in [
            (
                "corral_memory_held_requests_total",
                "Requests that waited for memory.",
                &self.shared.held,
            ),
            (
                "corral_memory_refused_requests_total",
                "Requests refused with 503 for lack of memory.",
                &self.shared.refused,
            ),
        ] {
            let count = count.load(Ordering::Relaxed) as f64;
            families.sample(name, help, MetricKind::Counter, &[], count);
        }
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> MemoryPressure {
        let reading = self.config.files.read();
        reading.map_or_else(MemoryPressure::default, |reading| {
            reading.pressure(self.reserve)
        })
    }

    /// Reads the pressure and publishes it.
    fn measure(&self) -> MemoryPressure {
        let pressure = self.read();
        let before = self.pressure.send_replace(pressure);
        if pressure > before {
            tracing::warn!(?pressure, reserve = self.reserve, "memory is short");
        } else if pressure < before {
            tracing::info!(?pressure, "memory is less short");
        }
        pressure
    }

    /// Notes the arrival of a request. Wakes the thread if it sleeps, and returns whether it did.
    fn wake(&self) -> bool {
        let mut thread = self.lock();
        thread.arrived = true;
        let asleep = std::mem::take(&mut thread.asleep);
        if asleep {
            self.work.notify_one();
        }
        asleep
    }

    /// Reads and acts until the guard is dropped.
    fn watch(&self, models: &ModelPool, counters: &HttpCounters) {
        loop {
            let pressure = self.measure();
            if pressure >= MemoryPressure::Evict {
                for engine in models.engines() {
                    // A full command queue gets it at the next reading.
                    let _ = engine.relieve_memory(pressure);
                }
                release_free_memory();
            }
            let idle = pressure == MemoryPressure::None && counters.requests_in_flight() == 0;
            if !self.rest(idle) {
                return;
            }
        }
    }

    /// Waits for the next reading: until a request arrives if the server is idle. False if the guard is dropped.
    fn rest(&self, idle: bool) -> bool {
        let mut thread = self.lock();
        if idle && !thread.arrived {
            thread.asleep = true;
            while !thread.arrived && !thread.stopped {
                let waited = self.work.wait(thread);
                thread = waited.unwrap_or_else(PoisonError::into_inner);
            }
            thread.asleep = false;
        } else if !thread.stopped {
            let waited = self.work.wait_timeout(thread, INTERVAL);
            thread = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // Requests that arrive from here on see the next reading, or cause one more.
        thread.arrived = false;
        !thread.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;

    const RESERVE: u64 = 400 << 10;

    fn write(dir: &Path, free_kibibytes: u64) {
        let text = format!("MemTotal: 1000 kB\nMemAvailable: {free_kibibytes} kB\n");
        let new = dir.join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, dir.join("meminfo")).expect("renamed");
    }

    fn start(dir: &Path, reserve: Option<u64>) -> (Option<MemoryGuard>, Arc<HttpCounters>) {
        let counters = Arc::new(HttpCounters::default());
        let files = MemoryFiles::within(dir, &dir.join("none"));
        let config = MemoryGuardConfig { files, reserve };
        let models = ModelPool::loaded(Vec::new());
        let guard = MemoryGuard::start(config, models, counters.clone()).expect("a thread");
        (guard, counters)
    }

    /// Waits until the thread sleeps without a timer.
    fn wait_until_asleep(guard: &MemoryGuard) {
        let until = Instant::now() + Duration::from_secs(20);
        while !guard.shared.lock().asleep {
            assert!(Instant::now() < until, "it does not sleep");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    async fn reached(guard: &MemoryGuard, pressure: MemoryPressure) {
        let mut levels = guard.shared.pressure.subscribe();
        let waiting = levels.wait_for(|level| *level == pressure);
        let level = timeout(Duration::from_secs(20), waiting).await;
        level.expect("in time").expect("the thread runs");
    }

    #[tokio::test]
    async fn requests_wait_then_get_503() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 500);
        let (guard, counters) = start(dir.path(), Some(RESERVE));
        let guard = guard.expect("memory is reported");
        guard.admit().await.expect("enough is free");
        let _running = counters.count_request();

        write(dir.path(), 350);
        reached(&guard, MemoryPressure::Hold).await;
        let (held, ()) = tokio::join!(guard.admit(), async {
            tokio::task::yield_now().await;
            assert_eq!(guard.shared.held.load(Ordering::Relaxed), 1);
            write(dir.path(), 500);
        });
        held.expect("memory is free again in time");

        write(dir.path(), 250);
        reached(&guard, MemoryPressure::Evict).await;
        let problem = guard.admit().await.expect_err("it has waited");
        assert_eq!(
            (problem.status().as_u16(), problem.code()),
            (503, "memory-pressure")
        );

        write(dir.path(), 50);
        reached(&guard, MemoryPressure::Refuse).await;
        let held = guard.shared.held.load(Ordering::Relaxed);
        guard.admit().await.expect_err("refused at once");
        assert_eq!(guard.shared.held.load(Ordering::Relaxed), held);
        assert_eq!(guard.shared.refused.load(Ordering::Relaxed), 2);
        let mut families = MetricFamilies::default();
        guard.write(&mut families);
        assert!(families.text().contains("\ncorral_memory_pressure 4\n"));

        write(dir.path(), 500);
        reached(&guard, MemoryPressure::None).await;
        guard.admit().await.expect("it has recovered");
    }

    #[tokio::test]
    async fn waiting_requests_are_bounded() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 350);
        let (guard, _) = start(dir.path(), Some(RESERVE));
        let guard = guard.expect("memory is reported");
        let _all = guard
            .held
            .acquire_many(MAX_HELD as u32)
            .await
            .expect("free");
        guard.admit().await.expect_err("no room to wait");
        assert_eq!(guard.shared.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn idle_thread_sleeps_until_request() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 500);
        let (guard, _) = start(dir.path(), Some(RESERVE));
        let guard = guard.expect("memory is reported");
        wait_until_asleep(&guard);
        write(dir.path(), 50);
        guard.admit().await.expect_err("the first request reads");
        write(dir.path(), 500);
        reached(&guard, MemoryPressure::None).await;
        wait_until_asleep(&guard);
    }

    #[test]
    fn guard_is_off_without_reserve_or_readings() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(start(dir.path(), None).0.is_none(), "nothing is reported");
        write(dir.path(), 0);
        assert!(start(dir.path(), Some(0)).0.is_none());
        assert!(start(dir.path(), None).0.is_some());
    }
}
