//! The client beside a server that says what the test wants, over loopback.

use super::drive::{Pace, Round, open, round};
use super::tally::Tally;
use super::target::Target;
use super::work::Work;
use crate::arguments::{Bench, Command, CommandLine, Url};
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

/// What the server has seen.
#[derive(Default)]
struct Seen {
    connections: AtomicU64,
    requests: AtomicU64,
    /// Of the last request.
    body: std::sync::Mutex<Value>,
}

/// A server that answers every request with these bytes, each time that `may` lets it.
async fn serve(answer: String, may: Option<Arc<Semaphore>>) -> (Url, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let seen = Arc::<Seen>::default();
    let sees = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            sees.connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(connection(
                stream,
                answer.clone(),
                may.clone(),
                Arc::clone(&sees),
            ));
        }
    });
    (url(address), seen)
}

fn url(address: SocketAddr) -> Url {
    format!("http://{address}").parse().expect("a good URL")
}

/// Answers one request after the other; an answer that does not say where it ends is the last.
async fn connection(
    mut stream: TcpStream,
    answer: String,
    may: Option<Arc<Semaphore>>,
    seen: Arc<Seen>,
) {
    while let Some(body) = request(&mut stream).await {
        seen.requests.fetch_add(1, Ordering::Relaxed);
        *seen.body.lock().expect("no panic") = body;
        if let Some(may) = &may {
            may.acquire().await.expect("open").forget();
        }
        let sent = stream.write_all(answer.as_bytes()).await;
        if sent.is_err() || answer.contains("close") {
            return;
        }
    }
}

/// The body of the next request.
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

/// A stream of these pieces, as chunks; the connection stays.
fn chunks(pieces: &[&str]) -> String {
    let mut answer = String::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    for piece in pieces {
        answer += &format!("{:x}\r\n{piece}\r\n", piece.len());
    }
    answer + "0\r\n\r\n"
}

/// An answer of this status and body.
fn plain(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The target that the command line names, with more `options`.
fn target(url: &Url, options: &str) -> Arc<Target> {
    let line = format!("corral bench load {url} --generate 4 {options}");
    let line = CommandLine::try_parse_from(line.split_whitespace()).expect("a good line");
    let Command::Bench(Bench::Load(load)) = line.command else {
        panic!("not bench load");
    };
    let work = Arc::new(Work::new(&load).expect("no file"));
    let key = load.keys.first().map(String::as_str);
    let model = load.models.first().map(String::as_str);
    Arc::new(Target::new(url, &work, model, key, load.timeout).expect("a good key"))
}

/// What a round of the closed loop comes to.
async fn closed(target: &Arc<Target>, clients: u64, numbers: Range<u64>) -> Value {
    let pace = Pace::Closed { clients };
    report(round(target, pace, numbers, 1).await.expect("no crash"))
}

fn report(round: Round) -> Value {
    let mut tally = Tally::default();
    tally.add(round);
    tally.report("", None)
}

#[tokio::test]
async fn streams_are_counted_and_connections_are_kept() {
    let (begin, rest) = TOKEN.split_at(17);
    let answer = chunks(&[TOKEN, begin, rest, TOKEN, USAGE, DONE]);
    let (url, seen) = serve(answer, None).await;
    let report = closed(&target(&url, "--model m"), 2, 0..10).await;
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
    assert_eq!(seen.requests.load(Ordering::Relaxed), 10);
    assert!(seen.connections.load(Ordering::Relaxed) <= 2);
    let body = seen.body.lock().expect("no panic").clone();
    assert_eq!(
        (&body["model"], &body["stream"]),
        (&json!("m"), &json!(true))
    );
}

#[tokio::test]
async fn without_usage_events_are_counted() {
    let (url, _) = serve(chunks(&[TOKEN, TOKEN, DONE]), None).await;
    let report = closed(&target(&url, ""), 1, 0..3).await;
    assert_eq!(report["counted_by"], "events");
    assert_eq!(report["generated_tokens"], 6);
}

#[tokio::test]
async fn an_answer_at_once_has_no_first_token() {
    let body = r#"{"choices":[{"text":"aaaa"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;
    let (url, _) = serve(plain("200 OK", body), None).await;
    let report = closed(&target(&url, "--no-stream"), 2, 0..4).await;
    assert_eq!(
        (&report["done"], &report["generated_tokens"]),
        (&json!(4), &json!(16))
    );
    assert_eq!(report["first_token_s"], Value::Null);
    assert!(report["whole_s"]["max"].is_number());
}

#[tokio::test]
async fn answers_that_fail_are_counted_by_how_they_did() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let broken = r#"data: {"error":{"message":"no room"}}"#;
    for (answer, kind) in [
        (
            plain("500 Oh", r#"{"error":{"message":"no"}}"#),
            "status_500",
        ),
        (plain("200 OK", r#"{"choices":[]}"#), "odd"),
        (chunks(&[TOKEN]), "cut"),
        (format!("{head}connection: close\r\n\r\n{TOKEN}"), "cut"),
        (
            format!("{head}content-length: 5000\r\nconnection: close\r\n\r\n{TOKEN}"),
            "cut",
        ),
        (chunks(&[TOKEN, broken, "\n\n", DONE]), "error"),
        ("close\r\n\r\n".to_owned(), "lost"),
    ] {
        let (url, seen) = serve(answer.clone(), None).await;
        let report = closed(&target(&url, ""), 1, 0..3).await;
        assert_eq!(report["failures"], json!({kind: 3}), "{answer}");
        assert_eq!(report["done"], 0, "{answer}");
        assert_eq!(seen.requests.load(Ordering::Relaxed), 3, "{answer}");
    }
}

#[tokio::test]
async fn who_is_not_there_is_not_waited_for() {
    // A port that nobody else gets, and where nobody listens.
    let held = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    held.bind(any).expect("loopback");
    let gone = url(held.local_addr().expect("bound"));
    let target = target(&gone, "");
    let report = closed(&target, 2, 0..4).await;
    assert_eq!(report["failures"], json!({"connect": 4}));
    let complaint = target.look().await.expect_err("nobody there");
    let told = complaint.text(false);
    assert!(
        told.contains("nothing answers at http://127.0.0.1:"),
        "{told}"
    );
}

#[tokio::test]
async fn an_answer_that_never_comes_is_given_up() {
    let never = Arc::new(Semaphore::new(0));
    let (url, _) = serve(chunks(&[DONE]), Some(never)).await;
    let report = closed(&target(&url, "--timeout 0.05"), 1, 0..2).await;
    assert_eq!(report["failures"], json!({"timeout": 2}));
}

#[tokio::test]
async fn what_can_not_be_measured_is_said() {
    let refusal = r#"{"error":{"message":"none of yours"}}"#;
    for (answer, expected) in [
        (plain("401 No", refusal), "name a key with --key KEY"),
        (plain("404 No", refusal), "there is no /v1/completions at"),
        (plain("400 No", refusal), "answered with 400: none of yours"),
        (plain("200 OK", refusal), "is no endpoint of OpenAI's API"),
    ] {
        let (url, _) = serve(answer, None).await;
        let complaint = target(&url, "").look().await.expect_err(expected);
        let told = complaint.text(false);
        assert!(told.contains(expected), "{told}");
    }
    let (url, _) = serve(chunks(&[TOKEN, DONE]), None).await;
    assert!(target(&url, "").look().await.is_ok());
}

/// The server closes a connection that was kept just as the next request comes over it.
#[tokio::test]
async fn what_was_sent_to_nobody_is_sent_again_over_a_new_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = url(listener.local_addr().expect("bound"));
    let server = tokio::spawn(async move {
        let answer = chunks(&[TOKEN, DONE]);
        let (mut first, _) = listener.accept().await.expect("a client");
        request(&mut first).await.expect("a request");
        first.write_all(answer.as_bytes()).await.expect("it reads");
        request(&mut first).await.expect("the next one");
        drop(first);
        let (mut second, _) = listener.accept().await.expect("a new connection");
        request(&mut second).await.expect("the same again");
        second.write_all(answer.as_bytes()).await.expect("it reads");
    });
    let target = target(&url, "");
    let mut connection = crate::bench::connection::Connection::new(&url);
    for number in 0..2 {
        let outcome = target.ask(&mut connection, number, None).await;
        outcome.answer.expect("a whole answer");
    }
    server.await.expect("all came");
}

/// All ten requests come at once. The server answers none of them before the last has come.
#[tokio::test]
async fn in_the_open_loop_no_more_are_under_way_than_may_be() {
    let may = Arc::new(Semaphore::new(0));
    let (url, seen) = serve(chunks(&[TOKEN, DONE]), Some(Arc::clone(&may))).await;
    let mut numbers = 0..10;
    let arrivals = std::iter::from_fn(move || match numbers.next() {
        Some(number) => Some((number, Duration::ZERO)),
        None => {
            may.add_permits(10);
            None
        }
    });
    let round = open(&target(&url, ""), 3, arrivals)
        .await
        .expect("no crash");
    let report = report(round);
    assert_eq!(report["refused_by_client"], 7);
    assert_eq!((&report["done"], &report["failed"]), (&json!(3), &json!(0)));
    assert_eq!(seen.requests.load(Ordering::Relaxed), 3);
}

/// Times count from when a request was to be sent, however late it was.
#[tokio::test]
async fn in_the_open_loop_late_requests_are_not_spared() {
    let (url, seen) = serve(chunks(&[TOKEN, DONE]), None).await;
    let target = target(&url, "");
    let long_ago = std::time::Instant::now().checked_sub(Duration::from_millis(1));
    let mut connection = crate::bench::connection::Connection::new(&url);
    let outcome = target.ask(&mut connection, 0, long_ago).await;
    let answer = outcome.answer.expect("a whole answer");
    assert!(answer.first.expect("a token") >= 0.001);
    assert!(answer.whole >= answer.first.expect("a token"));
    assert_eq!(seen.requests.load(Ordering::Relaxed), 1);
}
