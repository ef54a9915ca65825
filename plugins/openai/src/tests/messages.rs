//! `/v1/messages`.

use corral_sdk::Error;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::{CALL, TEMPLATE, events, merged, post, script_with_reasoning as script};

fn message(request_fields: Value) -> Value {
    let body = json!({"max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]});
    merged(body, &request_fields)
}

#[test]
fn message_has_thinking_text_and_tool_blocks() {
    let tools = json!([{"name": "add", "input_schema": {"type": "object"}}]);
    let body = message(json!({"system": [{"type": "text", "text": "Be brief."}], "tools": tools}));
    let says = format!("<think>hm</think>{CALL}");
    let (status, mut answer) = post(&script(&says), "/v1/messages", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    answer["content"][2]["id"] = "x".into();
    let blocks = json!([
        {"type": "thinking", "thinking": "hm", "signature": "corral"},
        {"type": "text", "text": "So."},
        {"type": "tool_use", "id": "x", "name": "add", "input": {"a": 1}},
    ]);
    assert_eq!(answer["content"], blocks);

    let events = events(&script(&says), "/v1/messages", &body);
    let mut together: Vec<Value> = Vec::new();
    for event in &events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], together.len());
                together.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let block = together.last_mut().unwrap();
                for (from, to) in [
                    ("text", "text"),
                    ("thinking", "thinking"),
                    ("signature", "signature"),
                    ("partial_json", "json"),
                ] {
                    if let Some(more) = delta[from].as_str() {
                        block[to] =
                            (block[to].as_str().unwrap_or_default().to_owned() + more).into();
                    }
                }
            }
            _ => {}
        }
    }
    let call = together[2].as_object_mut().unwrap();
    let input = call.remove("json").unwrap();
    call["input"] = serde_json::from_str(input.as_str().unwrap()).unwrap();
    call["id"] = "x".into();
    assert_eq!(Value::from(together), blocks);
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds[0], "message_start");
    assert_eq!(kinds[kinds.len() - 1], "message_stop");
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["usage"], answer["usage"]);
}

#[test]
fn tool_results_precede_text() {
    let body = message(json!({"messages": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "add", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "2"}]},
            {"type": "tool_result", "tool_use_id": "b", "is_error": true, "content": "no such tool"},
            {"type": "tool_result", "tool_use_id": "c", "is_error": true},
            {"type": "text", "text": "So?"},
        ]},
    ]}));
    let script = script("2");
    let (status, _) = post(&script, "/v1/messages", &body);
    assert_eq!(status, 200);
    let prompt = &script.generations()[0].after;
    assert!(
        prompt.contains(
            "tool\n2<|im_end|>\n<|im_start|>tool\nError: no such tool<|im_end|>\n\
             <|im_start|>tool\nError:<|im_end|>\n<|im_start|>user\nSo?<|im_end|>"
        ),
        "{prompt}"
    );
}

/// Fields of a request, and the text of the error.
const ERRORS: &str = r#"
{"max_tokens": null} => `max_tokens` is missing
{"tools": [{"type": "bash_20250124", "name": "bash"}]} => `tools[0].type`
{"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "auto"}} => `tools[0].type`
{"tools": [{"name": "add"}, {"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "tool", "name": "web_search"}} => `tool_choice`
{"messages": []} => `messages` is empty
{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{"}], "output_config": {"format": {"type": "json_schema", "schema": {}}}} => `messages` is not supported
{"messages": [{"role": "tool", "content": "Hi"}]} => `messages[0].role`
{"messages": [{"role": "user", "content": []}]} => `messages[0].content` has no content
{"tools": [{"name": "add"}], "tool_choice": {"type": "any", "name": "add"}} => `tool_choice.name`
{"tools": [{"name": "add"}], "tool_choice": {"type": "auto", "name": "add"}} => `tool_choice.name`
{"mcp_servers": [{}]} => `mcp_servers`
{"messages": [{"role": "user", "content": [{"type": "image"}]}]} => `messages[0].content[0].source` is missing
"#;

#[test]
fn errors_have_the_format_of_anthropic() {
    for line in ERRORS.trim().lines() {
        let (fields, detail) = line.split_once(" => ").unwrap();
        let body = message(serde_json::from_str(fields).unwrap());
        let (status, answer) = post(&script("x"), "/v1/messages", &body);
        assert_eq!((status, &answer["type"]), (400, &"error".into()));
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(detail), "{line}: {message}");
    }
}

#[test]
fn error_event_ends_a_stream() {
    for text in ["", "Hel"] {
        let late = Script::new().chat_template(TEMPLATE);
        let late = late.fails_after("assistant\n", text, Error::Deadline);
        let events = events(&late, "/v1/messages", &message(json!({})));
        assert_eq!(events[0]["type"], "message_start");
        let last = events.last().unwrap();
        assert_eq!(last["type"], "error");
        assert_eq!(last["error"]["type"], "timeout_error");
    }
}

#[test]
fn disabled_thinking_reaches_the_template() {
    let template =
        format!("{TEMPLATE}{{% if enable_thinking is false %}}<think></think>{{% endif %}}");
    let body = message(json!({"thinking": {"type": "disabled"}}));
    let script = Script::new()
        .chat_template(&template)
        .answers("<think></think>", "Hi");
    let (status, answer) = post(&script, "/v1/messages", &body);
    assert_eq!((status, &answer["content"][0]["text"]), (200, &"Hi".into()));
}

/// The prompt of a request that the plugin accepts.
fn prompt(request_fields: Value) -> String {
    let script = script("x");
    let (status, answer) = post(&script, "/v1/messages", &message(request_fields));
    assert_eq!(status, 200, "{answer}");
    script.generations()[0].after.clone()
}

#[test]
fn billing_header_does_not_change_the_prompt() {
    let prompts = ["a1", "b2"].map(|version| {
        let header = format!("x-anthropic-billing-header: cc_version={version}; cch=0{version};");
        let system =
            json!([{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]);
        let text = format!("{header}\nBe brief.");
        let expected = prompt(json!({"system": text}));
        assert_eq!(prompt(json!({"system": system})), expected);
        prompt(json!({"system": system}))
    });
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0], prompt(json!({"system": "Be brief."})));
}

#[test]
fn members_of_agents_are_accepted() {
    let mark = json!({"type": "ephemeral"});
    let text = prompt(json!({
        "max_tokens": -1, "top_k": -1,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": []}, "output_config": {"effort": "high"},
        "service_tier": "priority", "metadata": {"user_id": "x"}, "cache_control": mark, "mcp_servers": [],
        "tools": [
            {"name": "add", "input_schema": {"type": "object"}, "cache_control": mark,
             "eager_input_streaming": true, "input_examples": [{}], "allowed_callers": ["direct"]},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "messages": [
            {"role": "user", "content": "1+1?", "id": "m1"},
            {"role": "system", "content": [{"type": "text", "text": "Be exact.", "cache_control": mark}]},
            {"role": "assistant", "content": [
                {"type": "redacted_thinking", "data": "x"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "thinking", "thinking": "hm", "signature": "abc"},
                {"type": "tool_use", "id": "a", "name": "add", "input": {}, "caller": {"type": "direct"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "cache_control": mark, "content": [
                    {"type": "text", "text": "2"}, {"type": "image", "source": {}},
                ]},
            ]},
            {"role": "assistant", "content": null},
            {"role": "user", "content": "So?"},
        ],
    }));
    assert!(!text.contains("web_search"), "{text}");
    assert!(text.contains("system\nBe exact."), "{text}");
    assert!(text.contains("tool\n2[image: not shown"), "{text}");
}

#[test]
fn deferred_tool_is_shown_where_it_is_found() {
    let tools = |deferred: bool| {
        json!([
            {"name": "search", "input_schema": {"type": "object"}},
            {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "defer_loading": deferred},
        ])
    };
    let found = json!([
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "add"}]},
        ]},
    ]);
    let before = prompt(json!({"tools": tools(true), "messages": [found[0]]}));
    assert!(!before.contains("Adds."), "{before}");
    assert!(prompt(json!({"tools": tools(false)})).contains("Adds."));
    let after = prompt(json!({"tools": tools(true), "messages": found}));
    let same = before.strip_suffix("<|im_start|>assistant\n").unwrap();
    let (_, rest) = after.split_once(same).unwrap();
    assert!(rest.contains("Adds."), "{rest}");

    let (_, answer) = post(
        &script(CALL),
        "/v1/messages",
        &message(json!({"tools": tools(true), "messages": found})),
    );
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
}

#[test]
fn references_to_large_tools_are_bounded() {
    let large = json!({"name": "add", "description": "x".repeat(1 << 20), "defer_loading": true});
    let reference = json!({"type": "tool_reference", "tool_name": "add"});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": vec![reference; 9]});
    let body = message(json!({
        "tools": [{"name": "search"}, large],
        "messages": [{"role": "user", "content": [result]}],
    }));
    let (status, answer) = post(&script("x"), "/v1/messages", &body);
    assert_eq!(status, 400);
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.contains("refer to each tool once"), "{text}");
}

#[test]
fn answer_continues_last_message_of_assistant() {
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]);
    let script = Script::new()
        .chat_template(TEMPLATE)
        .answers("assistant\nSo", " so.");
    let (status, answer) = post(
        &script,
        "/v1/messages",
        &message(json!({"messages": messages})),
    );
    assert_eq!(status, 200);
    assert_eq!(answer["content"][0]["text"], " so.");
}

#[test]
fn tokens_are_counted_without_generating() {
    let script = script("x");
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let (status, short) = post(&script, "/v1/messages/count_tokens", &body);
    assert_eq!(status, 200, "{short}");
    let (_, long) = post(
        &script,
        "/v1/messages/count_tokens",
        &merged(body, &json!({"system": "Be brief."})),
    );
    let least = short["input_tokens"].as_u64();
    assert!(long["input_tokens"].as_u64() > least, "{short} {long}");
    assert!(script.generations().is_empty());
}
