use super::prefill::Prefill;
use super::*;
use crate::Token;
use crate::simulator::simulation::{Arrival, End, Record, Simulation, Taken};
use crate::simulator::{Fault, Machine};
use std::collections::BTreeMap;

mod ahead;
mod failures;
mod gaps;
mod gathering;
mod guests;
mod ids;
mod memory;
mod rent;
mod shares;
mod speculation;
mod workloads;

const LIMITS: Limits = Limits {
    seq_ids: 4,
    top_ids: 0,
    cells: 100,
    step_tokens: 16,
    queue: 8,
    tenant_queue: 6,
    prefill: Prefill::Budgeted { gap: 2.0 },
    reuse: Reuse::Any,
    spill: true,
    prefixes: false,
    drafts: 8,
    overlap: Overlap::Off,
};

fn request(key: u64, prompt: u32, max_tokens: u32) -> Request {
    Request {
        key: Key(key),
        tenant: Tenant(0),
        scope: Scope(0),
        priority: Priority(0),
        tokens: (0..prompt).map(|i| 1000 * key as Token + i).collect(),
        max_tokens,
        arrived: Time::ZERO,
        queue_until: None,
        deadline: None,
        share: None,
        claim: Watch::default(),
        goes_on: None,
        rows: Rows::Whole,
        progress: Progress::default(),
    }
}

/// One that comes after so many milliseconds, and generates so many tokens.
fn arrival(at: u64, prompt: u32, tokens: u32) -> Arrival {
    Arrival {
        at: Duration::from_millis(at),
        prompt,
        max_tokens: tokens,
        ends_after: tokens,
        ..Arrival::default()
    }
}

fn enqueue(scheduler: &mut Scheduler, key: u64, prompt: u32, max_tokens: u32) {
    scheduler
        .enqueue(Time::ZERO, request(key, prompt, max_tokens))
        .unwrap();
}

/// The step was computed, and each row with output got a token.
fn computed(scheduler: &mut Scheduler, step: &Step, ended: &[Key]) {
    let rows = step.rows.iter().filter(|row| row.output);
    let sampled: Vec<_> = rows.map(|row| (row.key, 7)).collect();
    let result = StepResult::Decoded {
        sampled: &sampled,
        ended,
        asked: &[],
        unsettled: &[],
        took: Duration::from_millis(1),
    };
    assert_eq!(scheduler.applied(result), None);
}

#[test]
fn a_prompt_longer_than_a_step_is_read_in_chunks_and_sampled_at_its_end() {
    let mut scheduler = Scheduler::new(LIMITS);
    enqueue(&mut scheduler, 1, 40, 3);
    let spans: Vec<_> = (0..4)
        .map(|_| {
            let step = scheduler.plan(Time::ZERO);
            computed(&mut scheduler, &step, &[]);
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
fn an_id_is_cleared_before_it_is_lent_again() {
    let mut scheduler = Scheduler::new(LIMITS);
    enqueue(&mut scheduler, 1, 1, 1);
    let step = scheduler.plan(Time::ZERO);
    let first = step.rows[0].seq;
    computed(&mut scheduler, &step, &[Key(1)]);
    assert!(!scheduler.is_idle(), "there is something to clear");
    enqueue(&mut scheduler, 2, 1, 1);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.memory, [Memory::Clear(first)]);
    assert_eq!(step.rows[0].seq, first);
}

#[test]
fn what_can_never_fit_comes_too_late_or_finds_no_place_is_refused_at_once() {
    let mut scheduler = Scheduler::new(LIMITS);
    let now = Duration::from_secs(9);
    let mut enqueue = |request| scheduler.enqueue(now, request);
    assert_eq!(
        enqueue(request(0, 100, 2)),
        Err(Refused::TooLarge {
            needed: 101,
            limit: 100
        })
    );
    let late = Request {
        deadline: Some(Duration::from_secs(8)),
        ..request(0, 1, 1)
    };
    assert_eq!(enqueue(late), Err(Refused::Late));
    for key in 0..6 {
        enqueue(request(key, 100, 1)).unwrap();
    }
    let retry_after = Duration::from_secs(1);
    assert_eq!(
        enqueue(request(6, 1, 1)),
        Err(Refused::TenantQueueFull { retry_after })
    );
    let of_another = |key| Request {
        tenant: Tenant(1),
        ..request(key, 1, 1)
    };
    enqueue(of_another(6)).unwrap();
    enqueue(of_another(7)).unwrap();
    assert_eq!(
        enqueue(of_another(8)),
        Err(Refused::QueueFull { retry_after })
    );
}

#[test]
fn nobody_waits_beyond_its_time_nor_runs_beyond_its_deadline() {
    let mut scheduler = Scheduler::new(Limits {
        seq_ids: 1,
        ..LIMITS
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
    computed(&mut scheduler, &step, &[]);
    for request in [impatient, late, request(4, 1, 1)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    let mut at = |second| {
        let step = scheduler.plan(seconds(second));
        let keys: Vec<_> = step.rows.iter().map(|row| row.key.0).collect();
        let timer = scheduler.next_timer();
        computed(&mut scheduler, &step, &[]);
        (step.expired, keys, timer)
    };
    assert_eq!(at(9), (vec![], vec![1], Some(seconds(10))));
    let (expired, ..) = at(10);
    assert!(matches!(expired[..], [(Key(2), Expired::Queue { .. })]));
    let (expired, _, timer) = at(21);
    assert_eq!(
        (expired, timer),
        (vec![(Key(3), Expired::Deadline)], Some(seconds(30)))
    );
    // Its place goes to the next in the same step.
    assert_eq!(at(31), (vec![(Key(1), Expired::Deadline)], vec![4], None));
}

fn simulation(limits: Limits, faults: &[(u64, Fault)]) -> Simulation {
    simulation_on(machine(&limits), limits, faults)
}

fn simulation_on(machine: Machine, limits: Limits, faults: &[(u64, Fault)]) -> Simulation {
    Simulation::new(limits, machine, faults.iter().copied().collect())
}

fn machine(limits: &Limits) -> Machine {
    Machine {
        // Now less than what every step takes, now more.
        sample: if limits.overlap == Overlap::Off {
            0.0
        } else {
            0.010
        },
        ..Machine::default()
    }
}

fn waited(record: &Record, arrival: &Arrival) -> Duration {
    record.admitted.expect("it was served") - arrival.at
}

/// One tenant floods the queue with 50 requests; two others send one after another. Bound: no more
/// requests of others are taken up before theirs than there are other tenants, so they wait for
/// about one request's end and never for the flood's.
#[test]
fn a_greedy_tenant_delays_the_others_by_no_more_than_their_number() {
    let limits = Limits {
        cells: 4096,
        step_tokens: 512,
        queue: 64,
        tenant_queue: 64,
        ..LIMITS
    };
    let of = |tenant, at| Arrival {
        at: Duration::from_millis(at),
        tenant: Tenant(tenant),
        prompt: 32,
        max_tokens: 40,
        ends_after: 40,
        ..Arrival::default()
    };
    let mut arrivals = vec![of(0, 0); 50];
    arrivals.extend((0..12).flat_map(|i| [of(1, 300 + 4000 * i), of(2, 500 + 4000 * i)]));
    let records = simulation(limits, &[]).run(arrivals.clone());
    let greedy = &records[..50];
    let service = greedy
        .iter()
        .map(|r| r.ended - r.admitted.unwrap())
        .max()
        .unwrap();
    let others = records.iter().zip(&arrivals).skip(50);
    for (record, arrival) in others {
        assert_eq!(record.end, End::Finished);
        assert!(record.passed_by <= 2, "{record:?}");
        assert!(waited(record, arrival) <= service, "{record:?} {service:?}");
    }
    // And the flood is served too, in what the others leave.
    assert!(greedy.iter().all(|record| record.end == End::Finished));
    let last = greedy.iter().map(|record| record.ended).max().unwrap();
    assert!(last > 8 * service);
}

#[test]
fn a_higher_priority_goes_first_and_a_deadline_before_none() {
    let limits = Limits {
        seq_ids: 1,
        ..LIMITS
    };
    let of = |at, priority, time: Option<u64>| Arrival {
        at: Duration::from_millis(at),
        priority: Priority(priority),
        time: time.map(Duration::from_secs),
        prompt: 8,
        max_tokens: 8,
        ends_after: 8,
        ..Arrival::default()
    };
    let arrivals = vec![
        of(0, 0, None),
        of(10, 0, None),
        of(20, 0, Some(30)),
        of(30, 9, None),
    ];
    let records = simulation(limits, &[]).run(arrivals);
    let mut order: Vec<_> = (0..4).collect();
    order.sort_by_key(|&i: &usize| records[i].admitted);
    assert_eq!(order, [0, 3, 2, 1]);
}

/// One request, and then a flood of the same tenant while it runs: the flood is charged for all of it.
#[test]
fn a_flood_behind_a_single_request_gets_no_more_than_its_share() {
    let limits = Limits {
        seq_ids: 2,
        cells: 4096,
        queue: 200,
        tenant_queue: 200,
        ..LIMITS
    };
    let of = |tenant, at| Arrival {
        at: Duration::from_millis(at),
        tenant: Tenant(tenant),
        prompt: 20,
        max_tokens: 10,
        ends_after: 10,
        ..Arrival::default()
    };
    let mut arrivals = vec![of(0, 0); 60];
    arrivals.push(of(1, 5_000));
    arrivals.extend(vec![of(1, 5_100); 60]);
    let records = simulation(limits, &[]).run(arrivals);
    // From the flood on both have as much to do: they end side by side, not one after the other.
    let end = |of: &[Record]| of.iter().map(|record| record.ended).max().unwrap();
    let halfway = records[90].ended;
    let greedy = records[..60]
        .iter()
        .filter(|r| r.ended <= halfway && r.ended > Duration::from_secs(5));
    let greedy = greedy.count();
    assert!((20..=40).contains(&greedy), "{greedy} beside 30");
    assert!(end(&records) >= halfway);
}

/// A large request whose turn it is waits for room, and nobody slips past it.
#[test]
fn whose_turn_it_is_is_not_overtaken() {
    let of = |tenant, at, prompt| Arrival {
        at: Duration::from_millis(at),
        tenant: Tenant(tenant),
        prompt,
        max_tokens: 20,
        ends_after: 20,
        ..Arrival::default()
    };
    // Tenant 0 runs something long, so its counter rises; then its large request comes.
    let long = Arrival {
        max_tokens: 60,
        ends_after: 60,
        ..of(0, 0, 5)
    };
    let mut arrivals = vec![long, of(0, 50, 80)];
    arrivals.extend((0..6).map(|i| of(1, 60 + 700 * i, 2)));
    let records = simulation(LIMITS, &[]).run(arrivals);
    assert!(records[1].passed_by <= 1, "{:?}", records[1]);
    assert_eq!(records[1].end, End::Finished);
}

/// Steps can be long: whose time to wait ran out during one, and whose place is free after it, gets it.
#[test]
fn a_free_place_is_given_before_the_time_to_wait_is_looked_at() {
    let mut scheduler = Scheduler::new(LIMITS);
    let request = Request {
        queue_until: Some(Duration::from_secs(1)),
        ..request(1, 1, 1)
    };
    scheduler.enqueue(Time::ZERO, request).unwrap();
    let step = scheduler.plan(Duration::from_secs(2));
    assert_eq!((step.admitted, step.expired), (vec![Key(1)], vec![]));
}

/// A trace that once went wrong is easier to read than a seed: fixed faults at the very start.
#[test]
fn a_device_that_fails_at_once_and_recovers_loses_nobody() {
    let faults: Vec<_> = [(0, -2), (1, 2), (3, 1), (4, -3)]
        .map(|(at, code)| (at, Fault::Code(code)))
        .into();
    let arrival = Arrival {
        prompt: 30,
        max_tokens: 10,
        ends_after: 10,
        ..Arrival::default()
    };
    let mut simulation = simulation(LIMITS, &faults);
    let records = simulation.run(vec![arrival; 6]);
    assert!(records.iter().all(|record| record.end == End::Finished));
    let steps = simulation.steps.iter().filter(|step| !step.failed);
    let computed: u32 = steps.map(|step| step.rows + step.prefill).sum();
    assert_eq!(computed, 6 * (30 + 10 - 1));
}

/// Its prefix is read again and again, and goes well each time; that does not excuse it.
#[test]
fn a_prompt_that_fails_is_given_up_where_a_memory_cannot_go_back() {
    let limits = Limits {
        reuse: Reuse::Whole,
        ..LIMITS
    };
    let sound = Arrival {
        prompt: 30,
        max_tokens: 10,
        ends_after: 10,
        ..Arrival::default()
    };
    for company in [0, 2] {
        let mut arrivals = vec![sound.clone(); company];
        arrivals.push(Arrival {
            poisoned: true,
            ..sound.clone()
        });
        let mut simulation = simulation(limits, &[]);
        let records = simulation.run(arrivals);
        assert_eq!(records[company].end, End::GivenUp);
        assert!(records[..company].iter().all(|r| r.end == End::Finished));
        let failed = simulation.steps.iter().filter(|step| step.failed).count();
        assert!(failed <= 60, "{failed} steps failed for one sequence");
    }
}
