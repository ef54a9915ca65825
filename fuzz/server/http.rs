//! Bytes of clients of the public listener: heads and bodies, HTTP/1 and HTTP/2. The first byte says where the bytes are
//! cut in two. The server answers, closes the connection in time, and is not at fault.

#![no_main]

mod service;

use libfuzzer_sys::fuzz_target;
use service::{SERVICE, TIMEOUT};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::task::yield_now;
use tokio::time::timeout;

async fn exchange(first: &[u8], second: &[u8]) -> Vec<u8> {
    let stream = loop {
        match SERVICE.server.connect() {
            Some(stream) => break stream,
            None => yield_now().await,
        }
    };
    let (mut reader, mut writer) = split(stream);
    let send = async {
        // The server may close the connection before it has read everything.
        let _ = writer.write_all(first).await;
        yield_now().await;
        let _ = writer.write_all(second).await;
        let _ = writer.shutdown().await;
    };
    let mut response = Vec::new();
    let (_, read) = tokio::join!(send, reader.read_to_end(&mut response));
    drop(read);
    response
}

fuzz_target!(|data: &[u8]| {
    let [cut, bytes @ ..] = data else {
        return;
    };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let response = SERVICE.tokio.block_on(async {
        let response = timeout(TIMEOUT, exchange(first, second)).await;
        response.expect("the server closes the connection")
    });
    if bytes.starts_with(b"PRI") || response.is_empty() {
        return;
    }
    let (version, status) = response.split_at("HTTP/1.1 ".len().min(response.len()));
    assert!(
        version.starts_with(b"HTTP/1.") && !status.starts_with(b"500"),
        "{}",
        String::from_utf8_lossy(&response)
    );
});
