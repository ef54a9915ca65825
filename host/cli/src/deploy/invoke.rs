//! `corral invoke`: one request to a deployment through the public listener.

use super::args::InvokeArgs;
use crate::Error;
use crate::admin::{Address, AdminClient, Outgoing, RequestBody, exchange};
use crate::terminal::print;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::ExitCode;

/// Largest body from stdin, and largest response with `--json`; other responses are streamed.
const MAX_BODY_BYTES: usize = 256 << 20;
const CUT_OFF: &str = "the response broke off";

/// Sends the request and prints the response; exit code 1 unless it is a success.
pub(super) async fn invoke(args: &InvokeArgs, client: &AdminClient) -> Result<ExitCode, Error> {
    let name = &args.named.name;
    let path = format!("/deployments/{name}");
    let detail = client
        .request(Method::GET, &path, RequestBody::Empty)
        .await?;
    let route = detail["deployment"]["routes"][0].as_str();
    let (Some(public), Some(path)) = (
        detail["public_address"].as_str(),
        args.path.as_deref().or(route),
    ) else {
        return Err(Error::failed(format!(
            "'{name}' has no route; see 'corral show {name}'"
        )));
    };
    let body = body(args.data.as_deref())?;
    let default = match &body {
        Some(_) => Method::POST,
        None => Method::GET,
    };
    let mut request = Request::builder()
        .method(args.method.clone().unwrap_or(default))
        .uri(path)
        .body(Outgoing::from(body.unwrap_or_default()))
        .map_err(Error::context(
            "invalid path; write one that begins with '/'",
        ))?;
    for header in &args.headers {
        let value = header.value.clone();
        request.headers_mut().append(header.name.clone(), value);
    }
    let refused = format!("nothing answers at http://{public}; check the server");
    let public: Address = public.parse().map_err(Error::context(refused.as_str()))?;
    let response = exchange(&public.into(), request, &refused, &refused).await?;
    let status = response.status();
    if args.named.server.json {
        let headers: serde_json::Map<String, Value> = response
            .headers()
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes());
                (name.to_string(), value.into())
            })
            .collect();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES);
        let body = body
            .collect()
            .await
            .map_err(Error::context(CUT_OFF))?
            .to_bytes();
        let body = String::from_utf8_lossy(&body);
        let object = json!({"status": status.as_u16(), "headers": headers, "body": body});
        print(&format!("{object}\n"))?;
    } else {
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.map_err(Error::context(CUT_OFF))?.data_ref() {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(data)?;
                stdout.flush()?;
            }
        }
    }
    match status.is_success() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Error::failed(format!("'{name}' answered with {status}"))),
    }
}

/// The body that `--data` names.
fn body(data: Option<&str>) -> Result<Option<Bytes>, Error> {
    let Some(data) = data else {
        return Ok(None);
    };
    let bytes = match data.strip_prefix('@') {
        Some(file) => std::fs::read(file).map_err(Error::context(format!(
            "cannot read the file {file}; name another one after the '@'"
        )))?,
        None if data == "-" => {
            let mut bytes = Vec::new();
            let stdin = std::io::stdin();
            stdin.take(MAX_BODY_BYTES as u64).read_to_end(&mut bytes)?;
            bytes
        }
        None => data.as_bytes().to_vec(),
    };
    Ok(Some(bytes.into()))
}
