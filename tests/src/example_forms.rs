//! The examples that have a form in each language: all forms answer alike.

use crate::deployments::{deploy, manifest, upload};
use crate::{Corral, RELIABLE_SUMS};
use serde_json::json;
use std::path::Path;

/// The examples that have a form in Rust, Python and JavaScript.
pub const EXAMPLES_IN_ALL_LANGUAGES: [&str; 5] = [
    "best-of-n",
    "classifier",
    "custom-sampler",
    "json-extraction",
    "self-consistency",
];

/// The examples that also have a form in C.
pub const EXAMPLES_IN_C: [&str; 2] = ["best-of-n", "custom-sampler"];

/// Serves examples in another language, from arguments of `--plugin`, with `route/NAME` for each. Checks that each answers
/// as in Rust, that forks share their prompt, and that wrong requests are refused. Returns the server.
pub fn start_examples(route: &str, names: &[&'static str], plugins: &[String]) -> Corral {
    let rust = names.iter().map(|name| (format!("/rust/{name}"), *name));
    let rust: Vec<_> = rust.collect();
    let rust = rust.iter().map(|(route, name)| (route.as_str(), *name));
    let rust: Vec<_> = rust.collect();
    let arguments = plugins
        .iter()
        .flat_map(|plugin| ["--plugin", plugin.as_str()]);
    let corral = Corral::start_with_routes(&rust, &arguments.collect::<Vec<_>>());
    let sum = RELIABLE_SUMS[0];
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let texts = ["Ada is 36 years old", "Bob is 5 years old"];
    let labels = [sum.answer(), "20".to_owned(), "3".to_owned()];
    for (name, body) in [
        ("best-of-n", json!({"prompt": sum.question(), "n": 4})),
        (
            "classifier",
            json!({"prompt": sum.question(), "labels": labels}),
        ),
        (
            "custom-sampler",
            json!({"prompt": sum.question(), "temperature": 0}),
        ),
        ("json-extraction", json!({"texts": texts, "schema": schema})),
        ("self-consistency", json!({"prompt": sum.question()})),
    ] {
        if !names.contains(&name) {
            continue;
        }
        let found = corral.post_json(&format!("{route}/{name}"), &body);
        let rust = corral.post_json(&format!("/rust/{name}"), &body);
        for member in [
            "text",
            "answer",
            "samples",
            "label",
            "results",
            "distributions",
        ] {
            assert_eq!(found[member], rust[member], "{name} {member}: {found}");
        }
    }
    // Forks share the prompt.
    let prompt = sum.question_in(400);
    let before = corral.wait_until_idle();
    let answer = corral.post_json(
        &format!("{route}/best-of-n"),
        &json!({"prompt": prompt, "n": 8, "max_tokens": 4}),
    );
    let after = corral.wait_until_idle();
    assert_eq!(answer["text"], sum.answer());
    let computed = after.growth("corral_engine_computed_tokens_total", &before);
    // At most 33 tokens of the prompt are computed again for each fork, and three for its answer.
    assert!(computed < 400.0 + 8.0 * 36.0, "{computed}");
    refuse_wrong_requests(&corral, route, names);
    corral
}

/// Deploys `best-of-n` in another language; `path` follows its route. Errors of the host that a plugin does not catch have
/// their status.
pub fn check_uncaught_errors(component: &Path, path: &str) {
    let corral = Corral::start_with_store(&["--max-running", "1"]);
    let component = std::fs::read(component).expect("built");
    let digest = upload(&corral, &component);
    for (name, limits) in [
        ("few", json!({"tokens-per-minute": 20})),
        ("impatient", json!({"queue-time-seconds": 0.2})),
        ("hasty", json!({"time-seconds": 1})),
    ] {
        let manifest = manifest(name, &digest, json!({"limits": limits}));
        deploy(&corral, &manifest);
    }
    let refused = |name: &str, status: u16, code: &str| {
        let body = json!({"prompt": "12+7=", "n": 1, "max_tokens": 64});
        let answer = corral.post(&format!("/{name}{path}"), body.to_string());
        assert_eq!(answer.status, status, "{name}: {answer:?}");
        assert_eq!(answer.json()["code"], code, "{name}: {answer:?}");
        answer
    };
    refused("few", 403, "not-granted");
    let busy = corral.endless("/generate");
    refused("impatient", 429, "refused").retry_after();
    refused("hasty", 504, "deadline");
    drop(busy);
}

/// Requests, and the codes of their errors; a second code is that of Go, which does not name a field of a wrong type. `LONG`
/// stands for a text that exceeds the context.
const WRONG_REQUESTS: &str = r#"
best-of-n {"prompt": "LONG"} => context-full
best-of-n {"prompt": "x", "max_tokens": 0} => invalid
json-extraction {"texts": ["x"], "schema": {"type": "nope"}} => invalid
best-of-n {"prompt": 5} => invalid-prompt or invalid-body
best-of-n {"prompt": "x", "n": 65} => invalid-n
best-of-n {"prompt": "x", "m": 1} => invalid-body
best-of-n 5 => invalid-body
classifier {"prompt": "x"} => invalid-labels
classifier {"prompt": "x", "labels": ["a", 5]} => invalid-labels
classifier {"prompt": "x", "labels": ["a", "ab"]} => invalid-labels
custom-sampler {"prompt": "x", "temperature": "0"} => invalid-temperature
custom-sampler {"prompt": "x", "epsilon": 2} => invalid-epsilon
json-extraction {"texts": [], "schema": {}} => invalid-texts
json-extraction {"texts": ["x"], "schema": {}, "instructions": 5} => invalid-instructions
self-consistency {"prompt": "x", "max_tokens": 1.5} => invalid-max-tokens
"#;

/// The host's errors and the SDK's have their status: 400 for the caller's mistakes, in Rust, too.
fn refuse_wrong_requests(corral: &Corral, route: &str, names: &[&str]) {
    for line in WRONG_REQUESTS.trim().lines() {
        let (request, codes) = line.split_once(" => ").expect("codes");
        let (name, body) = request.split_once(' ').expect("a body");
        if !names.contains(&name) {
            continue;
        }
        let body = body.replace("LONG", &"x".repeat(40_000));
        let answer = corral.post(&format!("{route}/{name}"), &body);
        assert_eq!(answer.status, 400, "{line}: {answer:?}");
        let problem = answer.json();
        let is_expected = codes.split(" or ").any(|code| problem["code"] == code);
        assert!(is_expected, "{line}: {answer:?}");
        let rust = corral.post(&format!("/rust/{name}"), &body);
        assert_eq!(rust.status, 400, "{line}: {rust:?}");
    }
}
