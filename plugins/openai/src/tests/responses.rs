//! `/v1/responses`.

use corral_sdk::fields::ignored;
use corral_sdk::testing::Script;
use corral_sdk::{Error, Request};
use serde_json::{Value, json};

use super::script_with_reasoning as script;
use super::{CALL, TEMPLATE, ask, ask_with, assert_error, events, merged, post, strict};

/// Removes fields that differ between responses.
fn without_ids(mut items: Value) -> Value {
    for item in items.as_array_mut().unwrap() {
        let item_fields = item.as_object_mut().unwrap();
        for name in ["id", "call_id", "status"] {
            assert!(item_fields.get(name).is_none_or(|value| value.is_string()));
            item_fields.remove(name);
        }
    }
    items
}

#[test]
fn stream_has_timings_and_progress() {
    let body = json!({"input": "Hi", "timings_per_token": true, "return_progress": true});
    let events = events(&script("Hello"), "/v1/responses", &body);
    let progress = events
        .iter()
        .find(|event| event["prompt_progress"].is_object());
    let progress = progress.expect("an event with the progress");
    assert_eq!(progress["type"], "response.in_progress");
    assert!(progress["prompt_progress"]["total"].as_u64() > Some(0));
    for kind in ["response.output_text.delta", "response.completed"] {
        let timings = events.iter().find(|event| event["type"] == kind);
        let timings = &timings.expect("an event of this kind")["timings"];
        assert!(timings["predicted_n"].as_u64() > Some(0), "{timings}");
    }
}

#[test]
fn stream_and_whole_response_have_same_items() {
    let tools = json!([{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": false}]);
    let body = json!({
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "instructions": "Be brief.", "tools": tools, "temperature": 0, "metadata": {"a": "b"},
    });
    let says = format!("<think>\nhm\n</think>\n\n{CALL}");
    let scripted = script(&says);
    let (status, answer) = post(&scripted, "/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["status"], "completed", "{answer}");
    let expected = "system\nBe brief.";
    assert!(scripted.generations()[0].after.contains(expected));
    assert_eq!(
        without_ids(answer["output"].clone()),
        json!([
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "name": "add", "arguments": "{\"a\": 1}"},
        ])
    );
    assert_eq!(answer["tools"], tools);
    assert_eq!(answer["metadata"], json!({"a": "b"}));
    let found = &answer["usage"]["output_tokens_details"]["reasoning_tokens"];
    assert_eq!(*found, 2);

    let events = events(&script(&says), "/v1/responses", &body);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let last = events.last().unwrap();
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(last["type"], "response.completed");
    let found = without_ids(last["response"]["output"].clone());
    assert_eq!(found, without_ids(answer["output"].clone()));
    assert_eq!(last["response"]["usage"], answer["usage"]);
    // The parts add up to the final items.
    for (kind, field) in [
        ("reasoning_text", "text"),
        ("output_text", "text"),
        ("function_call_arguments", "arguments"),
    ] {
        let of = |what: &str| {
            let kind = format!("response.{kind}.{what}");
            events
                .iter()
                .filter(move |event| event["type"] == kind.as_str())
        };
        let pieces = of("delta").map(|event| event["delta"].as_str().unwrap());
        let pieces: String = pieces.collect();
        let done = of("done").next().unwrap();
        assert_eq!(done[field], pieces);
        let id = &done["item_id"];
        assert!(of("delta").all(|event| event["item_id"] == *id));
        let item = &last["response"]["output"][done["output_index"].as_u64().unwrap() as usize];
        assert_eq!(item["id"], *id);
        assert_eq!(combined_items(&events), last["response"]["output"]);
    }
}

#[test]
fn message_has_logprobs_of_its_text() {
    let include = json!(["message.output_text.logprobs"]);
    let body = json!({"input": "Hi", "include": include, "top_logprobs": 2});
    let says = "<think>\nhm\n</think>\n\nSo hm";
    let (status, answer) = post(&script(says), "/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    let whole = answer["output"][1]["content"][0]["logprobs"].clone();
    let text = |entries: &Value| -> String {
        let entries = entries.as_array().unwrap().iter();
        entries
            .map(|entry| entry["token"].as_str().unwrap())
            .collect()
    };
    assert_eq!(text(&whole), "So hm");
    assert_eq!(whole[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    let events = events(&script(says), "/v1/responses", &body);
    let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
    let deltas = of("response.output_text.delta").map(|event| text(&event["logprobs"]));
    assert_eq!(deltas.collect::<String>(), "So hm");
    let done = of("response.output_text.done").next().unwrap();
    assert_eq!(done["logprobs"], whole);
    for (kind, part) in [
        ("response.content_part.done", "/part"),
        ("response.output_item.done", "/item/content/0"),
        ("response.completed", "/response/output/1/content/0"),
    ] {
        let event = of(kind).next_back().unwrap();
        assert_eq!(event.pointer(part).unwrap()["logprobs"], whole, "{kind}");
    }
    // Alone it has no effect.
    let body = json!({"input": "Hi", "top_logprobs": 2});
    let request = Request::post("/v1/responses").with_json(&body);
    let (head, text) = ask(&script("x"), request);
    assert_eq!(head.header(ignored::HEADER), Some("top_logprobs"));
    assert!(text.contains("\"logprobs\":[]"), "{text}");
}

#[test]
fn unknown_includes_are_named() {
    let included = [
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "no such",
    ];
    let body = json!({"input": "Hi", "include": included});
    let request = || Request::post("/v1/responses").with_json(&body);
    let (head, text) = ask(&script("x"), request());
    assert_eq!(head.status(), 200, "{text}");
    let named = "include.web_search_call.action.sources, include.no?such";
    assert_eq!(head.header(ignored::HEADER), Some(named));
    let (head, text) = ask_with(strict(), &script("x"), request());
    assert_eq!(head.status(), 400, "{text}");
    assert!(text.contains("web_search_call.action.sources"), "{text}");
}

#[test]
fn encoded_reasoning_is_read_back() {
    let template = TEMPLATE.replace(
        "{{ m.content }}",
        "{{ m.reasoning_content }}|{{ m.content }}",
    );
    let template = format!("{template}{{# </think> #}}");
    let script = Script::new()
        .chat_template(&template)
        .answers("assistant\n", "<think>\nhm\n</think>\n\nSo.");
    let include = json!(["reasoning.encrypted_content"]);
    let body = json!({"input": "Hi", "include": include});
    let (status, answer) = post(&script, "/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    let mut output = answer["output"].as_array().unwrap().clone();
    // As Codex sends it back.
    output[0].as_object_mut().unwrap().remove("content");
    output.insert(0, json!({"role": "user", "content": "Hi"}));
    output.push(json!({"role": "user", "content": "More"}));
    let (status, answer) = post(&script, "/v1/responses", &json!({"input": output}));
    assert_eq!(status, 200, "{answer}");
    let prompt = &script.generations()[1].after;
    assert!(prompt.contains("assistant\nhm|So."), "{prompt}");
    assert_eq!(answer["output"][0]["encrypted_content"], Value::Null);
}

/// Combines the items of a stream as OpenAI's Node client does: a delta needs its item and part.
fn combined_items(events: &[Value]) -> Value {
    let mut items: Vec<Value> = Vec::new();
    for event in events {
        let kind = event["type"].as_str().unwrap();
        let at = event["output_index"].as_u64().unwrap_or_default() as usize;
        let part = event["content_index"].as_u64().unwrap_or_default() as usize;
        match kind {
            "response.output_item.added" => {
                assert_eq!(at, items.len());
                items.push(event["item"].clone());
            }
            "response.content_part.added" => {
                let parts = items[at]["content"].as_array_mut().unwrap();
                assert_eq!(part, parts.len());
                parts.push(event["part"].clone());
            }
            "response.content_part.done" => assert_eq!(items[at]["content"][part], event["part"]),
            "response.output_item.done" => {
                items[at]["status"] = event["item"]["status"].clone();
                assert_eq!(items[at], event["item"]);
            }
            _ if kind.ends_with(".delta") => {
                let text = match kind {
                    "response.function_call_arguments.delta" => &mut items[at]["arguments"],
                    _ => &mut items[at]["content"][part]["text"],
                };
                let more = event["delta"].as_str().unwrap();
                *text = (text.as_str().unwrap().to_owned() + more).into();
            }
            _ => {}
        }
    }
    items.into()
}

#[test]
fn error_event_precedes_failed_response() {
    let broken = Script::new().chat_template(TEMPLATE).fails_after(
        "assistant\n",
        "Hel",
        Error::ContextFull {
            needed: 9,
            limit: 8,
        },
    );
    let body = json!({"input": "Hi", "stream": true});
    let (_, text) = ask(&broken, Request::post("/v1/responses").with_json(&body));
    let events: Vec<_> = text.split_terminator("\n\n").collect();
    let event = |at: usize, name: &str| -> Value {
        let data = events[at].strip_prefix(&format!("event: {name}\ndata: "));
        serde_json::from_str(data.unwrap()).unwrap()
    };
    let count = events.len();
    let error = event(count - 2, "error");
    assert_eq!(
        error,
        json!({
            "type": "error",
            "sequence_number": count - 2,
            "code": "context_length_exceeded",
            "message": error["message"],
            "param": null,
            "error": {
                "code": "context_length_exceeded",
                "message": error["message"],
                "param": null,
                "type": "invalid_request_error",
            },
        })
    );
    assert!(error["message"].as_str().unwrap().contains('9'), "{error}");
    let failed = event(count - 1, "response.failed");
    assert_eq!(failed["sequence_number"], count - 1);
    assert_eq!(failed["response"]["status"], "failed");
    let expected = json!({"code": "context_length_exceeded", "message": error["message"]});
    assert_eq!(failed["response"]["error"], expected);
    let found = &failed["response"]["id"];
    assert_eq!(*found, event(0, "response.created")["response"]["id"]);
}

/// Fields of a request, and the field of the error.
const ERRORS: &str = r#"
{"previous_response_id": "x"} => previous_response_id
{"conversation": "x"} => conversation
{"background": true} => background
{"truncation": "none"} => truncation
{"tools": [{"type": "web_search"}]} => tools[0].type
{"tools": [{"type": "web_search"}, {"type": "function", "name": "add"}], "tool_choice": {"type": "web_search"}} => tool_choice
{"text": {"format": {"type": "x"}}} => text.format.type
{"chat_template_kwargs": {"messages": []}} => chat_template_kwargs.messages
{"messages": []} => messages
{"min_tokens": 5} => min_tokens
"#;

#[test]
fn errors_name_the_field() {
    for line in ERRORS.trim().lines() {
        let (fields, param) = line.split_once(" => ").unwrap();
        let fields = serde_json::from_str(fields).unwrap();
        let body = merged(json!({"input": "Hi"}), &fields);
        assert_error(&script("x"), "/v1/responses", &body, (400, "param", param));
    }
    let namespace = json!({"type": "namespace", "name": "n".repeat(129), "tools": []});
    let body = json!({"input": "Hi", "tools": [namespace]});
    let expected = (400, "param", "tools[0].name");
    assert_error(&script("x"), "/v1/responses", &body, expected);
}

/// The tools of Codex.
fn tools_of_codex() -> Value {
    let add = json!({"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": false});
    json!([
        add,
        {"type": "namespace", "name": "mcp__sums", "description": "", "tools": [add]},
        {"type": "custom", "name": "patch", "description": "Patches.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
        {"type": "tool_search", "execution": "client", "description": "", "parameters": {"type": "object"}},
        {"type": "web_search", "external_web_access": false},
    ])
}

#[test]
fn members_of_agents_are_accepted() {
    let body = json!({
        "input": [
            {"type": "message", "id": "m", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "abc"},
            {"type": "custom_tool_call", "id": "c", "status": "completed", "call_id": "1", "name": "patch", "input": "a"},
            {"type": "custom_tool_call_output", "call_id": "1", "output": "Done."},
            {"type": "tool_search_call", "call_id": "2", "execution": "client", "arguments": {}},
            {"type": "tool_search_output", "call_id": "2", "execution": "client", "status": "completed", "tools": [
                {"type": "function", "name": "found", "description": "Finds.", "defer_loading": true}]},
            {"type": "web_search_call", "id": "w", "status": "completed"},
            {"type": "local_shell_call", "id": "l", "call_id": "3", "status": "completed", "action": {"type": "exec"}},
            {"type": "local_shell_call_output", "call_id": "3", "output": "a"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "user", "content": "Hi"},
        ],
        "max_output_tokens": -1, "tools": tools_of_codex(), "include": ["reasoning.encrypted_content"], "store": false,
        "reasoning": {"summary": "auto", "effort": "high"}, "text": {"verbosity": "low"},
        "prompt_cache_key": "x", "client_metadata": {"a": "b"}, "service_tier": "priority",
        "context_management": [{"type": "compaction", "compact_threshold": 9}],
    });
    let script = script("x");
    let (status, answer) = post(&script, "/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    let prompt = &script.generations()[0].after;
    for text in ["mcp__sums__add", "start: /a/", "tool\nDone.", "Finds."] {
        assert!(prompt.contains(text), "{text}: {prompt}");
    }
    assert!(!prompt.contains("web_search"), "{prompt}");

    let (status, count) = post(&script, "/v1/responses/input_tokens", &body);
    assert_eq!(status, 200);
    assert_eq!(count["object"], "response.input_tokens");
    assert_eq!(count["input_tokens"], answer["usage"]["input_tokens"]);
}

#[test]
fn calls_have_the_form_of_their_tools() {
    for (name, arguments, expected) in [
        (
            "mcp__sums__add",
            json!({"a": 1}),
            json!({"type": "function_call", "namespace": "mcp__sums", "name": "add", "arguments": "{\"a\":1}"}),
        ),
        (
            "patch",
            json!({"input": "*** a\n"}),
            json!({"type": "custom_tool_call", "name": "patch", "input": "*** a\n"}),
        ),
        (
            "tool_search",
            json!({"query": "x"}),
            json!({"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}}),
        ),
    ] {
        let call = json!({"name": name, "arguments": arguments});
        let says = format!("<tool_call>{call}</tool_call>");
        let body = json!({"input": "Hi", "tools": tools_of_codex()});
        let (status, answer) = post(&script(&says), "/v1/responses", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(without_ids(answer["output"].clone()), json!([expected]));
        let events = events(&script(&says), "/v1/responses", &body);
        let last = events.last().unwrap();
        let found = without_ids(last["response"]["output"].clone());
        assert_eq!(found, json!([expected]));
        if name == "patch" {
            let kinds = events.iter().filter_map(|event| event["type"].as_str());
            let kinds: Vec<_> = kinds.collect();
            let expected = "response.custom_tool_call_input.delta";
            assert!(kinds.contains(&expected), "{kinds:?}");
            let expected = "response.custom_tool_call_input.done";
            assert!(kinds.contains(&expected), "{kinds:?}");
        }
    }
}
