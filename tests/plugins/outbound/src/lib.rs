//! Sends an HTTP request and reports the response. The body is JSON:
//!
//! | field | value |
//! |---|---|
//! | `url` | where to send the request |
//! | `method` | the method; default: GET |
//! | `headers` | headers and their values |
//! | `body` | the request's body |
//! | `body_kib` | the request's body in KiB: it is streamed while it is sent |
//! | `connect_ms`, `first_byte_ms`, `between_ms` | time limits |
//! | `hold` | keeps the response without reading it, for a year |
//!
//! In a job, the request has the header `x-job` with the job's id. The answer has `status`, `headers`, `bytes` (the length of
//! the body) and its first `text`; or `error`, the error code, with the `status` if the body failed.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use serde_json::{Value, json};
use wasip3::clocks::monotonic_clock;
use wasip3::http::client::send;
use wasip3::http::types::{ErrorCode, Fields, Method, Request, RequestOptions, Response, Scheme};
use wasip3::{spawn_local, wit_future, wit_stream};

struct Outbound;

#[allow(unsafe_code)]
mod exports {
    use super::Outbound;
    wasip3::http::service::export!(Outbound);
}

const KIB: usize = 1 << 10;
/// Bytes of a body that are written at once.
const PIECE: usize = 64 * KIB;
/// Bytes of a body in the answer.
const TEXT: usize = 4 * KIB;
const MILLISECOND: u64 = 1_000_000;

impl wasip3::exports::http::handler::Guest for Outbound {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let job = request.get_headers().get("x-corral-job-id");
        let wanted = read(request).await?;
        let mut wanted: Value = serde_json::from_slice(&wanted)
            .map_err(|error| ErrorCode::InternalError(Some(error.to_string())))?;
        if let Some(id) = job.first() {
            wanted["headers"]["x-job"] = String::from_utf8_lossy(id).into();
        }
        let answer = match exchange(&wanted).await {
            Ok(answer) => answer,
            Err(error) => json!({"error": format!("{error:?}")}),
        };
        let (mut writer, body) = wit_stream::new();
        spawn_local(async move { writer.write_all(answer.to_string().into_bytes()).await });
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(Fields::new(), Some(body), trailers).0)
    }
}

/// The body of the handler's own request.
async fn read(request: Request) -> Result<Vec<u8>, ErrorCode> {
    let (_, done) = wit_future::new(|| Ok(()));
    let (body, end) = Request::consume_body(request, done);
    let bytes = body.collect().await;
    end.await?;
    Ok(bytes)
}

async fn exchange(wanted: &Value) -> Result<Value, ErrorCode> {
    let (request, sent) = outgoing(wanted)?;
    spawn_local(async move {
        let _ = sent.await;
    });
    let response = send(request).await?;
    let status = response.get_status_code();
    let headers = response.get_headers().copy_all();
    let headers = headers.iter();
    let headers: serde_json::Map<String, Value> = headers
        .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into()))
        .collect();
    if wanted["hold"] == true {
        monotonic_clock::wait_for(365 * 24 * 3600 * 1000 * MILLISECOND).await;
    }
    let (_, done) = wit_future::new(|| Ok(()));
    let (mut body, end) = Response::consume_body(response, done);
    let (mut bytes, mut text) = (0, Vec::new());
    let mut buffer = Vec::with_capacity(PIECE);
    loop {
        let (result, mut piece) = body.read(buffer).await;
        bytes += piece.len();
        let room = TEXT - text.len();
        text.extend(&piece[..piece.len().min(room)]);
        piece.clear();
        buffer = piece;
        if !matches!(result, wasip3::wit_bindgen::StreamResult::Complete(_)) {
            break;
        }
    }
    Ok(match end.await {
        Ok(_) => json!({
            "status": status, "headers": headers, "bytes": bytes, "text": String::from_utf8_lossy(&text),
        }),
        Err(error) => json!({"status": status, "bytes": bytes, "error": format!("{error:?}")}),
    })
}

type Sent = wasip3::wit_bindgen::FutureReader<Result<(), ErrorCode>>;

fn outgoing(wanted: &Value) -> Result<(Request, Sent), ErrorCode> {
    let invalid = |_| ErrorCode::HttpRequestUriInvalid;
    let headers = Fields::new();
    for (name, value) in wanted["headers"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default().as_bytes().to_vec();
        headers
            .append(name, &value)
            .map_err(|error| ErrorCode::InternalError(Some(format!("{error:?}"))))?;
    }
    let body = match (wanted["body"].as_str(), wanted["body_kib"].as_u64()) {
        (Some(text), _) => Some((text.as_bytes().to_vec(), 1)),
        (None, Some(kib)) => {
            let pieces = usize::try_from(kib).unwrap_or_default() * KIB / PIECE;
            Some((vec![b'x'; PIECE], pieces))
        }
        (None, None) => None,
    };
    let body = body.map(|(piece, pieces)| {
        let (mut writer, body) = wit_stream::new();
        spawn_local(async move {
            for _ in 0..pieces {
                if !writer.write_all(piece.clone()).await.is_empty() {
                    return;
                }
            }
        });
        body
    });
    let options = RequestOptions::new();
    let time = |name: &str| wanted[name].as_u64().map(|time| time * MILLISECOND);
    let _ = options.set_connect_timeout(time("connect_ms"));
    let _ = options.set_first_byte_timeout(time("first_byte_ms"));
    let _ = options.set_between_bytes_timeout(time("between_ms"));
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (request, sent) = Request::new(headers, body, trailers, Some(options));
    let (scheme, rest) = wanted["url"]
        .as_str()
        .and_then(|url| url.split_once("://"))
        .ok_or(ErrorCode::HttpRequestUriInvalid)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => Scheme::Other(other.to_owned()),
    };
    request.set_scheme(Some(&scheme)).map_err(invalid)?;
    request.set_authority(Some(authority)).map_err(invalid)?;
    let path = Some(path).filter(|path| !path.is_empty());
    request.set_path_with_query(path).map_err(invalid)?;
    let method = match wanted["method"].as_str() {
        None | Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        Some("CONNECT") => Method::Connect,
        Some(other) => Method::Other(other.to_owned()),
    };
    request.set_method(&method).map_err(invalid)?;
    Ok((request, sent))
}
