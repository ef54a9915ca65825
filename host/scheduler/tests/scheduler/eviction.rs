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

/// Agents take turns on a part of the cells, or of the ids, that their histories need. The history of each is evicted, and
/// computed once all the same: also if the next turn continues only a part of it, since its client changes the answer.
#[test]
fn evicted_histories_are_computed_once() {
    const AGENTS: usize = 8;
    const TURNS: usize = 6;
    const ADDED: u32 = 150;
    const IDEAL: u32 = (AGENTS * TURNS) as u32 * ADDED;
    let turn = |index: usize, answer: u32| {
        let (agent, turn) = ((index % AGENTS) as u32, (index / AGENTS) as u32);
        let prompt = (turn + 1) * ADDED;
        Arrival {
            after: index.checked_sub(AGENTS),
            family: (prompt, agent.into()),
            ..arrival(37 * u64::from(agent), prompt, answer)
        }
    };
    for (seq_ids, cells, answer) in [(16, 2048, 1), (3, 8192, 1), (16, 2048, 3)] {
        let limits = SchedulerConfig {
            seq_ids,
            cells,
            max_queue: AGENTS,
            max_tenant_queue: AGENTS,
            ..ROOMY
        };
        let mut simulation = simulation(limits, &[]);
        let turns = (0..AGENTS * TURNS).map(|index| turn(index, answer));
        let records = simulation.run(turns.collect());
        assert!(records.iter().all(|record| record.end == End::Finished));
        let counters = simulation.counters();
        assert!(counters.offloaded > 0, "{counters:?}");
        // Of what is dropped, all but the answer is cached elsewhere.
        assert!(counters.dropped == 0 || answer > 1, "{counters:?}");
        let computed = records
            .iter()
            .map(|record| record.prompt - record.cached + record.recomputed);
        let computed: u32 = computed.sum();
        assert!(computed <= IDEAL + IDEAL / 20, "{computed} of {IDEAL}");
    }
}
