//! Plugins under the command line of wasmtime: with a script, and with the models of a Corral host. The results are those
//! of the same plugin on the host, and the engine computes no more tokens.

use corral_tests::deployments::{deploy, deploy_plugin, manifest, upload};
use corral_tests::pictures::{drawn_sum, projector};
use corral_tests::{
    Corral, Identity, Program, RELIABLE_SUMS, Sum, artifacts, key_file, run, scratch_dir,
};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

const SUM: Sum = RELIABLE_SUMS[0];

/// A server with sessions, and with these plugins at the routes of their names.
fn start(plugins: &[&str], arguments: &[&str]) -> Corral {
    let mut routes = vec![("/sessions".to_owned(), "sessions")];
    routes.extend(plugins.iter().map(|name| (format!("/{name}"), *name)));
    let routes = routes.iter().map(|(route, name)| (route.as_str(), *name));
    let routes: Vec<_> = routes.collect();
    Corral::start_with_routes(&routes, arguments)
}

fn script() -> Value {
    json!({
        "answers": {"12+7=": "19", "<|im_start|>assistant\n": "Hello."},
        "fails_after": [{"after": "late=", "text": "no", "error": "deadline"}],
    })
}

#[test]
fn script_answers_commands_and_requests() {
    let program = Program::mock("generate", &script());
    let ended = program.run(&[], &["12+7="]).check_success();
    assert_eq!(ended.stdout.trim(), "19", "{ended:?}");
    let ended = program.run(&[], &["1+1="]);
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("no answer after"), "{ended:?}");
    // The variable takes the place of the script in the program.
    let other = [("CORRAL_MOCK", r#"{"answers": {"1+1=": "2"}}"#)];
    let ended = program.run(&other, &["1+1="]);
    assert_eq!(ended.stdout.trim(), "2", "{ended:?}");

    let served = program.serve(&[]);
    let answer = served.post("/", r#"{"prompt": "12+7=", "max_tokens": 8}"#);
    assert_eq!((answer.status, &answer.json()["text"]), (200, &json!("19")));
    let answer = served.post(
        "/",
        r#"{"prompt": "12+7=", "max_tokens": 8, "stream": true}"#,
    );
    let expected = "data: {\"text\":\"1\"}\n\n";
    assert!(answer.body.starts_with(expected), "{answer:?}");
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    let answer = served.post("/", r#"{"prompt": "late=", "max_tokens": 8}"#);
    answer.problem(504, "deadline");
}

#[test]
fn script_answers_plugin_of_wasi_0_2() {
    let served = Program::mock("blocking", &script()).serve(&[]);
    for way in ["generate", "outcome", "rest", "outlived", "next", "drop"] {
        let answer = served.post(&format!("/{way}"), "12+7=");
        assert_eq!((answer.status, answer.body.as_str()), (200, "19"), "{way}");
    }
}

#[test]
fn remote_command_computes_the_right_sums() {
    let corral = start(&[], &[]);
    let program = Program::remote("generate", &corral);
    for sum in RELIABLE_SUMS {
        let computed = corral.computed_tokens(|| {
            let ended = program.run(&[], &[&sum.question()]).check_success();
            assert_eq!(ended.stdout.trim(), sum.answer());
        });
        // As on the host: the question, and each generated token but the last.
        let tokens = sum.question().len() + sum.answer().len();
        assert_eq!(computed, tokens as f64, "{sum:?}");
    }
}

#[test]
fn remote_fork_computes_the_prompt_once() {
    const PROMPT: usize = 400;
    const ANSWERS: usize = 8;
    let corral = start(&[], &[]);
    let served = Program::remote("best-of-n", &corral).serve(&[]);
    let before = corral.wait_until_idle();
    let body = json!({"prompt": SUM.question_in(PROMPT), "n": ANSWERS, "max_tokens": 8});
    let answer = served.post("/best-of-n", body.to_string());
    assert_eq!(answer.ok_json()["text"], json!(SUM.answer()), "{answer:?}");
    let after = corral.wait_until_idle();
    after.check_prompt_was_shared(PROMPT, ANSWERS, &before);
}

#[test]
fn program_run_by_corral_ends_with_its_answer() {
    let corral = start(&[], &[]);
    let origin = format!("http://{}", corral.public());
    let model = artifacts::model();
    let model = model.to_str().expect("UTF-8");
    for program in [
        Program::mock("generate", &script()),
        Program::remote("generate", &corral),
    ] {
        let options = ["--model", model, "--outbound", &origin];
        let line = [&["run", program.path()], &options[..], &["--", "12+7="]];
        let ended = run(line.concat()).check_success();
        assert_eq!(ended.stdout.trim(), "19", "{ended:?}");
    }
    corral.wait_until_idle();
}

#[test]
fn deployed_program_leaves_no_call_running() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "sessions", "sessions", json!({}));
    let origin = format!("http://{}", corral.public());
    for (name, program) in [
        ("remote", Program::remote("loops", &corral)),
        ("mock", Program::mock("loops", &script())),
    ] {
        let digest = upload(&corral, &program.component());
        let grants = json!({"grants": {"outbound": [&origin]}});
        deploy(&corral, &manifest(name, &digest, grants));
        for way in [
            "generate", "collect", "outlived", "frame", "late", "dropped", "body", "leave",
        ] {
            corral.post_ok(&format!("/{name}/{way}"), "12+7=");
            corral.wait_until_idle();
        }
    }
}

/// The same requests to a plugin on the host and under wasmtime have the same answers.
fn check_same_answers(plugin: &str, requests: &[(&str, &str)], arguments: &[&str]) {
    let corral = start(&[plugin], arguments);
    let served = Program::remote(plugin, &corral).serve(&[]);
    for (way, body) in requests {
        let path = format!("/{plugin}/{way}");
        let here = corral.post(&path, body);
        let there = served.post(&path, body);
        // Where a framed text is cut depends on how the host gets on.
        let uncut = |body: &str| match body.contains('<') {
            true => body.chars().filter(char::is_ascii_digit).collect(),
            false => body.to_owned(),
        };
        let (here_text, there_text) = (uncut(&here.body), uncut(&there.body));
        assert_eq!(there.status, here.status, "{way}");
        assert_eq!(there_text, here_text, "{way}");
        assert_eq!(here.status, 200, "{way}: {here:?}");
    }
    drop(served);
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn remote_guest_loops_answer_as_on_the_host() {
    let snapshots = scratch_dir();
    let snapshots = ["--snapshot-dir", snapshots.to_str().expect("UTF-8")];
    let requests = [
        ("generate", "12+7="),
        ("next", "12+7="),
        ("logits", "12+7="),
        ("only", "12+7="),
        ("many", "12+7=\n20+22=\n3+4="),
        ("beam", "12+7="),
        ("again", "1+|2+\n2=\n3="),
        ("match", "[0-9]{1,3}\n12+7="),
        ("statistics", "12+7="),
        ("info", ""),
        ("collect", "12+7="),
        ("outlived", "12+7="),
        ("frame", "12+7="),
        ("late", "12+7="),
        ("dropped", "12+7="),
        ("body", "12+7="),
        ("leave", "12+7="),
    ];
    check_same_answers("loops", &requests, &snapshots);
}

#[test]
fn wasi_0_2_plugin_answers_as_on_host() {
    let snapshots = scratch_dir();
    let snapshots = snapshots.to_str().expect("UTF-8");
    let picture = HEXLOWER.encode(&drawn_sum(SUM));
    let requests = [
        ("generate", "12+7="),
        ("outcome", "12+7="),
        ("rest", "12+7="),
        ("outlived", "12+7="),
        ("next", "12+7="),
        ("many", "12+7=\n20+22="),
        ("match", "[0-9]{1,3}\n12+7="),
        ("embed", "12+7=\nowl"),
        ("drop", "12+7="),
        ("see", picture.as_str()),
        ("keep", "sum\n12+7="),
        ("kept", "sum"),
        ("forget", "sum"),
    ];
    let arguments = ["--snapshot-dir", snapshots, "--mmproj", projector()];
    check_same_answers("blocking", &requests, &arguments);
}

#[test]
fn program_of_wasi_0_2_needs_nothing_newer() {
    let corral = start(&[], &[]);
    let served = Program::remote("blocking", &corral).serve_with_wasi_0_2();
    let answer = served.post("/generate", SUM.question());
    assert_eq!((answer.status, answer.body), (200, SUM.answer()));
}

#[test]
fn remote_errors_are_those_of_the_host() {
    let corral = start(&["blocking"], &[]);
    let served = Program::remote("blocking", &corral).serve(&[]);
    let case = |line: &str| line.split(['(', '{']).next().expect("a part").to_owned();
    let cases = |body: &str| body.lines().map(case).collect::<Vec<_>>();
    let here = corral.post("/blocking/errors", "");
    let there = served.post("/blocking/errors", "");
    assert_eq!(cases(&there.body), cases(&here.body), "{}", there.body);
    assert_eq!(cases(&there.body).len(), 12, "{}", there.body);
}

#[test]
fn remote_reports_tokens_above_the_limit() {
    // Few sequences of this length reach the limit.
    let corral = Corral::start_with_store(&["--context", "65536"]);
    let limits = json!({"limits": {"request-kib": 65536}});
    for plugin in ["sessions", "blocking"] {
        deploy_plugin(&corral, plugin, plugin, limits.clone());
    }
    let served = Program::remote("blocking", &corral).serve(&[]);
    let here = corral.post("/blocking/full", "");
    let there = served.post("/blocking/full", "");
    here.check_refused(400, "more than 4194304 tokens");
    // There, the append has returned before the host refuses it.
    assert_eq!((there.status, there.body), (here.status, here.body));
}

#[test]
fn too_long_argument_keeps_the_session() {
    let corral = start(&[], &[]);
    let served = Program::remote("blocking", &corral).serve(&[]);
    let answer = served.post("/blocking/long", SUM.question());
    assert_eq!((answer.status, answer.body), (200, SUM.answer()));
    assert_eq!(sessions(&corral), 1.0);
}

#[test]
fn lost_session_is_replaced_once_nothing_is_held() {
    let corral = start(&[], &["--time-limit", "4"]);
    let served = Program::remote("blocking", &corral).serve(&[]);
    let answer = served.post("/blocking/lost", SUM.question());
    let expected = format!("Some(Error::Deadline) {}", SUM.answer());
    assert_eq!((answer.status, answer.body), (200, expected));
    corral.wait_until_idle();
    assert_eq!(sessions(&corral), 2.0);
}

/// Sessions that have begun.
fn sessions(corral: &Corral) -> f64 {
    let requests = corral.metrics().samples("corral_deployment_requests_total");
    let ours = requests
        .iter()
        .filter(|(labels, _)| labels.contains("/sessions"));
    ours.map(|(_, count)| count).sum()
}

#[test]
fn end_of_client_frees_its_sequences() {
    let corral = start(&[], &[]);
    let served = Program::remote("blocking", &corral).serve(&[]);
    let address = served.address().to_owned();
    let client = std::thread::spawn(move || {
        // The program is killed before it answers.
        let _ = ureq::post(format!("http://{address}/endless")).send("1+1=");
    });
    let before = corral.wait_until("the generation runs", |metrics| {
        metrics.get("corral_engine_requests_running") == 1.0
            && metrics.get("corral_deployment_sequence_tokens") > 0.0
    });
    drop(served);
    let after = corral.wait_until_idle();
    let found = after.growth("corral_engine_requests_canceled_total", &before);
    assert_eq!(found, 1.0);
    client.join().expect("the client ends");
}

#[test]
fn session_needs_a_key_where_the_host_does() {
    let (file, key) = key_file();
    let corral = start(&[], &["--keys", &file]);
    let program = Program::remote("generate", &corral);
    let ended = program.run(&[], &["12+7="]);
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("answers 401: "), "{ended:?}");
    let ended = program.run(&[("CORRAL_REMOTE_KEY", &key)], &["12+7="]);
    assert_eq!(ended.stdout.trim(), SUM.answer(), "{ended:?}");
}

#[test]
fn runtime_checks_the_certificate() {
    let identity = Identity::new();
    let files = identity.write(&scratch_dir());
    let [certificate, key] = files.each_ref().map(|file| file.to_str().expect("UTF-8"));
    let corral = start(&[], &["--tls-cert", certificate, "--tls-key", key]);
    let (_, port) = corral.public().rsplit_once(':').expect("an address");
    let origin = format!("https://localhost:{port}");
    let program = Program::remote_at("blocking", &format!("{origin}/sessions"));
    // wasmtime trusts public authorities only.
    let served = program.serve(&[]);
    let refused = served.post("/generate", SUM.question());
    assert!(
        refused.body.contains("cannot reach the host at https://"),
        "{refused:?}"
    );
    // A Corral host trusts those of its system, or those in a file.
    let ask = |variables: &[(&str, &str)]| {
        let host = Corral::start_with_store_and_env(variables, &[]);
        let digest = upload(&host, &program.component());
        let grants = json!({"grants": {"outbound": [&origin]}});
        deploy(&host, &manifest("remote", &digest, grants));
        let answer = host.post("/remote/generate", SUM.question());
        (answer.status, answer.body)
    };
    let trusting = ask(&[("SSL_CERT_FILE", certificate)]);
    assert_eq!(trusting, (200, SUM.answer()));
    let (status, body) = ask(&[]);
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("TlsCertificateError"), "{body}");
    corral.wait_until_idle();
}

#[test]
fn unreachable_host_is_named() {
    let corral = start(&[], &[]);
    let program = Program::remote("generate", &corral);
    // The variable takes the place of the URL in the program.
    for (url, part) in [
        (
            "http://127.0.0.1:1/sessions",
            "cannot reach the host at http://127.0.0.1:1/sessions",
        ),
        (
            "127.0.0.1/sessions",
            "the host's URL is \"127.0.0.1/sessions\"",
        ),
        (
            &format!("http://{}/nowhere", corral.public()),
            "answers 404: ",
        ),
    ] {
        let ended = program.run(&[("CORRAL_REMOTE_URL", url)], &["12+7="]);
        assert_ne!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stderr.contains(part), "{url}: {ended:?}");
    }
}

#[test]
fn wrong_composition_is_refused() {
    let plugin = corral_tests::artifacts::plugin("generate");
    let components = plugin.parent().expect("a directory").to_str();
    let components = components.expect("UTF-8");
    let plugin = plugin.to_str().expect("UTF-8");
    let dir = scratch_dir();
    let out = dir.join("out.wasm");
    let out = out.to_str().expect("UTF-8");
    let script = dir.join("script.json");
    std::fs::write(&script, "{").expect("own directory");
    let script = script.to_str().expect("UTF-8");
    let long = format!("http://{}/", "x".repeat(3000));
    for (line, parts) in [
        (
            vec!["compose", plugin, "--mock", script, "-o", out],
            ["is not JSON", "script.json"],
        ),
        (
            vec!["compose", script, "--remote", "http://x/", "-o", out],
            ["is not a valid component", "script.json"],
        ),
        (
            vec!["compose", plugin, "--remote", &long, "-o", out],
            ["3008 bytes", "room for 2048"],
        ),
        (
            vec!["compose", "/no.wasm", "--remote", "http://x/", "-o", out],
            ["'/no.wasm'", "cannot be read"],
        ),
    ] {
        run([&line[..], &["--components", components]].concat()).check_error(1, &parts);
    }
    run(["compose", plugin, "-o", out]).check_error(2, &["--remote", "--mock"]);
    assert!(!std::path::Path::new(out).exists());
}
