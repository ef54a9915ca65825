//! Bugs reported in earlier versions, one test each. Answers and the engine's counters decide, not times.

use corral_tests::{
    Corral, ENDLESS_TOKENS, MANY_CELLS, Metrics, RELIABLE_SUMS, Sum, distinct_sums,
};
use serde_json::json;
use std::net::TcpStream;

const STEPS: &str = "corral_engine_steps_total";
const ROWS: &str = "corral_engine_rows_total";
const DECODE_ROWS: &str = "corral_engine_decode_rows_total";
const PREFILL_ROWS: &str = "corral_engine_prefill_rows_total";
const PREFILL_TOKENS: &str = "corral_engine_prefill_tokens_total";
const SKIPPED_ROWS: &str = "corral_engine_decode_rows_skipped_total";
const MIXED_STEPS: &str = "corral_engine_mixed_steps_total";
const MIXED_PREFILL_TOKENS: &str = "corral_engine_mixed_prefill_tokens_total";
const COMPUTED_TOKENS: &str = "corral_engine_computed_tokens_total";
const FINISHED: &str = "corral_engine_requests_finished_total";
const CANCELLED: &str = "corral_engine_requests_canceled_total";
const EXPIRED: &str = "corral_engine_requests_expired_total";
const WAITING: &str = "corral_engine_requests_waiting";
const RUNNING: &str = "corral_engine_requests_running";
const IDS_USED: &str = "corral_engine_sequence_ids_used";
const CELLS_USED: &str = "corral_engine_kv_cells_used";
const ATTENTION_CELLS: &str = "corral_engine_attention_cells";
const INSTANCES: &str = "corral_plugin_instances";

/// Whether no step happened while these numbers were read: the first and the last one read are equal. Then all
/// are of one moment, except for the step in flight.
fn is_consistent(metrics: &Metrics) -> bool {
    metrics.get(STEPS) == metrics.get("corral_engine_step_rows_count")
}

/// Regression: one position variable served all requests. The second request failed, and the third crashed the process.
#[test]
fn repeated_requests_neither_fail_nor_crash() {
    let corral = Corral::start_with(&["--max-running", "4"]);
    // Prompts of many lengths, so that one request's position is wrong for the next.
    let lengths = [32, 600, 100, 300];
    let questions: Vec<(Sum, String)> = distinct_sums(64)
        .into_iter()
        .enumerate()
        .map(|(number, sum)| match number % 4 {
            0 => {
                let sum = RELIABLE_SUMS[number % RELIABLE_SUMS.len()];
                (sum, sum.question_in(lengths[number / 4 % lengths.len()]))
            }
            _ => (sum, sum.question()),
        })
        .collect();
    let ask = |(sum, prompt): &(Sum, String)| {
        let answer = corral.generate(&json!({"prompt": prompt, "max_tokens": 20}));
        let length = prompt.len();
        assert_eq!(answer["text"], sum.answer(), "{sum:?} in {length} tokens");
        assert_eq!(answer["prompt_tokens"], length, "{sum:?}");
    };
    // Sequentially, then concurrently: twice as many at once as there are ids.
    for question in &questions {
        ask(question);
    }
    std::thread::scope(|scope| {
        for share in questions.chunks(questions.len() / 8) {
            scope.spawn(|| share.iter().for_each(ask));
        }
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(FINISHED), 2.0 * questions.len() as f64);
}

/// Regression: records of old requests were kept and scanned. A one-token request took 60 ms, the eighth one 280 ms.
#[test]
fn request_cost_does_not_grow_over_time() {
    let corral = Corral::start();
    let request = json!({"prompt": "1+1=", "max_tokens": 1});
    let mut before = corral.wait_until_idle();
    for number in 1..=200 {
        let answer = corral.generate(&request);
        assert_eq!(answer["text"], "2", "request {number}: {answer}");
        let now = corral.metrics();
        // One step for the four prompt tokens; the generated token is not computed.
        for (counter, expected) in [
            (STEPS, 1.0),
            (ROWS, 1.0),
            (COMPUTED_TOKENS, 4.0),
            (FINISHED, 1.0),
        ] {
            assert_eq!(
                now.growth(counter, &before),
                expected,
                "request {number}: {counter}"
            );
        }
        // The engine may not have cleaned up yet, but at most one request is left.
        for (gauge, most) in [
            (RUNNING, 1.0),
            (WAITING, 0.0),
            (IDS_USED, 1.0),
            (CELLS_USED, 4.0),
            (ATTENTION_CELLS, 256.0),
        ] {
            let value = now.get(gauge);
            assert!(value <= most, "request {number}: {gauge} is {value}");
        }
        before = now;
    }
    corral.wait_until_idle();
}

/// Regression: each step computed the prompt and all generated tokens again.
#[test]
fn histories_are_not_recomputed_each_step() {
    /// Tokens that a step holds.
    const STEP: usize = 512;
    let corral = Corral::start();
    let (prompt, tokens) = (1500, 300);
    let request = json!({"prompt": "a".repeat(prompt), "ignore_eos": true, "max_tokens": tokens});
    let before = corral.wait_until_idle();
    let answer = corral.generate(&request);
    assert_eq!(answer["prompt_tokens"], prompt);
    assert_eq!(answer["tokens"], tokens);
    let alone = corral.wait_until_idle();
    let grown = |name: &str| alone.growth(name, &before);
    assert_eq!(grown(COMPUTED_TOKENS), (prompt + tokens - 1) as f64);
    assert_eq!(grown(PREFILL_TOKENS), prompt as f64);
    // The first token comes with the last step of the prompt.
    assert_eq!(grown(DECODE_ROWS), (tokens - 1) as f64);
    assert_eq!(grown(PREFILL_ROWS), prompt.div_ceil(STEP) as f64);
    assert_eq!(
        grown(STEPS),
        grown(ROWS),
        "the request was alone in each step"
    );
}

/// Regression: a batch had to finish before the next began. It shrank until its longest request ran alone, while others
/// waited.
#[test]
fn batches_stay_full_while_requests_wait() {
    const IDS: usize = 4;
    const REQUESTS: usize = 40;
    const LONGEST: usize = 150;
    let corral = Corral::start_with(&["--max-running", "4", "--kv-cells", MANY_CELLS]);
    let metrics = std::thread::scope(|scope| {
        // Occupy all ids until everyone waits: from then on no id is free while a request waits.
        let holders = corral.hold(IDS);
        for (number, sum) in distinct_sums(REQUESTS).into_iter().enumerate() {
            let corral = &corral;
            // One long request to three short ones.
            let tokens = if number % 4 == 0 {
                LONGEST
            } else {
                4 + number % 7
            };
            scope.spawn(move || {
                corral.check_long("/generate", sum, tokens);
            });
        }
        let metrics = corral.wait_until("all wait", |metrics| {
            metrics.get(WAITING) == REQUESTS as f64
                && metrics.get(RUNNING) == IDS as f64
                && is_consistent(metrics)
        });
        drop(holders);
        metrics
    });
    let end = corral.wait_until_idle();
    assert_eq!(end.get(FINISHED), REQUESTS as f64);
    assert_eq!(end.get(CANCELLED), IDS as f64);

    let (steps, rows) = (end.growth(STEPS, &metrics), end.growth(ROWS, &metrics));
    let missing = IDS as f64 * steps - rows;
    // While a request waits, a step has a row for each id, except for prompts that the prefill budget defers. The
    // smallest budget is 8 tokens and a prompt has at most 6, so each step completes a prompt and defers none more
    // than twice. Once nothing waits, all running requests end within the longest one's time. One step may have
    // been in flight when the counters were read.
    let prompts = 2 * REQUESTS;
    let tail = (IDS - 1) * (LONGEST + 2);
    let bound = (prompts + tail + IDS) as f64;
    println!(
        "{rows} rows in {steps} steps, {:.2} in each; {missing} of {IDS} missing, at most {bound} may",
        rows / steps
    );
    assert!(missing <= bound, "{rows} rows in {steps} steps");
    assert!(
        missing >= -(IDS as f64),
        "a step has a row of each id at most"
    );
}

/// Regression: the sequence id was the index in the batch, so requests that came and went shared cells.
#[test]
fn sequence_ids_are_never_shared() {
    let corral = Corral::start_with(&["--max-running", "4"]);
    let questions: Vec<(usize, Sum)> = distinct_sums(96).into_iter().enumerate().collect();
    let leaves = |number: usize| number * 7 % 11 < 4;
    std::thread::scope(|scope| {
        // Twice as many at once as there are ids.
        for share in questions.chunks(questions.len() / 8) {
            let corral = &corral;
            scope.spawn(move || {
                for &(number, sum) in share {
                    if !leaves(number) {
                        assert_eq!(corral.text(&sum.question()), sum.answer(), "{sum:?}");
                        continue;
                    }
                    // Checked as far as it came, then hung up on.
                    let mut stream = corral.generate_stream(&sum.long_request(2000));
                    let (text, answer) = (stream.next_text(), sum.answer());
                    let right = text.starts_with(&answer) || answer.starts_with(&text);
                    assert!(right, "{sum:?}: {text:?}");
                    let more = stream.bytes(number as u64 * 37 % 1000);
                    more.expect("the stream goes on");
                }
            });
        }
    });
    let metrics = corral.wait_until_idle();
    let (finished, cancelled) = (metrics.get(FINISHED), metrics.get(CANCELLED));
    let left = questions
        .iter()
        .filter(|(number, _)| leaves(*number))
        .count();
    assert_eq!(finished + cancelled, questions.len() as f64);
    // On a busy machine the engine may finish some before their client leaves.
    assert!(
        cancelled > 0.0 && cancelled <= left as f64,
        "{cancelled} of {left}"
    );
}

/// Regression: the state of a request stayed if it did not finish normally.
#[test]
fn ended_requests_leave_no_records() {
    const CALLS: usize = 8;
    let corral = Corral::start_with(&[
        "--max-running",
        "2",
        "--queue-time",
        "4",
        "--max-calls",
        "8",
        "--max-queued-calls",
        "0",
        "--kv-cells",
        MANY_CELLS,
    ]);
    let question = json!({"prompt": "2+2="}).to_string();
    for round in 1..=2 {
        // Finished.
        for sum in distinct_sums(10) {
            assert_eq!(corral.text(&sum.question()), sum.answer(), "{sum:?}");
        }
        // Hung up while it waited; meanwhile host, engine and plugin refuse one each.
        let holders = corral.hold(2);
        let queued: Vec<TcpStream> = (holders.len()..CALLS)
            .map(|_| corral.begin_post("/generate", &question))
            .collect();
        corral.wait_for_queue(CALLS - holders.len());
        corral.post("/generate", &question).problem(503, "busy");
        drop(queued);
        corral.wait_until("those that waited are gone", |metrics| {
            metrics.get(INSTANCES) == holders.len() as f64 && metrics.get(WAITING) == 0.0
        });
        corral.post("/generate", &question).problem(429, "refused");
        corral.post("/generate", "{").problem(400, "invalid-json");
        // Hung up during the response.
        drop(holders);
        let metrics = corral.wait_until_idle();
        let round = f64::from(round);
        assert_eq!(metrics.get(FINISHED), 10.0 * round);
        // On a busy machine a request that hung up may have expired by then.
        let (expired, cancelled) = (metrics.get(EXPIRED), metrics.get(CANCELLED));
        assert!(expired >= round, "{expired}");
        assert_eq!(expired + cancelled, (CALLS + 1) as f64 * round);
    }
}

/// Regression: a batch held prompts of one length only, so a long one ran alone and blocked all others.
#[test]
fn prompts_of_any_length_share_a_batch() {
    const STREAMS: usize = 3;
    // The prompts share a prefix: without a cache all of them are computed.
    let corral = Corral::start_with(&["--no-prefix-cache", "--kv-cells", MANY_CELLS]);
    let streams = corral.hold(STREAMS);
    let alone =
        |metrics: &Metrics| is_consistent(metrics) && metrics.get(RUNNING) == STREAMS as f64;
    let before = corral.wait_until("the streams are alone", alone);
    let read = std::thread::scope(|scope| {
        let asked: Vec<_> = [1000, 32, 600, 6, 300, 6, 100, 6]
            .into_iter()
            .zip(RELIABLE_SUMS.into_iter().cycle())
            .map(|(length, sum)| {
                let corral = &corral;
                scope.spawn(move || {
                    let prompt = match length {
                        6 => sum.question(),
                        length => sum.question_in(length),
                    };
                    let answer = corral.generate(&json!({"prompt": prompt, "max_tokens": 20}));
                    assert_eq!(answer["text"], sum.answer(), "{sum:?} in {length} tokens");
                    prompt.len()
                })
            })
            .collect();
        let lengths = asked
            .into_iter()
            .map(|asked| asked.join().expect("a response"));
        lengths.sum::<usize>()
    });
    let after = corral.wait_until("the streams are alone again", alone);
    let grown = |name: &str| after.growth(name, &before);
    // All prompt tokens were computed in steps with decode rows ...
    assert_eq!(grown(PREFILL_TOKENS), read as f64);
    assert_eq!(grown(MIXED_PREFILL_TOKENS), read as f64);
    assert!(grown(MIXED_STEPS) > 0.0);
    assert_eq!(grown(SKIPPED_ROWS), 0.0);
    // ... and each stream has a row in each step. One step may have been in flight at each reading.
    let streamed = STREAMS as f64 * (grown(STEPS) - 2.0);
    let decoded = grown(DECODE_ROWS);
    assert!(
        decoded >= streamed,
        "{decoded} rows, {streamed} of the streams"
    );
    drop(streams);
    corral.wait_until_idle();
}

/// Regression: requests that came while a batch ran waited for its end.
#[test]
fn new_requests_join_a_running_batch() {
    let corral = Corral::start();
    let mut stream = corral.endless("/generate");
    for (number, sum) in distinct_sums(10).into_iter().enumerate() {
        assert_eq!(corral.text(&sum.question()), sum.answer(), "{sum:?}");
        // All but the stream, which still runs.
        let metrics = corral.metrics();
        assert_eq!(metrics.get(FINISHED), (number + 1) as f64);
        assert!(metrics.get(RUNNING) >= 1.0);
    }
    stream.next_text();
    drop(stream);
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(CANCELLED), 1.0);
    // The client left long before its end.
    assert!(metrics.get(COMPUTED_TOKENS) < f64::from(ENDLESS_TOKENS));
}
