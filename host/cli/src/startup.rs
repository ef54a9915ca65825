//! Startup: from arguments to threads, loaded models and plugins.

use crate::Error;
use crate::args::{ModelArg, ModelArgs};
use crate::isolated_job;
use crate::terminal::mebibytes;
use crate::user_cache::user_cache_dir;
use corral_client_tls::client_config;
use corral_engine::{
    CacheFeed, Caller, FileAccess, ModelCheck, ModelConfig, ModelPool, ModelState, Snapshots,
};
use corral_runtime::{OutboundConfig, Runtime, RuntimeConfig};
use rustls::ClientConfig;
use rustls::client::Resumption;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time between two progress messages of a load.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);
/// File of plugins' values in the store.
const KEY_VALUES: &str = "key-values.redb";
/// How long to wait at the end for the engines' current steps.
pub(crate) const STEPS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long engines may take to write prefixes before.
const PREFIXES_TIMEOUT: Duration = Duration::from_secs(10);

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads for plugins and connections: `requested`, or a default for this machine.
///
/// The engine's threads occupy the cores during a step, and the workers have little to do between steps. One would
/// suffice for connections; the second keeps them served while a plugin computes. On two cores one worker was not
/// faster. On larger machines plugins get a quarter of the cores.
pub fn workers(requested: Option<u64>) -> usize {
    match requested {
        Some(workers) => usize::try_from(workers).unwrap_or(usize::MAX),
        None => (cores() / 4).clamp(2, 16),
    }
}

/// Runs a command on a tokio runtime of its own. Blocking tasks, which cannot be interrupted, are left behind.
pub(crate) fn block_on<F: Future>(workers: usize, command: F) -> Result<F::Output, Error> {
    let runtime = tokio_runtime(workers)?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    Ok(result)
}

/// A tokio runtime for everything but computing.
pub fn tokio_runtime(workers: usize) -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("corral-worker")
        .enable_all()
        .build()
        .map_err(Error::context(
            "cannot start threads; raise the limit of processes",
        ))
}

/// The models of the command line, none of them loaded.
pub(crate) fn model_pool(args: &ModelArgs) -> Result<ModelPool, Error> {
    model_pool_to_serve(args, None)
}

/// The same, which tells a feed what their caches hold.
pub(crate) fn model_pool_to_serve(
    args: &ModelArgs,
    cache_feed: Option<Arc<CacheFeed>>,
) -> Result<ModelPool, Error> {
    model_pool_with(args, cache_feed, || args.memory.open_snapshots())
}

/// The same without the directory of snapshots, which only one process can use.
pub(crate) fn model_pool_to_check(args: &ModelArgs) -> Result<ModelPool, Error> {
    model_pool_with(args, None, || Ok(None))
}

fn model_pool_with(
    args: &ModelArgs,
    cache_feed: Option<Arc<CacheFeed>>,
    snapshots: impl FnOnce() -> Result<Option<Arc<Snapshots>>, Error>,
) -> Result<ModelPool, Error> {
    args.devices.backends.load()?;
    // Report wrong devices of models that load later at startup too.
    for ModelArg { name, .. } in &args.models {
        args.devices.for_model(name).devices.check()?;
    }
    let snapshots = snapshots()?;
    let check = Arc::new(model_check(args)?);
    let children = isolated_job::children()?;
    let config = |(index, ModelArg { name, file, .. }): (usize, &ModelArg)| {
        let mut config = ModelConfig::new(name, file);
        config.adapters = args.adapters_of(index);
        config.projector = args.projector_of(index);
        config.image_decoders = Some(children.clone());
        config.draft = args.draft_of(index);
        config.context = args.context;
        config.check = Some(Arc::clone(&check));
        if args.mmap {
            config.file_access = FileAccess::Map;
        }
        config.threads = args.threads;
        config.adaptive_threads = args.adaptive_threads;
        config.placement = args.devices.for_model(name);
        config.device_top_k = args.device_top_k;
        config.overlap = args.overlap;
        config.cache_feed.clone_from(&cache_feed);
        args.memory.apply(&mut config, snapshots.as_ref());
        config
    };
    let configs = args.models.iter().enumerate().map(config).collect();
    Ok(ModelPool::new(configs, &args.pool.settings())?)
}

/// Checks model files before they are loaded. Passed checks stay in the directory of compiled plugins.
fn model_check(args: &ModelArgs) -> Result<ModelCheck, Error> {
    let passed = args.cache_dir.clone().or_else(default_cache_dir);
    let passed = passed.map(|dir| dir.join("checked-models"));
    let backend_dir = args.devices.backends.backend_dir.clone();
    Ok(ModelCheck::new(
        isolated_job::children()?,
        backend_dir,
        passed,
    ))
}

/// Checks the headers of the model files, which fails soon. A broken file of a model that loads later is reported to
/// `note`, not an error.
pub(crate) async fn check_models(
    args: &ModelArgs,
    models: &ModelPool,
    note: impl Fn(String),
) -> Result<(), Error> {
    let count = args.pool.preload.count(args.models.len());
    for (index, ModelArg { name, .. }) in args.models.iter().enumerate() {
        let (models, name) = (models.clone(), name.clone());
        // It reads the header of the file: not on a worker.
        let checked = tokio::task::spawn_blocking(move || {
            models.estimate_host_bytes(&name).map_err(|e| (name, e))
        });
        match checked.await {
            Ok(Err((_, error))) if index < count => return Err(error.into()),
            Ok(Err((name, error))) => note(format!(
                "model {name} is unusable, requests for it will fail: {error}"
            )),
            _ => {}
        }
    }
    Ok(())
}

/// Loads the models of `--preload`. Reports progress to `note`.
pub(crate) async fn preload(
    args: &ModelArgs,
    models: &ModelPool,
    note: impl Fn(String),
) -> Result<(), Error> {
    let count = args.pool.preload.count(args.models.len());
    for ModelArg { name, file, .. } in &args.models[..count] {
        note(format!("loading model {name} from {}", file.display()));
        note_sizes(args, models, name, &note).await;
        load(models, name, &note).await?;
    }
    Ok(())
}

/// Reports the sizes that a model's file states, in short lines. Reports nothing if it states none, since the load
/// reports why.
async fn note_sizes(args: &ModelArgs, models: &ModelPool, name: &str, note: &impl Fn(String)) {
    let (models, name) = (models.clone(), name.to_owned());
    // It reads the header of the file: not on a worker.
    let expected = tokio::task::spawn_blocking(move || models.estimate(&name)).await;
    let Ok(Ok(Some(expected))) = expected else {
        return;
    };
    note(format!(
        "{} of weights, {} for {} KV cells of {}",
        mebibytes(expected.weights),
        mebibytes(expected.cell_bytes),
        expected.cells,
        expected.kv
    ));
    if expected.draft > 0 {
        note(format!("{} of a draft model", mebibytes(expected.draft)));
    }
    if args.memory.kv_cells.is_none() {
        let default = "16384, or what a quarter of the memory holds";
        note(format!(
            "--kv-cells N sets their number (default: {default})"
        ));
    }
}

/// Loads one model; reports the progress of a slow load. The engine logs that it is loaded.
async fn load(models: &ModelPool, name: &str, note: &impl Fn(String)) -> Result<(), Error> {
    let caller = Caller::default();
    let opening = models.open(Some(name), &caller);
    tokio::pin!(opening);
    loop {
        tokio::select! {
            opened = &mut opening => return opened.map(drop).map_err(Error::from),
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let status = models.status();
                let state = status.iter().find(|model| model.name == name).map(|model| model.state);
                if let Some(ModelState::Loading { progress }) = state {
                    note(format!("loading model {name}: {:.0} %", progress * 1e2));
                }
            }
        }
    }
}

/// A plugin runtime over these models. `cache_dir` holds compiled plugins; by default the user's cache does.
pub fn runtime(cache_dir: Option<PathBuf>, models: &ModelPool) -> Result<Runtime, Error> {
    let cache = cache_dir.or_else(default_cache_dir);
    let config = RuntimeConfig {
        cache,
        outbound: outbound(),
        ..RuntimeConfig::default()
    };
    runtime_with(config, models)
}

/// Outgoing requests that trust what the system trusts.
pub(crate) fn outbound() -> OutboundConfig {
    OutboundConfig {
        tls: Some(outbound_tls),
        ..OutboundConfig::default()
    }
}

/// Sessions are not resumed, since they would tell a server that two deployments are on one host.
fn outbound_tls() -> io::Result<ClientConfig> {
    let mut config = client_config(None)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The same for a server, whose plugins keep values in its store. `config` has what the directories do not tell.
pub(crate) fn runtime_to_serve(
    cache_dir: Option<PathBuf>,
    store: Option<&Path>,
    config: RuntimeConfig,
    models: &ModelPool,
) -> Result<Runtime, Error> {
    let config = RuntimeConfig {
        cache: cache_dir.or_else(default_cache_dir),
        key_values: store.map(|dir| dir.join(KEY_VALUES)),
        ..config
    };
    runtime_with(config, models)
}

/// The same without a directory: it compiles every plugin, and leaves nothing behind.
pub(crate) fn runtime_to_check(models: &ModelPool) -> Result<Runtime, Error> {
    runtime_with(RuntimeConfig::default(), models)
}

fn runtime_with(config: RuntimeConfig, models: &ModelPool) -> Result<Runtime, Error> {
    let config = RuntimeConfig {
        children: Some(isolated_job::children()?),
        ..config
    };
    Ok(Runtime::new(config, models.clone())?)
}

/// Waits for loads and steps to end, so that the process does not exit inside of llama.cpp. Ends early with `hurry`.
pub(crate) async fn shut_down(
    models: ModelPool,
    args: &ModelArgs,
    hurry: impl Future<Output = ()>,
) {
    let timeout = match args.memory.prefix_dir {
        Some(_) => STEPS_TIMEOUT + PREFIXES_TIMEOUT,
        None => STEPS_TIMEOUT,
    };
    let ending = tokio::task::spawn_blocking(move || models.shutdown());
    tokio::select! {
        _ = tokio::time::timeout(timeout, ending) => {}
        () = hurry => {}
    }
}

/// Directory for compiled plugins.
fn default_cache_dir() -> Option<PathBuf> {
    Some(user_cache_dir()?.join("plugins"))
}
