//! Those that come at about the same time.

use super::*;

const MANY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    max_queue: 64,
    max_tenant_queue: 64,
    ..LIMITS
};

/// Rounds of so many that come 0.3 ms apart, the next round when all of the last one have ended; of callers who let
/// the host generate, or run the loop themselves. Returns the time that was waited, and the rows of the steps in
/// which any generated, on the average.
fn rounds(count: u32, times: u32, own_loop: bool) -> (Duration, f64) {
    let mut simulation = Simulation::new(MANY, Machine::default(), BTreeMap::new());
    let arrivals = (0..times).flat_map(|round| {
        (0..count).map(move |number| Arrival {
            at: Duration::from_micros(10_000_000 * u64::from(round) + 300 * u64::from(number)),
            prompt: 32,
            max_tokens: if own_loop { 0 } else { 40 },
            ends_after: 40,
            comes_back: (40, Duration::from_micros(100)),
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
    (
        simulation.awaited,
        f64::from(rows) / generating.len() as f64,
    )
}

#[test]
fn those_that_come_at_about_the_same_time_begin_in_one_step() {
    let (waited, rows) = rounds(8, 16, false);
    // All but the first round: before that nobody knew that many would come.
    assert!(rows > 7.5, "{rows}");
    assert!(waited <= 16 * Duration::from_millis(5), "{waited:?}");
}

#[test]
fn those_that_run_the_loop_themselves_begin_in_one_step_too() {
    let (_, rows) = rounds(8, 16, true);
    assert!(rows > 7.5, "{rows}");
}

#[test]
fn one_that_runs_alone_as_a_rule_waits_for_nobody() {
    assert_eq!(rounds(1, 6, false).0, Duration::ZERO);
}
