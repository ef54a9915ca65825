//! Messages: published at `/messages/SUBJECT` and by plugins, and delivered to the deployments that subscribe.

use corral_tests::deployments::{deploy_plugin, manifest, try_deploy, upload};
use corral_tests::{Corral, Response, artifacts, new_key, scratch_dir, wait_for, wait_until};
use serde_json::{Value, json};

/// Deploys the plugin that handles and publishes messages.
fn deploy_handler(corral: &Corral, name: &str, messages: Value, grants: Value) {
    let more = json!({
        "messages": messages,
        "grants": {"messages": grants},
        "jobs": {"attempts": 20, "backoff-seconds": 0.2},
    });
    deploy_plugin(corral, name, "messages", more);
}

/// Deploys `misbehave`, which gets messages as requests for `behavior`.
fn deploy_http(corral: &Corral, name: &str, behavior: &str, subscriptions: Value, jobs: Value) {
    let path = format!("/{name}/{behavior}");
    let messages = json!({"subscriptions": subscriptions, "path": path});
    let more = json!({"messages": messages, "jobs": jobs});
    deploy_plugin(corral, name, "misbehave", more);
}

/// Asserts that a message was stored for this many deployments.
fn check_stored(answer: &Response, subscribers: usize) {
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json(), json!({"subscribers": subscribers}));
}

fn publish(corral: &Corral, subject: &str, body: &str) -> Response {
    corral.post(&format!("/messages/{subject}"), body)
}

/// The jobs of a deployment, newest first.
fn jobs(corral: &Corral, name: &str) -> Vec<Value> {
    let list = corral.cli_json(&["jobs", name]);
    list["jobs"].as_array().expect("a list").clone()
}

/// The jobs of a deployment, once there are `count` and all are finished.
fn finished(corral: &Corral, name: &str, count: usize) -> Vec<Value> {
    wait_for("finished jobs", || {
        let jobs = jobs(corral, name);
        let is_finished =
            |job: &Value| !matches!(job["state"].as_str(), Some("waiting" | "running"));
        Some(jobs).filter(|jobs| jobs.len() == count && jobs.iter().all(is_finished))
    })
}

/// The only job of a deployment, once it is in this state.
fn only_job(corral: &Corral, name: &str, state: &str) -> Value {
    let job = finished(corral, name, 1).remove(0);
    assert_eq!(job["state"], state, "{job}");
    assert_eq!(job["trigger"], "message");
    job
}

fn check_logged(corral: &Corral, name: &str, line: &str) {
    let log = corral.cli_output(&["logs", name]);
    assert!(log.contains(line), "{line}: {log}");
}

#[test]
fn message_reaches_matching_deployments() {
    let corral = Corral::start_with_store(&[]);
    publish(&corral, "orders.new", "x").problem(404, "no-subscriber");
    deploy_http(&corral, "one", "headers", json!(["orders.*"]), json!({}));
    let both = json!(["orders.new", "audit.>"]);
    deploy_http(&corral, "two", "ok", both, json!({}));
    deploy_http(&corral, "three", "ok", json!(["audit.>"]), json!({}));
    check_stored(&publish(&corral, "orders.new", "hello"), 2);
    let job = only_job(&corral, "one", "succeeded");
    assert_eq!(job["subject"], "orders.new");
    only_job(&corral, "two", "succeeded");
    assert_eq!(jobs(&corral, "three").len(), 0);
    let id = job["id"].as_str().expect("an id");
    let seen = corral.get(&format!("/jobs/one/{id}/result")).body;
    for line in [
        "x-corral-subject: orders.new",
        "x-corral-trigger: message",
        "content-type: application/json",
    ] {
        assert!(seen.lines().any(|seen| seen == line), "{line}: {seen}");
    }
    let forged = [("x-corral-subject", "a"), ("x-corral-reply-to", "b")];
    let seen = corral.request("POST", "/one/headers", &forged, "");
    assert_eq!(seen.status, 200, "{seen:?}");
    assert!(!seen.body.contains("x-corral-"), "{seen:?}");
    check_stored(&publish(&corral, "audit.a.b", "x"), 2);
    finished(&corral, "two", 2);
    only_job(&corral, "three", "succeeded");
    let detail = publish(&corral, "orders", "x").problem(404, "no-subscriber");
    assert!(detail.contains("'orders'"), "{detail}");
    for subject in ["orders.*", "orders..new", "orders/new", ""] {
        publish(&corral, subject, "x").problem(400, "invalid-subject");
    }
    let answer = corral.get("/messages/orders.new");
    answer.problem(405, "method-not-allowed");
    let event =
        "corral_job_events_total{deployment=\"one\",trigger=\"message\",event=\"succeeded\"}";
    assert_eq!(corral.wait_until_idle().get(event), 1.0);
    let page = corral.cli_output(&["show", "two"]);
    let expected = "gets messages to orders.new, audit.>\n";
    assert!(page.contains(expected), "{page}");
    let digest = upload(&corral, &artifacts::component("misbehave"));
    let refused = try_deploy(
        &corral,
        &manifest("a", &digest, json!({"routes": ["/messages/a"]})),
    );
    let detail = refused.problem(422, "invalid-manifest");
    assert!(detail.contains("reserved for messages"), "{detail}");
}

#[test]
fn handler_gets_messages_and_says_what_to_retry() {
    let corral = Corral::start_with_store(&[]);
    let subscribe =
        |subject: &str, attempts: u32| json!({"subscriptions": [subject], "attempts": attempts});
    for (name, attempts) in [("good", 1), ("refused", 9), ("trapped", 2)] {
        deploy_handler(&corral, name, subscribe(name, attempts), json!([]));
    }
    check_stored(&publish(&corral, "good", "hello"), 1);
    let job = only_job(&corral, "good", "succeeded");
    assert_eq!(job["status"], Value::Null);
    check_logged(&corral, "good", "handled good hello");
    check_stored(&publish(&corral, "refused", "refuse"), 1);
    let job = only_job(&corral, "refused", "dead");
    assert_eq!(job["attempts"], 1, "{job}");
    let error = job["error"].as_str().expect("an error");
    assert!(error.ends_with("it is refused on request"), "{error}");
    check_stored(&publish(&corral, "trapped", "trap"), 1);
    let job = only_job(&corral, "trapped", "dead");
    assert_eq!(job["attempts"], 2, "{job}");
    let error = job["error"].as_str().expect("an error");
    assert!(error.contains("the plugin crashed"), "{error}");
    corral.wait_until_idle();
}

#[test]
fn http_request_to_message_handler_is_refused() {
    let corral = Corral::start_with_store(&[]);
    let more = json!({
        "messages": {"subscriptions": ["news"]},
        "jobs": {},
        "cron": [{"schedule": "0 0 1 1 *", "path": "/sizes"}],
    });
    deploy_plugin(&corral, "sizes", "message-sizes", more);
    check_stored(&publish(&corral, "news", "hello"), 1);
    only_job(&corral, "sizes", "succeeded");
    check_logged(&corral, "sizes", "news has 5 bytes");
    let refused = corral.get("/sizes").problem(404, "missing-export");
    let expected = "does not export wasi:http/handler, only wasmcloud:messaging/handler";
    assert!(refused.contains(expected), "{refused}");
    // A job is a request, too. Another attempt would fail as well.
    assert_eq!(corral.post("/jobs/sizes", "x").status, 202);
    let job = finished(&corral, "sizes", 2).remove(0);
    assert_eq!(job["state"], "dead");
    assert_eq!(job["attempts"], 1);
    let error = job["error"].as_str().expect("an error");
    assert!(error.contains(expected), "{error}");
}

#[test]
fn failed_message_is_retried_until_handled() {
    let corral = Corral::start_with_store(&[]);
    let messages = json!({"subscriptions": ["work"], "attempts": 100});
    deploy_handler(&corral, "worker", messages.clone(), json!([]));
    check_stored(&publish(&corral, "work", "when ready"), 1);
    wait_until("a failed attempt", || {
        let job = jobs(&corral, "worker").remove(0);
        let error = job["error"].as_str().unwrap_or_default();
        error.contains("it is not ready")
    });
    let more = json!({"messages": messages, "configuration": {"READY": "1"}});
    deploy_plugin(&corral, "worker", "messages", more);
    let job = only_job(&corral, "worker", "succeeded");
    assert!(job["attempts"].as_u64() > Some(1), "{job}");
    corral.wait_until_idle();
}

#[test]
fn messages_survive_a_kill() {
    let store = scratch_dir();
    let mut corral = Corral::start_in(&store, &[]);
    let messages = json!({"subscriptions": ["work.*"]});
    deploy_handler(&corral, "worker", messages, json!([]));
    corral.cli_output(&["pause", "worker"]);
    for number in 0..3 {
        check_stored(&publish(&corral, &format!("work.{number}"), "hello"), 1);
    }
    corral.signal("KILL");
    corral.wait();
    let corral = Corral::start_in(&store, &[]);
    assert_eq!(jobs(&corral, "worker").len(), 3);
    corral.cli_output(&["resume", "worker"]);
    for job in finished(&corral, "worker", 3) {
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    for number in 0..3 {
        check_logged(&corral, "worker", &format!("handled work.{number} hello"));
    }
}

#[test]
fn full_queue_refuses_a_message_for_all() {
    let corral = Corral::start_with_store(&[]);
    let small = json!({"queued": 1, "body-kib": 1});
    deploy_http(&corral, "small", "ok", json!(["a", "b"]), small);
    deploy_http(&corral, "large", "ok", json!(["a"]), json!({}));
    corral.cli_output(&["pause", "small"]);
    let once = |body: &str| {
        let key = [("idempotency-key", "once")];
        corral.request("POST", "/messages/a", &key, body)
    };
    check_stored(&once("1"), 2);
    check_stored(&once("1"), 2);
    once("2").problem(422, "idempotency-key-reused");
    let full = publish(&corral, "a", "2");
    let detail = full.problem(429, "job-queue-full");
    assert!(detail.contains("1 jobs of 'small'"), "{detail}");
    assert!(full.retry_after() >= 1);
    publish(&corral, "a", &"x".repeat(1025)).problem(429, "job-queue-full");
    only_job(&corral, "large", "succeeded");
    corral.cli_output(&["resume", "small"]);
    only_job(&corral, "small", "succeeded");
    publish(&corral, "a", &"x".repeat(1025)).problem(413, "request-too-large");
    check_stored(&publish(&corral, "a", "2"), 2);
    finished(&corral, "large", 2);
    corral.wait_until_idle();
}

/// What the plugin answers when it publishes a message.
fn publish_from(corral: &Corral, name: &str, message: &Value) -> String {
    corral
        .post_ok(&format!("/{name}"), message.to_string())
        .body
}

#[test]
fn plugin_publishes_where_it_is_granted() {
    let corral = Corral::start_with_store(&[]);
    let orders = json!({"subscriptions": ["orders.>"]});
    deploy_handler(&corral, "handler", orders, json!(["orders.done"]));
    deploy_http(&corral, "http", "ok", json!(["orders.new"]), json!({}));
    let grants = json!({"grants": {"messages": ["orders.*", "none"]}});
    deploy_plugin(&corral, "sender", "messages", grants);
    let send = |message: Value| publish_from(&corral, "sender", &message);
    let order = json!({"subject": "orders.new", "body": "hi", "reply_to": "orders.done"});
    assert_eq!(send(order), "published");
    for job in finished(&corral, "handler", 2) {
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    only_job(&corral, "http", "succeeded");
    check_logged(&corral, "handler", "handled orders.new hi orders.done");
    check_logged(&corral, "handler", "handled orders.done hi");
    assert_eq!(send(json!({"subject": "none"})), "published");
    for (message, error) in [
        (json!({"subject": "orders..new"}), "invalid: 'orders..new'"),
        (json!({"subject": "none", "reply_to": "*"}), "invalid: "),
        (
            json!({"subject": "orders.new.eu"}),
            "not-granted: the deployment may not publish to 'orders.new.eu'; its operator can add the subject to \
             `grants.messages`",
        ),
        (json!({"subject": "none", "wait": true}), "use 'publish'"),
    ] {
        let answer = send(message);
        assert!(answer.contains(error), "{error}: {answer}");
    }
    check_logged(&corral, "sender", "'orders.new.eu': it needs a grant");
    check_logged(&corral, "sender", "'grants.messages'");
    let large = json!({"subject": "orders.new", "body": "x".repeat(1 << 20) + "x"});
    let answer = send(large);
    assert!(answer.contains("message-too-large: "), "{answer}");
    let page = corral.cli_output(&["show", "sender"]);
    assert!(page.contains("may publish to orders.*\n"), "{page}");
    corral.wait_until_idle();
}

#[test]
fn plugin_leaves_half_of_a_queue_to_clients() {
    let corral = Corral::start_with_store(&[]);
    let small = json!({"queued": 2});
    deploy_http(&corral, "small", "ok", json!(["news"]), small);
    corral.cli_output(&["pause", "small"]);
    let grants = json!({"grants": {"messages": ["news"]}});
    deploy_plugin(&corral, "sender", "messages", grants);
    let send = || publish_from(&corral, "sender", &json!({"subject": "news"}));
    assert_eq!(send(), "published");
    let full = send();
    assert!(full.contains("queue of a subscriber"), "{full}");
    check_stored(&publish(&corral, "news", "x"), 1);
    publish(&corral, "news", "x").problem(429, "job-queue-full");
    corral.cli_output(&["resume", "small"]);
    finished(&corral, "small", 2);
    corral.wait_until_idle();
}

#[test]
fn loop_of_messages_ends() {
    let corral = Corral::start_with_store(&[]);
    let again = json!({"subscriptions": ["again"], "attempts": 1});
    deploy_handler(&corral, "echo", again, json!(["again"]));
    check_stored(&publish(&corral, "again", "loop"), 1);
    let mut jobs = finished(&corral, "echo", 9);
    let last = jobs.remove(0);
    assert_eq!(last["state"], "dead", "{last}");
    let error = last["error"].as_str().expect("an error");
    assert!(error.contains("check for a loop"), "{error}");
    for job in jobs {
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    corral.wait_until_idle();
}

#[test]
fn clients_reach_deployments_that_their_keys_may_call() {
    let file = scratch_dir().join("keys.toml");
    let key = |tenant: &str, deployments: &[&str]| {
        let named = deployments.iter().flat_map(|name| ["--deployment", name]);
        let options = Vec::from_iter(["--tenant", tenant].into_iter().chain(named));
        format!("Bearer {}", new_key(&file, &options))
    };
    let (alice, carol) = (key("alice", &["one", "sender"]), key("carol", &["sender"]));
    let corral = Corral::start_with_store(&["--keys", file.to_str().expect("a path in UTF-8")]);
    deploy_http(&corral, "one", "ok", json!(["news"]), json!({}));
    deploy_http(&corral, "two", "ok", json!(["news"]), json!({}));
    let grants = json!({"grants": {"messages": ["news"]}});
    deploy_plugin(&corral, "sender", "messages", grants);
    let post = |path: &str, key: &str, body: &str| {
        corral.request("POST", path, &[("authorization", key)], body)
    };
    publish(&corral, "news", "x").problem(401, "missing-key");
    post("/messages/news", &carol, "x").problem(403, "key-not-granted");
    check_stored(&post("/messages/news", &alice, "x"), 1);
    let job = only_job(&corral, "one", "succeeded");
    assert_eq!(job["tenant"], "alice");
    assert_eq!(jobs(&corral, "two").len(), 0);
    // A plugin's grant is enough, and the message counts for the tenant of the call.
    let answer = post("/sender", &carol, &json!({"subject": "news"}).to_string());
    assert_eq!(answer.body, "published", "{answer:?}");
    let job = only_job(&corral, "two", "succeeded");
    assert_eq!(job["tenant"], "carol");
    finished(&corral, "one", 2);
    // A deployment that needs no key gets it from everybody.
    let open = json!({"access": "open", "messages": {"subscriptions": ["news"]}});
    deploy_plugin(&corral, "open", "messages", open);
    check_stored(&publish(&corral, "news", "x"), 1);
    check_stored(&post("/messages/news", &alice, "x"), 2);
    corral.wait_until_idle();
}

#[test]
fn middleware_gets_messages_as_requests() {
    let corral = Corral::start_with_store(&[]);
    let middleware = upload(&corral, &artifacts::component("middleware"));
    let more = json!({
        "messages": {"subscriptions": ["news"]},
        "linked": {"middleware": [middleware]},
    });
    deploy_plugin(&corral, "behind", "messages", more);
    let body = json!({"subject": "none"}).to_string();
    check_stored(&publish(&corral, "news", &body), 1);
    let job = only_job(&corral, "behind", "succeeded");
    assert_eq!(job["status"], 200, "{job}");
    corral.wait_until_idle();
}
