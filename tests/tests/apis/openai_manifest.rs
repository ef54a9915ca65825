//! The `openai` plugin deployed by its own `corral.toml`. `documentation.rs` runs the command of its README.

use corral_tests::{Corral, RELIABLE_SUMS, artifacts};
use serde_json::json;

#[test]
fn manifest_serves_every_route() {
    let corral = Corral::start_with_store(&[]);
    // `plugins/build.sh` puts the manifest beside the component.
    let file = artifacts::plugin("openai").with_file_name("openai.toml");
    let deployed = corral.cli_output(&["deploy", file.to_str().expect("a path in UTF-8")]);
    assert!(deployed.contains("openai is serving at /"), "{deployed}");

    for sum in RELIABLE_SUMS {
        let messages = json!([{"role": "user", "content": sum.question()}]);
        let body = json!({"messages": messages, "temperature": 0}).to_string();
        let answer = corral.post("/v1/chat/completions", body);
        let content = answer.ok_json()["choices"][0]["message"]["content"].clone();
        assert_eq!(content, sum.answer(), "{sum:?}");

        let question = json!({"content": sum.question()}).to_string();
        let tokens = corral.post("/tokenize", question).json();
        let text = corral.post("/detokenize", tokens.to_string()).json();
        assert_eq!(text["content"], sum.question());
    }
    // The host's errors have the manifest's format, and Anthropic's where its API is.
    corral.cli_output(&["pause", "openai"]);
    let refused = corral.post("/v1/chat/completions", "{}");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "paused", "{refused:?}");
    let refused = corral.post("/v1/messages", "{}");
    assert_eq!(refused.status, 503, "{refused:?}");
    let error = refused.json()["error"].clone();
    assert_eq!(error["type"], "overloaded_error", "{refused:?}");
}
