//! Requests that arrive at about the same time.

use super::*;

const MANY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    max_queue: 64,
    max_tenant_queue: 64,
    ..CONFIG
};

#[test]
fn window_opens_once_and_respects_timers() {
    let mut scheduler = Scheduler::new(MANY);
    // Eight usually run, and 100 tokens take 100 ms.
    let teach = |scheduler: &mut Scheduler| {
        scheduler.costs = CostModel::default();
        for _ in 0..200 {
            scheduler.window.observe(8);
            let shape = StepShape {
                prefill: 100,
                n_kv: 256,
                ..StepShape::default()
            };
            scheduler.costs.observe(shape, 0.100);
        }
    };
    teach(&mut scheduler);
    let ms = |count: u32| count * Duration::from_millis(1);
    enqueue(&mut scheduler, 1, 100, 1);
    assert!(scheduler.plan(ms(10)).rows.is_empty());
    // 3 % of 100 ms.
    assert_eq!(scheduler.next_timer(), scheduler.waiting_until());
    let until = scheduler.waiting_until().expect("it waits");
    assert!((12..=13).contains(&until.as_millis()), "{until:?}");
    enqueue(&mut scheduler, 2, 100, 1);
    assert!(scheduler.plan(ms(11)).rows.is_empty());
    assert_eq!(
        scheduler.waiting_until(),
        Some(until),
        "the second does not extend it"
    );
    let step = scheduler.plan(until);
    assert_eq!((step.rows.len(), scheduler.waiting_until()), (2, None));
    report_computed(&mut scheduler, &step, &[RequestId(1), RequestId(2)]);
    teach(&mut scheduler);
    // The next request opens a window too, but not beyond a queue time.
    enqueue(&mut scheduler, 20, 100, 1);
    assert!(scheduler.plan(ms(15)).rows.is_empty());
    let impatient = Request {
        queue_until: Some(ms(16)),
        ..request(21, 100, 1)
    };
    scheduler.enqueue(ms(15), impatient).unwrap();
    let step = scheduler.plan(ms(15));
    assert_eq!(step.rows.len(), 2);
    report_computed(&mut scheduler, &step, &[RequestId(20), RequestId(21)]);
    teach(&mut scheduler);
    // A next-token request opens one if it has many tokens to compute.
    enqueue(&mut scheduler, 22, 100, 0);
    assert!(scheduler.plan(ms(17)).rows.is_empty());
    scheduler.cancel(RequestId(22));
    assert!(scheduler.plan(ms(17)).rows.is_empty());
    enqueue(&mut scheduler, 22, 10, 0);
    let step = scheduler.plan(ms(17));
    assert_eq!(step.rows.len(), 1);
    report_computed(&mut scheduler, &step, &[RequestId(22)]);
    teach(&mut scheduler);
    // As many requests as usually run do not wait.
    for key in 3..11 {
        enqueue(&mut scheduler, key, 10, 1);
    }
    assert_eq!(scheduler.plan(ms(20)).rows.len(), 8);
}
