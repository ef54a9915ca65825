//! Requests to servers over keep-alive connections. A response that is no success is an error.

use bytes::Bytes;
use corral_cli::Error;
use corral_cli::bench::connection::Connection;
use corral_cli::bench::sse::EventReader;
use corral_cli::bench::url::Url;
use corral_cli::terminal::printable;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use std::fmt;

const MAX_BODY_BYTES: usize = 64 << 20;

/// Posts JSON to a path of a server.
pub(crate) async fn post(
    connection: &mut Connection,
    url: &Url,
    path: &str,
    body: &Value,
) -> Result<Response<Incoming>, Error> {
    let body = Bytes::from(body.to_string());
    send(connection, url, Method::POST, path, body).await
}

/// Gets a path of a server; returns the whole response.
pub(crate) async fn get(
    connection: &mut Connection,
    url: &Url,
    path: &str,
) -> Result<Bytes, Error> {
    let response = send(connection, url, Method::GET, path, Bytes::new()).await?;
    read(url, response).await
}

async fn send(
    connection: &mut Connection,
    url: &Url,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Error> {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header(HOST, &url.authority);
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let response = connection.send(request.body(Full::new(body))?).await;
    let response = response.map_err(Error::context(format!(
        "{url} did not answer; start the server, or name another URL"
    )))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = read(url, response).await?;
    let text: String = String::from_utf8_lossy(&text).chars().take(400).collect();
    Err(Error::failed(format!(
        "{url} answered {status} to a request for {path}; is it the right server, with the right plugin? its \
         response: {}",
        printable(&text)
    )))
}

/// Reads a response to its end.
pub(crate) async fn read(url: &Url, response: Response<Incoming>) -> Result<Bytes, Error> {
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES);
    let body = body.collect().await;
    let body = body.map_err(Error::context(format!("a response of {url} broke off")))?;
    Ok(body.to_bytes())
}

/// Reads a stream of events to its end; `take` gets the data of each.
pub(crate) async fn read_events(
    server: &impl fmt::Display,
    response: Response<Incoming>,
    mut take: impl FnMut(&str),
) -> Result<(), Error> {
    let (mut body, mut events) = (response.into_body(), EventReader::default());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Error::context(format!("a response of {server} broke off")))?;
        let bytes = frame.data_ref().map_or(&[][..], |bytes| &bytes[..]);
        let too_long = |_| Error::failed(format!("{server} sent an event larger than 1 MiB"));
        for data in events.push(bytes).map_err(too_long)? {
            take(&data);
        }
    }
    Ok(())
}
