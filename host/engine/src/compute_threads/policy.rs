//! How many threads compute: a pure state machine, without threads and clocks.
//!
//! The threads of a step wait for each other after every operation. One that waits for a core, because other threads
//! keep the cores busy, stops all others; on two cores a step can take a thousand times as long. So the policy measures
//! how long the threads of some steps waited, and computes with fewer if the others would be faster without the rest.
//!
//! It returns to more threads one by one. Before each, a probe shows whether a core is free for it: another thread that
//! spins while steps are computed, and that no step waits for. The time to the next probe doubles while probes fail, or
//! while the probe was wrong.

use std::time::Duration;

/// Compute time that a decision for fewer threads needs, so that one lost time slice does not suffice.
const WINDOW: Duration = Duration::from_millis(25);
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
    /// The same, while the probe spins.
    Probe,
}

/// Compute time, and how long the threads waited for cores in it, all together.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    computed: Duration,
    waited: Duration,
}

/// Decides the number of threads between steps. Times count from any moment.
#[derive(Debug)]
pub struct ThreadPolicy {
    most: u32,
    threads: u32,
    /// Compute time since the last measured step.
    unmeasured: Duration,
    /// Measured steps, as long as they waited too long.
    window: Waiting,
    /// Steps during the probe.
    probe: Waiting,
    retry: Duration,
    retry_at: Duration,
    raised_at: Option<Duration>,
}

impl Waiting {
    fn add(&mut self, computed: Duration, waited: Duration) {
        self.computed += computed;
        self.waited += waited;
    }

    /// How many threads waited for a core, on average.
    fn waiting(&self) -> f64 {
        self.waited.as_secs_f64() / self.computed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Whether one thread less would be faster. While a thread waits, all do, so steps would take `1 - waiting` of their time
/// without waiting, and `threads / (threads - 1)` times that with one thread less.
fn is_excessive(waiting: f64, threads: u32) -> bool {
    waiting * f64::from(threads) > 1.0
}

impl ThreadPolicy {
    /// A policy that begins with `most` threads.
    pub fn new(most: u32) -> Self {
        Self {
            most: most.max(1),
            threads: most.max(1),
            unmeasured: Duration::ZERO,
            window: Waiting::default(),
            probe: Waiting::default(),
            retry: MIN_RETRY,
            retry_at: Duration::ZERO,
            raised_at: None,
        }
    }

    /// The number of threads for the next step.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// What to measure in the next step.
    pub fn measurement(&self, now: Duration) -> Measurement {
        let is_suspicious = self.window.computed > Duration::ZERO;
        if self.threads < self.most && now >= self.retry_at {
            Measurement::Probe
        } else if self.threads > 1
            && (is_suspicious || self.unmeasured >= MEASURE_INTERVAL * self.threads)
        {
            Measurement::Delay
        } else {
            Measurement::Nothing
        }
    }

    /// Records a step without a measurement.
    pub fn unmeasured_step(&mut self, computed: Duration) {
        self.unmeasured += computed;
    }

    /// Records a measured step: how long it took, and how long its threads waited for cores.
    pub fn measured_step(&mut self, now: Duration, computed: Duration, waited: Duration) {
        self.unmeasured = Duration::ZERO;
        if self.threads == 1 {
            return;
        }
        self.window.add(computed, waited);
        if !is_excessive(self.window.waiting(), self.threads) {
            self.window = Waiting::default();
        } else if self.window.computed >= WINDOW {
            self.lower(now);
        }
    }

    /// Records a step that was interrupted after this long, because its threads waited for cores so long.
    pub fn interrupted_step(&mut self, now: Duration, computed: Duration, waited: Duration) {
        self.unmeasured = Duration::ZERO;
        if self.threads > 1 {
            self.window = Waiting { computed, waited };
            self.lower(now);
        }
    }

    /// Records a step during the probe. Returns whether the probe is complete and must report.
    pub fn probed_step(&mut self, computed: Duration, waited: Duration) -> bool {
        self.probe.add(computed, waited);
        self.probe.computed >= PROBE_TIME
    }

    /// Ends the probe, which computed or waited for a core this long, and of that waited so long.
    pub fn probe_done(&mut self, now: Duration, computed: Duration, waited: Duration) {
        let steps = std::mem::take(&mut self.probe);
        let probe = Waiting { computed, waited };
        let waiting = steps.waiting() + probe.waiting();
        // With a margin of two, so that the number does not go back and forth.
        if computed < PROBE_TIME / 2 || is_excessive(2.0 * waiting, self.threads + 1) {
            self.retry = (2 * self.retry).min(MAX_RETRY);
            self.retry_at = now + self.retry;
        } else {
            self.threads += 1;
            self.raised_at = Some(now);
            self.window = Waiting::default();
        }
    }

    fn lower(&mut self, now: Duration) {
        let window = std::mem::take(&mut self.window);
        // A count of threads.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let waiting = window.waiting() as u32;
        self.threads -= waiting.clamp(1, self.threads - 1);
        let since = self.raised_at.map(|at| now.saturating_sub(at));
        self.retry = match since {
            // The probe was wrong.
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

    /// Computes steps on cores of which others keep `busy` ones busy. A step takes a millisecond, and a time slice more
    /// for each thread that shares a core.
    struct Machine {
        policy: ThreadPolicy,
        now: Duration,
        cores: u32,
        busy: u32,
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
            let waited = SLICE * self.sharing(threads);
            let computed = ms(1) + waited;
            let measurement = self.policy.measurement(self.now);
            self.now += computed;
            self.steps += 1;
            match measurement {
                Measurement::Nothing => self.policy.unmeasured_step(computed),
                Measurement::Delay => {
                    self.measured += 1;
                    self.policy.measured_step(self.now, computed, waited);
                }
                Measurement::Probe if self.policy.probed_step(computed, waited) => {
                    self.probes += 1;
                    let finds_core = self.sharing(threads + 1) == self.sharing(threads);
                    let waited = if finds_core { Duration::ZERO } else { ms(10) };
                    self.policy.probe_done(self.now, ms(20), waited);
                }
                Measurement::Probe => {}
            }
        }
    }

    #[test]
    fn free_cores_keep_all_threads() {
        let mut machine = Machine::new(4, 0);
        assert_eq!(machine.run(ms(10_000)), 4);
        // Every eighth millisecond and a step are measured.
        assert_eq!(machine.measured, 10_000 / 9);
        assert_eq!(machine.probes, 0);
    }

    #[test]
    fn threads_lower_until_none_waits() {
        for (cores, busy, threads) in [(2, 1, 1), (2, 2, 1), (2, 9, 1), (16, 4, 12), (16, 15, 1)] {
            let mut machine = Machine::new(cores, busy);
            assert_eq!(machine.run(ms(2_000)), threads, "{busy} of {cores} busy");
        }
    }

    #[test]
    fn a_long_step_is_enough_to_lower() {
        let mut policy = ThreadPolicy::new(2);
        assert_eq!(policy.measurement(ms(0)), Measurement::Nothing);
        policy.unmeasured_step(ms(900));
        assert_eq!(policy.measurement(ms(900)), Measurement::Delay);
        policy.measured_step(ms(1800), ms(900), ms(890));
        assert_eq!(policy.threads(), 1);
    }

    #[test]
    fn interrupted_step_lowers_at_once() {
        let mut policy = ThreadPolicy::new(4);
        for (waited, threads) in [(20, 3), (60, 1), (30, 1)] {
            policy.interrupted_step(ms(0), ms(30), ms(waited));
            assert_eq!(policy.threads(), threads);
        }
    }

    #[test]
    fn lost_time_slice_changes_nothing() {
        let mut policy = ThreadPolicy::new(2);
        for second in 0..100 {
            let now = ms(1000 * second);
            policy.unmeasured_step(ms(100));
            policy.measured_step(now, ms(5), SLICE);
            // A suspicion lasts until it is refuted.
            for _ in 0..3 {
                assert_eq!(policy.measurement(now), Measurement::Delay);
                policy.measured_step(now, ms(1), ms(0));
            }
            assert_eq!(policy.measurement(now), Measurement::Nothing);
        }
        assert_eq!(policy.threads(), 2);
    }

    #[test]
    fn all_threads_return_when_cores_are_free() {
        for (cores, busy) in [(2, 2), (16, 9)] {
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
            policy.measured_step(now, ms(900), ms(890));
            assert_eq!(policy.threads(), 1);
            let lowered = now;
            while policy.measurement(now) != Measurement::Probe {
                now += ms(50);
            }
            retries.push((now - lowered).as_millis());
            assert!(policy.probed_step(ms(20), ms(0)));
            policy.probe_done(now, ms(20), ms(0));
            assert_eq!(policy.threads(), 2);
        }
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000];
        assert_eq!(retries, expected);
        // A thread that was of use for long makes the next probe soon.
        now += ms(60_000);
        policy.measured_step(now, ms(900), ms(890));
        assert_eq!(policy.measurement(now + MIN_RETRY), Measurement::Probe);
    }

    #[test]
    fn probe_that_did_not_run_is_no_evidence() {
        let mut policy = ThreadPolicy::new(2);
        policy.measured_step(ms(0), ms(900), ms(890));
        assert!(policy.probed_step(ms(20), ms(0)));
        policy.probe_done(ms(200), ms(1), ms(0));
        assert_eq!(policy.threads(), 1);
    }

    #[test]
    fn one_thread_measures_nothing() {
        let mut machine = Machine::new(1, 3);
        assert_eq!(machine.run(ms(10_000)), 1);
        assert_eq!((machine.measured, machine.probes), (0, 0));
    }
}
