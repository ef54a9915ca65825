use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap, HashSet};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

fn limits() -> PoolLimits {
    PoolLimits {
        budget: None,
        idle: None,
        loads: 1,
        waiters: 3,
        min_residency: 5 * SECOND,
    }
}

fn id(opened: OpenResult) -> WaiterId {
    match opened {
        OpenResult::Waits(id) => id,
        other => panic!("{other:?}"),
    }
}

fn ready(id: WaiterId) -> Action {
    Action::Answer(id, WaitResult::Ready)
}

fn open(models: &mut PoolPolicy, now: u64, model: usize) -> OpenResult {
    models.open(at(now), model, None, false)
}

/// Opens and loads a model of `bytes`.
fn load(models: &mut PoolPolicy, now: u64, model: usize, bytes: u64) {
    let waits = id(open(models, now, model));
    models.set_size(model, bytes);
    assert_eq!(models.plan(at(now), None), [Action::Load(model)]);
    models.loaded(at(now), model, bytes, SECOND);
    assert_eq!(models.plan(at(now), None), [ready(waits)]);
}

#[test]
fn one_load_serves_all_waiters() {
    let mut models = PoolPolicy::new(limits(), 2);
    let first = id(open(&mut models, 0, 0));
    assert_eq!(models.model_of_unknown_size(), Some(0));
    assert_eq!(models.plan(at(0), None), [], "its size is unknown");
    models.set_size(0, 10);
    assert_eq!(models.plan(at(0), None), [Action::Load(0)]);
    let second = id(open(&mut models, 1, 0));
    assert_eq!(
        (models.model_of_unknown_size(), models.plan(at(1), None)),
        (None, vec![])
    );
    models.loaded(at(2), 0, 11, 2 * SECOND);
    let answers = [first, second].map(ready);
    assert_eq!(models.plan(at(2), None), answers);
    assert_eq!(open(&mut models, 3, 0), OpenResult::Ready);
    assert_eq!((models.leases(0), models.held(0)), (3, 11));
    assert_eq!(models.retry_after(0), 2 * SECOND);
}

#[test]
fn loads_follow_order_of_first_waiters() {
    let mut models = PoolPolicy::new(limits(), 3);
    for (now, model) in [(0, 2), (1, 0), (2, 2), (3, 1)] {
        id(open(&mut models, now, model));
    }
    let mut order = Vec::new();
    for now in 4..7 {
        while let Some(model) = models.model_of_unknown_size() {
            models.set_size(model, 1);
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
fn waiters_end_at_deadline_and_are_limited() {
    let mut models = PoolPolicy::new(limits(), 1);
    let late = id(models.open(at(0), 0, Some(at(3)), false));
    let patient = id(open(&mut models, 0, 0));
    let canceled = id(open(&mut models, 0, 0));
    let full = OpenResult::Full {
        retry_after: SECOND,
    };
    assert_eq!(open(&mut models, 0, 0), full);
    models.cancel(at(0), canceled);
    models.set_size(0, 1);
    assert_eq!(models.plan(at(0), None), [Action::Load(0)]);
    assert_eq!(models.next_timer(at(0)), Some(at(3)));
    assert_eq!(
        models.plan(at(3), None),
        [Action::Answer(late, WaitResult::Late)]
    );
    assert_eq!(models.next_timer(at(3)), None);
    let over = models.open(at(4), 0, Some(at(4)), false);
    assert_eq!(over, OpenResult::Late);
    models.loaded(at(5), 0, 1, SECOND);
    assert_eq!(models.plan(at(5), None), [ready(patient)]);
    assert_eq!(models.leases(0), 1);
}

#[test]
fn canceled_waiters_cause_no_load() {
    let mut models = PoolPolicy::new(limits(), 1);
    let canceled = id(open(&mut models, 0, 0));
    models.cancel(at(0), canceled);
    assert_eq!(
        (models.model_of_unknown_size(), models.plan(at(0), None)),
        (None, vec![])
    );
    // A waiter that is canceled after the load returns its lease.
    let canceled = id(open(&mut models, 0, 0));
    models.set_size(0, 1);
    models.plan(at(0), None);
    models.loaded(at(1), 0, 1, SECOND);
    assert_eq!(models.leases(0), 1);
    models.cancel(at(1), canceled);
    assert_eq!((models.leases(0), models.plan(at(1), None)), (0, vec![]));
}

#[test]
fn failed_load_backs_off_until_file_changes() {
    let mut models = PoolPolicy::new(limits(), 1);
    let mut now = 0;
    for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
        let waits = id(open(&mut models, now, 0));
        models.set_size(0, 1);
        assert_eq!(models.plan(at(now), None), [Action::Load(0)]);
        models.failed(at(now), 0);
        let answered = Action::Answer(waits, WaitResult::Failed);
        assert_eq!(models.plan(at(now), None), [answered]);
        let retry_at = at(now + delay);
        assert_eq!(models.state(0), LoadState::Failed { retry_at });
        assert_eq!(open(&mut models, now + delay - 1, 0), OpenResult::Failed);
        now += delay;
    }
    let waits = id(open(&mut models, now, 0));
    // The size estimate can fail too.
    models.failed(at(now), 0);
    let answered = Action::Answer(waits, WaitResult::Failed);
    assert_eq!(models.plan(at(now), None), [answered]);
    assert_eq!(open(&mut models, now, 0), OpenResult::Failed);
    id(models.open(at(now), 0, None, true));
    models.set_size(0, 1);
    assert_eq!(models.plan(at(now), None), [Action::Load(0)]);
    models.loaded(at(now), 0, 1, SECOND);
    models.plan(at(now), None);
    assert_eq!(open(&mut models, now, 0), OpenResult::Ready);
}

#[test]
fn idle_model_is_unloaded_and_loaded_again() {
    let limits = PoolLimits {
        idle: Some(10 * SECOND),
        ..limits()
    };
    let mut models = PoolPolicy::new(limits, 1);
    load(&mut models, 0, 0, 1);
    assert_eq!(models.plan(at(100), None), [], "it is in use");
    assert_eq!(models.next_timer(at(100)), None);
    models.release(at(100), 0);
    assert_eq!(models.unused_for(at(103), 0), Some(3 * SECOND));
    assert_eq!(models.next_timer(at(100)), Some(at(110)));
    assert_eq!(models.plan(at(109), None), []);
    assert_eq!(models.plan(at(110), None), [Action::Unload(0)]);
    // A caller that opens it while it unloads waits for the next load.
    let waits = id(open(&mut models, 111, 0));
    assert_eq!(models.plan(at(111), None), []);
    models.unloaded(0);
    assert_eq!(
        models.model_of_unknown_size(),
        Some(0),
        "the file may have changed"
    );
    models.set_size(0, 1);
    assert_eq!(models.plan(at(112), None), [Action::Load(0)]);
    models.loaded(at(113), 0, 1, SECOND);
    assert_eq!(models.plan(at(113), None), [ready(waits)]);
}

#[test]
fn least_recently_used_models_make_room() {
    let limits = PoolLimits {
        budget: Some(30),
        ..limits()
    };
    let mut models = PoolPolicy::new(limits, 4);
    for model in 0..3 {
        load(&mut models, model as u64, model, 10);
    }
    for (now, model) in [(10, 1), (11, 0), (12, 2)] {
        models.release(at(now), model);
    }
    let waits = id(open(&mut models, 13, 3));
    models.set_size(3, 15);
    let out = [Action::Unload(1), Action::Unload(0)];
    assert_eq!(models.plan(at(13), None), out);
    models.unloaded(0);
    assert_eq!(models.plan(at(13), None), [], "both must be unloaded");
    models.unloaded(1);
    assert_eq!(models.plan(at(13), None), [Action::Load(3)]);
    models.loaded(at(14), 3, 15, SECOND);
    assert_eq!(models.plan(at(14), None), [ready(waits)]);
    assert_eq!(open(&mut models, 14, 2), OpenResult::Ready);
}

#[test]
fn too_large_model_fails_without_blocking_others() {
    let limits = PoolLimits {
        budget: Some(30),
        ..limits()
    };
    let mut models = PoolPolicy::new(limits, 2);
    let (large, small) = (id(open(&mut models, 0, 0)), open(&mut models, 0, 1));
    id(small);
    models.set_size(0, 31);
    let answer = WaitResult::TooLarge {
        bytes: 31,
        budget: 30,
    };
    assert_eq!(models.plan(at(0), None), [Action::Answer(large, answer)]);
    models.set_size(1, 30);
    assert_eq!(models.plan(at(0), None), [Action::Load(1)]);
}

#[test]
fn models_in_use_drain_after_min_residency() {
    let limits = PoolLimits {
        budget: Some(10),
        ..limits()
    };
    let mut models = PoolPolicy::new(limits, 2);
    load(&mut models, 0, 0, 10);
    let waits = id(open(&mut models, 1, 1));
    models.set_size(1, 10);
    assert_eq!(models.plan(at(1), None), []);
    assert_eq!(
        models.next_timer(at(1)),
        Some(at(5)),
        "the end of its residency"
    );
    assert_eq!(open(&mut models, 2, 0), OpenResult::Ready);
    assert_eq!(models.plan(at(5), None), []);
    // It accepts no new leases.
    let next = id(open(&mut models, 6, 0));
    models.release(at(7), 0);
    assert_eq!(models.plan(at(7), None), []);
    models.release(at(8), 0);
    assert_eq!(models.plan(at(8), None), [Action::Unload(0)]);
    models.unloaded(0);
    assert_eq!(models.plan(at(8), None), [Action::Load(1)]);
    models.loaded(at(9), 1, 10, SECOND);
    assert_eq!(models.plan(at(9), None), [ready(waits)]);
    // The reverse.
    models.set_size(0, 10);
    models.release(at(9), 1);
    assert_eq!(models.plan(at(9), None), [Action::Unload(1)]);
    models.unloaded(1);
    assert_eq!(models.plan(at(9), None), [Action::Load(0)]);
    models.loaded(at(10), 0, 10, SECOND);
    assert_eq!(models.plan(at(10), None), [ready(next)]);
}

#[test]
fn leases_resume_when_waiter_expires() {
    let limits = PoolLimits {
        budget: Some(10),
        ..limits()
    };
    let mut models = PoolPolicy::new(limits, 2);
    load(&mut models, 0, 0, 10);
    models.open(at(9), 1, Some(at(20)), false);
    models.set_size(1, 10);
    assert_eq!(models.plan(at(9), None), []);
    let waiting = id(open(&mut models, 10, 0));
    assert_eq!(models.plan(at(10), None), []);
    let answered = models.plan(at(20), None);
    assert!(answered.contains(&ready(waiting)), "{answered:?}");
    assert_eq!(open(&mut models, 21, 0), OpenResult::Ready);
}

#[test]
fn short_machine_memory_unloads_idle_models_first() {
    let mut models = PoolPolicy::new(limits(), 3);
    load(&mut models, 0, 0, 10);
    load(&mut models, 1, 1, 10);
    models.release(at(2), 0);
    id(open(&mut models, 3, 2));
    models.set_size(2, 10);
    assert_eq!(models.plan(at(3), Some(5)), [Action::Unload(0)]);
    assert_eq!(models.plan(at(3), Some(5)), [], "it must be unloaded first");
    models.unloaded(0);
    // The other model is in use, so the load is tried with the memory there is.
    assert_eq!(models.plan(at(3), Some(9)), [Action::Load(2)]);
}

#[test]
fn unload_request_needs_idle_model() {
    let mut models = PoolPolicy::new(limits(), 1);
    assert!(!models.request_unload(0), "it is not loaded");
    load(&mut models, 0, 0, 1);
    assert!(!models.request_unload(0), "it is in use");
    models.release(at(1), 0);
    assert!(models.request_unload(0));
    assert_eq!(models.plan(at(1), None), [Action::Unload(0)]);
    models.unloaded(0);
    load(&mut models, 2, 0, 1);
    models.release(at(3), 0);
    assert!(models.request_unload(0));
    assert_eq!(open(&mut models, 3, 0), OpenResult::Ready);
    models.release(at(4), 0);
    assert_eq!(
        models.plan(at(4), None),
        [],
        "the later open canceled the request"
    );
}

#[test]
fn close_answers_waiters_and_unloads_all() {
    let mut models = PoolPolicy::new(limits(), 3);
    models.pin(2, 7);
    load(&mut models, 0, 0, 1);
    let waits = id(open(&mut models, 1, 1));
    models.set_size(1, 1);
    assert_eq!(models.plan(at(1), None), [Action::Load(1)]);
    models.close();
    let answered = Action::Answer(waits, WaitResult::Closed);
    let out = [Action::Unload(0), Action::Unload(2), answered];
    assert_eq!(models.plan(at(1), None), out);
    assert_eq!(open(&mut models, 1, 0), OpenResult::Closed);
    models.unloaded(0);
    models.unloaded(2);
    assert!(!models.is_closed_and_empty(), "a load continues");
    models.loaded(at(2), 1, 1, SECOND);
    assert_eq!(models.plan(at(2), None), [Action::Unload(1)]);
    models.unloaded(1);
    assert!(models.is_closed_and_empty());
}

/// A random event.
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
    RequestUnload {
        model: usize,
    },
    /// The oldest load or unload ends.
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
        1 => model.prop_map(|model| Event::RequestUnload { model }),
        4 => prop::bool::weighted(0.1).prop_map(|fails| Event::Done { fails }),
        3 => (0..40_u8).prop_map(|tenths| Event::Pass { tenths }),
    ]
}

/// The policy, and a model of what it must do.
struct PolicyModel {
    policy: PoolPolicy,
    limits: PoolLimits,
    sizes: Vec<u64>,
    now: Time,
    /// The waiters, with their models and deadlines.
    waits: HashMap<WaiterId, (usize, Option<Time>)>,
    answered: HashSet<WaiterId>,
    leases: Vec<usize>,
    last_used: Vec<Time>,
    under_way: Vec<Action>,
}

impl PolicyModel {
    fn new(limits: PoolLimits, sizes: Vec<u64>) -> Self {
        Self {
            policy: PoolPolicy::new(limits, sizes.len()),
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

    fn apply_event(&mut self, event: Event) {
        match event {
            Event::Open { model, patience } => {
                let tenths = |n: u8| self.now + Duration::from_millis(100 * u64::from(n));
                let deadline = patience.map(tenths);
                match self.policy.open(self.now, model, deadline, false) {
                    OpenResult::Ready => self.take(model),
                    OpenResult::Waits(id) => {
                        assert!(self.waits.insert(id, (model, deadline)).is_none());
                    }
                    OpenResult::Full { .. } => {
                        let waiting = self.waits.values().filter(|(m, _)| *m == model).count();
                        assert_eq!(waiting, self.limits.waiters);
                    }
                    OpenResult::Failed => {
                        assert!(matches!(self.policy.state(model), LoadState::Failed { .. }));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Event::GiveUp { which } => {
                let ids: BTreeSet<_> = self.waits.keys().copied().collect();
                let Some(id) = ids.iter().nth(which % ids.len().max(1)) else {
                    return;
                };
                self.waits.remove(id);
                self.policy.cancel(self.now, *id);
            }
            Event::Release { model } if self.leases[model] > 0 => {
                self.leases[model] -= 1;
                self.last_used[model] = self.now;
                self.policy.release(self.now, model);
            }
            Event::Release { .. } => {}
            Event::RequestUnload { model } => {
                let idle = self.policy.request_unload(model);
                assert!(!idle || self.leases[model] == 0);
            }
            Event::Done { fails } if !self.under_way.is_empty() => match self.under_way.remove(0) {
                Action::Load(model) if fails => self.policy.failed(self.now, model),
                Action::Load(model) => {
                    self.last_used[model] = self.now;
                    let bytes = self.sizes[model];
                    self.policy.loaded(self.now, model, bytes, SECOND);
                }
                Action::Unload(model) => self.policy.unloaded(model),
                Action::Answer(..) => unreachable!("answers are applied at once"),
            },
            Event::Done { .. } => {}
            Event::Pass { tenths } => self.now += Duration::from_millis(100 * u64::from(tenths)),
        }
        self.settle();
    }

    fn take(&mut self, model: usize) {
        assert_eq!(self.policy.state(model), LoadState::Loaded);
        self.leases[model] += 1;
        self.last_used[model] = self.now;
    }

    /// Plans until nothing is left to do, and checks the plans.
    fn settle(&mut self) {
        loop {
            while let Some(model) = self.policy.model_of_unknown_size() {
                self.policy.set_size(model, self.sizes[model]);
            }
            let before: Vec<_> = (0..self.sizes.len())
                .map(|m| self.policy.state(m))
                .collect();
            let actions = self.policy.plan(self.now, None);
            self.check_order(&before, &actions);
            for action in &actions {
                self.apply(*action, &before);
            }
            if actions.is_empty() {
                break;
            }
        }
        let timer = self.policy.next_timer(self.now);
        assert!(
            timer.is_none_or(|time| time > self.now),
            "the timer is in the past"
        );
        for (deadline, id) in self.waits.iter().filter_map(|(t, (_, d))| Some(((*d)?, t))) {
            assert!(deadline > self.now, "{id:?} is past its deadline");
            assert!(
                timer.is_some_and(|time| time <= deadline),
                "no timer for {id:?}"
            );
        }
        let held: u64 = (0..self.sizes.len()).map(|m| self.policy.held(m)).sum();
        assert!(
            self.limits.budget.is_none_or(|budget| held <= budget),
            "{held}"
        );
        for model in 0..self.sizes.len() {
            assert_eq!(self.policy.leases(model), self.leases[model]);
            let waiting = self.waits.values().filter(|(m, _)| *m == model).count();
            assert_eq!(self.policy.waiting(model), waiting);
        }
    }

    fn apply(&mut self, action: Action, before: &[LoadState]) {
        match action {
            Action::Load(model) => {
                assert_eq!(before[model], LoadState::Unloaded, "loaded twice");
                let loading = |a: &&Action| matches!(a, Action::Load(_));
                let loads = self.under_way.iter().filter(loading).count();
                assert!(loads < self.limits.loads);
                self.under_way.push(action);
            }
            Action::Unload(model) => {
                assert_eq!(before[model], LoadState::Loaded);
                assert_eq!(self.leases[model], 0, "it is in use");
                self.under_way.push(action);
            }
            Action::Answer(id, answer) => {
                assert!(self.answered.insert(id), "answered twice");
                let (model, deadline) = self.waits.remove(&id).expect("it waits");
                match answer {
                    WaitResult::Ready => self.take(model),
                    WaitResult::Late => assert!(deadline.is_some_and(|at| at <= self.now)),
                    WaitResult::Failed => {}
                    WaitResult::TooLarge { bytes, budget } => assert!(bytes > budget),
                    WaitResult::Closed => panic!("the pool is open"),
                }
            }
        }
    }

    /// Idle models leave in order of last use, unless their unload was requested.
    fn check_order(&self, before: &[LoadState], actions: &[Action]) {
        let unloads = |model: usize| actions.contains(&Action::Unload(model));
        let all = 0..self.sizes.len();
        let idle = |m: &usize| before[*m] == LoadState::Loaded && self.leases[*m] == 0;
        let stays = all.clone().filter(idle).filter(|m| !unloads(*m));
        let oldest = stays.map(|m| self.last_used[m]).min();
        let victims = all.filter(|m| unloads(*m) && !self.policy.entries[*m].unload_requested);
        for victim in victims {
            assert!(oldest.is_none_or(|oldest| self.last_used[victim] <= oldest));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn random_events_keep_invariants(
        budget in prop::option::of(10..40_u64),
        idle in prop::option::of(1..30_u64),
        loads in 1..3_usize,
        sizes in prop::collection::vec(1..25_u64, 4),
        events in prop::collection::vec(event(), 1..150),
    ) {
        let limits = PoolLimits {
            budget,
            idle: idle.map(Duration::from_secs),
            loads,
            waiters: 3,
            min_residency: SECOND,
        };
        let mut checker = PolicyModel::new(limits, sizes);
        for event in events {
            checker.apply_event(event);
        }
        // Once leases end and loads succeed, all waiters are served.
        for _ in 0..40 {
            for model in 0..4 {
                while checker.leases[model] > 0 {
                    checker.apply_event(Event::Release { model });
                }
            }
            checker.apply_event(Event::Pass { tenths: 20 });
            checker.apply_event(Event::Done { fails: false });
        }
        prop_assert_eq!(checker.waits.len(), 0);
        prop_assert_eq!(checker.under_way.len(), 0);
    }
}
