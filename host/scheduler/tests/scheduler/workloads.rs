//! Random workloads, and what must be true of every one.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn arrival() -> impl Strategy<Value = Arrival> {
    let sometimes = |range: std::ops::Range<u64>| {
        proptest::option::weighted(0.2, range.prop_map(Duration::from_millis))
    };
    (
        (0..6_000u64, 0..3u32, 0..3u8, 0..4u8),
        // Some generate nothing: they look at what may come next.
        (1..70u32, prop_oneof![8 => 1..50u32, 2 => Just(0)], 1..60u32),
        (
            sometimes(0..3_000),
            sometimes(0..6_000),
            sometimes(0..6_000),
        ),
        proptest::bool::weighted(0.04),
        (0..60u32, 0..2u64),
        proptest::option::weighted(0.4, (0..40usize, 0..150u32)),
        (
            prop_oneof![Just(0), 1..20u32],
            prop_oneof![3 => Just(0), 1 => 1..20u32],
            proptest::option::weighted(0.3, (0..2u32, 40..300u32)),
            (0..12u32, 0..6_000u64),
            proptest::option::weighted(0.2, 0..9_000u64),
            (
                prop_oneof![Just(LogitsKind::TopK), Just(LogitsKind::All)],
                proptest::option::weighted(0.3, 0..20u32),
            ),
        ),
    )
        .prop_map(
            |(
                (at, tenant, priority, adapter),
                (prompt, max_tokens, ends_after),
                times,
                poisoned,
                family,
                goes_on,
                (drafts, forced, share, (returns, thinks), asks, (rows, unsettled)),
            )| {
                let (patience, time, leaves) = times;
                Arrival {
                    at: Duration::from_millis(at),
                    tenant: Tenant(tenant),
                    priority: Priority(priority),
                    // Half of them with none.
                    adapter: AdapterId(adapter.saturating_sub(1)),
                    prompt,
                    family,
                    goes_on,
                    max_tokens,
                    ends_after,
                    patience,
                    time,
                    leaves,
                    poisoned,
                    drafts,
                    forced,
                    share: share.map(|(group, cells)| CellQuota { group, cells }),
                    comes_back: (returns, Duration::from_micros(thinks)),
                    asks: asks.map(Duration::from_micros),
                    rows,
                    unsettled,
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

fn limits() -> impl Strategy<Value = SchedulerConfig> {
    let prefill = prop_oneof![
        4 => (1.0..4.0).prop_map(|gap| PrefillPolicy::Budgeted { gap }),
        1 => Just(PrefillPolicy::SlotOrder),
    ];
    // Whether prefixes are reused, and whether the memory can be truncated.
    let memory = prop_oneof![
        1 => Just((false, true)),
        1 => Just((false, false)),
        1 => Just((true, false)),
        6 => Just((true, true)),
    ];
    let overlap = prop_oneof![Just(Overlap::Off), Just(Overlap::Auto), Just(Overlap::On)];
    let aside = (proptest::bool::weighted(0.8), proptest::bool::weighted(0.8));
    let memory = (memory, aside, 0..17u32, overlap);
    let ids = (1..9u16, prop_oneof![1 => Just(0), 2 => 1..9u16]);
    let cells = prop_oneof![3 => 60..400u32, 1 => 400..1_200u32];
    (ids, cells, 9..64u32, 1..20usize, prefill, memory).prop_map(
        |((whole, top_ids), cells, step_tokens, queue, prefill, memory)| {
            let ((prefix_cache, can_truncate), aside, drafts, overlap) = memory;
            SchedulerConfig {
                seq_ids: whole + top_ids,
                top_k_seq_ids: top_ids,
                cells,
                max_step_tokens: step_tokens,
                max_queue: queue,
                max_tenant_queue: queue.div_ceil(2),
                prefill,
                prefix_cache,
                can_truncate,
                swap: aside.0,
                offload_prefixes: aside.1,
                max_drafts: if can_truncate { drafts } else { 0 },
                overlap,
            }
        },
    )
}

/// Seconds of a token for each cell that attention runs over: hardly any, or so many that prefixes soon cost more
/// than to move them, or to compute them again.
fn attention() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1e-8), Just(1e-6), Just(1e-5)]
}

/// SchedulerConfig near the least that there can be.
fn tight_limits() -> impl Strategy<Value = SchedulerConfig> {
    let least = (1..3u16, 0..2u16, 60..80u32, 9..12u32, 1..3usize);
    (limits(), least).prop_map(|(limits, (whole, top_ids, cells, step_tokens, queue))| {
        SchedulerConfig {
            seq_ids: whole + top_ids,
            top_k_seq_ids: top_ids,
            cells,
            max_step_tokens: step_tokens,
            max_queue: queue,
            max_tenant_queue: queue.div_ceil(2),
            prefill: match limits.prefill {
                PrefillPolicy::Budgeted { gap } if gap < 2.5 => {
                    PrefillPolicy::Budgeted { gap: 1.0 }
                }
                prefill => prefill,
            },
            ..limits
        }
    })
}

/// What must be true of a request from the outside; the simulation itself checks every step.
fn judge(
    limits: &SchedulerConfig,
    arrival: &Arrival,
    record: &Record,
) -> Result<(), TestCaseError> {
    let needed = record.prompt + arrival.max_tokens.saturating_sub(1);
    let most = arrival
        .share
        .map_or(u32::MAX, |share| share.cells)
        .min(limits.cells);
    prop_assert_eq!(
        needed > most,
        matches!(record.end, End::Refused(EnqueueError::TooLarge { .. }))
    );
    match record.end {
        End::Finished => {
            let wanted = arrival.max_tokens.min(arrival.ends_after) as usize;
            prop_assert_eq!(record.tokens.len(), wanted);
            prop_assert!(!arrival.poisoned);
        }
        // Only who fails alone is given up: nobody pays for a fault of another or of the moment. Who is met by three of
        // the moment at the same place, while others get on, can't be told from one that is bad.
        End::GivenUp => prop_assert!(arrival.poisoned || record.blamed >= 6, "{record:?}"),
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

/// Simulates one workload and judges each of its requests.
fn end_and_leave_nothing(
    limits: SchedulerConfig,
    arrivals: &[Arrival],
    (faults, attention): (&[(u64, Fault)], f64),
    store_fails: Option<u64>,
    state_faults: BTreeSet<u64>,
) -> Result<(), TestCaseError> {
    let machine = Machine {
        attention,
        ..machine(&limits)
    };
    let mut simulation = simulation_on(machine, limits, faults)
        .with_failing_store(store_fails)
        .with_state_faults(state_faults);
    let records = simulation.run(arrivals.to_vec());
    for (arrival, record) in arrivals.iter().zip(&records) {
        judge(&limits, arrival, record)?;
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
        (faults, attention) in (faults(), attention()),
        store_fails in proptest::option::weighted(0.3, 1..9u64),
        state_faults in proptest::collection::btree_set(0..40u64, 0..6),
    ) {
        end_and_leave_nothing(limits, &arrivals, (&faults, attention), store_fails, state_faults)?;
    }

    /// The same where there is the least of everything, so that all stand in each other's way.
    #[test]
    fn random_workloads_end_where_there_is_hardly_room(
        limits in tight_limits(),
        arrivals in proptest::collection::vec(arrival(), 1..12),
        (faults, attention) in (faults(), attention()),
        store_fails in proptest::option::weighted(0.3, 1..4u64),
        state_faults in proptest::collection::btree_set(0..10u64, 0..6),
    ) {
        end_and_leave_nothing(limits, &arrivals, (&faults, attention), store_fails, state_faults)?;
    }

    /// Among equals nobody starves: those of one tenant are served as they came, and while one is
    /// its tenant's first, no other tenant gets more than the work of one request ahead of it.
    #[test]
    fn nobody_starves(
        arrivals in proptest::collection::vec((0..3_000u64, 0..4u32, 20..40u32, 1..20u32), 20..80),
    ) {
        let limits = SchedulerConfig { cells: 400, max_queue: 100, max_tenant_queue: 100, ..LIMITS };
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
