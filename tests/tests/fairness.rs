//! Fair sharing: order, waiting times, and what abandoned requests leave.

use corral_tests::{
    Corral, ENDLESS_TOKENS, EventStream, MANY_CELLS, Metrics, RELIABLE_SUMS, Sum, Times,
    distinct_sums,
};
use serde_json::{Value, json};
use std::net::TcpStream;

const PREFILL_TOKENS: &str = "corral_engine_prefill_tokens_total";
const DECODE_ROWS: &str = "corral_engine_decode_rows_total";
const DISCARDED_TOKENS: &str = "corral_engine_discarded_tokens_total";
const FINISHED: &str = "corral_engine_requests_finished_total";
const CANCELLED: &str = "corral_engine_requests_canceled_total";
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
    assert_eq!(get("tenant_left_out_rows"), 0.0);
    assert!(get("mixed_steps") > 0.0);
    let prefilled = get("mixed_prefill_tokens");
    let budget = get("mixed_prefill_budget_tokens");
    assert!(
        prefilled <= budget,
        "{prefilled} prompt tokens, {budget} allowed"
    );

    // The histograms agree with the counters. Two tokens of a request have one gap.
    let gaps = metrics.histogram("corral_engine_inter_token_latency_seconds");
    let expected = get("generated_tokens") - get("requests_finished");
    assert_eq!(gaps.count, expected);
    let steps = metrics.histogram("corral_engine_step_duration_seconds");
    assert_eq!(steps.count, get("steps"));
    let rows = metrics.histogram("corral_engine_step_rows");
    assert_eq!((rows.count, rows.sum), (get("steps"), get("rows")));
    let prompts = metrics.histogram("corral_engine_step_prefill_tokens");
    assert_eq!(prompts.count, get("steps"));
    assert_eq!(prompts.sum, get("prefill_tokens"));
}

/// Queues `waiting` requests at `/first`, then three at `/second`, behind a request at `holder` that has the only
/// sequence id. Asserts that the three finish before all but the first `earlier_finished` of the others.
fn check_second_runs_before_first(
    options: &[&str],
    holder: &str,
    waiting: usize,
    earlier_finished: usize,
) {
    const LATER: usize = 3;
    let routes = [("/first", "generate"), ("/second", "generate")];
    let options = [&["--max-running", "1"], options].concat();
    let corral = Corral::start_with_routes(&routes, &options);
    let sums = distinct_sums(waiting + LATER);
    let (earlier, later) = sums.split_at(waiting);
    std::thread::scope(|scope| {
        let corral = &corral;
        let mut holder = corral.endless(holder);
        for &sum in earlier {
            // Long enough that none has finished when the later ones have.
            scope.spawn(move || corral.check_long("/first", sum, 3500));
        }
        corral.wait_for_queue(waiting);
        let later = Vec::from_iter(
            later
                .iter()
                .map(|&sum| scope.spawn(move || check_sum(corral, "/second", sum))),
        );
        let queued = corral.wait_for_queue(waiting + LATER).get(DECODE_ROWS);
        // A tenant that arrives starts level with the others. Now the holder gets more service than the three need. It
        // goes on only while its client reads.
        while corral.metrics().get(DECODE_ROWS) < queued + 500.0 {
            for _ in 0..20 {
                holder.next_text();
            }
        }
        drop(holder);
        for answer in later {
            answer.join().expect("the right answer");
        }
        let finished = corral.metrics().get(FINISHED);
        assert_eq!(finished, (LATER + earlier_finished) as f64);
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(FINISHED), (waiting + LATER) as f64);
}

/// The tenant of the holder got more service while the other waited, so each request of the other goes first,
/// after the one that was next when the other arrived: none of the same priority overtakes it.
#[test]
fn tenant_with_less_service_runs_first() {
    check_second_runs_before_first(&[], "/first", 4, 1);
}

/// The tenant with the higher priority has had more service, so its priority decides, not its share.
#[test]
fn highest_priority_runs_next() {
    check_second_runs_before_first(&["--priority", "/second=1"], "/second", 2, 0);
}

/// The costliest sampler chain that a request may have.
fn costly_samplers() -> Value {
    let penalties = json!({"penalties": {"last_n": 65536, "repeat": 1.01, "presence": 0.01}});
    let mut chain = vec![penalties; 4];
    chain.push(json!({"dry": {"multiplier": 0.8, "last_n": 65536}}));
    chain.resize(30, json!({"typical_p": 0.999}));
    chain.extend([
        json!({"temperature": 1.5}),
        json!({"mirostat": {"tau": 5, "eta": 0.1}}),
    ]);
    chain.into()
}

#[test]
fn tenant_with_all_ids_gives_one_to_another() {
    const GREEDY: usize = 128;
    const SUMS: usize = 50;
    const STEPS_OF_SUM: f64 = 150.0;
    const HELD: f64 = 32.0;
    const LEFT_OUT_ROWS: &str = "corral_engine_tenant_left_out_rows_total";
    const STEPS: &str = "corral_engine_steps_total";
    const PREEMPTIONS: &str = "corral_engine_preemptions_total";
    let routes = [
        ("/v1", "openai"),
        ("/greedy", "generate"),
        ("/other", "generate"),
    ];
    let corral = Corral::start_with_routes(&routes, &["--kv-cells", MANY_CELLS]);
    let ask = |sum: &Sum| drop(check_sum(&corral, "/other", *sum));
    let sums = distinct_sums(2 * SUMS);
    let (first, others) = sums.split_at(SUMS);
    let quiet = Times::of_each(first, ask);
    for (route, requests, request) in [
        (
            "/v1/completions",
            1,
            json!({"model": "tiny", "prompt": "1+1=", "n": 64, "max_tokens": ENDLESS_TOKENS, "ignore_eos": true}),
        ),
        (
            "/greedy",
            GREEDY,
            json!({
                "prompt": "1+1=", "samplers": costly_samplers(), "max_tokens": ENDLESS_TOKENS, "ignore_eos": true,
            }),
        ),
    ] {
        let request = request.to_string();
        let held = (0..requests).map(|_| corral.begin_post(route, &request));
        let held: Vec<TcpStream> = held.collect();
        let before = corral.wait_until("one tenant holds many ids", |metrics| {
            metrics.get(RUNNING) >= HELD
        });
        let beside = Times::of_each(others, ask);
        let after = corral.metrics();
        // None of the other tenant's requests ended for the sums.
        assert_eq!(after.growth(FINISHED, &before), SUMS as f64, "{route}");
        let steps = after.growth(STEPS, &before);
        assert!(
            steps < STEPS_OF_SUM * SUMS as f64,
            "{route}: {SUMS} sums took {steps} steps"
        );
        // At least two of the five tokens of a sum were computed without the rows of the other tenant.
        let left_out = after.growth(LEFT_OUT_ROWS, &before);
        let least = 2.0 * (SUMS as f64) * (HELD - 1.0);
        assert!(
            left_out >= least,
            "{route}: {left_out} rows left out, expected {least}"
        );
        println!(
            "{route}: {steps} steps, {left_out} rows left out, {} preemptions, {} deferrals",
            after.growth(PREEMPTIONS, &before),
            after.growth("corral_engine_sampling_deferrals_total", &before),
        );
        beside.print(&quiet);
        drop(held);
        corral.wait_until_idle();
    }
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
            let answer = answer.join().expect("a response");
            let detail = answer.problem(429, "refused");
            assert!(detail.contains("not admitted"), "{detail}");
            assert!(answer.retry_after() <= 120, "{answer:?}");
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
    let waiting = (0..GONE).map(|_| corral.begin_post("/generate", &long));
    let waiting: Vec<TcpStream> = waiting.collect();
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
    let long = json!({"prompt": "a".repeat(PROMPT), "max_tokens": 16, "ignore_eos": true});
    let long = long.to_string();
    let is_one_left = |metrics: &Metrics, idle: &Metrics| {
        // The stream's four prompt tokens and its output, except for what came between reading the two numbers.
        let held = 4.0 + metrics.growth(DECODE_ROWS, idle);
        metrics.get(WAITING) == 0.0
            && metrics.get(RUNNING) == 1.0
            && metrics.get(IDS_USED) == 1.0
            && metrics.get(CELLS_RESERVED) < held + 32.0
    };
    // The stream makes prefill use small chunks, so there is time to hang up. A busy machine may miss that moment:
    // then try again.
    let caught = (0..ROUNDS).any(|_| {
        let idle = corral.wait_until_idle();
        let mut stream = corral.endless("/generate");
        let before = corral.metrics();
        let prompts = (0..GONE).map(|_| corral.begin_post("/generate", &long));
        let prompts: Vec<TcpStream> = prompts.collect();
        corral.wait_until("all run and one prefills, or has finished", |metrics| {
            let all_run = metrics.get(RUNNING) == (1 + GONE) as f64;
            let one_prefills = metrics.growth(PREFILL_TOKENS, &before) > 0.0;
            (all_run && one_prefills) || metrics.growth(FINISHED, &before) > 0.0
        });
        drop(prompts);
        // At once, while the stream continues.
        let metrics = corral.wait_until("the stream alone is left, or has finished", |metrics| {
            is_one_left(metrics, &idle) || metrics.growth(FINISHED, &before) > 0.0
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
    assert!(
        caught,
        "in {ROUNDS} rounds each prompt was computed before its client left"
    );
}
