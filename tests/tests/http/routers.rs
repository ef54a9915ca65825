//! What routers of several servers ask one of them, and what they tell it.

use corral_tests::{Corral, MANY_CELLS, Metrics, artifacts, wait_for, wait_until};
use serde_json::json;
use std::io::Write;

fn long_request() -> String {
    json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": 4000, "stream": true}).to_string()
}

#[test]
fn public_listener_has_metrics_on_request() {
    let closed = Corral::start();
    for path in ["/metrics", "/v1/loads"] {
        assert_eq!(closed.get(path).status, 404, "{path}");
    }
    let adapter = format!("plus-one={}", artifacts::adapter().display());
    let corral = Corral::start_with(&["--metrics-public", "--adapter", &adapter]);
    let metrics = || Metrics::read(&corral.get("/metrics").body);
    let idle = metrics();
    assert_eq!(idle.get("corral_ready"), 1.0);
    let of_model = |name: &str| format!("vllm:{name}{{model_name=\"tiny\"}}");
    assert_eq!(idle.get(&of_model("num_requests_running")), 0.0);
    let cells = idle.samples("vllm:cache_config_info");
    assert_eq!(cells.len(), 1, "{cells:?}");
    let adapters = "max_lora=\"1\",running_lora_adapters=\"plus-one\",waiting_lora_adapters=\"\"";
    let adapters = format!("vllm:lora_requests_info{{model_name=\"tiny\",{adapters}}}");
    assert!(idle.get(&adapters) > 1e9);
    let running = corral.endless("/generate");
    wait_until("a running request", || {
        metrics().get(&of_model("num_requests_running")) == 1.0
    });
    assert!(metrics().get(&of_model("kv_cache_usage_perc")) > 0.0);
    let loads = corral.get("/v1/loads?include=core").json();
    let load = &loads["loads"][0];
    assert_eq!(
        (&load["num_running_reqs"], &load["num_waiting_reqs"]),
        (&json!(1), &json!(0))
    );
    assert!(
        load["token_usage"].as_f64().expect("a number") > 0.0,
        "{loads}"
    );
    drop(running);
    // Names of deployments and tenants stay on the admin listener.
    let text = corral.get("/metrics").body;
    assert!(
        !text.contains("deployment=") && !text.contains("tenant="),
        "{text}"
    );
    corral
        .post("/metrics", "")
        .problem(405, "method-not-allowed");
}

#[test]
fn slots_show_requests_of_other_deployments() {
    let arguments = ["--max-running", "2", "--kv-cells", MANY_CELLS];
    let corral = Corral::start_with_routes(&[("/slots", "openai")], &arguments);
    let used = || {
        let slots = corral.get("/slots").ok_json();
        let slots = slots.as_array().expect("a list").iter();
        slots
            .map(|slot| slot["is_processing"] == true)
            .collect::<Vec<_>>()
    };
    let status = || corral.get("/slots?fail_on_no_slot=1").status;
    assert_eq!(used(), [false, false]);
    let first = corral.endless("/generate");
    wait_until("a used slot", || used() == [true, false]);
    assert_eq!(status(), 200);
    let second = corral.endless("/generate");
    wait_until("no free slot", || status() == 503);
    drop((first, second));
    wait_until("free slots", || used() == [false, false]);
}

/// The tenant of the only request of a server.
fn tenant(corral: &Corral) -> u64 {
    wait_for("the request", || {
        let status = corral.get_admin("/requests").json();
        let model = status["models"].as_array()?.first()?.clone();
        model["requests"].as_array()?.first()?["tenant"].as_u64()
    })
}

#[test]
fn only_trusted_proxies_choose_tenant() {
    let arguments = [
        "--trusted-proxy",
        "10.0.0.0/8",
        "--trusted-proxy",
        "127.0.0.0/8",
    ];
    let tenants = [&arguments[..2], &arguments[..]].map(|arguments| {
        let corral = Corral::start_with(arguments);
        let head = format!(
            "POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nx-llm-d-inference-fairness-id: \
             alice\r\nx-llm-d-slo-ttft-ms: 100\r\n\r\n{}",
            long_request().len(),
            long_request()
        );
        let mut connection = corral.connect_from("127.0.0.1");
        connection.write_all(head.as_bytes()).expect("sent");
        tenant(&corral)
    });
    let [untrusted, trusted] = tenants;
    assert!(untrusted < 1 << 30, "the deployment's own");
    assert!((1 << 30..1 << 31).contains(&trusted), "{trusted}");
}
