//! `/v1/responses`.

use corral_sdk::testing::Script;
use corral_sdk::{Error, Request};
use serde_json::{Value, json};

use super::script_with_reasoning as script;
use super::{CALL, TEMPLATE, ask, assert_error, events, merged, post};

/// Removes fields that differ between responses.
fn without_ids(mut items: Value) -> Value {
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
fn stream_and_whole_response_have_same_items() {
    let tools = json!([{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": false}]);
    let body = json!({
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "instructions": "Be brief.", "tools": tools, "temperature": 0, "metadata": {"a": "b"},
    });
    let says = format!("<think>\nhm\n</think>\n\n{CALL}");
    let scripted = script(&says);
    let (status, answer) = post(&scripted, "/v1/responses", &body);
    assert_eq!(
        (status, &answer["status"]),
        (200, &"completed".into()),
        "{answer}"
    );
    assert!(
        scripted.generations()[0]
            .after
            .contains("system\nBe brief.")
    );
    assert_eq!(
        without_ids(answer["output"].clone()),
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
        without_ids(last["response"]["output"].clone()),
        without_ids(answer["output"].clone())
    );
    assert_eq!(last["response"]["usage"], answer["usage"]);
    // The parts add up to the final items.
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
        assert_eq!(combined_items(&events), last["response"]["output"]);
    }
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
        })
    );
    assert!(error["message"].as_str().unwrap().contains('9'), "{error}");
    let failed = event(count - 1, "response.failed");
    assert_eq!(failed["sequence_number"], count - 1);
    assert_eq!(failed["response"]["status"], "failed");
    assert_eq!(
        failed["response"]["error"],
        json!({"code": "context_length_exceeded", "message": error["message"]})
    );
    assert_eq!(
        failed["response"]["id"],
        event(0, "response.created")["response"]["id"]
    );
}

/// Fields of a request, and the field of the error.
const ERRORS: &str = r#"
{"previous_response_id": "x"} => previous_response_id
{"conversation": "x"} => conversation
{"background": true} => background
{"truncation": "auto"} => truncation
{"include": ["x"]} => include
{"tools": [{"type": "web_search"}]} => tools[0].type
{"text": {"format": {"type": "x"}}} => text.format.type
{"text": {"verbosity": "low"}} => text.verbosity
{"reasoning": {"summary": "auto"}} => reasoning.summary
{"chat_template_kwargs": {"messages": []}} => chat_template_kwargs.messages
{"messages": []} => messages
"#;

#[test]
fn errors_name_the_field() {
    for line in ERRORS.trim().lines() {
        let (fields, param) = line.split_once(" => ").unwrap();
        let fields = serde_json::from_str(fields).unwrap();
        let body = merged(json!({"input": "Hi"}), &fields);
        assert_error(&script("x"), "/v1/responses", &body, (400, "param", param));
    }
}
