//! `corral keys`.

use crate::Error;
use clap::{Args, Subcommand};
use corral_server::deployments::Name;
use corral_server::{NewKey, Prefix};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make an API key, and its entry in a file of keys. The entry holds the key's SHA-256 alone: the key
    /// is shown this once.
    New(New),
}

#[derive(Args, Debug)]
pub(crate) struct New {
    /// What the key is called in logs and metrics; by default its tenant and a random word.
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<String>,
    /// On whose behalf it is used: the keys of a tenant share its quota and its turn.
    #[arg(long, value_parser = name)]
    pub(crate) tenant: String,
    /// A deployment that it is good for, by its name, or its route if --plugin names it; may be given
    /// several times. Without it, for all.
    #[arg(long = "deployment", value_name = "NAME|ROUTE", value_parser = deployment)]
    pub(crate) deployments: Vec<String>,
    /// A file of keys to add the entry to; it is made if it is not there. Then only the key is printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) append: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs it.
pub(crate) fn keys(command: &KeysCommand) -> Result<ExitCode, Error> {
    let KeysCommand::New(arguments) = command;
    let new = NewKey::generate();
    let sha256 = new.sha256();
    let tenant = &arguments.tenant;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        // Names are ASCII; the tenant's may be as long as a name may be.
        None => format!("{}-{}", &tenant[..tenant.len().min(NAME - 9)], &sha256[..8]),
    };
    let deployments = &arguments.deployments;
    let entry = new.entry(&name, tenant, deployments);
    if let Some(path) = &arguments.append {
        // In one piece, so that a server that reads it just then sees all of the entry or nothing.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(format!("\n{entry}").as_bytes()))
            .map_err(|cause| Error::context(&cannot(path))(cause))?;
    }
    let text = if arguments.json {
        let object = json!({
            "key": new.key(),
            "name": name,
            "sha256": sha256,
            "tenant": tenant,
            "deployments": deployments,
            "entry": entry,
        });
        format!("{object}\n")
    } else if arguments.append.is_some() {
        format!("{}\n", new.key())
    } else {
        format!("{}\n\n{entry}", new.key())
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::context("the key could not be printed"))?;
    Ok(ExitCode::SUCCESS)
}

/// Letters of a name.
const NAME: usize = 64;

fn name(text: &str) -> Result<String, String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    match (1..=NAME).contains(&text.len()) && text.bytes().all(good) {
        true => Ok(text.to_owned()),
        false => {
            Err("it is no name; use 1 to 64 letters, digits and '-', '_', '.', '@'".to_owned())
        }
    }
}

/// The name of a deployment that is kept, or the route of one that is not.
fn deployment(text: &str) -> Result<String, String> {
    let checked = match text.starts_with('/') {
        true => text
            .parse::<Prefix>()
            .map_err(|error| error.to_string())?
            .to_string(),
        false => text
            .parse::<Name>()
            .map_err(|error| error.to_string())?
            .to_string(),
    };
    Ok(checked)
}

fn cannot(path: &std::path::Path) -> String {
    format!(
        "cannot add the key to {}; give a file that can be written",
        path.display()
    )
}
