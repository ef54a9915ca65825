use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap, HashSet};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

fn limits() -> Limits {
    Limits {
        budget: None,
        idle: None,
        loads: 1,
        waiting: 3,
        turn: 5 * SECOND,
    }
}

fn ticket(opened: Opened) -> Ticket {
    match opened {
        Opened::Waits(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn open(models: &mut Residency, now: u64, model: usize) -> Opened {
    models.open(at(now), model, None, false)
}

/// Opens a model, and loads it as one of `bytes`, with nobody in its way.
fn bring_in(models: &mut Residency, now: u64, model: usize, bytes: u64) {
    let waits = ticket(open(models, now, model));
    models.measured(model, bytes);
    assert_eq!(models.plan(at(now), None), [Action::Load(model)]);
    models.loaded(at(now), model, bytes, SECOND);
    let ready = Action::Answer(waits, Answer::Ready);
    assert_eq!(models.plan(at(now), None), [ready]);
}

#[test]
fn one_load_serves_all_who_wait_and_later_ones_are_served_at_once() {
    let mut models = Residency::new(limits(), 2);
    let first = ticket(open(&mut models, 0, 0));
    assert_eq!(models.unmeasured(), Some(0));
    assert_eq!(models.plan(at(0), None), [], "nobody knows its size yet");
    models.measured(0, 10);
    assert_eq!(models.plan(at(0), None), [Action::Load(0)]);
    let second = ticket(open(&mut models, 1, 0));
    assert_eq!(
        (models.unmeasured(), models.plan(at(1), None)),
        (None, vec![])
    );
    models.loaded(at(2), 0, 11, 2 * SECOND);
    let answers = [first, second].map(|ticket| Action::Answer(ticket, Answer::Ready));
    assert_eq!(models.plan(at(2), None), answers);
    assert_eq!(open(&mut models, 3, 0), Opened::Ready);
    assert_eq!((models.leases(0), models.held(0)), (3, 11));
    assert_eq!(models.retry_after(0), 2 * SECOND);
}

#[test]
fn loads_go_one_after_the_other_in_the_order_of_their_first_waiters() {
    let mut models = Residency::new(limits(), 3);
    for (now, model) in [(0, 2), (1, 0), (2, 2), (3, 1)] {
        ticket(open(&mut models, now, model));
    }
    let mut order = Vec::new();
    for now in 4..7 {
        while let Some(model) = models.unmeasured() {
            models.measured(model, 1);
        }
        let loads = models.plan(at(now), None);
        let load = |action: &Action| matches!(action, Action::Load(_)).then_some(*action);
        let [Action::Load(model)] = loads.iter().filter_map(load).collect::<Vec<_>>()[..] else {
            panic!("{loads:?}");
        };
        assert_eq!(models.plan(at(now), None), [], "one at a time");
        order.push(model);
        models.loaded(at(now), model, 1, SECOND);
    }
    assert_eq!(order, [2, 0, 1]);
}

#[test]
fn who_waits_is_told_at_its_deadline_and_too_many_are_refused() {
    let mut models = Residency::new(limits(), 1);
    let late = ticket(models.open(at(0), 0, Some(at(3)), false));
    let patient = ticket(open(&mut models, 0, 0));
    let gone = ticket(open(&mut models, 0, 0));
    let full = Opened::Full {
        retry_after: SECOND,
    };
    assert_eq!(open(&mut models, 0, 0), full);
    models.give_up(at(0), gone);
    models.measured(0, 1);
    assert_eq!(models.plan(at(0), None), [Action::Load(0)]);
    assert_eq!(models.next_timer(at(0)), Some(at(3)));
    assert_eq!(
        models.plan(at(3), None),
        [Action::Answer(late, Answer::Late)]
    );
    assert_eq!(models.next_timer(at(3)), None);
    let over = models.open(at(4), 0, Some(at(4)), false);
    assert_eq!(over, Opened::Late);
    models.loaded(at(5), 0, 1, SECOND);
    let ready = Action::Answer(patient, Answer::Ready);
    assert_eq!(models.plan(at(5), None), [ready]);
    assert_eq!(models.leases(0), 1);
}

#[test]
fn nobody_loads_for_those_who_went_away() {
    let mut models = Residency::new(limits(), 1);
    let gone = ticket(open(&mut models, 0, 0));
    models.give_up(at(0), gone);
    assert_eq!(
        (models.unmeasured(), models.plan(at(0), None)),
        (None, vec![])
    );
    // Nor does it keep a model that came while it went.
    let gone = ticket(open(&mut models, 0, 0));
    models.measured(0, 1);
    models.plan(at(0), None);
    models.loaded(at(1), 0, 1, SECOND);
    assert_eq!(models.leases(0), 1);
    models.give_up(at(1), gone);
    assert_eq!((models.leases(0), models.plan(at(1), None)), (0, vec![]));
}

#[test]
fn a_failure_is_told_and_tried_again_later_and_later_or_when_the_file_changed() {
    let mut models = Residency::new(limits(), 1);
    let mut now = 0;
    for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
        let waits = ticket(open(&mut models, now, 0));
        models.measured(0, 1);
        assert_eq!(models.plan(at(now), None), [Action::Load(0)]);
        models.failed(at(now), 0);
        let told = Action::Answer(waits, Answer::Failed);
        assert_eq!(models.plan(at(now), None), [told]);
        let again = at(now + delay);
        assert_eq!(models.state(0), State::Failed { again });
        assert_eq!(open(&mut models, now + delay - 1, 0), Opened::Failed);
        now += delay;
    }
    let waits = ticket(open(&mut models, now, 0));
    // Already the look at the file can fail.
    models.failed(at(now), 0);
    let told = Action::Answer(waits, Answer::Failed);
    assert_eq!(models.plan(at(now), None), [told]);
    assert_eq!(open(&mut models, now, 0), Opened::Failed);
    ticket(models.open(at(now), 0, None, true));
    models.measured(0, 1);
    assert_eq!(models.plan(at(now), None), [Action::Load(0)]);
    models.loaded(at(now), 0, 1, SECOND);
    models.plan(at(now), None);
    assert_eq!(open(&mut models, now, 0), Opened::Ready);
}

#[test]
fn who_is_not_used_is_unloaded_after_the_idle_time_and_comes_back() {
    let limits = Limits {
        idle: Some(10 * SECOND),
        ..limits()
    };
    let mut models = Residency::new(limits, 1);
    bring_in(&mut models, 0, 0, 1);
    assert_eq!(models.plan(at(100), None), [], "somebody uses it");
    assert_eq!(models.next_timer(at(100)), None);
    models.release(at(100), 0);
    assert_eq!(models.unused_for(at(103), 0), Some(3 * SECOND));
    assert_eq!(models.next_timer(at(100)), Some(at(110)));
    assert_eq!(models.plan(at(109), None), []);
    assert_eq!(models.plan(at(110), None), [Action::Unload(0)]);
    // Who comes while it goes waits until it is back.
    let waits = ticket(open(&mut models, 111, 0));
    assert_eq!(models.plan(at(111), None), []);
    models.unloaded(0);
    assert_eq!(models.unmeasured(), Some(0), "the file may be another one");
    models.measured(0, 1);
    assert_eq!(models.plan(at(112), None), [Action::Load(0)]);
    models.loaded(at(113), 0, 1, SECOND);
    let ready = Action::Answer(waits, Answer::Ready);
    assert_eq!(models.plan(at(113), None), [ready]);
}

#[test]
fn the_least_recently_used_make_room() {
    let limits = Limits {
        budget: Some(30),
        ..limits()
    };
    let mut models = Residency::new(limits, 4);
    for model in 0..3 {
        bring_in(&mut models, model as u64, model, 10);
    }
    for (now, model) in [(10, 1), (11, 0), (12, 2)] {
        models.release(at(now), model);
    }
    let waits = ticket(open(&mut models, 13, 3));
    models.measured(3, 15);
    let out = [Action::Unload(1), Action::Unload(0)];
    assert_eq!(models.plan(at(13), None), out);
    models.unloaded(0);
    assert_eq!(models.plan(at(13), None), [], "both have to be gone");
    models.unloaded(1);
    assert_eq!(models.plan(at(13), None), [Action::Load(3)]);
    models.loaded(at(14), 3, 15, SECOND);
    let ready = Action::Answer(waits, Answer::Ready);
    assert_eq!(models.plan(at(14), None), [ready]);
    assert_eq!(open(&mut models, 14, 2), Opened::Ready);
}

#[test]
fn what_never_fits_is_said_at_once_and_holds_up_nobody() {
    let limits = Limits {
        budget: Some(30),
        ..limits()
    };
    let mut models = Residency::new(limits, 2);
    let (large, small) = (ticket(open(&mut models, 0, 0)), open(&mut models, 0, 1));
    ticket(small);
    models.measured(0, 31);
    let answer = Answer::TooLarge {
        bytes: 31,
        budget: 30,
    };
    assert_eq!(models.plan(at(0), None), [Action::Answer(large, answer)]);
    models.measured(1, 30);
    assert_eq!(models.plan(at(0), None), [Action::Load(1)]);
}

#[test]
fn in_use_means_wait_but_not_for_ever() {
    let limits = Limits {
        budget: Some(10),
        ..limits()
    };
    let mut models = Residency::new(limits, 2);
    bring_in(&mut models, 0, 0, 10);
    let waits = ticket(open(&mut models, 1, 1));
    models.measured(1, 10);
    assert_eq!(models.plan(at(1), None), []);
    assert_eq!(models.next_timer(at(1)), Some(at(5)), "its turn is over");
    assert_eq!(open(&mut models, 2, 0), Opened::Ready);
    assert_eq!(models.plan(at(5), None), []);
    // Its users may end, but no new one comes in.
    let next = ticket(open(&mut models, 6, 0));
    models.release(at(7), 0);
    assert_eq!(models.plan(at(7), None), []);
    models.release(at(8), 0);
    assert_eq!(models.plan(at(8), None), [Action::Unload(0)]);
    models.unloaded(0);
    assert_eq!(models.plan(at(8), None), [Action::Load(1)]);
    models.loaded(at(9), 1, 10, SECOND);
    let ready = Action::Answer(waits, Answer::Ready);
    assert_eq!(models.plan(at(9), None), [ready]);
    // Now the other way round: at the latest after this one's turn.
    models.measured(0, 10);
    models.release(at(9), 1);
    assert_eq!(models.plan(at(9), None), [Action::Unload(1)]);
    models.unloaded(1);
    assert_eq!(models.plan(at(9), None), [Action::Load(0)]);
    models.loaded(at(10), 0, 10, SECOND);
    let ready = Action::Answer(next, Answer::Ready);
    assert_eq!(models.plan(at(10), None), [ready]);
}

#[test]
fn when_nobody_needs_the_room_any_more_it_stays_open() {
    let limits = Limits {
        budget: Some(10),
        ..limits()
    };
    let mut models = Residency::new(limits, 2);
    bring_in(&mut models, 0, 0, 10);
    models.open(at(9), 1, Some(at(20)), false);
    models.measured(1, 10);
    assert_eq!(models.plan(at(9), None), []);
    let held_up = ticket(open(&mut models, 10, 0));
    assert_eq!(models.plan(at(10), None), []);
    let told = models.plan(at(20), None);
    assert!(
        told.contains(&Action::Answer(held_up, Answer::Ready)),
        "{told:?}"
    );
    assert_eq!(open(&mut models, 21, 0), Opened::Ready);
}

#[test]
fn where_the_machine_is_short_idle_ones_go_and_then_it_is_tried() {
    let mut models = Residency::new(limits(), 3);
    bring_in(&mut models, 0, 0, 10);
    bring_in(&mut models, 1, 1, 10);
    models.release(at(2), 0);
    ticket(open(&mut models, 3, 2));
    models.measured(2, 10);
    assert_eq!(models.plan(at(3), Some(5)), [Action::Unload(0)]);
    assert_eq!(models.plan(at(3), Some(5)), [], "first it has to be gone");
    models.unloaded(0);
    // The other one is in use: what the system can do about it, it may do.
    assert_eq!(models.plan(at(3), Some(9)), [Action::Load(2)]);
}

#[test]
fn who_is_dismissed_goes_when_it_is_idle() {
    let mut models = Residency::new(limits(), 1);
    assert!(!models.dismiss(0), "it is not there");
    bring_in(&mut models, 0, 0, 1);
    assert!(!models.dismiss(0), "somebody uses it");
    models.release(at(1), 0);
    assert!(models.dismiss(0));
    assert_eq!(models.plan(at(1), None), [Action::Unload(0)]);
    models.unloaded(0);
    bring_in(&mut models, 2, 0, 1);
    models.release(at(3), 0);
    assert!(models.dismiss(0));
    assert_eq!(open(&mut models, 3, 0), Opened::Ready);
    models.release(at(4), 0);
    assert_eq!(models.plan(at(4), None), [], "somebody wanted it after all");
}

#[test]
fn the_end_answers_all_and_empties_everything() {
    let mut models = Residency::new(limits(), 3);
    models.adopt(2, 7);
    bring_in(&mut models, 0, 0, 1);
    let waits = ticket(open(&mut models, 1, 1));
    models.measured(1, 1);
    assert_eq!(models.plan(at(1), None), [Action::Load(1)]);
    models.close();
    let told = Action::Answer(waits, Answer::Closed);
    let out = [Action::Unload(0), Action::Unload(2), told];
    assert_eq!(models.plan(at(1), None), out);
    assert_eq!(open(&mut models, 1, 0), Opened::Closed);
    models.unloaded(0);
    models.unloaded(2);
    assert!(!models.is_over(), "a load goes on");
    models.loaded(at(2), 1, 1, SECOND);
    assert_eq!(models.plan(at(2), None), [Action::Unload(1)]);
    models.unloaded(1);
    assert!(models.is_over());
}

/// What the world does next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Open {
        model: usize,
        patience: Option<u8>,
    },
    GiveUp {
        which: usize,
    },
    Release {
        model: usize,
    },
    Dismiss {
        model: usize,
    },
    /// The oldest load or unloading ends.
    Done {
        fails: bool,
    },
    Pass {
        tenths: u8,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let model = 0..4_usize;
    let patience = prop::option::of(1..80_u8);
    prop_oneof![
        4 => (model.clone(), patience).prop_map(|(model, patience)| Event::Open { model, patience }),
        1 => any::<usize>().prop_map(|which| Event::GiveUp { which }),
        4 => model.clone().prop_map(|model| Event::Release { model }),
        1 => model.prop_map(|model| Event::Dismiss { model }),
        4 => prop::bool::weighted(0.1).prop_map(|fails| Event::Done { fails }),
        3 => (0..40_u8).prop_map(|tenths| Event::Pass { tenths }),
    ]
}

/// The state machine, and beside it what a caller knows of it.
struct World {
    models: Residency,
    limits: Limits,
    sizes: Vec<u64>,
    now: Time,
    /// Who waits, for which model, and until when.
    waits: HashMap<Ticket, (usize, Option<Time>)>,
    answered: HashSet<Ticket>,
    leases: Vec<usize>,
    last_used: Vec<Time>,
    under_way: Vec<Action>,
}

impl World {
    fn new(limits: Limits, sizes: Vec<u64>) -> Self {
        Self {
            models: Residency::new(limits, sizes.len()),
            limits,
            now: Time::ZERO,
            waits: HashMap::new(),
            answered: HashSet::new(),
            leases: vec![0; sizes.len()],
            last_used: vec![Time::ZERO; sizes.len()],
            under_way: Vec::new(),
            sizes,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Open { model, patience } => {
                let tenths = |n: u8| self.now + Duration::from_millis(100 * u64::from(n));
                let deadline = patience.map(tenths);
                match self.models.open(self.now, model, deadline, false) {
                    Opened::Ready => self.take(model),
                    Opened::Waits(ticket) => {
                        assert!(self.waits.insert(ticket, (model, deadline)).is_none());
                    }
                    Opened::Full { .. } => {
                        let waiting = self.waits.values().filter(|(m, _)| *m == model).count();
                        assert_eq!(waiting, self.limits.waiting);
                    }
                    Opened::Failed => {
                        assert!(matches!(self.models.state(model), State::Failed { .. }));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Event::GiveUp { which } => {
                let tickets: BTreeSet<_> = self.waits.keys().copied().collect();
                let Some(ticket) = tickets.iter().nth(which % tickets.len().max(1)) else {
                    return;
                };
                self.waits.remove(ticket);
                self.models.give_up(self.now, *ticket);
            }
            Event::Release { model } if self.leases[model] > 0 => {
                self.leases[model] -= 1;
                self.last_used[model] = self.now;
                self.models.release(self.now, model);
            }
            Event::Release { .. } => {}
            Event::Dismiss { model } => {
                let idle = self.models.dismiss(model);
                assert!(!idle || self.leases[model] == 0);
            }
            Event::Done { fails } if !self.under_way.is_empty() => match self.under_way.remove(0) {
                Action::Load(model) if fails => self.models.failed(self.now, model),
                Action::Load(model) => {
                    self.last_used[model] = self.now;
                    let bytes = self.sizes[model];
                    self.models.loaded(self.now, model, bytes, SECOND);
                }
                Action::Unload(model) => self.models.unloaded(model),
                Action::Answer(..) => unreachable!("done at once"),
            },
            Event::Done { .. } => {}
            Event::Pass { tenths } => self.now += Duration::from_millis(100 * u64::from(tenths)),
        }
        self.settle();
    }

    fn take(&mut self, model: usize) {
        assert_eq!(self.models.state(model), State::Loaded);
        self.leases[model] += 1;
        self.last_used[model] = self.now;
    }

    /// Plans until there is nothing more to do at this moment, and checks what is planned.
    fn settle(&mut self) {
        loop {
            while let Some(model) = self.models.unmeasured() {
                self.models.measured(model, self.sizes[model]);
            }
            let before: Vec<_> = (0..self.sizes.len())
                .map(|m| self.models.state(m))
                .collect();
            let actions = self.models.plan(self.now, None);
            self.check_order(&before, &actions);
            for action in &actions {
                self.apply(*action, &before);
            }
            if actions.is_empty() {
                break;
            }
        }
        let timer = self.models.next_timer(self.now);
        assert!(timer.is_none_or(|time| time > self.now), "it would spin");
        for (deadline, ticket) in self.waits.iter().filter_map(|(t, (_, d))| Some(((*d)?, t))) {
            assert!(deadline > self.now, "{ticket:?} was not told");
            assert!(
                timer.is_some_and(|time| time <= deadline),
                "{ticket:?} would be forgotten"
            );
        }
        let held: u64 = (0..self.sizes.len()).map(|m| self.models.held(m)).sum();
        assert!(
            self.limits.budget.is_none_or(|budget| held <= budget),
            "{held}"
        );
        for model in 0..self.sizes.len() {
            assert_eq!(self.models.leases(model), self.leases[model]);
            let waiting = self.waits.values().filter(|(m, _)| *m == model).count();
            assert_eq!(self.models.waiting(model), waiting);
        }
    }

    fn apply(&mut self, action: Action, before: &[State]) {
        match action {
            Action::Load(model) => {
                assert_eq!(before[model], State::Asleep, "loaded twice");
                let loading = |a: &&Action| matches!(a, Action::Load(_));
                let loads = self.under_way.iter().filter(loading).count();
                assert!(loads < self.limits.loads);
                self.under_way.push(action);
            }
            Action::Unload(model) => {
                assert_eq!(before[model], State::Loaded);
                assert_eq!(self.leases[model], 0, "somebody uses it");
                self.under_way.push(action);
            }
            Action::Answer(ticket, answer) => {
                assert!(self.answered.insert(ticket), "answered twice");
                let (model, deadline) = self.waits.remove(&ticket).expect("somebody waits");
                match answer {
                    Answer::Ready => self.take(model),
                    Answer::Late => assert!(deadline.is_some_and(|at| at <= self.now)),
                    Answer::Failed => {}
                    Answer::TooLarge { bytes, budget } => assert!(bytes > budget),
                    Answer::Closed => panic!("nothing was closed"),
                }
            }
        }
    }

    /// Of two that are idle the one that was used last stays, unless it was dismissed.
    fn check_order(&self, before: &[State], actions: &[Action]) {
        let goes = |model: usize| actions.contains(&Action::Unload(model));
        let all = 0..self.sizes.len();
        let idle = |m: &usize| before[*m] == State::Loaded && self.leases[*m] == 0;
        let stays = all.clone().filter(idle).filter(|m| !goes(*m));
        let oldest = stays.map(|m| self.last_used[m]).min();
        let victims = all.filter(|m| goes(*m) && !self.models.entries[*m].dismissed);
        for victim in victims {
            assert!(oldest.is_none_or(|oldest| self.last_used[victim] <= oldest));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn whatever_happens_all_that_was_promised_holds(
        budget in prop::option::of(10..40_u64),
        idle in prop::option::of(1..30_u64),
        loads in 1..3_usize,
        sizes in prop::collection::vec(1..25_u64, 4),
        events in prop::collection::vec(event(), 1..150),
    ) {
        let limits = Limits {
            budget,
            idle: idle.map(Duration::from_secs),
            loads,
            waiting: 3,
            turn: SECOND,
        };
        let mut world = World::new(limits, sizes);
        for event in events {
            world.happen(event);
        }
        // When users end and loads succeed, nobody waits for ever.
        for _ in 0..40 {
            for model in 0..4 {
                while world.leases[model] > 0 {
                    world.happen(Event::Release { model });
                }
            }
            world.happen(Event::Pass { tenths: 20 });
            world.happen(Event::Done { fails: false });
        }
        prop_assert_eq!(world.waits.len(), 0);
        prop_assert_eq!(world.under_way.len(), 0);
    }
}
