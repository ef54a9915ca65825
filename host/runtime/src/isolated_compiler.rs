//! Compiles components in child processes, so that a component that needs too much memory or time ends its own
//! compilation only.
//!
//! A child compiles into a directory of its own. The parent moves the result into wasmtime's cache and loads it from
//! there, which takes no unsafe code. A record per component names its entry, so that known components start no child.
//! If the entry is gone when the parent loads it, the parent compiles within the bounds that the child has shown.

use crate::plugin_error::PluginError;
use crate::truncate::cause;
use crate::wasm_engine::compile_engine;
use corral_isolation::{ChildError, ChildJob, ChildProcesses, Job, JobLimits};
use sha2::{Digest, Sha256};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Name of the job.
pub const COMPILE_JOB: &str = "compile";

/// Limits of one compilation. A component of a megabyte needs a second and 100 MiB.
const LIMITS: JobLimits = JobLimits {
    memory: 768 << 20,
    time: Duration::from_secs(50),
    cpu: Duration::from_secs(200),
    file_size: 512 << 20,
    niceness: 10,
};

/// Age of a directory that a killed server has left behind.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Compiles in child processes.
#[derive(Debug)]
pub(crate) struct IsolatedCompiler {
    children: ChildProcesses,
    cache: Option<PathBuf>,
    next_dir: AtomicU64,
}

impl IsolatedCompiler {
    /// `cache` is the private directory that contains wasmtime's.
    pub(crate) fn new(children: ChildProcesses, cache: Option<PathBuf>) -> Self {
        if let Some(cache) = &cache {
            remove_abandoned(cache);
        }
        Self {
            children,
            cache,
            next_dir: AtomicU64::new(0),
        }
    }

    pub(crate) fn children(&self) -> &ChildProcesses {
        &self.children
    }

    /// Compiles a component in a child, unless its code is in the cache. After this the engine can load it.
    pub(crate) fn prepare(
        &self,
        engine: &Engine,
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
        let number = self.next_dir.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{number}", COMPILE_DIR, std::process::id());
        let base = cache.map_or_else(std::env::temp_dir, Path::to_owned);
        let failed = |error: io::Error| PluginError::CompileStopped {
            plugin: plugin.to_owned(),
            cause: ChildError::Start(error),
        };
        let dir = PrivateDir::create(base.join(name)).map_err(failed)?;
        let job = Job {
            kind: COMPILE_JOB,
            input: bytes,
            readable: &[],
            writable: Some(&dir.0),
            limits: LIMITS,
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
        if let (Some(cache), Some(record)) = (cache, &record) {
            match store_entry(cache, &dir.0, record) {
                Ok(()) => request_cleanup(engine),
                Err(error) => {
                    tracing::warn!(plugin, %error, "compiled code cannot be stored; compiling again");
                }
            }
        }
        Ok(())
    }
}

/// The child's side: compiles into the cache in the job's directory.
///
/// # Errors
/// Wasmtime's, as text.
pub fn compile_job(job: ChildJob) -> Result<Vec<u8>, String> {
    let dir = job.writable.ok_or("it has no directory")?;
    let engine = compile_engine(&dir).map_err(|error| error.to_string())?;
    let component = Component::from_binary(&engine, &job.input).map_err(|error| cause(&error))?;
    // The process ends at once: its memory needs no tidying.
    std::mem::forget(component);
    Ok(Vec::new())
}

/// Prefix of the directories that children write to.
const COMPILE_DIR: &str = "compile-";

/// A directory that is removed when dropped.
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn create(path: PathBuf) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the directories of killed servers.
fn remove_abandoned(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(COMPILE_DIR);
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.map(|time| SystemTime::now().duration_since(time).unwrap_or_default());
        if is_ours && age.is_ok_and(|age| age > ABANDONED) {
            let _ = fs::remove_dir_all(entry.path());
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

/// Moves the entry that a child has written into wasmtime's cache, and records its name.
fn store_entry(cache: &Path, child_dir: &Path, record: &Path) -> io::Result<()> {
    let (version, name) = find_entry(&child_dir.join("modules"))?;
    let to = entries_dir(cache).join(&version);
    fs::create_dir_all(&to)?;
    let from = child_dir.join("modules").join(&version).join(&name);
    fs::rename(from, to.join(&name))?;
    let records = record.parent().unwrap_or(cache);
    fs::create_dir_all(records)?;
    // Records are as many as entries: wasmtime bounds those.
    for other in fs::read_dir(records)?.flatten() {
        if !has_entry(cache, &other.path()) {
            let _ = fs::remove_file(other.path());
        }
    }
    fs::write(record, format!("{version}/{name}"))
}

/// The one file without an extension, and its directory, which names wasmtime's version.
fn find_entry(modules: &Path) -> io::Result<(String, String)> {
    for version in fs::read_dir(modules)?.flatten() {
        for file in fs::read_dir(version.path())?.flatten() {
            let is_entry = file.path().extension().is_none() && file.file_type()?.is_file();
            let names = (
                version.file_name().into_string(),
                file.file_name().into_string(),
            );
            if let (true, (Ok(version), Ok(name))) = (is_entry, names) {
                return Ok((version, name));
            }
        }
    }
    Err(io::Error::other("the child wrote no entry"))
}

/// Has wasmtime bound the size of its cache, which it considers only when it writes an entry itself: compiles an
/// empty component that is not in the cache.
fn request_cleanup(engine: &Engine) {
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
    use crate::config::RuntimeConfig;
    use crate::wasm_engine::wasm_engine;

    #[test]
    fn entry_of_child_is_found_by_server() {
        let dir = std::env::temp_dir().join(format!("corral-compiled-{}", std::process::id()));
        let config = RuntimeConfig {
            instances: 1,
            cache: Some(dir.clone()),
            ..RuntimeConfig::default()
        };
        let engine = wasm_engine(&config).unwrap();
        let bytes = wat::parse_str("(component (core module (func (export \"f\"))))").unwrap();
        let record = dir.join("compiled").join(key(&engine, &bytes));
        assert!(!has_entry(&dir, &record));
        let child = PrivateDir::create(dir.join("compile-1")).unwrap();
        let job = ChildJob {
            input: bytes.clone(),
            writable: Some(child.0.clone()),
        };
        compile_job(job).unwrap();
        store_entry(&dir, &child.0, &record).unwrap();
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
        fs::remove_dir_all(&dir).unwrap();
    }
}
