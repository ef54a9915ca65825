//! HTTP/2 on the public listener: the responses of HTTP/1.1, and clients that misuse it.

use corral_tests::{
    Connection, Corral, HttpVersion, Sum, block_on, distinct_sums, raw_exchange, wait_until,
};
use serde_json::json;
use std::time::Duration;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn check_sum(client: &Connection, sum: Sum) {
    let request = json!({"prompt": sum.question(), "max_tokens": 20}).to_string();
    let answer = client.request("/generate", &[], &request).await;
    let answer = answer.expect("a response");
    assert_eq!(answer.ok_json()["text"], sum.answer(), "{sum:?}");
}

#[test]
fn hundred_streams_on_one_connection_are_answered() {
    let corral = Corral::start();
    block_on(async {
        let client = Connection::connect(corral.public(), HttpVersion::Http2, None);
        let client = client.await.expect("HTTP/2 without TLS");
        let asking: Vec<_> = distinct_sums(100)
            .into_iter()
            .map(|sum| {
                let client = client.clone();
                tokio::spawn(async move { check_sum(&client, sum).await })
            })
            .collect();
        for asked in asking {
            asked.await.expect("the right answer");
        }
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_http_connections_total"), 1.0);
    let found = metrics.get("corral_http_responses_total{status=\"200\"}");
    assert_eq!(found, 100.0);
}

#[test]
fn http1_and_http2_get_same_answer() {
    let corral = Corral::start();
    block_on(async {
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let client = Connection::connect(corral.public(), version, None).await;
            let client = client.expect("accepted");
            let echoed = client.request("/misbehave/echo", &[], "as it came").await;
            let echoed = echoed.expect("a response");
            assert_eq!((echoed.status, &*echoed.body), (200, "as it came"));
            assert!(echoed.header("x-request-id").is_some(), "{version:?}");
            let unknown = client.request("/nowhere", &[], "").await;
            let unknown = unknown.expect("a response");
            unknown.problem(404, "no-route");
            let large = "x".repeat(9 << 20);
            let refused = client.request("/misbehave/echo", &[], &large).await;
            refused
                .expect("a response")
                .problem(413, "request-too-large");
            let header = "x".repeat(40_000);
            let head = client.request("/misbehave/ok", &[("x", &header)], "").await;
            // Over HTTP/2 the stream may be reset instead.
            if let Ok(answer) = head {
                assert_eq!(answer.status, 431, "{version:?}: {answer:?}");
            }
        }
    });
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn unread_stream_is_reset_alone() {
    let corral = Corral::start_with(&["--io-timeout", "3"]);
    block_on(async {
        let client = Connection::connect(corral.public(), HttpVersion::Http2, None);
        let client = client.await.expect("accepted");
        let unread = client.send("/misbehave/flood", &[], "").await;
        let mut unread = unread.expect("begun");
        assert_eq!(unread.status(), 200);
        let instances = |corral: &Corral| corral.metrics().get("corral_plugin_instances");
        while instances(&corral) > 0.0 {
            for sum in distinct_sums(5) {
                check_sum(&client, sum).await;
            }
        }
        // Data in flight arrives first, then the reset.
        loop {
            match unread.chunk().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => break,
                None => panic!("the body was not cut off"),
            }
        }
        check_sum(&client, Sum { a: 1, b: 1 }).await;
    });
    let metrics = corral.wait_until_idle();
    let found = metrics.get("corral_http_terminations_total{reason=\"write-timeout\"}");
    assert_eq!(found, 1.0);
    assert_eq!(metrics.get("corral_http_connections_total"), 1.0);
}

#[test]
fn idle_connection_closes_busy_one_stays() {
    let corral = Corral::start_with(&["--header-timeout", "3"]);
    block_on(async {
        let connect = || Connection::connect(corral.public(), HttpVersion::Http2, None);
        let idle = connect().await.expect("accepted");
        check_sum(&idle, Sum { a: 1, b: 1 }).await;
        let busy = connect().await.expect("accepted");
        let mut drip = busy.send("/misbehave/drip", &[], "").await.expect("begun");
        let closed = |corral: &Corral| {
            let metrics = corral.metrics();
            metrics.get("corral_http_terminations_total{reason=\"idle\"}")
        };
        while closed(&corral) == 0.0 {
            drip.chunk().await.expect("not ended").expect("not cut off");
        }
        // The server answers what was sent before the client knew.
        while idle.request("/misbehave/ok", &[], "").await.is_ok() {}
        drip.chunk().await.expect("not ended").expect("not cut off");
    });
    corral.wait_until_idle();
}

#[test]
fn stopped_process_continues_its_streams() {
    let corral = Corral::start_with(&["--io-timeout", "3", "--header-timeout", "3"]);
    block_on(async {
        let client = Connection::connect(corral.public(), HttpVersion::Http2, None);
        let client = client.await.expect("accepted");
        let drip = client.send("/misbehave/drip", &[], "").await;
        let mut drip = drip.expect("begun");
        drip.chunk().await.expect("not ended").expect("not cut off");
        let sums = distinct_sums(8).into_iter().map(|sum| {
            let client = client.clone();
            tokio::spawn(async move { check_sum(&client, sum).await })
        });
        corral.signal("STOP");
        // The requests arrive while the process is stopped, for longer than both time limits.
        let sums = Vec::from_iter(sums);
        tokio::time::sleep(Duration::from_secs(5)).await;
        corral.signal("CONT");
        for sum in sums {
            sum.await.expect("the right answer");
        }
        for _ in 0..3 {
            drip.chunk().await.expect("not ended").expect("not cut off");
        }
        check_sum(&client, Sum { a: 1, b: 1 }).await;
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_http_connections_total"), 1.0);
}

#[test]
fn rapid_reset_loses_connection() {
    const IN_FLIGHT: &str = "corral_http_requests_in_flight";
    let corral = Corral::start();
    block_on(async {
        let client = Connection::connect(corral.public(), HttpVersion::Http2, None);
        let client = client.await.expect("accepted");
        // Requests that are reset before the server sees them are another fault.
        for resets in 0.. {
            assert!(resets < 1000, "the connection does not end");
            let client = client.clone();
            let request = tokio::spawn(async move {
                let sent = client.send("/misbehave/sleeper", &[], "").await;
                sent.is_ok()
            });
            wait_until("the request, or the end of the connection", || {
                let is_seen = corral.metrics().get(IN_FLIGHT) > 0.0;
                is_seen || request.is_finished()
            });
            if request.is_finished() {
                break;
            }
            request.abort();
            corral.wait_until("the reset", |metrics| metrics.get(IN_FLIGHT) == 0.0);
        }
    });
    let metrics = corral.wait_until_idle();
    let found = metrics.get("corral_http_terminations_total{reason=\"resets\"}");
    assert_eq!(found, 1.0);
    corral.check_alive();
}

#[test]
fn noise_after_preface_leaves_others_unharmed() {
    let corral = Corral::start();
    let frame = |length: u32, kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = length.to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [&head, payload].concat()
    };
    let settings = frame(0, 4, 0, 0, &[]);
    let noise = (0..50_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8);
    let noise: Vec<u8> = noise.collect();
    let pings = (0..10_000).flat_map(|_| frame(8, 6, 0, 0, &[7; 8]));
    let pings: Vec<u8> = pings.collect();
    let endless_head: Vec<u8> = std::iter::once(frame(1, 1, 0, 1, &[0x82]))
        .chain((0..5_000).map(|_| frame(1, 9, 0, 1, &[0x84])))
        .flatten()
        .collect();
    for sent in [
        noise.clone(),
        [&settings[..], &noise].concat(),
        // A frame of 16 MiB, a server-initiated stream, data without a head.
        frame(0x00ff_ffff, 0, 0, 1, &[0; 100]),
        [&settings[..], &frame(1, 1, 5, 2, &[0x82])].concat(),
        [&settings[..], &frame(1, 0, 1, 1, &[0])].concat(),
        [&settings[..], &pings].concat(),
        [&settings[..], &endless_head].concat(),
    ] {
        let sent = [PREFACE, &sent].concat();
        raw_exchange(corral.public(), &sent, true, Duration::from_millis(500));
        corral.check_alive();
    }
    corral.wait_until_idle();
}
