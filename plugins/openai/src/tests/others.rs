//! `/v1/responses` and `/v1/messages`.

use corral_sdk::testing::Script;
use corral_sdk::{Error, Request};
use serde_json::{Value, json};

use super::{TEMPLATE, ask, events, post};

const CALL: &str = "So.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";

fn script(answer: &str) -> Script {
    let template = format!("{TEMPLATE}{{# </think> #}}");
    Script::new()
        .chat_template(&template)
        .answers("assistant\n", answer)
}

/// Items without what differs from answer to answer.
fn plain(mut items: Value) -> Value {
    for item in items.as_array_mut().unwrap() {
        let members = item.as_object_mut().unwrap();
        for name in ["id", "call_id", "status"] {
            assert!(members.get(name).is_none_or(|value| value.is_string()));
            members.remove(name);
        }
    }
    items
}

#[test]
fn a_response_has_its_items() {
    let tools = json!([{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": false}]);
    let body = json!({
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "instructions": "Be brief.", "tools": tools, "temperature": 0, "metadata": {"a": "b"},
    });
    let says = format!("<think>\nhm\n</think>\n\n{CALL}");
    let asked = script(&says);
    let (status, answer) = post(&asked, "/v1/responses", &body);
    assert_eq!(
        (status, &answer["status"]),
        (200, &"completed".into()),
        "{answer}"
    );
    assert!(asked.generations()[0].after.contains("system\nBe brief."));
    assert_eq!(
        plain(answer["output"].clone()),
        json!([
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "name": "add", "arguments": "{\"a\": 1}"},
        ])
    );
    assert_eq!(
        (&answer["tools"], &answer["metadata"]),
        (&tools, &json!({"a": "b"}))
    );
    assert_eq!(
        answer["usage"]["output_tokens_details"]["reasoning_tokens"],
        2
    );

    let events = events(&script(&says), "/v1/responses", &body);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let last = events.last().unwrap();
    assert_eq!(
        (&events[0]["type"], &last["type"]),
        (&"response.created".into(), &"response.completed".into())
    );
    assert_eq!(
        plain(last["response"]["output"].clone()),
        plain(answer["output"].clone())
    );
    assert_eq!(last["response"]["usage"], answer["usage"]);
    // What the pieces add up to is what is told at their end.
    for (kind, member) in [
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
        let pieces: String = of("delta")
            .map(|event| event["delta"].as_str().unwrap())
            .collect();
        let done = of("done").next().unwrap();
        assert_eq!(done[member], pieces);
        let id = &done["item_id"];
        assert!(of("delta").all(|event| event["item_id"] == *id));
        let item = &last["response"]["output"][done["output_index"].as_u64().unwrap() as usize];
        assert_eq!(item["id"], *id);
        assert_eq!(put_together(&events), last["response"]["output"]);
    }
}

/// The items of a stream as OpenAI's client for Node puts them together: a piece needs the item and the
/// part that it goes on with.
fn put_together(events: &[Value]) -> Value {
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
fn an_error_in_a_response_has_a_name_and_a_number() {
    let broken = Script::new().chat_template(TEMPLATE).breaks_off(
        "assistant\n",
        "Hel",
        Error::ContextFull {
            needed: 9,
            limit: 8,
        },
    );
    let body = json!({"input": "Hi", "stream": true});
    let (_, text) = ask(&broken, Request::post("/v1/responses").with_json(&body));
    let count = text.split_terminator("\n\n").count();
    let last = text.split_terminator("\n\n").last().unwrap();
    let data = last.strip_prefix("event: error\ndata: ").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        data,
        json!({
            "type": "error",
            "sequence_number": count - 1,
            "code": "context_length_exceeded",
            "message": data["message"],
            "param": null,
        })
    );
    assert!(data["message"].as_str().unwrap().contains('9'), "{data}");
}

#[test]
fn a_response_that_was_cut_off_says_so() {
    let body = json!({"input": "Hi", "max_output_tokens": 2});
    let (_, answer) = post(&script("Hello!"), "/v1/responses", &body);
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
    let events = events(&script("Hello!"), "/v1/responses", &body);
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
}

#[test]
fn what_a_response_can_not_have_is_named() {
    let tool = json!({"type": "web_search"});
    for (members, member) in [
        (json!({"previous_response_id": "x"}), "previous_response_id"),
        (json!({"conversation": "x"}), "conversation"),
        (json!({"store": true}), "store"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"include": ["x"]}), "include"),
        (json!({"tools": [tool]}), "tools[0].type"),
        (
            json!({"text": {"format": {"type": "x"}}}),
            "text.format.type",
        ),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (
            json!({"reasoning": {"summary": "auto"}}),
            "reasoning.summary",
        ),
        (json!({"reasoning": {"effort": "low"}}), "reasoning.effort"),
        (
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            "chat_template_kwargs.enable_thinking",
        ),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
        ),
        (json!({"messages": []}), "messages"),
        (json!({"nope": []}), "nope"),
    ] {
        let mut body = json!({"input": "Hi"});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        let (status, answer) = post(&script("x"), "/v1/responses", &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &member.into()),
            "{members}"
        );
    }
}

fn message(members: Value) -> Value {
    let mut body = json!({"max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut()
        .unwrap()
        .extend(members.as_object().unwrap().clone());
    body
}

#[test]
fn a_message_has_its_blocks() {
    let tools = json!([{"name": "add", "input_schema": {"type": "object"}}]);
    let body = message(json!({"system": [{"type": "text", "text": "Be brief."}], "tools": tools}));
    let says = format!("<think>hm</think>{CALL}");
    let (status, mut answer) = post(&script(&says), "/v1/messages", &body);
    assert_eq!(
        (status, &answer["stop_reason"]),
        (200, &"tool_use".into()),
        "{answer}"
    );
    answer["content"][2]["id"] = "x".into();
    let blocks = json!([
        {"type": "thinking", "thinking": "hm", "signature": ""},
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
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        (kinds[0], kinds[kinds.len() - 1]),
        ("message_start", "message_stop")
    );
    let end = &events[events.len() - 2];
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]),
        (&"tool_use".into(), &answer["usage"])
    );
}

#[test]
fn a_message_says_why_it_ended() {
    for (members, reason, stop) in [
        (json!({}), "end_turn", Value::Null),
        (json!({"max_tokens": 2}), "max_tokens", Value::Null),
        (
            json!({"stop_sequences": ["x", "lo"]}),
            "stop_sequence",
            "lo".into(),
        ),
    ] {
        let (_, answer) = post(&script("Hello!"), "/v1/messages", &message(members));
        assert_eq!(
            (&answer["stop_reason"], &answer["stop_sequence"]),
            (&reason.into(), &stop)
        );
    }
}

#[test]
fn results_of_tools_come_before_what_is_said_with_them() {
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

#[test]
fn what_a_message_can_not_have_is_told_in_its_apis_words() {
    let user = json!({"role": "user", "content": "Hi"});
    let said =
        |content: Value| json!({"messages": [{"role": "assistant", "content": content}, user]});
    for (members, detail) in [
        (json!({"max_tokens": null}), "`max_tokens` is not given"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "`thinking`",
        ),
        (
            json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}),
            "`tools[0].type`",
        ),
        (json!({"messages": []}), "`messages` is empty"),
        (
            json!({"messages": [user, {"role": "assistant", "content": "So"}]}),
            "`messages[1]` is not supported",
        ),
        (said(json!("")), "`messages[0].content` says nothing"),
        (said(json!([])), "`messages[0].content` says nothing"),
        (
            said(json!([{"type": "thinking", "thinking": "hm", "signature": "x"}])),
            "`messages[0].content` says nothing",
        ),
        (
            said(json!([{"type": "text", "text": "x", "id": "y"}])),
            "`messages[0].content[0].id` is not known",
        ),
        (
            said(json!([{"type": "tool_use", "id": "a", "name": "add", "text": "x"}])),
            "`messages[0].content[0].text` is not known",
        ),
        (
            json!({"messages": [{"role": "user", "content": []}]}),
            "`messages[0].content` says nothing",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "text": "2"}]}]}),
            "`messages[0].content[0].text` is not known",
        ),
        (
            json!({"tools": [{"name": "add"}], "tool_choice": {"type": "any", "name": "add"}}),
            "`tool_choice.name`",
        ),
        (
            json!({"tools": [{"name": "add"}], "tool_choice": {"type": "auto", "name": "add"}}),
            "`tool_choice.name`",
        ),
        (
            json!({"thinking": {"type": "disabled"}}),
            "`thinking` is not supported here: the chat template",
        ),
        (json!({"mcp_servers": []}), "`mcp_servers`"),
        (json!({"seed": 1}), "`seed` is not known"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "`messages[0].content[0].type`",
        ),
    ] {
        let (status, answer) = post(&script("x"), "/v1/messages", &message(members));
        assert_eq!((status, &answer["type"]), (400, &"error".into()));
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        let told = answer["error"]["message"].as_str().unwrap();
        assert!(told.contains(detail), "{told}");
    }
}

#[test]
fn a_template_that_can_be_told_not_to_think_is() {
    let template =
        format!("{TEMPLATE}{{% if enable_thinking is false %}}<think></think>{{% endif %}}");
    let body = message(json!({"thinking": {"type": "disabled"}}));
    let script = Script::new()
        .chat_template(&template)
        .answers("<think></think>", "Hi");
    let (status, answer) = post(&script, "/v1/messages", &body);
    assert_eq!((status, &answer["content"][0]["text"]), (200, &"Hi".into()));
}
