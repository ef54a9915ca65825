//! Fields of corral.toml take effect, for their own deployment only. `limits` tests each limit alone.

use corral_tests::artifacts::{component, long_model, plugin};
use corral_tests::deployments::{deploy, deploy_dir, deploy_plugin, manifest, upload, variant};
use corral_tests::{Corral, new_key, scratch_dir};
use serde_json::json;

/// Asserts that other deployments notice nothing.
fn check_neighbors(corral: &Corral) {
    assert_eq!(corral.get("/misbehave/ok").status, 200);
    corral.check_alive();
}

/// Requests of a deployment that were refused with this code.
fn refused(corral: &Corral, name: &str, code: &str) -> f64 {
    let labels = format!("deployment=\"{name}\",code=\"{code}\"");
    let sample = format!("corral_deployment_requests_refused_total{{{labels}}}");
    corral.metrics().get_or_zero(&sample)
}

#[test]
fn routing_and_grant_fields_take_effect() {
    let second = format!("second={}", long_model().display());
    let corral = Corral::start_with_store(&["--model", &second]);
    let more = json!({
        "routes": ["/one", "/two/deep"],
        "models": ["second"],
        "error-format": "openai",
        "configuration": {"GREETING": "hello\nthere", "A": ""},
    });
    deploy_plugin(&corral, "a", "misbehave", more);
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
    assert_eq!(refused(&corral, "a", "trapped"), 2.0);
    check_neighbors(&corral);
}

#[test]
fn revisions_share_permits_and_quota() {
    let corral = Corral::start_with_store(&[]);
    let deploy = |limits, priority| {
        let more = json!({"limits": limits, "priority": priority});
        deploy_plugin(&corral, "a", "misbehave", more);
    };
    deploy(json!({"concurrent-requests": 2, "queued-requests": 0}), 0);
    let held = [corral.drip("/a"), corral.drip("/a")];
    corral.get("/a/ok").problem(503, "busy");
    assert_eq!(refused(&corral, "a", "busy"), 1.0);
    check_neighbors(&corral);
    // A new revision with the same limits shares the permits of the old one.
    deploy(json!({"concurrent-requests": 2, "queued-requests": 0}), 1);
    corral.get("/a/ok").problem(503, "busy");
    // One with other limits applies them to its own requests, and counts those of the old one.
    deploy(json!({"concurrent-requests": 3, "queued-requests": 0}), 1);
    let third = corral.drip("/a");
    corral.get("/a/ok").problem(503, "busy");
    drop(held);
    corral.wait_until("the permits are free", |metrics| {
        metrics.get("corral_plugin_instances") == 1.0
    });
    assert_eq!(corral.get("/a/ok").status, 200);
    drop(third);

    deploy(json!({"requests-per-minute": 3}), 0);
    assert_eq!(corral.get("/a/ok").status, 200);
    assert_eq!(corral.get("/a/ok").status, 200);
    deploy(json!({"requests-per-minute": 3}), 1);
    assert_eq!(corral.get("/a/ok").status, 200);
    corral.get("/a/ok").problem(429, "request-rate-exceeded");
    assert_eq!(refused(&corral, "a", "request-rate-exceeded"), 1.0);
}

#[test]
fn quota_changes_with_its_revision() {
    let corral = Corral::start_with_store(&[]);
    let digest = upload(&corral, &component("misbehave"));
    let allowing = |digest: &str, requests: u64| {
        let limits = json!({"limits": {"requests-per-minute": requests}});
        manifest("a", digest, limits).to_string()
    };
    let more = json!({"limits": {"requests-per-minute": 3}});
    deploy_plugin(&corral, "a", "misbehave", more);
    let missing = upload(&corral, &variant(&component("misbehave"), 1));
    for digest in [&digest, &missing] {
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
    std::fs::remove_file(corral.component_file(&missing)).expect("removed");
    share([2, 3]).problem(500, "component-damaged");
    let ask = || corral.get("/a/ok").status;
    assert_eq!([ask(), ask(), ask(), ask()], [200, 200, 200, 429]);
    // Each revision applies its own limit to the shared usage.
    assert_eq!(share([1, 2]).status, 200);
    let answers: Vec<_> = (0..20).map(|_| ask()).collect();
    let refused = answers.iter().filter(|status| **status == 429).count();
    assert!((8..=12).contains(&refused), "{answers:?}");
    assert!(answers.iter().all(|status| matches!(status, 200 | 429)));
    check_neighbors(&corral);
}

#[test]
fn access_field_overrides_key_requirement() {
    let keys = scratch_dir().join("keys.toml");
    let keys = keys.to_str().expect("a path in UTF-8");
    let key = new_key(keys, &["--tenant", "t", "--deployment", "closed"]);
    let open = ["/generate", "/misbehave"].map(|route| ["--open-route", route]);
    let arguments = [&["--keys", keys], open.as_flattened()].concat();
    let corral = Corral::start_with_store(&arguments);
    deploy_plugin(&corral, "closed", "misbehave", json!({}));
    deploy_plugin(&corral, "other", "misbehave", json!({"access": "keys"}));
    deploy_plugin(&corral, "open", "misbehave", json!({"access": "open"}));
    assert_eq!(corral.get("/open/ok").status, 200);
    for name in ["closed", "other"] {
        assert_eq!(corral.get(&format!("/{name}/ok")).status, 401);
    }
    let key = format!("authorization: Bearer {key}");
    let invoke = |name: &str| {
        let path = format!("/{name}/ok");
        corral.cli(&["invoke", name, "--path", &path, "--header", &key])
    };
    assert_eq!(invoke("closed").stdout, "ok");
    let refused = invoke("other");
    let expected = "'other' answered with 403";
    assert!(refused.stderr.contains(expected), "{refused:?}");
    check_neighbors(&corral);
}

#[test]
fn keys_required_without_keys_are_refused() {
    let corral = Corral::start_with_store(&[]);
    let dir = scratch_dir();
    let component = plugin("misbehave");
    let manifest =
        format!("name = 'a'\ncomponent = {component:?}\nroutes = ['/a']\naccess = 'keys'\n");
    std::fs::write(dir.join("corral.toml"), manifest).expect("written");
    let ended = corral.cli(&["deploy", dir.to_str().expect("a path in UTF-8")]);
    ended.check_error(1, &["access = \"keys\"", "--keys FILE"]);
}

#[test]
fn cell_share_bounds_its_deployment_only() {
    let corral = Corral::start_with_store(&["--kv-cells", "1000", "--context", "1000"]);
    let more = json!({"limits": {"kv-cells-percent": 10}});
    deploy_plugin(&corral, "a", "generate", more);
    let prompt = "1 ".repeat(150);
    let long = json!({"prompt": prompt, "max_tokens": 1});
    let refused = corral.post("/a", long.to_string());
    assert_eq!(refused.status, 400, "{refused:?}");
    // llama.cpp rounds them up to 1,024 cells.
    assert!(refused.body.contains("may have 103"), "{refused:?}");
    corral.generate_at("/generate", &long);
    // One request fills the share, so the deployment's others run after it and are all cut there.
    let endless = json!({"prompt": "1+1=", "max_tokens": 900, "ignore_eos": true});
    std::thread::scope(|scope| {
        let answers = (0..3).map(|_| scope.spawn(|| corral.generate_at("/a", &endless)));
        let answers: Vec<_> = answers.collect();
        check_neighbors(&corral);
        for answer in answers {
            let answer = answer.join().expect("a response");
            assert_eq!(answer["finish_reason"], "length");
            let (prompt, all) = (&answer["prompt_tokens"], &answer["tokens"]);
            let length = prompt.as_u64().zip(all.as_u64()).map(|(a, b)| a + b);
            assert_eq!(length, Some(103), "{answer}");
        }
    });
}

#[test]
fn priority_latency_and_prefix_sharing_take_effect() {
    let corral = Corral::start_with_store(&["--latency", "throughput"]);
    let generate = upload(&corral, &component("generate"));
    let more = json!({"priority": 9, "latency": "stream", "grants": {"share-prefixes": true}});
    for name in ["high", "other"] {
        deploy(&corral, &manifest(name, &generate, more.clone()));
    }
    deploy(&corral, &manifest("alone", &generate, json!({})));
    let running = [corral.endless("/high"), corral.endless("/alone")];
    let seen = corral.get_admin("/requests").json();
    let sequences = seen["models"][0]["requests"].as_array().expect("a list");
    let of = |route: &str| {
        let found = sequences.iter().find(|sequence| sequence["owner"] == route);
        let found = found.unwrap_or_else(|| panic!("{route} runs: {seen}"));
        (found["priority"].clone(), found["latency"].clone())
    };
    assert_eq!(of("high"), (json!(9), json!("stream")));
    assert_eq!(of("alone"), (json!(0), json!("throughput")));
    drop(running);
    corral.wait_until_idle();
    // A prefix computed for one sharing deployment is cached for the other.
    let prompt = "Once upon a time there was a little girl who had a red ball and a blue kite. ";
    let cached = |route: &str| {
        let answer = corral.generate_at(route, &json!({"prompt": prompt, "max_tokens": 1}));
        corral.wait_until_idle();
        answer["cached_tokens"].as_u64().expect("a number")
    };
    cached("/high");
    assert_eq!(cached("/alone"), 0, "it shares with no other deployment");
    assert!(cached("/other") > 5, "it shares with the first");
}

#[test]
fn first_party_manifests_deploy() {
    let corral = Corral::start_with_store(&[]);
    for (name, path) in [("generate", "/generate"), ("hello", "/hello")] {
        let file = plugin(name).with_extension("toml");
        let text = std::fs::read_to_string(file).expect("plugins/build.sh puts the manifest there");
        // The routes of the test server are taken.
        let text = text.replace(&format!("\"{path}\""), &format!("\"/deployed{path}\""));
        deploy_dir(&corral, &text, &[name]);
    }
    let request = json!({"prompt": "2+2=", "max_tokens": 5});
    let answer = corral.generate_at("/deployed/generate", &request);
    assert_eq!(answer["text"], "4");
    let answer = corral.post("/deployed/hello", "1+1=");
    assert!(answer.body.starts_with('2'), "{answer:?}");
}
