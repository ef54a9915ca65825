//! Prompts that are computed while rows are sampled, and while steps wait for callers.

use super::*;

/// Decoding requests beside many prompts, on a machine with slow sampling. Returns the end of the work, the longest gap,
/// and the longest step without prompts.
fn busy(overlap: Overlap) -> (Simulation, Time, Duration, Duration) {
    let limits = SchedulerConfig {
        seq_ids: 16,
        cells: 16_384,
        max_step_tokens: 512,
        max_queue: 100,
        max_tenant_queue: 100,
        overlap,
        ..CONFIG
    };
    let machine = Machine {
        fixed: 0.005,
        row: 2e-4,
        prefill: 1e-4,
        attention: 0.0,
        sample: 0.001,
        ..Machine::default()
    };
    let mut arrivals = vec![arrival(0, 32, 400); 8];
    arrivals.extend((0..60).map(|i| arrival(500 + 50 * i, 600, 4)));
    let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
    let records = simulation.run(arrivals);
    assert!(records.iter().all(|record| record.end == End::Finished));
    let end = records.iter().map(|record| record.ended).max();
    let gaps = records[..8].iter().flat_map(|record| {
        let pairs = record.tokens.windows(2).skip(16);
        pairs.map(|pair| pair[1] - pair[0])
    });
    let longest = gaps.max();
    let plain = simulation.steps.iter().filter(|step| {
        let prompts = step.prefill + step.overlapped;
        step.rows >= 8 && prompts == 0
    });
    let plain = plain.map(|step| step.took).max();
    (simulation, end.unwrap(), longest.unwrap(), plain.unwrap())
}

#[test]
fn overlap_saves_time_and_keeps_gaps() {
    let (without, late, _, _) = busy(Overlap::Off);
    assert_eq!(without.overlapped, (0, 0));
    let (with, early, longest, plain) = busy(Overlap::On);
    assert!(with.overlapped.1 > 5_000, "{:?} ran ahead", with.overlapped);
    assert!(early < late, "{early:?} with, {late:?} without");
    assert!(longest <= 3 * plain, "{longest:?} against {plain:?}");
}

#[test]
fn auto_overlaps_with_slow_sampling() {
    let (simulation, ..) = busy(Overlap::Auto);
    assert!(
        simulation.overlapped.1 > 0,
        "{:?} ran ahead",
        simulation.overlapped
    );
}

#[test]
fn auto_does_not_overlap_with_instant_sampling() {
    for (overlap, runs) in [(Overlap::Auto, false), (Overlap::On, true)] {
        let limits = SchedulerConfig {
            cells: 1000,
            max_queue: 16,
            max_tenant_queue: 16,
            overlap,
            ..CONFIG
        };
        // They end one after the other, so that prompts and decode rows mix.
        let arrival = |i: u32| arrival(0, 90, 10 + 7 * i);
        let mut simulation = Simulation::new(limits, Machine::default(), BTreeMap::new());
        simulation.run((0..8).map(arrival).collect());
        assert_eq!(simulation.overlapped.1 > 0, runs, "{overlap:?}");
    }
}

/// Fast guests, and others with long prompts.
#[test]
fn prompts_are_computed_during_waits() {
    for overlap in [Overlap::Off, Overlap::On] {
        let limits = SchedulerConfig {
            seq_ids: 16,
            cells: 8000,
            max_step_tokens: 64,
            max_queue: 64,
            max_tenant_queue: 64,
            overlap,
            ..CONFIG
        };
        let machine = Machine {
            fixed: 1e-4,
            row: 1e-5,
            prefill: 1e-5,
            attention: 0.0,
            ..Machine::default()
        };
        let guest = |at, prompt, times, thinks| Arrival {
            at: Duration::from_micros(at),
            prompt,
            returns: (times, Duration::from_micros(thinks)),
            ..Arrival::default()
        };
        let mut arrivals: Vec<_> = (1..5).map(|i| guest(0, 20, 200, 40 * i)).collect();
        arrivals.extend((0..8).map(|i| guest(5_000 + 2_000 * i, 600, 3, 100)));
        let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
        let records = simulation.run(arrivals);
        assert!(records.iter().all(|record| record.end == End::Finished));
        let read = simulation.steps.iter().filter(|step| step.is_overlap);
        assert_eq!(read.count() > 0, overlap == Overlap::On);
    }
}
