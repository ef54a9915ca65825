//! A tenant with many requests beside one with few.

use super::*;

const REQUESTS: usize = 64;
const TOKENS: u32 = 100;

/// A tenant with many requests from the start, and another that sends eight, one after the other. The steps until the
/// last of these has ended, and the records.
fn large_and_small(machine: Machine, priority: u8) -> (Vec<StepRecord>, Vec<Record>) {
    let limits = SchedulerConfig {
        seq_ids: 80,
        cells: 16_384,
        max_step_tokens: 512,
        max_queue: 100,
        max_tenant_queue: 100,
        ..CONFIG
    };
    let large = Arrival {
        priority: Priority(priority),
        ..arrival(0, 8, TOKENS)
    };
    let mut arrivals = vec![large; REQUESTS];
    arrivals.extend((0..8).map(|i| Arrival {
        tenant: Tenant(1),
        ..arrival(1_000 + 200 * i, 8, 10)
    }));
    let mut simulation = simulation_on(machine, limits, &[]);
    let records = simulation.run(arrivals);
    assert!(records.iter().all(|record| record.end == End::Finished));
    (simulation.steps, records)
}

/// Every step takes as long as its tokens.
fn compute_bound() -> Machine {
    Machine {
        fixed: 0.0005,
        row: 0.0005,
        prefill: 0.0005,
        ..Machine::default()
    }
}

fn longest_gaps(records: &[Record]) -> Vec<Duration> {
    let gaps = records.iter().map(|record| {
        let gaps = record.tokens.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().expect("several tokens")
    });
    gaps.collect()
}

#[test]
fn small_tenant_decodes_in_short_steps() {
    let (steps, records) = large_and_small(compute_bound(), 0);
    let full = steps.iter().map(|step| step.took).max().unwrap();
    assert!(full >= Duration::from_millis(32), "{full:?}");
    // The ten tokens of a request take less time than a full step.
    for gap in longest_gaps(&records[REQUESTS..]) {
        assert!(gap <= Duration::from_millis(2), "{gap:?}");
    }
    let short: Vec<_> = steps.iter().filter(|step| step.other_tenants > 0).collect();
    assert!(
        short
            .iter()
            .all(|step| step.rows <= 1 && step.other_tenants == 64)
    );
    // Each request has one step with its prompt, and nine with one row.
    assert_eq!(short.len(), 80);
    // No request of the large tenant waits for longer than a full step beside its own.
    for gap in longest_gaps(&records[..REQUESTS]) {
        assert!(gap <= 3 * full, "{gap:?}");
    }
}

#[test]
fn large_tenant_keeps_half_of_the_time() {
    let limits = SchedulerConfig {
        seq_ids: 80,
        cells: 16_384,
        max_step_tokens: 512,
        max_queue: 100,
        max_tenant_queue: 100,
        ..CONFIG
    };
    let mut arrivals = vec![arrival(0, 8, TOKENS); REQUESTS];
    arrivals.push(Arrival {
        tenant: Tenant(1),
        ..arrival(500, 8, 4_000)
    });
    let mut simulation = simulation_on(compute_bound(), limits, &[]);
    let records = simulation.run(arrivals);
    let end = records[..REQUESTS].iter().map(|record| record.ended).max();
    let ended = end.unwrap();
    // Before the other request arrives, and after the large tenant has ended, no step is short.
    let short: Vec<_> = simulation
        .steps
        .iter()
        .filter(|step| step.other_tenants > 0)
        .collect();
    let short: Duration = short.iter().map(|step| step.took).sum();
    let both = ended - Duration::from_millis(500);
    let part = short.as_secs_f64() / both.as_secs_f64();
    assert!((0.4..=0.5).contains(&part), "{part}");
}

#[test]
fn no_step_is_short_without_need() {
    let usual = Machine::default();
    // Rows add little to a step, which a first short step shows; or the large tenant goes first.
    let memory_bound = Machine {
        row: 0.0005,
        ..usual
    };
    for (machine, priority, most) in [(memory_bound, 0, 2), (compute_bound(), 1, 0)] {
        let (steps, _) = large_and_small(machine, priority);
        let short = steps.iter().filter(|step| step.other_tenants > 0).count();
        assert!(short <= most, "{short}");
    }
}
