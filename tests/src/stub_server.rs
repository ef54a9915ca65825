//! A server whose answers a test makes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// A request as [`serve_stub`] read it.
#[derive(Clone, Debug)]
pub struct StubRequest {
    /// Path and query.
    pub target: String,
    /// Headers by lower-case name.
    pub headers: HashMap<String, String>,
}

/// The status and headers, as lines without the protocol, and the body.
pub type StubAnswer = (String, Vec<u8>);

/// Answers requests on a free port, one on each connection. Returns its `HOST:PORT`. Its threads end with the process.
pub fn serve_stub(answer: impl Fn(StubRequest) -> StubAnswer + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A client that goes away is no failure.
            std::thread::spawn(move || serve(stream, &*answer));
        }
    });
    address.to_string()
}

fn serve(stream: TcpStream, answer: &impl Fn(StubRequest) -> StubAnswer) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = reader.by_ref().lines().map_while(Result::ok);
    let target = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines.take_while(|line| !line.is_empty());
    let headers = headers.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    });
    let headers: HashMap<_, _> = headers.collect();
    let length = headers.get("content-length");
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).ok()?;
    let (head, body) = answer(StubRequest { target, headers });
    let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
    let stream = reader.get_mut();
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body).ok()
}
