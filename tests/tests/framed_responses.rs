//! Text that the host collects or frames for the plugin, over the real server: it equals what the plugin would
//! read, causes no wakeups, and ends with its call.

use corral_tests::deployments::deploy_dir;
use corral_tests::{
    Corral, ENDLESS_TOKENS, EventStream, RELIABLE_SUMS, distinct_sums, scratch_dir,
};
use serde_json::json;

const ROUTES: [(&str, &str); 2] = [("/loops", "loops"), ("/v1", "openai")];

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&ROUTES, arguments)
}

fn ask(corral: &Corral, which: &str, prompt: &str) -> String {
    let answer = corral.post(&format!("/loops/{which}"), prompt);
    assert_eq!(answer.status, 200, "{which} {prompt:?}: {answer:?}");
    answer.body
}

/// Reads to the end, or to where the body was cut off.
fn read_all(stream: &mut EventStream) -> std::io::Result<()> {
    while !stream.bytes(1 << 16)?.is_empty() {}
    Ok(())
}

/// The text in its frames: prefix, text and suffix.
fn unframed<'a>(bytes: &'a str, first: &str, last: &str, seam: &str) -> Option<String> {
    let inner: &'a str = bytes.strip_prefix(first)?.strip_suffix(last)?;
    Some(inner.replace(seam, ""))
}

#[test]
fn framed_response_equals_generated_text() {
    let corral = start(&[]);
    let sums = distinct_sums(32);
    std::thread::scope(|scope| {
        for part in sums.chunks(4) {
            let corral = &corral;
            scope.spawn(move || {
                for sum in part {
                    let (question, text) = (sum.question(), sum.answer());
                    let tokens = text.len() + 1;
                    assert_eq!(ask(corral, "collect", &question), text);
                    assert_eq!(ask(corral, "dropped", &question), text);
                    assert_eq!(ask(corral, "leaked", &question), text);
                    let framed = ask(corral, "frame", &question);
                    let found = unframed(&framed, "<[", &format!("]>{tokens}"), "][");
                    assert_eq!(found.as_deref(), Some(&*text), "{framed}");
                    for way in ["body", "forgotten"] {
                        let body = ask(corral, way, &question);
                        let found = unframed(&body, "<[\"", "\"]", "\"][\"");
                        assert_eq!(found.as_deref(), Some(&*text), "{way}: {body}");
                    }
                    // The plugin read one chunk before the frames began.
                    let late = ask(corral, "late", &question);
                    let (read, framed) = late.split_once('<').expect("it is framed");
                    let framed = framed.replace("[\"", "").replace("\"]", "");
                    assert_eq!(format!("{read}{framed}"), format!("{text}>{tokens}"));
                }
            });
        }
    });
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_steps_failed_total"), 0.0);
}

#[test]
fn trap_aborts_framed_response() {
    let corral = start(&[]);
    for _ in 0..5 {
        let mut stream = corral.post_stream("/loops/broken", "1+1=");
        assert_eq!(stream.status, 200);
        let read = read_all(&mut stream);
        assert!(read.is_err(), "nobody can tell it from a whole answer");
    }
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    let trapped = metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"trapped\"}");
    assert_eq!(trapped, 5.0);
    assert_eq!(metrics.get("corral_engine_requests_cancelled_total"), 5.0);
}

#[test]
fn abandoned_framed_response_cancels_generation() {
    let corral = start(&[]);
    let request =
        json!({"prompt": "1+1=", "ignore_end": true, "max_tokens": ENDLESS_TOKENS, "stream": true});
    for (route, members) in [
        ("/generate", json!({})),
        ("/v1/completions", json!({"ignore_eos": true})),
    ] {
        let mut request = request.clone();
        if let Some(members) = members.as_object().filter(|members| !members.is_empty()) {
            let own = request.as_object_mut().expect("it is an object");
            own.remove("ignore_end");
            own.extend(members.clone());
        }
        let mut stream = corral.post_stream(route, request.to_string());
        assert_eq!(stream.status, 200);
        assert!(stream.event().is_some());
        drop(stream);
    }
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_cancelled_total"), 2.0);
}

#[test]
fn deadline_cuts_framed_response() {
    let dir = scratch_dir();
    let corral = start(&["--store", dir.to_str().expect("ours")]);
    let manifest = "name = 'held'\ncomponent = 'loops.wasm'\nroutes = ['/held']\n\
                    [limits]\ntime-seconds = 1\n";
    let ended = deploy_dir(&corral, manifest, &["loops"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // All text arrives early, except its end.
    let mut stream = corral.post_stream("/held/held", RELIABLE_SUMS[0].question());
    assert_eq!(stream.status, 200);
    let read = read_all(&mut stream);
    assert!(read.is_err(), "nobody can tell it from a whole answer");
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    let late = metrics.get_or_zero("corral_plugin_calls_failed_total{code=\"deadline\"}");
    assert_eq!(late, 1.0);
}
