//! Keeps the kernel from ending the process for lack of memory.
//!
//! A thread reads how short memory is while requests run or wait, and sleeps without a timer otherwise. As memory gets
//! short, in this order: the engines drop offloaded prefixes; requests that arrive wait; the engines move swapped-out
//! states to disk; requests get 503. Running requests go on. A request that has waited for [`HOLD_TIME`] gets 503 too.
//!
//! Prefixes are dropped before requests wait, and not after. They are a cache that grows until memory is short, so this is
//! the usual state of a busy server: if requests waited first, each time the cache is full would cost clients time.
//! Dropping them costs only their computation, and three quarters of the reserve are still free at that level.
//!
//! One request can always run: if none runs, the next one starts at any level. So the server recovers even if
//! it holds all of the memory itself.

use crate::problem::Problem;
use crate::prometheus::MetricFamilies;
use corral_engine::{
    MemoryFiles, MemoryPressure, MetricKind, ModelPool, Tenant, release_free_memory,
};
use http::StatusCode;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Time between two readings, at least and at most.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Bytes a second at which memory is assumed to fill at most. Readings come less often while much is free, since one takes
/// half a millisecond.
const FASTEST_FILL: u64 = 8 << 30;
/// How long a request waits for memory.
const HOLD_TIME: Duration = Duration::from_secs(2);
/// Requests that may wait; more get 503 at once.
const MAX_HELD: usize = 128;
/// Waiting requests of one tenant, or of all clients without a key.
const MAX_HELD_PER_TENANT: usize = MAX_HELD / 4;
/// Waiting requests that start after each reading once memory is free.
const STARTS_PER_READING: usize = 8;
/// `Retry-After` of a refused request.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Sources and reserve of the memory guard.
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
    hold_time: Duration,
}

/// Permit to run. A request holds it until its response ends.
pub(crate) struct MemoryPermit {
    shared: Arc<Shared>,
}

struct Shared {
    config: MemoryGuardConfig,
    reserve: u64,
    thread: Mutex<ThreadState>,
    work: Condvar,
    /// The last reading.
    pressure: watch::Sender<MemoryPressure>,
    /// Requests with a permit.
    running: AtomicU64,
    /// Requests that wait, by tenant.
    waiting: Mutex<HashMap<Option<Tenant>, usize>>,
    /// Wakes requests that wait.
    start: Notify,
    requests_delayed: AtomicU64,
    requests_refused: AtomicU64,
}

#[derive(Default)]
struct ThreadState {
    asleep: bool,
    /// Memory was read since the thread last slept.
    fresh: bool,
    /// A request has arrived since the last reading.
    arrived: bool,
    stopped: bool,
}

impl MemoryGuard {
    /// Starts the thread. `None` if the guard is off or the system does not report its memory.
    pub(crate) fn start(config: MemoryGuardConfig, models: ModelPool) -> io::Result<Option<Self>> {
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
            pressure: watch::Sender::new(MemoryPressure::None),
            running: AtomicU64::new(0),
            waiting: Mutex::default(),
            start: Notify::new(),
            requests_delayed: AtomicU64::new(0),
            requests_refused: AtomicU64::new(0),
        });
        let guarded = shared.clone();
        std::thread::Builder::new()
            .name("memory".into())
            .spawn(move || guarded.run(&models))?;
        Ok(Some(MemoryGuard {
            shared,
            hold_time: HOLD_TIME,
        }))
    }

    /// Returns a permit once the request may start, or the problem to answer.
    pub(crate) async fn admit(&self, tenant: Option<Tenant>) -> Result<MemoryPermit, Problem> {
        self.shared.wake();
        if let Some(permit) = self.shared.try_start() {
            self.shared.keep_awake();
            return Ok(permit);
        }
        if !self.shared.refuses()
            && let Some(_held) = HeldRequest::take(&self.shared, tenant)
        {
            self.shared.keep_awake();
            self.shared.requests_delayed.fetch_add(1, Ordering::Relaxed);
            let permit = match timeout(self.hold_time, self.shared.wait_to_start()).await {
                Ok(permit) => permit,
                Err(_) => self.shared.try_start(),
            };
            if let Some(permit) = permit {
                return Ok(permit);
            }
        }
        self.shared.requests_refused.fetch_add(1, Ordering::Relaxed);
        let detail = "the server is short of memory; try again later";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Err(Problem::new(status, "memory-pressure", detail).retry_after(RETRY_AFTER))
    }

    /// Writes the level and the counters to `families`. Makes the thread read once more, so that the next call is
    /// current even if the server is idle.
    pub(crate) fn write(&self, families: &mut MetricFamilies) {
        let pressure = *self.shared.pressure.borrow();
        self.shared.wake();
        families.sample(
            "corral_memory_pressure",
            "How short memory is: 1 offloaded prefixes are dropped, 2 requests wait, 3 swapped-out states move to disk, 4 requests are refused.",
            MetricKind::Gauge,
            &[],
            f64::from(pressure as u8),
        );
        for (name, help, count) in [
            (
                "corral_memory_requests_delayed_total",
                "Requests that waited for memory.",
                &self.shared.requests_delayed,
            ),
            (
                "corral_memory_requests_refused_total",
                "Requests refused with 503 for lack of memory.",
                &self.shared.requests_refused,
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

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        if self.shared.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shared.start.notify_one();
        }
    }
}

/// Counts a request as waiting until dropped.
struct HeldRequest<'a> {
    shared: &'a Shared,
    tenant: Option<Tenant>,
}

impl<'a> HeldRequest<'a> {
    fn take(shared: &'a Shared, tenant: Option<Tenant>) -> Option<Self> {
        let mut waiting = shared.waiting();
        if waiting.values().sum::<usize>() >= MAX_HELD {
            return None;
        }
        let count = waiting.entry(tenant).or_default();
        if *count >= MAX_HELD_PER_TENANT {
            return None;
        }
        *count += 1;
        Some(HeldRequest { shared, tenant })
    }
}

impl Drop for HeldRequest<'_> {
    fn drop(&mut self) {
        let mut waiting = self.shared.waiting();
        if let Some(count) = waiting.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.tenant);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Option<Tenant>, usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests are refused. A reading from before the thread slept refuses none.
    fn refuses(&self) -> bool {
        self.lock().fresh && *self.pressure.borrow() >= MemoryPressure::Refuse
    }

    /// A permit, if the pressure is below [`MemoryPressure::Hold`] or no other request runs.
    fn try_start(self: &Arc<Self>) -> Option<MemoryPermit> {
        let enough = *self.pressure.borrow() < MemoryPressure::Hold;
        let started = self
            .running
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
                (enough || running == 0).then_some(running + 1)
            });
        started.is_ok().then(|| MemoryPermit {
            shared: self.clone(),
        })
    }

    /// Waits for a permit. `None` if requests are refused.
    async fn wait_to_start(self: &Arc<Self>) -> Option<MemoryPermit> {
        loop {
            // Also before the first wait: a reading may have come before this request counted as waiting.
            let permit = self.try_start();
            if permit.is_some() || self.refuses() {
                return permit;
            }
            self.start.notified().await;
        }
    }

    /// Reads the pressure and publishes it. A failed reading, e.g. for lack of a descriptor, changes nothing. Returns the
    /// pressure and the time until the next reading.
    fn measure(&self) -> (MemoryPressure, Duration) {
        let before = *self.pressure.borrow();
        let reading = self.config.files.read();
        let pressure = reading.map_or(before, |reading| reading.pressure(self.reserve));
        let free = reading.map_or(0, |reading| reading.free);
        if pressure > before {
            tracing::warn!(?pressure, reserve = self.reserve, "memory is short");
        } else if pressure < before {
            tracing::info!(?pressure, "memory is less short");
        }
        self.pressure.send_replace(pressure);
        self.lock().fresh = true;
        // Only some of the waiting requests start after each reading.
        let interval = match self.waiting().is_empty() {
            true => interval(free, self.reserve),
            false => INTERVALS[0],
        };
        (pressure, interval)
    }

    /// Notes the arrival of a request, and wakes the thread if it sleeps.
    fn wake(&self) {
        let mut thread = self.lock();
        thread.arrived = true;
        if thread.asleep {
            self.work.notify_one();
        }
    }

    /// Wakes the thread if it fell asleep before the caller's request counted as running or waiting.
    fn keep_awake(&self) {
        let mut thread = self.lock();
        if thread.asleep {
            thread.arrived = true;
            self.work.notify_one();
        }
    }

    /// Reads and acts until the guard is dropped.
    fn run(&self, models: &ModelPool) {
        loop {
            let before = *self.pressure.borrow();
            let (pressure, interval) = self.measure();
            for engine in models.engines() {
                // If the command queue is full, the engine gets the pressure at the next reading.
                let _ = engine.set_memory_pressure(pressure);
            }
            match pressure {
                MemoryPressure::Refuse => self.start.notify_waiters(),
                MemoryPressure::None | MemoryPressure::DropPrefixes => {
                    (0..STARTS_PER_READING).for_each(|_| self.start.notify_one());
                }
                MemoryPressure::Hold | MemoryPressure::SwapOut => {}
            }
            let risen = pressure > before;
            if !self.wait_for_reading(interval, risen) {
                return;
            }
            if risen {
                // The engines have given memory back meanwhile.
                release_free_memory();
            }
        }
    }

    /// Waits for the next reading: for `interval`, and then until a request arrives if the server is idle, unless the
    /// pressure has `risen`. So requests that come one after another share a reading. False if the guard is dropped.
    fn wait_for_reading(&self, interval: Duration, risen: bool) -> bool {
        let is_kept = |thread: &mut ThreadState| !thread.stopped;
        let waited = self.work.wait_timeout_while(self.lock(), interval, is_kept);
        let mut thread = waited.unwrap_or_else(PoisonError::into_inner).0;
        // With the lock, so that a request that starts now either counts or finds the thread asleep.
        let idle = self.running.load(Ordering::Relaxed) == 0 && self.waiting().is_empty();
        if idle && !risen && !thread.arrived {
            thread.asleep = true;
            thread.fresh = false;
            while !thread.arrived && !thread.stopped {
                let waited = self.work.wait(thread);
                thread = waited.unwrap_or_else(PoisonError::into_inner);
            }
            thread.asleep = false;
        }
        // Requests that arrive from here on see the next reading, or cause one more.
        thread.arrived = false;
        !thread.stopped
    }
}

/// The time until the next reading if no request waits: as long as `free` bytes take at least to shrink to twice the
/// `reserve`. There is no pressure above that.
fn interval(free: u64, reserve: u64) -> Duration {
    let spare = free.saturating_sub(reserve.saturating_mul(2));
    let [least, most] = INTERVALS;
    Duration::from_secs_f64(spare as f64 / FASTEST_FILL as f64).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;

    const RESERVE: u64 = 400 << 10;
    /// Longer than any test waits.
    const LONG: Duration = Duration::from_secs(60);

    fn write(dir: &Path, free_kibibytes: u64) {
        let text = format!("MemTotal: 1000 kB\nMemAvailable: {free_kibibytes} kB\n");
        let new = dir.join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, dir.join("meminfo")).expect("renamed");
    }

    fn start(dir: &Path, reserve: Option<u64>) -> Option<MemoryGuard> {
        let files = MemoryFiles::within(dir, &dir.join("none"));
        let config = MemoryGuardConfig { files, reserve };
        let models = ModelPool::loaded(Vec::new());
        MemoryGuard::start(config, models).expect("a thread")
    }

    /// A guard that holds requests for `hold_time`.
    fn guard(dir: &Path, hold_time: Duration) -> MemoryGuard {
        let mut guard = start(dir, Some(RESERVE)).expect("memory is reported");
        guard.hold_time = hold_time;
        guard
    }

    /// Waits until the thread sleeps without a timer.
    fn wait_until_asleep(guard: &MemoryGuard) {
        let until = Instant::now() + LONG;
        while !guard.shared.lock().asleep {
            assert!(Instant::now() < until, "it does not sleep");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    async fn reached(guard: &MemoryGuard, pressure: MemoryPressure) {
        let mut levels = guard.shared.pressure.subscribe();
        let waiting = levels.wait_for(|level| *level == pressure);
        let level = timeout(LONG, waiting).await;
        level.expect("in time").expect("the thread runs");
    }

    fn counts(guard: &MemoryGuard) -> [u64; 2] {
        let counts = [
            &guard.shared.requests_delayed,
            &guard.shared.requests_refused,
        ];
        counts.map(|count| count.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn held_request_starts_once_memory_is_free() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 500);
        let guard = guard(dir.path(), LONG);
        let _running = guard.admit(None).await.expect("enough is free");
        write(dir.path(), 350);
        reached(&guard, MemoryPressure::DropPrefixes).await;
        drop(guard.admit(None).await.expect("caches are evicted first"));
        assert_eq!(counts(&guard), [0, 0]);

        write(dir.path(), 250);
        reached(&guard, MemoryPressure::Hold).await;
        let (held, ()) = tokio::join!(guard.admit(None), async {
            assert_eq!(counts(&guard), [1, 0]);
            write(dir.path(), 500);
        });
        held.expect("memory is free again");
    }

    #[tokio::test]
    async fn requests_wait_then_get_503() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 500);
        let guard = guard(dir.path(), Duration::from_millis(1));
        let _running = guard.admit(None).await.expect("enough is free");
        write(dir.path(), 250);
        reached(&guard, MemoryPressure::Hold).await;
        let problem = guard.admit(None).await.err().expect("it has waited");
        assert_eq!(
            (problem.status().as_u16(), problem.code()),
            (503, "memory-pressure")
        );
        assert_eq!(counts(&guard), [1, 1]);

        write(dir.path(), 50);
        reached(&guard, MemoryPressure::Refuse).await;
        assert!(guard.admit(None).await.is_err(), "refused at once");
        assert_eq!(counts(&guard), [1, 2]);
        let mut families = MetricFamilies::default();
        guard.write(&mut families);
        assert!(families.text().contains("\ncorral_memory_pressure 4\n"));

        write(dir.path(), 500);
        reached(&guard, MemoryPressure::None).await;
        assert!(guard.admit(None).await.is_ok(), "it has recovered");
    }

    #[tokio::test]
    async fn one_request_runs_however_short_memory_is() {
        let dir = tempfile::tempdir().expect("a directory");
        for (free, pressure) in [(250, MemoryPressure::Hold), (50, MemoryPressure::Refuse)] {
            write(dir.path(), free);
            let guard = guard(dir.path(), Duration::from_millis(1));
            reached(&guard, pressure).await;
            for _ in 0..3 {
                let _running = guard.admit(None).await.expect("it is the only one");
                assert!(guard.admit(None).await.is_err(), "another runs");
            }
        }
        write(dir.path(), 250);
        let guard = guard(dir.path(), LONG);
        reached(&guard, MemoryPressure::Hold).await;
        let running = guard.admit(None).await.expect("it is the only one");
        let (held, ()) = tokio::join!(guard.admit(None), async {
            assert_eq!(counts(&guard), [1, 0]);
            drop(running);
        });
        assert!(held.is_ok(), "no other runs now");
    }

    #[tokio::test]
    async fn full_tenant_leaves_room_for_others() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 250);
        let guard = guard(dir.path(), LONG);
        let take = |tenant| HeldRequest::take(&guard.shared, Some(Tenant(tenant)));
        let mut held: Vec<_> = (0..MAX_HELD_PER_TENANT).map(|_| take(0)).collect();
        assert!(held.iter().all(Option::is_some) && take(0).is_none());
        held.extend((1..).take(MAX_HELD - MAX_HELD_PER_TENANT).map(take));
        assert!(held.iter().all(Option::is_some), "others may wait");
        assert!(take(1000).is_none(), "all are taken");
        drop(held);
        assert!(guard.shared.waiting().is_empty());
        assert!(take(0).is_some());
    }

    #[tokio::test]
    async fn failed_reading_keeps_last_level() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 250);
        let guard = guard(dir.path(), Duration::from_millis(1));
        reached(&guard, MemoryPressure::Hold).await;
        let _running = guard.admit(None).await.expect("it is the only one");
        std::fs::remove_file(dir.path().join("meminfo")).expect("removed");
        // Each reading is published, also if it fails. The first one may have begun before.
        let mut readings = guard.shared.pressure.subscribe();
        for _ in 0..2 {
            let reading = timeout(LONG, readings.changed()).await;
            reading.expect("in time").expect("the thread runs");
        }
        assert_eq!(*guard.shared.pressure.borrow(), MemoryPressure::Hold);
    }

    #[tokio::test]
    async fn idle_thread_sleeps_however_short_memory_is() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 50);
        let guard = guard(dir.path(), LONG);
        reached(&guard, MemoryPressure::Refuse).await;
        wait_until_asleep(&guard);
        // The first request starts. The second one is not refused by the old reading, but waits for a new one.
        write(dir.path(), 500);
        let first = guard.admit(None).await.expect("no other runs");
        assert!(guard.admit(None).await.is_ok(), "enough is free now");
        reached(&guard, MemoryPressure::None).await;
        drop(first);
        wait_until_asleep(&guard);
    }

    #[test]
    fn readings_come_often_while_requests_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 9 << 20);
        let guard = guard(dir.path(), LONG);
        let held = HeldRequest::take(&guard.shared, None);
        assert_eq!(guard.shared.measure().1, INTERVALS[0]);
        drop(held);
        assert_eq!(guard.shared.measure().1, INTERVALS[1]);
    }

    #[test]
    fn readings_come_often_only_as_memory_gets_short() {
        const GIB: u64 = 1 << 30;
        assert_eq!(interval(0, GIB), INTERVALS[0]);
        assert_eq!(interval(2 * GIB + (GIB >> 1), GIB), INTERVALS[0]);
        assert_eq!(interval(6 * GIB, GIB), Duration::from_millis(500));
        assert_eq!(interval(u64::MAX, GIB), INTERVALS[1]);
        assert_eq!(interval(u64::MAX, u64::MAX), INTERVALS[0]);
    }

    #[test]
    fn guard_is_off_without_reserve_or_readings() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(start(dir.path(), None).is_none(), "nothing is reported");
        write(dir.path(), 0);
        assert!(start(dir.path(), Some(0)).is_none());
        assert!(start(dir.path(), None).is_some());
    }
}
