//! `examples/chat` with the first-party templating and sampling plugins, deployed by its own manifest. Its README's
//! requests get the documented answers, and every sampler works beside every other.

use corral_tests::deployments::deploy_dir;
use corral_tests::{Corral, RELIABLE_SUMS, artifacts};
use serde_json::{Value, json};
use std::path::Path;

const PARTS: [&str; 4] = ["chat", "chatml", "min-p", "mirostat"];

fn start() -> Corral {
    // Without prefix cache: a sequence's cells affect rounding, and close choices of a seed depend on it.
    let corral = Corral::start_with_store(&["--no-prefix-cache"]);
    let plugins = artifacts::plugin("chat");
    let manifest = plugins.with_file_name("chat.toml");
    let manifest = std::fs::read_to_string(manifest).expect("plugins/build.sh puts it there");
    deploy_dir(&corral, &manifest, &PARTS);
    corral
}

fn readme() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/chat/README.md");
    std::fs::read_to_string(file).expect("the example has a README")
}

#[test]
fn readme_requests_get_documented_answers() {
    let corral = start();
    let readme = readme();
    let mut asked = 0;
    // A request, with its answer in the next block.
    for part in readme.split("127.0.0.1:8080/chat -d '").skip(1) {
        let (body, rest) = part.split_once('\'').expect("a body in quotes");
        let (_, rest) = rest.split_once("```json\n").expect("an answer");
        let (expected, _) = rest.split_once("\n```").expect("the answer's end");
        let answer = corral.post("/chat", body);
        assert_eq!(answer.status, 200, "{body}");
        assert_eq!(answer.body.trim(), expected, "{body}");
        asked += 1;
    }
    assert!(asked >= 2, "its README has examples");
}

#[test]
fn every_sampler_combination_gives_right_sums() {
    let corral = start();
    for sum in RELIABLE_SUMS {
        let messages = json!([{"role": "user", "content": sum.question()}]);
        let greedy = [
            json!({}),
            json!({"sampler": "min-p", "settings": {"temperature": 0}}),
            json!({"sampler": "min-p", "settings": {"min_p": 1}}),
            json!({"sampler": "mirostat", "settings": {"tau": 0}}),
        ];
        for mut body in greedy {
            body["messages"] = messages.clone();
            let answer = corral.post("/chat", body.to_string());
            assert_eq!(answer.ok_json()["text"], sum.answer(), "{body}");
        }
    }
    // The same seed gives the same text.
    for sampler in ["min-p", "mirostat"] {
        let body = json!({"messages": [{"role": "user", "content": "Hello"}], "sampler": sampler,
                          "seed": 7, "max_tokens": 20});
        let ask = || corral.post("/chat", body.to_string()).json()["text"].clone();
        assert_eq!(ask(), ask(), "{sampler}");
    }
}

#[test]
fn errors_come_from_the_responsible_component() {
    let corral = start();
    let wrong: [(Value, &str); 4] = [
        (
            json!({"sampler": "min-p", "settings": {"min_p": 2}}),
            "min_p",
        ),
        (
            json!({"sampler": "mirostat", "settings": {"tao": 2}}),
            "tao",
        ),
        (json!({"sampler": "none"}), "min-p"),
        (json!({"max_tokens": 0}), "max-tokens"),
    ];
    for (mut body, expected) in wrong {
        body["messages"] = json!([{"role": "user", "content": "1+1="}]);
        let answer = corral.post("/chat", body.to_string());
        assert!((400..500).contains(&answer.status), "{answer:?}");
        assert!(answer.body.contains(expected), "{expected}: {answer:?}");
    }
}
