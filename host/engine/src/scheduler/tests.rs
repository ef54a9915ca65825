use super::*;
use crate::simulator::simulation::{Arrival, End, Record, Simulation};
use crate::simulator::{Fault, Machine};
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIMITS: Limits = Limits {
    seq_ids: 4,
    cells: 100,
    step_tokens: 16,
    queue: 8,
    tenant_queue: 6,
    prefill: Prefill::Budgeted { gap: 2.0 },
};

fn request(key: u64, prompt: u32, max_tokens: u32) -> Request {
    Request {
        key: Key(key),
        tenant: Tenant(0),
        priority: Priority(0),
        prompt,
        max_tokens,
        arrived: Time::ZERO,
        queue_until: None,
        deadline: None,
    }
}

fn enqueue(scheduler: &mut Scheduler, key: u64, prompt: u32, max_tokens: u32) {
    scheduler
        .enqueue(Time::ZERO, request(key, prompt, max_tokens))
        .unwrap();
}

fn ended(keys: &[Key]) -> StepResult<'_> {
    StepResult::Decoded {
        ended: keys,
        took: Duration::from_millis(1),
    }
}

#[test]
fn a_prompt_longer_than_a_step_is_read_in_chunks_and_sampled_at_its_end() {
    let mut scheduler = Scheduler::new(LIMITS);
    enqueue(&mut scheduler, 1, 40, 3);
    let spans: Vec<_> = (0..4)
        .map(|_| {
            let step = scheduler.plan(Time::ZERO);
            scheduler.applied(ended(&[]));
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
    let first = scheduler.plan(Time::ZERO).rows[0].seq;
    scheduler.applied(ended(&[Key(1)]));
    assert_eq!(scheduler.ids_used(), 1);
    enqueue(&mut scheduler, 2, 1, 1);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.clear, [first]);
    assert_eq!(step.rows[0].seq, first);
}

#[test]
fn what_can_never_fit_comes_too_late_or_finds_no_place_is_refused_at_once() {
    let mut scheduler = Scheduler::new(LIMITS);
    let now = Duration::from_secs(9);
    let mut enqueue = |request| scheduler.enqueue(now, request);
    assert_eq!(
        enqueue(request(0, 100, 2)),
        Err(Refused::TooLarge { needed: 101 })
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
    scheduler.plan(Time::ZERO);
    scheduler.applied(ended(&[]));
    for request in [impatient, late, request(4, 1, 1)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    let mut at = |second| {
        let step = scheduler.plan(seconds(second));
        let keys: Vec<_> = step.rows.iter().map(|row| row.key.0).collect();
        let timer = scheduler.next_timer();
        scheduler.applied(ended(&[]));
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

#[test]
fn a_step_that_fails_is_halved_until_the_culprit_stands_alone() {
    let sound = Arrival {
        prompt: 1,
        max_tokens: 12,
        ends_after: 12,
        ..Arrival::default()
    };
    let bad = Arrival {
        prompt: 9,
        poisoned: true,
        ..sound.clone()
    };
    let mut arrivals = vec![sound; 4];
    arrivals.insert(2, bad);
    let records = simulation(LIMITS, &[]).run(arrivals);
    let ends: Vec<_> = records.iter().map(|record| record.end).collect();
    let expected = [0, 1, 2, 3, 4].map(|i| if i == 2 { End::GivenUp } else { End::Finished });
    assert_eq!(ends, expected);
}

fn simulation(limits: Limits, faults: &[(u64, Fault)]) -> Simulation {
    let faults = faults.iter().copied().collect();
    Simulation::new(limits, Machine::default(), faults)
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

/// Longest time between two tokens of a sequence, and the time of a step without prompts.
fn gaps(prefill: Prefill) -> (Duration, Duration) {
    let limits = Limits {
        seq_ids: 16,
        cells: 16_384,
        step_tokens: 512,
        queue: 64,
        tenant_queue: 64,
        prefill,
    };
    let of = |at, prompt, tokens| Arrival {
        at: Duration::from_millis(at),
        prompt,
        max_tokens: tokens,
        ends_after: tokens,
        ..Arrival::default()
    };
    let mut arrivals = vec![of(0, 32, 400); 8];
    arrivals.extend((0..20).map(|i| of(2_000 + 1_500 * i, [600, 32][(i % 2) as usize], 50)));
    let mut simulation = simulation(limits, &[]);
    let records = simulation.run(arrivals);
    let gap = |record: &Record| {
        let pairs = record.tokens.windows(2).skip(16);
        pairs.map(|pair| pair[1] - pair[0]).max()
    };
    let longest = records.iter().filter_map(gap).max().unwrap();
    let plain = simulation
        .steps
        .iter()
        .filter(|(rows, prompt, _)| *rows >= 8 && *prompt == 0);
    let plain = plain.map(|(.., took)| *took).max().unwrap();
    (longest, plain)
}

#[test]
fn a_long_prompt_stretches_the_gap_of_others_by_no_more_than_the_target() {
    let (longest, plain) = gaps(Prefill::Budgeted { gap: 2.0 });
    assert!(
        longest <= plain * 2 + plain / 10,
        "{longest:?} against {plain:?}"
    );
    let (in_slot_order, plain) = gaps(Prefill::SlotOrder);
    assert!(
        in_slot_order > 10 * plain,
        "{in_slot_order:?} against {plain:?}"
    );
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let sometimes = |range: std::ops::Range<u64>| {
        proptest::option::weighted(0.2, range.prop_map(Duration::from_millis))
    };
    (
        (0..6_000u64, 0..3u32, 0..3u8),
        (1..70u32, 1..50u32, 1..60u32),
        (
            sometimes(0..3_000),
            sometimes(0..6_000),
            sometimes(0..6_000),
        ),
        proptest::bool::weighted(0.04),
    )
        .prop_map(
            |((at, tenant, priority), (prompt, max_tokens, ends_after), times, poisoned)| {
                let (patience, time, leaves) = times;
                Arrival {
                    at: Duration::from_millis(at),
                    tenant: Tenant(tenant),
                    priority: Priority(priority),
                    prompt,
                    max_tokens,
                    ends_after,
                    patience,
                    time,
                    leaves,
                    poisoned,
                }
            },
        )
}

/// Faults: bursts of at most two failing steps, and slow ones.
fn faults() -> impl Strategy<Value = Vec<(u64, Fault)>> {
    let code = prop_oneof![Just(1), Just(2), Just(-2), Just(-3)];
    let fault = prop_oneof![
        2 => code.prop_map(Fault::Code),
        1 => (2.0..30.0).prop_map(Fault::Slow),
    ];
    proptest::collection::vec((0..100u64, 1..3u64, fault), 0..12).prop_map(|bursts| {
        let steps = |(at, length, fault)| (0..length).map(move |i| (3 * at + i, fault));
        bursts.into_iter().flat_map(steps).collect()
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let prefill = prop_oneof![
        4 => (1.0..4.0).prop_map(|gap| Prefill::Budgeted { gap }),
        1 => Just(Prefill::SlotOrder),
    ];
    (1..9u16, 60..400u32, 4..64u32, 1..20usize, prefill).prop_map(
        |(seq_ids, cells, step_tokens, queue, prefill)| Limits {
            seq_ids,
            cells,
            step_tokens,
            queue,
            tenant_queue: queue.div_ceil(2),
            prefill,
        },
    )
}

/// What must be true of a request from the outside; the simulation itself checks every step.
fn judge(limits: &Limits, arrival: &Arrival, record: &Record) -> Result<(), TestCaseError> {
    let needed = arrival.prompt + arrival.max_tokens - 1;
    prop_assert_eq!(
        needed > limits.cells,
        matches!(record.end, End::Refused(Refused::TooLarge { .. }))
    );
    match record.end {
        End::Finished => {
            let wanted = arrival.max_tokens.min(arrival.ends_after) as usize;
            prop_assert_eq!(record.tokens.len(), wanted);
            prop_assert!(!arrival.poisoned);
        }
        // Only who fails alone is given up: nobody pays for a fault of another or of the moment.
        End::GivenUp => prop_assert!(arrival.poisoned),
        End::Left => prop_assert!(arrival.leaves.is_some()),
        End::Expired(Expired::Queue { .. }) => {
            prop_assert!(record.admitted.is_none() && arrival.patience.is_some());
            prop_assert!(record.ended >= arrival.at + arrival.patience.unwrap());
        }
        End::Expired(Expired::Deadline) => {
            prop_assert!(record.ended >= arrival.at + arrival.time.unwrap());
        }
        End::Refused(_) => prop_assert!(record.admitted.is_none()),
    }
    Ok(())
}

/// Random workloads that are tried of each kind.
const CASES: u32 = 20_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Whatever comes, leaves and fails: every request ends once, as it should, and nothing of it
    /// stays.
    #[test]
    fn random_workloads_end_and_leave_nothing(
        limits in limits(),
        arrivals in proptest::collection::vec(arrival(), 1..40),
        faults in faults(),
    ) {
        let records = simulation(limits, &faults).run(arrivals.clone());
        for (arrival, record) in arrivals.iter().zip(&records) {
            judge(&limits, arrival, record)?;
        }
    }

    /// Among equals nobody starves: those of one tenant are served as they came, and whoever is
    /// its tenant's first is passed by others for at most about the work of the largest request of
    /// each.
    #[test]
    fn nobody_starves(
        arrivals in proptest::collection::vec((0..400u64, 0..4u32, 1..40u32, 1..20u32), 20..80),
    ) {
        let limits = Limits { queue: 100, tenant_queue: 100, ..LIMITS };
        let arrivals: Vec<_> = arrivals.into_iter().map(|(at, tenant, prompt, tokens)| Arrival {
            at: Duration::from_millis(at),
            tenant: Tenant(tenant),
            prompt,
            max_tokens: tokens,
            ends_after: tokens,
            ..Arrival::default()
        }).collect();
        let records = simulation(limits, &[]).run(arrivals.clone());
        let served = |index: usize| records[index].admitted.expect("all are served");
        let largest = arrivals.iter().map(|a| a.prompt + 2 * a.max_tokens).max().unwrap_or(0);
        let smallest = arrivals.iter().map(|a| a.prompt).min().unwrap_or(1);
        for (index, arrival) in arrivals.iter().enumerate() {
            let order = |other: usize| (arrivals[other].at, other);
            let mates = (0..arrivals.len()).filter(|&i| arrivals[i].tenant == arrival.tenant);
            let earlier: Vec<_> = mates.filter(|&mate| order(mate) < order(index)).collect();
            for &mate in &earlier {
                prop_assert!(served(mate) <= served(index));
            }
            if earlier.is_empty() {
                prop_assert!(records[index].passed_by <= 3 * (1 + largest / smallest));
            }
        }
    }
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
    let computed: u32 = BTreeMap::from_iter(simulation.steps.iter().enumerate())
        .iter()
        .filter(|(index, _)| !faults.iter().any(|(at, _)| *at == **index as u64))
        .map(|(_, (rows, prefill, _))| rows + prefill)
        .sum();
    assert_eq!(computed, 6 * (30 + 10 - 1));
}
