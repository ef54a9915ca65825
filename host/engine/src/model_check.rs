//! Checks a model file in a child process before this process opens it.
//!
//! llama.cpp ends the process on many malformed files. The child opens the file as the server will, but on the CPU and with
//! few cells, and generates some tokens. A file that ends the child is refused.
//!
//! Where memory suffices for both, this process loads the file meanwhile: it begins each stage of the load after the
//! child has ended it, and computes with the model once the child has generated. The header is read in parts, since a
//! large vocabulary may take a fifth of a load. Without devices both read the tensors in the same order, and each
//! tensor is a stage; else the child maps the weights, and they are one stage. The context, whose cells may take as long to
//! clear as the weights to read, is made while the child generates.
//!
//! A passed check holds for the same files, all parts of a split model included (device, inode, size, times of
//! modification and change), the same options and the same binary. Passed checks are recorded in a directory, so that a
//! file is checked once and not at every start.
//!
//! Before the check this process reads only the header of a file (metadata and list of tensors), to estimate the model's
//! memory, with a reader in safe Rust that bounds what it allocates.
//!
//! Not covered: weights that a GPU computes differently, and a file that changes between the check and the load within
//! the resolution of the file system's clock.

pub(crate) mod input;
pub(crate) mod job;
mod stages;

use crate::LoadError;
use crate::file_identity::FileIdentity;
use crate::machine_memory::free_memory;
use crate::split_files::split_files;
use corral_isolation::{Cancel, ChildError, ChildProcesses, Job, JobLimits};
use corral_llama::{LoadGate, LoadStage, default_backend_dir};
use input::{CHECK_MODEL_JOB, ModelCheckInput};
use sha2::{Digest, Sha256};
use stages::{CheckStages, Pace};
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Memory of a check beside the weights: the vocabulary, and the buffers of a step of 512 tokens.
const BASE_MEMORY: u64 = 2 << 30;
/// One part in this many of the weights may be in memory twice: llama.cpp reads a tensor before it rearranges it.
const TWICE_DIVISOR: u64 = 8;
/// Time of a check beside reading the weights. Generous, because other processes may keep the cores busy.
const BASE_TIME: Duration = Duration::from_secs(900);
/// Bytes of weights a second, for the time limit.
const SLOWEST_DISK: u64 = 10 << 20;
/// Most memory of a check, whatever size the files claim.
const MAX_MEMORY: u64 = 1 << 40;
/// Most time of a check, whatever size the files claim.
const MAX_TIME: Duration = Duration::from_secs(6 * 3600);
/// Passed checks recorded in the directory, each as an empty file.
const MAX_PASSED: usize = 4096;

/// Checks model files. One for all models of a process.
#[derive(Debug)]
pub struct ModelCheck {
    children: ChildProcesses,
    /// Directory of `--backend-dir`.
    backend_dir: Option<PathBuf>,
    /// Directory of passed checks.
    passed: Option<PathBuf>,
    /// Passed checks of this process.
    known: Mutex<HashSet<String>>,
    /// The identity of this binary at its start: another one may replace its file later.
    binary: Option<FileIdentity>,
}

impl ModelCheck {
    /// `passed` is a private directory for passed checks; without it they last as long as the process, as they do if
    /// the binary cannot be identified.
    pub fn new(
        children: ChildProcesses,
        backend_dir: Option<PathBuf>,
        passed: Option<PathBuf>,
    ) -> Self {
        // On Linux the running file even if another one has replaced it.
        let binary = match cfg!(target_os = "linux") {
            true => Ok(PathBuf::from("/proc/self/exe")),
            false => std::env::current_exe(),
        };
        let binary = binary.and_then(|path| FileIdentity::of(&path)).ok();
        Self {
            children,
            backend_dir,
            passed: passed.filter(|_| binary.is_some()),
            known: Mutex::default(),
            binary,
        }
    }

    /// Loads the files of a model with `load`, and checks them beside it unless they passed before. The load must ask
    /// its gate before each stage; its context takes `context_bytes`. Once `is_canceled`, the gate ends it, and the check
    /// ends with it.
    pub(crate) fn check_beside<T>(
        &self,
        model: &ModelCheckInput,
        context_bytes: u64,
        is_canceled: &dyn Fn() -> bool,
        load: impl FnOnce(LoadGate<'_>) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let key = self.fingerprint(model)?;
        if self.is_known(&key) {
            return load(&|_| true);
        }
        let changed = || match self.fingerprint(model)? == key {
            true => Ok(()),
            false => Err(refused(model, "it changed while it was checked; try again")),
        };
        let weights = total_bytes(&files(model)).saturating_mul(2);
        let pace = match (has_room_beside(weights), model.same_order) {
            (false, _) => Pace::AfterCheck,
            (true, None) => Pace::ByStage,
            (true, Some(_)) => Pace::ByTensor,
        };
        let stages = CheckStages::default();
        let cancel = Cancel::default();
        let check = || {
            let _ended = stages.end_on_drop();
            let checked = self
                .run(model, pace, &|| stages.report(), &cancel)
                .and_then(|()| changed());
            stages.end(checked.is_ok());
            checked
        };
        let (loaded, checked) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("model-check".into());
            // Without a thread, the load follows the check.
            let checking = thread.spawn_scoped(scope, check).map_err(|_| check());
            let loaded = load(&|stage| {
                let is_same = || stage != LoadStage::Header(0) || changed().is_ok();
                let has_room = || has_room_beside(bytes_beside_context(model, context_bytes));
                let pace = match stage {
                    LoadStage::Context(_) if !has_room() => Pace::AfterCheck,
                    _ => pace,
                };
                stages.wait(stage, pace, is_canceled) && is_same()
            });
            if is_canceled() {
                cancel.cancel();
            }
            let checked = match checking {
                Ok(thread) => thread.join(),
                Err(checked) => Ok(checked),
            };
            (loaded, checked)
        });
        if is_canceled() && loaded.is_err() {
            return loaded;
        }
        match checked {
            Ok(checked) => checked?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        self.remember(&key);
        loaded
    }

    fn run(
        &self,
        model: &ModelCheckInput,
        pace: Pace,
        on_progress: &dyn Fn(),
        cancel: &Cancel,
    ) -> Result<(), LoadError> {
        let adapters = model.adapters.iter();
        let adapters = adapters.map(|(name, path)| (name.clone(), absolute(path)));
        let projector = model.projector.as_deref().map(absolute);
        let backend_dir = self.backend_dir.as_deref().map(absolute);
        let checked = ModelCheckInput {
            path: absolute(&model.path),
            kv_type: model.kv_type,
            context: model.context,
            projector,
            adapters: adapters.collect(),
            same_order: model.same_order.filter(|_| pace == Pace::ByTensor),
        };
        let mut readable = files(&checked);
        let bytes = total_bytes(&readable);
        readable.extend(backend_dir.clone().or_else(default_backend_dir));
        let time = BASE_TIME + Duration::from_secs(bytes / SLOWEST_DISK);
        let time = time.min(MAX_TIME);
        let job = Job {
            kind: CHECK_MODEL_JOB,
            input: &checked.encode(backend_dir.as_deref()),
            readable: &readable,
            writable: None,
            limits: JobLimits {
                memory: bytes
                    .saturating_add(bytes / TWICE_DIVISOR)
                    .saturating_add(BASE_MEMORY)
                    .min(MAX_MEMORY),
                time,
                cpu: time,
                file_size: 0,
                output: 0,
                // A client waits for the model.
                niceness: 0,
            },
        };
        match self.children.run_with_progress(&job, on_progress, cancel) {
            Ok(_) => Ok(()),
            // The child's own words.
            Err(ChildError::Failed(text)) => Err(refused_because(model, text)),
            Err(ChildError::Time { limit }) => Err(refused(
                model,
                &format!(
                    "the check took longer than {} s; load it again when the machine and its disk are less busy, and \
                     if that does not help, download or convert it again",
                    limit.as_secs()
                ),
            )),
            Err(error) if error.is_final() => Err(refused(
                model,
                &format!("opening it fails: {error}; download or convert it again"),
            )),
            Err(error) => Err(LoadError::Config(format!(
                "the model file cannot be checked: {error}"
            ))),
        }
    }

    fn is_known(&self, key: &Fingerprint) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = self.passed.as_ref().filter(|dir| is_private(dir));
        known.contains(&key.0) || dir.is_some_and(|dir| dir.join(&key.0).is_file())
    }

    fn remember(&self, key: &Fingerprint) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.0.clone());
        if let Some(dir) = &self.passed
            && let Err(error) = write_passed(dir, key)
        {
            tracing::warn!(%error, "the passed check of a model file cannot be recorded");
        }
    }
}

/// Whether memory suffices for these bytes of the load and the check, beside what a check takes without weights.
fn has_room_beside(bytes: u64) -> bool {
    let needed = bytes.saturating_add(BASE_MEMORY);
    free_memory().is_some_and(|free| free >= needed)
}

/// Bytes that the load and the check take once both have read the weights: the context of the load, and twice the projector
/// and the adapters.
fn bytes_beside_context(model: &ModelCheckInput, context_bytes: u64) -> u64 {
    let others = total_bytes(&other_files(model));
    others.saturating_mul(2).saturating_add(context_bytes)
}

/// All that is in memory with a model: its parts, its projector and its adapters.
fn files(model: &ModelCheckInput) -> Vec<PathBuf> {
    let mut files = split_files(&model.path);
    files.extend(other_files(model));
    files
}

/// The projector and the adapters of a model.
fn other_files(model: &ModelCheckInput) -> Vec<PathBuf> {
    let adapters = model.adapters.iter().map(|(_, path)| path);
    adapters.chain(&model.projector).cloned().collect()
}

fn total_bytes(files: &[PathBuf]) -> u64 {
    let sizes = files.iter().filter_map(|file| fs::metadata(file).ok());
    sizes.fold(0, |sum, file| sum.saturating_add(file.len()))
}

/// Whether only this user can write to a directory.
fn is_private(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|dir| {
        dir.uid() == rustix::process::geteuid().as_raw() && dir.mode() & 0o022 == 0
    })
}

fn write_passed(dir: &Path, key: &Fingerprint) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    let full = fs::read_dir(dir)?.count() >= MAX_PASSED;
    if full {
        for passed in fs::read_dir(dir)?.flatten() {
            let _ = fs::remove_file(passed.path());
        }
    }
    fs::write(dir.join(&key.0), "")
}

/// Any of the files may be the cause.
fn refused(model: &ModelCheckInput, cause: &str) -> LoadError {
    let adapters = model.adapters.iter().map(|(_, path)| path);
    let others = model.projector.iter().chain(adapters);
    let others: Vec<_> = others.map(|path| path.display().to_string()).collect();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!(" with {}", others.join(", ")),
    };
    let path = model.path.display();
    refused_because(model, format!("the model file {path}{others}: {cause}"))
}

/// A refusal whose text has each path as the operator wrote it.
fn refused_because(model: &ModelCheckInput, text: String) -> LoadError {
    let paths = files(model);
    let text = paths.iter().fold(text, |text, path| {
        text.replace(&*absolute(path).to_string_lossy(), &path.to_string_lossy())
    });
    LoadError::Refused { paths, text }
}

/// Links are not resolved: the name of a first part tells the names of the others.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Identifies what a check depends on.
#[derive(Debug, PartialEq, Eq)]
struct Fingerprint(String);

/// Hashes bytes with their length before them, so that they cannot be confused with what follows.
fn hash_bytes(hasher: &mut Sha256, bytes: &[u8]) {
    hasher.update((bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// Hashes the identities of a file and of the other parts of a split model. Only the file itself must exist: a name
/// may look like a part's by chance.
fn hash_parts(hasher: &mut Sha256, path: &Path) -> std::io::Result<()> {
    let parts = split_files(path);
    hasher.update((parts.len() as u64).to_le_bytes());
    for part in &parts {
        hash_bytes(hasher, part.as_os_str().as_bytes());
        match FileIdentity::of(part) {
            Ok(identity) => identity.hash(hasher),
            Err(error) if part == path => return Err(error),
            Err(_) => hasher.update([0]),
        }
    }
    Ok(())
}

impl ModelCheck {
    fn fingerprint(&self, model: &ModelCheckInput) -> Result<Fingerprint, LoadError> {
        let mut hasher = Sha256::new();
        if let Some(binary) = &self.binary {
            binary.hash(&mut hasher);
        }
        let adapters = model.adapters.iter().map(|(_, path)| path);
        let others = adapters.chain(&model.projector);
        hasher.update((model.adapters.len() as u64).to_le_bytes());
        for path in std::iter::once(&model.path).chain(others) {
            hash_parts(&mut hasher, path).map_err(|error| LoadError::Refused {
                paths: vec![path.clone()],
                text: format!(
                    "cannot read {}: {error}; check the path and who may read the file",
                    path.display()
                ),
            })?;
        }
        hash_bytes(&mut hasher, model.kv_type.name().as_bytes());
        hasher.update(model.context.unwrap_or(0).to_le_bytes());
        Ok(Fingerprint(format!("{:x}", hasher.finalize())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_llama::KvType;

    #[test]
    fn every_part_changes_the_fingerprint() {
        let dir = tempfile::tempdir().unwrap();
        let part = |n: u32| dir.path().join(format!("m-{n:05}-of-00002.gguf"));
        let check = ModelCheck::new(ChildProcesses::new().unwrap(), None, None);
        let model = ModelCheckInput {
            path: part(1),
            kv_type: KvType::default(),
            context: None,
            projector: None,
            adapters: Vec::new(),
            same_order: None,
        };
        let error = check.fingerprint(&model).unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
        let mut seen = HashSet::new();
        for (number, text) in [(1, "a"), (2, "a"), (2, "ab"), (1, "ab")] {
            fs::write(part(number), text).unwrap();
            assert!(seen.insert(check.fingerprint(&model).unwrap().0));
        }
    }

    #[test]
    fn context_needs_room_for_projector_and_adapters() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, length: usize| {
            let path = dir.path().join(name);
            fs::write(&path, vec![0_u8; length]).unwrap();
            path
        };
        let model = ModelCheckInput {
            path: file("m.gguf", 1000),
            kv_type: KvType::default(),
            context: None,
            projector: Some(file("p.gguf", 100)),
            adapters: vec![("x".to_owned(), file("x.gguf", 10))],
            same_order: None,
        };
        assert_eq!(total_bytes(&files(&model)), 1110);
        assert_eq!(bytes_beside_context(&model, 1), 221);
        assert_eq!(bytes_beside_context(&model, u64::MAX), u64::MAX);
    }
}
