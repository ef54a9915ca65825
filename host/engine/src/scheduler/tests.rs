use super::prefill::Prefill;
use super::*;
use crate::Token;
use crate::simulator::simulation::{Arrival, End, Record, Simulation, Taken};
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
    reuse: Reuse::Any,
    spill: true,
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
        claim: Watch::default(),
        goes_on: None,
        progress: Progress::default(),
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

/// The others outlast the culprit by far, some generate and some read long prompts.
#[test]
fn a_step_that_fails_is_halved_until_the_culprit_stands_alone() {
    let limits = Limits {
        seq_ids: 12,
        cells: 8192,
        step_tokens: 64,
        ..LIMITS
    };
    let sound = |prompt| Arrival {
        prompt,
        max_tokens: 200,
        ends_after: 200,
        ..Arrival::default()
    };
    let bad = Arrival {
        at: Duration::from_secs(2),
        poisoned: true,
        ..sound(90)
    };
    let mut arrivals: Vec<_> = (0..6).map(|i| sound(1 + 40 * (i % 3))).collect();
    arrivals.push(bad);
    let mut simulation = simulation(limits, &[]);
    let records = simulation.run(arrivals);
    for (index, record) in records.iter().enumerate() {
        let expected = if index == 6 {
            End::GivenUp
        } else {
            End::Finished
        };
        assert_eq!(record.end, expected);
    }
    let failed = simulation.steps.iter().filter(|step| step.failed).count();
    assert!(failed <= 40, "{failed} steps failed for one sequence");
}

/// A device that fails for a moment costs nobody anything; one that fails for good fails all that
/// is asked of it, one after the other.
#[test]
fn an_outage_is_survived_and_a_dead_device_says_so() {
    let arrival = Arrival {
        prompt: 30,
        max_tokens: 10,
        ends_after: 10,
        ..Arrival::default()
    };
    let fast = Machine {
        fixed: 1e-5,
        row: 1e-5,
        prefill: 1e-5,
        ..Machine::default()
    };
    let outage = |steps: u64| {
        let faults = (3..3 + steps).map(|step| (step, Fault::Code(-2))).collect();
        let mut simulation = Simulation::new(LIMITS, fast, faults);
        simulation
            .run(vec![arrival.clone(); 6])
            .iter()
            .map(|r| r.end)
            .collect::<Vec<_>>()
    };
    assert_eq!(outage(15), [End::Finished; 6]);
    assert_eq!(outage(100_000), [End::GivenUp; 6]);
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

/// One that was placed behind a long prompt is moved down when that is gone, where attention costs
/// anything; the steps after it are as short as if it had been alone.
#[test]
fn a_survivor_that_lies_high_is_moved_where_that_pays() {
    let limits = Limits {
        seq_ids: 4,
        cells: 8192,
        step_tokens: 512,
        reuse: Reuse::Any,
        ..LIMITS
    };
    let of = |at, prompt, tokens| Arrival {
        at: Duration::from_millis(at),
        prompt,
        max_tokens: tokens,
        ends_after: tokens,
        ..Arrival::default()
    };
    // The first one goes away when it has been read, and leaves a gap below the second.
    let first = Arrival {
        leaves: Some(Duration::from_secs(60)),
        ..of(0, 6000, 2000)
    };
    let arrivals = vec![first, of(1, 8, 2000)];
    for (attention, moved) in [(1e-6, true), (0.0, false)] {
        let machine = Machine {
            attention,
            noise: 0.02,
            ..Machine::default()
        };
        let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
        let records = simulation.run(arrivals.clone());
        assert_eq!((records[0].end, records[1].end), (End::Left, End::Finished));
        assert_eq!(simulation.tally().relocated > 0, moved, "{attention}");
        let last = simulation.steps.last().unwrap().took.as_secs_f64();
        let short = machine.fixed + machine.row + attention * 2100.0;
        assert!(!moved || last < 1.1 * short, "{last} against {short}");
        // It could not be saved, or not be put back: it is computed again, and lies low all the same.
        for fault in 0..2 {
            let faults = std::collections::BTreeSet::from([fault]);
            let simulation = Simulation::new(limits, machine, BTreeMap::new());
            let records = simulation.with_state_faults(faults).run(arrivals.clone());
            assert_eq!(records[1].end, End::Finished);
            assert_eq!(records[1].recomputed > 0, moved, "{attention}");
        }
    }
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

/// Longest time between two tokens of a sequence, and the time of a step without prompts.
fn gaps(prefill: Prefill) -> (Duration, Duration) {
    let limits = Limits {
        seq_ids: 16,
        cells: 16_384,
        step_tokens: 512,
        queue: 64,
        tenant_queue: 64,
        prefill,
        ..LIMITS
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
    let alone = |step: &&Taken| step.rows >= 8 && step.prefill == 0;
    let plain = simulation.steps.iter().filter(alone).map(|step| step.took);
    (longest, plain.max().unwrap())
}

/// Of the steps in which some generate and others read: the times over that of the rows alone.
fn stretched(arrivals: Vec<Arrival>, machine: Machine) -> Vec<f64> {
    let limits = Limits {
        seq_ids: 64,
        cells: 65_536,
        step_tokens: 512,
        queue: 100,
        tenant_queue: 100,
        ..LIMITS
    };
    let mut simulation = Simulation::new(limits, machine, BTreeMap::new());
    simulation.run(arrivals);
    let mixed = simulation
        .steps
        .iter()
        .filter(|step| step.rows > 0 && step.prefill > 0);
    let mut ratios: Vec<_> = mixed
        .map(|step| {
            let alone = machine.fixed + machine.row * f64::from(step.rows);
            step.took.as_secs_f64() / alone
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// What once went wrong: a cold start with nothing but prompts, and prompts so short that they say
/// nothing about long ones. On two machines: one of 0.6 billion weights, and one as quick as the demo
/// model's.
#[test]
fn the_target_is_kept_from_the_first_step_whatever_came_before() {
    let of = |at, prompt, tokens| Arrival {
        at: Duration::from_secs_f64(at),
        prompt,
        max_tokens: tokens,
        ends_after: tokens,
        ..Arrival::default()
    };
    let quick = Machine {
        fixed: 4e-4,
        row: 1e-4,
        prefill: 2e-5,
        attention: 0.0,
        noise: 0.15,
    };
    let slow = Machine {
        attention: 0.0,
        noise: 0.15,
        ..Machine::default()
    };
    for machine in [quick, slow] {
        let mut loads = vec![vec![of(0.0, 600, 60); 64]];
        for length in [1, 2, 4, 32] {
            let mut load = vec![of(0.0, length, 900); 8];
            let at = |i| machine.fixed * f64::from(50 + 22 * i);
            load.extend((0..30).map(|i| of(at(i), 600, 20)));
            loads.push(load);
        }
        for load in loads {
            let ratios = stretched(load, machine);
            let (most, p99) = (ratios[ratios.len() - 1], ratios[ratios.len() * 99 / 100]);
            let of = ratios.len();
            assert!(p99 <= 2.1 && most <= 3.0, "p99 {p99}, most {most} of {of}");
        }
    }
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
        (0..60u32, 0..2u64),
        proptest::option::weighted(0.4, (0..40usize, 0..150u32)),
    )
        .prop_map(
            |(
                (at, tenant, priority),
                (prompt, max_tokens, ends_after),
                times,
                poisoned,
                family,
                goes_on,
            )| {
                let (patience, time, leaves) = times;
                Arrival {
                    at: Duration::from_millis(at),
                    tenant: Tenant(tenant),
                    priority: Priority(priority),
                    prompt,
                    family,
                    goes_on,
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

/// Faults: bursts of failing steps with more good ones between them, and slow steps.
fn faults() -> impl Strategy<Value = Vec<(u64, Fault)>> {
    let code = prop_oneof![Just(1), Just(2), Just(-2), Just(-3)];
    let fault = prop_oneof![
        2 => code.prop_map(Fault::Code),
        1 => (2.0..30.0).prop_map(Fault::Slow),
    ];
    proptest::collection::vec((0..30u64, 1..8u64, fault), 0..12).prop_map(|bursts| {
        let steps = |(at, length, fault)| (0..length).map(move |i| (20 * at + i, fault));
        bursts.into_iter().flat_map(steps).collect()
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let prefill = prop_oneof![
        4 => (1.0..4.0).prop_map(|gap| Prefill::Budgeted { gap }),
        1 => Just(Prefill::SlotOrder),
    ];
    let reuse = prop_oneof![
        1 => Just(Reuse::Off),
        1 => Just(Reuse::Whole),
        6 => Just(Reuse::Any),
    ];
    let memory = (reuse, proptest::bool::weighted(0.8));
    (1..9u16, 60..400u32, 9..64u32, 1..20usize, prefill, memory).prop_map(
        |(seq_ids, cells, step_tokens, queue, prefill, (reuse, spill))| Limits {
            seq_ids,
            cells,
            step_tokens,
            queue,
            tenant_queue: queue.div_ceil(2),
            prefill,
            reuse,
            spill,
        },
    )
}

/// What must be true of a request from the outside; the simulation itself checks every step.
fn judge(limits: &Limits, arrival: &Arrival, record: &Record) -> Result<(), TestCaseError> {
    let needed = record.prompt + arrival.max_tokens - 1;
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
        store_fails in proptest::option::weighted(0.3, 1..9u64),
        state_faults in proptest::collection::btree_set(0..40u64, 0..6),
    ) {
        let mut simulation = simulation(limits, &faults)
            .with_failing_store(store_fails)
            .with_state_faults(state_faults);
        let records = simulation.run(arrivals.clone());
        for (arrival, record) in arrivals.iter().zip(&records) {
            judge(&limits, arrival, record)?;
        }
    }

    /// Among equals nobody starves: those of one tenant are served as they came, and while one is
    /// its tenant's first, no other tenant gets more than the work of one request ahead of it.
    #[test]
    fn nobody_starves(
        arrivals in proptest::collection::vec((0..3_000u64, 0..4u32, 20..40u32, 1..20u32), 20..80),
    ) {
        let limits = Limits { cells: 400, queue: 100, tenant_queue: 100, ..LIMITS };
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
        for (index, arrival) in arrivals.iter().enumerate() {
            let order = |other: usize| (arrivals[other].at, other);
            let mates = (0..arrivals.len()).filter(|&i| arrivals[i].tenant == arrival.tenant);
            let earlier: Vec<_> = mates.filter(|&mate| order(mate) < order(index)).collect();
            // First of its tenant from then on.
            let mut first = arrival.at;
            for &mate in &earlier {
                prop_assert!(served(mate) <= served(index));
                first = first.max(served(mate));
            }
            for tenant in (0..4).filter(|&tenant| Tenant(tenant) != arrival.tenant) {
                let passed: Vec<_> = (0..arrivals.len())
                    .filter(|&other| arrivals[other].tenant == Tenant(tenant))
                    .filter(|&other| served(other) > first && served(other) < served(index))
                    .collect();
                prop_assert!(passed.len() <= PASSES, "{} of {tenant} passed {index}", passed.len());
            }
        }
    }
}

/// How often another tenant's requests may pass one that is its tenant's first. Its own tenant can be
/// ahead by what four requests of the largest size got meanwhile (four ids), and the other's may be
/// of the smallest: 4 * (39 + 2 * 19) / 20, and one at the tie.
const PASSES: usize = 17;

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

/// Tokens of a text that several begin with, and then their own.
fn beginning(key: u64, shared: u32, own: u32) -> Request {
    let mut request = request(key, own, 5);
    request.tokens.splice(0..0, 500_000..500_000 + shared);
    request
}

const ROOMY: Limits = Limits {
    cells: 400,
    ..LIMITS
};

/// Something of so many tokens that was put aside.
fn put_aside(scheduler: &mut Scheduler, tokens: u32, claim: Watch) -> EntryId {
    let layout = Layout::new(std::iter::once(0..tokens).collect()).unwrap();
    let text = beginning(0, tokens, 0).tokens;
    scheduler.adopt(Scope(0), text, layout, claim)
}

#[test]
fn two_that_begin_unlike_each_get_what_they_share_of_what_was_put_aside() {
    let mut scheduler = Scheduler::new(ROOMY);
    let claim = Claim::default();
    let entry = put_aside(&mut scheduler, 60, claim.watch());
    for request in [beginning(1, 40, 30), beginning(2, 60, 30)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    assert!(scheduler.plan(Time::ZERO).rows.is_empty());
    assert!(scheduler.fetches(Key(1), entry) && scheduler.fetches(Key(2), entry));
    drop(claim);
    assert!(scheduler.restore(Key(1), entry).is_some());
    assert!(scheduler.restored(Key(1), entry, true), "one still waits");
    // The first begins otherwise after 40.
    assert!(scheduler.fetches(Key(2), entry));
    assert!(scheduler.restore(Key(2), entry).is_some());
    assert!(!scheduler.restored(Key(2), entry, true), "nobody waits");
    let step = scheduler.plan(Time::ZERO);
    let starts: Vec<_> = step.rows.iter().map(|row| (row.key.0, row.from)).collect();
    assert_eq!(starts, [(1, 40), (2, 60)]);
}

#[test]
fn what_is_being_fetched_is_not_swept() {
    let mut scheduler = Scheduler::new(ROOMY);
    let entry = put_aside(&mut scheduler, 60, Watch::default());
    scheduler.enqueue(Time::ZERO, beginning(1, 60, 3)).unwrap();
    scheduler.plan(Time::ZERO);
    scheduler.plan(Duration::from_secs(9));
    assert!(scheduler.fetches(Key(1), entry));
}

/// The leader gives way to a more urgent one, comes back in the same plan, and finds that its follower
/// is about to read what it wants.
#[test]
fn nobody_follows_its_own_follower() {
    let limits = Limits {
        cells: 200,
        ..LIMITS
    };
    let follower = Arrival {
        prompt: 80,
        family: (79, 0),
        max_tokens: 20,
        ends_after: 20,
        ..Arrival::default()
    };
    let leader = Arrival {
        time: Some(Duration::from_secs(50)),
        ..follower.clone()
    };
    let urgent = Arrival {
        at: Duration::from_millis(10),
        priority: Priority(1),
        prompt: 71,
        family: (0, 0),
        ..follower.clone()
    };
    let mut simulation = simulation(limits, &[]);
    let records = simulation.run(vec![follower, leader, urgent]);
    assert!(simulation.tally().preempted > 0);
    assert!(records.iter().all(|record| record.end == End::Finished));
}

/// Also if there is only one to give way.
#[test]
fn a_higher_priority_does_not_wait_for_a_lower_one_to_end() {
    for limits in [
        Limits {
            seq_ids: 1,
            ..LIMITS
        },
        LIMITS,
    ] {
        let low = Arrival {
            prompt: 30,
            max_tokens: 60,
            ends_after: 60,
            ..Arrival::default()
        };
        let high = Arrival {
            at: Duration::from_millis(300),
            priority: Priority(9),
            max_tokens: 30,
            ends_after: 30,
            ..low.clone()
        };
        let mut simulation = simulation(limits, &[]);
        let records = simulation.run(vec![low, high]);
        assert!(records[1].ended < records[0].ended);
        assert_eq!(simulation.tally().preempted, 1);
    }
}

/// With one id: what somebody else means to go on with, too, is put aside, and gone on with at once.
#[test]
fn a_whole_sequence_is_gone_on_with_where_it_is() {
    for reuse in [Reuse::Any, Reuse::Whole] {
        let limits = Limits {
            seq_ids: 1,
            reuse,
            ..ROOMY
        };
        let first = Arrival {
            prompt: 40,
            max_tokens: 10,
            ends_after: 10,
            ..Arrival::default()
        };
        let next = |at| Arrival {
            at: Duration::from_secs(at),
            prompt: 4,
            goes_on: Some((0, 49)),
            ..first.clone()
        };
        let records = simulation(limits, &[]).run(vec![first.clone(), next(20), next(40)]);
        assert_eq!(
            (records[1].cached, records[2].cached),
            (49, 49),
            "{reuse:?}"
        );
    }
}

/// The caller has only the new claim in hand as soon as it has asked.
#[test]
fn what_was_put_aside_is_kept_for_who_goes_on_with_it_however_long_it_waits() {
    let mut scheduler = Scheduler::new(Limits {
        seq_ids: 1,
        ..ROOMY
    });
    enqueue(&mut scheduler, 1, 5, 9);
    let step = scheduler.plan(Time::ZERO);
    computed(&mut scheduler, &step, &[]);
    let claim = Claim::default();
    let entry = put_aside(&mut scheduler, 60, claim.watch());
    let request = Request {
        goes_on: Some(claim),
        ..beginning(2, 60, 3)
    };
    scheduler.enqueue(Time::ZERO, request).unwrap();
    for second in 1..9 {
        let step = scheduler.plan(Duration::from_secs(second));
        let ended = [Key(1)];
        computed(&mut scheduler, &step, &ended[..usize::from(second == 8)]);
    }
    scheduler.plan(Duration::from_secs(9));
    assert!(scheduler.fetches(Key(2), entry));
    // And no longer, as soon as it has it.
    assert!(scheduler.restore(Key(2), entry).is_some());
    assert!(!scheduler.restored(Key(2), entry, true));
    assert!(!scheduler.has_entry(entry));
}

/// It gave way once, and again before it had its state back.
#[test]
fn who_gives_way_while_it_fetches_keeps_what_it_left_behind() {
    let mut scheduler = Scheduler::new(LIMITS);
    let urgent = |key, priority| Request {
        priority: Priority(priority),
        ..request(key, 80, 5)
    };
    enqueue(&mut scheduler, 1, 60, 20);
    for _ in 0..5 {
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[]);
    }
    for key in [2, 3] {
        scheduler.enqueue(Time::ZERO, urgent(key, 1)).unwrap();
        scheduler.plan(Time::ZERO);
        assert!(scheduler.is_waiting(Key(1)));
        scheduler.applied(StepResult::Failed { now: Time::ZERO });
        scheduler.cancel(Key(key));
        scheduler.plan(Time::ZERO);
        let entry = scheduler.entries().next().unwrap();
        assert!(entry.claimed && scheduler.fetches(Key(1), entry.entry));
    }
}

#[test]
fn what_a_leader_has_read_stays_for_its_followers_when_it_goes_away() {
    let mut scheduler = Scheduler::new(ROOMY);
    for key in [1, 2, 3] {
        scheduler
            .enqueue(Time::ZERO, beginning(key, 60, 9))
            .unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.rows.len(), 1);
    computed(&mut scheduler, &step, &[]);
    scheduler.cancel(Key(1));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.rows[0].key, step.rows[0].from), (Key(2), 16));
    computed(&mut scheduler, &step, &[]);
    // But not of one that went wrong.
    scheduler.give_up(Key(2));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.rows[0].key, step.rows[0].from), (Key(3), 16));
}

/// Who cancels what it reads may go on with it all the same.
#[test]
fn what_is_claimed_stays_when_it_is_cancelled() {
    let mut scheduler = Scheduler::new(ROOMY);
    let claim = Claim::default();
    let claimed = Request {
        claim: claim.watch(),
        ..request(1, 30, 5)
    };
    scheduler.enqueue(Time::ZERO, claimed).unwrap();
    let step = scheduler.plan(Time::ZERO);
    computed(&mut scheduler, &step, &[]);
    scheduler.cancel(Key(1));
    let kept: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
    assert_eq!(kept, [16]);
}

#[test]
fn a_longer_sequence_does_not_stand_for_a_shorter_one_where_there_are_no_parts() {
    for (reuse, kept) in [(Reuse::Any, vec![39]), (Reuse::Whole, vec![39, 34])] {
        let mut scheduler = Scheduler::new(Limits { reuse, ..ROOMY });
        for (key, steps) in [(1, 10), (2, 5)] {
            let alike = Request {
                key: Key(key),
                ..request(1, 30, 20)
            };
            scheduler.enqueue(Time::ZERO, alike).unwrap();
            let mut said = 0;
            while said < steps {
                let step = scheduler.plan(Time::ZERO);
                said += step.rows.iter().filter(|row| row.output).count();
                let ended = [Key(key)];
                computed(&mut scheduler, &step, &ended[..usize::from(said == steps)]);
            }
        }
        let lengths: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
        assert_eq!(lengths, kept, "{reuse:?}");
    }
}
