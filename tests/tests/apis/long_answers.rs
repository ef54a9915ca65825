//! Long answers and slow prompts: the stream of an API begins at once, is kept alive while it is silent, and ends with
//! the API's error events at the time limit.

use corral_tests::deployments::deploy_plugin;
use corral_tests::{Corral, ENDLESS_TOKENS, EventStream};
use serde_json::{Value, json};

/// The plugin `openai` at `/v1` with this time limit, beside plugins that have an hour. One generation runs at a time.
fn start(seconds: u32) -> Corral {
    let corral = Corral::start_with_store(&["--max-running", "1", "--event-keep-alive", "1"]);
    let more = json!({
        "routes": ["/v1"], "error-format": "openai", "limits": {"time-seconds": seconds},
    });
    deploy_plugin(&corral, "brief", "openai", more);
    corral
}

/// A request of each API.
fn requests() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "12+7="}]);
    [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "12+7="})),
        ("/v1/responses", json!({"input": "12+7="})),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 50}),
        ),
    ]
}

fn stream(corral: &Corral, path: &str, request: &Value) -> EventStream {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let stream = corral.post_stream(path, request.to_string());
    assert_eq!(stream.status, 200, "{path}");
    stream
}

/// The remaining events: names, empty if there is none, and data.
fn events(mut stream: EventStream) -> Vec<(String, String)> {
    let bytes = stream.bytes(u64::MAX).expect("not cut off");
    let text = String::from_utf8(bytes).expect("text");
    let events = text.trim_start().split_terminator("\n\n");
    let parts = |event: &str| {
        let (name, data) = match event.split_once("\ndata: ") {
            Some((name, data)) => (name.strip_prefix("event: ").expect(event), data),
            None => ("", event.strip_prefix("data: ").expect(event)),
        };
        (name.to_owned(), data.to_owned())
    };
    events
        .filter(|event| !event.starts_with(':'))
        .map(parts)
        .collect()
}

fn json_of(data: &str) -> Value {
    serde_json::from_str(data).expect(data)
}

/// Asserts that the last events are those of an API whose request reached its time limit.
fn check_late(path: &str, events: &[(String, String)]) {
    let [.., (before, data_before), (last, data)] = events else {
        panic!("{path}: {events:?}");
    };
    match path {
        "/v1/responses" => {
            assert_eq!((&**before, &**last), ("error", "response.failed"));
            assert_eq!(json_of(data_before)["code"], "deadline");
            let response = json_of(data)["response"].clone();
            assert_eq!(response["status"], "failed");
            assert_eq!(response["error"]["code"], "deadline");
        }
        "/v1/messages" => {
            assert_eq!(last, "error");
            assert_eq!(json_of(data)["error"]["type"], "timeout_error");
        }
        _ => {
            assert_eq!(json_of(data_before)["error"]["code"], "deadline");
            assert_eq!(data, "[DONE]");
        }
    }
}

/// How often requests reached the time limit.
fn wait_for_limit_hits(corral: &Corral, count: f64) {
    let sample = "corral_deployment_limit_hits_total{deployment=\"brief\",limit=\"time-seconds\"}";
    corral.wait_until("all time limits are counted", |metrics| {
        metrics.get_or_zero(sample) == count
    });
    corral.wait_until_idle();
}

#[test]
fn queued_request_ends_with_error_of_its_api() {
    let corral = start(2);
    for (path, request) in requests() {
        let held = corral.endless("/generate");
        let answer = corral.post(path, request.to_string());
        assert_eq!(answer.status, 504, "{path}: {answer:?}");
        let error = answer.json()["error"].clone();
        match path {
            "/v1/messages" => assert_eq!(error["type"], "timeout_error"),
            _ => assert_eq!(error["code"], "deadline", "{path}"),
        }
        drop(held);
        let held = corral.endless("/generate");
        check_late(path, &events(stream(&corral, path, &request)));
        drop(held);
    }
    wait_for_limit_hits(&corral, 8.0);
}

#[test]
fn running_stream_ends_with_error_of_its_api() {
    let corral = start(2);
    // The host streams one choice; the plugin streams two.
    for n in [1, 2] {
        let messages = json!([{"role": "user", "content": "12+7="}]);
        let request = json!({
            "messages": messages, "n": n, "max_tokens": ENDLESS_TOKENS, "ignore_eos": true,
        });
        let path = "/v1/chat/completions";
        let events = events(stream(&corral, path, &request));
        check_late(path, &events);
        let has_text = |data: &str| {
            let content = &json_of(data)["choices"][0]["delta"]["content"];
            content.as_str().is_some_and(|text| !text.is_empty())
        };
        let mut data = events.iter().map(|(_, data)| data);
        assert!(data.any(|data| data != "[DONE]" && has_text(data)), "{n}");
    }
    wait_for_limit_hits(&corral, 2.0);
}

#[test]
fn queued_stream_has_begun_and_gets_comments() {
    let corral = start(600);
    for (path, request) in requests() {
        let held = corral.endless("/generate");
        // The head arrives while the request waits.
        let mut stream = stream(&corral, path, &request);
        corral.wait_for_queue(1);
        let next = |stream: &mut EventStream| stream.line().expect("not cut off").expect("goes on");
        while next(&mut stream) != ": keep-alive" {}
        drop(held);
        let events = events(stream);
        let (name, data) = events.last().expect("events");
        match path {
            "/v1/responses" => assert_eq!(name, "response.completed"),
            "/v1/messages" => assert_eq!(name, "message_stop"),
            _ => assert_eq!(data, "[DONE]", "{path}"),
        }
    }
    corral.wait_until_idle();
}

#[test]
fn crash_in_event_stream_is_an_error_event() {
    let corral = Corral::start_with_store(&[]);
    for (format, route) in [
        ("problem", "/problem"),
        ("openai", "/openai"),
        ("openai", "/v1/responses"),
        ("anthropic", "/anthropic"),
    ] {
        let name = route.trim_start_matches('/').replace('/', "-");
        let more = json!({"routes": [route], "error-format": format});
        deploy_plugin(&corral, &name, "misbehave", more);
        let stream = corral.post_stream(&format!("{route}/eventtrap"), "");
        let events = events(stream);
        let events = events.iter().map(|(name, data)| (&**name, &**data));
        let events: Vec<_> = events.collect();
        let (first, rest) = events.split_first().expect("an event");
        assert_eq!(*first, ("", "begun"));
        match (format, rest) {
            ("problem", [("error", data)]) => assert_eq!(json_of(data)["code"], "trapped"),
            ("openai", [("", data), ("", "[DONE]")]) if route == "/openai" => {
                assert_eq!(json_of(data)["error"]["code"], "trapped");
            }
            ("openai", [("error", data), ("response.failed", last)]) => {
                assert_eq!(json_of(data)["code"], "trapped");
                let response = json_of(last)["response"].clone();
                assert_eq!(response["error"]["code"], "trapped");
                let id = response["id"].as_str().expect("an id");
                assert!(id.len() > "resp_".len(), "{id}");
            }
            ("anthropic", [("error", data)]) => {
                assert_eq!(json_of(data)["error"]["type"], "api_error");
            }
            _ => panic!("{route}: {events:?}"),
        }
    }
    let metrics = corral.wait_until_idle();
    let trapped = metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"trapped\"}");
    assert_eq!(trapped, 4.0);
}

#[test]
fn crash_between_ollama_lines_is_a_last_line() {
    let corral = Corral::start_with_store(&[]);
    for format in ["ollama", "problem"] {
        let more = json!({"error-format": format});
        deploy_plugin(&corral, format, "misbehave", more);
        let mut stream = corral.post_stream(&format!("/{format}/linetrap"), "");
        let mut next = || stream.line();
        assert_eq!(next().expect("a line").as_deref(), Some("\"begun\""));
        match format {
            "ollama" => {
                let last = next().expect("not cut off").expect("a last line");
                assert!(json_of(&last)["error"].is_string(), "{last}");
                assert_eq!(next().expect("not cut off"), None);
            }
            // A line of another format could be taken for a part of the answer.
            _ => assert!(next().is_err(), "cut off"),
        }
    }
    corral.wait_until_idle();
}
