//! What is shared, put aside, brought back and moved.

use super::*;

const ROOMY: SchedulerConfig = SchedulerConfig {
    cells: 400,
    ..LIMITS
};

/// One that was placed behind a long prompt is moved down when that is gone, where attention costs
/// anything; the steps after it are as short as if it had been alone.
#[test]
fn a_survivor_that_lies_high_is_moved_where_that_pays() {
    let limits = SchedulerConfig {
        seq_ids: 4,
        cells: 8192,
        max_step_tokens: 512,
        prefix_cache: true,
        can_truncate: true,
        ..LIMITS
    };
    // The first one goes away when it has been read, and leaves a gap below the second.
    let first = Arrival {
        leaves: Some(Duration::from_secs(60)),
        ..arrival(0, 6000, 2000)
    };
    let arrivals = vec![first, arrival(1, 8, 2000)];
    for (attention, moved) in [(1e-6, true), (0.0, false)] {
        let machine = Machine {
            attention,
            noise: 0.02,
            ..Machine::default()
        };
        let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
        let records = simulation.run(arrivals.clone());
        assert_eq!((records[0].end, records[1].end), (End::Left, End::Finished));
        assert_eq!(simulation.counters().compacted > 0, moved, "{attention}");
        let last = simulation.steps.last().unwrap().took.as_secs_f64();
        let short = machine.fixed + machine.row + attention * 2100.0;
        assert!(!moved || last < 1.1 * short, "{last} against {short}");
        // It could not be saved, or not be put back: it is computed again, and lies low all the same.
        for fault in 0..2 {
            let faults = std::collections::BTreeSet::from([fault]);
            let simulation = Simulation::new(limits, machine, BTreeMap::new());
            let records = simulation.with_state_faults(faults).run(arrivals.clone());
            assert_eq!(records[1].end, End::Finished);
            assert_eq!(records[1].recomputed > 0, moved, "{attention}");
        }
    }
}

/// The leader gives way to a more urgent one, comes back in the same plan, and finds that its follower
/// is about to read what it wants.
#[test]
fn nobody_follows_its_own_follower() {
    let limits = SchedulerConfig {
        cells: 200,
        ..LIMITS
    };
    let follower = Arrival {
        prompt: 80,
        family: (79, 0),
        max_tokens: 20,
        ends_after: 20,
        ..Arrival::default()
    };
    let leader = Arrival {
        time: Some(Duration::from_secs(50)),
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

/// Also if there is only one to give way.
#[test]
fn a_higher_priority_does_not_wait_for_a_lower_one_to_end() {
    for limits in [
        SchedulerConfig {
            seq_ids: 1,
            ..LIMITS
        },
        LIMITS,
    ] {
        let low = Arrival {
            prompt: 30,
            max_tokens: 60,
            ends_after: 60,
            ..Arrival::default()
        };
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

/// With one id: what somebody else means to go on with, too, is put aside, and gone on with at once.
#[test]
fn a_whole_sequence_is_gone_on_with_where_it_is() {
    for can_truncate in [true, false] {
        let limits = SchedulerConfig {
            seq_ids: 1,
            can_truncate,
            ..ROOMY
        };
        let first = Arrival {
            prompt: 40,
            max_tokens: 10,
            ends_after: 10,
            ..Arrival::default()
        };
        let next = |at| Arrival {
            at: Duration::from_secs(at),
            prompt: 4,
            goes_on: Some((0, 49)),
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
