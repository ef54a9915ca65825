//! The admin API matches its OpenAPI document: a client built from the document alone calls every operation
//! and checks each response against the schema of its status.

use corral_tests::artifacts::component;
use corral_tests::deployments::{deploy_plugin, digest, manifest};
use corral_tests::{Corral, Nats, Response, TIMEOUT, raw_exchange, schema, wait_until};
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A client that knows the document alone.
struct DocumentClient {
    corral: Corral,
    document: Value,
    /// Operations and statuses seen.
    seen: RefCell<BTreeSet<(String, String)>>,
}

impl DocumentClient {
    /// The path, the method and the description of an operation.
    fn operation(&self, id: &str) -> (&str, &str, &Value) {
        let paths = self.document["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, operations)| {
            let operations = operations.as_object().expect("operations").iter();
            operations.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        });
        let mut operations = operations.filter(|(.., operation)| operation["operationId"] == id);
        operations
            .next()
            .unwrap_or_else(|| panic!("there is no operation {id}"))
    }

    /// Whether a value matches a schema of the document.
    fn matches(&self, schema: &Value, value: &Value) -> Result<(), String> {
        schema::validate_part(&self.document, schema, value)
    }

    /// Calls an operation as the document describes it; `path` has its path parameters filled in.
    fn call(&self, id: &str, path: &[(&str, &str)], query: &str, body: Option<&[u8]>) -> Response {
        let (template, method, operation) = self.operation(id);
        let mut url = template.to_owned();
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
        let mut described = &operation["responses"][&status];
        if let Some(reference) = described["$ref"].as_str() {
            let named = self.document.pointer(reference.trim_start_matches('#'));
            described = named.expect("the response is described");
        }
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
                assert_eq!(self.matches(schema, &line), Ok(()));
            }
        } else {
            assert_eq!(self.matches(schema, &answer.json()), Ok(()));
        }
        self.seen.borrow_mut().insert((id.to_owned(), status));
    }

    /// The schema of an operation's JSON body.
    fn body_schema(&self, id: &str) -> &Value {
        &self.operation(id).2["requestBody"]["content"]["application/json"]["schema"]
    }
}

/// The deploy of an artifact with this component as deployment `name`.
fn artifact(component: &str, name: &str) -> Value {
    let layer = |kind: &str| json!({"mediaType": kind, "digest": component, "size": 1});
    let image = json!({
        "schemaVersion": 2,
        "config": layer("application/vnd.wasm.config.v0+json"),
        "layers": [layer("application/wasm")],
        "annotations": {"corral.manifest.v1": manifest(name, component, json!({"jobs": {}})).to_string()},
    });
    let image = image.to_string();
    json!({
        "source": format!("oci://r.example/{name}:1@{}", digest(image.as_bytes())),
        "image_manifest": BASE64.encode(image.as_bytes()),
    })
}

#[test]
fn operations_match_openapi_document() {
    let nats = Nats::start();
    let corral = Corral::start_with_store(&["--cluster", &nats.url()]);
    let document = corral.get_admin("/openapi.json");
    assert_eq!(document.status, 200);
    let client = DocumentClient {
        document: document.json(),
        corral,
        seen: RefCell::default(),
    };
    assert_eq!(client.document["openapi"], "3.1.0");
    let misbehave = component("misbehave");
    let digest_of = digest(&misbehave);
    let component_path = [("digest", digest_of.as_str())];
    let a = [("name", "a")];
    let b = [("name", "b")];
    let bad = [("name", "A")];
    let full = manifest(
        "a",
        &digest_of,
        json!({
            "models": ["tiny"], "error-format": "problem", "priority": 3,
            "grants": {"share-prefixes": false, "outbound": ["https://api.example.com"]}, "linked": {},
            "limits": {
                "memory-mib": 64, "time-seconds": 10.5, "cpu-seconds": 1, "request-kib": 10,
                "response-kib": 10, "concurrent-requests": 5, "queued-requests": 0, "queue-time-seconds": 1.5,
            },
            "configuration": {"A": "b"},
            "jobs": {"attempts": 2},
            "cron": [{"schedule": "0 3 * * *", "time-zone": "Europe/Berlin", "path": "/a"}],
        }),
    );
    let schema = client.body_schema("deploy");
    assert_eq!(client.matches(schema, &full), Ok(()));
    for (field, value) in [
        ("color", json!(1)),
        ("name", json!("A")),
        ("routes", json!([])),
        ("limits", json!({"memory-mib": 0})),
        ("limits", json!({"memory": 1})),
        ("error-format", json!("xml")),
    ] {
        let mut wrong = full.clone();
        wrong[field] = value;
        assert!(client.matches(schema, &wrong).is_err(), "{wrong}");
        let answer = client.send("deploy", &a, &wrong);
        assert!(matches!(answer.status, 400 | 422), "{answer:?}");
    }

    // Each operation, and the status of its response.
    let call = |status: u16, id: &str, path: &[(&str, &str)], query: &str, body: Option<&[u8]>| {
        let answer = client.call(id, path, query, body);
        assert_eq!(answer.status, status, "{id}: {answer:?}");
        answer
    };
    let get = |status, id: &str, path: &[(&str, &str)]| call(status, id, path, "", None);
    let send = |status: u16, id: &str, path: &[(&str, &str)], body: Value| {
        let answer = client.send(id, path, &body);
        assert_eq!(answer.status, status, "{id} {body}: {answer:?}");
    };
    get(404, "getComponent", &component_path);
    get(400, "getComponent", &[("digest", "x")]);
    send(404, "deploy", &a, full.clone());
    let other = digest(b"x");
    call(422, "putComponent", &[("digest", &other)], "", Some(b"y"));
    call(201, "putComponent", &component_path, "", Some(&misbehave));
    call(200, "putComponent", &component_path, "", Some(&misbehave));
    get(200, "getComponent", &component_path);
    send(201, "deploy", &a, full.clone());
    send(422, "deploy", &b, full.clone());
    let taken = manifest("b", &digest_of, json!({"routes": ["/a"]}));
    send(409, "deploy", &b, taken);
    let body = full.to_string();
    let later = call(201, "deploy", &a, "traffic=false", Some(body.as_bytes()));
    assert_eq!(later.json()["deployment"]["traffic"][0]["revision"], 1);
    call(413, "deploy", &a, "", Some(&vec![b' '; 2 << 20]));
    let artifact = artifact(&digest_of, "a");
    let described = client.body_schema("deployArtifact");
    assert_eq!(client.matches(described, &artifact), Ok(()));
    send(201, "deployArtifact", &a, artifact.clone());
    send(422, "deployArtifact", &b, artifact.clone());
    let mut moved = artifact.clone();
    moved["source"] = json!(format!("oci://r.example/a:1@{other}"));
    send(422, "deployArtifact", &a, moved);
    let mut nowhere = artifact;
    nowhere["source"] = json!("r.example/a");
    send(400, "deployArtifact", &a, nowhere);
    get(200, "listDeployments", &[]);
    get(200, "getDeployment", &a);
    get(404, "getDeployment", &b);
    get(400, "getDeployment", &bad);
    let split = json!({"traffic": [{"revision": 1, "weight": 1}, {"revision": 2, "weight": 1}]});
    let found = client.matches(client.body_schema("setTraffic"), &split);
    assert_eq!(found, Ok(()));
    send(200, "setTraffic", &a, split.clone());
    send(404, "setTraffic", &b, split);
    send(422, "setTraffic", &a, json!({"traffic": []}));
    send(400, "setTraffic", &a, json!({"shares": []}));
    send(200, "rollBack", &a, json!({}));
    send(404, "rollBack", &a, json!({"revision": 9}));
    send(400, "rollBack", &a, json!({"to": 9}));
    send(200, "setPaused", &a, json!({"paused": true}));
    send(404, "setPaused", &b, json!({"paused": true}));
    send(400, "setPaused", &a, json!({"paused": 1}));
    get(200, "listDeployments", &[]);
    get(200, "getCluster", &[]);
    // While the deployment is paused, jobs wait.
    let job = client.corral.post("/jobs/a", "{}");
    assert_eq!(job.status, 202, "{job:?}");
    let job = job.json()["id"].as_str().expect("an id").to_owned();
    let of_job = [("name", "a"), ("id", job.as_str())];
    call(200, "listJobs", &a, "state=waiting", None);
    get(409, "retryJob", &of_job);
    get(200, "cancelJob", &of_job);
    get(409, "cancelJob", &of_job);
    get(200, "retryJob", &of_job);
    get(404, "retryJob", &[("name", "a"), ("id", "x")]);
    get(200, "cancelJob", &of_job);
    call(400, "listJobs", &a, "state=x", None);
    get(404, "listJobs", &b);
    get(200, "purgeJobs", &a);
    send(200, "setPaused", &a, json!({"paused": false}));
    assert_eq!(client.corral.get("/a/log").status, 200);
    let logs = call(200, "getLogs", &a, "follow=false&after=0", None);
    assert_eq!(logs.body.lines().count(), 2);
    get(404, "getLogs", &b);
    call(400, "getLogs", &a, "after=x", None);
    get(200, "removeDeployment", &a);
    get(404, "removeDeployment", &a);
    get(400, "removeDeployment", &bad);

    // Every documented success of every operation.
    let seen = client.seen.borrow();
    let paths = client.document["paths"].as_object().expect("paths");
    let operations = paths
        .values()
        .flat_map(|path| path.as_object().expect("methods").values());
    for operation in operations {
        let id = operation["operationId"].as_str().expect("an id");
        for status in operation["responses"]
            .as_object()
            .expect("responses")
            .keys()
        {
            let was_seen = seen.contains(&(id.to_owned(), status.clone()));
            assert!(
                was_seen || !status.starts_with('2'),
                "{id} never answered {status}"
            );
        }
    }
    assert!(seen.len() >= 30, "{seen:?}");
}

#[test]
fn log_followers_leave_connections_for_others() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "a", "misbehave", json!({}));
    assert_eq!(corral.get("/a/log").status, 200);
    let follow = || corral.stream_admin("/deployments/a/logs?follow=true");
    let mut followers = Vec::new();
    for _ in 0..16 {
        let mut follower = follow();
        assert_eq!(follower.status, 200);
        follower.line().expect("not cut off").expect("a first line");
        followers.push(follower);
    }
    let one_more = corral.request_admin("GET", "/deployments/a/logs?follow=true", "");
    one_more.problem(503, "too-many-followers");
    one_more.retry_after();
    // Other clients are served.
    let once = corral.request_admin("GET", "/deployments/a/logs", "");
    assert_eq!((once.status, once.body.lines().count()), (200, 2));
    assert_eq!(corral.get_admin("/metrics").status, 200);
    assert_eq!(corral.request_admin("GET", "/deployments", "").status, 200);
    // A follower that leaves frees its connection.
    followers.pop();
    wait_until("a free connection", || follow().status == 200);
}

#[test]
fn foreign_host_header_is_refused() {
    let corral = Corral::start();
    let ask = |host: &str, request: &str| {
        let request = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = raw_exchange(corral.admin(), request.as_bytes(), false, TIMEOUT);
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
        assert!(refused.contains("\"invalid-host\""), "{refused}");
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let answer = ask(&format!("{host}:{port}"), request);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
        }
    }
}
