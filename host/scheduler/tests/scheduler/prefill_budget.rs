//! Inter-token gaps of decoding requests beside prompts.

use super::*;

/// A request whose gap is kept at two decode steps.
fn stream(at: u64, prompt: u32, tokens: u32) -> Arrival {
    Arrival {
        latency: Latency::STREAM,
        ..arrival(at, prompt, tokens)
    }
}

/// The longest gap between two tokens of a request, and the longest step without prompts.
fn gaps(prefill: PrefillPolicy) -> (Duration, Duration) {
    let limits = SchedulerConfig {
        seq_ids: 16,
        cells: 16_384,
        max_step_tokens: 512,
        max_queue: 64,
        max_tenant_queue: 64,
        prefill,
        ..CONFIG
    };
    let mut arrivals = vec![stream(0, 32, 400); 8];
    arrivals.extend((0..20).map(|i| stream(2_000 + 1_500 * i, [600, 32][(i % 2) as usize], 50)));
    let mut simulation = simulation(limits, &[]);
    let records = simulation.run(arrivals);
    let gap = |record: &Record| {
        let pairs = record.tokens.windows(2).skip(16);
        pairs.map(|pair| pair[1] - pair[0]).max()
    };
    let longest = records.iter().filter_map(gap).max().unwrap();
    let alone = |step: &&StepRecord| step.rows >= 8 && step.prefill == 0;
    let plain = simulation.steps.iter().filter(alone).map(|step| step.took);
    (longest, plain.max().unwrap())
}

/// The times of steps with decode rows and prompts, relative to the rows alone, or to as many rows as requests usually
/// ran if those are more.
pub(super) fn relative_step_times(arrivals: Vec<Arrival>, machine: Machine) -> Vec<f64> {
    let limits = SchedulerConfig {
        seq_ids: 64,
        cells: 65_536,
        max_step_tokens: 512,
        max_queue: 100,
        max_tenant_queue: 100,
        ..CONFIG
    };
    let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
    simulation.run(arrivals);
    let (mut usual, mut seen, mut ratios) = (0.0_f64, 0.0_f64, Vec::new());
    for step in &simulation.steps {
        if step.rows > 0 && step.prefill > 0 {
            let rows = f64::from(step.rows).max(usual.floor());
            let alone = machine.fixed + machine.row * rows;
            ratios.push(step.took.as_secs_f64() / alone);
        }
        // A mean of about the last 64 steps.
        seen = (seen + 1.0).min(64.0);
        usual += (step.running as f64 - usual) / seen;
    }
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Two past failures: a cold start with prompts alone, and prompts so short that they say nothing about long ones. On a
/// machine with a model of 0.6 billion weights, and on one as fast as with the demo model.
#[test]
fn gap_target_holds_from_the_first_step() {
    let of = |at, prompt, tokens| Arrival {
        at: Duration::from_secs_f64(at),
        prompt,
        max_tokens: tokens,
        ends_after: tokens,
        latency: Latency::STREAM,
        ..Arrival::default()
    };
    let quick = Machine {
        fixed: 4e-4,
        row: 1e-4,
        prefill: 2e-5,
        attention: 0.0,
        adapter_change: 0.0,
        sample: 0.0,
        noise: 0.15,
        ..Machine::default()
    };
    let slow = Machine {
        attention: 0.0,
        noise: 0.15,
        ..Machine::default()
    };
    for machine in [quick, slow] {
        let mut loads = vec![vec![of(0.0, 600, 60); 64]];
        for length in [1, 2, 4, 32] {
            let mut load = vec![of(0.0, length, 900); 8];
            let at = |i| machine.fixed * f64::from(50 + 22 * i);
            load.extend((0..30).map(|i| of(at(i), 600, 20)));
            loads.push(load);
        }
        for load in loads {
            let ratios = relative_step_times(load, machine);
            let (most, p99) = (ratios[ratios.len() - 1], ratios[ratios.len() * 99 / 100]);
            let of = ratios.len();
            assert!(p99 <= 2.1 && most <= 3.0, "p99 {p99}, most {most} of {of}");
        }
    }
}

/// Also with prompts whose chunks have no fixed size.
#[test]
fn larger_chunks_are_probed_rarely() {
    for length in [11, 23, 600] {
        let limits = SchedulerConfig {
            seq_ids: 16,
            cells: 65_536,
            max_step_tokens: 512,
            max_queue: 4_000,
            max_tenant_queue: 4_000,
            ..CONFIG
        };
        let mut arrivals = vec![stream(0, 32, 4_000); 8];
        let prompts = 30_000 / length;
        arrivals.extend((0..prompts).map(|i| stream(2_000 + u64::from(i * length) * 8, length, 1)));
        let mut simulation = simulation(limits, &[]);
        simulation.run(arrivals);
        let reading = simulation.steps.iter().filter(|step| step.rows == 8);
        let sizes: Vec<_> = reading
            .map(|step| step.prefill)
            .filter(|&n| n > 0)
            .collect();
        // 72 ms without prompts: 16 tokens more take 112, and 24 take 132, too much with the margin for scatter.
        let tried = sizes.iter().filter(|&&size| size > 16).count();
        let most = sizes.len() / 60;
        assert!(
            tried > 0 || length == 11,
            "{length}: none of {}",
            sizes.len()
        );
        assert!(tried <= most, "{length}: {tried} of {}", sizes.len());
    }
}

/// Fewer than one step in sixty probes a larger chunk.
#[test]
fn long_prompt_keeps_gap_near_target() {
    let (longest, plain) = gaps(PrefillPolicy::Budgeted);
    assert!(longest <= plain * 5 / 2, "{longest:?} against {plain:?}");
    let (unbudgeted, plain) = gaps(PrefillPolicy::Unbudgeted);
    assert!(unbudgeted > 10 * plain, "{unbudgeted:?} against {plain:?}");
}
