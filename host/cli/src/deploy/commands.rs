//! What each command asks the admin API, and what it prints.

use super::arguments::{Deploy, DeployCommand, Logs, Named, Rollback, Server, Split};
use super::client::{Client, Sent};
use super::manifest::{Prepared, Upload, is_component, prepare};
use super::progress::Progress;
use super::{invoke, table};
use crate::Error;
use crate::args::LINKED_HINT;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Longest line of a log, as JSON.
const LINE: usize = 64 << 10;

pub(super) async fn run(command: &DeployCommand) -> Result<ExitCode, Error> {
    match command {
        DeployCommand::Deploy(arguments) => deploy(arguments).await,
        DeployCommand::List(list) => {
            let all = ask(&list.server, Method::GET, "/deployments", Sent::Nothing).await?;
            show(&list.server, &all, table::list)
        }
        DeployCommand::Show(named) => {
            let detail = at(named, Method::GET, "", Sent::Nothing).await?;
            show(&named.server, &detail, table::show)
        }
        DeployCommand::Logs(arguments) => logs(arguments).await,
        DeployCommand::Rollback(rollback) => {
            let Rollback { named, revision } = rollback;
            let sent = Sent::Json(json!({ "revision": revision }));
            let now = at(named, Method::POST, "/rollback", sent).await?;
            show(&named.server, &now, table::deployment_line)
        }
        DeployCommand::Split(Split { named, shares }) => {
            let share = |share: &super::arguments::ShareArgument| json!({"revision": share.revision, "weight": share.weight});
            let traffic = Vec::from_iter(shares.iter().map(share));
            let sent = Sent::Json(json!({ "traffic": traffic }));
            let now = at(named, Method::PUT, "/traffic", sent).await?;
            show(&named.server, &now, table::deployment_line)
        }
        DeployCommand::Pause(named) => pause(named, true).await,
        DeployCommand::Resume(named) => pause(named, false).await,
        DeployCommand::Remove(named) => {
            let gone = at(named, Method::DELETE, "", Sent::Nothing).await?;
            let line = |_: &Value| format!("{} is removed\n", named.name);
            show(&named.server, &gone, line)
        }
        DeployCommand::Invoke(arguments) => {
            let client = client(&arguments.named.server)?;
            invoke::invoke(arguments, &client).await
        }
    }
}

fn client(server: &Server) -> Result<Client, Error> {
    Client::new(&server.admin, server.token_file.as_deref())
}

async fn ask(server: &Server, method: Method, path: &str, sent: Sent) -> Result<Value, Error> {
    client(server)?.ask(method, path, sent).await
}

/// Asks about one deployment; `below` is what follows its name.
async fn at(named: &Named, method: Method, below: &str, sent: Sent) -> Result<Value, Error> {
    let path = format!("/deployments/{}{below}", named.name);
    ask(&named.server, method, &path, sent).await
}

async fn pause(named: &Named, paused: bool) -> Result<ExitCode, Error> {
    let sent = Sent::Json(json!({ "paused": paused }));
    let now = at(named, Method::PUT, "/paused", sent).await?;
    show(&named.server, &now, table::deployment_line)
}

async fn deploy(deploy: &Deploy) -> Result<ExitCode, Error> {
    let Prepared { manifest, parts } = prepare(deploy)?;
    let client = client(&deploy.server)?;
    for part in parts {
        upload(&client, part).await?;
    }
    let path = format!(
        "/deployments/{}?traffic={}",
        manifest.name, !deploy.no_traffic
    );
    let sent = Sent::Json(serde_json::to_value(&manifest)?);
    let progress = Progress::wait("checking and compiling");
    let answer = client.try_ask(Method::POST, &path, sent).await;
    progress.done();
    let (status, deployed) = answer?;
    if !status.is_success() {
        let refused = client.refused(status, &deployed);
        let advised = deployed["code"] == "not-linked" && is_component(&deploy.file);
        return Err(match advised {
            true => refused.append(LINKED_HINT),
            false => refused,
        });
    }
    let line = |deployed: &Value| {
        let number = &deployed["revision"]["number"];
        let line = table::deployment_line(&deployed["deployment"]);
        format!("revision {number} is deployed: {line}")
    };
    show(&deploy.server, &deployed, line)
}

/// Uploads a component, unless the server has it.
async fn upload(client: &Client, part: Upload) -> Result<(), Error> {
    let path = format!("/components/{}", part.digest);
    let (status, answer) = client.try_ask(Method::GET, &path, Sent::Nothing).await?;
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::NOT_FOUND if answer["code"] == "no-component" => {
            let progress = Progress::upload(&part.field, part.bytes.len());
            let sent = Sent::Upload(part.bytes, progress.clone());
            let uploaded = client.ask(Method::PUT, &path, sent).await;
            progress.done();
            uploaded.map(drop)
        }
        status => Err(client.refused(status, &answer)),
    }
}

async fn logs(logs: &Logs) -> Result<ExitCode, Error> {
    let Logs {
        named,
        follow,
        after,
    } = logs;
    let client = client(&named.server)?;
    let path = format!(
        "/deployments/{}/logs?follow={follow}&after={after}",
        named.name
    );
    let answer = client.open(Method::GET, &path, Sent::Nothing).await?;
    let status = answer.status();
    let mut body = answer.into_body();
    if !status.is_success() {
        let whole = body.collect().await?.to_bytes();
        let value = serde_json::from_slice(&whole).unwrap_or_default();
        return Err(client.refused(status, &value));
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
            show(&named.server, &value, table::log_line)?;
        }
        if rest.len() > LINE {
            return Err(Error::Failed("what comes is no log of Corral".into()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints an answer: as it came, or as people read it.
fn show(
    server: &Server,
    answer: &Value,
    page: impl FnOnce(&Value) -> String,
) -> Result<ExitCode, Error> {
    match server.json {
        true => print(&format!("{answer}\n")),
        false => print(&page(answer)),
    }
}

/// Writes a text to standard output.
pub(super) fn print(text: &str) -> Result<ExitCode, Error> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Error::context("nobody reads what is written"))?;
    Ok(ExitCode::SUCCESS)
}
