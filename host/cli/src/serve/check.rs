//! `corral serve --check`: checks options and files, and prints what the server would do.
//!
//! Loads no model, listens nowhere, downloads nothing, and writes no file. It touches nothing that a running server
//! holds, so that the check also succeeds beside that server.

use super::{call_limits, load_plugin, plugin_limits};
use crate::admin_token;
use crate::args::ServeArgs;
use crate::registry::read_verify_key;
use crate::terminal::{mebibytes, note, print};
use crate::{Error, startup};
use corral_engine::{ModelPool, has_gguf_magic};
use corral_server::{AdminToken, BindError};
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;

/// Longest path of a Unix domain socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// What the server would do, and the problems that prevent it.
#[derive(Debug, Default)]
struct CheckReport {
    plan: String,
    problems: Vec<String>,
}

/// Checks everything that `corral serve` reads at its start. Problems have the exit code of a wrong command line.
pub(super) fn check(mut args: ServeArgs) -> Result<ExitCode, Error> {
    let mut report = CheckReport::default();
    if let Some(source) = &args.source {
        report.plan(format!("configuration {}", source.path()));
    }
    let is_missing = report.find_cached(&mut args);
    let workers = startup::workers(args.models.workers);
    startup::block_on(workers, report.check_models_and_plugins(&args, &is_missing))?;
    report.check_security(&args);
    report.check_directories(&args);
    report.check_addresses(&args);
    match report.problems.pop() {
        None => print(&format!("{}nothing is wrong\n", report.plan)),
        Some(last) => {
            report.problems.into_iter().for_each(note);
            Err(Error::usage(last))
        }
    }
}

impl CheckReport {
    fn plan(&mut self, line: impl Display) {
        self.plan += &format!("{line}\n");
    }

    /// Adds a problem of an option, with the option's place in the file.
    fn problem(&mut self, args: &ServeArgs, key: &str, index: usize, problem: impl Display) {
        let place = args.source.as_ref();
        let place = place.map_or_else(String::new, |source| source.place_of(key, index));
        self.problems.push(format!("{place}{problem}"));
    }

    /// Replaces each model of a hub with its cached file. Returns, for each model, whether the cache lacks it.
    fn find_cached(&mut self, args: &mut ServeArgs) -> Vec<bool> {
        let indexes = 0..args.models.models.len();
        indexes.map(|index| self.is_missing(args, index)).collect()
    }

    fn is_missing(&mut self, args: &mut ServeArgs, index: usize) -> bool {
        let model = &mut args.models.models[index];
        let Some(hub) = model.hub.take() else {
            return false;
        };
        match crate::model::cached(&hub) {
            Ok(Some(file)) => {
                model.file = file;
                false
            }
            Ok(None) => true,
            Err(error) => {
                self.problem(args, "model", index, error.message(false));
                true
            }
        }
    }

    async fn check_models_and_plugins(&mut self, args: &ServeArgs, is_missing: &[bool]) {
        let models = match startup::model_pool_to_check(&args.models) {
            Ok(models) => models,
            Err(error) => return self.problem(args, "device", 0, error.message(false)),
        };
        self.check_models(args, &models, is_missing).await;
        self.check_plugins(args, &models).await;
        startup::shut_down(models, &args.models, std::future::pending()).await;
    }

    async fn check_models(&mut self, args: &ServeArgs, models: &ModelPool, is_missing: &[bool]) {
        for (index, model) in args.models.models.iter().enumerate() {
            let (name, file) = (&model.name, model.file.display());
            if is_missing[index] {
                self.plan(format!("model {name} is downloaded from {file}"));
                continue;
            }
            let (pool, of) = (models.clone(), name.clone());
            // It reads the header of the file: not on a worker.
            let checked = tokio::task::spawn_blocking(move || {
                pool.estimate_host_bytes(&of)?;
                pool.estimate(&of)
            });
            match checked.await {
                Ok(Ok(Some(size))) => {
                    self.plan(format!(
                        "model {name} is {file}: {} of weights, {} for {} KV cells of {}",
                        mebibytes(size.weights),
                        mebibytes(size.cell_bytes),
                        size.cells,
                        size.kv
                    ));
                    if let Some(draft) = args.models.draft_of(index) {
                        let (draft, bytes) = (draft.display(), mebibytes(size.draft));
                        self.plan(format!("draft model of {name} is {draft}: {bytes}"));
                    }
                }
                Ok(Ok(None)) => self.plan(format!("model {name} is {file}")),
                Ok(Err(error)) => self.problem(args, "model", index, error),
                Err(error) => self.problem(args, "model", index, error),
            }
        }
        for (index, projector) in args.models.projectors.iter().enumerate() {
            let file = projector.file.display();
            match check_gguf(&projector.file) {
                Ok(()) => self.plan(format!("projector is {file}")),
                Err(problem) => {
                    let problem = format!("the projector {file} {problem}");
                    self.problem(args, "mmproj", index, problem);
                }
            }
        }
        for (index, adapter) in args.models.adapters.iter().enumerate() {
            let (name, file) = (&adapter.name, adapter.file.display());
            match check_gguf(&adapter.file) {
                Ok(()) => self.plan(format!("adapter {name} is {file}")),
                Err(problem) => {
                    let problem = format!("the adapter {file} {problem}");
                    self.problem(args, "adapter", index, problem);
                }
            }
        }
    }

    async fn check_plugins(&mut self, args: &ServeArgs, models: &ModelPool) {
        let runtime = match startup::runtime_to_check(models) {
            Ok(runtime) => runtime,
            Err(error) => return self.problems.push(error.message(false)),
        };
        let limits = match call_limits(args, &runtime) {
            Ok(limits) => limits,
            Err(error) => return self.problem(args, "max-calls", 0, error.message(false)),
        };
        for (index, plugin) in args.plugins.iter().enumerate() {
            let limits = plugin_limits(args, &plugin.route, &limits);
            match load_plugin(&runtime, &runtime.new_deployment(), plugin, limits).await {
                Ok(_) => {
                    self.plan(format!(
                        "route {} is {}",
                        plugin.route,
                        plugin.file.display()
                    ));
                }
                Err(error) => self.problem(args, "plugin", index, error.message(false)),
            }
        }
    }

    fn check_security(&mut self, args: &ServeArgs) {
        let mut warnings = Vec::new();
        if let Err(error) = args.public.open_tls(|warning| warnings.push(warning)) {
            self.problem(args, "tls-cert", 0, error);
        }
        if let Some(file) = &args.public.tls_cert {
            self.plan(format!("certificate in {}", file.display()));
        }
        match args.public.open_keys(|warning| warnings.push(warning)) {
            Ok(Some(keys)) => {
                let file = args.public.keys.as_deref().unwrap_or(Path::new(""));
                self.plan(format!("{} API keys in {}", keys.count(), file.display()));
            }
            Ok(None) => {}
            Err(error) => self.problem(args, "keys", 0, error),
        }
        for (index, secret) in args.secrets.all().iter().enumerate() {
            match secret.read() {
                Ok(_) => self.plan(secret.plan()),
                Err(error) => self.problem(args, "secret", index, error.message(false)),
            }
        }
        for (index, folder) in args.folders.all().iter().enumerate() {
            match folder.open() {
                Ok(_) => self.plan(folder.plan()),
                Err(error) => self.problem(args, "folder", index, error.message(false)),
            }
        }
        if let Some(file) = &args.verify_key {
            match read_verify_key(file) {
                Ok(_) => self.plan(format!("only what {} signed is deployed", file.display())),
                Err(error) => self.problem(args, "verify-key", 0, error.message(false)),
            }
        }
        match args.cluster.read() {
            Ok(Some(cluster)) => self.plan(format!("cluster of {}", cluster.servers)),
            Ok(None) => {}
            Err(error) => self.problem(args, "cluster", 0, error.message(false)),
        }
        match args.telemetry.settings() {
            Ok(Some(settings)) => {
                self.plan(format!("telemetry: {settings}"));
                warnings.extend_from_slice(settings.warnings());
            }
            Ok(None) => {}
            Err(error) => self.problem(args, "otlp-endpoint", 0, error.message(false)),
        }
        for warning in warnings {
            self.plan(format!("warning: {warning}"));
        }
    }

    fn check_directories(&mut self, args: &ServeArgs) {
        let memory = &args.models.memory;
        for (key, dir) in [
            ("store", &args.store),
            ("prefix-dir", &memory.prefix_dir),
            ("swap-dir", &memory.swap_dir),
            ("snapshot-dir", &memory.snapshot_dir),
            ("cache-dir", &args.models.cache_dir),
        ] {
            let Some(dir) = dir else {
                continue;
            };
            let shown = dir.display();
            match std::fs::metadata(dir) {
                Ok(found) if found.is_dir() => self.plan(format!("{key} {shown}")),
                Ok(_) => {
                    let problem = format!("{shown} is not a directory; name one");
                    self.problem(args, key, 0, problem);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.plan(format!("{key} {shown}, which is created"));
                }
                Err(error) => {
                    let problem = format!("cannot use the directory {shown}: {error}");
                    self.problem(args, key, 0, problem);
                }
            }
        }
    }

    fn check_addresses(&mut self, args: &ServeArgs) {
        let scheme = match args.public.tls_cert {
            Some(_) => "https",
            None => "http",
        };
        match resolve(&args.listen) {
            Ok(_) => self.plan(format!("listening on {scheme}://{}", args.listen)),
            Err(problem) => self.problem(args, "listen", 0, problem),
        }
        for (option, address) in args.kv_events.addresses() {
            match resolve(address.authority()) {
                Ok(_) => self.plan(format!("{option} on {address}")),
                Err(problem) => self.problem(args, option, 0, problem),
            }
        }
        let checked = match args.admin.strip_prefix("unix:") {
            Some(path) => check_socket(Path::new(path)),
            None => resolve(&args.admin).and_then(|addresses| check_token(args, &addresses)),
        };
        match checked {
            Ok(()) => self.plan(format!("admin on {}", args.admin)),
            Err(problem) => self.problem(args, "admin", 0, problem),
        }
    }
}

fn check_gguf(file: &Path) -> Result<(), String> {
    match has_gguf_magic(file) {
        Ok(true) => Ok(()),
        Ok(false) => Err("is not GGUF; convert it".to_owned()),
        Err(error) => Err(format!("cannot be read: {error}; name a GGUF file")),
    }
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>, String> {
    let found = address.to_socket_addrs().map(Vec::from_iter);
    found.map_err(|error| {
        format!("cannot listen on {address}: {error}; give HOST:PORT of this machine, e.g. 127.0.0.1:8080")
    })
}

fn check_socket(path: &Path) -> Result<(), String> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let is_valid = parent.is_none_or(Path::is_dir) && path.as_os_str().len() <= MAX_SOCKET_PATH;
    match is_valid {
        true => Ok(()),
        false => Err(format!(
            "cannot listen on unix:{}; give a path in a directory that exists, of at most {MAX_SOCKET_PATH} bytes",
            path.display()
        )),
    }
}

/// Checks the admin token for a listener with these addresses.
fn check_token(args: &ServeArgs, addresses: &[SocketAddr]) -> Result<(), String> {
    let text = admin_token::read_text(args.admin_token_file.as_deref());
    match text.map_err(|error| error.message(false))? {
        Some(text) => AdminToken::new(&text)
            .map(drop)
            .map_err(|error| error.to_string()),
        // A store has a token, or the server creates one.
        None if args.store.is_some() => Ok(()),
        None => match addresses.iter().find(|address| !address.ip().is_loopback()) {
            Some(address) => Err(BindError::TokenRequired(address.to_string()).to_string()),
            None => Ok(()),
        },
    }
}
