//! Opens a session: the URL, the request, and what a refused one says.

use session_protocol::Error;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method, OutgoingBody,
    OutgoingRequest, RequestOptions, Scheme,
};
use wasip2::io::streams::{InputStream, OutputStream};

use crate::URL;

/// Largest body of a refusal that is read, in bytes.
const MAX_REFUSAL: usize = 64 << 10;
/// Longest wait for the next bytes of the host, in nanoseconds: a prompt of a busy host takes its time.
const RESPONSE_TIMEOUT: u64 = 3600 * 1_000_000_000;

/// Both bodies of the request.
pub(crate) struct Streams {
    // A stream is dropped before what it belongs to.
    pub(crate) output: OutputStream,
    pub(crate) input: InputStream,
    _request: OutgoingBody,
    _body: IncomingBody,
    _response: IncomingResponse,
    _exchange: FutureIncomingResponse,
}

/// The parts of an absolute URL.
#[derive(Debug, PartialEq)]
struct Target<'a> {
    scheme: &'a str,
    authority: &'a str,
    path: &'a str,
}

fn parse(url: &str) -> Option<Target<'_>> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    let known = matches!(scheme, "http" | "https") && !authority.is_empty();
    known.then_some(Target {
        scheme,
        authority,
        path,
    })
}

fn failed(detail: String) -> Error {
    Error::Failed { detail }
}

/// Sends the request and waits for the response's head.
pub(crate) fn open() -> Result<Streams, Error> {
    let Some(url) = URL.read("CORRAL_REMOTE_URL") else {
        return Err(failed(
            "there is no host; set CORRAL_REMOTE_URL to the URL of its sessions, e.g. http://127.0.0.1:8080/sessions".into(),
        ));
    };
    let Some(target) = parse(&url) else {
        return Err(failed(format!(
            "the host's URL is {url:?}; expected one such as http://127.0.0.1:8080/sessions"
        )));
    };
    let (request, body) = request(&target).ok_or_else(|| {
        failed(format!(
            "the runtime refuses a request to {url:?}; check the URL and CORRAL_REMOTE_KEY"
        ))
    })?;
    let output = body.write();
    let options = RequestOptions::new();
    let _ = options.set_first_byte_timeout(Some(RESPONSE_TIMEOUT));
    let _ = options.set_between_bytes_timeout(Some(RESPONSE_TIMEOUT));
    let unreachable =
        |error: &dyn std::fmt::Debug| failed(format!("cannot reach the host at {url}: {error:?}"));
    let future =
        outgoing_handler::handle(request, Some(options)).map_err(|error| unreachable(&error))?;
    future.subscribe().block();
    let response = match future.get() {
        Some(Ok(Ok(response))) => response,
        other => return Err(unreachable(&other)),
    };
    let status = response.status();
    let no_stream = |()| failed("the runtime has no stream for a body".into());
    let output = output.map_err(no_stream)?;
    let incoming = response.consume().map_err(no_stream)?;
    let input = incoming.stream().map_err(no_stream)?;
    if status != 200 {
        return Err(refusal(status, &url, &response, &input));
    }
    Ok(Streams {
        output,
        input,
        _request: body,
        _body: incoming,
        _response: response,
        _exchange: future,
    })
}

fn request(target: &Target<'_>) -> Option<(OutgoingRequest, OutgoingBody)> {
    let headers = Fields::new();
    headers
        .append("content-type", b"application/x-ndjson")
        .ok()?;
    if let Some(key) = std::env::var("CORRAL_REMOTE_KEY")
        .ok()
        .filter(|key| !key.is_empty())
    {
        headers
            .append("authorization", format!("Bearer {key}").as_bytes())
            .ok()?;
    }
    let request = OutgoingRequest::new(headers);
    let scheme = match target.scheme {
        "https" => Scheme::Https,
        _ => Scheme::Http,
    };
    request.set_method(&Method::Post).ok()?;
    request.set_scheme(Some(&scheme)).ok()?;
    request.set_authority(Some(target.authority)).ok()?;
    request.set_path_with_query(Some(target.path)).ok()?;
    let body = request.body().ok()?;
    Some((request, body))
}

/// The error that a host's refusal stands for.
fn refusal(status: u16, url: &str, response: &IncomingResponse, input: &InputStream) -> Error {
    let mut body = Vec::new();
    while let Ok(piece) = input.blocking_read(4096) {
        body.extend(piece);
        if body.len() > MAX_REFUSAL {
            break;
        }
    }
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = problem["detail"].as_str().unwrap_or("it gives no reason");
    let detail = format!("the host at {url} answers {status}: {text}");
    let retry_after = response.headers().get("retry-after").into_iter().next();
    let seconds = retry_after.and_then(|value| String::from_utf8(value).ok()?.parse().ok());
    match status {
        401 | 403 => Error::NotGranted { detail },
        404 => Error::NotFound { detail },
        429 | 503 => Error::Refused {
            detail,
            retry_after_ms: seconds.unwrap_or(1_u32).saturating_mul(1000),
        },
        504 => Error::Deadline,
        _ => Error::Failed { detail },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_three_parts() {
        for (url, expected) in [
            (
                "http://127.0.0.1:8080/sessions",
                Some(("http", "127.0.0.1:8080", "/sessions")),
            ),
            ("https://host/a/b?c", Some(("https", "host", "/a/b?c"))),
            ("http://host", Some(("http", "host", "/"))),
            ("ftp://host/", None),
            ("host/sessions", None),
            ("http:///sessions", None),
        ] {
            let found = parse(url);
            let found = found.map(|target| (target.scheme, target.authority, target.path));
            assert_eq!(found, expected, "{url}");
        }
    }
}
