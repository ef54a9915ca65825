//! From the command line to loaded models and plugins.

use crate::arguments::{ModelArgument, Models};
use crate::complaint::Complaint;
use corral_engine::{Config, Engine};
use corral_runtime::{Limits, Plugin, Runtime, Settings};
use std::path::{Path, PathBuf};
use std::time::Instant;

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

/// Loads the models in the order given, `tell`ing what is going on.
pub(crate) async fn load_models(
    models: &Models,
    tell: impl Fn(String),
) -> Result<Vec<Engine>, Complaint> {
    let mut engines = Vec::new();
    for (place, ModelArgument { name, file }) in models.models.iter().enumerate() {
        tell(format!("loading model {name} from {}", file.display()));
        let started = Instant::now();
        let mut config = Config::new(name, file);
        config.adapters = models.adapters_of(place);
        config.context = models.context;
        config.cells = models.cells;
        config.threads = models.threads;
        config.sequences = models.sequences.unwrap_or(config.sequences);
        models.memory.apply(&mut config);
        // Reads gigabytes: not on a thread that turns connections.
        let engine = tokio::task::spawn_blocking(move || Engine::load(config))
            .await
            .map_err(Complaint::telling(
                "the model's loader crashed; see its log with --verbose",
            ))??;
        let info = engine.info();
        tell(format!(
            "model {name} is loaded: {} tokens of vocabulary, {} of context, {:.1} s",
            info.vocabulary,
            info.context,
            started.elapsed().as_secs_f64()
        ));
        engines.push(engine);
    }
    Ok(engines)
}

/// A plugin runtime over these models; `cache` is the folder for compiled plugins, where one is asked
/// for.
pub(crate) fn runtime(cache: Option<PathBuf>, engines: &[Engine]) -> Result<Runtime, Complaint> {
    let settings = Settings {
        cache: cache.or_else(default_cache),
        ..Settings::default()
    };
    Ok(Runtime::new(
        settings,
        corral_runtime::Models::new(engines.to_vec()),
    )?)
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
