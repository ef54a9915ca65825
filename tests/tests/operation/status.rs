//! The memory status of the admin listener and of `corral top` is consistent.

use corral_tests::{Corral, RELIABLE_SUMS, run, wait_for, words};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;

/// The status of the only model. On a busy machine a step may outlast the listener's wait.
fn status(corral: &Corral) -> Value {
    let answer = wait_for("a status", || {
        Some(corral.get_admin("/requests")).filter(|answer| answer.status != 503)
    });
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
    let answer = corral.request_admin("DELETE", "/prefix-cache", "");
    only_model(&answer.ok_json())
}

fn list<'a>(model: &'a Value, member: &str) -> &'a Vec<Value> {
    model[member].as_array().expect(member)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn cached_entries_add_up_and_can_be_dropped() {
    let corral = Corral::start();
    let index = corral.get_admin("/");
    for path in ["/requests", "/prefix-cache"] {
        assert!(index.body.contains(path), "{index:?}");
    }
    let before = status(&corral);
    let expected = json!({"total": 64, "running": 0, "cached": 0});
    assert_eq!(before["sequence_ids"], expected);
    assert_eq!(before["cells"]["cached"], 0);
    assert_eq!(*list(&before, "prefix_cache"), [] as [Value; 0]);

    let mut cached = 0;
    for sum in RELIABLE_SUMS {
        let answer = corral.generate(&json!({"prompt": sum.question_in(100)}));
        // The last token of an answer is never computed.
        cached += number(&answer["prompt_tokens"]) + number(&answer["tokens"]) - 1;
    }
    let metrics = corral.wait_until_idle();
    let model = status(&corral);
    let entries = list(&model, "prefix_cache");
    assert_eq!(entries.len(), RELIABLE_SUMS.len(), "{model}");
    let tokens: u64 = entries.iter().map(|entry| number(&entry["tokens"])).sum();
    assert_eq!(tokens, cached, "{model}");
    for entry in entries {
        assert_eq!(entry["owner"], "/generate", "{model}");
        assert_eq!(entry["retained"], false, "{model}");
        assert!(
            entry["sequence_id"].is_u64(),
            "there is room in the cells: {model}"
        );
    }
    let found = number(&model["sequence_ids"]["cached"]);
    assert_eq!(found, RELIABLE_SUMS.len() as u64);
    // All share a prefix, which has its cells once.
    let computed = metrics.get("corral_engine_computed_tokens_total");
    assert_eq!(
        number(&model["cells"]["cached"]) as f64,
        computed,
        "{model}"
    );
    assert!(computed < cached as f64, "nothing is shared: {model}");
    assert_eq!(model["cells"]["running"], 0);

    let cleared = clear(&corral);
    assert_eq!(*list(&cleared, "prefix_cache"), [] as [Value; 0]);
    assert_eq!(cleared["cells"]["cached"], 0, "{cleared}");
    assert_eq!(cleared["sequence_ids"]["cached"], 0, "{cleared}");
    assert_eq!(status(&corral), cleared);
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn running_requests_survive_cache_clear() {
    let arguments = "--priority /urgent=7 --latency /urgent=1.5,3,250 --share-prefixes /open";
    let routes = [("/urgent", "generate"), ("/open", "generate")];
    let corral = Corral::start_with_routes(&routes, &words(arguments));
    let body = json!({"prompt": RELIABLE_SUMS[0].question_in(100)});
    corral.generate_at("/open", &body);
    let stream = corral.endless("/urgent");
    let model = status(&corral);
    let cached = list(&model, "prefix_cache");
    assert_eq!(cached.len(), 1, "{model}");
    let found = &cached[0]["owner"];
    assert_eq!(*found, Value::Null, "a shared entry has no owner");
    for model in [model, clear(&corral)] {
        let sequences = list(&model, "requests");
        assert_eq!(sequences.len(), 1, "{model}");
        let sequence = &sequences[0];
        assert_eq!(sequence["owner"], "/urgent");
        assert_eq!(sequence["priority"], 7);
        assert_eq!(sequence["latency"], "1.5,3,250");
        assert_eq!(sequence["state"], "decode");
        assert_eq!(sequence["cached_tokens"], 0);
        let generated = number(&sequence["generated_tokens"]);
        assert!(generated >= 1, "{model}");
        let prompt = number(&sequence["prompt_tokens"]);
        let computed = number(&sequence["computed_tokens"]);
        assert_eq!(computed, prompt + generated - 1, "{model}");
        assert_eq!(number(&model["cells"]["running"]), computed, "{model}");
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
    let shown = corral.cli_json(&["top", "--once"]);
    assert_eq!(shown, corral.get_admin("/requests").json());
    // Without a terminal it prints once.
    for arguments in [&["top"][..], &["top", "--once"]] {
        let text = corral.cli_output(arguments);
        for expected in ["\ntiny: - tokens/s, 0 running", "ENTRY  OWNER", "/generate"] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(!text.contains('\x1b'), "{text}");
    }
}

#[test]
fn top_explains_missing_server() {
    let top = |admin: &str| run(["top", "--admin", admin]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    // A listener that is not an HTTP server.
    let other_server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut buffer = [0; 100];
        let _ = stream.read(&mut buffer);
        stream.write_all(b"220 mail here\r\n").expect("sent");
    });
    let not_admin = ["not an admin listener", "'corral serve' prints its address"];
    top(&address).check_error(1, &not_admin);
    other_server.join().expect("no panic");
    // No listener; a port that was free may be another's by now.
    let closed = "127.0.0.1:1";
    let expected = [closed, "nothing answers", "corral serve", "--admin"];
    top(closed).check_error(1, &expected);
    top("ftp://x:1").check_error(2, &["http://HOST:PORT"]);
    // The public listener is the likely mistake.
    let corral = Corral::start();
    top(corral.public()).check_error(1, &not_admin);
    corral.check_alive();
}
