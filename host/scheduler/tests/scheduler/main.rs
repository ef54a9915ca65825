//! The scheduler over the simulated backend, in virtual time.

use config::CONFIG;
use corral_scheduler::{
    AdapterId, CellQuota, EnqueueError, Expired, Latency, LogitsKind, Overlap, PrefillPolicy,
    Priority, QuotaGroup, SchedulerConfig, Tenant, Time,
};
use corral_simulator::simulation::{Arrival, End, Record, Simulation, StepRecord};
use corral_simulator::{Fault, Machine};
use std::collections::BTreeMap;
use std::time::Duration;

mod batch_window;
#[path = "../support/config.rs"]
mod config;
mod drafts;
mod eviction;
mod failures;
mod latency;
mod overlap;
mod prefill_budget;
mod prefix_cache;
mod returning_callers;
mod tenant_schedule;
mod workloads;

/// A request that arrives at `at` milliseconds and generates `tokens` tokens.
fn arrival(at: u64, prompt: u32, tokens: u32) -> Arrival {
    Arrival {
        at: Duration::from_millis(at),
        prompt,
        max_tokens: tokens,
        ends_after: tokens,
        ..Arrival::default()
    }
}

fn simulation(limits: SchedulerConfig, faults: &[(u64, Fault)]) -> Simulation {
    simulation_on(machine(&limits), limits, faults)
}

fn simulation_on(machine: Machine, limits: SchedulerConfig, faults: &[(u64, Fault)]) -> Simulation {
    Simulation::new(limits, machine, faults.iter().copied().collect())
}

fn machine(limits: &SchedulerConfig) -> Machine {
    Machine {
        // Below the fixed cost of a step for few outputs, above it for many.
        sample: if limits.overlap == Overlap::Off {
            0.0
        } else {
            0.010
        },
        ..Machine::default()
    }
}

fn waited(record: &Record, arrival: &Arrival) -> Duration {
    record.admitted.expect("it started") - arrival.at
}

/// One tenant floods the queue with 50 requests; two others send one after another. No more requests of others start
/// before theirs than there are other tenants.
#[test]
fn flooding_tenant_delays_others_little() {
    let limits = SchedulerConfig {
        cells: 4096,
        max_step_tokens: 512,
        max_queue: 64,
        max_tenant_queue: 64,
        ..CONFIG
    };
    let of = |tenant, at| Arrival {
        tenant: Tenant(tenant),
        ..arrival(at, 32, 40)
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
        assert!(record.overtaken <= 2, "{record:?}");
        assert!(waited(record, arrival) <= service, "{record:?} {service:?}");
    }
    // The flood is served too.
    assert!(greedy.iter().all(|record| record.end == End::Finished));
    let last = greedy.iter().map(|record| record.ended).max().unwrap();
    assert!(last > 8 * service);
}

#[test]
fn priority_then_deadline_goes_first() {
    let limits = SchedulerConfig {
        seq_ids: 1,
        ..CONFIG
    };
    let of = |at, priority, deadline: Option<u64>| Arrival {
        priority: Priority(priority),
        deadline_after: deadline.map(Duration::from_secs),
        ..arrival(at, 8, 8)
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

/// A single request, then a flood of the same tenant: all of the flood is charged.
#[test]
fn flood_gets_its_share_only() {
    let limits = SchedulerConfig {
        seq_ids: 2,
        cells: 4096,
        max_queue: 200,
        max_tenant_queue: 200,
        ..CONFIG
    };
    let of = |tenant, at| Arrival {
        tenant: Tenant(tenant),
        ..arrival(at, 20, 10)
    };
    let mut arrivals = vec![of(0, 0); 60];
    arrivals.push(of(1, 5_000));
    arrivals.extend(vec![of(1, 5_100); 60]);
    let records = simulation(limits, &[]).run(arrivals);
    // From then on both floods are equally large: they end side by side.
    let end = |of: &[Record]| of.iter().map(|record| record.ended).max().unwrap();
    let halfway = records[90].ended;
    let greedy = records[..60]
        .iter()
        .filter(|r| r.ended <= halfway && r.ended > Duration::from_secs(5));
    let greedy = greedy.count();
    assert!((20..=40).contains(&greedy), "{greedy} beside 30");
    assert!(end(&records) >= halfway);
}

/// Small requests do not pass a large one that waits for room.
#[test]
fn blocked_request_is_not_overtaken() {
    let of = |tenant, at, prompt| Arrival {
        at: Duration::from_millis(at),
        tenant: Tenant(tenant),
        prompt,
        max_tokens: 20,
        ends_after: 20,
        ..Arrival::default()
    };
    // A long request raises the counter of tenant 0; then its large request arrives.
    let long = Arrival {
        max_tokens: 60,
        ends_after: 60,
        ..of(0, 0, 5)
    };
    let mut arrivals = vec![long, of(0, 50, 80)];
    arrivals.extend((0..6).map(|i| of(1, 60 + 700 * i, 2)));
    let records = simulation(CONFIG, &[]).run(arrivals);
    assert!(records[1].overtaken <= 1, "{:?}", records[1]);
    assert_eq!(records[1].end, End::Finished);
}

/// A past failure: faults at the very start.
#[test]
fn early_device_faults_lose_no_request() {
    let faults: Vec<_> = [(0, -2), (1, 2), (3, 1), (4, -3)]
        .map(|(at, code)| (at, Fault::Code(code)))
        .into();
    let arrival = arrival(0, 30, 10);
    let mut simulation = simulation(CONFIG, &faults);
    let records = simulation.run(vec![arrival; 6]);
    assert!(records.iter().all(|record| record.end == End::Finished));
    let steps = simulation.steps.iter().filter(|step| !step.failed);
    let computed: u32 = steps.map(|step| step.rows + step.prefill).sum();
    assert_eq!(computed, 6 * (30 + 10 - 1));
}

/// Its prefix is read again and again, and goes well each time; that does not excuse it.
#[test]
fn bad_prompt_fails_without_truncation() {
    let limits = SchedulerConfig {
        prefix_cache: true,
        can_truncate: false,
        ..CONFIG
    };
    let sound = arrival(0, 30, 10);
    for company in [0, 2] {
        let mut arrivals = vec![sound.clone(); company];
        arrivals.push(Arrival {
            poisoned: true,
            ..sound.clone()
        });
        let mut simulation = simulation(limits, &[]);
        let records = simulation.run(arrivals);
        assert_eq!(records[company].end, End::Failed);
        assert!(records[..company].iter().all(|r| r.end == End::Finished));
        let failed = simulation.steps.iter().filter(|step| step.failed).count();
        assert!(failed <= 60, "{failed} steps failed for one sequence");
    }
}
