//! The log of the server, and `corral logs`.

use corral_tests::deployments::{deploy, deploy_plugin, manifest, upload};
use corral_tests::{Corral, artifacts, concurrently, new_key, run, scratch_dir, wait_for};
use serde_json::{Value, json};
use std::process::Command;

const JSON: [&str; 2] = ["--log-format", "json"];

/// Waits for `count` lines of the target, and returns them. Panics if any line of the log is not JSON.
fn wait_for_lines(corral: &Corral, target: &str, count: usize) -> Vec<Value> {
    wait_for(target, || {
        let stderr = corral.stderr();
        // The last line may be incomplete.
        let (whole, _) = stderr.rsplit_once('\n').unwrap_or_default();
        let lines = whole.lines().map(|line| {
            let line = serde_json::from_str(line);
            line.unwrap_or_else(|error| panic!("{error}: {stderr}"))
        });
        let lines = lines.filter(|line: &Value| line["target"] == target);
        let lines: Vec<Value> = lines.collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[test]
fn access_log_names_request_tenant_and_tokens() {
    let file = scratch_dir().join("keys.toml");
    let file = file.to_str().expect("a path in UTF-8");
    let key = new_key(file, &["--tenant", "alice", "--name", "phone"]);
    assert!(key.starts_with("corral_"), "{key}");
    let arguments = [&JSON[..], &["--keys", file, "--open-route", "/hello"]].concat();
    let corral = Corral::start_with(&arguments);
    let bearer = format!("Bearer {key}");
    let body = json!({"prompt": "a private riddle\n12+7=", "max_tokens": 20}).to_string();
    let headers = [("authorization", &*bearer)];
    let answers = (0..2).map(|_| corral.request("POST", "/generate", &headers, &body));
    let answers: Vec<_> = answers.collect();
    let refused = corral.post("/generate", &body);
    refused.problem(401, "missing-key");
    // Probes have no line.
    assert_eq!(corral.get("/healthz").status, 200);
    assert_eq!(corral.post("/hello/world", "1+1=").status, 200);
    let lines = wait_for_lines(&corral, "corral::access", 4);
    for (line, answer) in lines.iter().zip(&answers) {
        let text = answer.json();
        assert_eq!(line["message"], "request");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["method"], "POST");
        assert_eq!(line["path"], "/generate");
        assert_eq!(line["status"], 200);
        assert_eq!(line["deployment"], "/generate");
        assert_eq!(line["route"], "/generate");
        assert_eq!(line["tenant"], "alice");
        assert_eq!(line["key"], "phone");
        assert_eq!(line["prompt_tokens"], text["prompt_tokens"]);
        assert_eq!(line["cached_tokens"], text["cached_tokens"]);
        assert_eq!(line["generated_tokens"], text["tokens"]);
        let found = &line["request_id"];
        assert_eq!(*found, answer.header("x-request-id").expect("an id"));
        assert_eq!(line["complete"], true);
        assert!(line["duration_ms"].as_f64().expect("a time") > 0.0);
    }
    assert!(lines[1]["cached_tokens"].as_u64() > Some(0), "{lines:?}");
    assert_eq!(lines[2]["status"], 401);
    assert_eq!(lines[2]["tenant"], Value::Null);
    assert_eq!(lines[3]["path"], "/hello/world");
    assert_eq!(lines[3]["route"], "/hello");
    assert_eq!(lines[3]["tenant"], Value::Null);
    let stderr = corral.stderr();
    assert!(!stderr.contains("riddle"), "{stderr}");
    assert!(!stderr.contains(&key), "{stderr}");
}

#[test]
fn canceled_request_is_logged_with_its_tokens() {
    let corral = Corral::start_with(&JSON);
    drop(corral.endless("/generate"));
    let lines = wait_for_lines(&corral, "corral::access", 1);
    assert_eq!(lines[0]["complete"], false, "{lines:?}");
    assert!(lines[0]["prompt_tokens"].as_u64() > Some(0), "{lines:?}");
    assert!(lines[0]["generated_tokens"].as_u64() > Some(0), "{lines:?}");
}

#[test]
fn text_log_has_time_level_and_message() {
    let corral = Corral::start();
    corral.check_alive();
    let is_request =
        |line: &str| line.contains("request method=POST") && line.contains(" request_id=");
    let stderr = wait_for("the line of the request", || {
        let stderr = corral.stderr();
        // The last line may be incomplete.
        let (whole, _) = stderr.rsplit_once('\n')?;
        whole.lines().any(is_request).then(|| whole.to_owned())
    });
    for line in stderr.lines() {
        let (time, rest) = line.split_once(' ').expect(line);
        assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
        let level = rest.split_whitespace().next();
        assert!(matches!(level, Some("INFO" | "WARN")), "{line}");
    }
    let line = stderr.lines().find(|line| is_request(line));
    let line = line.expect("just seen");
    for field in [
        "path=\"/generate\"",
        "status=200",
        "deployment=\"/generate\"",
        "generated_tokens=",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
}

#[test]
fn log_level_turns_lines_off() {
    let mut corral = Corral::start_with(&["--log-level", "warn"]);
    corral.check_alive();
    corral.shut_down();
    assert!(!corral.stderr().contains("INFO"), "{}", corral.stderr());
    let mut corral = Corral::start_with(&["--log-level", "info,corral::access=off"]);
    corral.check_alive();
    corral.shut_down();
    let stderr = corral.stderr();
    assert!(stderr.contains("loaded model tiny"), "{stderr}");
    assert!(!stderr.contains("request method"), "{stderr}");
}

#[test]
fn each_change_has_an_audit_line() {
    let corral = Corral::start_with_store(&JSON);
    deploy_plugin(&corral, "a", "misbehave", json!({}));
    let digest = upload(&corral, &artifacts::component("misbehave"));
    deploy(&corral, &manifest("a", &digest, json!({})));
    let change = |method: &str, path: &str, body: Value| {
        let answer = corral.request_admin(method, path, body.to_string());
        answer.status
    };
    let weights = json!({"traffic": [{"revision": 1, "weight": 3}, {"revision": 2, "weight": 1}]});
    assert_eq!(change("PUT", "/deployments/a/traffic", weights), 200);
    let found = change("POST", "/deployments/a/rollback", json!({"revision": 1}));
    assert_eq!(found, 200);
    let found = change("PUT", "/deployments/a/paused", json!({"paused": true}));
    assert_eq!(found, 200);
    let found = change("PUT", "/deployments/a/paused", json!({"paused": false}));
    assert_eq!(found, 200);
    assert_eq!(change("DELETE", "/deployments/b", json!({})), 404);
    assert_eq!(change("DELETE", "/deployments/a", json!({})), 200);
    assert_eq!(change("DELETE", "/prefix-cache", json!({})), 200);
    // Reading is no change.
    assert_eq!(corral.request_admin("GET", "/deployments", "").status, 200);
    let lines = wait_for_lines(&corral, "corral::audit", 11);
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            assert_eq!(line["actor"], "admin-token", "{line}");
            let address = line["address"].as_str();
            assert!(address.is_some_and(|address| address.starts_with("127.0.0.1:")));
            let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            (
                text("action"),
                text("outcome"),
                line["revision"].as_u64(),
                text("traffic"),
            )
        })
        .collect();
    let expected = [
        ("upload", "ok", None, "-"),
        ("deploy", "ok", Some(1), "1=1"),
        ("upload", "ok", None, "-"),
        ("deploy", "ok", Some(2), "2=1"),
        ("split", "ok", None, "1=3,2=1"),
        ("rollback", "ok", None, "1=1"),
        ("pause", "ok", None, "1=1"),
        ("resume", "ok", None, "1=1"),
        ("remove", "no-deployment", None, "-"),
        ("remove", "ok", None, "-"),
        ("clear-prefix-cache", "ok", None, "-"),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(action, outcome, revision, traffic)| {
            let text = |text: &&str| (*text).to_owned();
            (text(action), text(outcome), *revision, text(traffic))
        })
        .collect();
    assert_eq!(seen, expected);
    assert_eq!(lines[1]["deployment"], "a");
    let token = corral.token().expect("it has a store");
    assert!(!corral.stderr().contains(&token));
}

#[test]
fn refused_change_has_an_audit_line() {
    let corral = Corral::start_with_store(&JSON);
    let run = run(["remove", "a", "--admin", corral.admin()]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let lines = wait_for_lines(&corral, "corral::audit", 1);
    assert_eq!(lines[0]["actor"], "nobody", "{lines:?}");
    assert_eq!(lines[0]["outcome"], "token-required", "{lines:?}");
    assert_eq!(lines[0]["status"], 401, "{lines:?}");
}

#[test]
fn unread_log_loses_lines_and_blocks_no_request() {
    let pipe = scratch_dir().join("stderr");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    // Open, and never read.
    let unread = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pipe);
    let unread = unread.expect("a pipe");
    let setup = format!("exec 2>'{}'", pipe.display());
    let mut corral = Corral::start_after(&setup, None, &[]);
    let path = format!("/{}", "x".repeat(250));
    let lost = || corral.metrics().get("corral_log_lines_lost_total");
    let mut rounds = 0;
    while lost() < 1.0 {
        rounds += 1;
        assert!(rounds <= 50, "no line was lost");
        concurrently(4, &[(); 400], |()| {
            assert_eq!(corral.get(&path).status, 404);
        });
    }
    corral.check_alive();
    corral.wait_until_idle();
    corral.shut_down();
    drop(unread);
}

#[test]
fn logs_of_command_line_plugins_can_be_read() {
    let corral = Corral::start();
    for _ in 0..3 {
        assert_eq!(corral.post("/misbehave/log", "").body, "ok");
    }
    corral.wait_until_idle();
    let count = |arguments: &[&str]| {
        let line = [&["logs", "/misbehave"], arguments].concat();
        corral.cli_output(&line).lines().count()
    };
    assert_eq!(count(&[]), 6);
    assert_eq!(count(&["--tail", "2"]), 2);
    assert_eq!(count(&["--tail", "0"]), 0);
    assert_eq!(count(&["--since", "1h"]), 6);
    assert_eq!(count(&["--since", "1h", "--tail", "4", "--after", "5"]), 1);
    let wrong = corral.cli(&["logs", "/nowhere"]);
    wrong.check_error(1, &["no deployment or route \"/nowhere\""]);
    let ended = corral.cli(&["logs", "/misbehave", "--since", "soon"]);
    ended.check_error(2, &["--since", "30s, 10m or 1h"]);
}

#[test]
fn log_lines_have_level_request_and_deployment() {
    let corral = Corral::start_with_store(&JSON);
    deploy_plugin(&corral, "a", "config", json!({}));
    let levels = json!({"log": ["trace", "debug", "info", "warn", "error", "critical"]});
    let answer = corral.post_ok("/a", levels.to_string());
    let id = answer.header("x-request-id").expect("an id");
    corral.wait_until_idle();
    let lines = |arguments: &[&str]| {
        let output = corral.cli_output(&[&["logs", "a"], arguments].concat());
        Vec::from_iter(output.lines().map(str::to_owned))
    };
    let json_lines = lines(&["--json"]);
    let cut = format!("{} (cut)", "x".repeat(4096));
    let expected = [
        ("stdout", Some("info"), "to standard output"),
        ("stderr", None, "to standard error"),
        ("log", Some("trace"), "a value"),
        ("log", Some("debug"), "cache: a miss"),
        ("log", Some("info"), "two\nlines"),
        ("log", Some("warn"), "2 left"),
        ("log", Some("error"), "it failed"),
        ("log", Some("critical"), &cut),
    ];
    assert_eq!(json_lines.len(), expected.len(), "{json_lines:?}");
    for (line, (stream, level, text)) in json_lines.iter().zip(expected) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["stream"], stream);
        assert_eq!(line["level"], json!(level));
        assert_eq!(line["text"], text);
        assert_eq!(line["request_id"], json!(id));
        assert_eq!(line["deployment"], "a");
    }
    let warnings = lines(&["--level", "warn"]);
    let kinds = [
        " stderr: to standard",
        " warn: 2 left",
        " error: it failed",
        " critical: xxx",
    ];
    assert_eq!(warnings.len(), kinds.len(), "{warnings:?}");
    for (line, kind) in warnings.iter().zip(kinds) {
        assert!(line.contains(&format!(" r1 {id}{kind}")), "{line}");
    }
    let last = lines(&["--level", "error", "--tail", "2"]);
    assert!(last.len() == 2 && last[0].contains(" error: "), "{last:?}");
    let ended = corral.cli(&["logs", "a", "--level", "loud"]);
    ended.check_error(2, &["--level", "critical"]);
    let wrong = corral.request_admin("GET", "/deployments/a/logs?level=loud", "");
    wrong.problem(400, "invalid-query");

    // The server's own log, which begins at "info".
    let lines = wait_for_lines(&corral, "corral::plugin", 6);
    let seen = lines.iter().map(|line| {
        assert_eq!(line["request_id"], json!(id), "{line}");
        assert_eq!(line["deployment"], "a", "{line}");
        (
            line["level"].as_str().unwrap_or_default(),
            line["stream"].as_str().unwrap_or_default(),
        )
    });
    let expected = [
        ("INFO", "stdout"),
        ("INFO", "stderr"),
        ("INFO", "log"),
        ("WARN", "log"),
        ("ERROR", "log"),
        ("ERROR", "log"),
    ];
    assert_eq!(Vec::from_iter(seen), expected);
}

#[test]
fn closed_output_is_no_error() {
    let corral = Corral::start();
    assert_eq!(corral.post("/misbehave/log", "").body, "ok");
    corral.wait_until_idle();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = Command::new(artifacts::binary())
        .args(["logs", "/misbehave", "--admin", corral.admin()])
        .stdout(writer)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), &*stderr), (Some(0), ""));
}

#[test]
fn trap_names_its_function() {
    let corral = Corral::start();
    corral.post("/misbehave/trap", "").problem(500, "trapped");
    let stderr = corral.wait_for_stderr("the plugin failed");
    let line = stderr
        .lines()
        .find(|line| line.contains("the plugin failed"));
    let line = line.expect("just seen");
    assert!(
        line.contains("!abort") || line.contains("misbehave::"),
        "{line}"
    );
}
