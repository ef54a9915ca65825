//! Tests of the whole plugin against the scripted host.

use corral_sdk::testing::Script;
use corral_sdk::{Error, Request, Response};
use serde_json::{Value, json};

use crate::routes;

/// A short ChatML template with tools and reasoning.
const TEMPLATE: &str = "{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn script(answer: &str) -> Script {
    Script::new()
        .chat_template(TEMPLATE)
        .answers("assistant\n", answer)
}

fn ask(script: &Script, request: Request) -> (u16, String) {
    script.run(async {
        let response = routes::handle(request).await.unwrap_or_else(Response::from);
        let status = response.status();
        (status, String::from_utf8(response.read().await).unwrap())
    })
}

fn post(script: &Script, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = ask(script, Request::post(path).with_json(body));
    (status, serde_json::from_str(&text).unwrap())
}

fn lines(script: &Script, path: &str, body: &Value) -> Vec<Value> {
    let (status, text) = ask(script, Request::post(path).with_json(body));
    assert_eq!(status, 200, "{text}");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The name of the scripted model, with the tag that clients add.
fn model() -> String {
    Script::new().run(async { corral_sdk::Model::available()[0].clone() }) + ":latest"
}

#[test]
fn chat_streams_lines() {
    let body = json!({"model": model(), "messages": [{"role": "user", "content": "12+7="}]});
    let lines = lines(&script("19"), "/api/chat", &body);
    let text: String = lines
        .iter()
        .map(|line| line["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, "19");
    let (last, others) = lines.split_last().unwrap();
    assert!(others.iter().all(|line| line["done"] == false));
    assert_eq!(last["done"], true);
    assert_eq!(last["done_reason"], "stop");
    assert_eq!(last["model"], model());
    assert!(last["prompt_eval_count"].as_u64().unwrap() > 5, "{last}");
    assert!(last["eval_count"].as_u64().unwrap() >= 2, "{last}");
    assert!(last["created_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn chat_without_stream_is_one_object() {
    let body = json!({
        "model": model(),
        "stream": false,
        "messages": [{"role": "user", "content": "12+7="}],
        "options": {"temperature": 0, "num_predict": 4},
    });
    let script = script("19");
    let (status, answer) = post(&script, "/api/chat", &body);
    assert_eq!((status, &answer["message"]["content"]), (200, &"19".into()));
    let settings = &script.generations()[0].settings;
    let expected = "max-tokens 4".to_owned();
    assert!(settings.contains(&expected), "{settings:?}");
}

#[test]
fn tool_call_is_complete_and_has_an_object() {
    let tool = json!({"type": "function", "function": {
        "name": "add", "parameters": {"type": "object"}, "extra": 1,
    }});
    let answer = "So.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let mut body = json!({
        "model": model(),
        "messages": [{"role": "user", "content": "x"}],
        "tools": [tool],
    });
    let streamed = lines(&script(answer), "/api/chat", &body);
    let calls: Vec<_> = streamed
        .iter()
        .filter_map(|line| line["message"].get("tool_calls"))
        .collect();
    let expected = json!([{"function": {"name": "add", "arguments": {"a": 1}}}]);
    assert_eq!(calls, [&expected]);
    body["stream"] = false.into();
    let (_, whole) = post(&script(answer), "/api/chat", &body);
    assert_eq!(whole["message"]["tool_calls"], expected);
    assert_eq!(whole["message"]["content"], "So.");

    // The length limit cuts the arguments off.
    body["options"] = json!({"num_predict": answer.find("}}").unwrap()});
    let (_, whole) = post(&script(answer), "/api/chat", &body);
    assert_eq!(whole["done_reason"], "length");
    assert_eq!(whole["message"]["tool_calls"], Value::Null);
    body["stream"] = true.into();
    let streamed = lines(&script(answer), "/api/chat", &body);
    assert!(
        streamed
            .iter()
            .all(|line| line["message"].get("tool_calls").is_none()),
        "{streamed:?}"
    );
}

#[test]
fn generate_renders_the_template_unless_raw() {
    let body = json!({"model": model(), "prompt": "12+7=", "system": "Be brief.", "stream": false});
    let (status, answer) = post(&script("19"), "/api/generate", &body);
    assert_eq!((status, &answer["response"]), (200, &"19".into()));
    let raw = Script::new().answers("12+7=", "19");
    let body = json!({"model": model(), "prompt": "12+7=", "raw": true});
    let lines = lines(&raw, "/api/generate", &body);
    let text = lines.iter().map(|line| line["response"].as_str().unwrap());
    let text: String = text.collect();
    assert_eq!(text, "19");
}

#[test]
fn compressed_body_is_read() {
    // As Python's gzip.compress(b'{"model":"script"}', mtime=0) writes it.
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\xca\xcd\x4f\x49\xcd\x51\xb2\x52\x2a\x4e\x2e\xca\x2c\x28\x51\xaa\x05\x00\x8e\x57\xdd\xd2\x12\x00\x00\x00";
    let request = Request::post("/api/show").with_body(GZIP);
    let request = request.with_header("content-encoding", "gzip");
    let (status, text) = ask(&script("x"), request);
    assert_eq!(status, 200, "{text}");
}

#[test]
fn requests_without_a_prompt_load_the_model() {
    for (path, body) in [
        ("/api/chat", json!({"model": model(), "messages": []})),
        (
            "/api/generate",
            json!({"model": model(), "keep_alive": "5m"}),
        ),
    ] {
        let (status, answer) = post(&script("x"), path, &body);
        assert_eq!((status, &answer["done_reason"]), (200, &"load".into()));
    }
}

#[test]
fn reasoning_has_a_member_of_its_own() {
    let template = format!("{TEMPLATE}{{# </think> #}}");
    let script = Script::new()
        .chat_template(&template)
        .answers("assistant\n", "<think>hm</think>19");
    let body = json!({
        "model": model(), "stream": false, "think": true,
        "messages": [{"role": "user", "content": "12+7="}],
    });
    let (_, answer) = post(&script, "/api/chat", &body);
    let expected = json!({"role": "assistant", "content": "19", "thinking": "hm"});
    assert_eq!(answer["message"], expected);
}

/// The text of the tokens in these objects' log probabilities, each with one alternative.
fn logprob_text(objects: &[Value]) -> String {
    let lists = objects.iter().filter_map(|one| one.get("logprobs"));
    let entries = lists.flat_map(|list| list.as_array().unwrap());
    let tokens = entries.map(|entry| {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 1, "{entry}");
        for token in [entry, &top[0]] {
            let text = token["token"].as_str().unwrap();
            assert_eq!(token["bytes"], json!(text.as_bytes()));
            assert!(token["logprob"].as_f64().unwrap() <= 0.0, "{token}");
        }
        entry["token"].as_str().unwrap()
    });
    tokens.collect()
}

#[test]
fn tokens_have_log_probabilities_on_request() {
    let user = json!([{"role": "user", "content": "12+7="}]);
    let raw = Script::new().answers("12+7=", "19");
    for (script, path, more) in [
        (script("19"), "/api/chat", json!({"messages": user})),
        (script("19"), "/api/generate", json!({"prompt": "12+7="})),
        (
            raw,
            "/api/generate",
            json!({"prompt": "12+7=", "raw": true}),
        ),
    ] {
        let mut body = json!({"model": model(), "logprobs": true, "top_logprobs": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let streamed = lines(&script, path, &body);
        assert_eq!(logprob_text(&streamed), "19", "{path}: {streamed:?}");
        body["stream"] = false.into();
        let (_, whole) = post(&script, path, &body);
        assert_eq!(logprob_text(&[whole]), "19", "{path}");
        body["logprobs"] = false.into();
        let (_, whole) = post(&script, path, &body);
        assert_eq!(whole.get("logprobs"), None);
    }
}

/// Status, path and body, and the text of the error.
const ERRORS: &str = r#"
404 /api/chat {"model": "nope"} => model 'nope' not found
400 /api/chat {} => `model` is missing
400 /api/chat {"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "think": true} => does not support thinking
400 /api/generate {"model": "MODEL", "prompt": "x", "context": [1]} => deprecated
501 /api/delete {"model": "MODEL"} => corral model
404 /api/nope {} => no route
"#;

#[test]
fn errors_have_one_member() {
    for line in ERRORS.trim().lines() {
        let words: Vec<_> = line.splitn(3, ' ').collect();
        let (body, text) = words[2].split_once(" => ").unwrap();
        let body = serde_json::from_str(&body.replace("MODEL", &model())).unwrap();
        let (found, answer) = post(&script("x"), words[1], &body);
        assert_eq!(found.to_string(), words[0], "{line}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(text), "{answer}");
    }
    let user = json!([{"role": "user", "content": "x"}]);
    let failing =
        Script::new()
            .chat_template(TEMPLATE)
            .fails_after("assistant\n", "1", Error::Deadline);
    let body = json!({"model": model(), "messages": user});
    let lines = lines(&failing, "/api/chat", &body);
    let last = lines.last().unwrap();
    assert!(last["error"].is_string(), "{last}");
}

#[test]
fn models_are_listed_and_shown() {
    let script = script("x");
    let name = model().replace(":latest", "");
    for path in ["/api/tags", "/api/ps"] {
        let (status, text) = ask(&script, Request::get(path));
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 200);
        assert_eq!(list["models"][0]["name"], name.as_str());
        let digest = list["models"][0]["digest"].as_str().unwrap();
        assert_eq!(digest.len(), 64, "hexadecimal digits of SHA-256");
    }
    let (_, shown) = post(&script, "/api/show", &json!({"name": name}));
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(shown["template"], TEMPLATE);
    let body = json!({"model": model(), "stream": false});
    let (_, pulled) = post(&script, "/api/pull", &body);
    assert_eq!(pulled["status"], "success");
    assert_eq!(ask(&script, Request::get("/")).1, "Ollama is running");
    assert_eq!(ask(&script, Request::post("/api/tags")).0, 405);
}
