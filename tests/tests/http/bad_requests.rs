//! Invalid requests get an explanation, and the next request is served.

use corral_tests::{Corral, raw_exchange};
use serde_json::json;
use std::time::Duration;

/// Bodies, and the codes and details of their errors. The unit tests of `generate` have all fields.
const WRONG_BODIES: &str = r#"
{ => invalid-json: line 1 column 1
{"prompt":"\ud800"} => invalid-json: not JSON
[] => wrong-type: expected an object
{} => missing-input: `prompt` nor `messages`
{"prompt": "1+1=", "messages": []} => ambiguous-input: exactly one
{"prompt": "1+1=", "max_token": 5} => unknown-field: `max_token`
{"prompt": "1+1=", "max_tokens": 0} => out-of-range: `max_tokens`
{"prompt": "1+1=", "stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]} => invalid-stop: at most 16
"#;

#[test]
fn invalid_fields_get_explained_400() {
    let corral = Corral::start_with(&["--context", "4096"]);
    let lines = WRONG_BODIES.trim().lines().map(|line| {
        let (body, error) = line.split_once(" => ").expect("an error");
        let (code, expected) = error.split_once(": ").expect("a detail");
        (body.to_owned(), code, expected)
    });
    let long = |length| json!({"prompt": "a".repeat(length)}).to_string();
    let others = [
        (String::new(), "invalid-json", "not JSON"),
        ("[".repeat(100_000), "invalid-json", "not JSON"),
        (long(4096), "prompt-too-long", "4096"),
        (long(100_000), "prompt-too-long", "4096"),
    ];
    for (body, code, expected) in lines.chain(others) {
        let answer = corral.post("/generate", &body);
        let detail = answer.problem(400, code);
        assert!(detail.contains(expected), "{body:.80}: {detail}");
    }
    let body = json!({"prompt": "1+1=", "model": "other"});
    let unknown = corral.post("/generate", body.to_string());
    let detail = unknown.problem(404, "unknown-model");
    assert!(detail.contains("tiny"), "{detail}");
    let not_text = corral.post("/generate", b"{\"prompt\":\"\xff\"}");
    not_text.problem(400, "invalid-json");
    let get = corral.get("/generate");
    get.problem(405, "method-not-allowed");
    assert_eq!(get.header("allow"), Some("POST"));
    let huge = json!({"prompt": "a".repeat(2 << 20)}).to_string();
    let answer = corral.post("/generate", huge);
    answer.problem(413, "request-too-large");
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn body_of_too_many_values_gets_400() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    let stops = json!({"model": "tiny", "prompt": "1+1=", "stop": vec!["x"; 1_000_000]});
    let message = json!({"role": "user", "content": "x"});
    let messages = json!({"model": "tiny", "messages": vec![message; 100_000]});
    for (path, body) in [("completions", stops), ("chat/completions", messages)] {
        let answer = corral.post(&format!("/v1/{path}"), body.to_string());
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        assert!(answer.body.contains("200000 values"), "{answer:?}");
    }
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn unknown_paths_get_404() {
    let corral = Corral::start();
    for path in [
        "/",
        "/generat",
        "/generated",
        "/GENERATE",
        "//generate",
        "/%67enerate",
    ] {
        let answer = corral.get(path);
        let detail = answer.problem(404, "no-route");
        assert!(detail.contains(path), "{detail}");
        assert!(!answer.body.contains("misbehave"), "{answer:?}");
        assert!(answer.header("x-request-id").is_some());
    }
    // Below its route prefix a plugin sees the path unchanged.
    assert_eq!(corral.get("/misbehave/deep/down/ok?x=/trap").body, "ok");
    let post = corral.post("/healthz", "");
    post.problem(405, "method-not-allowed");
    assert_eq!(post.header("allow"), Some("GET, HEAD"));
}

#[test]
fn unread_body_does_not_break_response() {
    let corral = Corral::start();
    let body = vec![b'x'; 6 << 20];
    for _ in 0..10 {
        for (path, status) in [
            ("/nowhere", 404),
            ("/healthz", 405),
            ("/misbehave/trap", 500),
            ("/misbehave/deaf", 200),
            ("/generate", 413),
        ] {
            assert_eq!(corral.post(path, &body).status, status, "{path}");
        }
    }
    // Discarded bodies did not cost the connection.
    let connections = corral.metrics().get("corral_http_connections_total");
    assert!(connections <= 10.0, "{connections} connections");
    corral.wait_until_idle();
}

#[test]
fn body_over_limit_gets_413() {
    let corral = Corral::start_with(&["--body-limit", "64"]);
    let within = vec![b'x'; 64 << 10];
    let answer = corral.post("/misbehave/echo", &within);
    assert_eq!((answer.status, answer.body.len()), (200, within.len()));
    for size in [(64 << 10) + 1, 1 << 20, 8 << 20] {
        let answer = corral.post("/misbehave/ok", vec![b'x'; size]);
        let detail = answer.problem(413, "request-too-large");
        assert!(detail.contains("65536"), "{detail}");
    }
    // In chunks, so that the length is unknown in advance.
    let mut request =
        b"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            .to_vec();
    for _ in 0..100 {
        request.extend_from_slice(b"1000\r\n");
        request.extend_from_slice(&[b' '; 4096]);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    let answer = raw_exchange(corral.public(), &request, false, Duration::from_secs(20));
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("\"request-too-large\""), "{answer}");
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn garbage_on_socket_leaves_others_unharmed() {
    let corral = Corral::start();
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(20));
    let noise = (0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8);
    let noise: Vec<u8> = noise.collect();
    let many_headers = (0..1000).map(|number| format!("h{number}: x\r\n"));
    let many_headers: String = many_headers.collect();
    let many_headers = format!("GET / HTTP/1.1\r\nHost: x\r\n{many_headers}\r\n");
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(60_000));
    // The server refuses two of these itself and would keep the connection open.
    for (bytes, status) in [
        (&b""[..], None),
        (b"\r\n\r\n\r\n", None),
        (&noise, Some("400")),
        (b"GET\r\n\r\n", Some("400")),
        (b"GET / HTTP/9.9\r\n\r\n", Some("400")),
        (
            b"GET /misbehave/ok HTTP/1.1\r\nConnection: close\r\n\r\n",
            Some("400"),
        ),
        (
            b"GET /misbehave/ok HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n",
            Some("400"),
        ),
        (
            b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            Some("400"),
        ),
        (
            b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            Some("400"),
        ),
        (many_headers.as_bytes(), Some("431")),
        (long_path.as_bytes(), Some("4")),
        // The first bytes of a TLS client and of HTTP/2.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Some("400")),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some("")),
        // Truncated bodies and malformed chunks.
        (
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"prompt\"",
            Some(""),
        ),
        (
            b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
            Some(""),
        ),
    ] {
        for finish in [true, false] {
            // Where a response is required it may take its time; then the connection closes.
            let is_required = !finish && status.is_some_and(|status| !status.is_empty());
            let silence = if is_required { long } else { short };
            let answer = raw_exchange(corral.public(), bytes, finish, silence);
            let answer = String::from_utf8_lossy(&answer);
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
            match status {
                None => assert_eq!(answer, "", "to {start:?}"),
                Some("") => assert!(!answer.starts_with("HTTP/1.1 2"), "to {start:?}: {answer}"),
                Some(status) => {
                    let expected = format!("HTTP/1.1 {status}");
                    let right = answer.starts_with(&expected);
                    // To the server, a client that closes its side has left.
                    let none = finish && answer.is_empty();
                    assert!(right || none, "to {start:?}: {answer}");
                }
            }
        }
        corral.check_alive();
    }
    corral.wait_until_idle();
}

#[test]
fn head_request_gets_head_only() {
    let corral = Corral::start();
    let request = b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = raw_exchange(corral.public(), request, false, Duration::from_secs(20));
    let answer = String::from_utf8(answer).expect("a head is text");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}
