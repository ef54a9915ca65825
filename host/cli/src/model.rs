//! `corral model`: downloads models from a hub into a cache, and manages the cache.

mod cache;
mod download;
mod hub;
mod info;
mod reference;

pub(crate) use reference::HubReference;

use crate::Error;
use crate::progress::Progress;
use crate::terminal::{align, mebibytes, note, print};
use cache::{CachedModel, ModelCache, read_checksum};
use clap::{Args, Subcommand};
use reference::FileChoice;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Download a model into the cache, unless it is there, and print the path of its file
    Pull(PullModelArgs),
    /// List the models in the cache
    #[command(visible_alias = "ls")]
    List(ListModelsArgs),
    /// Remove a model from the cache, or all of a repository
    Rm(CachedArgs),
    /// Show what a model is, and the memory that it needs
    Info(info::InfoArgs),
    /// Compare models in the cache with their checksums
    Verify(VerifyArgs),
}

#[derive(Args, Debug)]
pub struct PullModelArgs {
    /// Model: hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf; HF_TOKEN and HF_ENDPOINT apply
    #[arg(value_name = "MODEL")]
    model: HubReference,
}

#[derive(Args, Debug)]
pub struct ListModelsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub struct CachedArgs {
    /// Model: hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf; hf:ORG/REPO for all of a repository
    #[arg(value_name = "MODEL")]
    model: HubReference,
}

#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Model: hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf [default: all in the cache]
    #[arg(value_name = "MODEL")]
    model: Option<HubReference>,
}

/// Runs `corral model`.
pub(crate) fn model(command: &ModelCommand) -> Result<ExitCode, Error> {
    match command {
        ModelCommand::Pull(args) => {
            let file = fetch(&args.model, &note)?;
            print(&format!("{}\n", file.display()))
        }
        ModelCommand::List(args) => list(args),
        ModelCommand::Rm(args) => remove(&args.model),
        ModelCommand::Info(args) => info::info(args),
        ModelCommand::Verify(args) => verify(args.model.as_ref()),
    }
}

/// The file of a model, which is downloaded unless it is cached.
pub(crate) fn fetch(reference: &HubReference, note: &dyn Fn(String)) -> Result<PathBuf, Error> {
    let cache = ModelCache::open()?;
    match cache.find(reference) {
        Some(model) => Ok(model.file().to_owned()),
        None => download::download(reference, &cache, note),
    }
}

/// The file of a model, if it is cached.
pub(crate) fn cached(reference: &HubReference) -> Result<Option<PathBuf>, Error> {
    let model = ModelCache::open()?.find(reference);
    Ok(model.map(|model| model.file().to_owned()))
}

fn list(args: &ListModelsArgs) -> Result<ExitCode, Error> {
    let cache = ModelCache::open()?;
    let models = cache.models();
    if args.json {
        let model = |model: &CachedModel| {
            json!({
                "model": model.reference.to_string(),
                "file": model.file(),
                "bytes": model.bytes(),
            })
        };
        let models: Vec<_> = models.iter().map(model).collect();
        return print(&format!("{}\n", json!({ "models": models })));
    }
    if models.is_empty() {
        note(format!(
            "there is no model in {}; download one with 'corral model pull hf:ORG/REPO'",
            cache.dir().display()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let row = |model: &CachedModel| vec![model.reference.to_string(), mebibytes(model.bytes())];
    let head = vec!["MODEL".to_owned(), "SIZE".to_owned()];
    let rows: Vec<_> = std::iter::once(head)
        .chain(models.iter().map(row))
        .collect();
    print(&align(&rows, |column| column == 1))
}

fn remove(reference: &HubReference) -> Result<ExitCode, Error> {
    let cache = ModelCache::open()?;
    let is_known = cache.dir().join(&reference.repo).is_dir();
    if reference.choice == FileChoice::Default && is_known {
        cache.lock(&reference.repo, note)?.remove_all()?;
        return print(&format!("removed {reference}\n"));
    }
    let model = cache.expect(reference)?;
    cache.lock(&reference.repo, note)?.remove(&model)?;
    print(&format!("removed {}\n", model.reference))
}

fn verify(reference: Option<&HubReference>) -> Result<ExitCode, Error> {
    let cache = ModelCache::open()?;
    let models = match reference {
        Some(reference) => vec![cache.expect(reference)?],
        None => cache.models(),
    };
    let mut wrong = Vec::new();
    let mut page = String::new();
    for model in &models {
        let spinner = Progress::spinner("reading");
        let mut states = model.files.iter().map(|file| {
            let found = download::sha256(file).map_err(cache::with_cause(file))?;
            Ok(match read_checksum(file) {
                Some(expected) if expected == found => None,
                Some(_) => Some("differs from its checksum"),
                None => Some("has no checksum"),
            })
        });
        let state = states.find_map(Result::<_, Error>::transpose).transpose()?;
        spinner.finish();
        page += &format!("{}: {}\n", model.reference, state.unwrap_or("ok"));
        wrong.extend(state.map(|_| model.reference.to_string()));
    }
    let printed = print(&page)?;
    match wrong.first() {
        None => Ok(printed),
        Some(first) => Err(Error::failed(format!(
            "{} of {} models cannot be trusted; download each again: 'corral model rm {first}', then 'corral model pull \
             {first}'",
            wrong.len(),
            models.len()
        ))),
    }
}
