//! Checks a model file in a child process before this process opens it.
//!
//! llama.cpp ends the process on many malformed files. The child opens the file as the server will, but on the CPU, with
//! few cells and with the weights mapped, and generates some tokens. A file that ends the child is refused.
//!
//! A verdict holds for the same files (device, inode, size, times of modification and change), the same options and the
//! same binary. Good verdicts are kept in a directory, so that a file is checked once and not at every start.
//!
//! Not covered: weights that a GPU computes differently, and a file that changes between the check and the load within
//! the resolution of the file system's clock.

mod job;

pub use job::{CHECK_MODEL_JOB, check_model_job};

use crate::LoadError;
use crate::model_config::ModelConfig;
use corral_isolation::{ChildError, ChildProcesses, Job, JobLimits};
use corral_llama::default_backend_dir;
use job::JobInput;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Memory of a check beside the weights: the vocabulary, and the buffers of a step of 512 tokens.
const BASE_MEMORY: u64 = 2 << 30;
/// Time of a check beside reading the weights. Generous, because other processes may keep the cores busy.
const BASE_TIME: Duration = Duration::from_secs(300);
/// Bytes of weights a second, for the time limit.
const SLOWEST_DISK: u64 = 20 << 20;
/// Good verdicts kept in the directory. A verdict is an empty file.
const MAX_VERDICTS: usize = 4096;

/// Checks model files. One for all models of a process.
#[derive(Debug)]
pub struct ModelCheck {
    children: ChildProcesses,
    /// Directory of `--backend-dir`.
    backend_dir: Option<PathBuf>,
    /// Directory of verdicts.
    verdicts: Option<PathBuf>,
    /// Good verdicts of this process.
    known: Mutex<HashSet<String>>,
}

impl ModelCheck {
    /// `verdicts` is a private directory for verdicts; without it they last as long as the process.
    pub fn new(
        children: ChildProcesses,
        backend_dir: Option<PathBuf>,
        verdicts: Option<PathBuf>,
    ) -> Self {
        Self {
            children,
            backend_dir,
            verdicts,
            known: Mutex::default(),
        }
    }

    /// Checks the files of a model, unless they have a good verdict.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), LoadError> {
        let changed = || refused(config, "it changed while it was checked; try again");
        let key = Fingerprint::of(config).ok_or_else(changed)?;
        if self.is_known(&key) {
            return Ok(());
        }
        self.run(config)?;
        if Fingerprint::of(config).as_ref() != Some(&key) {
            return Err(changed());
        }
        self.remember(&key);
        Ok(())
    }

    fn run(&self, config: &ModelConfig) -> Result<(), LoadError> {
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let path = absolute(&config.path);
        let adapters = config.adapters.iter();
        let adapters = adapters.map(|(name, path)| (name.clone(), absolute(path)));
        let input = JobInput {
            path: path.clone(),
            backend_dir: self.backend_dir.as_deref().map(absolute),
            kv_type: config.placement.kv_type,
            context: config.context,
            adapters: adapters.collect(),
        };
        let mut readable: Vec<_> = input
            .adapters
            .iter()
            .map(|(_, path)| path.clone())
            .collect();
        readable.extend(input.backend_dir.clone().or_else(default_backend_dir));
        // The first of several files names the others.
        let is_part = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().contains("-of-"));
        let bytes = match path.parent().filter(|_| is_part) {
            Some(dir) => {
                readable.push(dir.to_owned());
                let files = fs::read_dir(dir).into_iter().flatten().flatten();
                files
                    .filter_map(|file| file.metadata().ok())
                    .map(|file| file.len())
                    .sum()
            }
            None => {
                readable.push(path.clone());
                fs::metadata(&path).map_or(0, |file| file.len())
            }
        };
        let time = BASE_TIME + Duration::from_secs(bytes / SLOWEST_DISK);
        let job = Job {
            kind: CHECK_MODEL_JOB,
            input: &input.encode(),
            readable: &readable,
            writable: None,
            limits: JobLimits {
                memory: bytes.saturating_add(BASE_MEMORY),
                time,
                cpu: time,
                file_size: 0,
                // A client waits for the model.
                niceness: 0,
            },
        };
        match self.children.run(&job) {
            Ok(_) => Ok(()),
            // The child's own words, with the path as the operator wrote it.
            Err(ChildError::Failed(text)) => Err(LoadError::Refused {
                path: config.path.clone(),
                text: text.replace(&*path.to_string_lossy(), &config.path.to_string_lossy()),
            }),
            Err(error) if error.is_verdict() => Err(refused(
                config,
                &format!("opening it fails: {error}; download or convert it again"),
            )),
            Err(error) => Err(LoadError::Config(format!(
                "the model file cannot be checked: {error}"
            ))),
        }
    }

    fn is_known(&self, key: &Fingerprint) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = self.verdicts.as_ref().filter(|dir| is_private(dir));
        known.contains(&key.0) || dir.is_some_and(|dir| dir.join(&key.0).is_file())
    }

    fn remember(&self, key: &Fingerprint) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.0.clone());
        if let Some(dir) = &self.verdicts
            && let Err(error) = write_verdict(dir, key)
        {
            tracing::warn!(%error, "the verdict on a model file cannot be stored");
        }
    }
}

/// Whether only this user can write to a directory.
fn is_private(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|dir| {
        dir.uid() == rustix::process::geteuid().as_raw() && dir.mode() & 0o022 == 0
    })
}

fn write_verdict(dir: &Path, key: &Fingerprint) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    let full = fs::read_dir(dir)?.count() >= MAX_VERDICTS;
    if full {
        for verdict in fs::read_dir(dir)?.flatten() {
            let _ = fs::remove_file(verdict.path());
        }
    }
    fs::write(dir.join(&key.0), "")
}

fn refused(config: &ModelConfig, cause: &str) -> LoadError {
    LoadError::Refused {
        path: config.path.clone(),
        text: format!("the model file {}: {cause}", config.path.display()),
    }
}

/// Identifies what a check depends on.
#[derive(Debug, PartialEq, Eq)]
struct Fingerprint(String);

impl Fingerprint {
    /// `None` if a file cannot be read.
    fn of(config: &ModelConfig) -> Option<Self> {
        let mut hasher = Sha256::new();
        let binary = std::env::current_exe().ok();
        let files = config.adapters.iter().map(|(_, path)| path);
        let files = std::iter::once(&config.path).chain(files).chain(&binary);
        for path in files {
            let file = fs::metadata(path).ok()?;
            hasher.update(path.as_os_str().as_bytes());
            for number in [file.dev(), file.ino(), file.size()] {
                hasher.update(number.to_le_bytes());
            }
            for number in [
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            ] {
                hasher.update(number.to_le_bytes());
            }
        }
        hasher.update(config.placement.kv_type.name());
        hasher.update(config.context.unwrap_or(0).to_le_bytes());
        Some(Self(format!("{:x}", hasher.finalize())))
    }
}
