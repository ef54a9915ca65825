use super::*;
use serde_json::{Value, json};

fn parse_json(body: Value) -> Result<Request, Error> {
    parse(body.to_string().as_bytes())
}

#[test]
fn prompt_alone_uses_defaults() {
    assert_eq!(
        parse_json(json!({"prompt": "x"})).unwrap(),
        Request {
            model: None,
            input: Input::Prompt("x".to_owned()),
            settings: Settings::default(),
            stream: false,
        }
    );
}

#[test]
fn every_field_is_parsed() {
    let request = parse_json(json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function"}],
        "template_arguments": {"enable_thinking": false},
        "model": "m", "max_tokens": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.25,
        "min_p": 0.125, "seed": u64::MAX, "stop": ["a", "b"], "ignore_eos": true, "stream": true,
        "constraint": {"regex": "a*"}, "logprobs": 20, "speculate": 16, "adapter": "n",
    }))
    .unwrap();
    let Input::Chat(chat) = request.input else {
        panic!("not a chat")
    };
    assert_eq!(chat.messages, [json!({"role": "user", "content": "hi"})]);
    assert_eq!(chat.tools, [json!({"type": "function"})]);
    assert_eq!(chat.variables["enable_thinking"], json!(false));
    assert_eq!(
        request.settings,
        Settings {
            max_tokens: 7,
            samplers: vec![
                Sampler::TopK(40),
                Sampler::TopP(0.25),
                Sampler::MinP(0.125),
                Sampler::Temperature(0.5),
            ],
            seed: Some(u64::MAX),
            stop: vec!["a".to_owned(), "b".to_owned()],
            ignore_eos: true,
            constraint: Some(Grammar::Regex("a*".to_owned())),
            logprobs: Some(20),
            speculate: Some(16),
            adapter: Some("n".to_owned()),
        }
    );
    assert_eq!(request.model.as_deref(), Some("m"));
    assert!(request.stream);
}

#[test]
fn boundary_values_are_accepted() {
    for fields in [
        json!({"prompt": "x", "temperature": 0, "top_p": 1, "min_p": 1.0, "top_k": 0}),
        json!({"prompt": "x", "max_tokens": u32::MAX, "seed": 0}),
        json!({"prompt": "x", "logprobs": 0, "speculate": 0}),
        json!({"prompt": "x", "samplers": [], "temperature": null, "constraint": null}),
        json!({"prompt": "x", "messages": null, "stop": null, "stream": null}),
        json!({"prompt": "x", "stop": "s"}),
        json!({"prompt": "x", "stop": vec!["s"; 16]}),
        json!({"prompt": "x", "stop": "s".repeat(256)}),
        json!({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]}),
        json!({"messages": [{"role": "assistant", "tool_calls": []}]}),
        json!({"messages": [{"role": "tool", "content": "", "tool_call_id": "1"}], "tools": []}),
    ] {
        assert!(parse_json(fields.clone()).is_ok(), "{fields}");
    }
}

/// A request body, and the code and text of its error.
const ERRORS: &str = r#"
[] => wrong-type: the body is a list; expected an object
{} => missing-input: neither
{"prompt": "x", "messages": []} => ambiguous-input: both
{"prompt": "x", "tools": []} => ambiguous-input: `tools`
{"prompt": "x", "template_arguments": {}} => ambiguous-input: `template_arguments`
{"prompt": ""} => empty-prompt: `prompt` is empty
{"messages": []} => empty-prompt: `messages` is empty
{"prompt": 1} => wrong-type: `prompt` is a number; expected a string
{"messages": "x"} => wrong-type: `messages` is a string
{"prompt": "x", "n": 1, "echo": true} => unknown-field: `n`, `echo` are unknown
{"prompt": "x", "max_token": 1} => unknown-field: expected `prompt`
{"prompt": "x", "max_tokens": 0} => out-of-range: `max_tokens` is 0; expected an integer from 1
{"prompt": "x", "max_tokens": -1} => out-of-range: `max_tokens` is -1
{"prompt": "x", "max_tokens": 1.5} => out-of-range: `max_tokens` is 1.5
{"prompt": "x", "max_tokens": 4294967296} => out-of-range: to 4294967295
{"prompt": "x", "max_tokens": "1"} => wrong-type: `max_tokens` is a string
{"prompt": "x", "temperature": -0.1} => out-of-range: at least 0
{"prompt": "x", "temperature": 1e300} => out-of-range: `temperature`
{"prompt": "x", "top_p": 1.01} => out-of-range: from 0 to 1
{"prompt": "x", "min_p": -1} => out-of-range: from 0 to 1
{"prompt": "x", "top_k": -1} => out-of-range: `top_k` is -1
{"prompt": "x", "seed": -1} => out-of-range: `seed` is -1
{"prompt": "x", "stream": 1} => wrong-type: expected true or false
{"prompt": "x", "stop": 1} => wrong-type: a string or a list of strings
{"prompt": "x", "stop": [1]} => wrong-type: `stop[0]` is a number
{"prompt": "x", "logprobs": 21} => out-of-range: `logprobs` is 21; expected an integer from 0 to 20
{"prompt": "x", "logprobs": true} => wrong-type: `logprobs` is a boolean
{"prompt": "x", "speculate": 17} => out-of-range: from 0 to 16
{"prompt": "x", "adapter": 1} => wrong-type: `adapter` is a number
{"prompt": "x", "constraint": {"regexp": "a"}} => unknown-field: `constraint.regexp`
{"prompt": "x", "samplers": [], "top_p": 0.5} => ambiguous-samplers: `samplers` replaces
{"prompt": "x", "stop": ""} => invalid-stop: 0 bytes
{"messages": [{"role": 1, "content": "x"}]} => wrong-type: `messages[0].role`
{"messages": [{"role": "", "content": "x"}]} => invalid-messages: `messages[0].role`
{"messages": [{"role": "user", "content": "x"}], "tools": ["f"]} => wrong-type: `tools[0]`
"#;

#[test]
fn errors_name_the_field() {
    let mut bodies = Vec::new();
    for line in ERRORS.trim().lines() {
        let (body, error) = line.split_once(" => ").unwrap();
        bodies.push((body.to_owned(), error));
    }
    let stop = |stop: Value| json!({"prompt": "x", "stop": stop}).to_string();
    bodies.push((
        stop(vec!["s"; 17].into()),
        "invalid-stop: `stop` has 17 strings",
    ));
    bodies.push((
        stop("é".repeat(129).into()),
        "invalid-stop: a string in `stop` has 258 bytes",
    ));
    for (body, error) in bodies {
        let (code, detail) = error.split_once(": ").unwrap();
        let problem = parse(body.as_bytes()).unwrap_err();
        assert_eq!((problem.status(), problem.code()), (400, code), "{body}");
        assert!(problem.to_string().contains(detail), "{body}: {problem}");
    }
}

#[test]
fn malformed_json_error_has_position() {
    for (body, position) in [
        ("", "line 1 column 0"),
        ("{\"prompt\":\n  x}", "line 2 column 3"),
        ("{\"prompt\": \"x\"} y", "line 1 column 17"),
        ("prompt=x", "line 1 column 1"),
    ] {
        let problem = parse(body.as_bytes()).unwrap_err();
        assert_eq!(problem.code(), "invalid-json");
        assert!(problem.to_string().ends_with(position), "{problem}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(parse(deep.as_bytes()).unwrap_err().code(), "invalid-json");
}
