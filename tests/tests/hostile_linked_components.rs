//! Faulty linked components: a sampler fails its own generation, a template its own request. Others notice
//! nothing, and nothing is left over.

use corral_tests::linked_components::{GuestError, TEMPLATE, deploy, post_failing, start};
use corral_tests::{Corral, ENDLESS_TOKENS, EventStream};
use serde_json::{Value, json};
use std::net::TcpStream;

const SAMPLED: &str = "/roles/generate?sampler=any";
const CALLS: &str = "corral_sampling_plugin_calls_total";
const RUNNING: &str = "corral_engine_requests_running";
const CANCELLED: &str = "corral_engine_requests_canceled_total";

fn request(settings: &str) -> Value {
    json!({"prompt": "1+1=", "max_tokens": 20, "ignore_eos": true, "settings": settings})
}

/// A long generation whose sampler is slow for each token.
fn endless() -> Value {
    let mut request = request("slow:10");
    request["max_tokens"] = json!(ENDLESS_TOKENS);
    request
}

/// A fault and its effect: the call, the error case, one of the texts, and the number of tokens before it.
struct Fault(
    Value,
    &'static str,
    &'static str,
    &'static [&'static str],
    usize,
);

impl Fault {
    fn check(&self, failed: &GuestError) {
        let Fault(request, at, case, words, tokens) = self;
        let start: String = request.to_string().chars().take(200).collect();
        failed.check(at, case);
        let is_explained = words.iter().any(|words| failed.text.contains(words));
        assert!(is_explained, "{start}: {failed:?}");
        let expected = "wasm-function";
        assert!(!failed.text.contains(expected), "{start}: {failed:?}");
        assert_eq!(failed.tokens, *tokens, "{start}: {failed:?}");
    }
}

/// Faults while sampling.
fn sampling_faults() -> Vec<Fault> {
    const LATE: &[&str] = &["that a call may take"];
    // Allocating all memory may take longer than its time limit.
    const MEMORY: &[&str] = &["needs more memory", "that a call may take"];
    const OTHER: &[&str] = &["not among the 1 that it was shown"];
    let wrong = |settings: &str, words, tokens| {
        Fault(request(settings), "outcome", "failed", words, tokens)
    };
    let mut constrained = request("outside");
    constrained["regex"] = json!("[0-9]");
    // Their settings are valid, but no generation can begin.
    let begun = |settings: &str, words| {
        let mut request = request(settings);
        request["seed"] = json!(77);
        Fault(request, "outcome", "failed", words, 0)
    };
    vec![
        wrong("spin:1", LATE, 0),
        wrong("spin:4", LATE, 3),
        wrong("trap:1", &["crashed"], 0),
        wrong("trap:4", &["crashed"], 3),
        wrong("hog:2", MEMORY, 1),
        wrong("error:on-request", &["on-request"], 0),
        wrong("outside candidates=1", OTHER, 0),
        wrong("beyond candidates=1", OTHER, 0),
        wrong("nothing", &["there is no behavior 'nothing'"], 0),
        Fault(constrained, "outcome", "failed", &["that it was shown"], 0),
        begun("trap-seed:77", &["crashed"]),
        begun("spin-seed:77", LATE),
        begun("refuse-seed:77", &["refused the seed 77"]),
        begun("fickle", &["needs something else"]),
    ]
}

/// Faults at the start.
fn start_faults() -> Vec<Fault> {
    const LATE: &[&str] = &["that a call may take"];
    const MEMORY: &[&str] = &["needs more memory", "that a call may take"];
    let failed =
        |settings: &str, words| Fault(request(settings), "sample-with", "failed", words, 0);
    let invalid =
        |settings: &str, words| Fault(request(settings), "sample-with", "invalid", words, 0);
    let chain = |position: &str, at| {
        let mut request = request("greedy");
        request["chain"] = json!(position);
        Fault(request, at, "invalid", &[""], 0)
    };
    let mut long = request("");
    long["settings_bytes"] = json!(8 << 20);
    vec![
        failed("spin-start", LATE),
        failed("spin-needs", LATE),
        failed("trap-start", &["crashed"]),
        failed("trap-needs", &["crashed"]),
        failed("hog-start", MEMORY),
        failed("greedy candidates=0", &["needs 0 candidates"]),
        failed("greedy candidates=5000", &["needs 5000 candidates"]),
        failed("greedy history=70000", &["needs 70000 tokens"]),
        invalid("refuse:these-settings", &["these-settings"]),
        invalid(
            "greedy colour=1",
            &["'colour=1' is not a setting of this sampler"],
        ),
        Fault(long, "sample-with", "invalid", &["8388608 bytes"], 0),
        chain("before", "sample-with"),
        chain("after", "temperature"),
    ]
}

#[test]
fn each_sampler_fault_has_its_own_error() {
    let corral = start(&[]);
    let sampling = sampling_faults();
    let asked = corral.with_neighbors(|| {
        for wrong in sampling.iter().chain(&start_faults()) {
            wrong.check(&post_failing(&corral, SAMPLED, &wrong.0));
            // The next generation of the same deployment works.
            let body = json!({"prompt": "12+7=", "settings": "greedy"});
            let answer = corral.post_json(SAMPLED, &body);
            assert_eq!(answer["text"], "19");
        }
        let unknown = post_failing(
            &corral,
            "/roles/generate?sampler=nobody",
            &request("greedy"),
        );
        unknown.check("sample-with", "not-found");
        for name in ["nobody", "any", "other"] {
            assert!(unknown.text.contains(name), "{unknown:?}");
        }
    });
    assert!(asked >= 10, "only {asked} requests of neighbors");
    let metrics = corral.wait_until_idle();
    let failures = metrics.get("corral_sampling_plugin_failures_total");
    assert_eq!(failures, sampling.len() as f64);
    // The handlers did nothing wrong.
    for (code, count) in metrics.samples("corral_plugin_calls_failed_total") {
        assert_eq!(count, 0.0, "{code}");
    }
}

#[test]
fn many_hostile_samplers_leave_others_served() {
    let corral = start(&[]);
    let (sampling, starts) = (sampling_faults(), start_faults());
    let asked = corral.with_neighbors(|| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                for wrong in sampling.iter().chain(&starts) {
                    let corral = &corral;
                    scope.spawn(move || wrong.check(&post_failing(corral, SAMPLED, &wrong.0)));
                }
            }
            for _ in 0..8 {
                scope.spawn(|| {
                    let right = json!({"prompt": "12+7=", "settings": "record history=4"});
                    assert_eq!(corral.post_json(SAMPLED, &right)["text"], "19");
                });
            }
        });
    });
    assert!(asked >= 5, "only {asked} requests of neighbors");
    corral.wait_until_idle();
}

#[test]
fn hangup_during_sampling_leaves_nothing() {
    const GONE: usize = 4;
    let corral = start(&[]);
    let asked = corral.with_neighbors(|| {
        for _ in 0..3 {
            let before = corral.metrics();
            let body = endless().to_string();
            let calls = (0..GONE).map(|_| corral.begin_post(SAMPLED, &body));
            let calls: Vec<TcpStream> = calls.collect();
            corral.wait_until("all samplers run", |metrics| {
                metrics.growth(CALLS, &before) >= 5.0 * GONE as f64
                    && metrics.get("corral_sampling_plugin_instances") == GONE as f64
            });
            drop(calls);
            corral.wait_until("all samplers are gone", |metrics| {
                metrics.growth(CANCELLED, &before) >= GONE as f64
                    && metrics.get("corral_sampling_plugin_instances") == 0.0
            });
        }
    });
    assert!(asked > 0);
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(CANCELLED), 3.0 * GONE as f64);
}

#[test]
fn dropped_generation_ends_its_sampler() {
    let corral = start(&[]);
    let mut body = endless();
    body["settings"] = json!("slow:2");
    body["leave"] = json!(true);
    body["times"] = json!(5);
    let answer = corral.post_json(SAMPLED, &body);
    assert_eq!(answer["texts"].as_array().map(Vec::len), Some(5));
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(CANCELLED), 5.0);
}

/// The host or the plugin may report the deadline first; the host may cut the plugin off meanwhile.
fn is_deadline(mut answer: EventStream) -> bool {
    let body = answer.bytes(1 << 20).map(String::from_utf8);
    let says =
        |body: Result<String, _>| body.is_ok_and(|body| body.contains(r#""case":"deadline""#));
    match answer.status {
        504 => body.is_ok(),
        400 => body.map_or(true, says),
        _ => false,
    }
}

#[test]
fn expired_request_ends_its_sampler() {
    let corral = start(&[]);
    deploy(&corral, "hasty", TEMPLATE, "[limits]\ntime-seconds = 2.5\n");
    let path = "/hasty/generate?sampler=any";
    corral.with_neighbors(|| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let answer = corral.post_stream(path, endless().to_string());
                    let status = answer.status;
                    assert!(is_deadline(answer), "{status}");
                });
            }
        });
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(RUNNING), 0.0);
    assert!(metrics.get(CALLS) > 0.0);
}

#[test]
fn sampler_cpu_time_counts_for_its_request() {
    let corral = start(&[]);
    deploy(&corral, "frugal", TEMPLATE, "[limits]\ncpu-seconds = 0.2\n");
    let mut body = endless();
    body["times"] = json!(4);
    body["sleep"] = json!(true);
    let asked = corral.with_neighbors(|| {
        let answer = corral.post("/frugal/generate?sampler=any", body.to_string());
        // Not at its deadline, until which it would sleep.
        answer.problem(504, "cpu-time");
    });
    assert!(asked > 0);
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(RUNNING), 0.0);
    assert_eq!(metrics.get("corral_sampling_plugin_instances"), 0.0);
    assert!(metrics.get(CALLS) > 0.0);
}

fn chat(fault: &str) -> Value {
    let settings = format!("{{\"do\":\"{fault}\"}}");
    json!({"messages": [{"role": "user", "content": "12+7"}], "settings": settings})
}

#[test]
fn faulty_template_loses_only_its_request() {
    let corral = start(&[]);
    deploy(&corral, "brief", TEMPLATE, "[limits]\ncpu-seconds = 1\n");
    let asked = corral.with_neighbors(|| {
        for (fault, status, codes) in [
            ("trap", 500, &["trapped"][..]),
            ("spin", 504, &["cpu-time"]),
            ("hog", 500, &["memory"]),
            // More memory than one call may use, in the template's memory and in the handler's.
            ("giant", 500, &["memory", "trapped"]),
        ] {
            let answer = corral.post("/brief/chat", chat(fault).to_string());
            assert_eq!(answer.status, status, "{fault}: {answer:?}");
            let code = answer.json()["code"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            assert!(codes.contains(&code.as_str()), "{fault}: {answer:?}");
            let detail = answer.problem(status, &code);
            assert!(!detail.contains("wasm-function"), "{fault}: {detail}");
            check_chat(&corral);
        }
        let refused = post_failing(&corral, "/brief/chat", &chat("refuse"));
        refused.check("render", "other");
        assert_eq!(refused.text, "this chat is refused on request");
    });
    assert!(asked >= 5, "only {asked} requests of neighbors");
    corral.wait_until_idle();
}

/// The same template in another request and another deployment.
fn check_chat(corral: &Corral) {
    for path in ["/brief/chat", "/roles/chat"] {
        let mut right = chat("");
        right["settings"] = Value::Null;
        assert_eq!(corral.post_json(path, &right)["text"], "19");
    }
}
