//! The admin API matches its OpenAPI document: a client built from the document alone calls every operation
//! and checks each response against the schema of its status.

use corral_tests::deployments::{deploy, digest, manifest, upload};
use corral_tests::{Corral, PATIENCE, Response, artifacts, raw_exchange, schema, scratch_dir};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

struct Connection {
    corral: Corral,
    document: Value,
    /// Operations and statuses seen.
    seen: RefCell<BTreeSet<(String, String)>>,
}

impl Connection {
    /// Calls an operation as the document describes it; `path` has its path parameters filled in.
    fn call(&self, id: &str, path: &[(&str, &str)], query: &str, body: Option<&[u8]>) -> Response {
        let paths = self.document["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, operations)| {
            let operations = operations.as_object().expect("operations");
            operations
                .iter()
                .map(move |(method, operation)| (path, method, operation))
        });
        let (template, method, operation) = operations
            .into_iter()
            .find(|(_, _, operation)| operation["operationId"] == id)
            .unwrap_or_else(|| panic!("there is an operation {id}"));
        let mut url = template.clone();
        for (name, value) in path {
            url = url.replace(&format!("{{{name}}}"), value);
        }
        assert!(!url.contains('{'), "every parameter is given: {url}");
        let parameters = operation["parameters"].as_array();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, _) = pair.split_once('=').expect("a pair");
            let known = parameters
                .into_iter()
                .flatten()
                .any(|parameter| parameter["in"] == "query" && parameter["name"] == name);
            assert!(known, "{id} has a parameter {name}");
        }
        assert_eq!(operation["requestBody"].is_object(), body.is_some(), "{id}");
        let answer = self.corral.request_admin(
            &method.to_uppercase(),
            &format!("{url}?{query}"),
            body.unwrap_or_default(),
        );
        self.check(id, operation, &answer);
        answer
    }

    /// The same with a JSON body, which must match the document.
    fn send(&self, id: &str, path: &[(&str, &str)], body: &Value) -> Response {
        self.call(id, path, "", Some(body.to_string().as_bytes()))
    }

    fn check(&self, id: &str, operation: &Value, answer: &Response) {
        let status = answer.status.to_string();
        let described = &operation["responses"][&status];
        assert!(
            described.is_object(),
            "{id} may answer {status}: {answer:?}"
        );
        let content = answer.header("content-type").expect("answers have a type");
        let schema = &described["content"][content]["schema"];
        assert!(
            schema.is_object(),
            "{id} {status} may be {content}: {answer:?}"
        );
        if content == "application/x-ndjson" {
            for line in answer.body.lines() {
                let line = serde_json::from_str(line).expect("a line is JSON");
                schema::check(&self.document, schema, &line);
            }
        } else {
            schema::check(&self.document, schema, &answer.json());
        }
        self.seen.borrow_mut().insert((id.to_owned(), status));
    }

    /// The schema of an operation's JSON body.
    fn body_schema(&self, id: &str) -> Value {
        let paths = self.document["paths"].as_object().expect("paths");
        let operations = paths
            .values()
            .flat_map(|operations| operations.as_object().expect("operations").values());
        let found = operations
            .into_iter()
            .find(|operation| operation["operationId"] == id)
            .expect("there is one");
        found["requestBody"]["content"]["application/json"]["schema"].clone()
    }
}

#[test]
fn operations_match_openapi_document() {
    let dir = scratch_dir();
    let corral = Corral::start_with(&["--store", dir.to_str().expect("ours")]);
    let document = corral.get_admin("/openapi.json");
    assert_eq!(document.status, 200);
    let client = Connection {
        document: document.json(),
        corral,
        seen: RefCell::default(),
    };
    assert_eq!(client.document["openapi"], "3.1.0");
    let misbehave = std::fs::read(artifacts::plugin("misbehave")).expect("readable");
    let digest_of = digest(&misbehave);
    let component = [("digest", digest_of.as_str())];
    let a = [("name", "a")];
    let b = [("name", "b")];
    let bad = [("name", "A")];
    let full = manifest(
        "a",
        &digest_of,
        json!({
            "models": ["tiny"], "error-format": "problem", "priority": 3,
            "grants": {"share-prefixes": false, "outbound": []}, "linked": {},
            "limits": {
                "memory-mib": 64, "time-seconds": 10.5, "cpu-seconds": 1, "request-kib": 10,
                "response-kib": 10, "concurrent": 5, "queue": 0, "queue-seconds": 1.5,
            },
            "configuration": {"A": "b"},
        }),
    );
    let wanted = client.body_schema("deploy");
    schema::check(&client.document, &wanted, &full);
    for (field, value) in [
        ("colour", json!(1)),
        ("name", json!("A")),
        ("routes", json!([])),
        ("limits", json!({"memory-mib": 0})),
        ("limits", json!({"memory": 1})),
        ("error-format", json!("xml")),
    ] {
        let mut wrong = full.clone();
        wrong[field] = value;
        let refused = schema::matches(&client.document, &wanted, &wrong, "$");
        assert!(refused.is_err(), "{wrong}");
        let answer = client.send("deploy", &a, &wrong);
        assert!(matches!(answer.status, 400 | 422), "{answer:?}");
    }

    assert_eq!(
        client.call("getComponent", &component, "", None).status,
        404
    );
    assert_eq!(
        client
            .call("getComponent", &[("digest", "x")], "", None)
            .status,
        400
    );
    assert_eq!(client.send("deploy", &a, &full).status, 404);
    let other = [("digest", digest(b"x"))];
    let other = [("digest", other[0].1.as_str())];
    assert_eq!(
        client.call("putComponent", &other, "", Some(b"y")).status,
        422
    );
    assert_eq!(
        client
            .call("putComponent", &component, "", Some(&misbehave))
            .status,
        201
    );
    assert_eq!(
        client
            .call("putComponent", &component, "", Some(&misbehave))
            .status,
        200
    );
    assert_eq!(
        client.call("getComponent", &component, "", None).status,
        200
    );
    assert_eq!(client.send("deploy", &a, &full).status, 201);
    assert_eq!(client.send("deploy", &b, &full).status, 422);
    let taken = manifest("b", &digest_of, json!({"routes": ["/a"]}));
    assert_eq!(client.send("deploy", &b, &taken).status, 409);
    let body = full.to_string();
    let later = client.call("deploy", &a, "traffic=false", Some(body.as_bytes()));
    assert_eq!(later.status, 201);
    assert_eq!(later.json()["deployment"]["traffic"][0]["revision"], 1);
    let large = vec![b' '; 2 << 20];
    assert_eq!(client.call("deploy", &a, "", Some(&large)).status, 413);

    assert_eq!(client.call("listDeployments", &[], "", None).status, 200);
    assert_eq!(client.call("getDeployment", &a, "", None).status, 200);
    assert_eq!(client.call("getDeployment", &b, "", None).status, 404);
    assert_eq!(client.call("getDeployment", &bad, "", None).status, 400);

    let split = json!({"traffic": [{"revision": 1, "weight": 1}, {"revision": 2, "weight": 1}]});
    schema::check(&client.document, &client.body_schema("setTraffic"), &split);
    assert_eq!(client.send("setTraffic", &a, &split).status, 200);
    assert_eq!(client.send("setTraffic", &b, &split).status, 404);
    assert_eq!(
        client
            .send("setTraffic", &a, &json!({"traffic": []}))
            .status,
        422
    );
    assert_eq!(
        client.send("setTraffic", &a, &json!({"shares": []})).status,
        400
    );
    assert_eq!(client.send("rollBack", &a, &json!({})).status, 200);
    assert_eq!(
        client.send("rollBack", &a, &json!({"revision": 9})).status,
        404
    );
    assert_eq!(client.send("rollBack", &a, &json!({"to": 9})).status, 400);
    assert_eq!(
        client
            .send("setPaused", &a, &json!({"paused": true}))
            .status,
        200
    );
    assert_eq!(
        client
            .send("setPaused", &b, &json!({"paused": true}))
            .status,
        404
    );
    assert_eq!(
        client.send("setPaused", &a, &json!({"paused": 1})).status,
        400
    );
    assert_eq!(client.call("listDeployments", &[], "", None).status, 200);
    assert_eq!(
        client
            .send("setPaused", &a, &json!({"paused": false}))
            .status,
        200
    );
    assert_eq!(client.corral.get("/a/log").status, 200);
    let logs = client.call("getLogs", &a, "follow=false&after=0", None);
    assert_eq!((logs.status, logs.body.lines().count()), (200, 2));
    assert_eq!(client.call("getLogs", &b, "", None).status, 404);
    assert_eq!(client.call("getLogs", &a, "after=x", None).status, 400);
    assert_eq!(client.call("removeDeployment", &a, "", None).status, 200);
    assert_eq!(client.call("removeDeployment", &a, "", None).status, 404);
    assert_eq!(client.call("removeDeployment", &bad, "", None).status, 400);

    // The test saw every documented success and every operation.
    let seen = client.seen.borrow();
    let paths = client.document["paths"].as_object().expect("paths");
    for operation in paths
        .values()
        .flat_map(|path| path.as_object().expect("methods").values())
    {
        let id = operation["operationId"].as_str().expect("named");
        for status in operation["responses"].as_object().expect("answers").keys() {
            // These need a browser, a full disk, a slow client, or a failing server.
            if matches!(
                status.as_str(),
                "401" | "408" | "421" | "500" | "503" | "507"
            ) {
                continue;
            }
            let was = seen.contains(&(id.to_owned(), status.clone()));
            let success = status.starts_with('2');
            assert!(was || !success, "{id} was never answered by {status}");
        }
    }
    assert!(seen.len() >= 30, "{seen:?}");
}

#[test]
fn log_followers_leave_connections_for_others() {
    let dir = scratch_dir();
    let corral = Corral::start_with(&["--store", dir.to_str().expect("ours")]);
    let component = std::fs::read(artifacts::plugin("misbehave")).expect("readable");
    let digest = upload(&corral, &component);
    deploy(&corral, &manifest("a", &digest, json!({})));
    assert_eq!(corral.get("/a/log").status, 200);
    let follow = || corral.stream_admin("/deployments/a/logs?follow=true");
    let mut followers = Vec::new();
    for _ in 0..16 {
        let mut follower = follow();
        assert_eq!(follower.status, 200);
        follower.line().expect("it goes on").expect("a first line");
        followers.push(follower);
    }
    let one_more = corral.request_admin("GET", "/deployments/a/logs?follow=true", "");
    one_more.problem(503, "too-many-followers");
    assert!(one_more.header("retry-after").is_some(), "{one_more:?}");
    // Other clients are served.
    let once = corral.request_admin("GET", "/deployments/a/logs", "");
    assert_eq!((once.status, once.body.lines().count()), (200, 2));
    assert_eq!(corral.get_admin("/metrics").status, 200);
    assert_eq!(corral.request_admin("GET", "/deployments", "").status, 200);
    // A follower that leaves frees its connection.
    followers.pop();
    let begun = Instant::now();
    while follow().status != 200 {
        assert!(begun.elapsed() < PATIENCE, "the place is still taken");
    }
}

#[test]
fn foreign_host_header_is_refused() {
    let corral = Corral::start();
    let ask = |host: &str, request: &str| {
        let request = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = raw_exchange(corral.admin(), request.as_bytes(), false, PATIENCE);
        String::from_utf8(answer).expect("text")
    };
    let port = corral.admin().rsplit_once(':').expect("HOST:PORT").1;
    for request in [
        "GET /metrics",
        "GET /requests",
        "DELETE /prefix-cache",
        "GET /readyz",
    ] {
        let refused = ask(&format!("evil.example:{port}"), request);
        assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
        assert!(refused.contains("\"wrong-host\""), "{refused}");
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let answer = ask(&format!("{host}:{port}"), request);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
        }
    }
}
