//! `corral keys`.

use crate::Error;
use crate::args::deployment_or_route;
use crate::terminal::print;
use clap::{Args, Subcommand};
use corral_server::NewApiKey;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Most characters of the name of a key or a tenant.
const MAX_NAME_CHARS: usize = 64;

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Create an API key and its entry for a key file, which contains only the key's SHA-256
    New(NewKeyArgs),
}

#[derive(Args, Debug)]
pub struct NewKeyArgs {
    /// Name of the key in logs and metrics [default: the tenant and a random suffix]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// Tenant of the key; the keys of a tenant share its quota and its fair share
    #[arg(long, value_parser = name)]
    tenant: String,
    /// Deployment that the key is valid for, by name or by the route of a --plugin; repeatable [default: all]
    #[arg(long = "deployment", value_name = "NAME|ROUTE", value_parser = deployment_or_route)]
    deployments: Vec<String>,
    /// Key file to append the entry to, created if missing; then only the key is printed
    #[arg(long, value_name = "FILE")]
    append: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `corral keys`.
pub(crate) fn keys(command: &KeysCommand) -> Result<ExitCode, Error> {
    let KeysCommand::New(args) = command;
    let key = NewApiKey::generate();
    let sha256 = key.sha256();
    let tenant = &args.tenant;
    let name = match &args.name {
        Some(name) => name.clone(),
        // Names are ASCII, so the tenant can be cut anywhere.
        None => {
            let length = tenant.len().min(MAX_NAME_CHARS - 9);
            format!("{}-{}", &tenant[..length], &sha256[..8])
        }
    };
    let deployments = &args.deployments;
    let entry = key.toml_entry(&name, tenant, deployments);
    if let Some(path) = &args.append {
        // One write, so that a server that reads the file meanwhile finds the whole entry or none.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(format!("\n{entry}").as_bytes()))
            .map_err(Error::context(format!(
                "cannot append the key to {}; give a writable file",
                path.display()
            )))?;
    }
    if args.json {
        let object = json!({
            "key": key.key(),
            "name": name,
            "sha256": sha256,
            "tenant": tenant,
            "deployments": deployments,
            "entry": entry,
        });
        return print(&format!("{object}\n"));
    }
    match args.append {
        Some(_) => print(&format!("{}\n", key.key())),
        None => print(&format!("{}\n\n{entry}", key.key())),
    }
}

fn name(text: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    match (1..=MAX_NAME_CHARS).contains(&text.len()) && text.bytes().all(is_valid) {
        true => Ok(text.to_owned()),
        false => Err("use 1 to 64 letters, digits and '-', '_', '.', '@'".to_owned()),
    }
}
