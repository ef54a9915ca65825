//! Prompts that are read while rows are sampled, and while callers that sample themselves are waited for.

use super::*;

/// Some that generate beside many that read, on a machine that computes while rows are sampled, which takes
/// as long. When all of it is done, the longest gap, and the longest step without prompts.
fn busy(overlap: Overlap) -> (Simulation, Time, Duration, Duration) {
    let limits = SchedulerConfig {
        seq_ids: 16,
        cells: 16_384,
        max_step_tokens: 512,
        max_queue: 100,
        max_tenant_queue: 100,
        overlap,
        ..LIMITS
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
        let prompts = step.prefill + step.ahead;
        step.rows >= 8 && prompts == 0
    });
    let plain = plain.map(|step| step.took).max();
    (simulation, end.unwrap(), longest.unwrap(), plain.unwrap())
}

#[test]
fn the_same_work_ends_sooner_and_nobody_waits_longer() {
    let (without, late, _, _) = busy(Overlap::Off);
    assert_eq!(without.ahead, (0, 0));
    let (with, early, longest, plain) = busy(Overlap::On);
    assert!(with.ahead.1 > 5_000, "{:?} ran ahead", with.ahead);
    assert!(early < late, "{early:?} with, {late:?} without");
    assert!(longest <= 3 * plain, "{longest:?} against {plain:?}");
}

#[test]
fn by_itself_it_runs_ahead_where_sampling_takes_longer_than_a_step_costs_anyhow() {
    let (simulation, ..) = busy(Overlap::Auto);
    assert!(simulation.ahead.1 > 0, "{:?} ran ahead", simulation.ahead);
}

#[test]
fn where_sampling_takes_no_time_nothing_runs_ahead_unless_it_must() {
    for (overlap, runs) in [(Overlap::Auto, false), (Overlap::On, true)] {
        let limits = SchedulerConfig {
            cells: 1000,
            max_queue: 16,
            max_tenant_queue: 16,
            overlap,
            ..LIMITS
        };
        // They end one after the other, so that some read while others generate.
        let arrival = |i: u32| Arrival {
            prompt: 90,
            max_tokens: 10 + 7 * i,
            ends_after: 10 + 7 * i,
            ..Arrival::default()
        };
        let mut simulation = Simulation::new(limits, Machine::default(), BTreeMap::new());
        simulation.run((0..8).map(arrival).collect());
        assert_eq!(simulation.ahead.1 > 0, runs, "{overlap:?}");
    }
}

/// Guests that think for a moment each time, and others that have much to read before they do.
#[test]
fn prompts_are_read_while_guests_think() {
    for overlap in [Overlap::Off, Overlap::On] {
        let limits = SchedulerConfig {
            seq_ids: 16,
            cells: 8000,
            max_step_tokens: 64,
            max_queue: 64,
            max_tenant_queue: 64,
            overlap,
            ..LIMITS
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
            comes_back: (times, Duration::from_micros(thinks)),
            ..Arrival::default()
        };
        let mut arrivals: Vec<_> = (1..5).map(|i| guest(0, 20, 200, 40 * i)).collect();
        arrivals.extend((0..8).map(|i| guest(5_000 + 2_000 * i, 600, 3, 100)));
        let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
        let records = simulation.run(arrivals);
        assert!(records.iter().all(|record| record.end == End::Finished));
        let read = simulation.steps.iter().filter(|step| step.meanwhile);
        assert_eq!(read.count() > 0, overlap == Overlap::On);
    }
}
