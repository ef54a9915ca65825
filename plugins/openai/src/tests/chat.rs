//! `/v1/chat/completions`.

use std::time::Duration;

use corral_sdk::fields::ignored;
use corral_sdk::testing::{HostCall, Script};
use corral_sdk::{Error, Request};
use serde_json::{Value, json};

use super::{TEMPLATE, ask, ask_with, assert_error, events, merged, post, strict};

const PATH: &str = "/v1/chat/completions";

fn script(answer: &str) -> Script {
    Script::new()
        .chat_template(TEMPLATE)
        .answers("assistant\n", answer)
}

fn hi(request_fields: Value) -> Value {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0});
    merged(body, &request_fields)
}

fn calculator(choice: Value) -> Value {
    hi(json!({
        "tools": [{"type": "function", "function": {
            "name": "calculator", "strict": false,
            "parameters": {"type": "object", "properties": {"e": {"type": "string"}}},
        }}],
        "tool_choice": choice,
    }))
}

/// Combines a stream as clients do: content, reasoning, calls and finish reason.
fn combined_stream(events: &[Value], index: usize) -> Value {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let (mut calls, mut finish, mut logprobs) = (Vec::<Value>::new(), Value::Null, Vec::new());
    let choices = events
        .iter()
        .filter_map(|event| event["choices"].as_array());
    for choice in choices.flatten().filter(|choice| choice["index"] == index) {
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call.get("id").is_some() {
                assert_eq!(call["index"], calls.len());
                calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
            }
            let last = calls.last_mut().unwrap();
            let more = call["function"]["arguments"].as_str().unwrap();
            last["arguments"] = (last["arguments"].as_str().unwrap().to_owned() + more).into();
        }
        logprobs.extend(
            choice["logprobs"]["content"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        );
        assert!(finish.is_null(), "the finish reason comes last");
        finish = choice["finish_reason"].clone();
    }
    json!({"content": content, "reasoning": reasoning, "calls": calls, "finish": finish, "logprobs": logprobs})
}

/// The same of a whole response.
fn combined_response(answer: &Value, index: usize) -> Value {
    let choice = &answer["choices"][index];
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| call["function"].clone());
    json!({
        "content": message["content"].as_str().unwrap_or_default(),
        "reasoning": message["reasoning_content"].as_str().unwrap_or_default(),
        "calls": calls.collect::<Vec<_>>(),
        "finish": choice["finish_reason"],
        "logprobs": choice["logprobs"]["content"].as_array().cloned().unwrap_or_default(),
    })
}

#[test]
fn stream_equals_the_whole_response() {
    let think = format!("{TEMPLATE}{{# </think> #}}");
    for (template, answer, body) in [
        (
            TEMPLATE,
            "Hello!",
            hi(json!({"logprobs": true, "top_logprobs": 2, "n": 3})),
        ),
        (
            TEMPLATE,
            "Hello!",
            hi(json!({"max_tokens": 3, "stop": ["lo!"]})),
        ),
        (
            TEMPLATE,
            "Hello!",
            hi(json!({"stop": ["lo", "x"], "logprobs": true})),
        ),
        (&think, "<think>\nhm\n</think>\n\nHi <think>", hi(json!({}))),
        (&think, "<think>\nhm", hi(json!({}))),
        (
            TEMPLATE,
            "So.\n<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"e\": \"1+1\"}}\n</tool_call>\n\
             <tool_call>\n{\"arguments\": {}, \"name\": \"calculator\"}\n</tool_call>",
            calculator("auto".into()),
        ),
    ] {
        let script = || {
            Script::new()
                .chat_template(template)
                .answers("assistant\n", answer)
        };
        let (status, whole) = post(&script(), PATH, &body);
        assert_eq!(status, 200, "{whole}");
        let mut body = body.clone();
        body["stream_options"] = json!({"include_usage": true});
        let events = events(&script(), PATH, &body);
        assert_eq!(events.last(), Some(&"[DONE]".into()));
        let count = whole["choices"].as_array().unwrap().len();
        for index in 0..count {
            let found = combined_stream(&events, index);
            assert_eq!(found, combined_response(&whole, index), "{answer}");
            let first = events
                .iter()
                .find(|event| event["choices"][0]["index"] == index);
            assert_eq!(first.unwrap()["choices"][0]["delta"]["role"], "assistant");
        }
        let usage = &events[events.len() - 2];
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"], whole["usage"]);
        assert!(
            events[..events.len() - 2]
                .iter()
                .all(|event| event["usage"].is_null())
        );
    }
}

#[test]
fn reasoning_and_stop_strings_are_separated() {
    let think = format!("{TEMPLATE}{{# <think></think> #}}");
    let script = Script::new()
        .chat_template(&think)
        .answers("assistant\n", "<think>\nhm\n</think>\n\nHi");
    let (_, answer) = post(&script, PATH, &hi(json!({})));
    let response = combined_response(&answer, 0);
    assert_eq!(response["reasoning"], "hm");
    assert_eq!(response["content"], "Hi");
    let found = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert_eq!(*found, 2);

    let body = hi(json!({"stop": "lo", "logprobs": true}));
    let (_, answer) = post(&self::script("Hello!"), PATH, &body);
    let response = combined_response(&answer, 0);
    assert_eq!(response["content"], "Hel");
    assert_eq!(response["finish"], "stop");
    let tokens = response["logprobs"].as_array().unwrap().iter();
    let tokens: Vec<_> = tokens.map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, ["H", "e", "l"]);
    assert_eq!(response["logprobs"][0]["bytes"], json!([72]));
}

#[test]
fn tool_call_and_result_make_a_round_trip() {
    let call =
        "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"e\": \"1+1\"}}\n</tool_call>";
    let script = script(call).answers(
        "<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n",
        "2",
    );
    let (_, answer) = post(&script, PATH, &calculator("auto".into()));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let called = &message["tool_calls"][0];
    let expected = json!({"name": "calculator", "arguments": "{\"e\": \"1+1\"}"});
    assert_eq!(called["function"], expected);

    let mut body = calculator("auto".into());
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(message.clone());
    messages.push(json!({"role": "tool", "tool_call_id": called["id"], "content": "2"}));
    let (_, answer) = post(&script, PATH, &body);
    assert_eq!(answer["choices"][0]["message"]["content"], "2");
    let prompt = script.generations()[1].after.clone();
    let expected = "{\"name\": \"calculator\", \"arguments\": {\"e\": \"1+1\"}}";
    assert!(prompt.contains(expected), "{prompt}");
    // The model does not see fields of the API.
    assert!(!prompt.contains("strict"), "{prompt}");
}

#[test]
fn answer_ends_after_the_only_call() {
    let call = |number: u32| {
        format!(
            "<tool_call>{{\"name\": \"calculator\", \"arguments\": {{\"e\": \"{number}\"}}}}</tool_call>"
        )
    };
    let mut body = calculator("auto".into());
    body["parallel_tool_calls"] = false.into();
    let once = call(1);
    let length = once.len() as u64;
    for (says, generated) in [
        (once.clone(), length + 1),
        (once.clone() + &call(2), length + "<tool_call>".len() as u64),
        (once + "\nSo it is.", length + "\nS".len() as u64),
    ] {
        let script = script(&says);
        let (_, answer) = post(&script, PATH, &body);
        let response = combined_response(&answer, 0);
        let expected = json!([{"name": "calculator", "arguments": "{\"e\": \"1\"}"}]);
        assert_eq!(response["calls"], expected);
        assert_eq!(response["finish"], "tool_calls");
        assert_eq!(response["content"], "");
        assert_eq!(answer["usage"]["completion_tokens"], generated, "{says}");
        let cancelled = script.calls().contains(&HostCall::Cancelled);
        assert_eq!(cancelled, generated != length + 1, "{says}");
        let usage = &answer["usage"];
        assert_eq!(
            usage["total_tokens"].as_u64(),
            usage["prompt_tokens"]
                .as_u64()
                .map(|tokens| tokens + generated)
        );
    }
}

#[test]
fn tool_choice_controls_tools_and_grammar() {
    let none = script("Hi");
    let (_, answer) = post(&none, PATH, &calculator("none".into()));
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi");
    assert!(!none.generations()[0].after.contains("calculator"));

    let grammar = |script: &Script| match &script.calls()[1] {
        HostCall::Compile(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "calculator"}}),
    ] {
        let scripted = script("Hi");
        // The script has no grammar; only the call matters.
        assert_error(
            &scripted,
            PATH,
            &calculator(choice),
            (400, "param", "tools"),
        );
        assert!(
            grammar(&scripted).contains("start: \"<tool_call>\" tagged"),
            "{}",
            grammar(&scripted)
        );
    }
    let mut strict = calculator("auto".into());
    strict["tools"][0]["function"]["strict"] = true.into();
    let scripted = script("Hi");
    assert_error(&scripted, PATH, &strict, (400, "param", "tools"));
    assert!(
        grammar(&scripted).contains("start: (PLAIN | lead tagged"),
        "{}",
        grammar(&scripted)
    );

    let mut body = calculator("auto".into());
    body["response_format"] = json!({"type": "json_object"});
    let scripted = script("Hi");
    assert_error(&scripted, PATH, &body, (400, "param", "response_format"));
    assert!(
        grammar(&scripted).contains("start: (value | \"<tool_call>\" tagged"),
        "{}",
        grammar(&scripted)
    );

    let plain = Script::new()
        .chat_template("{{ messages[0].content }}")
        .answers("Hi", "x");
    assert_error(
        &plain,
        PATH,
        &calculator("auto".into()),
        (400, "param", "tools"),
    );
}

#[test]
fn choices_fork_with_own_seeds() {
    let script = script("Hello!");
    let events = events(
        &script,
        PATH,
        &hi(json!({"n": 2, "seed": 7, "temperature": 1})),
    );
    let settings: Vec<_> = script
        .generations()
        .into_iter()
        .map(|one| one.settings[1].clone())
        .collect();
    assert_eq!(settings, ["seed 7", "seed 8"]);
    // Choices are read in rotation.
    let order: Vec<_> = events
        .iter()
        .filter_map(|event| event["choices"][0]["index"].as_u64())
        .collect();
    assert_eq!(order[..6], [0, 0, 1, 1, 0, 1]);
}

#[test]
fn errors_have_status_and_format() {
    let busy = || Error::Refused {
        reason: "the queue is full".to_owned(),
        retry_after: Duration::from_millis(1500),
    };
    for stream in [false, true] {
        let script = script("Hi")
            .fails("generate", busy())
            .fails("generate", Error::Deadline)
            .fails_after(
                "Bye<|im_end|>\n<|im_start|>assistant\n",
                "",
                Error::Failed("broken".to_owned()),
            );
        let body = hi(json!({"stream": stream}));
        let (head, text) = ask(&script, Request::post(PATH).with_json(&body));
        assert_eq!(head.status(), 429);
        assert_eq!(head.header("retry-after"), Some("2"));
        assert!(text.contains("\"code\":\"rate_limit_exceeded\""), "{text}");
        assert_eq!(post(&script, PATH, &body).0, 504);
        let mut bye = body.clone();
        bye["messages"][0]["content"] = "Bye".into();
        if stream {
            let events = events(&script, PATH, &bye);
            let [.., error, done] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!(error["error"]["message"], "broken");
            assert_eq!(done, "[DONE]");
        } else {
            assert_eq!(post(&script, PATH, &bye).0, 500);
        }
        let unknown = hi(json!({"stream": stream, "model": "y"}));
        for (name, value) in [("code", "model_not_found"), ("param", "model")] {
            assert_error(&script, PATH, &unknown, (404, name, value));
        }
    }
    let small = script("Hi").context(10);
    for (name, value) in [("code", "context_length_exceeded"), ("param", "messages")] {
        assert_error(&small, PATH, &hi(json!({})), (400, name, value));
    }
    let error = &post(&small, PATH, &hi(json!({}))).1["error"];
    assert_eq!(error["n_ctx"], 10, "{error}");
    assert!(error["n_prompt_tokens"].as_u64() > Some(9), "{error}");
    let (head, _) = ask(&small, Request::get(PATH));
    assert_eq!((head.status(), head.header("allow")), (405, Some("POST")));
    let (head, text) = ask(&small, Request::post(PATH).with_body("{"));
    assert_eq!(head.status(), 400);
    assert!(text.contains("\"code\":\"invalid-json\""), "{text}");
}

#[test]
fn verbose_response_has_the_prompt() {
    for verbose in [true, false] {
        let (status, answer) = post(&script("Hi"), PATH, &hi(json!({"verbose": verbose})));
        assert_eq!(status, 200, "{answer}");
        let prompt = answer["__verbose"]["prompt"].as_str();
        assert_eq!(prompt.is_some_and(|prompt| prompt.contains("Hi")), verbose);
    }
}

#[test]
fn fields_unknown_to_the_template_are_named() {
    let named = json!([{"role": "user", "name": "Ada", "content": "Hi"}]);
    for (request_fields, field) in [
        (json!({"reasoning_effort": "low"}), "reasoning_effort"),
        (
            json!({"chat_template_kwargs": {"mood": 1}}),
            "chat_template_kwargs.mood",
        ),
        (json!({"messages": named}), "messages[].name"),
    ] {
        let request = || Request::post(PATH).with_json(&hi(request_fields.clone()));
        let (head, text) = ask(&script("Hi"), request());
        let names = head.header(ignored::HEADER);
        assert_eq!((head.status(), names), (200, Some(field)), "{text}");
        let (head, text) = ask_with(strict(), &script("Hi"), request());
        assert_eq!(head.status(), 400, "{text}");
        let expected = "the chat template of the model script";
        assert!(text.contains(expected), "{text}");
    }
    let reserved = hi(json!({"chat_template_kwargs": {"bos_token": "x"}}));
    let expected = (400, "param", "chat_template_kwargs.bos_token");
    assert_error(&script("Hi"), PATH, &reserved, expected);
}

#[test]
fn stream_error_is_an_event_before_done() {
    let script =
        Script::new()
            .chat_template(TEMPLATE)
            .fails_after("assistant\n", "Hel", Error::Deadline);
    let events = events(&script, PATH, &hi(json!({})));
    let [text @ .., error, done] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(combined_stream(text, 0)["content"], "Hel");
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(done, "[DONE]");
}
