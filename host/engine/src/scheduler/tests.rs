use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const LIMITS: Limits = Limits {
    seq_ids: 4,
    cells: 100,
    step_tokens: 16,
    queue: 8,
};

fn done() -> StepResult<'static> {
    StepResult::Decoded { ended: &[] }
}

#[test]
fn a_prompt_longer_than_a_step_is_read_in_chunks_and_sampled_at_its_end() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.enqueue(Key(1), 40, 3).unwrap();
    let spans: Vec<_> = (0..4)
        .map(|_| {
            let step = scheduler.plan();
            scheduler.applied(done());
            let row = step.rows[0];
            (row.from, row.to, row.output)
        })
        .collect();
    assert_eq!(
        spans,
        [
            (0, 16, false),
            (16, 32, false),
            (32, 40, true),
            (40, 41, true)
        ]
    );
}

#[test]
fn generating_sequences_go_before_prompts() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.enqueue(Key(1), 2, 9).unwrap();
    scheduler.plan();
    scheduler.applied(done());
    scheduler.enqueue(Key(2), 50, 1).unwrap();
    let step = scheduler.plan();
    assert_eq!(step.admitted, [Key(2)]);
    assert_eq!(
        (step.rows[0].key, step.rows[0].to - step.rows[0].from),
        (Key(1), 1)
    );
    assert_eq!(
        (step.rows[1].key, step.rows[1].to - step.rows[1].from),
        (Key(2), 15)
    );
}

#[test]
fn an_id_is_cleared_before_it_is_lent_again() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.enqueue(Key(1), 1, 1).unwrap();
    let first = scheduler.plan().rows[0].seq;
    scheduler.applied(StepResult::Decoded { ended: &[Key(1)] });
    assert_eq!(scheduler.ids_used(), 1);
    scheduler.enqueue(Key(2), 1, 1).unwrap();
    let step = scheduler.plan();
    assert_eq!(step.clear, [first]);
    assert_eq!(step.rows[0].seq, first);
}

#[test]
fn what_can_never_fit_is_refused_and_a_full_queue_says_so() {
    let mut scheduler = Scheduler::new(LIMITS);
    assert_eq!(
        scheduler.enqueue(Key(0), 100, 2),
        Err(Rejected::TooLarge { needed: 101 })
    );
    for key in 0..8 {
        scheduler.enqueue(Key(key), 100, 1).unwrap();
    }
    assert_eq!(scheduler.enqueue(Key(9), 1, 1), Err(Rejected::QueueFull));
}

#[test]
fn a_step_that_fails_is_halved_until_the_culprit_stands_alone() {
    let mut scheduler = Scheduler::new(LIMITS);
    for key in 0..4 {
        scheduler.enqueue(Key(key), 1, 50 / 4).unwrap();
    }
    let mut given_up = Vec::new();
    let mut progress = HashMap::new();
    for _ in 0..40 {
        let step = scheduler.plan();
        let result = if step.rows.iter().any(|row| row.key == Key(2)) {
            StepResult::Failed
        } else {
            for row in &step.rows {
                *progress.entry(row.key).or_insert(0) += 1;
            }
            done()
        };
        given_up.extend(scheduler.applied(result));
        if scheduler.running() == 3 && progress.values().all(|&count| count >= 3) {
            break;
        }
    }
    assert_eq!(given_up, [Key(2)]);
    assert_eq!(progress.len(), 3);
}

/// One random thing that happens to a scheduler.
#[derive(Clone, Debug)]
enum Event {
    Enqueue { prompt: u32, max_tokens: u32 },
    Cancel(u64),
    Step,
    FailedStep,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1..60u32, 1..50u32).prop_map(|(prompt, max_tokens)| Event::Enqueue { prompt, max_tokens }),
        1 => (0..40u64).prop_map(Event::Cancel),
        6 => Just(Event::Step),
        1 => Just(Event::FailedStep),
    ];
    proptest::collection::vec(event, 1..200)
}

/// What the outside knows of a sequence.
struct Seen {
    prompt: u32,
    max_tokens: u32,
    computed: u32,
    generated: u32,
}

/// Drives a scheduler as the engine does and checks each step from outside.
struct Driver {
    scheduler: Scheduler,
    alive: HashMap<Key, Seen>,
    /// Which sequence's cells an id holds, as a backend would know it.
    holder: HashMap<SeqId, Key>,
    next: u64,
}

impl Driver {
    fn step(&mut self, fail: bool) {
        let step = self.scheduler.plan();
        for id in &step.clear {
            self.holder.remove(id);
        }
        let mut tokens = 0;
        for row in &step.rows {
            tokens += row.to - row.from;
            let seen = self
                .alive
                .get(&row.key)
                .expect("a row of a sequence that ended");
            assert_eq!(row.from, seen.computed, "each token once and in order");
            assert!(row.to <= seen.prompt + seen.generated);
            assert_eq!(row.output, row.to == seen.prompt + seen.generated);
            let holder = *self.holder.entry(row.seq).or_insert(row.key);
            assert_eq!(
                holder, row.key,
                "an id belongs to one sequence until it is cleared"
            );
        }
        assert!(tokens <= LIMITS.step_tokens);
        if step.rows.is_empty() {
            assert_eq!(self.scheduler.running(), 0, "those who run are served");
            return;
        }
        if fail {
            if let Some(key) = self.scheduler.applied(StepResult::Failed) {
                self.alive.remove(&key);
            }
            return;
        }
        let mut ended = Vec::new();
        for row in &step.rows {
            let seen = self.alive.get_mut(&row.key).unwrap();
            seen.computed = row.to;
            seen.generated += u32::from(row.output);
            if seen.generated == seen.max_tokens {
                ended.push(row.key);
                self.alive.remove(&row.key);
            }
        }
        assert_eq!(
            self.scheduler
                .applied(StepResult::Decoded { ended: &ended }),
            None
        );
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Enqueue { prompt, max_tokens } => {
                let key = Key(self.next);
                self.next += 1;
                match self.scheduler.enqueue(key, prompt, max_tokens) {
                    Ok(()) => {
                        let seen = Seen {
                            prompt,
                            max_tokens,
                            computed: 0,
                            generated: 0,
                        };
                        self.alive.insert(key, seen);
                    }
                    Err(Rejected::QueueFull) => assert_eq!(self.scheduler.waiting(), LIMITS.queue),
                    Err(Rejected::TooLarge { needed }) => assert!(needed > LIMITS.cells),
                }
            }
            Event::Cancel(key) => {
                self.scheduler.cancel(Key(key));
                self.alive.remove(&Key(key));
            }
            Event::Step => self.step(false),
            Event::FailedStep => self.step(true),
        }
        self.scheduler.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Whatever happens, every sequence that was taken and not cancelled or given up finishes, and
    /// nothing is left behind.
    #[test]
    fn random_workloads_end_and_leave_nothing(events in events()) {
        let mut driver = Driver {
            scheduler: Scheduler::new(LIMITS),
            alive: HashMap::new(),
            holder: HashMap::new(),
            next: 0,
        };
        for event in events {
            driver.apply(event);
        }
        for _ in 0..2_000 {
            if driver.scheduler.is_idle() {
                break;
            }
            driver.step(false);
        }
        prop_assert!(driver.scheduler.is_idle());
        prop_assert!(driver.alive.is_empty());
        prop_assert!(driver.holder.is_empty());
        prop_assert_eq!(driver.scheduler.ids_used(), 0);
        prop_assert_eq!(driver.scheduler.cells_used(), 0);
        prop_assert_eq!(driver.scheduler.cells_reserved(), 0);
    }
}
