//! The requests of each command, and its output.

use super::args::{DeployArgs, DeployCommand, JobsArgs, LogsArgs, NamedArgs, ServerArgs};
use super::manifest::{PreparedManifest, Replacement, Upload, is_component, prepare};
use super::wait::wait_for_hosts;
use super::{invoke, table};
use crate::Error;
use crate::admin::{AdminClient, RequestBody};
use crate::args::LINKED_HINT;
use crate::progress::Progress;
use crate::registry::{self, Deployable};
use crate::terminal::print;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Longest line of a log as JSON.
const MAX_LOG_LINE_BYTES: usize = 64 << 10;

pub(super) async fn run(command: &DeployCommand) -> Result<ExitCode, Error> {
    match command {
        DeployCommand::Deploy(args) => deploy(args).await,
        DeployCommand::List(args) => {
            let client = client(&args.server)?;
            let get =
                async |path: &str| client.request(Method::GET, path, RequestBody::Empty).await;
            let mut list = get("/deployments").await?;
            if list["cluster"] == true {
                list["cluster"] = get("/cluster").await?;
            }
            show(&args.server, &list, table::list)
        }
        DeployCommand::Show(named) => {
            let detail = request(named, Method::GET, "", RequestBody::Empty).await?;
            show(&named.server, &detail, table::detail)
        }
        DeployCommand::Jobs(args) => jobs(args).await,
        DeployCommand::Logs(args) => logs(args).await,
        DeployCommand::Rollback(args) => {
            let body = json!({ "revision": args.revision });
            change(&args.named, Method::POST, "/rollback", body).await
        }
        DeployCommand::Split(args) => {
            let weights = args.weights.iter();
            let weights = weights
                .map(|(revision, weight)| json!({"revision": revision, "weight": weight}))
                .collect::<Vec<_>>();
            let body = json!({ "traffic": weights });
            change(&args.named, Method::PUT, "/traffic", body).await
        }
        DeployCommand::Pause(named) => {
            change(named, Method::PUT, "/paused", json!({ "paused": true })).await
        }
        DeployCommand::Resume(named) => {
            change(named, Method::PUT, "/paused", json!({ "paused": false })).await
        }
        DeployCommand::Remove(named) => {
            let removed = request(named, Method::DELETE, "", RequestBody::Empty).await?;
            let line = |_: &Value| format!("removed {}\n", named.name);
            show(&named.server, &removed, line)
        }
        DeployCommand::Invoke(args) => invoke::invoke(args).await,
    }
}

fn client(server: &ServerArgs) -> Result<AdminClient, Error> {
    server.admin.check_ca(&[&server.admin.address])?;
    AdminClient::new(&server.admin)
}

/// Sends a request about one deployment. `path` follows its name.
async fn request(
    named: &NamedArgs,
    method: Method,
    path: &str,
    body: RequestBody,
) -> Result<Value, Error> {
    let path = format!("/deployments/{}{path}", named.name);
    client(&named.server)?.request(method, &path, body).await
}

/// Changes a deployment and prints its new status.
async fn change(
    named: &NamedArgs,
    method: Method,
    path: &str,
    body: Value,
) -> Result<ExitCode, Error> {
    let deployment = request(named, method, path, RequestBody::Json(body)).await?;
    show(&named.server, &deployment, table::deployment_line)
}

async fn deploy(args: &DeployArgs) -> Result<ExitCode, Error> {
    let deployable = match registry::reference(&args.manifest.file)? {
        Some(reference) => registry::fetch_to_deploy(&reference, &args.manifest, &args.artifact)?,
        None => {
            args.artifact.check_unused()?;
            Deployable::from(prepare(&args.manifest, None)?)
        }
    };
    let deployed = send(args, deployable).await?;
    let shown = show(&args.server, &deployed, deployed_line)?;
    if args.wait
        && let Some(hosts) = wait_for_hosts(&client(&args.server)?, &deployed).await?
        && !args.server.json
    {
        let line = match hosts {
            1 => "the only host serves it\n".to_owned(),
            hosts => format!("all {hosts} hosts serve it\n"),
        };
        return print(&line);
    }
    Ok(shown)
}

/// Whether the server runs with `--develop`.
pub(crate) async fn is_developing(server: &ServerArgs) -> Result<bool, Error> {
    let client = client(server)?;
    let list = client.request(Method::GET, "/deployments", RequestBody::Empty);
    Ok(list.await?["develop"] == true)
}

/// Deploys unless the manifest, with the digests of its components, is `last`, and stores it there. Returns the line that
/// `corral deploy` prints, or nothing if nothing changed.
pub(crate) async fn deploy_if_changed(
    args: &DeployArgs,
    replacement: Option<&Replacement>,
    last: &mut Option<Value>,
) -> Result<Option<String>, Error> {
    let prepared = prepare(&args.manifest, replacement)?;
    let manifest = serde_json::to_value(&prepared.manifest)?;
    if last.as_ref() == Some(&manifest) {
        return Ok(None);
    }
    let deployed = send(args, prepared.into()).await?;
    *last = Some(manifest);
    Ok(Some(deployed_line(&deployed)))
}

/// Uploads the components and posts the manifest. Returns the server's response.
async fn send(args: &DeployArgs, deployable: Deployable) -> Result<Value, Error> {
    let Deployable { prepared, request } = deployable;
    let PreparedManifest { manifest, uploads } = prepared;
    let client = client(&args.server)?;
    for part in uploads {
        upload(&client, part).await?;
    }
    let (kind, body) = match request {
        Some(request) => ("/artifact", serde_json::to_value(&request)?),
        None => ("", serde_json::to_value(&manifest)?),
    };
    let path = format!(
        "/deployments/{}{kind}?traffic={}",
        manifest.name, !args.no_traffic
    );
    let body = RequestBody::Json(body);
    let progress = Progress::spinner("checking and compiling");
    let response = client.try_request(Method::POST, &path, body).await;
    progress.finish();
    let (status, deployed) = response?;
    if !status.is_success() {
        let error = client.response_error(status, &deployed);
        let needs_hint = deployed["code"] == "not-linked" && is_component(&args.manifest.file);
        return Err(match needs_hint {
            true => error.append(LINKED_HINT),
            false => error,
        });
    }
    Ok(deployed)
}

fn deployed_line(deployed: &Value) -> String {
    let number = &deployed["revision"]["number"];
    let line = table::deployment_line(&deployed["deployment"]);
    format!("deployed revision {number}: {line}")
}

/// Uploads a component unless the server has it.
async fn upload(client: &AdminClient, part: Upload) -> Result<(), Error> {
    let path = format!("/components/{}", part.digest);
    let (status, value) = client
        .try_request(Method::GET, &path, RequestBody::Empty)
        .await?;
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::NOT_FOUND if value["code"] == "no-component" => {
            let progress = Progress::upload(&part.field, part.bytes.len());
            let body = RequestBody::Upload(part.bytes, progress.clone());
            let uploaded = client.request(Method::PUT, &path, body).await;
            progress.finish();
            uploaded.map(drop)
        }
        status => Err(client.response_error(status, &value)),
    }
}

async fn jobs(args: &JobsArgs) -> Result<ExitCode, Error> {
    let named = &args.named;
    let change = match (&args.retry, &args.cancel) {
        (Some(id), _) => Some((id, "retry")),
        (None, Some(id)) => Some((id, "cancel")),
        (None, None) => None,
    };
    if let Some((id, action)) = change {
        let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
        let path = format!("/jobs/{id}/{action}");
        let job = request(named, Method::POST, &path, RequestBody::Empty).await?;
        return show(&named.server, &job, table::job_line);
    }
    let mut query = Vec::new();
    query.extend(args.state.iter().map(|state| format!("state={state}")));
    query.extend(args.limit.iter().map(|limit| format!("limit={limit}")));
    let path = format!("/jobs?{}", query.join("&"));
    if args.purge {
        let purged = request(named, Method::DELETE, &path, RequestBody::Empty).await?;
        let line = |purged: &Value| format!("removed {} finished jobs\n", purged["removed"]);
        return show(&named.server, &purged, line);
    }
    let list = request(named, Method::GET, &path, RequestBody::Empty).await?;
    show(&named.server, &list, table::jobs)
}

async fn logs(args: &LogsArgs) -> Result<ExitCode, Error> {
    let LogsArgs {
        name,
        follow,
        tail,
        since,
        level,
        after,
        server,
    } = args;
    let client = client(server)?;
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let mut path = format!("/deployments/{name}/logs?follow={follow}&after={after}");
    if let Some(tail) = tail {
        path += &format!("&tail={tail}");
    }
    if let Some(since) = since {
        let part = u64::from(since.subsec_nanos() > 0);
        let seconds = since.as_secs().saturating_add(part);
        path += &format!("&since={seconds}");
    }
    if let Some(level) = level {
        path += &format!("&level={level}");
    }
    let response = client.open(Method::GET, &path, RequestBody::Empty).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let bytes = body.collect().await?.to_bytes();
        let value = serde_json::from_slice(&bytes).unwrap_or_default();
        return Err(client.response_error(status, &value));
    }
    let mut rest = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Error::context("the log broke off; the server has ended"))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        rest.extend_from_slice(data);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = Vec::from_iter(rest.drain(..=end));
            let value: Value = serde_json::from_slice(&line)?;
            show(server, &value, table::log_line)?;
        }
        if rest.len() > MAX_LOG_LINE_BYTES {
            return Err(Error::failed(client.not_corral()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a response as JSON or as `text`.
fn show(
    server: &ServerArgs,
    response: &Value,
    text: impl FnOnce(&Value) -> String,
) -> Result<ExitCode, Error> {
    match server.json {
        true => print(&format!("{response}\n")),
        false => print(&text(response)),
    }
}
