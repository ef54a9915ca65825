//! Failed steps: the request at fault is found, and no other fails for it.

use super::*;

/// The others outlast the culprit; some decode, some have long prompts.
#[test]
fn failed_step_is_halved_to_the_culprit() {
    let limits = SchedulerConfig {
        seq_ids: 12,
        cells: 8192,
        max_step_tokens: 64,
        ..CONFIG
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
            End::Failed
        } else {
            End::Finished
        };
        assert_eq!(record.end, expected);
    }
    let failed = simulation.steps.iter().filter(|step| step.failed).count();
    assert!(failed <= 40, "{failed} steps failed for one sequence");
}

/// A short outage fails no request; a device that fails for good fails all.
#[test]
fn short_outage_is_survived_long_one_fails() {
    let arrival = arrival(0, 30, 10);
    let fast = Machine {
        fixed: 1e-5,
        row: 1e-5,
        prefill: 1e-5,
        ..Machine::default()
    };
    let outage = |steps: u64| {
        let faults = (3..3 + steps).map(|step| (step, Fault::Code(-2))).collect();
        let mut simulation = Simulation::new(CONFIG, fast, faults);
        simulation
            .run(vec![arrival.clone(); 6])
            .iter()
            .map(|r| r.end)
            .collect::<Vec<_>>()
    };
    assert_eq!(outage(15), [End::Finished; 6]);
    assert_eq!(outage(100_000), [End::Failed; 6]);
    // With many requests it takes little more than one round of them.
    let limits = SchedulerConfig {
        seq_ids: 64,
        cells: 8192,
        max_step_tokens: 64,
        max_queue: 64,
        max_tenant_queue: 64,
        ..CONFIG
    };
    let faults = (3..100_000).map(|step| (step, Fault::Code(-2))).collect();
    let mut simulation = Simulation::new(limits, fast, faults);
    let ends = simulation.run(vec![arrival.clone(); 64]);
    assert!(ends.iter().all(|record| record.end == End::Failed));
    let failed = simulation.steps.iter().filter(|step| step.failed).count();
    assert!(failed <= 3 * 64, "{failed} steps failed for 64 sequences");
}

/// Requests end even on a device that fails every few steps, also where requests start again and never get back to the
/// position of their first failure.
#[test]
fn half_dead_device_keeps_no_request_forever() {
    let limits = SchedulerConfig {
        cells: 2000,
        max_step_tokens: 64,
        prefix_cache: false,
        can_truncate: false,
        max_drafts: 0,
        ..CONFIG
    };
    let long = arrival(0, 400, 10);
    for every in [2, 3, 4] {
        let failing = (5..60_000).step_by(every);
        let faults: Vec<_> = failing.map(|step| (step, Fault::Code(-2))).collect();
        let mut simulation = simulation(limits, &faults);
        // If every other step fails, no request makes progress.
        let records = simulation.run(vec![long.clone(); 3]);
        let given_up = records.iter().filter(|record| record.end == End::Failed);
        assert!(every > 2 || given_up.count() == 3, "every {every}");
        let steps = simulation.steps.len();
        assert!(steps < 1_000, "{steps} steps, every {every}");
    }
}

/// Without truncation, the requests of a failed step start again and pass the position of the failure one by one. Several
/// bad requests must not excuse each other.
#[test]
fn several_culprits_are_found_without_truncation() {
    let limits = SchedulerConfig {
        seq_ids: 4,
        cells: 400,
        max_step_tokens: 12,
        prefix_cache: true,
        can_truncate: false,
        max_drafts: 0,
        ..CONFIG
    };
    let sound = |adapter| Arrival {
        adapter: AdapterId(adapter),
        ..arrival(0, 22, 30)
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
            let expected = [End::Failed, End::Finished, End::Failed, End::Finished];
            assert_eq!(ends, expected, "{first} and {second}");
        }
    }
}

/// The figures in the header of `failure.rs`.
#[test]
fn recovery_without_truncation_costs_few_steps() {
    let limits = SchedulerConfig {
        seq_ids: 8,
        cells: 4000,
        max_step_tokens: 64,
        prefix_cache: false,
        can_truncate: false,
        max_drafts: 0,
        ..CONFIG
    };
    let run = |arrivals: Vec<Arrival>, faults: &[(u64, Fault)]| {
        let mut simulation = simulation(limits, faults);
        let records = simulation.run(arrivals);
        let finished = records.iter().filter(|record| record.end == End::Finished);
        let failed = simulation.steps.iter().filter(|step| step.failed).count();
        (finished.count(), failed, simulation.steps.len())
    };
    let faults: Vec<_> = (5..60_000)
        .step_by(4)
        .map(|step| (step, Fault::Code(-2)))
        .collect();
    let (finished, _, steps) = run(vec![arrival(0, 200, 10); 6], &faults);
    assert_eq!((finished, steps), (3, 266));
    let bad = Arrival {
        poisoned: true,
        ..arrival(0, 150, 40)
    };
    let mut arrivals: Vec<_> = (0..4).map(|i| arrival(0, 40 + 50 * i, 40)).collect();
    arrivals.push(bad);
    assert_eq!(run(arrivals, &[]), (4, 4, 73));
}
