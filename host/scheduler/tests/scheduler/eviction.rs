//! Prefixes that cost more in the cells than they are worth.

use super::*;

const ROOMY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    offload_prefixes: true,
    ..LIMITS
};
/// Prefixes that stay of those that came first, and tokens that those who come with the same share with them.
const KEPT: u32 = 8;
const SHARED: u32 = 100;

/// Several that end soon, one that generates for long, and then one that begins like one of the first.
fn comes_again(attention: f64, limits: SchedulerConfig) -> (Simulation, Vec<Record>) {
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
fn prefixes_leave_the_cells_where_they_make_steps_longer_and_come_back_for_those_that_begin_alike()
{
    let (simulation, records) = comes_again(1e-5, ROOMY);
    let tally = simulation.counters();
    assert!(tally.offloaded >= u64::from(KEPT), "{tally:?}");
    assert_eq!((tally.swapped_in, tally.evicted), (1, 0), "{tally:?}");
    assert_eq!(records[KEPT as usize + 1].cached, SHARED);
    // The steps of the long one at its end are as short as if it had been alone.
    let alone = |taken: &&Taken| taken.rows == 1 && taken.prefill == 0;
    let steps: Vec<_> = simulation.steps.iter().filter(alone).collect();
    let took = steps[steps.len() - 10].took.as_secs_f64();
    let machine = Machine::default();
    let short = machine.fixed + machine.row + 1e-5 * 512.0;
    assert!(took < 1.05 * short, "{took} against {short}");
}

#[test]
fn prefixes_stay_where_they_cost_nothing() {
    let (simulation, records) = comes_again(0.0, ROOMY);
    let tally = simulation.counters();
    assert_eq!(
        (tally.offloaded, tally.swapped_in, tally.evicted),
        (0, 0, 0)
    );
    assert_eq!(records[KEPT as usize + 1].cached, SHARED);
}
