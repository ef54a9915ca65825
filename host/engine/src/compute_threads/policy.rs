//! How many threads compute: a pure state machine, without threads and clocks.
//!
//! The threads of a step wait for each other after every operation. One that waits for a core, because other threads
//! keep the cores busy, stops all others; on two cores a step can take a thousand times as long. So the policy measures
//! how long each thread waited in some steps, and halves their number if one waited so long that half of the threads would
//! be as fast without waiting. The longest wait decides, not the sum: threads that wait at the same time delay a step once.
//!
//! It doubles the number again after probes find free cores. A probe is a thread that spins while steps are computed, and
//! that no step waits for. The time to the next probes doubles when probes find no cores, or when they were wrong.

use super::core_probe::ProbeResult;
use std::time::Duration;

/// Measured compute time before the number of threads is lowered.
const WINDOW: Duration = Duration::from_millis(25);
/// Wait of one thread before the number is lowered: three time slices, so that one lost slice does not suffice.
const MIN_WAIT: Duration = Duration::from_millis(12);
/// Wait of a step, relative to the longest wait of one thread: threads wait at different times.
const STEP_WAIT: f64 = 1.25;
/// Margin for raising the number of threads, so that it does not oscillate.
const RETURN_MARGIN: f64 = 1.25;
/// Compute time between two measured steps, for each thread: measuring takes some 2 µs a thread.
const MEASURE_INTERVAL: Duration = Duration::from_millis(2);
/// Compute time of a probe: several time slices.
const PROBE_TIME: Duration = Duration::from_millis(20);
/// Time to the first probe.
const MIN_RETRY: Duration = Duration::from_millis(100);
/// Longest time to the next probe.
const MAX_RETRY: Duration = Duration::from_secs(10);

/// What to measure in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measurement {
    Nothing,
    /// How long the threads wait for cores.
    Delay,
    /// The same, while probes spin.
    Probe,
}

/// Compute time, and how long each thread waited for a core in it.
#[derive(Clone, Debug, Default)]
struct ThreadWaits {
    computed: Duration,
    waited: Vec<Duration>,
}

/// Decides the number of threads between steps. Times count from an arbitrary moment.
#[derive(Debug)]
pub struct ThreadPolicy {
    max: u32,
    /// How often the number of threads was halved, rounded up.
    halvings: u32,
    /// Compute time since the last measured step.
    unmeasured: Duration,
    /// Consecutive measured steps that waited too long.
    window: ThreadWaits,
    /// Steps during the probes.
    probe: ThreadWaits,
    retry: Duration,
    retry_at: Duration,
    raised_at: Option<Duration>,
}

impl ThreadWaits {
    fn add(&mut self, computed: Duration, waited: &[Duration]) {
        self.computed += computed;
        let threads = self.waited.len().max(waited.len());
        self.waited.resize(threads, Duration::ZERO);
        for (sum, waited) in self.waited.iter_mut().zip(waited) {
            *sum += *waited;
        }
    }

    /// The longest wait of one thread.
    fn longest(&self) -> Duration {
        self.waited.iter().copied().max().unwrap_or_default()
    }
}

/// Whether `fewer` threads without waits would be faster than `threads`, one of which waits for `waited`: steps without
/// waits take `1 - waiting` of the time, and `threads / fewer` times that with fewer threads.
fn is_excessive(waited: Duration, computed: Duration, threads: u32, fewer: u32) -> bool {
    let waiting = STEP_WAIT * waited.as_secs_f64();
    waiting * f64::from(threads) > computed.as_secs_f64() * f64::from(threads - fewer)
}

impl ThreadPolicy {
    /// A policy that begins with `max` threads.
    pub fn new(max: u32) -> Self {
        Self {
            max: max.max(1),
            halvings: 0,
            unmeasured: Duration::ZERO,
            window: ThreadWaits::default(),
            probe: ThreadWaits::default(),
            retry: MIN_RETRY,
            retry_at: Duration::ZERO,
            raised_at: None,
        }
    }

    /// The number of threads for the next step.
    pub fn threads(&self) -> u32 {
        self.max.div_ceil(1 << self.halvings)
    }

    /// The next higher number of threads.
    pub fn more_threads(&self) -> u32 {
        self.max.div_ceil(1 << self.halvings.saturating_sub(1))
    }

    /// What to measure in the next step.
    pub fn measurement(&self, now: Duration) -> Measurement {
        let is_suspicious = self.window.computed > Duration::ZERO;
        let threads = self.threads();
        if threads < self.max && now >= self.retry_at {
            Measurement::Probe
        } else if threads > 1 && (is_suspicious || self.unmeasured >= MEASURE_INTERVAL * threads) {
            Measurement::Delay
        } else {
            Measurement::Nothing
        }
    }

    /// Records a step without a measurement.
    pub fn unmeasured_step(&mut self, computed: Duration) {
        self.unmeasured += computed;
    }

    /// Records a measured step: how long it took, and how long each thread waited for a core.
    pub fn measured_step(&mut self, now: Duration, computed: Duration, waited: &[Duration]) {
        // All steps that take longer than the interval are measured.
        self.unmeasured = computed;
        let threads = self.threads();
        if threads == 1 {
            return;
        }
        self.window.add(computed, waited);
        let (computed, longest) = (self.window.computed, self.window.longest());
        if !is_excessive(longest, computed, threads, threads.div_ceil(2)) {
            self.window = ThreadWaits::default();
        } else if computed >= WINDOW && longest >= MIN_WAIT {
            self.lower(now);
        }
    }

    /// Records a step during the probes. Returns whether they are complete and must report.
    pub fn probed_step(&mut self, computed: Duration, waited: &[Duration]) -> bool {
        self.probe.add(computed, waited);
        self.probe.computed >= PROBE_TIME
    }

    /// Ends the probes, one for each added thread. Without probes, because none could start, the number stays.
    pub fn probe_done(&mut self, now: Duration, probes: &[ProbeResult]) {
        let steps = std::mem::take(&mut self.probe);
        let (threads, more) = (self.threads(), self.more_threads());
        let is_excessive = |waited: Duration, computed| {
            is_excessive(waited.mul_f64(RETURN_MARGIN), computed, more, threads)
        };
        let finds_core = |probe: &ProbeResult| {
            probe.computed >= PROBE_TIME / 2 && !is_excessive(probe.waited, probe.computed)
        };
        let find_cores = !probes.is_empty() && probes.iter().all(finds_core);
        if find_cores && !is_excessive(steps.longest(), steps.computed) {
            self.halvings = self.halvings.saturating_sub(1);
            self.raised_at = Some(now);
            self.window = ThreadWaits::default();
        } else {
            self.retry = (2 * self.retry).min(MAX_RETRY);
            self.retry_at = now + self.retry;
        }
    }

    fn lower(&mut self, now: Duration) {
        self.window = ThreadWaits::default();
        self.halvings += 1;
        let since = self.raised_at.map(|at| now.saturating_sub(at));
        self.retry = match since {
            // The probes were wrong.
            Some(since) if since < 2 * self.retry => (2 * self.retry).min(MAX_RETRY),
            _ => MIN_RETRY,
        };
        self.retry_at = now + self.retry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time slice.
    const SLICE: Duration = Duration::from_millis(4);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn probe(waited: u64) -> ProbeResult {
        ProbeResult {
            computed: ms(20),
            waited: ms(waited),
        }
    }

    /// Computes steps on `cores`, of which other threads keep `busy` busy; these take `load` percent of all. A step takes a
    /// millisecond, and a time slice more for each thread that shares a core; such a thread waits half of the time.
    struct Machine {
        policy: ThreadPolicy,
        now: Duration,
        cores: u32,
        busy: u32,
        load: u32,
        steps: u32,
        measured: u32,
        probes: u32,
    }

    impl Machine {
        fn new(cores: u32, busy: u32) -> Self {
            Self {
                policy: ThreadPolicy::new(cores),
                now: Duration::ZERO,
                cores,
                busy,
                load: 0,
                steps: 0,
                measured: 0,
                probes: 0,
            }
        }

        /// Number of threads that share a core with others.
        fn sharing(&self, threads: u32) -> u32 {
            (threads + self.busy)
                .saturating_sub(self.cores)
                .min(threads)
        }

        fn run(&mut self, time: Duration) -> u32 {
            let end = self.now + time;
            while self.now < end {
                self.step();
            }
            self.policy.threads()
        }

        fn step(&mut self) {
            let threads = self.policy.threads();
            let sharing = self.sharing(threads);
            let computed = ms(1) + SLICE * sharing;
            let loaded = computed * self.load / 100;
            let waits = (0..threads).map(|thread| {
                let is_sharing = thread < sharing;
                loaded.max(if is_sharing { computed / 2 } else { ms(0) })
            });
            let waited: Vec<_> = waits.collect();
            let measurement = self.policy.measurement(self.now);
            self.now += computed;
            self.steps += 1;
            match measurement {
                Measurement::Nothing => self.policy.unmeasured_step(computed),
                Measurement::Delay => {
                    self.measured += 1;
                    self.policy.measured_step(self.now, computed, &waited);
                }
                Measurement::Probe if self.policy.probed_step(computed, &waited) => {
                    self.probes += 1;
                    let more = self.policy.more_threads();
                    let mut probes =
                        vec![probe(u64::from(self.load) / 5); (more - threads) as usize];
                    if self.sharing(more) > sharing {
                        probes[0] = probe(10);
                    }
                    self.policy.probe_done(self.now, &probes);
                }
                Measurement::Probe => {}
            }
        }
    }

    #[test]
    fn free_cores_keep_all_threads() {
        let mut machine = Machine::new(4, 0);
        assert_eq!(machine.run(ms(10_000)), 4);
        // Every eighth millisecond.
        assert_eq!(machine.measured, 9_999 / 8);
        assert_eq!(machine.probes, 0);
    }

    #[test]
    fn threads_decrease_until_none_waits() {
        let machines = [
            (2, 1, 1),
            (2, 2, 1),
            (2, 9, 1),
            (3, 1, 2),
            (3, 2, 1),
            (5, 1, 3),
            (8, 1, 4),
            (8, 5, 2),
            (16, 4, 8),
            (16, 15, 1),
            (64, 1, 32),
            (64, 40, 16),
        ];
        for (cores, busy, threads) in machines {
            let mut machine = Machine::new(cores, busy);
            assert_eq!(machine.run(ms(2_000)), threads, "{busy} of {cores} busy");
        }
    }

    #[test]
    fn one_long_step_lowers_threads() {
        let mut policy = ThreadPolicy::new(2);
        assert_eq!(policy.measurement(ms(0)), Measurement::Nothing);
        policy.unmeasured_step(ms(900));
        assert_eq!(policy.measurement(ms(900)), Measurement::Delay);
        policy.measured_step(ms(1800), ms(900), &[ms(890), ms(0)]);
        assert_eq!(policy.threads(), 1);
    }

    #[test]
    fn lost_time_slice_changes_nothing() {
        for threads in [2, 8, 16, 64] {
            let mut policy = ThreadPolicy::new(threads);
            let quiet = vec![ms(0); threads as usize];
            let mut lost = quiet.clone();
            lost[1] = SLICE;
            for second in 0..100 {
                let now = ms(1000 * second);
                policy.unmeasured_step(ms(200));
                policy.measured_step(now, ms(5), &lost);
                // Every step is measured until one does not wait too long.
                assert_eq!(policy.measurement(now), Measurement::Delay);
                for _ in 0..10 {
                    policy.measured_step(now, ms(1), &quiet);
                }
                assert_eq!(policy.measurement(now), Measurement::Nothing);
            }
            assert_eq!(policy.threads(), threads);
        }
    }

    #[test]
    fn threads_that_wait_together_count_once() {
        for threads in [2, 8, 16, 64] {
            for (percent, lowered) in [(30, threads), (60, threads / 2)] {
                let mut policy = ThreadPolicy::new(threads);
                let waited = vec![ms(percent); threads as usize];
                policy.measured_step(ms(100), ms(100), &waited);
                assert_eq!(policy.threads(), lowered, "{percent} % of {threads}");
            }
        }
    }

    #[test]
    fn light_load_on_all_cores_keeps_all_threads() {
        for cores in [2, 8, 16, 64] {
            let mut machine = Machine::new(cores, 0);
            machine.load = 10;
            assert_eq!(machine.run(ms(10_000)), cores);
            machine.busy = cores;
            assert_eq!(machine.run(ms(60_000)), 1);
            machine.busy = 0;
            let longest = MAX_RETRY + 2 * PROBE_TIME * cores;
            assert_eq!(machine.run(longest), cores);
        }
    }

    #[test]
    fn all_threads_return_when_cores_are_free() {
        for (cores, busy) in [(2, 2), (3, 2), (8, 3), (16, 9), (64, 60)] {
            let mut machine = Machine::new(cores, busy);
            assert!(machine.run(ms(60_000)) < cores);
            machine.busy = 0;
            let longest = MAX_RETRY + 2 * PROBE_TIME * cores;
            assert_eq!(machine.run(longest), cores);
        }
    }

    #[test]
    fn probes_become_rare_while_cores_stay_busy() {
        let mut machine = Machine::new(2, 1);
        machine.run(ms(100_000));
        // After 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 and 6.4 s, and then each ten seconds.
        assert_eq!(machine.probes, 7 + 8);
        assert_eq!(machine.policy.threads(), 1);
    }

    #[test]
    fn wrong_probes_become_rare() {
        let mut policy = ThreadPolicy::new(2);
        let mut now = ms(0);
        let mut retries = Vec::new();
        for _ in 0..10 {
            policy.measured_step(now, ms(900), &[ms(890), ms(0)]);
            assert_eq!(policy.threads(), 1);
            let lowered = now;
            while policy.measurement(now) != Measurement::Probe {
                now += ms(50);
            }
            retries.push((now - lowered).as_millis());
            assert!(policy.probed_step(ms(20), &[ms(0)]));
            policy.probe_done(now, &[probe(0)]);
            assert_eq!(policy.threads(), 2);
        }
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000];
        assert_eq!(retries, expected);
        // Threads that were useful for long make the next probe come early.
        now += ms(60_000);
        policy.measured_step(now, ms(900), &[ms(890), ms(0)]);
        assert_eq!(policy.measurement(now + MIN_RETRY), Measurement::Probe);
    }

    #[test]
    fn threads_stay_unless_all_probes_find_cores() {
        let did_not_run = ProbeResult {
            computed: ms(1),
            waited: ms(0),
        };
        for (probes, threads) in [
            (vec![], 2),
            (vec![did_not_run, probe(0)], 2),
            (vec![probe(0), probe(10)], 2),
            (vec![probe(0), probe(7)], 2),
            (vec![probe(6), probe(6)], 4),
        ] {
            let mut policy = ThreadPolicy::new(4);
            policy.measured_step(ms(0), ms(900), &[ms(890); 4]);
            assert_eq!(policy.threads(), 2);
            assert!(policy.probed_step(ms(20), &[ms(0); 2]));
            policy.probe_done(ms(200), &probes);
            assert_eq!(policy.threads(), threads, "{probes:?}");
        }
    }

    #[test]
    fn one_thread_measures_nothing() {
        let mut machine = Machine::new(1, 3);
        assert_eq!(machine.run(ms(10_000)), 1);
        assert_eq!((machine.measured, machine.probes), (0, 0));
    }
}
