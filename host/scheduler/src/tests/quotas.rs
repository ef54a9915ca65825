//! Cell quotas of groups.

use super::*;

fn of(key: u64, tenant: u32, prompt: u32, cells: Option<u32>) -> Request {
    Request {
        tenant: Tenant(tenant),
        quota: cells.map(|cells| CellQuota {
            group: QuotaGroup(7),
            cells,
        }),
        ..request(key, prompt, 10)
    }
}

#[test]
fn request_at_quota_waits_while_others_pass() {
    let mut scheduler = Scheduler::new(CONFIG);
    let requests = [
        (1, 1, Some(60)),
        (2, 1, Some(60)),
        (3, 2, Some(60)),
        (4, 2, None),
    ];
    for (key, tenant, share) in requests {
        let request = of(key, tenant, 25, share);
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    // 25 tokens and 9 to generate, twice, exceed 60.
    assert_eq!(step.admitted, [RequestId(1), RequestId(4)]);
    report_computed(&mut scheduler, &step, &[]);
    scheduler.cancel(RequestId(1));
    // The other tenant has had more service.
    assert_eq!(scheduler.plan(Time::ZERO).admitted, [RequestId(2)]);
}

#[test]
fn request_above_quota_is_refused() {
    let mut scheduler = Scheduler::new(CONFIG);
    let refused = scheduler.enqueue(Time::ZERO, of(1, 1, 52, Some(60)));
    let (needed, limit) = (61, 60);
    assert_eq!(refused, Err(EnqueueError::TooLarge { needed, limit }));
    assert_eq!(
        scheduler.enqueue(Time::ZERO, of(2, 1, 51, Some(60))),
        Ok(())
    );
}

#[test]
fn outgrown_quota_preempts_its_own_group() {
    let mut scheduler = Scheduler::new(CONFIG);
    // After requests that generate one token, little room is reserved.
    for key in 10..70 {
        scheduler.enqueue(Time::ZERO, of(key, 3, 1, None)).unwrap();
        let step = scheduler.plan(Time::ZERO);
        report_computed(&mut scheduler, &step, &[RequestId(key)]);
    }
    for key in [1, 2] {
        let request = Request {
            max_tokens: 60,
            ..of(key, 1, 10, Some(90))
        };
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    let (mut together, mut preempted) = (0, 0);
    for _ in 0..45 {
        let step = scheduler.plan(Time::ZERO);
        let own = scheduler.requests().filter(|s| s.tenant == Tenant(1));
        let held: u32 = own.map(|s| s.computed).sum();
        assert!(held <= 90, "{held}");
        together = together.max(scheduler.running_count());
        preempted = scheduler.counters().preempted;
        report_computed(&mut scheduler, &step, &[]);
    }
    assert_eq!((together, preempted), (2, 1));
}
