//! Every field of corral.toml takes effect, for its own deployment only.

use corral_tests::deployments::{deploy, manifest, upload, variant};
use corral_tests::{Corral, artifacts, scratch_dir};
use serde_json::{Value, json};
use std::path::PathBuf;

struct ServerWithDeployments {
    corral: Corral,
    misbehave: String,
    generate: String,
    token: PathBuf,
}

fn start_server(arguments: &[&str]) -> ServerWithDeployments {
    let dir = scratch_dir();
    let store = ["--store", dir.to_str().expect("ours")];
    let corral = Corral::start_with(&[&store, arguments].concat());
    let read = |name| std::fs::read(artifacts::plugin(name)).expect("readable");
    let misbehave = upload(&corral, &read("misbehave"));
    let generate = upload(&corral, &read("generate"));
    ServerWithDeployments {
        corral,
        misbehave,
        generate,
        token: dir.join("admin-token"),
    }
}

impl ServerWithDeployments {
    fn deploy(&self, name: &str, more: Value) {
        deploy(&self.corral, &manifest(name, &self.misbehave, more));
    }

    /// Asserts that other deployments notice nothing.
    fn check_neighbors(&self) {
        assert_eq!(self.corral.get("/misbehave/ok").status, 200);
        self.corral.check_alive();
    }

    fn refused(&self, name: &str, code: &str) -> f64 {
        let sample = format!(
            "corral_deployment_requests_refused_total{{deployment=\"{name}\",code=\"{code}\"}}"
        );
        self.corral.metrics().get_or_zero(&sample)
    }
}

#[test]
fn routes_models_configuration_and_error_format() {
    let model = artifacts::long_model();
    let second = format!("second={}", model.to_str().expect("ours"));
    let server = start_server(&["--model", &second]);
    let more = json!({
        "routes": ["/one", "/two/deep"],
        "models": ["second"],
        "error-format": "openai",
        "configuration": {"GREETING": "hello\nthere", "A": ""},
    });
    server.deploy("a", more);
    let corral = &server.corral;
    for route in ["/one", "/two/deep"] {
        let answer = corral.get(&format!("{route}/env"));
        assert_eq!(answer.body, "A=\nGREETING=hello\nthere\n");
        assert_eq!(corral.get(&format!("{route}/models")).body, "second");
        let answer = corral.get(&format!("{route}/trap"));
        assert_eq!(answer.status, 500);
        assert_eq!(answer.json()["error"]["code"], "trapped", "{answer:?}");
    }
    corral.get("/two").problem(404, "no-route");
    assert_eq!(corral.get("/misbehave/models").body, "tiny,second");
    corral.get("/misbehave/trap").problem(500, "trapped");
    assert_eq!(server.refused("a", "trapped"), 2.0);
    server.check_neighbors();
}

#[test]
fn limits_of_memory_time_cpu_request_and_response() {
    let server = start_server(&[]);
    let limits = json!({"limits": {
        "memory-mib": 16, "time-seconds": 3.5, "cpu-seconds": 0.25,
        "request-kib": 3, "response-kib": 100,
    }});
    server.deploy("a", limits);
    let corral = &server.corral;
    let detail = corral.get("/a/hog").problem(500, "memory");
    assert!(detail.contains("16 MiB"), "{detail}");
    let detail = corral.get("/a/spin").problem(504, "cpu-time");
    assert!(detail.contains("0.25 s"), "{detail}");
    let detail = corral.get("/a/sleeper").problem(504, "deadline");
    assert!(detail.contains("3.5 s"), "{detail}");
    assert_eq!(
        corral.post("/a/echo", vec![b'x'; 3 << 10]).body.len(),
        3 << 10
    );
    corral
        .post("/a/echo", vec![b'x'; (3 << 10) + 1])
        .problem(413, "request-too-large");
    // A response without a length is cut where it exceeds the limit.
    let mut flood = corral.post_stream("/a/flood", "");
    assert_eq!(flood.status, 200);
    let error = flood.bytes(1 << 30).expect_err("it is cut off");
    println!("an answer that is too large: {error}");
    let failures = corral.wait_until("the cut is counted", |metrics| {
        metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"response-too-large\"}") == 1.0
    });
    assert_eq!(
        failures.get_or_zero("corral_plugin_calls_failed_total{code=\"memory\"}"),
        1.0
    );
    for code in ["memory", "cpu-time", "deadline", "request-too-large"] {
        assert_eq!(server.refused("a", code), 1.0, "{code}");
    }
    server.check_neighbors();
}

#[test]
fn limits_of_concurrent_and_waiting_requests() {
    let server = start_server(&[]);
    server.deploy("a", json!({"limits": {"concurrent": 2, "queue": 0}}));
    let corral = &server.corral;
    let hold = || {
        let mut stream = corral.post_stream("/a/drip", "");
        assert_eq!(stream.line().expect("drips").as_deref(), Some("drip"));
        stream
    };
    let (one, two) = (hold(), hold());
    let refused = corral.get("/a/ok");
    refused.problem(503, "busy");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.refused("a", "busy"), 1.0);
    server.check_neighbors();
    // A new revision with the same limits shares the permits of the old one.
    server.deploy(
        "a",
        json!({"limits": {"concurrent": 2, "queue": 0}, "priority": 1}),
    );
    corral.get("/a/ok").problem(503, "busy");
    // One with other limits applies them to its own requests, and counts those of the old one.
    server.deploy("a", json!({"limits": {"concurrent": 3, "queue": 0}}));
    let three = hold();
    corral.get("/a/ok").problem(503, "busy");
    drop((one, two));
    corral.wait_until("their places are free", |metrics| {
        metrics.get("corral_plugin_instances") == 1.0
    });
    assert_eq!(corral.get("/a/ok").status, 200);
    drop(three);
}

#[test]
fn quotas_span_callers_and_revisions() {
    let server = start_server(&[]);
    let corral = &server.corral;
    server.deploy("a", json!({"limits": {"requests-per-minute": 3}}));
    let ask = || corral.get("/a/ok");
    assert_eq!((ask().status, ask().status), (200, 200));
    server.deploy(
        "a",
        json!({"limits": {"requests-per-minute": 3}, "priority": 1}),
    );
    assert_eq!(ask().status, 200);
    let refused = ask();
    refused.problem(429, "request-rate-exceeded");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.refused("a", "request-rate-exceeded"), 1.0);
    for (name, limit) in [
        ("request", "tokens-per-request"),
        ("minute", "tokens-per-minute"),
        ("day", "tokens-per-day"),
    ] {
        let more = json!({"limits": {limit: 40}});
        deploy(corral, &manifest(name, &server.generate, more));
        let route = format!("/{name}");
        let few = json!({"prompt": "1+1=", "max_tokens": 5});
        assert_eq!(corral.generate_at(&route, &few)["text"], "2", "{limit}");
        let many = json!({"prompt": "1+1=", "max_tokens": 400, "ignore_end": true});
        let answer = corral.post(&route, many.to_string());
        let detail = answer.problem(403, "not-granted");
        assert!(detail.contains(limit), "{detail}");
    }
    server.check_neighbors();
}

#[test]
fn quota_changes_with_its_revision() {
    let server = start_server(&[]);
    let corral = &server.corral;
    let allowing = |digest: &str, requests: u64| {
        let limits = json!({"limits": {"requests-per-minute": requests}});
        manifest("a", digest, limits).to_string()
    };
    server.deploy("a", json!({"limits": {"requests-per-minute": 3}}));
    let misbehave = std::fs::read(artifacts::plugin("misbehave")).expect("readable");
    let doomed = upload(corral, &variant(&misbehave, 1));
    for digest in [&server.misbehave, &doomed] {
        let path = "/deployments/a?traffic=false";
        let answer = corral.request_admin("POST", path, allowing(digest, 100));
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let share = |revisions: [u64; 2]| {
        let shares = revisions.map(|revision| json!({"revision": revision, "weight": 1}));
        let body = json!({ "traffic": shares }).to_string();
        corral.request_admin("PUT", "/deployments/a/traffic", body)
    };
    // The second is loaded before the third fails to load, so nothing has changed.
    let hex = doomed.strip_prefix("sha256:").expect("a digest");
    let dir = server.token.parent().expect("in the store");
    std::fs::remove_file(dir.join(format!("components/{hex}.wasm"))).expect("there");
    share([2, 3]).problem(500, "component-damaged");
    let ask = || corral.get("/a/ok").status;
    assert_eq!([ask(), ask(), ask(), ask()], [200, 200, 200, 429]);
    // Each revision applies its own limit to the shared usage.
    assert_eq!(share([1, 2]).status, 200);
    let answers: Vec<_> = (0..20).map(|_| ask()).collect();
    let refused = answers.iter().filter(|status| **status == 429).count();
    assert!((8..=12).contains(&refused), "{answers:?}");
    assert!(answers.iter().all(|status| matches!(status, 200 | 429)));
    server.check_neighbors();
}

#[test]
fn access_by_key_or_open() {
    let dir = scratch_dir();
    let keys = dir.join("keys.toml");
    let keys = keys.to_str().expect("ours");
    let new = [
        "keys",
        "new",
        "--tenant",
        "t",
        "--deployment",
        "closed",
        "--append",
        keys,
    ];
    let made = corral_tests::run(new);
    assert_eq!(made.code, Some(0), "{made:?}");
    let open = ["/generate", "/misbehave"].map(|route| ["--open-route", route]);
    let server = start_server(&[&["--keys", keys], open.as_flattened()].concat());
    let corral = &server.corral;
    server.deploy("closed", json!({}));
    server.deploy("other", json!({"access": "keys"}));
    server.deploy("open", json!({"access": "open"}));
    assert_eq!(corral.get("/open/ok").status, 200);
    for name in ["closed", "other"] {
        assert_eq!(corral.get(&format!("/{name}/ok")).status, 401);
    }
    let key = format!("authorization: Bearer {}", made.stdout.trim());
    let admin = format!("http://{}", corral.admin());
    let invoke = |name: &str| {
        let path = format!("/{name}/ok");
        let arguments = [
            "invoke", name, "--path", &path, "--header", &key, "--admin", &admin,
        ];
        let token = ["--token-file", server.token.to_str().expect("ours")];
        corral_tests::run(arguments.iter().chain(&token))
    };
    assert_eq!(invoke("closed").stdout, "ok");
    assert!(
        invoke("other").stderr.contains("'other' answered with 403"),
        "not its key"
    );
    server.check_neighbors();
}

#[test]
fn generation_past_queue_time_is_refused() {
    let server = start_server(&["--max-running", "1"]);
    let corral = &server.corral;
    let more = json!({"limits": {"queue-seconds": 0.2}});
    deploy(corral, &manifest("a", &server.generate, more));
    let running = corral.endless("/generate");
    let answer = corral.post("/a", json!({"prompt": "1+1=", "max_tokens": 5}).to_string());
    assert!(matches!(answer.status, 429 | 503), "{answer:?}");
    drop(running);
    let answer = corral.generate_at("/a", &json!({"prompt": "1+1=", "max_tokens": 5}));
    assert_eq!(answer["text"], "2");
}

#[test]
fn cell_share_bounds_its_deployment_only() {
    let server = start_server(&["--kv-cells", "1000", "--context", "1000"]);
    let corral = &server.corral;
    let more = json!({"limits": {"cells-percent": 10}});
    deploy(corral, &manifest("a", &server.generate, more));
    let prompt = "1 ".repeat(150);
    let long = json!({"prompt": prompt, "max_tokens": 1});
    let refused = corral.post("/a", long.to_string());
    assert_eq!(refused.status, 400, "{refused:?}");
    // llama.cpp rounds them up to 1,024 cells.
    assert!(refused.body.contains("may have 103"), "{refused:?}");
    corral.generate_at("/generate", &long);
    // One request fills the share, so the deployment's others run after it and are all cut there.
    let endless = json!({"prompt": "1+1=", "max_tokens": 900, "ignore_end": true});
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| corral.generate_at("/a", &endless)))
            .collect();
        server.check_neighbors();
        for answer in answers {
            let answer = answer.join().expect("answered");
            assert_eq!(answer["finish_reason"], "length");
            let (prompt, all) = (&answer["prompt_tokens"], &answer["tokens"]);
            let length = prompt.as_u64().zip(all.as_u64()).map(|(a, b)| a + b);
            assert_eq!(length, Some(103), "{answer}");
        }
    });
}

#[test]
fn priority_and_shared_prefixes() {
    let server = start_server(&[]);
    let corral = &server.corral;
    let more = json!({"priority": 9, "grants": {"share-prefixes": true}});
    deploy(corral, &manifest("high", &server.generate, more.clone()));
    deploy(corral, &manifest("other", &server.generate, more));
    deploy(corral, &manifest("alone", &server.generate, json!({})));
    let running = [corral.endless("/high"), corral.endless("/alone")];
    let seen = corral.get_admin("/requests").json();
    let sequences = seen["models"][0]["requests"].as_array().expect("a list");
    let of = |route: &str| {
        let found = sequences.iter().find(|sequence| sequence["owner"] == route);
        found.unwrap_or_else(|| panic!("{route} runs: {seen}"))["priority"].clone()
    };
    assert_eq!((of("high"), of("alone")), (json!(9), json!(0)));
    drop(running);
    corral.wait_until_idle();
    // A prefix computed for one sharing deployment is cached for the other.
    let prompt = "Once upon a time there was a little girl who had a red ball and a blue kite. ";
    let ask = |route: &str| {
        let before = corral
            .metrics()
            .get("corral_engine_prefix_cache_hits_tokens_total");
        corral.generate_at(route, &json!({"prompt": prompt, "max_tokens": 1}));
        corral
            .wait_until_idle()
            .get("corral_engine_prefix_cache_hits_tokens_total")
            - before
    };
    ask("/high");
    assert_eq!(ask("/alone"), 0.0, "who shares with nobody reads it anew");
    assert!(ask("/other") > 5.0, "who shares finds it");
}

#[test]
fn first_party_manifests_deploy() {
    let dir = scratch_dir();
    let store = dir.to_str().expect("ours");
    let corral = Corral::start_with(&["--store", store]);
    let plugins = artifacts::plugin("generate");
    let plugins = plugins.parent().expect("a directory");
    let admin = format!("http://{}", corral.admin());
    let token = dir.join("admin-token");
    for (name, path) in [("generate", "/generate"), ("hello", "/hello")] {
        let text = std::fs::read_to_string(plugins.join(format!("{name}.toml")));
        let text = text.expect("plugins/build.sh puts it there");
        // The routes of the test server are taken.
        let text = text.replace(&format!("\"{path}\""), &format!("\"/deployed{path}\""));
        let text = text.replace(
            &format!("\"{name}.wasm\""),
            &format!("{:?}", artifacts::plugin(name).to_str().expect("ours")),
        );
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, text).expect("ours");
        let ended = corral_tests::run([
            "deploy",
            file.to_str().expect("ours"),
            "--admin",
            &admin,
            "--token-file",
            token.to_str().expect("ours"),
        ]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let answer = corral.generate_at(
        "/deployed/generate",
        &json!({"prompt": "2+2=", "max_tokens": 5}),
    );
    assert_eq!(answer["text"], "4");
    let answer = corral.post("/deployed/hello", "1+1=");
    assert!(answer.body.starts_with('2'), "{answer:?}");
}
