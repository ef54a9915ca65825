//! Stored responses.

use corral_sdk::testing::Script;
use corral_sdk::{KeyValues, Request};
use serde_json::{Value, json};

use super::{ask_with, script_with_reasoning};
use crate::configuration::Configuration;

const PATH: &str = "/v1/responses";

fn script() -> Script {
    script_with_reasoning("So.").key_values(100_000)
}

/// A configuration that stores responses for so many seconds.
fn storing(seconds: u64) -> Configuration {
    Configuration {
        store_seconds: Some(seconds),
        ..Configuration::default()
    }
}

/// The status and JSON of a response of a deployment that stores responses.
fn ask(script: &Script, request: Request) -> (u16, Value) {
    let (head, text) = ask_with(storing(1000), script, request);
    (head.status(), serde_json::from_str(&text).expect(&text))
}

fn post(script: &Script, body: &Value) -> Value {
    let (status, response) = ask(script, Request::post(PATH).with_json(body));
    assert_eq!(status, 200, "{response}");
    response
}

fn get(script: &Script, below: &str) -> (u16, Value) {
    ask(script, Request::get(&format!("{PATH}/{below}")))
}

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

#[test]
fn later_request_continues_the_conversation() {
    let script = script();
    let body = json!({"input": "Hi", "instructions": "Be brief."});
    let first = post(&script, &body);
    let asked =
        json!({"previous_response_id": id(&first), "input": [{"role": "user", "content": "More"}]});
    let second = post(&script, &asked);
    let body = json!({"previous_response_id": id(&second), "input": "End"});
    let third = post(&script, &body);
    let prompts = script.generations().into_iter().map(|call| call.after);
    let prompts: Vec<_> = prompts.collect();
    let turn = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    // Instructions apply to their request only.
    let expected = format!("<|im_start|>system\nBe brief.<|im_end|>\n{}", turn("Hi"));
    assert_eq!(prompts[0], expected);
    let two = format!("{}So.<|im_end|>\n{}", turn("Hi"), turn("More"));
    assert_eq!(prompts[1], two);
    assert_eq!(prompts[2], format!("{two}So.<|im_end|>\n{}", turn("End")));
    for (response, previous) in [
        (&first, &Value::Null),
        (&second, &first["id"]),
        (&third, &second["id"]),
    ] {
        assert_eq!(
            (&response["store"], &response["previous_response_id"]),
            (&true.into(), previous)
        );
        assert_eq!(get(&script, id(response)), (200, response.clone()));
    }

    let counted = ask(
        &script,
        Request::post("/v1/responses/input_tokens").with_json(&asked),
    )
    .1;
    assert_eq!(counted["input_tokens"], second["usage"]["input_tokens"]);
}

#[test]
fn input_items_are_listed_in_pages() {
    let script = script();
    let first = post(&script, &json!({"input": "Hi"}));
    let second = post(
        &script,
        &json!({"previous_response_id": id(&first), "input": [
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "2"},
        ]}),
    );
    let list = |query: &str| {
        let (status, list) = get(&script, &format!("{}/input_items?{query}", id(&second)));
        assert_eq!(status, 200, "{list}");
        let items = list["data"].as_array().expect("a list").clone();
        let found = items.first().map(|item| &item["id"]);
        assert_eq!(found, Some(&list["first_id"]));
        assert_eq!(items.last().map(|item| &item["id"]), Some(&list["last_id"]));
        (items, list["has_more"] == true)
    };
    let (all, more) = list("order=asc");
    let kinds: Vec<_> = all.iter().map(|item| &item["type"]).collect();
    assert_eq!(
        kinds,
        [
            "message",
            "message",
            "function_call",
            "function_call_output"
        ]
    );
    let expected = json!([{"type": "input_text", "text": "Hi"}]);
    assert_eq!(all[0]["content"], expected);
    assert_eq!((&all[1], more), (&first["output"][0], false));
    let reversed: Vec<_> = all.iter().rev().cloned().collect();
    assert_eq!(list(""), (reversed.clone(), false));
    assert_eq!(list("limit=3"), (reversed[..3].to_vec(), true));
    let after = all[1]["id"].as_str().expect("an id");
    let found = list(&format!("after={after}"));
    assert_eq!(found, (reversed[3..].to_vec(), false));
    for query in ["order=up", "limit=0", "limit=101", "after=x"] {
        assert_eq!(
            get(&script, &format!("{}/input_items?{query}", id(&second))).0,
            400,
            "{query}"
        );
    }
}

#[test]
fn streamed_response_is_stored_at_its_end() {
    let script = script();
    let request = Request::post(PATH).with_json(&json!({"input": "Hi", "stream": true}));
    let (_, text) = ask_with(storing(1000), &script, request);
    let last = text.trim_end().rsplit_once("data: ").expect("an event").1;
    let last: Value = serde_json::from_str(last).expect("JSON");
    let response = &last["response"];
    assert_eq!(last["type"], "response.completed");
    assert_eq!(response["store"], true);
    assert_eq!(get(&script, id(response)), (200, response.clone()));
}

#[test]
fn deleted_response_is_gone_but_later_ones_stay() {
    let script = script();
    let first = post(&script, &json!({"input": "Hi"}));
    let body = json!({"previous_response_id": id(&first), "input": "More"});
    let second = post(&script, &body);
    let path = format!("{PATH}/{}", id(&first));
    let deleted = ask(&script, Request::new("DELETE", &path));
    let expected = (
        200,
        json!({"id": id(&first), "object": "response", "deleted": true}),
    );
    assert_eq!(deleted, expected);
    let (status, answer) = ask(&script, Request::new("DELETE", &path));
    assert_eq!(status, 404);
    assert_eq!(answer["error"]["code"], "response_not_found");
    assert_eq!(get(&script, id(&first)).0, 404);
    let body = json!({"previous_response_id": id(&second), "input": "End"});
    post(&script, &body);
    let (status, answer) = ask(
        &script,
        Request::post(PATH).with_json(&json!({
            "previous_response_id": id(&first), "input": "End",
        })),
    );
    assert_eq!(status, 400, "{answer}");
    let error = &answer["error"];
    assert_eq!(error["code"], "previous_response_not_found");
    assert_eq!(error["param"], "previous_response_id");
}

#[test]
fn full_grant_deletes_the_oldest() {
    let script = script_with_reasoning("So.").key_values(4000);
    let text = "x".repeat(500);
    let mut ids = Vec::new();
    for _ in 0..8 {
        let response = post(&script, &json!({"input": text}));
        assert_eq!(response["store"], true);
        ids.push(id(&response).to_owned());
    }
    let kept: Vec<_> = ids.iter().map(|id| get(&script, id).0 == 200).collect();
    assert!(!kept[0] && kept[7], "{kept:?}");
    // One that can never fit deletes no others.
    let body = json!({"input": "x".repeat(3000), "metadata": {"a": "y".repeat(500)}});
    let response = post(&script, &body);
    assert_eq!(response["store"], false);
    assert_eq!(get(&script, id(&response)).0, 404);
    assert_eq!(get(&script, &ids[7]).0, 200);
}

#[test]
fn expired_responses_are_deleted() {
    let script = script();
    let kept = || script.run(async { KeyValues::open().unwrap().keys().unwrap() });
    let at_once = |input: &str| {
        let request = Request::post(PATH).with_json(&json!({"input": input}));
        let (_, text) = ask_with(storing(0), &script, request);
        serde_json::from_str::<Value>(&text).expect(&text)
    };
    let first = at_once("Hi");
    assert_eq!(kept(), [id(&first)]);
    let second = at_once("More");
    assert_eq!(kept(), [id(&second)], "the first has expired");
    let path = format!("{PATH}/{}", id(&second));
    let (head, _) = ask_with(storing(0), &script, Request::get(&path));
    assert_eq!(head.status(), 404);
}

#[test]
fn responses_are_stored_only_on_request() {
    let script = script();
    let response = post(&script, &json!({"input": "Hi", "store": false}));
    assert_eq!(response["store"], false);
    assert_eq!(get(&script, id(&response)).0, 404);
    // Neither by a deployment that stores none.
    let (status, response) = super::post(&script, PATH, &json!({"input": "Hi", "store": true}));
    assert_eq!((status, &response["store"]), (200, &false.into()));
    assert_eq!(get(&script, id(&response)).0, 404);
    let path = format!("{PATH}/{}", id(&response));
    let (head, text) = super::ask(&script, Request::get(&path));
    assert_eq!(head.status(), 404);
    assert!(text.contains("`store`"), "{text}");
}

#[test]
fn deployment_without_grant_says_so() {
    let script = script_with_reasoning("So.");
    let (status, answer) = ask(
        &script,
        Request::post(PATH).with_json(&json!({"input": "Hi"})),
    );
    assert_eq!(status, 403, "{answer}");
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("grants.key-value-mib"), "{message}");
    post(&script, &json!({"input": "Hi", "store": false}));
}

#[test]
fn errors_name_items_by_their_place_in_the_request() {
    let script = script();
    let first = post(&script, &json!({"input": "Hi"}));
    let (status, answer) = ask(
        &script,
        Request::post(PATH).with_json(&json!({
            "previous_response_id": id(&first), "input": [{"role": "tool", "content": "x"}],
        })),
    );
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["param"], "input[0].role", "{answer}");
}
