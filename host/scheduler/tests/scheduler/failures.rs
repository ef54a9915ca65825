//! Steps that fail: who is to blame is found, and nobody else pays for it.

use super::*;

/// The others outlast the culprit by far, some generate and some read long prompts.
#[test]
fn a_step_that_fails_is_halved_until_the_culprit_stands_alone() {
    let limits = SchedulerConfig {
        seq_ids: 12,
        cells: 8192,
        max_step_tokens: 64,
        ..LIMITS
    };
    let sound = |prompt| Arrival {
        prompt,
        max_tokens: 200,
        ends_after: 200,
        ..Arrival::default()
    };
    let bad = Arrival {
        at: Duration::from_secs(2),
        poisoned: true,
        ..sound(90)
    };
    let mut arrivals: Vec<_> = (0..6).map(|i| sound(1 + 40 * (i % 3))).collect();
    arrivals.push(bad);
    let mut simulation = simulation(limits, &[]);
    let records = simulation.run(arrivals);
    for (index, record) in records.iter().enumerate() {
        let expected = if index == 6 {
            End::GivenUp
        } else {
            End::Finished
        };
        assert_eq!(record.end, expected);
    }
    let failed = simulation.steps.iter().filter(|step| step.failed).count();
    assert!(failed <= 40, "{failed} steps failed for one sequence");
}

/// A device that fails for a moment costs nobody anything; one that fails for good fails all that
/// is asked of it, one after the other.
#[test]
fn an_outage_is_survived_and_a_dead_device_says_so() {
    let arrival = Arrival {
        prompt: 30,
        max_tokens: 10,
        ends_after: 10,
        ..Arrival::default()
    };
    let fast = Machine {
        fixed: 1e-5,
        row: 1e-5,
        prefill: 1e-5,
        ..Machine::default()
    };
    let outage = |steps: u64| {
        let faults = (3..3 + steps).map(|step| (step, Fault::Code(-2))).collect();
        let mut simulation = Simulation::new(LIMITS, fast, faults);
        simulation
            .run(vec![arrival.clone(); 6])
            .iter()
            .map(|r| r.end)
            .collect::<Vec<_>>()
    };
    assert_eq!(outage(15), [End::Finished; 6]);
    assert_eq!(outage(100_000), [End::GivenUp; 6]);
    // However many there are, it takes little more than one round of them after the outage has lasted long enough.
    let limits = SchedulerConfig {
        seq_ids: 64,
        cells: 8192,
        max_step_tokens: 64,
        max_queue: 64,
        max_tenant_queue: 64,
        ..LIMITS
    };
    let faults = (3..100_000).map(|step| (step, Fault::Code(-2))).collect();
    let mut simulation = Simulation::new(limits, fast, faults);
    let ends = simulation.run(vec![arrival.clone(); 64]);
    assert!(ends.iter().all(|record| record.end == End::GivenUp));
    let failed = simulation.steps.iter().filter(|step| step.failed).count();
    assert!(failed <= 3 * 64, "{failed} steps failed for 64 sequences");
}

/// A device that is half dead fails what is asked of it too, also where a memory can't go back and a sequence
/// never gets to the place where it failed first.
#[test]
fn a_device_that_goes_on_failing_keeps_nobody_for_ever() {
    let limits = SchedulerConfig {
        cells: 2000,
        max_step_tokens: 64,
        prefix_cache: false,
        can_truncate: false,
        max_drafts: 0,
        ..LIMITS
    };
    let long = Arrival {
        prompt: 400,
        max_tokens: 10,
        ends_after: 10,
        ..Arrival::default()
    };
    for every in [2, 3, 4] {
        let failing = (5..60_000).step_by(every);
        let faults: Vec<_> = failing.map(|step| (step, Fault::Code(-2))).collect();
        let mut simulation = simulation(limits, &faults);
        // They end, one way or the other; where every other step fails none gets anywhere.
        let records = simulation.run(vec![long.clone(); 3]);
        let given_up = records.iter().filter(|record| record.end == End::GivenUp);
        assert!(every > 2 || given_up.count() == 3, "every {every}");
        let steps = simulation.steps.len();
        assert!(steps < 1_000, "{steps} steps, every {every}");
    }
}

/// Where a memory can't go back, all that were in a step that failed read again from the start, and pass the
/// place one by one. There several bad ones must not excuse each other.
#[test]
fn several_culprits_are_found_where_all_have_to_start_anew() {
    let limits = SchedulerConfig {
        seq_ids: 4,
        cells: 400,
        max_step_tokens: 12,
        prefix_cache: true,
        can_truncate: false,
        max_drafts: 0,
        ..LIMITS
    };
    let sound = |adapter| Arrival {
        prompt: 22,
        max_tokens: 30,
        ends_after: 30,
        adapter: AdapterId(adapter),
        ..Arrival::default()
    };
    for first in (15..70).step_by(4) {
        for second in (15..70).step_by(4) {
            let bad = |prompt| Arrival {
                prompt,
                poisoned: true,
                ..sound(0)
            };
            let arrivals = vec![bad(first), sound(1), bad(second), sound(0)];
            let records = simulation(limits, &[]).run(arrivals);
            let ends: Vec<_> = records.iter().map(|record| record.end).collect();
            let expected = [End::GivenUp, End::Finished, End::GivenUp, End::Finished];
            assert_eq!(ends, expected, "{first} and {second}");
        }
    }
}
