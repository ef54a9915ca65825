//! The counters of `/metrics` are consistent, and requests leave nothing behind.

use corral_tests::{Corral, ENDLESS_TOKENS, EventStream, distinct_sums, raw_exchange};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

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
    assert!(
        computed < 16.0 * 3000.0,
        "{computed} tokens that nobody reads"
    );
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
    assert_eq!(
        metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"trapped\"}"),
        20.0
    );
    assert_eq!(
        metrics.get_or_zero("corral_http_responses_total{status=\"404\"}"),
        20.0
    );
    corral.check_alive();
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
    // One event per chunk, then the report and the end.
    let frames = count("deployment_response_frames");
    at_most("response_frames", frames, chunks + 4.0 * streams);
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
    assert!(
        polls <= chunks + (24 * CALLS) as f64,
        "{polls} polls, {chunks} chunks"
    );
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
            let answer = corral.post(&format!("/v1/{path}"), request.to_string());
            assert_eq!(answer.status, 200, "{answer:?}");
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
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
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
