//! Shutdown: no new requests, running ones finish, then the process ends.

use corral_tests::{
    Connection, Corral, ENDLESS_TOKENS, HttpVersion, TIMEOUT, block_on, distinct_sums, wait_for,
    wait_until,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longer than any test waits, in seconds.
const NEVER: &str = "100000";

/// Some seconds' worth of tokens.
fn long_request() -> serde_json::Value {
    json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": 4000})
}

/// A request with an echoed body that lasts until the client ends it.
struct Held(TcpStream);

impl Held {
    /// Starts the request; its response has begun when this returns.
    fn begin(corral: &Corral) -> Self {
        let mut stream = TcpStream::connect(corral.public()).expect("connected");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        let request = b"POST /misbehave/echo HTTP/1.1\r\nHost: x\r\n\
            Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n";
        stream.write_all(request).expect("taken");
        let mut held = Held(stream);
        let begun = held.read_until("begin");
        assert!(begun.starts_with("HTTP/1.1 200 OK\r\n"), "{begun}");
        held
    }

    /// Ends the request and reads the rest of its response.
    fn end(mut self) {
        self.0.write_all(b"3\r\nend\r\n0\r\n\r\n").expect("taken");
        self.read_until("end\r\n0\r\n\r\n");
    }

    fn read_until(&mut self, last: &str) -> String {
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(last.as_bytes()) {
            let so_far = String::from_utf8_lossy(&read);
            self.0.read_exact(&mut byte).expect(&so_far);
            read.push(byte[0]);
        }
        String::from_utf8(read).expect("text")
    }
}

#[test]
fn running_requests_finish_after_sigterm() {
    let mut corral = Corral::start_with(&["--grace-period", NEVER, "--io-timeout", NEVER]);
    // While this request runs, the server can be observed.
    let held = Held::begin(&corral);
    let mut stream = corral.generate_stream(&long_request());
    stream.event().expect("a first event");
    corral.signal("TERM");
    // Seen on the admin listener, which closes last.
    let not_ready = wait_for("the server to stop", || {
        Some(corral.get_admin("/readyz")).filter(|answer| answer.status == 503)
    });
    let detail = not_ready.problem(503, "not-ready");
    assert!(detail.contains("shutting down"), "{detail}");
    assert_eq!(corral.get_admin("/healthz").status, 200);
    wait_for("the public listener to close", || {
        TcpStream::connect(corral.public()).err()
    });
    let (_, report) = stream.texts();
    assert_eq!(report["tokens"], 4000);
    assert_eq!(report["finish_reason"], "length");
    held.end();
    corral.wait_for_success();
    assert!(!corral.stderr().contains("cut off"), "{}", corral.stderr());
}

#[test]
fn idle_server_stops_at_once() {
    for signal in ["TERM", "INT"] {
        let mut corral = Corral::start_with(&["--grace-period", NEVER]);
        corral.check_alive();
        corral.signal(signal);
        corral.wait_for_success();
    }
}

#[test]
fn requests_past_grace_are_cut_off() {
    let mut corral = Corral::start_with(&["--grace-period", "1"]);
    let stream = corral.drip("/misbehave");
    let started = Instant::now();
    corral.signal("TERM");
    stream.check_cut_off();
    let least = Duration::from_secs(1);
    assert!(started.elapsed() >= least, "no grace period");
    corral.wait_for_success();
    assert!(corral.stderr().contains("cut off"), "{}", corral.stderr());
}

#[test]
fn second_signal_stops_at_once() {
    let mut corral = Corral::start_with(&["--grace-period", NEVER]);
    let _stream = corral.drip("/misbehave");
    corral.signal("TERM");
    corral.wait_for_stderr("a second signal");
    // The server handles the signal once it says so.
    corral.signal("TERM");
    assert_eq!(corral.wait().code(), Some(1), "{}", corral.stderr());
    assert!(corral.stderr().contains("cut off"), "{}", corral.stderr());
}

#[test]
fn open_connections_lose_no_request() {
    const CLIENTS: usize = 12;
    let mut corral = Corral::start_with(&["--grace-period", NEVER]);
    let address = corral.public().to_owned();
    let sent = block_on(async {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (address, http1) = (address.clone(), number % 3 > 0);
                tokio::spawn(async move {
                    let version = match http1 {
                        true => HttpVersion::Http1,
                        false => HttpVersion::Http2,
                    };
                    let client = Connection::connect(&address, version, None).await;
                    let client = client.expect("connected");
                    let (mut sent, mut answered) = (0, Instant::now());
                    for sum in distinct_sums(5000).into_iter().skip(number * 400) {
                        let request = json!({"prompt": sum.question(), "max_tokens": 20});
                        // One slow and one immediate response.
                        let (path, body, right) = match sent % 2 {
                            0 => ("/generate", request.to_string(), sum.answer()),
                            _ => ("/misbehave/ok", String::new(), "ok".to_owned()),
                        };
                        let answer = match client.request(path, &[], &body).await {
                            Ok(answer) => answer,
                            // With GOAWAY, the request was not processed. Over HTTP/1.1 the previous response announced the close, unless
                            // the connection was idle for so long that it was closed.
                            Err(error) => {
                                let idle = answered.elapsed() > Duration::from_millis(250);
                                assert!(!http1 || idle, "request {sent}: {error:?}");
                                break;
                            }
                        };
                        assert_eq!(answer.status, 200, "{answer:?}");
                        let text = match sent % 2 {
                            0 => answer.json()["text"].as_str().map(str::to_owned),
                            _ => Some(answer.body.clone()),
                        };
                        assert_eq!(text, Some(right), "{sum:?}");
                        (sent, answered) = (sent + 1, Instant::now());
                        if answer.header("connection") == Some("close") {
                            break;
                        }
                    }
                    sent
                })
            })
            .collect();
        corral.wait_until("all are at work", |metrics| {
            metrics.get("corral_engine_requests_finished_total") >= 5.0 * CLIENTS as f64
        });
        corral.signal("TERM");
        let mut sent = Vec::new();
        for client in clients {
            sent.push(client.await.expect("every answer is right"));
        }
        sent
    });
    corral.wait_for_success();
    // Some errors of clients are accepted above; the server knows what it has left unanswered.
    for text in ["cut off", "complete=false"] {
        assert!(!corral.stderr().contains(text), "{}", corral.stderr());
    }
    assert!(sent.iter().all(|sent| *sent > 0), "{sent:?}");
}

#[test]
fn event_stream_ends_cleanly_after_grace() {
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        let mut corral = Corral::start_with(&["--grace-period", "0.2"]);
        let address = corral.public().to_owned();
        let text = block_on(async {
            let client = Connection::connect(&address, version, None).await;
            let mut request = long_request();
            request["stream"] = json!(true);
            // Its deadline passes long before its end.
            request["max_tokens"] = json!(ENDLESS_TOKENS);
            let client = client.expect("connected");
            let answer = client.send("/generate", &[], &request.to_string()).await;
            let mut answer = answer.expect("begun");
            let mut text = Vec::new();
            while let Some(piece) = answer.chunk().await {
                if text.is_empty() {
                    corral.signal("TERM");
                }
                text.extend(piece.expect("not cut off"));
            }
            String::from_utf8(text).expect("text")
        });
        corral.wait_for_success();
        let last = text.trim_end().rsplit("\n\n").next().expect("an event");
        let problem = last.strip_prefix("event: error\ndata: ").expect(last);
        let problem: Value = serde_json::from_str(problem).expect("JSON");
        assert_eq!(problem["code"], "shutting-down");
        assert_eq!(problem["status"], 503);
        assert!(text.ends_with("\n\n"), "{text}");
    }
}

#[test]
fn drain_delay_accepts_requests_longer() {
    let mut corral = Corral::start_with(&["--drain-delay", NEVER, "--grace-period", NEVER]);
    corral.check_alive();
    corral.signal("TERM");
    wait_until("the server to be unready", || {
        corral.get("/readyz").status != 200
    });
    // Over existing connections and new ones.
    corral.check_alive();
    assert_eq!(corral.get("/healthz").status, 200);
    drop(TcpStream::connect(corral.public()).expect("connected"));
    corral.shut_down();
}
