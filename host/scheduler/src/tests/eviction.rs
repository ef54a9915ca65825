//! Prefixes that cost more in the cells than they are worth.

use super::*;

const ROOMY: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 8192,
    max_step_tokens: 512,
    offload_prefixes: true,
    ..CONFIG
};
/// A scheduler that knows what steps cost, in which one generates.
fn taught(limits: SchedulerConfig) -> Scheduler {
    let mut scheduler = Scheduler::new(limits);
    enqueue(&mut scheduler, 1, 4, 4_000);
    let step = scheduler.plan(Time::ZERO);
    computed(&mut scheduler, &step, &[]);
    scheduler
}

/// What steps cost: 1 ms for a prompt token, and 10 µs for each cell and token.
fn costs() -> CostModel {
    let mut cost = CostModel::default();
    for number in 0..400_u32 {
        let shape = StepShape {
            rows: 1 + number % 4,
            prefill: 16 * (number % 3),
            n_kv: 256 * (1 + number % 5),
            ..StepShape::default()
        };
        let tokens = f64::from(shape.rows + shape.prefill);
        let attention = 1e-5 * tokens * f64::from(shape.n_kv);
        let seconds = 0.010 + 0.001 * f64::from(shape.prefill) + attention;
        cost.observe(shape, seconds);
    }
    cost
}

/// So many steps of eight that generate are paid for: 80 µs by each cell.
fn pays(scheduler: &mut Scheduler, steps: u32, prefill: u32) {
    let shape = StepShape {
        rows: 8,
        prefill,
        ..StepShape::default()
    };
    for _ in 0..steps {
        scheduler.kv.evict_costly(&scheduler.costs, shape);
    }
    scheduler.take_memory_ops();
}

/// A request with a beginning that all have, and an end of its own.
fn beginning(key: u64, shared: u32, own: u32) -> Request {
    let mut request = request(key, own, 5);
    request.tokens.splice(0..0, 500_000..500_000 + shared);
    request
}

/// It comes, is read, and ends with its first token.
fn passes(scheduler: &mut Scheduler, request: Request) {
    let key = request.id;
    scheduler.enqueue(Time::ZERO, request).unwrap();
    loop {
        // What is said of these steps is not what is to be known.
        scheduler.costs = costs();
        let step = scheduler.plan(Time::ZERO);
        let last = step.rows.iter().any(|row| row.request == key && row.output);
        let ended = [key];
        computed(scheduler, &step, &ended[..usize::from(last)]);
        if last {
            scheduler.costs = costs();
            return;
        }
    }
}

/// Tokens of what was kept, and whether it is in the cells.
fn kept(scheduler: &Scheduler) -> Vec<(u32, bool)> {
    let entries = scheduler.entries();
    entries
        .map(|entry| (entry.tokens, entry.seq.is_some()))
        .collect()
}

#[test]
fn of_those_that_share_their_cells_one_is_moved_and_the_others_are_dropped() {
    let mut scheduler = taught(ROOMY);
    for key in 2..6 {
        passes(&mut scheduler, beginning(key, 300, 20));
    }
    assert_eq!(kept(&scheduler), vec![(320, true); 4]);
    pays(&mut scheduler, 200, 0);
    assert_eq!(kept(&scheduler), [(320, false)]);
    let tally = scheduler.counters();
    assert_eq!((tally.offloaded, tally.evicted), (1, 3));
}

#[test]
fn a_prefix_goes_when_it_has_cost_what_it_costs_to_be_rid_of_it() {
    let without = SchedulerConfig {
        offload_prefixes: false,
        ..ROOMY
    };
    // 30 µs a token out, and as much back; beside prompts, twice as much first. Without memory for it, 1 ms and
    // 10 µs for each of 512 cells.
    for (limits, prefill, stays, goes) in [
        (ROOMY, 0, 0, 1),
        (ROOMY, 2, 1, 1),
        (without, 0, 70, 10),
        (without, 2, 115, 20),
    ] {
        let mut scheduler = taught(limits);
        passes(&mut scheduler, beginning(2, 300, 20));
        pays(&mut scheduler, stays, prefill);
        assert_eq!(kept(&scheduler), [(320, true)], "{prefill}");
        pays(&mut scheduler, goes, prefill);
        let left = kept(&scheduler);
        match limits.offload_prefixes {
            true => assert_eq!(left, [(320, false)], "{prefill}"),
            false => assert_eq!((left.len(), scheduler.counters().evicted), (0, 1)),
        }
    }
}

#[test]
fn what_is_of_use_begins_to_pay_anew() {
    let config = SchedulerConfig {
        offload_prefixes: false,
        ..ROOMY
    };
    let mut scheduler = taught(config);
    passes(&mut scheduler, beginning(2, 300, 20));
    for key in 3..6 {
        pays(&mut scheduler, 50, 0);
        assert!(kept(&scheduler).contains(&(320, true)), "{key}");
        passes(&mut scheduler, beginning(key, 300, 1));
    }
}

/// What was put aside is wanted: it is at hand at once.
fn fetched(scheduler: &mut Scheduler, key: RequestId) -> (u32, bool) {
    let planned = scheduler.plan(Time::ZERO);
    let fetch = |memory: &MemoryOp| match *memory {
        MemoryOp::SwapIn { entry, request: by } if by == key => Some(entry),
        _ => None,
    };
    let entry = planned
        .memory_ops
        .iter()
        .find_map(fetch)
        .expect("it is fetched");
    computed(scheduler, &planned, &[]);
    assert!(scheduler.is_offloaded_prefix(entry));
    assert!(scheduler.begin_swap_in(key, entry).is_some());
    let kept = scheduler.finish_swap_in(key, entry, true);
    let running = scheduler.running.iter().find(|running| running.id() == key);
    (running.unwrap().computed, kept)
}

#[test]
fn who_leaves_lets_what_was_brought_back_for_it_stay() {
    let mut scheduler = taught(ROOMY);
    passes(&mut scheduler, beginning(2, 300, 20));
    pays(&mut scheduler, 10, 0);
    assert_eq!(kept(&scheduler), [(320, false)]);
    let mut more = beginning(2, 300, 20);
    more.id = RequestId(3);
    more.tokens.extend([7, 8, 9]);
    scheduler.enqueue(Time::ZERO, more).unwrap();
    assert_eq!(fetched(&mut scheduler, RequestId(3)), (320, false));
    assert_eq!(kept(&scheduler), []);
    scheduler.cancel(RequestId(3));
    assert_eq!(kept(&scheduler), [(320, true)]);
}

#[test]
fn who_begins_like_a_part_of_what_was_put_aside_leaves_it_there() {
    let mut scheduler = taught(ROOMY);
    passes(&mut scheduler, beginning(2, 300, 20));
    pays(&mut scheduler, 10, 0);
    scheduler
        .enqueue(Time::ZERO, beginning(3, 200, 20))
        .unwrap();
    assert_eq!(fetched(&mut scheduler, RequestId(3)), (200, true));
    assert_eq!(kept(&scheduler), [(320, false)]);
    // Where it takes long to bring back all of it, a part is sooner computed.
    let entry = scheduler.entries().next().unwrap().id;
    assert!(scheduler.kv.swap_in_pays(&scheduler.costs, entry, 200));
    for _ in 0..50 {
        scheduler.observe_swap(1, 0.1);
    }
    assert!(!scheduler.kv.swap_in_pays(&scheduler.costs, entry, 200));
    // What is lost is computed again, and is no sequence that was lost.
    scheduler.entry_lost(entry);
    assert_eq!(
        (scheduler.counters().lost, scheduler.counters().evicted),
        (0, 1)
    );
}
