//! `/v1/completions`.

use corral_sdk::Error;
use corral_sdk::testing::{HostCall, Script};
use serde_json::{Value, json};

use super::{assert_error, events, post};

const PATH: &str = "/v1/completions";

fn script() -> Script {
    Script::new().answers("1+1=", "2").answers("abc", "defg")
}

#[test]
fn logprobs_are_parallel_lists() {
    let body = json!({"prompt": "abc", "logprobs": 2});
    let (_, answer) = post(&script(), PATH, &body);
    let response = &answer["choices"][0]["logprobs"];
    assert_eq!(response["tokens"], json!(["d", "e", "f", "g"]));
    assert_eq!(response["text_offset"], json!([0, 1, 2, 3]));
    let first = &response["top_logprobs"][0];
    assert_eq!(first.as_object().unwrap().len(), 2);
    assert_eq!(first["d"], response["token_logprobs"][0]);
    let mut none = body.clone();
    none["logprobs"] = 0.into();
    let (_, answer) = post(&script(), PATH, &none);
    let found = &answer["choices"][0]["logprobs"]["top_logprobs"];
    assert_eq!(*found, Value::Null);

    check_stream(&script(), &body, response);
}

/// Checks that a stream has the same lists, in parts.
fn check_stream(script: &Script, body: &Value, response: &Value) {
    let events = events(script, PATH, body);
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let events = events.iter().map(|event| &event["choices"][0]);
        let first = events.filter(|choice| choice["index"] == 0);
        let lists = first.filter_map(|choice| choice["logprobs"][field].as_array());
        let all: Vec<_> = lists.flatten().cloned().collect();
        assert_eq!(Value::from(all), response[field], "{field}");
    }
}

/// Scripts the tokens of "abé", the last two of which are halves of a character.
fn script_with_logits() -> Script {
    Script::new()
        .next("a", &[("b", 2.0), ("x", 1.0)])
        .next("ab", &[("x", 3.0), ("y", 2.0)])
        .answers("ab", "é!")
}

fn next_token_requests(script: &Script) -> usize {
    let calls = script.calls().into_iter();
    calls
        .filter(|call| matches!(call, HostCall::Next(_)))
        .count()
}

#[test]
fn echo_returns_prompt_logprobs() {
    let body = json!({"prompt": "abé", "echo": true, "logprobs": 2, "max_tokens": 0});
    let script = script_with_logits();
    let (status, answer) = post(&script, PATH, &body);
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abé");
    assert_eq!(choice["finish_reason"], "length");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 4);
    assert_eq!(usage["completion_tokens"], 0);
    let response = &choice["logprobs"];
    let found = &response["tokens"];
    assert_eq!(*found, json!(["a", "b", "\u{fffd}", "\u{fffd}"]));
    assert_eq!(response["text_offset"], json!([0, 1, 2, 3]));
    let (logs, top) = (&response["token_logprobs"], &response["top_logprobs"]);
    assert_eq!((&logs[0], &top[0]), (&Value::Null, &Value::Null));
    let near = |value: &Value, expected: f64| {
        let found = (value.as_f64().unwrap() - expected).abs();
        assert!(found < 1e-4, "{value}, {expected}");
    };
    let all = |one: f64, other: f64| (one.exp() + other.exp()).ln();
    near(&logs[1], 2.0 - all(2.0, 1.0));
    near(&top[1]["x"], 1.0 - all(2.0, 1.0));
    assert_eq!(top[1]["b"], logs[1]);
    // Not among the most likely tokens, so it takes a second request.
    near(&logs[2], -30.0 - all(3.0, 2.0));
    near(&top[2]["y"], 2.0 - all(3.0, 2.0));
    near(&logs[3], 0.0);
    // The token itself is listed as well.
    assert_eq!(top[2]["\u{fffd}"], logs[2]);
    for (position, count) in [(1, 2), (2, 3), (3, 2)] {
        assert_eq!(top[position].as_object().unwrap().len(), count);
    }
    assert_eq!(next_token_requests(&script), 4);
    assert_eq!(script.generations(), []);
    check_stream(&script_with_logits(), &body, response);

    // With a token list and no top logprobs, each token takes one request.
    let body = json!({"prompt": [97, 98, 195, 169], "echo": true, "logprobs": 0, "max_tokens": 0});
    let script = script_with_logits();
    let (_, answer) = post(&script, PATH, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abé");
    assert_eq!(choice["logprobs"]["token_logprobs"], *logs);
    assert_eq!(choice["logprobs"]["top_logprobs"], Value::Null);
    assert_eq!(next_token_requests(&script), 3);
}

#[test]
fn model_without_fork_requests_more_tokens() {
    let body = json!({"prompt": "abé", "echo": true, "logprobs": 2, "max_tokens": 0});
    let script = script_with_logits().info(|info| info.can_fork = false);
    let (_, answer) = post(&script, PATH, &body);
    let (_, forking) = post(&script_with_logits(), PATH, &body);
    let found = &answer["choices"][0]["logprobs"];
    assert_eq!(*found, forking["choices"][0]["logprobs"]);
    assert_eq!(next_token_requests(&script), 3);
}

/// Evaluation tools use all entries but the last as the prompt's.
#[test]
fn end_token_has_an_entry_after_echo() {
    let script = || Script::new().next("a", &[("b", 1.0)]).answers("ab", "");
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": 1});
    let (_, answer) = post(&script(), PATH, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "ab");
    assert_eq!(choice["finish_reason"], "stop");
    let response = &choice["logprobs"];
    assert_eq!(response["tokens"], json!(["a", "b", "<|im_end|>"]));
    assert_eq!(response["text_offset"], json!([0, 1, 2]));
    let found = &response["top_logprobs"][2]["<|im_end|>"];
    assert_eq!(*found, response["token_logprobs"][2]);
    check_stream(&script(), &body, response);
    // Without echo it has no entry.
    let mut alone = body;
    alone["echo"] = false.into();
    let (_, answer) = post(&script(), PATH, &alone);
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!([]));
}

/// The texts of the next-token requests.
fn requested_texts(script: Script, prompts: &[&str]) -> Vec<String> {
    let script = script
        .next("a", &[("b", 1.0)])
        .next("ab", &[("c", 1.0)])
        .next("abc", &[("d", 1.0)]);
    let body = json!({"prompt": prompts, "echo": true, "logprobs": 0, "max_tokens": 0});
    let (status, answer) = post(&script, PATH, &body);
    assert_eq!(status, 200, "{answer}");
    let calls = script.calls().into_iter();
    calls
        .filter_map(|call| match call {
            HostCall::Next(after) => Some(after),
            _ => None,
        })
        .collect()
}

#[test]
fn prompts_are_scored_concurrently_within_context() {
    let prompts = ["abcd", "ab", "ab"];
    let room = |positions| requested_texts(Script::new().context(positions), &prompts);
    assert_eq!(room(8), ["a", "a", "a", "ab", "abc"]);
    // The third prompt starts when the second is complete.
    assert_eq!(room(6), ["a", "a", "ab", "a", "abc"]);
    // At first only the long prompt fits.
    assert_eq!(room(5), ["a", "ab", "abc", "a", "a"]);
    let of = |a, ab| [vec!["a"; a], vec!["ab"; ab]].concat();
    let expected = [of(16, 16), of(1, 1)].concat();
    assert_eq!(requested_texts(Script::new(), &["abc"; 17]), expected);
    // A prompt of one token is complete at the start.
    assert_eq!(requested_texts(Script::new(), &["a"; 40]), of(0, 0));
}

#[test]
fn oversized_prompts_are_rejected_before_scoring() {
    let prompts = vec!["a".repeat(4000); 8];
    let mut body = json!({"prompt": prompts, "echo": true, "logprobs": 20, "max_tokens": 1});
    for stream in [false, true] {
        body["stream"] = stream.into();
        let script = script();
        assert_error(&script, PATH, &body, (400, "param", "prompt"));
        assert_eq!(next_token_requests(&script), 0);
    }
}

#[test]
fn completion_continues_the_scored_prompt() {
    let body = json!({"prompt": "abé", "echo": true, "logprobs": 1, "max_tokens": 1, "n": 2});
    let script = script_with_logits();
    let (_, answer) = post(&script, PATH, &body);
    for index in 0..2 {
        let choice = &answer["choices"][index];
        assert_eq!(choice["text"], "abé!");
        let response = &choice["logprobs"];
        assert_eq!(response["tokens"][4], "!");
        assert_eq!(response["text_offset"], json!([0, 1, 2, 3, 3]));
        let found = &response["top_logprobs"][4]["!"];
        assert_eq!(*found, response["token_logprobs"][4]);
    }
    assert_eq!(script.generations()[1].after, "abé");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 4);
    assert_eq!(usage["completion_tokens"], 2);
    // This request computed it.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    check_stream(
        &script_with_logits(),
        &body,
        &answer["choices"][0]["logprobs"],
    );
}

#[test]
fn scored_prompts_keep_their_order() {
    let prompts = (0..100).map(|at| ["a", "ab", "abé"][at % 3].to_owned());
    let prompts: Vec<_> = prompts.collect();
    let body = json!({"prompt": prompts, "echo": true, "logprobs": 1, "max_tokens": 0});
    let (_, answer) = post(&script_with_logits(), PATH, &body);
    for (index, prompt) in prompts.iter().enumerate() {
        let choice = &answer["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], prompt.clone());
        let logs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(logs.len(), prompt.len());
        assert!(logs[1..].iter().all(Value::is_number));
    }
}

#[test]
fn begin_token_is_part_of_the_prompt() {
    let script = || {
        Script::new()
            .control_token("<s>")
            .begin_token("<s>")
            .next("<s>", &[("a", 1.0)])
            .next("a", &[("b", 2.0)])
    };
    for (prompt, offsets) in [("ab", [0, 0, 1]), ("<s>ab", [0, 3, 4])] {
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0});
        let (_, answer) = post(&script(), PATH, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], prompt);
        assert_eq!(choice["logprobs"]["tokens"], json!(["<s>", "a", "b"]));
        assert_eq!(choice["logprobs"]["text_offset"], json!(offsets));
    }
}

#[test]
fn zero_max_tokens_gives_empty_text() {
    // There is no room for tokens, and none is needed.
    let script = || Script::new().context(3);
    let body = json!({"prompt": ["abc", "ab"], "max_tokens": 0, "n": 2, "logprobs": 1});
    let scripted = script();
    let (status, answer) = post(&scripted, PATH, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(next_token_requests(&scripted), 0);
    assert_eq!(scripted.generations().len(), 0);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], "");
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(choice["logprobs"]["tokens"], json!([]));
    }
    assert_eq!(answer["usage"]["total_tokens"], 5);
    let events = events(&script(), PATH, &body);
    assert_eq!(events.len(), 5);
    assert_eq!(events[3]["choices"][0]["finish_reason"], "length");
    let long = json!({"prompt": "abc", "max_tokens": 1});
    assert_error(&script(), PATH, &long, (400, "param", "prompt"));
}

#[test]
fn scoring_errors_have_their_status() {
    let refused = Error::Refused {
        reason: "the queue is full".to_owned(),
        retry_after: std::time::Duration::from_secs(1),
    };
    let script = script_with_logits().fails("next", refused);
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 1, "stream": true});
    assert_error(&script, PATH, &body, (429, "code", "rate_limit_exceeded"));
}

#[test]
fn error_event_precedes_done() {
    for (text, more) in [("", json!({})), ("d", json!({"n": 2}))] {
        let script = Script::new().fails_after("abc", text, Error::Deadline);
        let body = super::merged(json!({"prompt": "abc"}), &more);
        let events = events(&script, PATH, &body);
        let [.., error, done] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(error["error"]["code"], "deadline");
        assert_eq!(done, "[DONE]");
    }
}

#[test]
fn too_many_choices_are_rejected() {
    for (prompts, n, field) in [(65, 2, "n"), (129, 1, "prompt")] {
        let body = json!({"prompt": vec!["abc"; prompts], "n": n});
        assert_error(&script(), PATH, &body, (400, "param", field));
    }
}
