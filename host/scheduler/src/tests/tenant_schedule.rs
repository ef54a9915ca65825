//! Short steps, without the rows of tenants that make steps long.

use super::*;

/// A cost model: 1 ms for each token.
fn costs() -> CostModel {
    let mut costs = CostModel::default();
    for number in 0..400_u32 {
        let shape = StepShape {
            decode_rows: 1 + number % 50,
            prefill: 16 * (number % 3),
            n_kv: 256 * (1 + number % 5),
            ..StepShape::default()
        };
        costs.observe(shape, 0.001 * f64::from(shape.decode_rows + shape.prefill));
    }
    costs
}

/// Plans a step that takes 15 ms.
fn step(scheduler: &mut Scheduler) -> Step {
    // The times of these steps must not change the model.
    scheduler.costs = costs();
    let step = scheduler.plan(Time::ZERO);
    let rows = step.rows.iter().filter(|row| row.output);
    let gained: Vec<_> = rows.map(|row| (row.request, 7)).collect();
    let result = StepResult::Decoded {
        gained: &gained,
        finished: &[],
        awaits_sampler: &[],
        needs_all_logits: &[],
        took: Duration::from_millis(15),
    };
    assert_eq!(scheduler.step_done(result), None);
    step
}

#[test]
fn short_step_makes_room_for_its_rows_only() {
    const LARGE: u64 = 40;
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 48,
        // Those of the entry and of all requests, and 20 more.
        cells: 300 + 41 + 20,
        max_step_tokens: 512,
        max_queue: 64,
        max_tenant_queue: 64,
        swap: false,
        ..CONFIG
    });
    enqueue(&mut scheduler, 1, 300, 1);
    let prompt = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &prompt, &[RequestId(1)]);
    for key in 0..=LARGE {
        let tenant = u32::from(key == LARGE);
        let request = of_tenant(tenant, 2 + key, 1, 2);
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    assert_eq!(step(&mut scheduler).rows.len(), 41);
    // A prompt of the large tenant.
    enqueue(&mut scheduler, 100, 200, 1);
    for _ in 0..2 {
        let short = step(&mut scheduler);
        assert_eq!((short.other_tenants, short.rows.len()), (40, 1));
        assert_eq!(scheduler.counters().dropped, 0);
    }
    let mut next = std::iter::repeat_with(|| step(&mut scheduler)).take(10);
    let full = next.find(|step| step.other_tenants == 0);
    assert_eq!(full.unwrap().rows.len(), 42);
    let counters = scheduler.counters();
    assert_eq!((counters.dropped, counters.preempted), (1, 0));
}
