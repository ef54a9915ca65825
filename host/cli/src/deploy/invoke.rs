//! `corral invoke`: one request to a deployment, as any client would send it.

use super::arguments::Invoke;
use super::client::{Client, Outgoing, Sent, exchange};
use crate::Error;
use crate::admin::Address;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::ExitCode;

/// Longest body that is sent or, with `--json`, kept; what the largest limit of a deployment allows
/// is streamed.
const MOST: usize = 256 << 20;

/// Sends the request and prints the answer; exit code 1 unless it is a success.
pub(super) async fn invoke(invoke: &Invoke, client: &Client) -> Result<ExitCode, Error> {
    let name = &invoke.named.name;
    let detail = client
        .ask(Method::GET, &format!("/deployments/{name}"), Sent::Nothing)
        .await?;
    let route = detail["deployment"]["routes"][0].as_str();
    let (Some(public), Some(path)) = (detail["public"].as_str(), invoke.path.as_deref().or(route))
    else {
        return Err(Error::Failed(
            format!("'{name}' answers at no route; see 'corral show {name}'").into(),
        ));
    };
    let body = body(invoke.data.as_deref())?;
    let default = match &body {
        Some(_) => Method::POST,
        None => Method::GET,
    };
    let mut request = Request::builder()
        .method(invoke.method.clone().unwrap_or(default))
        .uri(path)
        .body(Outgoing::from(body.unwrap_or_default()))
        .map_err(Error::context(
            "the path is none; write one that begins with '/'",
        ))?;
    for header in &invoke.headers {
        request
            .headers_mut()
            .append(header.name.clone(), header.value.clone());
    }
    let gone = format!("nothing answers at http://{public}; look at the server");
    let public: Address = public.parse().map_err(Error::context(&gone))?;
    let answer = exchange(&public.into(), request, &gone, &gone).await?;
    let status = answer.status();
    if invoke.named.server.json {
        let headers: serde_json::Map<String, Value> = answer
            .headers()
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes());
                (name.to_string(), value.into())
            })
            .collect();
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        let body = body.map_err(Error::context("the answer broke off"))?;
        let body = body.to_bytes();
        let text = String::from_utf8_lossy(&body);
        let whole = json!({"status": status.as_u16(), "headers": headers, "body": text});
        super::commands::print(&format!("{whole}\n"))?;
    } else {
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(Error::context("the answer broke off"))?;
            if let Some(data) = frame.data_ref() {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(data)?;
                stdout.flush()?;
            }
        }
    }
    if status.is_success() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Error::Failed(
        format!("'{name}' answered with {status}").into(),
    ))
}

/// The body that `--data` names.
fn body(data: Option<&str>) -> Result<Option<Bytes>, Error> {
    let Some(data) = data else {
        return Ok(None);
    };
    let bytes = match data.strip_prefix('@') {
        Some(file) => std::fs::read(file).map_err(Error::context(format!(
            "the file {file} cannot be read; name another one after the '@'"
        )))?,
        None if data == "-" => {
            let mut bytes = Vec::new();
            std::io::stdin().take(MOST as u64).read_to_end(&mut bytes)?;
            bytes
        }
        None => data.as_bytes().to_vec(),
    };
    Ok(Some(bytes.into()))
}
