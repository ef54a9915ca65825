use super::*;
use crate::compute_turns::ComputeTurns;
use crate::counters::ProcessCounters;
use crate::epoch_ticker::Ticker;
use crate::test_support::{engine_and_linker, grants};
use corral_engine::RequestId;
use corral_engine::testing::{EngineWaker, SamplerMailbox};
use corral_engine::{ExternalSampler, SamplingRequest, Tenant, Token};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use wasmtime::component::{Component, Linker};
use wasmtime_wasi::WasiCtxBuilder;

const SAMPLER: &str = include_str!("sampler.wat");
const SPIN: &str = "(loop (br 0))";
/// Computes twice as long for each further candidate.
const COMPUTE_BY_CANDIDATES: &str =
    "(i32.store (i32.const 512) (i32.shl (i32.const 1) (local.get $count)))
    (loop
        (i32.store (i32.const 512) (i32.sub (i32.load (i32.const 512)) (i32.const 1)))
        (br_if 0 (i32.load (i32.const 512))))";

/// A process with one generation permit, and a replacement of the engine's mailbox.
struct Fixture {
    engine: wasmtime::Engine,
    linker: Linker<State>,
    resources: Arc<SamplerResources>,
    counters: Arc<ProcessCounters>,
    limits: Arc<Limits>,
    meter: Arc<Meter>,
    turns: Option<Arc<ComputeTurns>>,
    mailbox: Arc<SamplerMailbox>,
    notified: mpsc::UnboundedReceiver<()>,
    /// Answers taken from the mailbox but not yet returned.
    answers: VecDeque<(RequestId, Result<Token, Error>)>,
}

impl Fixture {
    fn new() -> Self {
        let (engine, linker) = engine_and_linker();
        let counters = Arc::<ProcessCounters>::default();
        let ticker = Arc::new(Ticker::start([&engine]).unwrap());
        let resources = SamplerResources::new(1, ticker, Arc::clone(&counters));
        let (notify, notified) = mpsc::unbounded_channel();
        Self {
            engine,
            linker,
            resources: Arc::new(resources),
            counters,
            limits: Arc::default(),
            meter: Arc::default(),
            turns: None,
            mailbox: SamplerMailbox::new(EngineWaker::new(move || {
                let _ = notify.send(());
            })),
            notified,
            answers: VecDeque::new(),
        }
    }

    /// A sampler with this code in its functions.
    fn sampler(&self, [start, needs, sample]: [&str; 3]) -> UncheckedSampler {
        let text = SAMPLER
            .replace("{start}", start)
            .replace("{needs}", needs)
            .replace("{sample}", sample);
        let component = Component::new(&self.engine, wat::parse_str(text).unwrap()).unwrap();
        let pre = self.linker.instantiate_pre(&component).unwrap();
        let mut grants = StoreGrants::clone(&grants(Arc::clone(&self.resources)));
        grants.turns.clone_from(&self.turns);
        let mut state = State::new(
            &mut WasiCtxBuilder::new(),
            Arc::new(grants),
            &self.limits,
            Arc::clone(&self.meter),
            Arc::default(),
        );
        let plugin = check_sampler(pre).unwrap();
        UncheckedSampler::new(&mut state, "pick".into(), plugin, "{}".into())
    }

    /// A checked sampler for a model of 256 tokens.
    async fn checked(&self, code: [&str; 3]) -> CheckedSampler {
        self.sampler(code).check(256).await.unwrap()
    }

    /// Requests one of the tokens from 5 on.
    fn request(&self, chooser: &mut dyn ExternalSampler, key: u64, candidates: u32) {
        #[allow(clippy::cast_precision_loss)]
        let shown = SamplingRequest {
            candidates: (0..candidates).map(|i| (5 + i, -(i as f32))).collect(),
            statistics: None,
            new_tokens: vec![1],
            position: 9,
        };
        chooser.sample(shown, self.mailbox.reply_for(RequestId(key)));
    }

    /// Waits for the next answer. Returns it with its key.
    async fn answer(&mut self) -> (u64, Result<Token, Error>) {
        self.notified.recv().await.unwrap();
        self.answers.extend(self.mailbox.take());
        let (key, answer) = self.answers.pop_front().unwrap();
        (key.0, answer)
    }

    fn metric(&self, name: &str) -> f64 {
        let metrics = self.counters.metrics();
        let metric = metrics.iter().find(|metric| metric.name == name);
        metric.unwrap().value
    }

    /// Waits until so many samplers wait for a turn.
    async fn wait_until_waiting(&self, samplers: u64) {
        while self.counters.calls_waiting_for_turn.get() != samplers {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn wait_until_no_instances(&self) {
        while self.counters.sampler_instances.get() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn samples_tokens_on_the_requests_cpu_time() {
    let mut fixture = Fixture::new();
    let checked = fixture.checked([""; 3]).await;
    let before = fixture.meter.used();
    assert!(before > Duration::ZERO, "the check counts");
    let factory = checked.factory(256);
    assert_eq!(factory.request_options().candidates, 40);
    let mut chooser = factory.start(1);
    // More calls than a store may hold resources: a call leaves none behind.
    let calls = 5000;
    for key in 0..calls {
        fixture.request(&mut *chooser, key, 40);
        assert_eq!(fixture.answer().await, (key, Ok(5)));
    }
    assert!(fixture.meter.used() > before);
    assert_eq!(fixture.metric("corral_sampling_plugin_calls_total"), 5000.0);
    assert_eq!(fixture.metric("corral_sampling_plugin_failures_total"), 0.0);
    assert_eq!(fixture.metric("corral_sampling_plugin_instances"), 1.0);
    drop(chooser);
    fixture.wait_until_no_instances().await;
}

#[tokio::test]
async fn instances_wait_for_a_permit() {
    let mut fixture = Fixture::new();
    let factory = fixture.checked([""; 3]).await.factory(256);
    let [mut first, mut second, mut third] = [1, 2, 3].map(|seed| factory.start(seed));
    fixture.request(&mut *first, 1, 1);
    assert_eq!(fixture.answer().await, (1, Ok(5)));
    fixture.request(&mut *second, 2, 1);
    fixture.request(&mut *third, 3, 1);
    // The first holds the only permit, so the second ends without one.
    drop(second);
    let (key, answer) = fixture.answer().await;
    assert!(key == 2 && answer.is_err(), "{key} {answer:?}");
    drop(first);
    assert_eq!(fixture.answer().await, (3, Ok(5)));
    drop(third);
    fixture.wait_until_no_instances().await;
}

#[tokio::test]
async fn permit_timeout_refuses_the_request() {
    let mut fixture = Fixture::new();
    let resources = Arc::get_mut(&mut fixture.resources).unwrap();
    resources.permit_timeout = Duration::from_millis(10);
    let factory = fixture.checked([""; 3]).await.factory(256);
    let [mut first, mut second] = [1, 2].map(|seed| factory.start(seed));
    fixture.request(&mut *first, 1, 1);
    assert_eq!(fixture.answer().await, (1, Ok(5)));
    fixture.request(&mut *second, 2, 1);
    let (_, answer) = fixture.answer().await;
    let Err(Error::Overloaded { reason, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert!(
        reason.contains("no instance of the sampling plugin pick"),
        "{reason}"
    );
    // Checks have permits of their own.
    fixture.checked([""; 3]).await;
    fixture.request(&mut *first, 3, 1);
    assert_eq!(fixture.answer().await, (3, Ok(5)));
}

#[tokio::test]
async fn dropping_a_spinning_sampler_frees_its_permit() {
    let mut fixture = Fixture::new();
    // Spins with seed 1; the check uses seed 0.
    let start = format!("(if (i64.eq (local.get $seed) (i64.const 1)) (then {SPIN}))");
    let factory = fixture.checked([&start, "", ""]).await.factory(256);
    let before = fixture.meter.used();
    let mut spinning = factory.start(1);
    fixture.request(&mut *spinning, 1, 1);
    while fixture.meter.used() == before {
        tokio::task::yield_now().await;
    }
    drop(spinning);
    let mut next = factory.start(2);
    fixture.request(&mut *next, 2, 1);
    let (key, answer) = fixture.answer().await;
    assert!(key == 1 && answer.is_err(), "{key} {answer:?}");
    assert_eq!(fixture.answer().await, (2, Ok(5)));
    // The first request never reached a sampler.
    assert_eq!(fixture.metric("corral_sampling_plugin_calls_total"), 1.0);
}

#[tokio::test]
async fn sampler_stops_when_request_has_no_cpu_time() {
    for (left, code) in [(Duration::ZERO, ""), (Duration::from_millis(5), SPIN)] {
        let mut fixture = Fixture::new();
        let factory = fixture.checked(["", "", code]).await.factory(256);
        let mut chooser = factory.start(1);
        // Other work of the request uses up its CPU time but for `left`.
        let rest = fixture.limits.cpu - fixture.meter.used() - left;
        fixture.meter.charge(rest + Duration::from_nanos(1));
        fixture.request(&mut *chooser, 1, 40);
        let (_, answer) = fixture.answer().await;
        let Err(Error::Failed(text)) = answer else {
            panic!("{left:?}: {answer:?}");
        };
        assert!(
            text.contains("pick was stopped, because the request has used its 10 s of CPU time"),
            "{text}"
        );
        // The handler is woken.
        fixture.meter.exhausted().await;
    }
}

#[tokio::test]
async fn spinning_sampler_waits_for_turn_until_dropped() {
    let mut fixture = Fixture::new();
    // The runtime has one thread, so there is one turn.
    let turns = ComputeTurns::for_workers(Arc::clone(&fixture.counters));
    fixture.turns = Some(Arc::clone(&turns));
    let factory = fixture.checked(["", "", SPIN]).await.factory(256);
    let other = TurnQueue::new(&turns, Tenant(7), &Arc::default());
    let turn = other.wait().await.expect("the turn is free");
    let mut first = factory.start(1);
    fixture.request(&mut *first, 1, 40);
    fixture.wait_until_waiting(1).await;
    drop(first);
    fixture.wait_until_waiting(0).await;
    let (key, answer) = fixture.answer().await;
    assert!(key == 1 && answer.is_err(), "{key} {answer:?}");
    let mut second = factory.start(2);
    fixture.request(&mut *second, 2, 40);
    fixture.wait_until_waiting(1).await;
    drop(turn);
    let (_, answer) = fixture.answer().await;
    let Err(Error::Failed(text)) = answer else {
        panic!("{answer:?}");
    };
    assert!(text.contains("exceeded the 50 ms of CPU time"), "{text}");
    other.wait().await.expect("the turn is free again");
}

#[tokio::test]
async fn slow_calls_let_sampler_wait_for_turns() {
    let mut fixture = Fixture::new();
    let turns = ComputeTurns::for_workers(Arc::clone(&fixture.counters));
    fixture.turns = Some(Arc::clone(&turns));
    let checked = fixture.checked(["", "", COMPUTE_BY_CANDIDATES]).await;
    let _other = TurnQueue::new(&turns, Tenant(7), &Arc::default());
    let mut chooser = checked.factory(256).start(1);
    let queue = checked.sampler.turns.as_ref().unwrap();
    let mut key = 0;
    // Longer calls until one is slow, then short ones until one is not: what interrupts a call may count as its time.
    for (calls, is_slow) in [(Vec::from_iter(1..31), true), (vec![1; 30], false)] {
        let mut calls = calls.into_iter();
        while queue.needs_turn() != is_slow {
            let candidates = calls.next().expect("another call");
            key += 1;
            fixture.request(&mut *chooser, key, candidates);
            assert_eq!(fixture.answer().await, (key, Ok(5)));
        }
    }
}
