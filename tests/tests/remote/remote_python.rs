//! Programs in Python outside WebAssembly, over a session: the package `corral_remote`. They lie in `remote_python`.

use corral_tests::pictures::{drawn_sum, projector};
use corral_tests::{
    Corral, Identity, RELIABLE_SUMS, Sum, TIMEOUT, artifacts, key_file, limited_key_file,
    run_command, scratch_dir, signal,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const SUM: Sum = RELIABLE_SUMS[0];

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&[("/sessions", "sessions")], arguments)
}

fn url(corral: &Corral) -> String {
    format!("http://{}/sessions", corral.public())
}

/// A program of `remote_python/program.py`.
fn program(name: &str, arguments: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let packages = [
        "plugins/python",
        "examples/best-of-n",
        "examples/classifier",
    ];
    let path = std::env::join_paths(packages.map(|dir| root.join(dir))).expect("no colon");
    let mut command = Command::new(artifacts::clients().join("python/bin/python"));
    command
        .arg(root.join("tests/tests/remote/remote_python/program.py"))
        .arg(name)
        .args(arguments)
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Warns of what is left open.
        .env("PYTHONDEVMODE", "1");
    command
}

/// Runs a program, which must succeed without a warning, and returns the lines that it prints.
fn lines(name: &str, arguments: &[&str]) -> Vec<Value> {
    let ended = run_command(&mut program(name, arguments), TIMEOUT);
    // In this mode asyncio tells of slow callbacks.
    let warnings = ended.stderr.lines();
    let warnings: Vec<_> = warnings
        .filter(|line| !line.starts_with("Executing <"))
        .collect();
    assert_eq!((ended.code, warnings.len()), (Some(0), 0), "{ended:?}");
    let lines = ended.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// The only line of a program.
fn line(name: &str, arguments: &[&str]) -> Value {
    let [line] = &lines(name, arguments)[..] else {
        panic!("{name} prints one line");
    };
    line.clone()
}

#[test]
fn sums_are_right() {
    let corral = start(&[]);
    let questions = RELIABLE_SUMS.map(Sum::question);
    let url = url(&corral);
    let arguments: Vec<_> = std::iter::once(&url).chain(&questions).collect();
    let arguments: Vec<_> = arguments.iter().map(|text| text.as_str()).collect();
    let answers = RELIABLE_SUMS.map(Sum::answer);
    let generated = answers.each_ref().map(|answer| json!([answer, "END"]));
    assert_eq!(
        line("sums", &arguments),
        json!({"generated": generated, "chosen": answers, "models": ["tiny"]})
    );
    corral.wait_until_idle();
}

#[test]
fn interface_works_over_a_session() {
    let corral = start(&[]);
    let mut found = line("interface", &[&url(&corral)]);
    let probability = found["probability"].take();
    assert!(
        probability
            .as_f64()
            .is_some_and(|share| share > 0.9 && share <= 1.001),
        "{probability}"
    );
    assert_eq!(
        found["constrained"].as_str().map(str::len),
        Some(3),
        "{found}"
    );
    for (member, value) in [
        ("allows", json!([true, false])),
        ("forced", json!("es\"")),
        ("complete", json!(true)),
        ("top", json!(SUM.answer().as_bytes()[0])),
        ("both", json!(["1", "9"])),
        ("logits", json!([264, SUM.answer().as_bytes()[0]])),
        // The sequence has what the program has read of a canceled generation.
        ("kept", json!(0)),
        ("again", json!(SUM.answer())),
        ("embeddings", json!([true, false, 128])),
        ("special", json!([10, 1])),
        ("budget", json!([null, true])),
        ("requests", json!([0, 64])),
    ] {
        assert_eq!(found[member], value, "{member} of {found}");
    }
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 2.0);
}

#[test]
fn forks_compute_the_prompt_once() {
    const PROMPT: usize = 400;
    const ANSWERS: usize = 8;
    let corral = start(&[]);
    let before = corral.wait_until_idle();
    let body = json!({"prompt": SUM.question_in(PROMPT), "n": ANSWERS, "max_tokens": 8});
    let answer = line("example", &[&url(&corral), "best_of_n", &body.to_string()]);
    assert_eq!(answer["text"], SUM.answer(), "{answer}");
    let after = corral.wait_until_idle();
    after.check_prompt_was_shared(PROMPT, ANSWERS, &before);
}

#[test]
fn pictures_and_snapshots_are_kept() {
    let dir = scratch_dir();
    let picture = dir.join("sum.png");
    std::fs::write(&picture, drawn_sum(SUM)).expect("own directory");
    let [snapshots, picture] = [&dir, &picture].map(|path| path.to_str().expect("UTF-8"));
    let corral = start(&["--snapshot-dir", snapshots, "--mmproj", projector()]);
    let found = line("keep", &[&url(&corral), picture]);
    for (member, value) in [
        ("broken", json!("Invalid")),
        ("kept", json!(true)),
        ("texts", json!([SUM.answer(), SUM.answer()])),
        ("gone", json!("NotFound")),
    ] {
        assert_eq!(found[member], value, "{member} of {found}");
    }
    corral.wait_until_idle();
}

#[test]
fn https_needs_a_trusted_certificate() {
    let [other, _] = Identity::new().write(&scratch_dir());
    let other = other.to_str().expect("UTF-8");
    for identity in [Identity::new(), Identity::authority()] {
        let files = identity.write(&scratch_dir());
        let [certificate, key] = files.each_ref().map(|file| file.to_str().expect("UTF-8"));
        let corral = start(&["--tls-cert", certificate, "--tls-key", key]);
        let (_, port) = corral.public().rsplit_once(':').expect("an address");
        let [named, unnamed] =
            ["localhost", "127.0.0.1"].map(|host| format!("https://{host}:{port}/sessions"));
        let found = lines("https", &[&named, certificate, "", other]);
        assert_eq!(found[0], json!({"text": SUM.answer()}));
        let refused = line("https", &[&unnamed, certificate]);
        for refused in [&found[1], &found[2], &refused] {
            assert_eq!(refused["error"], "Disconnected", "{refused}");
            let detail = refused["detail"].as_str().unwrap_or_default();
            assert!(detail.contains("`ca_file`"), "{refused}");
        }
        // Those that the system trusts.
        let mut program = program("https", &[&named, ""]);
        let ended = run_command(program.env("SSL_CERT_FILE", certificate), TIMEOUT);
        assert!(ended.stdout.contains(&SUM.answer()), "{ended:?}");
        let missing = line("https", &[&named, key]);
        assert_eq!(missing["error"], "Invalid", "{missing}");
        corral.wait_until_idle();
    }
}

#[test]
fn mistakes_leave_the_session_open() {
    let corral = start(&[]);
    let answer = line("mistakes", &[&url(&corral)]);
    let invalid = json!(["invalid", 400]);
    assert_eq!(
        answer["found"],
        json!([
            invalid,
            invalid,
            ["context-full", 400],
            invalid,
            ["not-found", 404],
            invalid,
            invalid,
            invalid,
        ])
    );
    assert_eq!(answer["text"], SUM.answer());
    corral.wait_until_idle();
}

#[test]
fn stopped_program_loses_its_lease() {
    let corral = start(&["--io-timeout", "2"]);
    let mut child = program("stopped", &[&url(&corral)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || {
        let line = output.next().expect("a line").expect("UTF-8");
        serde_json::from_str::<Value>(&line).expect("JSON")
    };
    assert_eq!(next(), "ready");
    assert!(corral.metrics().get("corral_deployment_sequence_tokens") > 0.0);
    signal(child.id(), "STOP");
    // Its connection stays open all the while.
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 1.0);
    signal(child.id(), "CONT");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"go\n").expect("it reads");
    for _ in 0..2 {
        let error = next();
        assert_eq!(error["error"], "Disconnected", "{error}");
        let detail = error["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("ended"), "{error}");
    }
    assert!(child.wait().expect("own child").success());
}

#[test]
fn busy_program_keeps_its_lease() {
    let corral = start(&["--io-timeout", "3"]);
    // Longer than the lease, which its thread renews.
    assert_eq!(line("busy", &[&url(&corral), "0.1", "5"]), SUM.answer());
    corral.wait_until_idle();
}

#[test]
fn bad_key_is_named() {
    let (file, key) = key_file();
    let corral = start(&["--keys", &file]);
    let url = url(&corral);
    let found = lines("errors", &[&url, "", "ck_wrong", "two\nlines", &key]);
    for refused in &found[..2] {
        assert_eq!(refused["error"], "NotGranted", "{refused}");
        assert_eq!(refused["status"], 401, "{refused}");
        let detail = refused["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("answers 401: "), "{refused}");
    }
    assert_eq!(found[2]["error"], "Invalid", "{found:?}");
    assert_eq!(found[3], json!({"text": SUM.answer()}));
    corral.wait_until_idle();
}

#[test]
fn session_over_its_quota_is_refused() {
    let limits = "[tenant.alice]\nconcurrent-requests = 1\ntokens-per-request = 100\n";
    let (file, key) = limited_key_file(limits);
    let corral = start(&["--keys", &file]);
    let [second, text, many, left] = &lines("quota", &[&url(&corral), &key])[..] else {
        panic!("it prints four lines");
    };
    assert_eq!(second["error"], "Refused", "{second}");
    assert_eq!(second["code"], "concurrency-exceeded", "{second}");
    assert!(second["retry_after"].as_f64() >= Some(1.0), "{second}");
    assert_eq!(*text, SUM.answer());
    assert_eq!(many["error"], "NotGranted", "{many}");
    let detail = many["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("tokens-per-request"), "{many}");
    // A prompt of five tokens, two digits and the end.
    assert_eq!(*left, 92);
    corral.wait_until_idle();
}

#[test]
fn unreachable_host_is_named() {
    let corral = start(&[]);
    let nowhere = format!("http://{}/nowhere", corral.public());
    for (url, error, part) in [
        (
            "http://127.0.0.1:1/sessions",
            "Disconnected",
            "cannot reach the host at http://127.0.0.1:1/",
        ),
        (
            "127.0.0.1/sessions",
            "Invalid",
            "the host's URL is '127.0.0.1/sessions'",
        ),
        (&nowhere, "NotFound", "answers 404: "),
    ] {
        let found = line("errors", &[url]);
        assert_eq!(found["error"], error, "{found}");
        assert!(
            found["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains(part)),
            "{found}"
        );
    }
}
