//! Requests to the admin API, separated by zero bytes: a line with method and path, and the body. `DIGEST` stands for the
//! digest of a component in the store. The server answers in time and is not at fault.

#![no_main]

mod service;

use libfuzzer_sys::fuzz_target;
use service::{SERVICE, TIMEOUT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Requests of one input.
const MAX_REQUESTS: usize = 8;

async fn exchange(line: &str, body: &str) -> Vec<u8> {
    let head = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(SERVICE.admin_socket())
        .await
        .expect("connected");
    let mut response = Vec::new();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all((head + body).as_bytes()).await;
    let _ = stream.read_to_end(&mut response).await;
    response
}

/// Sends a request and returns the response.
fn send(line: &str, body: &str) -> Vec<u8> {
    let exchange = async { timeout(TIMEOUT, exchange(line, body)).await };
    let response = SERVICE.tokio.block_on(exchange);
    response.unwrap_or_else(|_| panic!("no answer: {line}\n{body}"))
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    SERVICE.store_component();
    let text = text.replace("DIGEST", &SERVICE.digest);
    for request in text.split('\0').take(MAX_REQUESTS) {
        let (line, body) = request.split_once('\n').unwrap_or((request, ""));
        // Logs that are followed have no end.
        if line.contains("follow") {
            continue;
        }
        let response = send(line, body);
        assert!(
            !response.starts_with(b"HTTP/1.1 500"),
            "{request}: {}",
            String::from_utf8_lossy(&response)
        );
    }
    // The next input begins without deployments.
    for name in SERVICE.deployment_names() {
        send(&format!("DELETE /deployments/{name}"), "");
    }
});
