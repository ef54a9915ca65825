//! The whole plugin, against a script. `generate.rs`, `counters.rs` and `cli.rs` of the whole program have answers,
//! clients that disconnect, and the command.

use corral_sdk::testing::Script;
use corral_sdk::{Error, Request, Response};
use serde_json::{Value, json};

use crate::http;

fn answer(script: &Script, request: Request) -> (Response, String) {
    script.run(async {
        let answered = http::handle(request).await.unwrap_or_else(Response::from);
        let (status, kind) = (answered.status(), answered.header("content-type"));
        let same = Response::bytes(kind.unwrap_or_default(), "").with_status(status);
        let body = answered.read().await;
        (same, String::from_utf8(body).unwrap())
    })
}

fn post(script: &Script, body: Value) -> (u16, Value) {
    let (response, body) = answer(script, Request::post("/generate").with_json(&body));
    (response.status(), serde_json::from_str(&body).unwrap())
}

#[test]
fn settings_reach_the_host_in_order() {
    let script = Script::new().answers("x", "y");
    let body = json!({
        "prompt": "x", "seed": 7, "stop": ["b"], "logprobs": 1, "speculate": 2,
        "samplers": [{"temperature": 0.5}, {"top_k": 3}, {"logit_bias": [[5, "-inf"]]}],
    });
    let (status, body) = post(&script, body);
    assert_eq!(status, 200);
    let entry = &body["logprobs"][0];
    let top = json!([{"token": 121, "text": "y", "logprob": entry["logprob"]}]);
    assert_eq!((&entry["text"], &entry["top"]), (&"y".into(), &top));
    assert_eq!(
        script.generations()[0].settings,
        [
            "max-tokens 128",
            "seed 7",
            "stop \"b\"",
            "temperature 0.5",
            "top-k 3",
            "logit-bias [(5, -inf)]",
            "logprobs 1",
            "speculate 2",
        ]
    );
}

#[test]
fn errors_have_their_status() {
    let busy = || Error::Refused {
        reason: "the queue is full".to_owned(),
        retry_after: std::time::Duration::from_millis(1500),
    };
    for stream in [false, true] {
        let script = Script::new()
            .fails("generate", busy())
            .fails_after("x", "", Error::Deadline);
        let body = json!({"prompt": "x", "stream": stream});
        assert_eq!(post(&script, body.clone()).0, 429, "{stream}");
        assert_eq!(post(&script, body.clone()).0, 504, "{stream}");
        let (status, answer) = post(&script, json!({"prompt": "x", "model": "y"}));
        assert_eq!((status, &answer["code"]), (404, &"unknown-model".into()));
        let (status, answer) = post(&script, json!({"prompt": "x", "adapter": "y"}));
        assert_eq!((status, &answer["code"]), (404, &"unknown-adapter".into()));
        let body = json!({"prompt": "x", "constraint": {"regex": "("}});
        let (status, answer) = post(&script, body);
        assert_eq!(status, 400);
        assert_eq!(answer["code"], "invalid-constraint");
    }
    let (response, _) = answer(&Script::new(), Request::get("/generate"));
    assert_eq!(response.status(), 405);
}

#[test]
fn stream_ends_with_report_or_error() {
    let script = Script::new()
        .answers("a", "bc")
        .fails_after("d", "e", Error::Deadline);
    let ask = |prompt: &str| {
        let body = json!({"prompt": prompt, "stream": true});
        answer(&script, Request::post("/generate").with_json(&body))
    };
    let (response, events) = ask("a");
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    let events: Vec<_> = events.split("\n\n").collect();
    let expected = [r#"data: {"text":"b"}"#, r#"data: {"text":"c"}"#];
    assert_eq!(events[..2], expected);
    assert!(events[2].contains(r#""finish_reason":"end""#), "{events:?}");
    assert_eq!(events[3..], ["data: [DONE]", ""]);

    let (_, events) = ask("d");
    let events: Vec<_> = events.split("\n\n").collect();
    assert_eq!(events[0], r#"data: {"text":"e"}"#);
    assert!(events[1].starts_with("event: error\ndata: {"), "{events:?}");
    assert!(events[1].contains("deadline"), "{events:?}");
    assert_eq!(events[2..], [""]);
}
