//! The routes of llama.cpp's server and vLLM.

use corral_sdk::Request;
use corral_sdk::model::RequestCounts;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::{TEMPLATE, ask, ask_with, assert_error, events, post};
use crate::configuration::Configuration;

fn get(script: &Script, path: &str) -> (u16, Value) {
    let (head, text) = ask(script, Request::get(path));
    (head.status(), serde_json::from_str(&text).unwrap())
}

fn script() -> Script {
    Script::new().answers("a", "b\nc").chat_template(TEMPLATE)
}

#[test]
fn completion_has_the_members_of_llama_server() {
    for path in ["/completion", "/completions"] {
        let body =
            json!({"prompt": "a", "return_tokens": true, "stop": ["x"], "id_slot": 1, "seed": -1});
        let (status, answer) = post(&script(), path, &body);
        assert_eq!(status, 200, "{answer}");
        for (name, value) in [
            ("content", json!("b\nc")),
            ("prompt", json!("a")),
            ("stop", json!(true)),
            ("stop_type", json!("eos")),
            ("stopping_word", json!("")),
            ("has_new_line", json!(true)),
            ("truncated", json!(false)),
            ("tokens_evaluated", json!(1)),
            ("tokens_predicted", json!(4)),
        ] {
            assert_eq!(answer[name], value, "{name}: {answer}");
        }
        assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(4));
        let settings = &answer["generation_settings"];
        assert_eq!(settings["top_k"], 40);
        assert_eq!(settings["n_predict"], -1);
        assert_eq!(answer["timings"]["predicted_n"], 4);
    }
}

#[test]
fn completion_of_a_list_is_a_list() {
    let script = script();
    let (_, answer) = post(&script, "/completion", &json!({"prompt": ["a", [97]]}));
    let contents: Vec<_> = answer
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["content"])
        .collect();
    assert_eq!(contents, ["b\nc", "b\nc"]);
    let body =
        json!({"prompt": "a", "response_fields": ["content", "timings/predicted_n", "nope"]});
    let (_, answer) = post(&script, "/completion", &body);
    assert_eq!(answer, json!({"content": "b\nc", "timings/predicted_n": 4}));
    let body = json!({"prompt": "a", "n_predict": 0});
    let (_, answer) = post(&script, "/completion", &body);
    assert_eq!(answer["content"], "");
    assert_eq!(answer["stop_type"], "limit");
}

#[test]
fn native_stream_ends_with_the_whole_response() {
    let body = json!({"prompt": "a", "return_progress": true, "timings_per_token": true});
    let events = events(&script(), "/completion", &body);
    let (last, parts) = events.split_last().unwrap();
    assert_eq!(parts[0]["prompt_progress"]["total"], 1);
    let text = parts.iter().map(|part| part["content"].as_str().unwrap());
    let text: String = text.collect();
    assert_eq!(text, "b\nc");
    for part in &parts[1..] {
        assert_eq!(part["stop"], false, "{part}");
        assert!(part["timings"]["predicted_n"].is_u64(), "{part}");
    }
    assert_eq!(last["stop"], true);
    assert_eq!(last["content"], "");
    assert_eq!(last["tokens_predicted"], 4);
}

#[test]
fn native_errors_name_the_field() {
    for (path, body, field) in [
        ("/completion", json!({}), "prompt"),
        ("/completion", json!({"prompt": [97, 999]}), "prompt[1]"),
        ("/completion", json!({"prompt": ""}), "prompt"),
        ("/infill", json!({"input_prefix": "a"}), "input_suffix"),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": 1}]}),
            "input_extra[0].text",
        ),
        (
            "/rerank",
            json!({"query": "a", "documents": []}),
            "documents",
        ),
        (
            "/rerank",
            json!({"query": "a", "documents": ["a", 1]}),
            "documents[1]",
        ),
        ("/rerank", json!({"query": "a"}), "documents"),
    ] {
        assert_error(&script(), path, &body, (400, "param", field));
    }
    // The scripted model has neither such tokens nor a reranker's head.
    let body = json!({"input_prefix": "a", "input_suffix": "b"});
    assert_error(&script(), "/infill", &body, (501, "code", "unsupported"));
}

#[test]
fn infill_reads_other_files_first() {
    let mut script = Script::new();
    for name in [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|file_sep|>",
    ] {
        script = script.control_token(name);
    }
    let script = script.answers(
        "<|file_sep|>f\ng<|fim_prefix|>abc<|fim_suffix|>e<|fim_middle|>",
        "d",
    );
    let body = json!({
        "input_prefix": "ab", "prompt": "c", "input_suffix": "e",
        "input_extra": [{"filename": "f", "text": "g"}],
    });
    let (status, answer) = post(&script, "/infill", &body);
    assert_eq!((status, &answer["content"]), (200, &"d".into()), "{answer}");
}

#[test]
fn server_tells_what_a_plugin_knows() {
    let script = script().control_token("<s>").begin_token("<s>").context(64);
    for path in ["/health", "/v1/health"] {
        assert_eq!(get(&script, path), (200, json!({"status": "ok"})));
    }
    let (_, props) = get(&script, "/props");
    assert_eq!(props["bos_token"], "<s>");
    assert_eq!(props["total_slots"], 1);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 64);
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 40);
    let (_, info) = get(&script, "/tokenizer_info");
    assert_eq!(info["bos_token_id"], 259);
    assert_eq!(info["model_max_length"], 64);
    let (_, models) = get(&script, "/models");
    assert_eq!(models["data"][0]["max_model_len"], 64);
    assert!(models["data"][0]["created"].as_u64().unwrap() > 1_700_000_000);
}

/// A script of a model of which four requests may run.
fn script_with_requests(running: u32, waiting: u32) -> Script {
    script().context(64).request_counts(RequestCounts {
        running,
        waiting,
        max_running: 4,
    })
}

#[test]
fn slots_show_how_many_requests_run() {
    for (running, waiting, used) in [(0, 0, 0), (2, 1, 3), (4, 9, 4)] {
        let script = script_with_requests(running, waiting);
        let slots = (0..4).map(|id| {
            let is_processing = id < used;
            json!({"id": id, "n_ctx": 64, "speculative": false, "is_processing": is_processing})
        });
        let slots = Value::from_iter(slots);
        for path in ["/slots", "/slots?fail_on_no_slot="] {
            assert_eq!(get(&script, path), (200, slots.clone()), "{path}");
        }
        let (status, answer) = get(&script, "/slots?fail_on_no_slot=1");
        match used {
            4 => assert_eq!((status, &answer["error"]["code"]), (503, &json!("no-slot"))),
            _ => assert_eq!((status, answer), (200, slots)),
        }
        assert_eq!(get(&script, "/props").1["total_slots"], 4);
    }
    let (status, error) = get(&script(), "/slots?model=other");
    let code = &error["error"]["code"];
    assert_eq!((status, code), (404, &json!("model_not_found")));
}

#[test]
fn configuration_bounds_the_slots() {
    for (slots, expected) in [(2, 2_usize), (9, 4), (0, 4)] {
        let configuration = Configuration {
            slots: Some(slots),
            ..Configuration::default()
        };
        let ask = |path: &str| {
            let script = script_with_requests(3, 0);
            let (head, text) = ask_with(configuration.clone(), &script, Request::get(path));
            (head.status(), serde_json::from_str::<Value>(&text).unwrap())
        };
        let (_, props) = ask("/props");
        assert_eq!(props["total_slots"], expected);
        assert_eq!(props["endpoint_slots"], slots > 0);
        let (status, answer) = ask("/slots");
        match slots {
            0 => {
                let kind = &answer["error"]["type"];
                assert_eq!((status, kind), (501, &json!("not_supported_error")));
            }
            _ => {
                let found = answer.as_array().unwrap().iter();
                let used = found.filter(|slot| slot["is_processing"] == true);
                assert_eq!(used.count(), expected.min(3));
            }
        }
    }
}

#[test]
fn aliases_and_unknown_models_follow_the_configuration() {
    let configuration = |unknown: bool| Configuration {
        aliases: vec![("gpt-4o".to_owned(), "scripted".to_owned())],
        accept_unknown_models: unknown,
        ..Configuration::default()
    };
    let script = script().info(|info| info.name = "scripted".to_owned());
    for (name, unknown, status) in [
        ("gpt-4o", false, 200),
        ("other", false, 404),
        ("other", true, 200),
    ] {
        let body = json!({"prompt": "a", "model": name});
        for path in ["/v1/completions", "/completion"] {
            let request = Request::post(path).with_json(&body);
            let (head, text) = ask_with(configuration(unknown), &script, request);
            assert_eq!(head.status(), status, "{name}: {text}");
        }
        let request = Request::get(&format!("/v1/models/{name}"));
        let (head, text) = ask_with(configuration(unknown), &script, request);
        assert_eq!(head.status(), status, "{name}: {text}");
    }
    let (_, text) = ask_with(configuration(false), &script, Request::get("/v1/models"));
    let models: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(models["data"][0]["aliases"], json!(["scripted", "gpt-4o"]));
}

#[test]
fn defaults_of_the_configuration_fill_gaps() {
    let mut configuration = Configuration::default();
    for (name, value) in [("max_tokens", json!(2)), ("temperature", json!(0))] {
        configuration.defaults.insert(name.to_owned(), value);
    }
    for (path, request_fields, expected) in [
        ("/completion", json!({}), "max-tokens 2"),
        ("/completion", json!({"n_predict": 3}), "max-tokens 3"),
        ("/v1/completions", json!({"max_tokens": 1}), "max-tokens 1"),
        (
            "/v1/completions",
            json!({"max_tokens": null}),
            "max-tokens 2",
        ),
    ] {
        let script = script();
        let mut body = request_fields;
        body["prompt"] = "a".into();
        ask_with(
            configuration.clone(),
            &script,
            Request::post(path).with_json(&body),
        );
        let settings = script.generations()[0].settings.clone();
        assert_eq!(settings[0], expected, "{path}");
        let expected = "temperature 0".to_owned();
        assert!(settings.contains(&expected), "{settings:?}");
    }
}

#[test]
fn messages_and_responses_have_the_temperature_only() {
    let mut configuration = Configuration::default();
    for (name, value) in [("seed", json!(2)), ("temperature", json!(0))] {
        configuration.defaults.insert(name.to_owned(), value);
    }
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 9}),
        ),
        ("/v1/responses", json!({"input": "Hi"})),
    ] {
        let script = script().answers("assistant\n", "Hello");
        let request = Request::post(path).with_json(&body);
        let (head, text) = ask_with(configuration.clone(), &script, request);
        assert_eq!(head.status(), 200, "{text}");
        assert_eq!(head.header("x-corral-ignored"), None, "{path}");
        let settings = script.generations()[0].settings.clone();
        let expected = "temperature 0".to_owned();
        assert!(settings.contains(&expected), "{path}: {settings:?}");
    }
}

#[test]
fn chat_can_be_rendered_counted_and_continued() {
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]);
    let script = script().answers("assistant\nHe", "llo");
    let mut body = json!({"messages": messages, "continue_final_message": true});
    let (_, answer) = post(&script, "/apply-template", &body);
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHe";
    assert_eq!(answer["prompt"], prompt);
    // As vLLM's clients send it.
    body["add_generation_prompt"] = false.into();
    let (_, answer) = post(&script, "/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], "llo");
    let body = json!({"messages": messages, "add_generation_prompt": false});
    let (_, answer) = post(&script, "/apply-template", &body);
    let text = answer["prompt"].as_str().unwrap();
    assert!(text.ends_with("He<|im_end|>\n"), "{answer}");
    let (_, counted) = post(&script, "/v1/chat/completions/input_tokens", &body);
    assert!(counted["input_tokens"].as_u64().unwrap() > 5);
    let (_, rendered) = post(&script, "/v1/chat/completions/render", &body);
    let (_, tokenized) = post(&script, "/tokenize", &json!({"content": text}));
    assert_eq!(rendered["token_ids"], tokenized["tokens"]);
    let prompts = json!({"prompt": ["a", [98, 99]]});
    let (_, rendered) = post(&script, "/v1/completions/render", &prompts);
    let expected = json!([{"token_ids": [97]}, {"token_ids": [98, 99]}]);
    assert_eq!(rendered, expected);
    let body = json!({"messages": [messages[0]], "continue_final_message": true});
    assert_error(
        &script,
        "/apply-template",
        &body,
        (400, "param", "messages"),
    );
}

#[test]
fn prompts_too_long_are_not_rendered() {
    let script = script().context(20);
    let text = "x".repeat(20);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body, field) in [
        ("/v1/completions/render", json!({"prompt": text}), "prompt"),
        (
            "/v1/chat/completions/render",
            json!({"messages": messages}),
            "messages",
        ),
    ] {
        assert_error(&script, path, &body, (400, "param", field));
        let code = "context_length_exceeded";
        assert_error(&script, path, &body, (400, "code", code));
    }
    let many = json!({"prompt": vec!["a"; 129]});
    let path = "/v1/completions/render";
    assert_error(&script, path, &many, (400, "param", "prompt"));
}

#[test]
fn tokens_have_vllms_shape_on_request() {
    let script = Script::new().control_token("<s>").begin_token("<s>");
    let body = json!({"prompt": "a", "return_token_strs": true});
    let (_, answer) = post(&script, "/tokenize", &body);
    assert_eq!(answer["tokens"], json!([259, 97]));
    assert_eq!(answer["count"], 2);
    assert_eq!(answer["token_strs"], json!(["<s>", "a"]));
    let (_, answer) = post(&script, "/detokenize", &json!({"tokens": [97]}));
    assert_eq!(answer, json!({"content": "a", "prompt": "a"}));
}

#[test]
fn responses_have_timings_and_a_fingerprint() {
    let body = json!({"prompt": "a", "stream_options": {"include_usage": true}, "timings_per_token": true});
    let events = events(&script(), "/v1/completions", &body);
    assert!(
        events[0]["timings"]["predicted_n"].is_u64(),
        "{:?}",
        events[0]
    );
    let text = events[0]["system_fingerprint"].as_str().unwrap();
    assert!(text.starts_with('b'));
    let usage = &events[events.len() - 2];
    assert_eq!(usage["timings"]["predicted_n"], 4);
    assert_eq!(usage["choices"], json!([]));
    let body = json!({"messages": [{"role": "user", "content": "a"}], "return_progress": true});
    let script = script().answers("assistant\n", "x");
    let events = super::events(&script, "/v1/chat/completions", &body);
    assert!(events[0]["prompt_progress"]["total"].is_u64());
    assert!(events[1].get("prompt_progress").is_none());
    let (_, answer) = post(&script, "/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(answer["timings"]["predicted_n"], 4);
}

#[test]
fn best_of_returns_the_likeliest_choices() {
    let script = script();
    let body = json!({"prompt": "a", "best_of": 3, "n": 2});
    let (status, answer) = post(&script, "/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["logprobs"], Value::Null);
    }
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert_eq!(script.generations().len(), 3);
}
