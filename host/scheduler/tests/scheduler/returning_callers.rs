//! Guests that run their own loop: they return with each token, and steps wait for them a little.

use super::*;

const CONFIG: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 4000,
    max_step_tokens: 64,
    max_queue: 64,
    max_tenant_queue: 64,
    ..super::CONFIG
};
/// How often each returns.
const TIMES: u32 = 30;

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A guest that takes `thinks` for each token.
fn guest(thinks: Duration) -> Arrival {
    Arrival {
        prompt: 20,
        returns: (TIMES, thinks),
        ..Arrival::default()
    }
}

/// A request that the engine decodes.
fn host_run(tokens: u32) -> Arrival {
    arrival(0, 20, tokens)
}

/// Runs the arrivals; all of them finish.
fn run(arrivals: Vec<Arrival>) -> (Simulation, Vec<Record>) {
    let mut simulation = simulation(CONFIG, &[]);
    let records = simulation.run(arrivals);
    let finished = records.iter().all(|record| record.end == End::Finished);
    assert!(finished, "{records:?}");
    (simulation, records)
}

#[test]
fn guests_share_steps() {
    // They return after 0.2 to 0.9 ms.
    let guests: Vec<_> = (2..10).map(|i| guest(micros(100 * i))).collect();
    let (simulation, records) = run(guests);
    assert_eq!(records.len(), 8 * (1 + TIMES as usize));
    let together = simulation.steps.iter().filter(|step| step.rows == 8);
    // All but the last rounds, when the fast guests are done.
    assert!(
        together.count() >= TIMES as usize - 8,
        "{:?}",
        simulation.steps
    );
    let steps = simulation.steps.len();
    assert!(steps <= 8 + TIMES as usize + 8, "{steps} steps");
    assert!(
        simulation.waited <= TIMES * micros(900),
        "{:?}",
        simulation.waited
    );
    // Only new tokens are computed.
    let computed = records.iter().map(|record| record.prompt - record.cached);
    assert_eq!(computed.sum::<u32>(), 8 * (20 + TIMES));
}

#[test]
fn decoding_request_waits_for_no_guest() {
    let mut arrivals = vec![host_run(200)];
    arrivals.extend((2..10).map(|i| guest(micros(100 * i))));
    let (simulation, records) = run(arrivals);
    assert_eq!(simulation.waited, Duration::ZERO);
    let last = records.iter().map(|record| record.ended).max();
    assert_eq!(last, Some(records[0].ended), "it ran to the end");
}

#[test]
fn late_guest_is_waited_for_once() {
    let mut arrivals: Vec<_> = (2..5).map(|i| guest(micros(100 * i))).collect();
    arrivals.push(guest(Duration::from_millis(90)));
    let (simulation, _) = run(arrivals);
    let others = TIMES * micros(400);
    let once = Duration::from_millis(10);
    assert!(
        simulation.waited <= others + once,
        "{:?}",
        simulation.waited
    );
}

#[test]
fn guests_take_turns_without_room() {
    let mut simulation = Simulation::new(
        SchedulerConfig {
            seq_ids: 3,
            cells: 120,
            ..CONFIG
        },
        Machine::default(),
        BTreeMap::new(),
    );
    let mut arrivals = vec![host_run(60)];
    arrivals.extend((2..10).map(|i| guest(micros(100 * i))));
    let records = simulation.run(arrivals);
    assert!(records.iter().all(|record| record.end == End::Finished));
    assert_eq!(records.len(), 1 + 8 * (1 + TIMES as usize));
}
