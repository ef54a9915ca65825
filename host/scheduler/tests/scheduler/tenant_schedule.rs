//! A tenant with many requests beside one with few.

use super::*;
use proptest::prelude::*;

const REQUESTS: usize = 64;
const TOKENS: u32 = 100;
const LIMITS: SchedulerConfig = SchedulerConfig {
    seq_ids: 160,
    cells: 32_768,
    max_step_tokens: 512,
    max_queue: 200,
    max_tenant_queue: 200,
    ..CONFIG
};

/// A tenant with many requests from the start, and another that sends eight, one after the other. The steps until the
/// last of these has ended, and the records.
fn large_and_small(machine: Machine, priority: u8) -> (Vec<StepRecord>, Vec<Record>) {
    let large = Arrival {
        priority: Priority(priority),
        ..arrival(0, 8, TOKENS)
    };
    let mut arrivals = vec![large; REQUESTS];
    arrivals.extend((0..8).map(|i| Arrival {
        tenant: Tenant(1),
        ..arrival(1_000 + 200 * i, 8, 10)
    }));
    let mut simulation = simulation_on(machine, LIMITS, &[]);
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
    let mut arrivals = vec![arrival(0, 8, TOKENS); REQUESTS];
    arrivals.push(Arrival {
        tenant: Tenant(1),
        ..arrival(500, 8, 4_000)
    });
    let mut simulation = simulation_on(compute_bound(), LIMITS, &[]);
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

/// The first steps have one row and are slow, so rows seem to add nothing; all later ones have 64 rows or more.
#[test]
fn slow_first_steps_hide_no_large_tenant() {
    let mut arrivals = vec![arrival(0, 8, 12)];
    arrivals.extend(vec![arrival(3_000, 8, TOKENS); REQUESTS]);
    arrivals.push(Arrival {
        tenant: Tenant(1),
        ..arrival(3_300, 8, 400)
    });
    let faults: Vec<_> = (0..12).map(|step| (step, Fault::Slow(100.0))).collect();
    let mut simulation = simulation_on(compute_bound(), LIMITS, &faults);
    simulation.run(arrivals);
    let both = simulation.steps.iter().filter(|step| step.rows == 65);
    let short = simulation
        .steps
        .iter()
        .filter(|step| step.other_tenants > 0);
    let (both, short) = (both.count(), short.count());
    assert!(short > both, "{short} short steps, {both} with all rows");
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

/// A prompt of one small tenant is computed while another one decodes: the tokens of that one do not wait for the large
/// tenant, and the prompt gains from short steps.
#[test]
fn prompt_of_small_tenant_keeps_steps_short() {
    let large = vec![arrival(0, 8, TOKENS); REQUESTS];
    let decoding = Arrival {
        tenant: Tenant(1),
        ..arrival(500, 8, 400)
    };
    let prompt = Arrival {
        tenant: Tenant(2),
        ..arrival(1_000, 1_500, 1)
    };
    let arrivals = [&large[..], &[decoding, prompt]].concat();
    let mut simulation = simulation_on(compute_bound(), LIMITS, &[]);
    let records = simulation.run(arrivals);
    let [.., decoding, prompt] = &records[..] else {
        panic!("all have records");
    };
    let full = simulation.steps.iter().filter(|step| step.rows == 65);
    let full = full.map(|step| step.took).min().expect("full steps");
    let (begin, end) = (Duration::from_secs(1), prompt.tokens[0]);
    let during = decoding.tokens.iter();
    let during = during.filter(|token| (begin..end).contains(token)).count();
    let expected = 1.5 * (end - begin).as_secs_f64() / full.as_secs_f64();
    assert!(during as f64 > expected, "{during} tokens, not {expected}");
    let with_prompt = |step: &&StepRecord| step.other_tenants > 0 && step.prefill > 0;
    let short: Vec<_> = simulation.steps.iter().filter(with_prompt).collect();
    assert!(short.len() > 10);
    assert!(short.iter().all(|step| 3 * step.took <= full));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A tenant with many requests keeps half of its throughput beside a small one, also while the requests of a third
    /// use another adapter.
    #[test]
    fn large_tenant_keeps_half_beside_other_adapters(
        rows in 24..64usize,
        others in 0..64usize,
        small in 1..4usize,
        change in 0..20u32,
    ) {
        let machine = Machine {
            adapter_change: 0.001 * f64::from(change),
            ..compute_bound()
        };
        let of = |tenant, adapter, tokens| Arrival {
            tenant: Tenant(tenant),
            adapter: AdapterId(adapter),
            ..arrival(0, 8, tokens)
        };
        let end = |small: usize| {
            // The others decode until the end.
            let large = vec![of(0, 0, 40); rows];
            let others = vec![of(1, 1, 200); others];
            let small = vec![of(2, 0, 1_200); small];
            let records = simulation_on(machine, LIMITS, &[]).run([large, others, small].concat());
            records[..rows].iter().map(|record| record.ended).max().unwrap()
        };
        let (alone, beside) = (end(0), end(small));
        // Full steps have the rows of the small tenant too.
        let longer = 2.2 * (rows + small) as f64 / rows as f64;
        let most = alone.mul_f64(longer) + Duration::from_millis(100);
        prop_assert!(beside <= most, "{alone:?} {beside:?}");
    }
}
