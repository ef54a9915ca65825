//! From the command line to loaded models and plugins.

use crate::arguments::{ModelArgument, Models};
use crate::complaint::Complaint;
use corral_engine::{Caller, Config, ModelState};
use corral_runtime::{Limits, Plugin, Runtime, Settings};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two words about how far a load is.
const TELL: Duration = Duration::from_secs(3);

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads that turn connections and plugins: those that are `asked` for, or as many as are good for
/// most.
///
/// The engine's threads own the cores while a step runs, and what these threads do between steps is
/// small. One would do for connections; a second keeps them answering while a plugin computes, since
/// a plugin gives its thread back only every few milliseconds. Nor is one faster where two cores do
/// everything: see `corral bench threads` in BENCHMARKS.md. On larger machines plugins get a quarter
/// of the cores.
pub(crate) fn workers(asked: Option<u64>) -> usize {
    match asked {
        Some(workers) => usize::try_from(workers).unwrap_or(usize::MAX),
        None => (cores() / 4).clamp(2, 16),
    }
}

/// A tokio runtime for everything but computing.
pub(crate) fn tokio_runtime(workers: usize) -> Result<tokio::runtime::Runtime, Complaint> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("corral-worker")
        .enable_all()
        .build()
        .map_err(Complaint::telling(
            "no threads could be started; raise the limit of processes",
        ))
}

/// The models of the command line, none of them loaded.
pub(crate) fn models(models: &Models) -> Result<corral_engine::Models, Complaint> {
    models.offloading.backends.load()?;
    // Also of models that are loaded later: what is wrong with the command line is told now.
    for ModelArgument { name, .. } in &models.models {
        models.offloading.of(name).devices.check()?;
    }
    let snapshots = models.memory.snapshots()?;
    let config = |(place, ModelArgument { name, file }): (usize, &ModelArgument)| {
        let mut config = Config::new(name, file);
        config.adapters = models.adapters_of(place);
        config.context = models.context;
        config.cells = models.cells;
        config.threads = models.threads;
        config.sequences = models.sequences.unwrap_or(config.sequences);
        config.placement = models.offloading.of(name);
        config.device_sampling = models.device_sampling;
        config.overlap = models.overlap;
        models.memory.apply(&mut config, snapshots.as_ref());
        config
    };
    let settings = models.residence.settings();
    let configs = models.models.iter().enumerate().map(config).collect();
    Ok(corral_engine::Models::new(configs, &settings)?)
}

/// Loads those of the models that are to be there before anything else, `tell`ing what is going on. Of
/// the others it only looks at the files: whoever wants one that is broken is told then.
pub(crate) async fn preload(
    models: &Models,
    loaded: &corral_engine::Models,
    tell: impl Fn(String),
) -> Result<(), Complaint> {
    let first = models.residence.preload.count(models.models.len());
    for (index, ModelArgument { name, file }) in models.models.iter().enumerate() {
        if index < first {
            let sizes = sizes(loaded, name).await;
            tell(format!(
                "loading model {name} from {}{sizes}",
                file.display()
            ));
            load(loaded, name, &tell).await?;
            continue;
        }
        let (models, own) = (loaded.clone(), name.clone());
        // Reads the head of the file: not on a thread that turns connections.
        let looked = tokio::task::spawn_blocking(move || models.look(&own)).await;
        if let Ok(Err(error)) = looked {
            tell(format!(
                "model {name} can't be used as it is, requests for it will fail: {error}"
            ));
        }
    }
    Ok(())
}

/// What a model's file says that it takes, to stand behind its name; nothing where the file says nothing:
/// then the load says what is wrong with it.
async fn sizes(models: &corral_engine::Models, name: &str) -> String {
    let (models, name) = (models.clone(), name.to_owned());
    // Reads the head of the file: not on a thread that turns connections.
    let expected = tokio::task::spawn_blocking(move || models.expected(&name)).await;
    let Ok(Ok(Some(expected))) = expected else {
        return String::new();
    };
    format!(
        ": {} of weights, {} for {} KV cells of {}",
        mebibytes(expected.weights),
        mebibytes(expected.cell_bytes),
        expected.cells,
        expected.kv
    )
}

#[allow(clippy::cast_precision_loss)]
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Loads one model, telling how far it is when that takes long.
async fn load(
    models: &corral_engine::Models,
    name: &str,
    tell: &impl Fn(String),
) -> Result<(), Complaint> {
    let started = Instant::now();
    let opening = models.open(Some(name), &Caller::default());
    tokio::pin!(opening);
    let lease = loop {
        tokio::select! {
            opened = &mut opening => break opened?,
            () = tokio::time::sleep(TELL) => {
                let all = models.status();
                let state = all.iter().find(|model| model.name == name).map(|model| model.state);
                if let Some(ModelState::Loading { progress }) = state {
                    tell(format!("loading model {name}: {:.0} %", progress * 1e2));
                }
            }
        }
    };
    let info = lease.info();
    let on_devices = match info.gpu_layers {
        0 => String::new(),
        layers => format!(
            ", {layers} of {} layers on {}",
            info.layers,
            info.devices.join(", ")
        ),
    };
    tell(format!(
        "model {name} is loaded: {} tokens of vocabulary, {} of context{on_devices}, {:.1} s",
        info.vocabulary,
        info.context,
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// A plugin runtime over these models; `cache` is the folder for compiled plugins, where one is asked
/// for.
pub(crate) fn runtime(
    cache: Option<PathBuf>,
    models: &corral_engine::Models,
) -> Result<Runtime, Complaint> {
    let settings = Settings {
        cache: cache.or_else(default_cache),
        ..Settings::default()
    };
    Ok(Runtime::new(settings, models.clone())?)
}

/// Lets loads and engines end, so that no computation is cut off in llama.cpp.
pub(crate) async fn end(models: corral_engine::Models) {
    let ending = tokio::task::spawn_blocking(move || models.shutdown());
    // It waits for one step, or one tensor of a load; if that does not end, the process ends without
    // it.
    let _ = tokio::time::timeout(Duration::from_secs(5), ending).await;
}

/// Loads a plugin from its file.
pub(crate) async fn load_plugin(
    runtime: &Runtime,
    name: &str,
    file: &Path,
    limits: Limits,
) -> Result<Plugin, Complaint> {
    Ok(runtime.plugin(name, file.to_owned(), limits).await?)
}

/// The user's cache folder, where the environment names one.
fn default_cache() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("corral/plugins"))
}
