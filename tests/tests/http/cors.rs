//! Cross-origin requests of web pages.

use corral_tests::deployments::{deploy, manifest, try_deploy, upload};
use corral_tests::{Corral, Response, artifacts, key_file};
use serde_json::json;

const APP: &str = "https://app.example";
const OTHER: &str = "https://other.example";

fn preflight(corral: &Corral, path: &str, origin: &str) -> Response {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,content-type",
        ),
    ];
    corral.request("OPTIONS", path, &headers, "")
}

fn allowed(response: &Response) -> Option<&str> {
    assert_eq!(response.header("access-control-allow-credentials"), None);
    response.header("access-control-allow-origin")
}

#[test]
fn cross_origin_requests_are_off_by_default() {
    let corral = Corral::start();
    let response = corral.request("GET", "/misbehave/headers", &[("origin", APP)], "");
    assert_eq!((response.status, allowed(&response)), (200, None));
    assert_eq!(response.header("vary"), None);
    // The plugin gets the preflight request.
    let response = preflight(&corral, "/misbehave/headers", APP);
    assert_eq!((response.status, allowed(&response)), (200, None));
    assert!(response.body.contains("access-control-request-method"));
}

#[test]
fn listed_origin_reads_responses_and_errors() {
    let (file, key) = key_file();
    let bearer = format!("Bearer {key}");
    let cors = format!("/misbehave={APP},http://localhost:3000");
    let arguments = [
        "--keys",
        &file,
        "--cors",
        &cors,
        "--quota",
        "/misbehave=requests-per-minute:2",
    ];
    let corral = Corral::start_with(&arguments);
    let before = corral.metrics().get("corral_plugin_calls_total");
    let response = preflight(&corral, "/misbehave/ok", APP);
    assert_eq!((response.status, allowed(&response)), (204, Some(APP)));
    let header = |name: &str| response.header(name).unwrap_or_default();
    assert_eq!(header("access-control-allow-methods"), "POST");
    let found = header("access-control-allow-headers");
    assert_eq!(found, "authorization,content-type");
    assert_eq!(header("access-control-max-age"), "600");
    let response = preflight(&corral, "/misbehave/ok", OTHER);
    assert_eq!((response.status, allowed(&response)), (204, None));
    // Neither a call nor a request of the quota.
    assert_eq!(corral.metrics().get("corral_plugin_calls_total"), before);
    let ask = |origin: &str| {
        let headers = [("origin", origin), ("authorization", &bearer)];
        corral.request("POST", "/misbehave/ok", &headers, "")
    };
    let response = ask(APP);
    assert_eq!((response.status, allowed(&response)), (200, Some(APP)));
    assert_eq!(response.header("vary"), Some("Origin"));
    let exposed = response.header("access-control-expose-headers");
    assert!(exposed.is_some_and(|exposed| exposed.contains("x-request-id")));
    let response = ask(OTHER);
    assert_eq!((response.status, allowed(&response)), (200, None));
    assert_eq!(response.header("vary"), Some("Origin"));
    let limited = ask(APP);
    assert_eq!((limited.status, allowed(&limited)), (429, Some(APP)));
    let refused = corral.request("POST", "/misbehave/ok", &[("origin", APP)], "");
    assert_eq!((refused.status, allowed(&refused)), (401, Some(APP)));
    // Another route has its own policy.
    let other = corral.request("POST", "/hello", &[("origin", APP)], "");
    assert_eq!((other.status, allowed(&other)), (401, None));
}

#[test]
fn failed_call_can_be_read_by_pages() {
    let corral = Corral::start_with(&["--cors", "/misbehave=*"]);
    let response = corral.request("POST", "/misbehave/trap", &[("origin", APP)], "");
    assert_eq!((response.status, allowed(&response)), (500, Some("*")));
}

#[test]
fn manifest_lists_origins() {
    let corral = Corral::start_with_store(&[]);
    let digest = upload(&corral, &artifacts::component("misbehave"));
    let with = |origins: serde_json::Value| manifest("a", &digest, json!({"cors": origins}));
    deploy(&corral, &with(json!([APP])));
    let ask = || corral.request("GET", "/a/ok", &[("origin", APP)], "");
    assert_eq!(allowed(&ask()), Some(APP));
    let refused = try_deploy(&corral, &with(json!(["app.example"])));
    let detail = refused.problem(400, "invalid-json");
    assert!(detail.contains("write SCHEME://HOST"), "{detail}");
    deploy(&corral, &with(json!([])));
    assert_eq!(allowed(&ask()), None);
}
