//! Eviction of prefixes that cost more in the cells than they may save.

use super::*;

const ROOMY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    offload_prefixes: true,
    ..CONFIG
};
/// A scheduler with a fitted cost model and one decoding request.
fn with_costs(limits: SchedulerConfig) -> Scheduler {
    let mut scheduler = Scheduler::new(limits);
    enqueue(&mut scheduler, 1, 4, 4_000);
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    scheduler
}

/// A cost model: 1 ms for a prompt token, and 10 µs for each cell and token.
fn costs() -> CostModel {
    let mut cost = CostModel::default();
    for number in 0..400_u32 {
        let shape = StepShape {
            decode_rows: 1 + number % 4,
            prefill: 16 * (number % 3),
            n_kv: 256 * (1 + number % 5),
            ..StepShape::default()
        };
        let tokens = f64::from(shape.decode_rows + shape.prefill);
        let attention = 1e-5 * tokens * f64::from(shape.n_kv);
        let seconds = 0.010 + 0.001 * f64::from(shape.prefill) + attention;
        cost.observe(shape, seconds);
    }
    cost
}

/// Charges the cells for steps with eight decode rows: 80 µs for each cell and step.
fn charge(scheduler: &mut Scheduler, steps: u32, prefill: u32) {
    let shape = StepShape {
        decode_rows: 8,
        prefill,
        ..StepShape::default()
    };
    for _ in 0..steps {
        scheduler.kv.evict_costly(&scheduler.costs, shape);
    }
    scheduler.take_memory_ops();
}

/// A request with a prefix that all share, and tokens of its own.
fn with_prefix(key: u64, shared: u32, own: u32) -> Request {
    let mut request = request(key, own, 5);
    request.tokens.splice(0..0, 500_000..500_000 + shared);
    request
}

/// Runs a request that ends with its first token.
fn run_briefly(scheduler: &mut Scheduler, request: Request) {
    let key = request.id;
    scheduler.enqueue(Time::ZERO, request).unwrap();
    loop {
        // The times of these steps must not change the model.
        scheduler.costs = costs();
        let step = scheduler.plan(Time::ZERO);
        let last = step.rows.iter().any(|row| row.request == key && row.output);
        let ended = [key];
        report_computed(scheduler, &step, &ended[..usize::from(last)]);
        if last {
            scheduler.costs = costs();
            return;
        }
    }
}

/// The tokens of each entry, and whether it is resident.
fn entries(scheduler: &Scheduler) -> Vec<(u32, bool)> {
    let entries = scheduler.entries();
    entries
        .map(|entry| (entry.tokens, entry.seq.is_some()))
        .collect()
}

#[test]
fn shared_prefix_is_offloaded_once() {
    let mut scheduler = with_costs(ROOMY);
    for key in 2..6 {
        run_briefly(&mut scheduler, with_prefix(key, 300, 20));
    }
    assert_eq!(entries(&scheduler), vec![(320, true); 4]);
    charge(&mut scheduler, 200, 0);
    assert_eq!(entries(&scheduler), [(320, false)]);
    let counters = scheduler.counters();
    assert_eq!((counters.offloaded, counters.dropped), (1, 3));
}

#[test]
fn prefix_is_evicted_at_its_eviction_cost() {
    let without = SchedulerConfig {
        offload_prefixes: false,
        ..ROOMY
    };
    // A move costs 30 µs a token each way; beside prompts twice as much must be charged. Without offloading,
    // recomputing costs 1 ms a token and 10 µs for each of 512 cells.
    for (limits, prefill, stays, goes) in [
        (ROOMY, 0, 0, 1),
        (ROOMY, 2, 1, 1),
        (without, 0, 70, 10),
        (without, 2, 115, 20),
    ] {
        let mut scheduler = with_costs(limits);
        run_briefly(&mut scheduler, with_prefix(2, 300, 20));
        charge(&mut scheduler, stays, prefill);
        assert_eq!(entries(&scheduler), [(320, true)], "{prefill}");
        charge(&mut scheduler, goes, prefill);
        let left = entries(&scheduler);
        match limits.offload_prefixes {
            true => assert_eq!(left, [(320, false)], "{prefill}"),
            false => assert_eq!((left.len(), scheduler.counters().dropped), (0, 1)),
        }
    }
}

#[test]
fn use_resets_charged_cost() {
    let config = SchedulerConfig {
        offload_prefixes: false,
        ..ROOMY
    };
    let mut scheduler = with_costs(config);
    run_briefly(&mut scheduler, with_prefix(2, 300, 20));
    for key in 3..6 {
        charge(&mut scheduler, 50, 0);
        assert!(entries(&scheduler).contains(&(320, true)), "{key}");
        run_briefly(&mut scheduler, with_prefix(key, 300, 1));
    }
}

/// Plans the swap-in of an offloaded prefix and completes it at once.
fn swap_in(scheduler: &mut Scheduler, key: RequestId) -> (u32, bool) {
    let planned = scheduler.plan(Time::ZERO);
    let fetch = |memory: &MemoryOp| match *memory {
        MemoryOp::SwapIn { entry, request: by } if by == key => Some(entry),
        _ => None,
    };
    let entry = planned
        .memory_ops
        .iter()
        .find_map(fetch)
        .expect("a swap-in");
    report_computed(scheduler, &planned, &[]);
    assert!(scheduler.is_offloaded_prefix(entry));
    assert!(scheduler.begin_swap_in(key, entry).is_some());
    let kept = scheduler.finish_swap_in(key, entry, true);
    let running = scheduler.running.iter().find(|running| running.id() == key);
    (running.unwrap().computed, kept)
}

#[test]
fn canceled_request_keeps_offloaded_prefix() {
    let mut scheduler = with_costs(ROOMY);
    run_briefly(&mut scheduler, with_prefix(2, 300, 20));
    charge(&mut scheduler, 10, 0);
    assert_eq!(entries(&scheduler), [(320, false)]);
    let mut more = with_prefix(2, 300, 20);
    more.id = RequestId(3);
    more.tokens.extend([7, 8, 9]);
    scheduler.enqueue(Time::ZERO, more).unwrap();
    assert_eq!(swap_in(&mut scheduler, RequestId(3)), (320, false));
    assert_eq!(entries(&scheduler), []);
    scheduler.cancel(RequestId(3));
    assert_eq!(entries(&scheduler), [(320, true)]);
}

#[test]
fn partial_swap_in_keeps_offloaded_copy() {
    let mut scheduler = with_costs(ROOMY);
    run_briefly(&mut scheduler, with_prefix(2, 300, 20));
    charge(&mut scheduler, 10, 0);
    scheduler
        .enqueue(Time::ZERO, with_prefix(3, 200, 20))
        .unwrap();
    assert_eq!(swap_in(&mut scheduler, RequestId(3)), (200, true));
    assert_eq!(entries(&scheduler), [(320, false)]);
    // If moves are slow, computing the shared part is faster.
    let entry = scheduler.entries().next().unwrap().id;
    assert!(scheduler.kv.swap_in_pays(&scheduler.costs, entry, 200));
    for _ in 0..50 {
        scheduler.observe_swap(1, 0.1);
    }
    assert!(!scheduler.kv.swap_in_pays(&scheduler.costs, entry, 200));
    // A lost prefix counts as dropped, not as a lost sequence.
    scheduler.entry_lost(entry);
    assert_eq!(
        (scheduler.counters().lost, scheduler.counters().dropped),
        (0, 1)
    );
}
