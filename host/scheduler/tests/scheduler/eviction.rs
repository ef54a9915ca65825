//! Eviction of prefixes that cost more in the cells than they may save.

use super::*;

const ROOMY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    offload_prefixes: true,
    ..CONFIG
};
/// Requests with a prefix of their own, and the length of the prefix.
const KEPT: u32 = 8;
const SHARED: u32 = 100;

/// Several short requests, one that decodes for long, and then one with the prefix of a short one.
fn run_with_returning_prefix(attention: f64, limits: SchedulerConfig) -> (Simulation, Vec<Record>) {
    let with = |family: u32, at| Arrival {
        family: (SHARED, family.into()),
        ..arrival(at, SHARED + 20, 2)
    };
    let first = (0..KEPT).map(|number| with(number, 1_000 * u64::from(number)));
    let long = arrival(10_000, 8, 400);
    let again = with(3, 100_000);
    let machine = Machine {
        attention,
        noise: 0.02,
        ..Machine::default()
    };
    let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
    let records = simulation.run(first.chain([long, again]).collect());
    assert!(records.iter().all(|record| record.end == End::Finished));
    (simulation, records)
}

#[test]
fn costly_prefixes_are_offloaded_and_return() {
    let (simulation, records) = run_with_returning_prefix(1e-5, ROOMY);
    let counters = simulation.counters();
    assert!(counters.offloaded >= u64::from(KEPT), "{counters:?}");
    assert_eq!(
        (counters.swapped_in, counters.dropped),
        (1, 0),
        "{counters:?}"
    );
    assert_eq!(records[KEPT as usize + 1].cached, SHARED);
    // In the end the steps of the long request are as fast as if it had been alone.
    let alone = |taken: &&StepRecord| taken.rows == 1 && taken.prefill == 0;
    let steps: Vec<_> = simulation.steps.iter().filter(alone).collect();
    let took = steps[steps.len() - 10].took.as_secs_f64();
    let machine = Machine::default();
    let short = machine.fixed + machine.row + 1e-5 * 512.0;
    assert!(took < 1.05 * short, "{took} against {short}");
}

#[test]
fn free_prefixes_stay_resident() {
    let (simulation, records) = run_with_returning_prefix(0.0, ROOMY);
    let counters = simulation.counters();
    assert_eq!(
        (counters.offloaded, counters.swapped_in, counters.dropped),
        (0, 0, 0)
    );
    assert_eq!(records[KEPT as usize + 1].cached, SHARED);
}
