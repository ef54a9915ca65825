//! The memory status of the admin listener and of `corral top` is consistent.

use corral_tests::{Corral, Ended, PATIENCE, RELIABLE_SUMS, raw_exchange, run};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

/// The status of the only model. On a busy machine a step may outlast the listener's wait.
fn status(corral: &Corral) -> Value {
    let begun = Instant::now();
    let answer = loop {
        let answer = corral.get_admin("/requests");
        if answer.status != 503 || begun.elapsed() > PATIENCE {
            break answer;
        }
    };
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    only_model(&answer.json())
}

fn only_model(seen: &Value) -> Value {
    let models = seen["models"].as_array().expect("models");
    assert_eq!(models.len(), 1, "{seen}");
    assert_eq!(models[0]["model"], "tiny");
    models[0].clone()
}

/// `DELETE /prefix-cache`; returns the status afterwards.
fn clear(corral: &Corral) -> Value {
    let request = b"DELETE /prefix-cache HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = raw_exchange(corral.admin(), request, false, PATIENCE);
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    only_model(&serde_json::from_str(body).expect(&answer))
}

fn list<'a>(model: &'a Value, member: &str) -> &'a Vec<Value> {
    model[member].as_array().expect(member)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// Runs `corral top` for this admin listener.
fn top(admin: &str, arguments: &[&str]) -> Ended {
    run(["top", "--admin", admin].iter().chain(arguments))
}

#[test]
fn cached_entries_add_up_and_can_be_dropped() {
    let corral = Corral::start();
    let index = corral.get_admin("/");
    for path in ["/requests", "/prefix-cache"] {
        assert!(index.body.contains(path), "{index:?}");
    }
    let before = status(&corral);
    assert_eq!(before["sequence_ids"], json!({"total": 64, "used": 0}));
    assert_eq!(before["cells"]["used"], 0);
    assert_eq!(*list(&before, "prefix_cache"), [] as [Value; 0]);

    let mut kept = 0;
    for sum in RELIABLE_SUMS {
        let answer = corral.generate(&json!({"prompt": sum.question_in(100)}));
        // The last token of an answer is never computed.
        kept += number(&answer["prompt_tokens"]) + number(&answer["tokens"]) - 1;
    }
    let metrics = corral.wait_until_idle();
    let model = status(&corral);
    let entries = list(&model, "prefix_cache");
    assert_eq!(entries.len(), RELIABLE_SUMS.len(), "{model}");
    let tokens: u64 = entries.iter().map(|entry| number(&entry["tokens"])).sum();
    assert_eq!(tokens, kept, "{model}");
    for entry in entries {
        assert_eq!(entry["owner"], "/generate", "{model}");
        assert_eq!(entry["retained"], false, "{model}");
        assert!(
            entry["sequence_id"].is_u64(),
            "there is room in the cells: {model}"
        );
    }
    assert_eq!(
        number(&model["sequence_ids"]["used"]),
        RELIABLE_SUMS.len() as u64
    );
    // All share a prefix, which has its cells once.
    let computed = metrics.get("corral_engine_computed_tokens_total");
    assert_eq!(number(&model["cells"]["used"]) as f64, computed, "{model}");
    assert!(computed < kept as f64, "nothing is shared: {model}");
    assert_eq!(model["cells"]["pinned"], 0);

    let cleared = clear(&corral);
    assert_eq!(*list(&cleared, "prefix_cache"), [] as [Value; 0]);
    assert_eq!(cleared["cells"]["used"], 0, "{cleared}");
    assert_eq!(cleared["sequence_ids"]["used"], 0, "{cleared}");
    assert_eq!(status(&corral), cleared, "and so it stays");
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn running_requests_survive_cache_clear() {
    let corral = Corral::start_with_routes(
        &[("/urgent", "generate"), ("/open", "generate")],
        &["--priority", "/urgent=7", "--share-prefixes", "/open"],
    );
    corral.generate_at(
        "/open",
        &json!({"prompt": RELIABLE_SUMS[0].question_in(100)}),
    );
    let stream = corral.endless("/urgent");
    let model = status(&corral);
    let kept = list(&model, "prefix_cache");
    assert_eq!(kept.len(), 1, "{model}");
    assert_eq!(kept[0]["owner"], Value::Null, "who shares has no own");
    for model in [model, clear(&corral)] {
        let sequences = list(&model, "requests");
        assert_eq!(sequences.len(), 1, "{model}");
        let sequence = &sequences[0];
        assert_eq!(sequence["owner"], "/urgent");
        assert_eq!(sequence["priority"], 7);
        assert_eq!(sequence["state"], "decode");
        assert_eq!(sequence["cached_tokens"], 0);
        let generated = number(&sequence["generated_tokens"]);
        assert!(generated >= 1, "{model}");
        let (prompt, computed) = (
            number(&sequence["prompt_tokens"]),
            number(&sequence["computed_tokens"]),
        );
        assert_eq!(computed, prompt + generated - 1, "{model}");
        assert_eq!(number(&model["cells"]["pinned"]), computed, "{model}");
        assert_eq!(model["requests_waiting"], 0);
    }
    assert_eq!(*list(&status(&corral), "prefix_cache"), [] as [Value; 0]);
    drop(stream);
    corral.wait_until_idle();
    assert_eq!(*list(&status(&corral), "requests"), [] as [Value; 0]);
}

#[test]
fn top_shows_status() {
    let corral = Corral::start();
    corral.generate(&json!({"prompt": RELIABLE_SUMS[0].question_in(100)}));
    corral.wait_until_idle();
    let admin = format!("http://{}", corral.admin());
    let ended = top(&admin, &["--once", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr, "");
    let shown: Value = serde_json::from_str(&ended.stdout).expect("one object");
    assert_eq!(shown, corral.get_admin("/requests").json());
    // Without a terminal it prints once.
    for arguments in [&[] as &[&str], &["--once"]] {
        let ended = top(&admin, arguments);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("\ntiny: 0 running"), "{ended:?}");
        assert!(ended.stdout.contains("ENTRY  OWNER"), "{ended:?}");
        assert!(ended.stdout.contains("/generate"), "{ended:?}");
        assert!(!ended.stdout.contains('\x1b'), "{ended:?}");
    }
}

/// Asserts that `corral top` printed one line that contains all of `expected`.
fn assert_error(ended: &Ended, code: i32, expected: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.stdout, "");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.starts_with("corral: "), "{ended:?}");
    for text in expected {
        assert!(ended.stderr.contains(text), "{text:?} in {ended:?}");
    }
}

#[test]
fn top_explains_missing_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    // A listener that is not an HTTP server.
    let somebody = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("corral comes");
        let mut some = [0; 100];
        let _ = stream.read(&mut some);
        stream.write_all(b"220 mail here\r\n").expect("sent");
    });
    let nothing_found = ["not an admin listener", "'corral serve' prints its address"];
    assert_error(&top(&address, &[]), 1, &nothing_found);
    somebody.join().expect("no panic");
    // No listener.
    let expected = [&*address, "nothing answers", "corral serve", "--admin"];
    assert_error(&top(&address, &[]), 1, &expected);
    assert_error(&top("ftp://x:1", &[]), 2, &["http://HOST:PORT"]);
    let corral = Corral::start();
    // The public listener is the likely mistake.
    assert_error(&top(corral.public(), &[]), 1, &nothing_found);
    corral.check_alive();
}
