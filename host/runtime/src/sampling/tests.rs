use super::*;
use crate::engine::engine;
use crate::host::{Snapshots, turns};
use crate::linker::linker;
use crate::models::Visible;
use crate::settings::Settings;
use corral_engine::RequestId;
use corral_engine::{Caller, Chooser, Desk, Models, Shown, Token};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use wasmtime::component::Component;
use wasmtime_wasi::WasiCtxBuilder;

const SAMPLER: &str = include_str!("sampler.wat");
const SPIN: &str = "(loop (br 0))";

/// A process with one place for samplers, and a desk where an engine's questions are answered.
struct House {
    engine: wasmtime::Engine,
    sampling: Arc<Sampling>,
    counters: Arc<Counters>,
    limits: Arc<Limits>,
    meter: Arc<Meter>,
    desk: Arc<Desk>,
    answered: mpsc::UnboundedReceiver<()>,
    /// Those that were not looked at yet.
    answers: VecDeque<(RequestId, Result<Token, Error>)>,
}

impl House {
    fn new() -> Self {
        let settings = Settings {
            instances: 1,
            ..Settings::default()
        };
        let engine = engine(&settings).unwrap();
        let counters = Arc::<Counters>::default();
        let ticker = Arc::new(Ticker::start(&engine).unwrap());
        let sampling = Sampling::new(1, ticker, Arc::clone(&counters));
        let (answer, answered) = mpsc::unbounded_channel();
        Self {
            engine,
            sampling: Arc::new(sampling),
            counters,
            limits: Arc::default(),
            meter: Arc::default(),
            desk: Desk::new(Box::new(move || {
                let _ = answer.send(());
            })),
            answered,
            answers: VecDeque::new(),
        }
    }

    /// Orders a sampler, in whose functions this code runs.
    fn order(&self, [start, needs, sample]: [&str; 3]) -> Unchecked {
        let text = SAMPLER
            .replace("{start}", start)
            .replace("{needs}", needs)
            .replace("{sample}", sample);
        let component = Component::new(&self.engine, wat::parse_str(text).unwrap()).unwrap();
        let pre = linker(&self.engine).unwrap();
        let pre = pre.instantiate_pre(&component).unwrap();
        let grants = Grants {
            models: Visible::new(&Models::loaded(Vec::new()), None).unwrap(),
            snapshots: Snapshots::new("x", turns()),
            samplers: Arc::default(),
            sampling: Arc::clone(&self.sampling),
        };
        let mut state = State::new(
            &mut WasiCtxBuilder::new(),
            grants,
            Caller::default(),
            None,
            &self.limits,
            Arc::clone(&self.meter),
            Arc::default(),
        );
        let plugin = checked(pre).unwrap();
        Unchecked::new(&mut state, "pick".into(), plugin, "{}".into())
    }

    /// What a check says that fails.
    async fn unfit(&self, start: &str, needs: &str) -> Error {
        let order = self.order([start, needs, ""]);
        order.check(256).await.err().unwrap()
    }

    /// Asks for one of the tokens from 5 on, so many.
    fn ask(&self, chooser: &mut dyn Chooser, key: u64, candidates: u32) {
        #[allow(clippy::cast_precision_loss)]
        let shown = Shown {
            candidates: (0..candidates).map(|i| (5 + i, -(i as f32))).collect(),
            statistics: None,
            since: vec![1],
            position: 9,
        };
        chooser.choose(shown, self.desk.question(RequestId(key)));
    }

    /// The next answer, and whose it is.
    async fn answer(&mut self) -> (u64, Result<Token, Error>) {
        self.answered.recv().await.unwrap();
        self.answers.extend(self.desk.take());
        let (key, answer) = self.answers.pop_front().unwrap();
        (key.0, answer)
    }

    fn counter(&self, name: &str) -> f64 {
        let metrics = self.counters.list();
        let found = metrics.iter().find(|metric| metric.name == name);
        found.unwrap().value
    }

    /// Waits until no instance lives.
    async fn empty(&self) {
        while self.counter("corral_sampling_plugin_instances") > 0.0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn it_chooses_token_after_token_on_the_account_of_the_request() {
    let mut house = House::new();
    let linked = house.order([""; 3]).check(256).await.unwrap();
    let before = house.meter.used();
    assert!(before > Duration::ZERO, "the check counts");
    let choosers = linked.choosers(256);
    assert_eq!(choosers.wanted().candidates, 40);
    let mut chooser = choosers.start(1);
    // More than a store may hold of anything: nothing stays of a call.
    let calls = 5000;
    for key in 0..calls {
        house.ask(&mut *chooser, key, 40);
        assert_eq!(house.answer().await, (key, Ok(5)));
    }
    assert!(house.meter.used() > before);
    assert_eq!(house.counter("corral_sampling_plugin_calls_total"), 5000.0);
    assert_eq!(house.counter("corral_sampling_plugin_failures_total"), 0.0);
    assert_eq!(house.counter("corral_sampling_plugin_instances"), 1.0);
    drop(chooser);
    house.empty().await;
}

#[tokio::test]
async fn what_fails_fails_alone_and_says_why() {
    let eat = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    for (code, said) in [
        (
            "unreachable",
            "pick failed: the plugin crashed: wasm `unreachable`",
        ),
        (SPIN, "pick was not done after the"),
        ("(call $refuse)", "pick gave up: too loud"),
        (
            "(i32.store (i32.const 4) (i32.const 45))",
            "pick chose the token 45, which is not among the 40",
        ),
        (
            eat,
            "pick failed: the plugin needs more memory than its 64 MiB",
        ),
    ] {
        let mut house = House::new();
        let linked = house.order(["", "", code]).check(256).await.unwrap();
        let mut chooser = linked.choosers(256).start(1);
        for key in [1, 2] {
            house.ask(&mut *chooser, key, 40);
            let (of, answer) = house.answer().await;
            let Err(Error::Failed(text)) = answer else {
                panic!("{code}: {answer:?}");
            };
            assert!(of == key && text.contains(said), "{code}: {text}");
            // The place is free, although the chooser is still there.
            assert_eq!(house.counter("corral_sampling_plugin_instances"), 0.0);
        }
        assert_eq!(house.counter("corral_sampling_plugin_failures_total"), 2.0);
    }
}

#[tokio::test]
async fn settings_and_needs_are_checked_before_anything_is_generated() {
    let house = House::new();
    let refused = house.unfit("(call $refuse)", "").await;
    let words = "the sampling plugin pick refuses its settings: too loud";
    assert_eq!(refused, Error::Invalid(words.into()));
    for (start, needs, said) in [
        ("unreachable", "", "pick failed: the plugin crashed"),
        (SPIN, "", "pick was not done after the"),
        ("", "unreachable", "pick failed: the plugin crashed"),
        (
            "",
            "(i32.store (i32.const 0) (i32.const 0))",
            "needs 0 candidates; it may have 1 to 4096",
        ),
        (
            "",
            "(i32.store (i32.const 0) (i32.const 4097))",
            "needs 4097 candidates",
        ),
        (
            "",
            "(i32.store (i32.const 8) (i32.const 65537))",
            "needs 65537 tokens of the text",
        ),
    ] {
        let Error::Failed(text) = house.unfit(start, needs).await else {
            panic!("{start} {needs}");
        };
        assert!(text.contains(said), "{text}");
        house.empty().await;
    }
}

#[tokio::test]
async fn what_it_needs_may_not_change() {
    let mut house = House::new();
    // As many as the model has tokens.
    let start = "(i32.store (i32.const 128) (local.get $vocabulary))";
    let needs = "(i32.store (i32.const 0) (i32.load (i32.const 128)))";
    let linked = house.order([start, needs, ""]).check(256).await.unwrap();
    assert_eq!(linked.choosers(256).wanted().candidates, 256);
    for (vocabulary, fits) in [(255, false), (256, true)] {
        let mut chooser = linked.choosers(vocabulary).start(1);
        house.ask(&mut *chooser, 1, 3);
        let (_, answer) = house.answer().await;
        assert_eq!(answer == Ok(5), fits, "{answer:?}");
    }
}

#[tokio::test]
async fn who_finds_no_place_waits_and_leaves_nothing_behind() {
    let mut house = House::new();
    let linked = house.order([""; 3]).check(256).await.unwrap();
    let choosers = linked.choosers(256);
    let [mut first, mut second, mut third] = [1, 2, 3].map(|seed| choosers.start(seed));
    house.ask(&mut *first, 1, 1);
    assert_eq!(house.answer().await, (1, Ok(5)));
    house.ask(&mut *second, 2, 1);
    house.ask(&mut *third, 3, 1);
    // The first has the only place, so the second ends before it has begun.
    drop(second);
    let (of, answer) = house.answer().await;
    assert!(of == 2 && answer.is_err(), "{of} {answer:?}");
    drop(first);
    assert_eq!(house.answer().await, (3, Ok(5)));
    drop(third);
    house.empty().await;
}

#[tokio::test]
async fn who_finds_no_place_in_time_is_told_to_come_again() {
    let mut house = House::new();
    let sampling = Arc::get_mut(&mut house.sampling).unwrap();
    sampling.patience = Duration::from_millis(10);
    let linked = house.order([""; 3]).check(256).await.unwrap();
    let choosers = linked.choosers(256);
    let [mut first, mut second] = [1, 2].map(|seed| choosers.start(seed));
    house.ask(&mut *first, 1, 1);
    assert_eq!(house.answer().await, (1, Ok(5)));
    house.ask(&mut *second, 2, 1);
    let (_, answer) = house.answer().await;
    let Err(Error::Refused { reason, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert!(
        reason.contains("no place for the sampling plugin pick"),
        "{reason}"
    );
    // Settings are checked all the same.
    assert!(house.order([""; 3]).check(256).await.is_ok());
    house.ask(&mut *first, 3, 1);
    assert_eq!(house.answer().await, (3, Ok(5)));
}

#[tokio::test]
async fn who_leaves_in_the_midst_of_a_call_frees_the_place() {
    let mut house = House::new();
    // Only the check is quick.
    let start = format!("(if (i64.eq (local.get $seed) (i64.const 1)) (then {SPIN}))");
    let linked = house.order([&start, "", ""]).check(256).await.unwrap();
    let choosers = linked.choosers(256);
    let before = house.meter.used();
    let mut spins = choosers.start(1);
    house.ask(&mut *spins, 1, 1);
    while house.meter.used() == before {
        tokio::task::yield_now().await;
    }
    drop(spins);
    let mut next = choosers.start(2);
    house.ask(&mut *next, 2, 1);
    let (of, answer) = house.answer().await;
    assert!(of == 1 && answer.is_err(), "{of} {answer:?}");
    assert_eq!(house.answer().await, (2, Ok(5)));
    // Nobody answered the first.
    assert_eq!(house.counter("corral_sampling_plugin_calls_total"), 1.0);
}

#[tokio::test]
async fn no_sampler_goes_on_when_the_request_has_no_processor_time_left() {
    for (left, code) in [(Duration::ZERO, ""), (Duration::from_millis(5), SPIN)] {
        let mut house = House::new();
        let linked = house.order(["", "", code]).check(256).await.unwrap();
        let choosers = linked.choosers(256);
        let mut chooser = choosers.start(1);
        // Somebody else of the same request uses nearly all of it.
        let rest = house.limits.cpu - house.meter.used() - left;
        house.meter.charge(rest + Duration::from_nanos(1));
        house.ask(&mut *chooser, 1, 40);
        let (_, answer) = house.answer().await;
        let Err(Error::Failed(text)) = answer else {
            panic!("{left:?}: {answer:?}");
        };
        assert!(
            text.contains(
                "pick was stopped, since the request's 10 s of processor time are used up"
            ),
            "{text}"
        );
        // The handler is woken for it.
        house.meter.spent().await;
    }
}
