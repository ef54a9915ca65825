//! Slow clients are dropped within bounds, and others notice nothing.

use corral_tests::{Corral, TIMEOUT, raw_exchange};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn half_sent_heads_are_closed() {
    let corral = Corral::start_with(&[
        "--header-timeout",
        "3",
        "--max-connections-per-address",
        "1000",
    ]);
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..500)
        .map(|number| {
            let mut stream = TcpStream::connect(corral.public()).expect("accepted");
            let parts = [
                &b"GET /misbehave/ok HTTP/1.1\r\nHost: x\r\nX-A: "[..],
                b"PRI * H",
                b"",
                b"P",
            ];
            stream.write_all(parts[number % 4]).expect("sent");
            stream
        })
        .collect();
    corral.check_sums(20);
    for (number, stream) in slow.iter_mut().enumerate() {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        // A byte now and then does not help: the limit covers the whole head.
        let _ = stream.write_all(b"RI"[..1].as_ref());
        let mut answer = Vec::new();
        // The system reports a closed connection in more than one way.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains(" 200 "), "{number}: {answer}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(3));
    // Over a connection of its own: that of the sums is closed about now.
    let request = b"GET /misbehave/ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = raw_exchange(corral.public(), request, false, TIMEOUT);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    corral.wait_until("only one connection is left", |metrics| {
        metrics.get("corral_http_connections") <= 1.0
    });
    let ended = corral
        .metrics()
        .get("corral_http_terminations_total{reason=\"header-timeout\"}");
    assert!(ended >= 250.0, "{ended}");
    corral.wait_until_idle();
}

#[test]
fn stalled_body_gets_408() {
    let corral = Corral::start_with(&["--io-timeout", "3"]);
    for head in [
        "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"prompt\"",
        "POST /misbehave/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let begun = Instant::now();
        let answer = raw_exchange(corral.public(), head.as_bytes(), false, TIMEOUT);
        let answer = String::from_utf8_lossy(&answer);
        assert!(begun.elapsed() >= Duration::from_secs(3));
        // The echo has begun when the server notices the stall, so the response is cut off.
        if head.contains("generate") {
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(answer.contains("\"request-timeout\""), "{answer}");
        }
    }
    corral.check_sums(2);
    corral.wait_until_idle();
}

/// Bytes of a response that the server may hold, in the chunks of the plugin: 64 KiB, and the chunks at both ends.
const MAX_UNSENT: f64 = (256 << 10) as f64;

#[test]
fn client_that_reads_nothing_is_dropped() {
    const UNSENT: &str = "corral_http_unsent_bytes";
    let corral = Corral::start_with(&["--io-timeout", "3"]);
    let unread = corral.begin_post("/misbehave/flood", "");
    corral.wait_until("the plugin runs", |metrics| {
        metrics.get("corral_plugin_instances") == 1.0
    });
    corral.wait_until("the server holds a part of the response", |metrics| {
        metrics.get(UNSENT) > 0.0
    });
    corral.check_sums(5);
    let unsent = corral.metrics().get(UNSENT);
    assert!(unsent <= MAX_UNSENT, "{unsent} bytes");
    corral.wait_until("the client is dropped", |metrics| {
        metrics.get("corral_plugin_instances") == 0.0
    });
    let metrics = corral.wait_until_idle();
    let found = metrics.get("corral_http_terminations_total{reason=\"write-timeout\"}");
    assert_eq!(found, 1.0);
    drop(unread);
}

#[test]
fn connections_per_address_are_bounded() {
    let corral = Corral::start_with(&["--max-connections-per-address", "3"]);
    let address = corral.public();
    let connect = || TcpStream::connect(address).expect("accepted");
    let held: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
    corral.wait_until("all three are connected", |metrics| {
        metrics.get("corral_http_connections") == 3.0
    });
    let request = b"GET /misbehave/ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for _ in 0..5 {
        let mut one_more = connect();
        let _ = one_more.write_all(request);
        let mut answer = Vec::new();
        let _ = one_more.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        // A reset may overtake the answer.
        let refused = answer.is_empty() || answer.contains("too-many-connections");
        assert!(refused, "{answer}");
    }
    // Only public connections count, not those of the admin listener.
    let metrics = corral.metrics();
    let found = metrics.get("corral_http_terminations_total{reason=\"address-full\"}");
    assert_eq!(found, 5.0);
    drop(held);
    corral.wait_until("all are closed", |metrics| {
        metrics.get("corral_http_connections") == 0.0
    });
    let answer = corral.generate(&json!({"prompt": "1+1=", "max_tokens": 5}));
    assert_eq!(answer["text"], "2");
}
