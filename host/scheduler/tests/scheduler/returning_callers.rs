//! Callers that run the loop themselves: they come back with each token, and steps wait for them a
//! little and for nobody else.

use super::*;

const LIMITS: SchedulerConfig = SchedulerConfig {
    seq_ids: 16,
    cells: 4000,
    max_step_tokens: 64,
    max_queue: 64,
    max_tenant_queue: 64,
    ..super::LIMITS
};
/// How often each comes back.
const TIMES: u32 = 30;

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// One that thinks so long each time.
fn guest(thinks: Duration) -> Arrival {
    Arrival {
        prompt: 20,
        comes_back: (TIMES, thinks),
        ..Arrival::default()
    }
}

/// One that the engine generates for.
fn host_run(tokens: u32) -> Arrival {
    Arrival {
        prompt: 20,
        max_tokens: tokens,
        ends_after: tokens,
        ..Arrival::default()
    }
}

/// Runs them; every one of them has to come to its end.
fn run(arrivals: Vec<Arrival>) -> (Simulation, Vec<Record>) {
    let mut simulation = simulation(LIMITS, &[]);
    let records = simulation.run(arrivals);
    let finished = records.iter().all(|record| record.end == End::Finished);
    assert!(finished, "{records:?}");
    (simulation, records)
}

#[test]
fn those_that_sample_themselves_share_their_steps() {
    // They are back between 0.2 and 0.9 ms after they were told.
    let guests: Vec<_> = (2..10).map(|i| guest(micros(100 * i))).collect();
    let (simulation, records) = run(guests);
    assert_eq!(records.len(), 8 * (1 + TIMES as usize));
    let together = simulation.steps.iter().filter(|step| step.rows == 8);
    // All but the last times, when the quick ones are through.
    assert!(
        together.count() >= TIMES as usize - 8,
        "{:?}",
        simulation.steps
    );
    let steps = simulation.steps.len();
    assert!(steps <= 8 + TIMES as usize + 8, "{steps} steps");
    assert!(
        simulation.awaited <= TIMES * micros(900),
        "{:?}",
        simulation.awaited
    );
    // What each of them adds is computed, and nothing else.
    let computed = records.iter().map(|record| record.prompt - record.cached);
    assert_eq!(computed.sum::<u32>(), 8 * (20 + TIMES));
}

#[test]
fn who_generates_waits_for_none_of_them() {
    let mut arrivals = vec![host_run(200)];
    arrivals.extend((2..10).map(|i| guest(micros(100 * i))));
    let (simulation, records) = run(arrivals);
    assert_eq!(simulation.awaited, Duration::ZERO);
    let last = records.iter().map(|record| record.ended).max();
    assert_eq!(last, Some(records[0].ended), "it was there to the end");
}

#[test]
fn who_takes_long_is_waited_for_once() {
    let mut arrivals: Vec<_> = (2..5).map(|i| guest(micros(100 * i))).collect();
    arrivals.push(guest(Duration::from_millis(90)));
    let (simulation, _) = run(arrivals);
    let others = TIMES * micros(400);
    let once = Duration::from_millis(10);
    assert!(
        simulation.awaited <= others + once,
        "{:?}",
        simulation.awaited
    );
}

#[test]
fn they_take_turns_where_not_all_of_them_fit() {
    let mut simulation = Simulation::new(
        SchedulerConfig {
            seq_ids: 3,
            cells: 120,
            ..LIMITS
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
