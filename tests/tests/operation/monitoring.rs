//! The metrics that people chart: times and tokens by deployment, and the process.

use corral_tests::{Corral, artifacts, concurrently, distinct_sums};
use serde_json::json;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;

const LABELS: &str = "deployment=\"/generate\",model=\"tiny\"";

#[test]
fn histograms_count_each_request_and_token() {
    let corral = Corral::start_with_routes(&[("/other", "generate")], &[]);
    let before = corral.wait_until_idle();
    let sums = distinct_sums(24);
    let expected = Mutex::new([0.0; 3]);
    concurrently(4, &sums, |sum| {
        let request = json!({"prompt": sum.question_in(64), "max_tokens": 20});
        let answer = corral.generate(&request);
        let mut expected = expected.lock().expect("no panic while held");
        for (sum, name) in expected
            .iter_mut()
            .zip(["prompt_tokens", "cached_tokens", "tokens"])
        {
            *sum += answer[name].as_f64().expect(name);
        }
    });
    corral.generate_at("/other", &json!({"prompt": "1+1=", "max_tokens": 20}));
    assert_eq!(corral.post("/generate", "{").status, 400);
    let metrics = corral.wait_until_idle();
    let of = |family: &str, labels: &str| {
        let name = format!("corral_deployment_{family}{{{labels}}}");
        metrics.get_or_zero(&name) - before.get_or_zero(&name)
    };
    let [prompt, cached, generated] = expected.into_inner().expect("no panic while held");
    assert_eq!(of("prompt_tokens_total", LABELS), prompt);
    assert_eq!(of("cached_tokens_total", LABELS), cached);
    assert_eq!(of("generated_tokens_total", LABELS), generated);
    for family in [
        "queue_time_seconds",
        "time_to_first_token_seconds",
        "generation_duration_seconds",
    ] {
        assert_eq!(of(&format!("{family}_count"), LABELS), 24.0, "{family}");
    }
    // No draft and no grammar gives two tokens in one step.
    let gaps = of("inter_token_latency_seconds_count", LABELS);
    assert_eq!(gaps, generated - 24.0);
    // The engine's own histograms are the sums over deployments.
    let first = "time_to_first_token_seconds_count";
    let engine = metrics.growth(&format!("corral_engine_{first}"), &before);
    assert_eq!(engine, 25.0);
    let sum = |family: &str| of(&format!("{family}_sum"), LABELS);
    let whole = sum("generation_duration_seconds");
    let start = sum("time_to_first_token_seconds");
    assert!(whole >= start, "{whole} {start}");
    assert!(start > sum("queue_time_seconds"), "{whole} {start}");
    let http = "deployment=\"/generate\"";
    assert_eq!(of("request_duration_seconds_count", http), 25.0);
    let found = of("responses_total", &format!("{http},status=\"200\""));
    assert_eq!(found, 24.0);
    let found = of("responses_total", &format!("{http},status=\"400\""));
    assert_eq!(found, 1.0);
    let other = "deployment=\"/other\",model=\"tiny\"";
    assert_eq!(of("generation_duration_seconds_count", other), 1.0);
}

#[test]
fn canceled_generation_counts_its_tokens() {
    let corral = Corral::start();
    drop(corral.endless("/generate"));
    let metrics = corral.wait_until_idle();
    let of = |family: &str| metrics.get(&format!("corral_deployment_{family}"));
    assert!(of("prompt_tokens_total") >= 4.0);
    assert!(of("generated_tokens_total") >= 1.0);
    assert_eq!(of("time_to_first_token_seconds_count"), 1.0);
    // It has no last token.
    assert_eq!(of("generation_duration_seconds_count"), 0.0);
}

#[test]
fn promtool_accepts_all_metrics() {
    let corral = Corral::start_with_store(&["--quota", "/hello=requests-per-minute:100"]);
    corral.check_alive();
    corral.get("/hello");
    corral.post("/misbehave/trap", "");
    let metrics = corral.get_admin("/metrics").body;
    let mut promtool = Command::new(artifacts::promtool())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    let mut stdin = promtool.stdin.take().expect("piped");
    stdin.write_all(metrics.as_bytes()).expect("promtool reads");
    drop(stdin);
    let ended = promtool.wait_with_output().expect("promtool ends");
    let text = [ended.stdout, ended.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!((ended.status.code(), &*text), (Some(0), ""));
}
