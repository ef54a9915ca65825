//! Projects of authors in languages other than Rust.

use crate::{Corral, RELIABLE_SUMS, RunOutput, Watch, run_command, scratch_dir, utf8, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest suite or build. Far above what they take, because machines are busy.
pub const BUILD_TIMEOUT: Duration = Duration::from_secs(900);

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a suite or a build, which must succeed.
pub fn succeeds(mut command: Command) -> RunOutput {
    run_command(&mut command, BUILD_TIMEOUT).check_success()
}

/// Deploys the project `shout`, which answers sums. Returns the server.
pub fn deploy_shout(project: &Path) -> Corral {
    let server = Corral::start_with_store(&[]);
    server.cli_output(&["deploy", project.to_str().expect("a path in UTF-8")]);
    for sum in RELIABLE_SUMS {
        assert_eq!(server.post("/shout", sum.question()).body, sum.answer());
    }
    server
}

/// Deploys the project `parts`, a plugin that tries the SDK of a language. Checks what it does in every language, and besides
/// that `answers` (name, body, end of the answer) and `errors` (name, body, status, code). Returns the server.
pub fn check_parts(
    project: &Path,
    answers: &[[&str; 3]],
    errors: &[(&str, &str, u16, &str)],
) -> Corral {
    let manifest = project.join("corral.toml");
    let text = std::fs::read_to_string(&manifest).expect("readable");
    let text = format!("{text}[configuration]\ntone = \"dry\"\n");
    std::fs::write(&manifest, text).expect("written");
    let server = Corral::start_with_store(&[]);
    server.cli_output(&["deploy", project.to_str().expect("a path in UTF-8")]);
    let post = |name: &str, body: &str| server.post(&format!("/parts/{name}"), body);
    let sum = RELIABLE_SUMS[0];
    let (question, right) = (sum.question(), sum.answer());
    let events = post("events", &question).body;
    // The texts of several tokens may come as one event.
    let texts = events.replace("\n\ndata: ", "").replace("data: ", "");
    let tokens = right.len() + 1;
    let expected = format!("{right}\n\nevent: end\n{tokens} tokens\nfinish 0\n\n");
    assert_eq!(texts, expected, "{events:?}");
    let events = post("error-after-events", "").body;
    let error = r#"{"type":"about:blank","status":409,"code":"over","detail":"it is \"over\""}"#;
    let expected = format!("data: first\n\nevent: error\ndata: {error}\n\n");
    assert_eq!(events, expected);
    let common_answers = [
        ["many", &question, &right],
        ["constrained", "[ab]{3}c", "c"],
        ["stopped", "", "1 1"],
        ["error-after-response", "", "whole"],
    ];
    for [name, body, expected] in answers.iter().chain(&common_answers) {
        let answer = post(name, body);
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        assert!(answer.body.ends_with(expected), "{name}: {answer:?}");
    }
    let large = "x".repeat((1 << 20) + 1);
    let common_errors = [
        ("json", "{", 400, "invalid-body"),
        ("json", "[]", 400, "invalid-body"),
        ("json", &large, 413, "body-too-large"),
        ("constrained", "(", 400, "invalid"),
        ("no-text", "", 400, "invalid"),
        ("missing-model", "", 404, "not-found"),
        ("conflict", "", 409, "conflict"),
        ("no-status", "", 500, "plugin-failed"),
        ("no-error-status", "", 500, "odd"),
        ("other", "", 500, "plugin-failed"),
    ];
    for (name, body, status, code) in errors.iter().chain(&common_errors) {
        let answer = post(name, body);
        assert_eq!(answer.status, *status, "{name}: {answer:?}");
        assert_eq!(answer.json()["code"], *code, "{name}: {answer:?}");
        let content_type = answer.header("content-type");
        assert_eq!(content_type, Some("application/problem+json"), "{answer:?}");
    }
    server
}

/// Changes a file of `shout` from `old` to `new`, and runs `watch` until the server answers a sum with `expected`.
pub fn check_saved_change(
    watch: Command,
    server: &Corral,
    file: &Path,
    [old, new]: [&str; 2],
    expected: &str,
) {
    let source = std::fs::read_to_string(file).expect("readable");
    let changed = source.replace(old, new);
    assert_ne!(changed, source);
    std::fs::write(file, changed).expect("written");
    let watch = Watch::start(watch, server);
    // Waits as long as a build may take.
    watch.wait_for("deployed revision 2", 1);
    wait_until("the changed answer", || {
        let answer = server.post("/shout", RELIABLE_SUMS[0].question());
        answer.body == expected
    });
}

/// Makes projects of the templates `chat` and `job` in a language with the command line `corral`, builds and deploys them, and
/// checks their answers.
pub fn check_chat_and_job(
    language: &str,
    corral: impl Fn(&Path, &[&str]) -> Command,
    build: impl Fn(&Path),
) {
    let server = Corral::start_with_store(&[]);
    let dir = scratch_dir();
    for name in ["chat", "job"] {
        let new = ["new", name, "--lang", language, "--template", name];
        succeeds(corral(&dir, &new));
        let project = dir.join(name);
        build(&project);
        server.cli_output(&["deploy", utf8(&project)]);
    }
    for sum in RELIABLE_SUMS {
        let messages = json!([{"role": "user", "content": sum.question()}]);
        let answer = server.post("/chat", json!({"messages": messages}).to_string());
        assert_eq!(answer.ok_json(), json!({"text": sum.answer()}));
        let body = json!({"messages": messages, "stream": true});
        let mut events = events(&server, "/chat", &body);
        let tokens = sum.answer().len() + 1;
        assert_eq!(events.pop(), Some(json!({"generated_tokens": tokens})));
        let texts = events.iter().map(|event| event["text"].as_str());
        let text: String = texts.map(|text| text.expect("text")).collect();
        assert_eq!(text, sum.answer());
    }
    let refused = server.post("/chat", r#"{"messages": [{"role": "user"}]}"#);
    refused.check_refused(400, "content");

    // More prompts than a plugin may hold generations; one of them does not fit into the context.
    let sums: Vec<_> = RELIABLE_SUMS.iter().cycle().take(300).collect();
    let mut prompts: Vec<_> = sums.iter().map(|sum| sum.question()).collect();
    let long = 20;
    prompts[long] = "x".repeat(40_000);
    let found = events(&server, "/job", &json!({"prompts": prompts}));
    assert_eq!(found.len(), sums.len());
    for (index, (event, sum)) in found.iter().zip(sums).enumerate() {
        assert_eq!(event["prompt"], index, "{event}");
        match index == long {
            true => assert!(event["error"].is_string(), "{event}"),
            false => assert_eq!(event["text"], sum.answer(), "{event}"),
        }
    }
}

/// The values of a response's server-sent events.
fn events(server: &Corral, path: &str, body: &Value) -> Vec<Value> {
    let answer = server.post_ok(path, body.to_string());
    let lines = answer.body.lines();
    let values = lines.filter_map(|line| line.strip_prefix("data: "));
    let values = values.map(|value| serde_json::from_str(value).expect("JSON"));
    values.collect()
}
