//! Drafts, and known tokens that were not sampled.

use super::*;

/// Room for many requests with drafts.
const LIMITS: SchedulerConfig = SchedulerConfig {
    seq_ids: 64,
    cells: 65_536,
    max_step_tokens: 512,
    max_queue: 100,
    max_tenant_queue: 100,
    max_drafts: 16,
    ..CONFIG
};

/// Accepted and rejected drafts for each token of this many requests.
fn draft_rates(count: usize, machine: Machine) -> (f64, f64) {
    let arrival = Arrival {
        max_drafts: 16,
        ..arrival(0, 20, 400)
    };
    let mut simulation = Simulation::new(LIMITS, machine, BTreeMap::new());
    let records = simulation.run(vec![arrival; count]);
    let (right, wrong) = records.iter().fold((0, 0), |sum, record| {
        (sum.0 + record.drafts.0, sum.1 + record.drafts.1)
    });
    let tokens: usize = records.iter().map(|record| record.tokens.len()).sum();
    let share = |drafts: u32| f64::from(drafts) / tokens as f64;
    (share(right), share(wrong))
}

#[test]
fn drafts_are_used_where_they_pay() {
    // A step takes 44 ms, and each draft 4 more.
    let (right, wrong) = draft_rates(1, Machine::default());
    assert!(right > 0.4 && wrong < 0.5, "{right} {wrong}");
    // Few are tried if a row costs as much as the step, or if many rows share it.
    let dear = Machine {
        fixed: 0.001,
        row: 0.040,
        ..Machine::default()
    };
    for (count, machine) in [(1, dear), (64, Machine::default())] {
        let (right, wrong) = draft_rates(count, machine);
        assert!(right + wrong < 0.15, "{count}: {right} {wrong}");
    }
}

#[test]
fn steps_with_drafts_keep_the_target() {
    let limits = SchedulerConfig {
        seq_ids: 16,
        cells: 16_384,
        max_step_tokens: 512,
        max_queue: 64,
        max_tenant_queue: 64,
        max_drafts: 16,
        ..CONFIG
    };
    let arrival = Arrival {
        max_drafts: 16,
        ..arrival(0, 20, 300)
    };
    let machine = Machine {
        noise: 0.15,
        ..Machine::default()
    };
    let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
    simulation.run(vec![arrival; 6]);
    let with = simulation
        .steps
        .iter()
        .filter(|s| s.drafts > 0 && s.rows > 1);
    let ratios = with.map(|step| {
        let alone = machine.fixed + machine.row * f64::from(step.rows);
        step.took.as_secs_f64() / alone
    });
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    assert!(ratios.len() > 50, "{}", ratios.len());
    let p99 = ratios[ratios.len() * 99 / 100];
    assert!(p99 <= 2.1, "{p99}");
}

/// Seconds to generate 400 tokens of each of `count` requests, with `drafts` of a draft model at most, and the drafts per
/// token.
fn generate_with_model(
    count: usize,
    machine: Machine,
    drafts: u32,
    accuracy: u32,
) -> (f64, f64, Vec<StepRecord>) {
    let arrival = Arrival {
        model_drafts: drafts,
        model_accuracy: accuracy,
        ..arrival(0, 200, 400)
    };
    let mut simulation = Simulation::new(LIMITS, machine, BTreeMap::new());
    let records = simulation.run(vec![arrival; count]);
    let end = records.iter().map(|record| record.ended).max().unwrap();
    let drafts: u32 = records.iter().map(|one| one.drafts.0 + one.drafts.1).sum();
    let rate = f64::from(drafts) / (400 * count) as f64;
    (end.as_secs_f64(), rate, simulation.steps)
}

#[test]
fn draft_model_saves_time_where_it_is_cheap() {
    let machine = Machine::default();
    for (count, least) in [(1, 1.8), (2, 1.3), (4, 1.15)] {
        let (plain, none, _) = generate_with_model(count, machine, 0, 90);
        let (with, drafts, _) = generate_with_model(count, machine, 16, 90);
        let gain = plain / with;
        assert!(none == 0.0 && drafts > 0.3, "{count}: {drafts}");
        assert!(gain > least, "{count}: {gain}");
    }
}

#[test]
fn draft_model_rests_where_it_costs_time() {
    let machine = Machine::default();
    // As slow as the model itself.
    let slow = Machine {
        draft_step: 0.040,
        ..machine
    };
    // A row costs as much as a step.
    let dear = Machine {
        fixed: 0.001,
        row: 0.040,
        ..machine
    };
    for (count, machine, accuracy) in [
        (1, slow, 90),
        (1, dear, 90),
        (1, machine, 5),
        (16, machine, 5),
        (64, machine, 90),
    ] {
        let (plain, ..) = generate_with_model(count, machine, 0, accuracy);
        let (with, drafts, _) = generate_with_model(count, machine, 16, accuracy);
        assert!(drafts < 0.2, "{count} {accuracy}: {drafts}");
        let cost = with / plain;
        assert!(cost < 1.04, "{count} {accuracy}: {cost}");
    }
}

#[test]
fn steps_with_model_drafts_keep_the_target() {
    let machine = Machine {
        noise: 0.15,
        ..Machine::default()
    };
    let (_, _, steps) = generate_with_model(6, machine, 16, 95);
    let with = steps.iter().filter(|s| s.drafts > 0 && s.rows > 1);
    let mut ratios: Vec<_> = with
        .map(|step| {
            let alone = machine.fixed + machine.row * f64::from(step.rows);
            (step.drafting + step.took).as_secs_f64() / alone
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    assert!(ratios.len() > 50, "{}", ratios.len());
    let p99 = ratios[ratios.len() * 99 / 100];
    assert!(p99 <= 2.1, "{p99}");
}
