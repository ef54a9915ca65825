//! The scheduler step by step, without a backend.

use crate::cost_model::CostModel;
use crate::kv_cells::Layout;
use crate::*;

mod batch_window;
#[path = "../tests/support/config.rs"]
mod config;
mod device_top_k;
mod drafts;
mod eviction;
mod failures;
mod overlap;
mod prefix_cache;
mod quotas;

pub(crate) use config::CONFIG;

pub(crate) fn request(key: u64, prompt: u32, max_tokens: u32) -> Request {
    Request {
        id: RequestId(key),
        tenant: Tenant(0),
        scope: PrefixScope(0),
        priority: Priority(0),
        tokens: (0..prompt).map(|i| 1000 * key as Token + i).collect(),
        max_tokens,
        arrived_at: Time::ZERO,
        queue_until: None,
        deadline: None,
        quota: None,
        retention: WeakRetention::default(),
        continues: None,
        logits: LogitsKind::All,
        progress: RequestProgress::default(),
    }
}

fn enqueue(scheduler: &mut Scheduler, key: u64, prompt: u32, max_tokens: u32) {
    scheduler
        .enqueue(Time::ZERO, request(key, prompt, max_tokens))
        .unwrap();
}

/// Reports that the step was computed and each row with output gained a token.
fn report_computed(scheduler: &mut Scheduler, step: &Step, ended: &[RequestId]) {
    let rows = step.rows.iter().filter(|row| row.output);
    let sampled: Vec<_> = rows.map(|row| (row.request, 7)).collect();
    let result = StepResult::Decoded {
        sampled: &sampled,
        finished: ended,
        sampled_externally: &[],
        needs_all_logits: &[],
        took: Duration::from_millis(1),
    };
    assert_eq!(scheduler.applied(result), None);
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
