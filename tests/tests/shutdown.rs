//! The way down: nothing new, what runs ends, and then the process.

use corral_tests::Corral;
use serde_json::json;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Some seconds' worth of tokens.
fn long_request() -> serde_json::Value {
    json!({"prompt": "1+1=", "ignore_end": true, "max_tokens": 4000})
}

#[test]
fn a_running_stream_ends_by_itself_after_sigterm() {
    let mut corral = Corral::start_with(&["--grace", "50"]);
    let mut stream = corral.generate_stream(&long_request());
    stream.event().expect("a first event");
    corral.signal("TERM");
    // Seen on the admin listener, which stays up longest.
    let started = Instant::now();
    loop {
        let ready = corral.get_admin("/readyz");
        if ready.status == 503 {
            let detail = ready.problem(503, "not-ready");
            assert!(detail.contains("shutting down"), "{detail}");
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "still ready");
    }
    assert_eq!(corral.get_admin("/healthz").status, 200);
    let started = Instant::now();
    while TcpStream::connect(corral.public()).is_ok() {
        assert!(started.elapsed() < Duration::from_secs(5), "still accepts");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (_, report) = stream.texts();
    assert_eq!(report["tokens"], 4000);
    assert_eq!(report["finish_reason"], "length");
    let status = corral.wait(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{}", corral.stderr());
}

#[test]
fn an_idle_server_ends_at_once() {
    for signal in ["TERM", "INT"] {
        let mut corral = Corral::start();
        corral.check_alive();
        let started = Instant::now();
        corral.signal(signal);
        let status = corral.wait(Duration::from_secs(10));
        assert_eq!(status.code(), Some(0), "{signal}: {}", corral.stderr());
        let took = started.elapsed();
        assert!(took < Duration::from_secs(3), "{signal}: {took:?}");
    }
}

#[test]
fn what_is_still_running_after_the_grace_is_cut_off() {
    let mut corral = Corral::start_with(&["--grace", "1"]);
    let mut stream = corral.post_stream("/misbehave/drip", "");
    assert_eq!(stream.line().expect("it drips").as_deref(), Some("drip"));
    let started = Instant::now();
    corral.signal("TERM");
    let ended = loop {
        match stream.line() {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert!(ended.is_err(), "a cut answer is not a whole one");
    let took = started.elapsed();
    assert!((900..5000).contains(&took.as_millis()), "{took:?}");
    let status = corral.wait(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{}", corral.stderr());
    assert!(corral.stderr().contains("cut off"), "{}", corral.stderr());
}

#[test]
fn a_second_signal_hurries() {
    let mut corral = Corral::start_with(&["--grace", "50"]);
    let mut stream = corral.post_stream("/misbehave/drip", "");
    assert_eq!(stream.line().expect("it drips").as_deref(), Some("drip"));
    corral.signal("TERM");
    let started = Instant::now();
    while !corral.stderr().contains("a second signal") {
        assert!(started.elapsed() < Duration::from_secs(5), "no note");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    corral.signal("TERM");
    let status = corral.wait(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{}", corral.stderr());
}
