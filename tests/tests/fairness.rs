//! Fair sharing: order, waiting times, and what abandoned requests leave.

use corral_tests::{Corral, EventStream, MANY_CELLS, Metrics, RELIABLE_SUMS, Sum, distinct_sums};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

const PREFILL_TOKENS: &str = "corral_engine_prefill_tokens_total";
const DECODE_ROWS: &str = "corral_engine_decode_rows_total";
const DISCARDED_TOKENS: &str = "corral_engine_discarded_tokens_total";
const FINISHED: &str = "corral_engine_requests_finished_total";
const CANCELLED: &str = "corral_engine_requests_cancelled_total";
const EXPIRED: &str = "corral_engine_requests_expired_total";
const WAITING: &str = "corral_engine_requests_waiting";
const RUNNING: &str = "corral_engine_requests_running";
const IDS_USED: &str = "corral_engine_sequence_ids_used";
const CELLS_RESERVED: &str = "corral_engine_kv_cells_reserved";

/// Asks a sum and checks the answer.
fn check_sum(corral: &Corral, route: &str, sum: Sum) -> Value {
    let request = json!({"prompt": sum.question(), "max_tokens": 20});
    let answer = corral.generate_at(route, &request);
    assert_eq!(answer["text"], sum.answer(), "{sum:?} at {route}");
    answer
}

#[test]
fn prefill_stays_within_budget_without_skipped_rows() {
    const STREAMED: usize = 800;
    let corral = Corral::start();
    let streams: Vec<(Sum, EventStream)> = distinct_sums(4)
        .into_iter()
        .map(|sum| {
            let mut stream = corral.generate_stream(&sum.long_request(STREAMED));
            stream.next_text();
            (sum, stream)
        })
        .collect();
    std::thread::scope(|scope| {
        for length in [32, 600] {
            let corral = &corral;
            scope.spawn(move || {
                for sum in RELIABLE_SUMS.into_iter().cycle().take(8) {
                    let prompt = sum.question_in(length);
                    let answer = corral.generate(&json!({"prompt": prompt, "max_tokens": 20}));
                    assert_eq!(answer["text"], sum.answer(), "{sum:?} in {length} tokens");
                    assert_eq!(answer["prompt_tokens"], length);
                }
            });
        }
    });
    for (sum, stream) in streams {
        let (_, report) = stream.texts();
        assert_eq!(report["tokens"], STREAMED, "{sum:?}");
    }
    let metrics = corral.wait_until_idle();
    let get = |name: &str| metrics.get(&format!("corral_engine_{name}_total"));
    assert_eq!(get("decode_rows_skipped"), 0.0);
    assert!(get("mixed_steps") > 0.0);
    let (read, budget) = (
        get("mixed_prefill_tokens"),
        get("mixed_prefill_budget_tokens"),
    );
    assert!(read <= budget, "{read} prompt tokens, {budget} allowed");

    // The histograms agree with the counters. Two tokens of a request have one gap.
    let gaps = metrics.histogram("corral_engine_inter_token_latency_seconds");
    assert_eq!(
        gaps.count,
        get("generated_tokens") - get("requests_finished")
    );
    let steps = metrics.histogram("corral_engine_step_duration_seconds");
    assert_eq!(steps.count, get("steps"));
    let rows = metrics.histogram("corral_engine_step_rows");
    assert_eq!((rows.count, rows.sum), (get("steps"), get("rows")));
    let prompts = metrics.histogram("corral_engine_step_prefill_tokens");
    assert_eq!(
        (prompts.count, prompts.sum),
        (get("steps"), get("prefill_tokens"))
    );
    println!(
        "{} steps, {} of them mixed: {read} prompt tokens of {budget} allowed; gaps: half within \
         {} ms, 99 % within {} ms",
        get("steps"),
        get("mixed_steps"),
        1e3 * gaps.quantile(0.5),
        1e3 * gaps.quantile(0.99),
    );
}

/// Sequence ids of the next test, and its tenants.
const IDS: usize = 4;
const TENANTS: usize = 3;
/// How many of the greedy tenant's requests may finish between another tenant's request and its answer.
///
/// At that moment the greedy tenant holds at most all ids, and those requests may finish first. A free id goes to
/// the tenant with the least service, and this tenant is ahead by at most its last request, so each tenant is
/// admitted at most once more before it. Its request is short and the greedy ones finish one by one, about 200
/// steps apart. Sockets on a busy machine may delay a client beyond that, so one request in three may exceed the
/// bound.
const OVERTAKEN: usize = IDS + TENANTS;

/// Counts itself when dropped, also by a panic, so that no thread waits forever.
struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn greedy_tenant_delays_others_by_few_requests() {
    // A busy machine that delays clients only makes the count worse, so the best of three attempts decides.
    let found: Vec<String> = (0..3)
        .map_while(|_| run_greedy_tenant_scene().err())
        .collect();
    println!("wrong in {} of three at most: {found:#?}", found.len());
    assert!(found.len() < 3, "each time");
}

/// Describes how the other tenants were delayed too long, if they were.
fn run_greedy_tenant_scene() -> Result<(), String> {
    const QUEUED: usize = 50;
    let routes = [
        ("/greedy", "generate"),
        ("/one", "generate"),
        ("/other", "generate"),
    ];
    let ids = IDS.to_string();
    let corral =
        Corral::start_with_routes(&routes, &["--max-running", &ids, "--kv-cells", MANY_CELLS]);
    let sums = distinct_sums(200);
    let (greedy, others) = sums.split_at(QUEUED);
    let (one, other) = others.split_at(others.len() / 2);
    let answered = AtomicUsize::new(0);
    let found = std::thread::scope(|scope| {
        // Occupy all ids until the greedy tenant's requests wait.
        let holders = corral.hold(IDS);
        for (number, &sum) in greedy.iter().enumerate() {
            let (corral, answered) = (&corral, &answered);
            // Of many lengths, so that they finish one by one, and long, so that a short delay of a client counts little.
            let tokens = 600 + number * 37 % 101 * 4;
            scope.spawn(move || {
                let _counted = CountOnDrop(answered);
                corral.check_long("/greedy", sum, tokens);
            });
        }
        corral.wait_for_queue(QUEUED);
        drop(holders);
        let asking = [("/one", one), ("/other", other)].map(|(route, sums)| {
            let (corral, answered) = (&corral, &answered);
            scope.spawn(move || {
                let (mut asked, mut beyond, mut longest) = (0, Vec::new(), 0.0_f64);
                for &sum in sums.iter().cycle() {
                    let before = answered.load(Ordering::Acquire);
                    // Until the greedy tenant has barely enough requests left to fill the ids.
                    if before >= QUEUED - 2 * IDS {
                        break;
                    }
                    let answer = check_sum(corral, route, sum);
                    let overtaken = answered.load(Ordering::Acquire) - before;
                    asked += 1;
                    if overtaken > OVERTAKEN {
                        beyond.push(format!("{overtaken} while one took {answer}"));
                    }
                    longest = longest.max(answer["queue_ms"].as_f64().expect("a time"));
                }
                println!("{route}: {asked} answers; waited {longest:.1} ms at most");
                // At least as many as the bound allows, except for what finishes in between.
                let enough = asked >= QUEUED / (OVERTAKEN + 1) - 1;
                if enough && 3 * beyond.len() <= asked {
                    return Ok(());
                }
                let answers =
                    format!("{route}: {asked} answers, with too many greedy ones meanwhile:");
                Err(format!("{answers} {beyond:?}"))
            })
        });
        let found = asking.map(|asking| asking.join().expect("it asks"));
        found.into_iter().collect()
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(CANCELLED), IDS as f64);
    found
}

#[test]
fn highest_priority_runs_next() {
    const LOW: usize = 2;
    const HIGH: usize = 3;
    let routes = [("/low", "generate"), ("/high", "generate")];
    let options = ["--max-running", "1", "--priority", "/high=1"];
    let corral = Corral::start_with_routes(&routes, &options);
    let sums = distinct_sums(LOW + HIGH);
    let (low, high) = sums.split_at(LOW);
    std::thread::scope(|scope| {
        // The high tenant has had more service than the low one by its turn, so its priority puts it first, not its
        // share.
        let holder = corral.endless("/high");
        for &sum in low {
            let corral = &corral;
            // Long enough that none has finished when the high ones have.
            scope.spawn(move || {
                corral.check_long("/low", sum, 3500);
            });
        }
        corral.wait_for_queue(LOW);
        let asked: Vec<_> = high
            .iter()
            .map(|&sum| {
                let corral = &corral;
                scope.spawn(move || check_sum(corral, "/high", sum))
            })
            .collect();
        corral.wait_for_queue(LOW + HIGH);
        drop(holder);
        for answer in asked {
            answer.join().expect("answered");
        }
        assert_eq!(corral.metrics().get(FINISHED), HIGH as f64);
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(FINISHED), (LOW + HIGH) as f64);
}

#[test]
fn expired_queue_time_gets_retry_after() {
    const STREAMED: usize = 6000;
    let corral = Corral::start_with(&["--max-running", "1", "--queue-time", "0.2"]);
    let (sum, other) = (RELIABLE_SUMS[0], RELIABLE_SUMS[1]);
    let mut stream = corral.generate_stream(&sum.long_request(STREAMED));
    stream.next_text();
    std::thread::scope(|scope| {
        // A stream has not begun yet, so it has a status too.
        let asked: Vec<_> = [false, true, false, true]
            .into_iter()
            .map(|stream| {
                let corral = &corral;
                let request = json!({"prompt": other.question(), "stream": stream});
                scope.spawn(move || corral.post("/generate", request.to_string()))
            })
            .collect();
        for answer in asked {
            let answer = answer.join().expect("answered");
            let detail = answer.problem(429, "refused");
            assert!(detail.contains("not admitted"), "{detail}");
            let wait: u32 = answer
                .header("retry-after")
                .and_then(|wait| wait.parse().ok())
                .expect("seconds");
            assert!((1..=120).contains(&wait), "{answer:?}");
        }
    });
    let metrics = corral.metrics();
    assert_eq!(metrics.get(EXPIRED), 4.0);
    assert_eq!(metrics.get(FINISHED), 0.0, "the stream goes on");
    let (_, report) = stream.texts();
    assert_eq!(report["tokens"], STREAMED);
    // A retried request runs.
    check_sum(&corral, "/generate", other);
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(FINISHED), 2.0);
    assert_eq!(metrics.get(CANCELLED), 0.0);
}

#[test]
fn hangup_in_queue_leaves_nothing() {
    const GONE: usize = 5;
    let corral = Corral::start_with(&["--max-running", "1"]);
    let stream = corral.endless("/generate");
    let before = corral.metrics();
    let long = json!({"prompt": RELIABLE_SUMS[0].question_in(1000)}).to_string();
    let waiting: Vec<TcpStream> = (0..GONE)
        .map(|_| corral.begin_post("/generate", &long))
        .collect();
    corral.wait_for_queue(GONE);
    drop(waiting);
    let metrics = corral.wait_until("none waits", |metrics| {
        metrics.get(WAITING) == 0.0 && metrics.get(CANCELLED) == GONE as f64
    });
    // They cost nothing, and the stream did not have to end for them to leave.
    assert_eq!(metrics.growth(PREFILL_TOKENS, &before), 0.0);
    assert_eq!(metrics.get(DISCARDED_TOKENS), 0.0);
    assert_eq!(metrics.get(RUNNING), 1.0);
    assert_eq!(metrics.get(FINISHED), 0.0);
    drop(stream);
    for sum in distinct_sums(5) {
        check_sum(&corral, "/generate", sum);
    }
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(CANCELLED), (GONE + 1) as f64);
}

#[test]
fn hangup_during_prefill_leaves_nothing() {
    const GONE: usize = 2;
    const PROMPT: usize = 3000;
    const ROUNDS: usize = 10;
    let corral = Corral::start_with(&["--max-running", "4"]);
    let long = json!({"prompt": "a".repeat(PROMPT), "max_tokens": 16, "ignore_end": true});
    let long = long.to_string();
    let is_one_left = |metrics: &Metrics, calm: &Metrics| {
        // The stream's four prompt tokens and its output, except for what came between reading the two numbers.
        let held = 4.0 + metrics.growth(DECODE_ROWS, calm);
        metrics.get(WAITING) == 0.0
            && metrics.get(RUNNING) == 1.0
            && metrics.get(IDS_USED) == 1.0
            && metrics.get(CELLS_RESERVED) < held + 32.0
    };
    // The stream makes prefill use small chunks, so there is time to hang up. A busy machine may miss that moment:
    // then try again.
    let caught = (0..ROUNDS).any(|_| {
        let calm = corral.wait_until_idle();
        let mut stream = corral.endless("/generate");
        let before = corral.metrics();
        let readers: Vec<TcpStream> = (0..GONE)
            .map(|_| corral.begin_post("/generate", &long))
            .collect();
        corral.wait_until("all are let in and read, or through already", |metrics| {
            let all_run = metrics.get(RUNNING) == (1 + GONE) as f64;
            let one_is_read = metrics.growth(PREFILL_TOKENS, &before) > 0.0;
            (all_run && one_is_read) || metrics.growth(FINISHED, &before) > 0.0
        });
        drop(readers);
        // At once, while the stream continues.
        let metrics = corral.wait_until("the stream alone is left, or through", |metrics| {
            is_one_left(metrics, &calm) || metrics.growth(FINISHED, &before) > 0.0
        });
        if metrics.growth(FINISHED, &before) > 0.0 {
            drop(stream);
            corral.wait_until_idle();
            return false;
        }
        stream.next_text();
        for sum in distinct_sums(3) {
            check_sum(&corral, "/generate", sum);
        }
        drop(stream);
        corral.wait_until_idle();
        let computed = metrics.growth(DISCARDED_TOKENS, &before);
        metrics.growth(CANCELLED, &before) == GONE as f64
            && computed > 0.0
            && computed < (GONE * PROMPT) as f64
    });
    assert!(caught, "in {ROUNDS} rounds each prompt was read to its end");
}
