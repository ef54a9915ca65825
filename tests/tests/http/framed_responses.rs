//! Text that the host collects or frames for the plugin, over the real server: it equals what the plugin would
//! read, causes no wakeups, and ends with its call.

use corral_tests::deployments::deploy_plugin;
use corral_tests::{Corral, ENDLESS_TOKENS, RELIABLE_SUMS, concurrently, distinct_sums};
use serde_json::json;

const ROUTES: [(&str, &str); 2] = [("/loops", "loops"), ("/v1", "openai")];

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&ROUTES, arguments)
}

fn ask(corral: &Corral, which: &str, prompt: &str) -> String {
    corral.post_ok(&format!("/loops/{which}"), prompt).body
}

/// The text in its frames: prefix, text and suffix.
fn unframed(bytes: &str, first: &str, last: &str, seam: &str) -> Option<String> {
    let inner = bytes.strip_prefix(first)?.strip_suffix(last)?;
    Some(inner.replace(seam, ""))
}

#[test]
fn framed_response_equals_generated_text() {
    let corral = start(&[]);
    concurrently(8, &distinct_sums(32), |sum| {
        let (question, text) = (sum.question(), sum.answer());
        let tokens = text.len() + 1;
        for operation in ["collect", "dropped", "leaked"] {
            assert_eq!(ask(&corral, operation, &question), text, "{operation}");
        }
        let framed = ask(&corral, "frame", &question);
        let unframed_text = unframed(&framed, "<[", &format!("]>{tokens}"), "][");
        assert_eq!(unframed_text.as_deref(), Some(&*text), "{framed}");
        for operation in ["body", "forgotten"] {
            let body = ask(&corral, operation, &question);
            let unframed_text = unframed(&body, "<[\"", "\"]", "\"][\"");
            let expected = Some(&*text);
            assert_eq!(unframed_text.as_deref(), expected, "{operation}: {body}");
        }
        // The plugin read one chunk before the frames began.
        let late = ask(&corral, "late", &question);
        let (read, framed) = late.split_once('<').expect("framed text");
        let framed = framed.replace("[\"", "").replace("\"]", "");
        assert_eq!(format!("{read}{framed}"), format!("{text}>{tokens}"));
    });
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_steps_failed_total"), 0.0);
}

#[test]
fn trap_aborts_framed_response() {
    let corral = start(&[]);
    for _ in 0..5 {
        corral.post_stream("/loops/broken", "1+1=").check_cut_off();
    }
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    let trapped = metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"trapped\"}");
    assert_eq!(trapped, 5.0);
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 5.0);
}

#[test]
fn abandoned_framed_response_cancels_generation() {
    let corral = start(&[]);
    for route in ["/generate", "/v1/completions"] {
        let request = json!({
            "prompt": "1+1=", "ignore_eos": true, "max_tokens": ENDLESS_TOKENS, "stream": true,
        });
        let mut stream = corral.post_stream(route, request.to_string());
        assert_eq!(stream.status, 200);
        assert!(stream.event().is_some());
    }
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 2.0);
}

#[test]
fn deadline_cuts_framed_response() {
    let corral = Corral::start_with_store(&[]);
    let more = json!({"limits": {"time-seconds": 3}});
    deploy_plugin(&corral, "held", "loops", more);
    // All text arrives early, except its end.
    let stream = corral.post_stream("/held/held", RELIABLE_SUMS[0].question());
    stream.check_cut_off();
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    let late = metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"deadline\"}");
    assert_eq!(late, 1.0);
}
