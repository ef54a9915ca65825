//! Compiles components in child processes, so that a component that needs too much memory or time ends its own
//! compilation only.
//!
//! A child compiles into a directory of its own. The parent moves the result into wasmtime's cache and loads it from
//! there, which takes no unsafe code. A record per component names its entry, so that known components start no child.
//! If there is no cache, its disk is full, or the entry is gone when the parent loads it, the parent compiles without
//! limits: a child has shown that they suffice.

use crate::plugin_error::PluginError;
use crate::truncate::cause;
use crate::wasm_engine::{CodeGenerator, compile_engine};
use corral_isolation::{ChildError, ChildJob, ChildProcesses, Handler, Job, JobLimits};
use sha2::{Digest, Sha256};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use wasmtime::Engine;
use wasmtime::component::Component;

/// The jobs of children, by name: one for each code generator.
pub const COMPILE_JOBS: [(&str, Handler); 3] = [
    (job_name(CodeGenerator::Optimizing), |job| {
        compile_job(CodeGenerator::Optimizing, &job)
    }),
    (job_name(CodeGenerator::Baseline), |job| {
        compile_job(CodeGenerator::Baseline, &job)
    }),
    (job_name(CodeGenerator::Unoptimized), |job| {
        compile_job(CodeGenerator::Unoptimized, &job)
    }),
];

const fn job_name(generator: CodeGenerator) -> &'static str {
    match generator {
        CodeGenerator::Optimizing => "compile",
        CodeGenerator::Baseline => "compile-baseline",
        CodeGenerator::Unoptimized => "compile-unoptimized",
    }
}

/// Limits of the compilation of a component of `bytes`. A megabyte of Rust needs a second and 100 MiB; an interpreter
/// of 20 MB, as plugins in Python have, needs 10 to 70 s. The factor leaves room for a busy machine.
fn limits(bytes: usize) -> JobLimits {
    let mebibytes = u64::try_from(bytes >> 20).unwrap_or(u64::MAX);
    let time = 50 + mebibytes.saturating_mul(10);
    let time = Duration::from_secs(time).min(MAX_COMPILE_TIME);
    JobLimits {
        memory: 768 << 20,
        time,
        cpu: 4 * time,
        file_size: 512 << 20,
        output: 0,
        niceness: 10,
    }
}

/// The longest compilation.
pub const MAX_COMPILE_TIME: Duration = Duration::from_secs(300);

/// Age of a directory that a killed server has left behind.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Compiles in child processes.
#[derive(Debug)]
pub(crate) struct IsolatedCompiler {
    children: ChildProcesses,
    cache: Option<PathBuf>,
}

impl IsolatedCompiler {
    /// `cache` is the private directory that contains wasmtime's. Absolute.
    pub(crate) fn new(children: ChildProcesses, cache: Option<PathBuf>) -> Self {
        if let Some(cache) = &cache {
            remove_abandoned(cache);
        }
        Self { children, cache }
    }

    pub(crate) fn children(&self) -> &ChildProcesses {
        &self.children
    }

    pub(crate) fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }

    /// Compiles a component in a child, unless its code is in the cache. After this the engine can load it.
    pub(crate) fn prepare(
        &self,
        engine: &Engine,
        generator: CodeGenerator,
        plugin: &str,
        bytes: &[u8],
    ) -> Result<(), PluginError> {
        let cache = self.cache.as_deref();
        let record = cache.map(|cache| cache.join("compiled").join(key(engine, bytes)));
        if let (Some(cache), Some(record)) = (cache, &record)
            && has_entry(cache, record)
        {
            return Ok(());
        }
        if cache.is_some() {
            // It takes seconds, in which a starting server would otherwise seem to hang. A check of options has no cache.
            tracing::info!("compiling {plugin}; its code stays in the cache");
        }
        let not_stored = |error: io::Error| {
            tracing::warn!(plugin, %error, "compiled code cannot be stored; compiling again");
        };
        let dir = cache.and_then(|cache| private_dir(cache).map_err(not_stored).ok());
        let job = Job {
            kind: job_name(generator),
            input: bytes,
            readable: &[],
            writable: dir.as_ref().map(TempDir::path),
            limits: limits(bytes.len()),
        };
        self.children.run(&job).map_err(|error| match error {
            ChildError::Failed(cause) => PluginError::Compile {
                plugin: plugin.to_owned(),
                cause,
            },
            cause => PluginError::CompileStopped {
                plugin: plugin.to_owned(),
                cause,
            },
        })?;
        if let (Some(cache), Some(record), Some(dir)) = (cache, &record, &dir) {
            match store_entry(cache, dir.path(), record) {
                Ok(()) => request_cleanup(engine),
                Err(error) => not_stored(error),
            }
        }
        Ok(())
    }
}

/// The child's side: compiles, into the cache in the job's directory if it has one. Its errors are wasmtime's, as text.
fn compile_job(generator: CodeGenerator, job: &ChildJob) -> Result<Vec<u8>, String> {
    let engine = compile_engine(generator, job.writable.as_deref());
    let engine = engine.map_err(|error| error.to_string())?;
    let component = Component::from_binary(&engine, &job.input).map_err(|error| cause(&error))?;
    // The process ends at once: its memory needs no tidying.
    std::mem::forget(component);
    Ok(Vec::new())
}

/// Prefix of the directories that children write to, and of unfinished files.
pub(crate) const TEMPORARY: &str = "compile-";

/// A new directory for a child, which nobody else can know or read. It is removed when dropped.
fn private_dir(base: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(base)
}

/// Removes the directories and unfinished records of killed servers.
fn remove_abandoned(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        #[expect(clippy::disallowed_methods, reason = "files have dates")]
        let age = modified.map(|time| SystemTime::now().duration_since(time).unwrap_or_default());
        if is_ours && age.is_ok_and(|age| age > ABANDONED) {
            let path = entry.path();
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}

/// Name of a component's record: its digest, and what the engine's settings and version are.
fn key(engine: &Engine, bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    format!("{:x}-{:016x}", Sha256::digest(bytes), hasher.finish())
}

/// Wasmtime's entries.
fn entries_dir(cache: &Path) -> PathBuf {
    cache.join("wasmtime/modules")
}

/// Whether the entry that a record names exists.
fn has_entry(cache: &Path, record: &Path) -> bool {
    let entry = fs::read_to_string(record).unwrap_or_default();
    !entry.is_empty() && entries_dir(cache).join(entry).is_file()
}

/// Moves the entry that a child has written into wasmtime's cache, unless the cache has it, and records its name.
fn store_entry(cache: &Path, child_dir: &Path, record: &Path) -> io::Result<()> {
    let (version, name) = find_entry(&child_dir.join("modules"))?;
    let to = entries_dir(cache).join(&version);
    fs::create_dir_all(&to)?;
    let from = child_dir.join("modules").join(&version).join(&name);
    // Unlike renaming, a link replaces nothing. The child's name goes with its directory.
    match fs::hard_link(from, to.join(&name)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let records = record.parent().unwrap_or(cache);
    fs::create_dir_all(records)?;
    // Records are as many as entries: wasmtime bounds those.
    for other in fs::read_dir(records)?.flatten() {
        if !has_entry(cache, &other.path()) {
            let _ = fs::remove_file(other.path());
        }
    }
    // Others read a record complete or not at all.
    let mut file = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .tempfile_in(cache)?;
    write!(file, "{version}/{name}")?;
    file.persist(record).map_err(|error| error.error)?;
    Ok(())
}

/// The one file without an extension, and its directory, which names wasmtime's version. Follows no links and takes
/// plain names only: the child may have written anything.
fn find_entry(modules: &Path) -> io::Result<(String, String)> {
    let is_plain = |name: &str| {
        let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        !name.starts_with('.') && name.bytes().all(allowed)
    };
    if !fs::symlink_metadata(modules)?.is_dir() {
        return Err(io::Error::other("the child wrote no directory"));
    }
    for version in fs::read_dir(modules)?.flatten() {
        if !version.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(version.path())?.flatten() {
            let is_entry = file.path().extension().is_none() && file.file_type()?.is_file();
            let names = (
                version.file_name().into_string(),
                file.file_name().into_string(),
            );
            if let (true, (Ok(version), Ok(name))) = (is_entry, names)
                && is_plain(&version)
                && is_plain(&name)
            {
                return Ok((version, name));
            }
        }
    }
    Err(io::Error::other("the child wrote no entry"))
}

/// Has wasmtime bound the size of its cache, which it considers only when it writes an entry itself: compiles an
/// empty component that is not in the cache.
fn request_cleanup(engine: &Engine) {
    #[expect(clippy::disallowed_methods, reason = "any other number will do")]
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let mut component = wasm_encoder::Component::new();
    component.section(&wasm_encoder::CustomSection {
        name: "time".into(),
        data: now.as_nanos().to_le_bytes().as_slice().into(),
    });
    if let Err(error) = Component::from_binary(engine, &component.finish()) {
        tracing::warn!(%error, "the cache of compiled code cannot be bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime_config::RuntimeConfig;
    use crate::wasm_engine::wasm_engine;

    #[test]
    fn entry_of_child_is_found_by_server() {
        // Removed when dropped, as far as wasmtime's thread does not write to it at that moment.
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().to_owned();
        let config = RuntimeConfig {
            instances: 1,
            cache: Some(dir.clone()),
            ..RuntimeConfig::default()
        };
        let engine = wasm_engine(&config, CodeGenerator::Optimizing).unwrap();
        let bytes = wat::parse_str("(component (core module (func (export \"f\"))))").unwrap();
        let record = dir.join("compiled").join(key(&engine, &bytes));
        assert!(!has_entry(&dir, &record));
        let child = private_dir(&dir).unwrap();
        let job = ChildJob {
            input: bytes.clone(),
            writable: Some(child.path().to_owned()),
        };
        compile_job(CodeGenerator::Optimizing, &job).unwrap();
        store_entry(&dir, child.path(), &record).unwrap();
        assert!(has_entry(&dir, &record));
        // The server's engine loads the child's entry and writes none.
        let (version, name) = find_entry(&entries_dir(&dir)).unwrap();
        Component::from_binary(&engine, &bytes).unwrap();
        let entries = fs::read_dir(entries_dir(&dir).join(&version)).unwrap();
        let entries = entries
            .flatten()
            .filter(|file| file.path().extension().is_none());
        assert_eq!(entries.count(), 1);
        fs::remove_file(entries_dir(&dir).join(version).join(name)).unwrap();
        assert!(!has_entry(&dir, &record), "an entry that is gone");
    }

    #[test]
    fn code_of_each_generator_has_its_own_record() {
        let key = |generator| key(&compile_engine(generator, None).unwrap(), b"x");
        let optimizing = key(CodeGenerator::Optimizing);
        let unoptimized = key(CodeGenerator::Unoptimized);
        assert_ne!(optimizing, unoptimized);
        if cfg!(target_arch = "x86_64") {
            let baseline = key(CodeGenerator::Baseline);
            assert!(baseline != optimizing && baseline != unoptimized);
        }
    }

    #[test]
    fn time_limit_grows_with_size() {
        let seconds = |mebibytes: usize| limits(mebibytes << 20).time.as_secs();
        assert_eq!((seconds(0), seconds(20), seconds(64)), (50, 250, 300));
    }

    #[test]
    fn links_of_child_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (modules, elsewhere) = (dir.path().join("modules"), dir.path().join("elsewhere"));
        fs::create_dir(&modules).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("entry"), "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, modules.join("version")).unwrap();
        find_entry(&modules).unwrap_err();
        fs::rename(&elsewhere, modules.join("real")).unwrap();
        let found = find_entry(&modules).unwrap();
        assert_eq!(found, ("real".to_owned(), "entry".to_owned()));
    }
}
