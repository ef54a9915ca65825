//! Fields of requests that the `openai` plugin ignores: named, counted, or refused by a strict deployment.

use corral_tests::{Connection, Corral, HttpVersion, artifacts, block_on, scratch_dir};
use serde_json::json;

const COUNTER: &str = "corral_deployment_responses_with_ignored_fields_total";

fn request(more: &serde_json::Value) -> String {
    let mut body = json!({
        "messages": [{"role": "user", "content": "12+7=", "id": "msg_1"}],
        "temperature": 0, "store": true,
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body.to_string()
}

#[test]
fn ignored_fields_are_named_and_counted() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    for (more, names) in [
        (json!({}), None),
        (
            json!({"mood": 1, "verbosity": "low"}),
            Some("verbosity, mood"),
        ),
        (json!({"mood": 1, "stream": true}), Some("mood")),
        // A value that another API reads as a header of its own.
        (json!({"a\r\nx-evil: 1": 1}), Some("a??x-evil:?1")),
    ] {
        let answer = corral.post("/v1/chat/completions", request(&more));
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("x-corral-ignored"), names, "{more}");
        assert!(
            answer.body.contains("19") || answer.body.contains("\"9\""),
            "{answer:?}"
        );
    }
    let metrics = corral.wait_until_idle();
    let found = metrics.get(&format!("{COUNTER}{{deployment=\"/v1\"}}"));
    assert_eq!(found, 3.0);
    let found = metrics.get(&format!("{COUNTER}{{deployment=\"/generate\"}}"));
    assert_eq!(found, 0.0);
}

#[test]
fn strict_deployment_refuses_unknown_fields() {
    let corral = Corral::start_with_store(&[]);
    let manifest = scratch_dir().join("strict.toml");
    let text = format!(
        "name = 'strict'\ncomponent = {:?}\nroutes = ['/v1']\nerror-format = 'openai'\n\
         [configuration]\nstrict = 'true'\n",
        artifacts::plugin("openai")
    );
    std::fs::write(&manifest, text).expect("written");
    corral.cli_output(&["deploy", manifest.to_str().expect("a path in UTF-8")]);
    let answer = corral.post("/v1/chat/completions", request(&json!({})));
    assert_eq!(
        answer.status, 200,
        "hints are no unknown fields: {answer:?}"
    );
    for (field, code) in [("mood", "unknown-field"), ("verbosity", "unsupported")] {
        let answer = corral.post("/v1/chat/completions", request(&json!({field: "x"})));
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(error["param"], field);
        assert_eq!(error["code"], code);
        assert_eq!(answer.header("x-corral-ignored"), None);
    }
}

#[test]
fn head_has_header_of_get_without_body() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    block_on(async {
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let client = Connection::connect(corral.public(), version, None).await;
            let client = client.expect("accepted");
            for path in ["/v1/models", "/v1/models/", "/v1/models/tiny"] {
                // Twice on one connection: a body would break the second response.
                for _ in 0..2 {
                    let head = client.head(path).await.expect("a response");
                    assert_eq!((head.status, &*head.body), (200, ""), "{version:?} {path}");
                    let kind = head.header("content-type");
                    assert_eq!(kind, Some("application/json"), "{version:?} {path}");
                }
            }
            let head = client.head("/v1/completions").await.expect("a response");
            assert_eq!((head.status, head.header("allow")), (405, Some("POST")));
        }
    });
}
