//! Requests that arrive at about the same time.

use super::*;

const MANY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    max_queue: 64,
    max_tenant_queue: 64,
    ..CONFIG
};

/// Rounds of `count` requests that arrive 0.3 ms apart, each round after the last has ended; of guests that run their own
/// loop if `own_loop`. Returns the time that steps waited, and the mean rows of steps with decode rows.
fn rounds(count: u32, times: u32, own_loop: bool) -> (Duration, f64) {
    let mut simulation = Simulation::new(MANY, Machine::default(), BTreeMap::new());
    let arrivals = (0..times).flat_map(|round| {
        (0..count).map(move |number| Arrival {
            at: Duration::from_micros(10_000_000 * u64::from(round) + 300 * u64::from(number)),
            prompt: 32,
            max_tokens: if own_loop { 0 } else { 40 },
            ends_after: 40,
            returns: (40, Duration::from_micros(100)),
            family: (0, u64::from(count * round + number)),
            ..Arrival::default()
        })
    });
    let records = simulation.run(arrivals.collect());
    assert!(records.iter().all(|record| record.end == End::Finished));
    let generating: Vec<_> = simulation
        .steps
        .iter()
        .filter(|taken| taken.rows > 0)
        .collect();
    let rows: u32 = generating.iter().map(|taken| taken.rows).sum();
    (simulation.waited, f64::from(rows) / generating.len() as f64)
}

#[test]
fn simultaneous_requests_start_in_one_step() {
    let (waited, rows) = rounds(8, 16, false);
    // In all but the first round, before which nothing is known.
    assert!(rows > 7.5, "{rows}");
    assert!(waited <= 16 * Duration::from_millis(5), "{waited:?}");
}

#[test]
fn simultaneous_guests_start_in_one_step() {
    let (_, rows) = rounds(8, 16, true);
    assert!(rows > 7.5, "{rows}");
}

#[test]
fn single_requests_do_not_wait() {
    assert_eq!(rounds(1, 6, false).0, Duration::ZERO);
}
