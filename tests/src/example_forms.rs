//! The examples that have a form in each language: all forms answer alike.

use crate::{Corral, RELIABLE_SUMS};
use serde_json::{Value, json};
use std::path::Path;

/// The examples that have a form in Rust, Python and JavaScript.
pub const EXAMPLES_IN_ALL_LANGUAGES: [&str; 5] = [
    "best-of-n",
    "classifier",
    "custom-sampler",
    "json-extraction",
    "self-consistency",
];

/// Serves a component of all these examples at `route`, by the last part of the path. Checks that each answers as in
/// Rust, and that forks share their prompt. Returns the server.
pub fn start_examples(route: &str, component: &Path) -> Corral {
    let plugins = EXAMPLES_IN_ALL_LANGUAGES.map(|name| (format!("/rust/{name}"), name));
    let plugins = plugins
        .each_ref()
        .map(|(route, name)| (route.as_str(), *name));
    let plugin = format!("{route}={}", component.display());
    let corral = Corral::start_with_routes(&plugins, &["--plugin", &plugin]);
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
        let found = post(&corral, &format!("{route}/{name}"), &body);
        let rust = post(&corral, &format!("/rust/{name}"), &body);
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
    let answer = post(
        &corral,
        &format!("{route}/best-of-n"),
        &json!({"prompt": prompt, "n": 8, "max_tokens": 4}),
    );
    let after = corral.wait_until_idle();
    assert_eq!(answer["text"], sum.answer());
    let computed = after.growth("corral_engine_computed_tokens_total", &before);
    // At most 33 tokens of the prompt are computed again for each fork, and three for its answer.
    assert!(computed < 400.0 + 8.0 * 36.0, "{computed}");
    corral
}

fn post(corral: &Corral, path: &str, body: &Value) -> Value {
    let answer = corral.post(path, body.to_string());
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}
