//! The scheduler step by step, without a backend.

use crate::cost_model::CostModel;
use crate::kv_cells::PositionOrder;
use crate::*;

mod batch_window;
#[path = "../tests/support/config.rs"]
mod config;
mod device_top_k;
mod drafts;
mod eviction;
mod external_sampler;
mod failures;
mod overlap;
mod prefix_cache;
mod quotas;
mod tenant_schedule;

pub(crate) use config::CONFIG;

pub(crate) fn request(key: u64, prompt: u32, max_tokens: u32) -> Request {
    Request {
        id: RequestId(key),
        tenant: Tenant(0),
        scope: PrefixScope(0),
        priority: Priority(0),
        latency: Latency::default(),
        tokens: (0..prompt).map(|i| 1000 * key as Token + i).collect(),
        max_tokens,
        arrived_at: Time::ZERO,
        queue_until: None,
        deadline: None,
        quota: None,
        retention: WeakRetention::default(),
        continued: None,
        logits: LogitsKind::All,
        progress: RequestProgress::default(),
    }
}

fn enqueue(scheduler: &mut Scheduler, key: u64, prompt: u32, max_tokens: u32) {
    scheduler
        .enqueue(Time::ZERO, request(key, prompt, max_tokens))
        .unwrap();
}

/// Reports that the step was computed and gained these tokens.
fn report_gained(scheduler: &mut Scheduler, tokens: &[(u64, Token)], ended: &[RequestId]) {
    let gained: Vec<_> = tokens
        .iter()
        .map(|&(key, token)| (RequestId(key), token))
        .collect();
    let result = StepResult::Decoded {
        gained: &gained,
        finished: ended,
        awaits_sampler: &[],
        needs_all_logits: &[],
        took: Duration::from_millis(1),
    };
    assert_eq!(scheduler.step_done(result), None);
}

/// Reports that the step was computed and each row with output gained a token.
fn report_computed(scheduler: &mut Scheduler, step: &Step, ended: &[RequestId]) {
    let rows = step.rows.iter().filter(|row| row.output);
    let gained: Vec<_> = rows.map(|row| (row.request.0, 7)).collect();
    report_gained(scheduler, &gained, ended);
}

#[test]
fn long_prompt_is_computed_in_chunks() {
    let mut scheduler = Scheduler::new(CONFIG);
    enqueue(&mut scheduler, 1, 40, 3);
    let spans: Vec<_> = (0..4)
        .map(|_| {
            let step = scheduler.plan(Time::ZERO);
            report_computed(&mut scheduler, &step, &[]);
            let row = step.rows[0];
            (row.from, row.to, row.output)
        })
        .collect();
    let first = [
        (0, 16, false),
        (16, 32, false),
        (32, 40, true),
        (40, 41, true),
    ];
    assert_eq!(spans, first);
}

#[test]
fn id_is_cleared_before_reuse() {
    let mut scheduler = Scheduler::new(CONFIG);
    enqueue(&mut scheduler, 1, 1, 1);
    let step = scheduler.plan(Time::ZERO);
    let first = step.rows[0].seq;
    report_computed(&mut scheduler, &step, &[RequestId(1)]);
    assert!(!scheduler.is_idle(), "an id to clear");
    enqueue(&mut scheduler, 2, 1, 1);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.memory_ops, [MemoryOp::Clear(first)]);
    assert_eq!(step.rows[0].seq, first);
}

#[test]
fn unservable_requests_are_refused_at_once() {
    let mut scheduler = Scheduler::new(CONFIG);
    let now = Duration::from_secs(9);
    let mut enqueue = |request| scheduler.enqueue(now, request);
    assert_eq!(
        enqueue(request(0, 100, 2)),
        Err(EnqueueError::TooLarge {
            needed: 101,
            limit: 100
        })
    );
    let late = Request {
        deadline: Some(Duration::from_secs(8)),
        ..request(0, 1, 1)
    };
    assert_eq!(enqueue(late), Err(EnqueueError::DeadlinePassed));
    for key in 0..6 {
        enqueue(request(key, 100, 1)).unwrap();
    }
    let retry_after = Duration::from_secs(1);
    assert_eq!(
        enqueue(request(6, 1, 1)),
        Err(EnqueueError::TenantQueueFull { retry_after })
    );
    let of_another = |key| Request {
        tenant: Tenant(1),
        ..request(key, 1, 1)
    };
    enqueue(of_another(6)).unwrap();
    enqueue(of_another(7)).unwrap();
    assert_eq!(
        enqueue(of_another(8)),
        Err(EnqueueError::QueueFull { retry_after })
    );
}

#[test]
fn queue_times_and_deadlines_expire() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 1,
        ..CONFIG
    });
    let seconds = Duration::from_secs;
    let running = Request {
        deadline: Some(seconds(30)),
        ..request(1, 1, 50)
    };
    let impatient = Request {
        queue_until: Some(seconds(10)),
        ..request(2, 1, 1)
    };
    let late = Request {
        queue_until: Some(seconds(25)),
        deadline: Some(seconds(20)),
        ..request(3, 1, 1)
    };
    scheduler.enqueue(Time::ZERO, running).unwrap();
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    for request in [impatient, late, request(4, 1, 1)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    let mut at = |second| {
        let step = scheduler.plan(seconds(second));
        let keys: Vec<_> = step.rows.iter().map(|row| row.request.0).collect();
        let timer = scheduler.next_timer();
        report_computed(&mut scheduler, &step, &[]);
        (step.expired, keys, timer)
    };
    assert_eq!(at(9), (vec![], vec![1], Some(seconds(10))));
    let (expired, ..) = at(10);
    assert!(matches!(
        expired[..],
        [(RequestId(2), Expired::Queue { .. })]
    ));
    let (expired, _, timer) = at(21);
    assert_eq!(
        (expired, timer),
        (vec![(RequestId(3), Expired::Deadline)], Some(seconds(30)))
    );
    // The next request starts in the same step.
    assert_eq!(
        at(31),
        (vec![(RequestId(1), Expired::Deadline)], vec![4], None)
    );
}

/// A request whose queue time ended during a long step still starts if there is room.
#[test]
fn admission_precedes_queue_timeout() {
    let mut scheduler = Scheduler::new(CONFIG);
    let request = Request {
        queue_until: Some(Duration::from_secs(1)),
        ..request(1, 1, 1)
    };
    scheduler.enqueue(Time::ZERO, request).unwrap();
    let step = scheduler.plan(Duration::from_secs(2));
    assert_eq!((step.admitted, step.expired), (vec![RequestId(1)], vec![]));
}

/// A request of a tenant.
fn of_tenant(tenant: u32, key: u64, prompt: u32, max_tokens: u32) -> Request {
    Request {
        tenant: Tenant(tenant),
        ..request(key, prompt, max_tokens)
    }
}

#[test]
fn tenant_without_service_preempts_tenant_with_most() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 3,
        ..CONFIG
    });
    for key in 0..3 {
        enqueue(&mut scheduler, key, 4, 20);
    }
    let step = |scheduler: &mut Scheduler, ended: &[u64]| {
        let step = scheduler.plan(Time::ZERO);
        let ended: Vec<_> = ended.iter().map(|&key| RequestId(key)).collect();
        report_computed(scheduler, &step, &ended);
        let mut rows: Vec<_> = step.rows.iter().map(|row| row.request.0).collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(step(&mut scheduler, &[]), [0, 1, 2]);
    // It starts with as much service as the only active tenant.
    for request in [of_tenant(1, 3, 1, 20), of_tenant(1, 4, 1, 20)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    // The latest request of the tenant that runs several loses its id. The second waiting one gets none, since its
    // tenant runs a request.
    assert_eq!(step(&mut scheduler, &[]), [0, 1, 3]);
    assert_eq!(step(&mut scheduler, &[3]), [0, 1, 3]);
    assert_eq!(scheduler.counters().preempted, 1);
}

/// A tenant with the most service whose requests all have a higher priority keeps them, and hides no other tenant.
#[test]
fn preemption_of_equal_priority_looks_past_higher_one() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 4,
        ..CONFIG
    });
    for (key, tenant, priority) in [(0, 0, 1), (1, 0, 1), (2, 1, 0), (3, 1, 0)] {
        // The first tenant gets more service.
        let request = Request {
            priority: Priority(priority),
            ..of_tenant(tenant, key, 8 - 4 * tenant, 10)
        };
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.admitted.len(), 4);
    report_computed(&mut scheduler, &step, &[]);
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    let waiting = of_tenant(2, 4, 1, 20);
    scheduler.enqueue(Time::ZERO, waiting).unwrap();
    assert_eq!(scheduler.plan(Time::ZERO).admitted, [RequestId(4)]);
    assert!(scheduler.is_waiting(RequestId(3)));
}

#[test]
fn only_request_of_a_tenant_is_not_preempted() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 1,
        ..CONFIG
    });
    enqueue(&mut scheduler, 0, 4, 20);
    for key in 1..3 {
        let step = scheduler.plan(Time::ZERO);
        assert_eq!(step.rows[0].request, RequestId(0));
        report_computed(&mut scheduler, &step, &[]);
        let other = of_tenant(1, key, 1, 20);
        scheduler.enqueue(Time::ZERO, other).unwrap();
    }
    assert_eq!(scheduler.counters().preempted, 0);
}

#[test]
fn deferred_row_is_computed_again() {
    let mut scheduler = Scheduler::new(CONFIG);
    enqueue(&mut scheduler, 1, 4, 3);
    let row = |scheduler: &mut Scheduler| {
        let step = scheduler.plan(Time::ZERO);
        let row = step.rows[0];
        (step, (row.from, row.to, row.output))
    };
    for (span, deferred) in [
        ((0, 4, true), true),
        ((3, 4, true), true),
        ((3, 4, true), false),
        ((4, 5, true), false),
    ] {
        let (step, found) = row(&mut scheduler);
        assert_eq!(found, span);
        if !deferred {
            report_computed(&mut scheduler, &step, &[]);
            continue;
        }
        let result = StepResult::Decoded {
            gained: &[],
            finished: &[],
            awaits_sampler: &[],
            needs_all_logits: &[],
            took: Duration::from_millis(1),
        };
        assert_eq!(scheduler.step_done(result), None);
        scheduler.defer_sampling(&[RequestId(1)]);
    }
    let progress = scheduler.progress(RequestId(1)).unwrap();
    assert_eq!((progress.recomputed, progress.cached), (2, 0));
}
