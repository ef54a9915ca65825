//! The load client against a server that answers as each test says, over loopback.

use super::LoadArgs;
use super::driver::{LoadMode, RoundResults, open_loop, run_round};
use super::endpoint::Endpoint;
use super::summary::Summary;
use super::workload::Workload;
use crate::bench::connection::Connection;
use crate::bench::url::Url;
use clap::Parser;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// Requests that the server received.
#[derive(Default)]
struct Received {
    connections: AtomicU64,
    requests: AtomicU64,
    /// The body of the last request.
    body: std::sync::Mutex<Value>,
}

/// Starts a server that answers every request with these bytes, each after a permit of `gate`.
async fn serve(response: String, gate: Option<Arc<Semaphore>>) -> (Url, Arc<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let received = Arc::<Received>::default();
    let recorder = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            recorder.connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(connection(
                stream,
                response.clone(),
                gate.clone(),
                Arc::clone(&recorder),
            ));
        }
    });
    (url(address), received)
}

fn url(address: SocketAddr) -> Url {
    format!("http://{address}").parse().expect("a good URL")
}

/// Answers requests until a response ends with the connection.
async fn connection(
    mut stream: TcpStream,
    response: String,
    gate: Option<Arc<Semaphore>>,
    received: Arc<Received>,
) {
    while let Some(body) = request(&mut stream).await {
        received.requests.fetch_add(1, Ordering::Relaxed);
        *received.body.lock().expect("no panic") = body;
        if let Some(gate) = &gate {
            gate.acquire().await.expect("open").forget();
        }
        let sent = stream.write_all(response.as_bytes()).await;
        if sent.is_err() || response.contains("close") {
            return;
        }
    }
}

/// Reads the body of the next request.
async fn request(stream: &mut TcpStream) -> Option<Value> {
    let mut read = Vec::new();
    loop {
        if let Some(head) = read.windows(4).position(|end| end == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
            let length = text.split("content-length: ").nth(1)?.lines().next()?;
            let whole = head + 4 + length.parse::<usize>().ok()?;
            if read.len() >= whole {
                return serde_json::from_slice(&read[head + 4..whole]).ok();
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

/// A chunked stream of these pieces over a kept connection.
fn chunks(pieces: &[&str]) -> String {
    let mut response = String::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    for piece in pieces {
        response += &format!("{:x}\r\n{piece}\r\n", piece.len());
    }
    response + "0\r\n\r\n"
}

/// A response with this status and body.
fn plain(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The endpoint of a command line with `options`.
fn endpoint(url: &Url, options: &str) -> Arc<Endpoint> {
    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        load: LoadArgs,
    }
    let line = format!("load {url} --output-tokens 4 {options}");
    let line = CommandLine::try_parse_from(line.split_whitespace());
    let load = line.expect("a valid command line").load;
    let workload = Arc::new(Workload::new(&load).expect("no file"));
    let key = load.api_keys.first().map(String::as_str);
    let model = load.models.first().map(String::as_str);
    Arc::new(Endpoint::new(url, &workload, model, key, load.timeout).expect("a valid key"))
}

/// The report of a round of the closed loop.
async fn closed(endpoint: &Arc<Endpoint>, clients: u64, numbers: Range<u64>) -> Value {
    let mode = LoadMode::Closed { clients };
    report(
        run_round(endpoint, mode, numbers, 1)
            .await
            .expect("no crash"),
    )
}

fn report(round: RoundResults) -> Value {
    let mut tally = Summary::default();
    tally.add(round);
    tally.report("", None)
}

#[tokio::test]
async fn streams_are_counted_over_kept_connections() {
    let (begin, rest) = TOKEN.split_at(17);
    let response = chunks(&[TOKEN, begin, rest, TOKEN, USAGE, DONE]);
    let (url, received) = serve(response, None).await;
    let report = closed(&endpoint(&url, "--model m"), 2, 0..10).await;
    assert_eq!(
        (&report["done"], &report["failed"]),
        (&json!(10), &json!(0))
    );
    assert_eq!(report["counted_by"], "usage");
    assert_eq!(report["generated_tokens"], 40);
    assert_eq!(report["prompt_tokens"], 90);
    assert_eq!(report["events"], 30);
    assert!(report["first_token_s"]["p50"].is_number());
    assert!(report["gap_s"]["p99"].is_number());
    assert_eq!(received.requests.load(Ordering::Relaxed), 10);
    assert!(received.connections.load(Ordering::Relaxed) <= 2);
    let body = received.body.lock().expect("no panic").clone();
    assert_eq!(
        (&body["model"], &body["stream"]),
        (&json!("m"), &json!(true))
    );
}

#[tokio::test]
async fn events_count_without_usage() {
    let (url, _) = serve(chunks(&[TOKEN, TOKEN, DONE]), None).await;
    let report = closed(&endpoint(&url, ""), 1, 0..3).await;
    assert_eq!(report["counted_by"], "events");
    assert_eq!(report["generated_tokens"], 6);
}

#[tokio::test]
async fn whole_response_has_no_first_token() {
    let body = r#"{"choices":[{"text":"aaaa"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;
    let (url, _) = serve(plain("200 OK", body), None).await;
    let report = closed(&endpoint(&url, "--no-stream"), 2, 0..4).await;
    assert_eq!(
        (&report["done"], &report["generated_tokens"]),
        (&json!(4), &json!(16))
    );
    assert_eq!(report["first_token_s"], Value::Null);
    assert!(report["whole_s"]["max"].is_number());
}

#[tokio::test]
async fn failed_responses_are_counted_by_kind() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let broken = r#"data: {"error":{"message":"no room"}}"#;
    for (response, kind) in [
        (
            plain("500 Oh", r#"{"error":{"message":"no"}}"#),
            "status_500",
        ),
        (plain("200 OK", r#"{"choices":[]}"#), "invalid"),
        (chunks(&[TOKEN]), "cut"),
        (format!("{head}connection: close\r\n\r\n{TOKEN}"), "cut"),
        (
            format!("{head}content-length: 5000\r\nconnection: close\r\n\r\n{TOKEN}"),
            "cut",
        ),
        (chunks(&[TOKEN, broken, "\n\n", DONE]), "error"),
        ("close\r\n\r\n".to_owned(), "lost"),
    ] {
        let (url, received) = serve(response.clone(), None).await;
        let report = closed(&endpoint(&url, ""), 1, 0..3).await;
        assert_eq!(report["failures"], json!({kind: 3}), "{response}");
        assert_eq!(report["done"], 0, "{response}");
        assert_eq!(received.requests.load(Ordering::Relaxed), 3, "{response}");
    }
}

#[tokio::test]
async fn refused_connections_fail_at_once() {
    // A bound port without a listener.
    let held = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    held.bind(any).expect("loopback");
    let gone = url(held.local_addr().expect("bound"));
    let endpoint = endpoint(&gone, "");
    let report = closed(&endpoint, 2, 0..4).await;
    assert_eq!(report["failures"], json!({"connect": 4}));
    let error = endpoint.probe().await.expect_err("no server");
    let message = error.message(false);
    assert!(
        message.contains("nothing answers at http://127.0.0.1:"),
        "{message}"
    );
}

#[tokio::test]
async fn missing_response_times_out() {
    let never = Arc::new(Semaphore::new(0));
    let (url, _) = serve(chunks(&[DONE]), Some(never)).await;
    let report = closed(&endpoint(&url, "--timeout 0.05"), 1, 0..2).await;
    assert_eq!(report["failures"], json!({"timeout": 2}));
}

#[tokio::test]
async fn probe_reports_unusable_endpoints() {
    let refusal = r#"{"error":{"message":"none of yours"}}"#;
    for (response, expected) in [
        (plain("401 No", refusal), "give a key with --api-key KEY"),
        (plain("404 No", refusal), "there is no /v1/completions at"),
        (plain("400 No", refusal), "answered with 400: none of yours"),
        (
            plain("200 OK", refusal),
            "is not an endpoint of OpenAI's API",
        ),
    ] {
        let (url, _) = serve(response, None).await;
        let error = endpoint(&url, "").probe().await.expect_err(expected);
        let message = error.message(false);
        assert!(message.contains(expected), "{message}");
    }
    let (url, _) = serve(chunks(&[TOKEN, DONE]), None).await;
    assert!(endpoint(&url, "").probe().await.is_ok());
}

/// The server closes a kept connection when the next request arrives.
#[tokio::test]
async fn request_on_closed_connection_is_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = url(listener.local_addr().expect("bound"));
    let server = tokio::spawn(async move {
        let response = chunks(&[TOKEN, DONE]);
        let (mut first, _) = listener.accept().await.expect("a client");
        request(&mut first).await.expect("a request");
        first
            .write_all(response.as_bytes())
            .await
            .expect("it reads");
        request(&mut first).await.expect("the next one");
        drop(first);
        let (mut second, _) = listener.accept().await.expect("a new connection");
        request(&mut second).await.expect("the same again");
        second
            .write_all(response.as_bytes())
            .await
            .expect("it reads");
    });
    let endpoint = endpoint(&url, "");
    let mut connection = Connection::new(&url);
    for number in 0..2 {
        let result = endpoint.ask(&mut connection, number, None).await;
        result.response.expect("a complete response");
    }
    server.await.expect("all came");
}

/// All ten requests arrive at once. The server answers none before the last has arrived.
#[tokio::test]
async fn open_loop_bounds_requests_in_flight() {
    let gate = Arc::new(Semaphore::new(0));
    let (url, received) = serve(chunks(&[TOKEN, DONE]), Some(Arc::clone(&gate))).await;
    let mut numbers = 0..10;
    let arrivals = std::iter::from_fn(move || match numbers.next() {
        Some(number) => Some((number, Duration::ZERO)),
        None => {
            gate.add_permits(10);
            None
        }
    });
    let round = open_loop(&endpoint(&url, ""), 3, arrivals)
        .await
        .expect("no crash");
    let report = report(round);
    assert_eq!(report["refused_by_client"], 7);
    assert_eq!((&report["done"], &report["failed"]), (&json!(3), &json!(0)));
    assert_eq!(received.requests.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn open_loop_counts_from_intended_time() {
    let (url, received) = serve(chunks(&[TOKEN, DONE]), None).await;
    let endpoint = endpoint(&url, "");
    let long_ago = std::time::Instant::now().checked_sub(Duration::from_millis(1));
    let mut connection = Connection::new(&url);
    let result = endpoint.ask(&mut connection, 0, long_ago).await;
    let times = result.response.expect("a complete response");
    assert!(times.first_token.expect("a token") >= 0.001);
    assert!(times.total >= times.first_token.expect("a token"));
    assert_eq!(received.requests.load(Ordering::Relaxed), 1);
}
