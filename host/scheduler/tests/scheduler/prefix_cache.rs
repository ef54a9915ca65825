//! Sharing, swapping and compaction of cached sequences.

use super::*;

const ROOMY: SchedulerConfig = SchedulerConfig {
    cells: 400,
    ..CONFIG
};

/// A sequence behind a long prompt moves down once the prompt is gone, if attention costs anything. Then its steps are
/// as fast as if it had been alone.
#[test]
fn high_sequence_is_compacted_where_it_pays() {
    let limits = SchedulerConfig {
        seq_ids: 4,
        cells: 8192,
        max_step_tokens: 512,
        prefix_cache: true,
        can_truncate: true,
        ..CONFIG
    };
    // The first request is canceled after its prompt, and cancels_after a gap below the second.
    let first = Arrival {
        cancels_after: Some(Duration::from_secs(60)),
        ..arrival(0, 6000, 2000)
    };
    let arrivals = vec![first, arrival(20_000, 8, 2000)];
    for (attention, moved) in [(1e-6, true), (0.0, false)] {
        let machine = Machine {
            attention,
            noise: 0.02,
            ..Machine::default()
        };
        let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
        let records = simulation.run(arrivals.clone());
        assert_eq!(
            (records[0].end, records[1].end),
            (End::Canceled, End::Finished)
        );
        assert_eq!(simulation.counters().compacted > 0, moved, "{attention}");
        let last = simulation.steps.last().unwrap().took.as_secs_f64();
        let short = machine.fixed + machine.row + attention * 2100.0;
        assert!(!moved || last < 1.1 * short, "{last} against {short}");
        // If its state can't be saved or loaded, it is computed again.
        for fault in 0..2 {
            let faults = std::collections::BTreeSet::from([fault]);
            let simulation = Simulation::new(limits, machine, BTreeMap::new());
            let records = simulation.with_state_faults(faults).run(arrivals.clone());
            assert_eq!(records[1].end, End::Finished);
            assert_eq!(records[1].recomputed > 0, moved, "{attention}");
        }
    }
}

/// The backend could not copy its state.
#[test]
fn sequence_above_compaction_limit_stays() {
    let limits = SchedulerConfig {
        cells: 8192,
        max_step_tokens: 512,
        max_compaction_tokens: 8,
        ..CONFIG
    };
    let first = Arrival {
        cancels_after: Some(Duration::from_secs(60)),
        ..arrival(0, 6000, 2000)
    };
    let machine = Machine {
        attention: 1e-6,
        noise: 0.02,
        ..Machine::default()
    };
    let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
    let records = simulation.run(vec![first, arrival(1, 8, 2000)]);
    assert_eq!((records[1].end, records[1].recomputed), (End::Finished, 0));
    assert_eq!(simulation.counters().compacted, 0);
}

/// The leader is preempted and starts again in the same plan, when its follower is about to compute their prefix.
#[test]
fn no_request_follows_its_follower() {
    let limits = SchedulerConfig {
        cells: 200,
        ..CONFIG
    };
    let follower = Arrival {
        family: (79, 0),
        ..arrival(0, 80, 20)
    };
    let leader = Arrival {
        deadline_after: Some(Duration::from_secs(50)),
        ..follower.clone()
    };
    let urgent = Arrival {
        at: Duration::from_millis(10),
        priority: Priority(1),
        prompt: 71,
        family: (0, 0),
        ..follower.clone()
    };
    let mut simulation = simulation(limits, &[]);
    let records = simulation.run(vec![follower, leader, urgent]);
    assert!(simulation.counters().preempted > 0);
    assert!(records.iter().all(|record| record.end == End::Finished));
}

/// Also with a single id.
#[test]
fn higher_priority_preempts_lower() {
    for limits in [
        SchedulerConfig {
            seq_ids: 1,
            ..CONFIG
        },
        CONFIG,
    ] {
        let low = arrival(0, 30, 60);
        let high = Arrival {
            at: Duration::from_millis(300),
            priority: Priority(9),
            max_tokens: 30,
            ends_after: 30,
            ..low.clone()
        };
        let mut simulation = simulation(limits, &[]);
        let records = simulation.run(vec![low, high]);
        assert!(records[1].ended < records[0].ended);
        assert_eq!(simulation.counters().preempted, 1);
    }
}

/// With one id: a sequence with a second owner is swapped out and continued at once.
#[test]
fn continued_sequence_is_taken_over() {
    for can_truncate in [true, false] {
        let limits = SchedulerConfig {
            seq_ids: 1,
            can_truncate,
            ..ROOMY
        };
        let first = arrival(0, 40, 10);
        let next = |at| Arrival {
            at: Duration::from_secs(at),
            prompt: 4,
            continued: Some((0, 49)),
            ..first.clone()
        };
        let records = simulation(limits, &[]).run(vec![first.clone(), next(20), next(40)]);
        assert_eq!(
            (records[1].cached, records[2].cached),
            (49, 49),
            "truncates: {can_truncate}"
        );
    }
}
