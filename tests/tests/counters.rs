//! The counters of `/metrics` are consistent, and requests leave nothing behind.

use corral_tests::{Corral, ENDLESS_TOKENS, EventStream, MANY_CELLS, distinct_sums, raw_exchange};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const STEPS: &str = "corral_engine_steps_total";
const ROWS: &str = "corral_engine_rows_total";
const FINISHED: &str = "corral_engine_requests_finished_total";
const WAITING: &str = "corral_engine_requests_waiting";
const RUNNING: &str = "corral_engine_requests_running";

fn number(answer: &Value, member: &str) -> f64 {
    answer[member].as_f64().expect(member)
}

#[test]
fn every_token_is_computed_once() {
    let corral = Corral::start();
    let expected = std::sync::Mutex::new(0.0);
    let ask = |request: &Value| {
        let answer = corral.generate(request);
        let prefilled = number(&answer, "prompt_tokens") - number(&answer, "cached_tokens");
        let computed = prefilled + number(&answer, "tokens") - 1.0;
        *expected.lock().expect("no panic while held") += computed;
    };
    // Sequential and 16 at once: short prompts, long chunked prompts, long outputs, chats, streams.
    let requests: Vec<Value> = distinct_sums(60)
        .into_iter()
        .enumerate()
        .map(|(number, sum)| match number % 6 {
            0 => json!({"prompt": "long ".repeat(600) + "\n" + &sum.question()}),
            1 => json!({"prompt": sum.question(), "ignore_eos": true, "max_tokens": 100}),
            2 => json!({"messages": [{"role": "user", "content": sum.question()}]}),
            3 => json!({"prompt": sum.question(), "max_tokens": 1}),
            4 => json!({"prompt": sum.question(), "temperature": 2.0, "max_tokens": 30}),
            _ => json!({"prompt": sum.question()}),
        })
        .collect();
    for request in &requests[..12] {
        ask(request);
    }
    std::thread::scope(|scope| {
        for share in requests.chunks(requests.len().div_ceil(16)) {
            scope.spawn(|| share.iter().for_each(ask));
        }
    });
    let metrics = corral.wait_until_idle();
    let expected = *expected.lock().expect("no panic while held");
    let recomputed = metrics.get("corral_engine_recomputed_tokens_total");
    let computed = metrics.get("corral_engine_computed_tokens_total");
    assert_eq!(computed, expected + recomputed);
    // The long prompts share a prefix.
    assert!(metrics.get("corral_engine_prefix_cache_hit_tokens_total") > 3000.0);
    assert_eq!(metrics.get("corral_engine_requests_finished_total"), 72.0);
    assert_eq!(metrics.get("corral_engine_discarded_tokens_total"), 0.0);
    assert_eq!(metrics.get("corral_plugin_calls_total"), 72.0);
    assert_eq!(metrics.get("corral_plugin_calls_completed_total"), 72.0);
    assert_eq!(metrics.get("corral_plugin_calls_failed_total"), 0.0);
    assert_eq!(metrics.get("corral_http_responses_total"), 72.0);
    assert_eq!(metrics.get("corral_http_requests_aborted_total"), 0.0);
}

#[test]
fn disconnected_clients_leave_nothing_behind() {
    let corral = Corral::start();
    let endless = json!({
        "prompt": "1+1=", "ignore_eos": true, "max_tokens": ENDLESS_TOKENS, "stream": true,
    })
    .to_string();
    let request = format!(
        "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{endless}",
        endless.len()
    );
    // Some leave after the first bytes of the response, some while the prompt waits, some with a half-sent request.
    std::thread::scope(|scope| {
        for number in 0..24 {
            let (corral, request) = (&corral, request.as_bytes());
            scope.spawn(move || {
                let mut stream = TcpStream::connect(corral.public()).expect("the server accepts");
                match number % 3 {
                    0 => {
                        stream.write_all(request).expect("sent");
                        let mut buffer = [0; 300];
                        stream.read_exact(&mut buffer).expect("a response");
                        assert!(buffer.starts_with(b"HTTP/1.1 200 OK"));
                    }
                    1 => stream.write_all(request).expect("sent"),
                    _ => stream
                        .write_all(&request[..request.len() - 9])
                        .expect("sent"),
                }
            });
        }
    });
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    let cancelled = metrics.get("corral_engine_requests_canceled_total");
    // Clients that left early may have left before a sequence existed.
    assert!((4.0..=16.0).contains(&cancelled), "{cancelled}");
    assert!(metrics.get("corral_engine_discarded_tokens_total") > 0.0);
    // No client waited for so many tokens, so the engine did not compute them all.
    let computed = metrics.get("corral_engine_computed_tokens_total");
    let most = 16.0 * 3000.0;
    assert!(computed < most, "{computed} tokens that nobody reads");
    // Clients that had received output are counted.
    assert!(metrics.get("corral_http_requests_aborted_total") >= 8.0);
}

#[test]
fn errors_leave_nothing_behind() {
    let corral = Corral::start();
    for _ in 0..20 {
        assert_eq!(corral.post("/generate", "{").status, 400);
        assert_eq!(corral.post("/misbehave/trap", "").status, 500);
        assert_eq!(corral.get("/nowhere").status, 404);
        corral.post("/misbehave/abandon", "");
        raw_exchange(
            corral.public(),
            b"\x00\xff\r\n\r\n",
            true,
            Duration::from_secs(1),
        );
    }
    let metrics = corral.wait_until_idle();
    // On a busy machine the engine may finish before the plugin reads its first chunk.
    let cancelled = metrics.get("corral_engine_requests_canceled_total");
    let finished = metrics.get("corral_engine_requests_finished_total");
    assert_eq!(cancelled + finished, 20.0);
    let found = metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"trapped\"}");
    assert_eq!(found, 20.0);
    let found = metrics.get_or_zero("corral_http_responses_total{status=\"404\"}");
    assert_eq!(found, 20.0);
    corral.check_alive();
}

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
            ("corral_engine_computed_tokens_total", 4.0),
            (FINISHED, 1.0),
        ] {
            let found = now.growth(counter, &before);
            assert_eq!(found, expected, "request {number}: {counter}");
        }
        // The engine may not have cleaned up yet, but at most one request is left.
        for (gauge, most) in [
            (RUNNING, 1.0),
            (WAITING, 0.0),
            ("corral_engine_sequence_ids_used", 1.0),
            ("corral_engine_kv_cells_used", 4.0),
            ("corral_engine_attention_cells", 256.0),
        ] {
            let value = now.get(gauge);
            assert!(value <= most, "request {number}: {gauge} is {value}");
        }
        before = now;
    }
    corral.wait_until_idle();
}

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
                // The first and the last number read are equal, so no step happened between them.
                && metrics.get(STEPS) == metrics.get("corral_engine_step_rows_count")
        });
        drop(holders);
        metrics
    });
    let end = corral.wait_until_idle();
    assert_eq!(end.get(FINISHED), REQUESTS as f64);
    assert_eq!(end.get("corral_engine_requests_canceled_total"), IDS as f64);

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
    let least = -(IDS as f64);
    assert!(missing >= least, "a step has a row of each id at most");
}

/// The output of a `/generate` stream before its end.
fn second_to_last_event(mut stream: EventStream) -> Value {
    let events: Vec<_> = std::iter::from_fn(|| stream.event()).collect();
    let (done, events) = events.split_last().expect("events");
    assert_eq!(done, "[DONE]");
    let report = events.last().expect("a report comes before the end");
    serde_json::from_str(report).expect("events hold JSON")
}

/// How eight answers of 200 tokens are delivered.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    /// As events framed by the host.
    Framed,
    /// As events written by the plugin, because they carry logprobs.
    Streamed,
    /// As one response body.
    Whole,
}

/// Upper bounds for what answers cost, in counts: times say nothing on a shared machine. The bounds hold for
/// any thread schedule, because a late reader gets several tokens at once.
fn check_costs(answers: Answers) {
    const STREAMS: usize = 8;
    const TOKENS: usize = 200;
    let corral = Corral::start();
    // The first request initializes everything lazy.
    corral.check_alive();
    let before = corral.wait_until_idle();
    std::thread::scope(|scope| {
        for sum in distinct_sums(STREAMS) {
            let corral = &corral;
            scope.spawn(move || {
                let mut request = sum.long_request(TOKENS);
                if answers == Answers::Streamed {
                    request["logprobs"] = 0.into();
                }
                let report = if answers == Answers::Whole {
                    corral.post("/generate", request.to_string()).json()
                } else {
                    second_to_last_event(corral.generate_stream(&request))
                };
                assert_eq!(report["tokens"], TOKENS, "{report}");
            });
        }
    });
    let after = corral.wait_until_idle();
    let count = |name: &str| after.growth(&format!("corral_{name}_total"), &before);
    let (streams, tokens) = (STREAMS as f64, (STREAMS * TOKENS) as f64);
    let chunks = count("deployment_generation_chunks");
    let mut broken = Vec::new();
    let mut at_most = |what: &str, counted: f64, most: f64| {
        if counted > most {
            broken.push(format!("{counted} {what}, more than {most}"));
        }
    };
    // The first token of each request comes with the last token of its prompt.
    at_most("rows that generate", count("engine_decode_rows"), tokens);
    // The engine's thread sleeps when idle, not between two tokens.
    let wake_ups = count("engine_wakeups");
    at_most("wake-ups of the engine", wake_ups, 4.0 * streams);
    // Held-back text may come at the end without a token. A whole response is one chunk.
    let most = match answers {
        Answers::Whole => streams,
        _ => tokens + streams,
    };
    at_most("generation_chunks", chunks, most);
    // A poll for the guest's read, one as it begins to wait, one per wakeup, and one by the connection after a
    // write. The end is read like a chunk.
    let chunk_polls = count("deployment_generation_polls");
    at_most(
        "polls for a chunk",
        chunk_polls,
        3.0 * chunks + 8.0 * streams,
    );
    // A streaming call is woken per chunk, and when a slower connection has taken an event. Wakeups during a poll
    // do not count. Framed and collected answers wake it for no chunk.
    let polls = count("deployment_guest_polls");
    let for_chunks = match answers {
        Answers::Streamed => 2.0 * chunks,
        Answers::Framed | Answers::Whole => 0.0,
    };
    at_most("polls of calls", polls, for_chunks + 24.0 * streams);
    // To open the model, append the prompt and begin; per token only to read logprobs.
    let calls = count("deployment_host_calls");
    let logprob_reads = match answers {
        Answers::Streamed => tokens,
        Answers::Framed | Answers::Whole => 0.0,
    };
    at_most("host calls", calls, logprob_reads + 64.0 * streams);
    // One event per chunk, then the report with the end.
    let frames = count("deployment_response_frames");
    at_most("response_frames", frames, chunks + 3.0 * streams);
    // Plugins start with a large enough heap.
    at_most(
        "growths of memories",
        count("deployment_memory_growths"),
        0.0,
    );
    // Framing adds 19 bytes to a text, which has about a byte per token plus escapes. Logprobs add less than 100.
    let bytes = count("deployment_response_bytes");
    let each = match answers {
        Answers::Streamed => 128.0,
        Answers::Framed | Answers::Whole => 28.0,
    };
    at_most("bytes", bytes, each * tokens + 512.0 * streams);
    assert!(broken.is_empty(), "{broken:#?}");
    // No event is empty.
    assert!(chunks >= streams && chunk_polls >= chunks && calls >= streams && polls >= streams);
    assert!(frames >= streams && bytes >= tokens);
}

#[test]
fn streamed_token_stays_within_cost_bounds() {
    check_costs(Answers::Streamed);
}

#[test]
fn host_framed_token_wakes_no_plugin() {
    check_costs(Answers::Framed);
}

#[test]
fn collected_answer_wakes_plugin_once() {
    check_costs(Answers::Whole);
}

/// When nothing is written meanwhile, only the engine wakes a call.
#[test]
fn token_read_by_plugin_wakes_it_once() {
    const CALLS: usize = 8;
    const TOKENS: usize = 200;
    let corral = Corral::start_with_routes(&[("/measure", "measure")], &[]);
    corral.check_alive();
    let before = corral.wait_until_idle();
    std::thread::scope(|scope| {
        for sum in distinct_sums(CALLS) {
            let corral = &corral;
            scope.spawn(move || {
                let path = format!("/measure/generate?count={TOKENS}");
                let answer = corral.post(&path, sum.question());
                assert_eq!(answer.body, TOKENS.to_string(), "{answer:?}");
            });
        }
    });
    let after = corral.wait_until_idle();
    let count = |name: &str| after.growth(&format!("corral_deployment_{name}_total"), &before);
    let (polls, chunks) = (count("guest_polls"), count("generation_chunks"));

    assert!(chunks >= CALLS as f64 && polls >= CALLS as f64);
    let most = chunks + (24 * CALLS) as f64;
    assert!(polls <= most, "{polls} polls, {chunks} chunks");
}

/// How often the threads that serve connections have gone to sleep.
fn sleeps_of_workers(corral: &Corral) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", corral.pid())).expect("it runs");
    let statuses = tasks.flatten().filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        status
            .starts_with("Name:\tcorral-worker\n")
            .then_some(status)
    });
    let sleeps = statuses.map(|status| {
        let count = |line: &str| {
            line.strip_prefix("voluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        };
        let count: Option<u64> = status.lines().find_map(count);
        count.expect("the kernel counts them")
    });
    sleeps.sum()
}

/// The worker that waits for the client sleeps after each request. The others sleep on.
#[test]
fn request_wakes_one_worker() {
    const REQUESTS: u64 = 300;
    let corral = Corral::start();
    let mut client = TcpStream::connect(corral.public()).expect("the server accepts");
    let mut exchange = || {
        let request = b"GET /wasi-p2-handler HTTP/1.1\r\nHost: x\r\n\r\n";
        client.write_all(request).expect("sent");
        let (mut response, mut buffer) = (Vec::new(), [0; 1024]);
        while !response.ends_with(b"\r\n0\r\n\r\n") {
            let length = client.read(&mut buffer).expect("a response");
            assert!(length > 0, "{}", String::from_utf8_lossy(&response));
            response.extend_from_slice(&buffer[..length]);
        }
        assert!(response.starts_with(b"HTTP/1.1 200 OK"));
    };
    // The first request initializes everything lazy.
    exchange();
    let before = sleeps_of_workers(&corral);
    (0..REQUESTS).for_each(|_| exchange());
    let sleeps = sleeps_of_workers(&corral) - before;
    // With another name of the threads, none would be counted.
    assert!((1..=3 * REQUESTS / 2).contains(&sleeps), "{sleeps} sleeps");
}

/// The initial heap of `.cargo/config.toml` suffices for their requests.
#[test]
fn openai_plugin_memory_does_not_grow() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    let growths = || {
        let metrics = corral.wait_until_idle();
        metrics.get("corral_deployment_memory_growths_total")
    };
    let before = growths();
    let text = json!({"prompt": "12+7="});
    let chat = json!({"messages": [{"role": "user", "content": "12+7="}]});
    for stream in [false, true] {
        for (path, request) in [("completions", &text), ("chat/completions", &chat)] {
            let mut request = request.clone();
            request["stream"] = stream.into();
            corral.post_ok(&format!("/v1/{path}"), request.to_string());
        }
    }
    assert_eq!(growths(), before);
}

#[test]
fn idle_server_has_no_wakeups() {
    let corral = Corral::start();
    corral.check_alive();
    let before = corral.wait_until_idle().get("corral_engine_wakeups_total");
    std::thread::sleep(Duration::from_secs(1));
    let after = corral.wait_until_idle().get("corral_engine_wakeups_total");
    assert_eq!(after, before);
}

#[test]
fn admin_listener_lists_its_routes() {
    let corral = Corral::start();
    let answer = corral.get_admin("/metrics");
    let expected = Some("text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(answer.header("content-type"), expected);
    let index = corral.get_admin("/");
    assert_eq!(index.status, 200);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(index.body.contains(path), "{index:?}");
        assert_eq!(corral.get_admin(path).status, 200);
    }
    corral.get_admin("/nothing").problem(404, "no-route");
    let metrics = corral.metrics();
    assert_eq!(metrics.get("corral_ready"), 1.0);
    assert!(metrics.get("process_resident_memory_bytes") > 1e6);
    let labeled = metrics.get_or_zero("corral_engine_steps_total{model=\"tiny\"}");
    assert_eq!(labeled, metrics.get("corral_engine_steps_total"));
}
