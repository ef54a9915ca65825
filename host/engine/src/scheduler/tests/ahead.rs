//! Prompts that are read while rows are sampled, and while callers that sample themselves are waited for.

use super::*;

const ON: Limits = Limits {
    cells: 400,
    step_tokens: 64,
    overlap: Overlap::On,
    ..LIMITS
};

/// One that generates, and one that begins to read 43 tokens beside it: in the step that is returned 16 of
/// them, and 3 that fill the tile of its row.
fn reading(limits: Limits) -> (Scheduler, Step) {
    let mut scheduler = Scheduler::new(limits);
    enqueue(&mut scheduler, 1, 4, 50);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(scheduler.plan_ahead(Duration::MAX), None, "nobody reads");
    computed(&mut scheduler, &step, &[]);
    enqueue(&mut scheduler, 2, 43, 5);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.shape.rows, step.shape.prefill, step.ahead),
        (1, 19, 0)
    );
    (scheduler, step)
}

/// What a step computes of the second one, and whether a token comes of it.
fn span(step: &Step) -> Option<(u32, u32, bool)> {
    let row = step.rows.iter().find(|row| row.key == Key(2))?;
    Some((row.from, row.to, row.output))
}

#[test]
fn half_of_the_budget_runs_ahead_and_no_prompt_comes_to_its_end_there() {
    let (mut scheduler, mut step) = reading(ON);
    let mut seen = Vec::new();
    while let Some(ahead) = scheduler.plan_ahead(Duration::ZERO) {
        assert!(ahead.meanwhile && ahead.memory.is_empty());
        assert_eq!(ahead.rows.len(), 1);
        computed(&mut scheduler, &step, &[]);
        scheduler.applied_ahead(true);
        let before = ahead.shape.prefill;
        seen.push((span(&step), span(&ahead)));
        step = scheduler.plan(Time::ZERO);
        assert_eq!((step.ahead, step.budget, step.shape.rows), (before, 19, 1));
    }
    let expected = [
        (Some((0, 19, false)), Some((19, 27, false))),
        // What is left of the budget, and what is left of the prompt but for its end.
        (Some((27, 38, false)), Some((38, 42, false))),
    ];
    assert_eq!(seen, expected);
    assert_eq!(span(&step), Some((42, 43, true)));
}

#[test]
fn a_processor_runs_ahead_only_if_it_is_told_to() {
    let [auto, off, on] = [Overlap::Auto, Overlap::Off, Overlap::On];
    assert_eq!([auto, off, on].map(|asked| asked.of(true)), [off, off, on]);
    assert_eq!(
        [auto, off, on].map(|asked| asked.of(false)),
        [auto, off, on]
    );
}

#[test]
fn nothing_runs_ahead_where_it_is_off_or_not_known_to_pay() {
    for overlap in [Overlap::Off, Overlap::Auto] {
        let (mut scheduler, step) = reading(Limits { overlap, ..ON });
        assert_eq!(scheduler.plan_ahead(Duration::MAX), None, "{overlap:?}");
        computed(&mut scheduler, &step, &[]);
    }
}

#[test]
fn it_takes_no_cell_that_the_next_step_needs() {
    // 4 and 1 of the first one, 19 of the second: 9 are left, of which the next token needs one.
    for (cells, size) in [(33, Some(8)), (32, Some(4)), (28, None)] {
        let limits = Limits { cells, ..ON };
        let mut scheduler = Scheduler::new(limits);
        enqueue(&mut scheduler, 1, 4, 2);
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[]);
        enqueue(&mut scheduler, 2, cells - 5, 1);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!(span(&step), Some((0, 19, false)));
        let ahead = scheduler.plan_ahead(Duration::ZERO);
        assert_eq!(ahead.map(|ahead| ahead.shape.prefill), size, "{cells}");
    }
}

#[test]
fn what_failed_ahead_is_undone_and_read_again_in_smaller_parts() {
    let (mut scheduler, step) = reading(ON);
    let ahead = scheduler.plan_ahead(Duration::ZERO).expect("half of it");
    let seq = ahead.rows[0].seq;
    computed(&mut scheduler, &step, &[]);
    scheduler.applied_ahead(false);
    assert_eq!(scheduler.cells().held_by(seq), 19);
    assert!(scheduler.is_recovering());
    let step = scheduler.plan(Time::ZERO);
    let tokens: u32 = step.rows.iter().map(Row::tokens).sum();
    assert_eq!((tokens, step.ahead), (5, 0));
    assert_eq!(span(&step), Some((19, 23, false)), "the other one goes on");
    assert_eq!(scheduler.plan_ahead(Duration::ZERO), None, "not so soon");
}

#[test]
fn nothing_stays_of_one_that_leaves_after_it_ran_ahead() {
    let (mut scheduler, step) = reading(ON);
    let ahead = scheduler.plan_ahead(Duration::ZERO).expect("half of it");
    let used = scheduler.cells().used();
    assert_eq!(used, 5 + 19 + ahead.shape.prefill);
    computed(&mut scheduler, &step, &[]);
    scheduler.applied_ahead(true);
    scheduler.give_up(Key(2));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.memory, [Memory::Clear(ahead.rows[0].seq)]);
    assert_eq!(scheduler.cells().used(), 6);
}

/// Some that generate beside many that read, on a machine that computes while rows are sampled, which takes
/// as long. When all of it is done, the longest gap, and the longest step without prompts.
fn busy(overlap: Overlap) -> (Simulation, Time, Duration, Duration) {
    let limits = Limits {
        seq_ids: 16,
        cells: 16_384,
        step_tokens: 512,
        queue: 100,
        tenant_queue: 100,
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
        let limits = Limits {
            cells: 1000,
            queue: 16,
            tenant_queue: 16,
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
        let limits = Limits {
            seq_ids: 16,
            cells: 8000,
            step_tokens: 64,
            queue: 64,
            tenant_queue: 64,
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
