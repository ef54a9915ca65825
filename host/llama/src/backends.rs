//! ggml's backends: built in, or shared objects in a directory (`dynamic-backends`).
//!
//! ggml's own search looks in the directory of the executable, in the current directory and in `GGML_BACKEND_PATH`, and
//! silently skips files that it can't load. So this module never lets ggml search: it lists one directory, loads each
//! backend by its path and keeps the reason of a failure. Of a backend with variants for several processors it loads
//! the one with the highest score, as ggml does.
//!
//! Backends are loaded once, before anything else; nothing else changes ggml's list of them.

use crate::{LlamaError, ggml, log};
use llama_cpp_sys_2 as sys;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared objects that are not backends, and the backend for remote machines.
const IGNORED: [&str; 2] = ["base", "rpc"];

/// A backend with a file in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFile {
    /// The name in its file name: `cpu`, `cuda`, `vulkan` and so on.
    pub name: String,
    /// The file that was chosen.
    pub path: PathBuf,
    /// Why it was not loaded.
    pub problem: Option<String>,
    /// Errors and warnings of the load.
    pub log: Vec<String>,
}

pub(crate) struct Registry {
    /// Whether backends are in use and the registry no longer changes.
    started: bool,
    /// The directory that was loaded.
    pub dir: Option<PathBuf>,
    pub files: Vec<BackendFile>,
    /// Errors and warnings of built-in backends.
    pub log: Vec<String>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());

/// The backends that were loaded.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the backends in a directory. Call it before anything else is loaded; a second call with the same directory does
/// nothing.
///
/// Fails if the directory can't be read, if this binary has its backends built in and the directory holds some, or if none of
/// them computes on the CPU. Another backend that can't be loaded is no error: the result gives the reason.
pub fn load_backends(dir: &Path) -> Result<Vec<BackendFile>, LlamaError> {
    let found = BackendDir::list(dir)?;
    if !cfg!(feature = "dynamic-backends") {
        return match found.0.keys().next() {
            None => Ok(Vec::new()),
            Some(name) => Err(LlamaError::Setup(format!(
                "{} holds backends (libggml-{name} and {} others), but this binary was built without \
                 `dynamic-backends` and loads none; omit the directory, or build with `--features \
                 dynamic-backends`",
                dir.display(),
                found.0.len() - 1
            ))),
        };
    }
    let mut registry = lock();
    if registry.dir.as_deref() == Some(dir) {
        return Ok(registry.files.clone());
    }
    if registry.started || registry.dir.is_some() {
        return Err(LlamaError::Setup(format!(
            "cannot load backends from {}: others are in use; load the directory before anything else",
            dir.display()
        )));
    }
    registry.load(dir, &found);
    match ggml::has_cpu() {
        true => Ok(registry.files.clone()),
        false => Err(registry.no_cpu_error()),
    }
}

/// The default directory of backends: `backends` beside the executable, or else the executable's own directory. `None` if
/// all backends are built in.
pub fn default_backend_dir() -> Option<PathBuf> {
    if !cfg!(feature = "dynamic-backends") {
        return None;
    }
    let executable = std::env::current_exe().ok()?;
    let own = executable.parent()?;
    let backends = own.join("backends");
    Some(if backends.is_dir() {
        backends
    } else {
        own.to_owned()
    })
}

/// Initializes llama.cpp, once per process; loads the backends of [`default_backend_dir`] unless others are loaded.
pub(crate) fn start() -> Result<(), LlamaError> {
    let mut registry = lock();
    if !registry.started {
        log::forward();
        let dir = match registry.dir {
            Some(_) => None,
            None => default_backend_dir(),
        };
        if let Some(dir) = dir {
            let found = BackendDir::list(&dir)?;
            registry.load(&dir, &found);
        }
        // The first call starts built-in backends.
        let (count, lines) = log::capture(|| {
            // SAFETY: counts the backends.
            unsafe { sys::ggml_backend_reg_count() }
        });
        registry.log.extend(lines);
        if count > 0 {
            // Before `llama_backend_init`, which runs once: if this fails, the next call starts over.
            #[cfg(own_attention)]
            crate::attention::install()?;
            // SAFETY: once per process, before anything is loaded or quantized. It searches for backends only if
            // there are none.
            unsafe { sys::llama_backend_init() };
        }
        registry.started = true;
    }
    match ggml::has_cpu() {
        true => Ok(()),
        false => Err(registry.no_cpu_error()),
    }
}

impl Registry {
    pub const fn new() -> Self {
        Self {
            started: false,
            dir: None,
            files: Vec::new(),
            log: Vec::new(),
        }
    }

    fn load(&mut self, dir: &Path, found: &BackendDir) {
        log::forward();
        self.dir = Some(dir.to_owned());
        let files = found.0.iter();
        self.files = files.map(|(name, files)| load(name, files)).collect();
    }

    fn no_cpu_error(&self) -> LlamaError {
        let dir = self.dir.clone().unwrap_or_default();
        let problem = self.files.iter().find(|file| file.name == "cpu");
        let problem = problem.and_then(|file| file.problem.clone());
        let problem = problem.unwrap_or_else(|| "there is no libggml-cpu".to_owned());
        LlamaError::Setup(format!(
            "no backend in {} runs on this CPU: {problem}; give the directory of the backends that were built \
             with this binary",
            dir.display()
        ))
    }
}

/// The files of a backend: one for any processor, and variants for some.
#[derive(Debug, Default, PartialEq, Eq)]
struct BackendFiles {
    plain: Option<PathBuf>,
    variants: Vec<PathBuf>,
}

/// The files of a directory by backend.
#[derive(Debug, PartialEq, Eq)]
struct BackendDir(BTreeMap<String, BackendFiles>);

impl BackendDir {
    fn list(dir: &Path) -> Result<Self, LlamaError> {
        let unreadable = |cause: std::io::Error| {
            LlamaError::Setup(format!(
                "cannot read the backend directory {}: {cause}; give one that holds libggml-cpu",
                dir.display()
            ))
        };
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some((backend, is_variant)) = name.and_then(backend_of) else {
                continue;
            };
            if !path.is_file() {
                continue;
            }
            let files: &mut BackendFiles = found.entry(backend.to_owned()).or_default();
            if is_variant {
                files.variants.push(path);
            } else {
                files.plain = Some(path);
            }
        }
        // Of two with one score, always choose the same.
        for files in found.values_mut() {
            files.variants.sort();
        }
        Ok(Self(found))
    }
}

/// The backend of a file name, and whether the file is a variant.
fn backend_of(file: &str) -> Option<(&str, bool)> {
    let stem = file.strip_prefix("libggml-")?;
    let stem = stem
        .strip_suffix(".so")
        .or_else(|| stem.strip_suffix(".dylib"))?;
    let (backend, is_variant) = match stem.split_once('-') {
        Some((backend, _)) => (backend, true),
        None => (stem, false),
    };
    (!backend.is_empty() && !IGNORED.contains(&backend)).then_some((backend, is_variant))
}

/// Loads one of the files of a backend.
fn load(name: &str, files: &BackendFiles) -> BackendFile {
    let mut problems = Vec::new();
    let mut best: Option<(c_int, &PathBuf)> = None;
    for path in &files.variants {
        match score(path) {
            Ok(score) if score > best.map_or(0, |(best, _)| best) => best = Some((score, path)),
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
    }
    let chosen = best.map(|(_, path)| path).or(files.plain.as_ref());
    let Some(path) = chosen else {
        let none = "none of its variants runs on this machine".to_owned();
        return BackendFile {
            name: name.to_owned(),
            path: files.variants.first().cloned().unwrap_or_default(),
            problem: Some(problems.into_iter().next().unwrap_or(none)),
            log: Vec::new(),
        };
    };
    let (problem, log) = load_file(path);
    BackendFile {
        name: name.to_owned(),
        path: path.clone(),
        problem,
        log,
    }
}

/// The score of a variant on this processor; 0 if it does not run.
fn score(path: &Path) -> Result<c_int, String> {
    // SAFETY: the operator gave the directory or installed it with the executable, so its code is trusted. Nothing of the
    // library is in use when it is closed.
    unsafe {
        let library = libloading::Library::new(path).map_err(|error| error.to_string())?;
        let score = library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0");
        let score = score.map_err(|_| format!("{} has no score", path.display()))?;
        Ok(score())
    }
}

/// Loads a backend. Returns the reason of a failure, and the errors and warnings that were logged.
fn load_file(path: &Path) -> (Option<String>, Vec<String>) {
    let file = path.to_str().and_then(|text| CString::new(text).ok());
    let Some(file) = file else {
        let problem = "its path is not valid UTF-8, which ggml needs; rename the file".to_owned();
        return (Some(problem), Vec::new());
    };
    let (loaded, lines) = log::capture(|| {
        // SAFETY: the path is NUL-terminated and outlives the call; its code is trusted as above. Nothing else uses
        // ggml meanwhile (`REGISTRY` is locked, and nothing is loaded yet).
        !unsafe { sys::ggml_backend_load(file.as_ptr()) }.is_null()
    });
    let no_reason = || "it does not run on this machine".to_owned();
    let problem = (!loaded).then(|| lines.first().cloned().unwrap_or_else(no_reason));
    (problem, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_identify_backends() {
        for (file, expected) in [
            ("libggml-vulkan.so", Some(("vulkan", false))),
            ("libggml-cpu-haswell.so", Some(("cpu", true))),
            ("libggml-metal.dylib", Some(("metal", false))),
            ("libggml-base.so", None),
            ("libggml-rpc.so", None),
            ("libggml.so", None),
            ("libggml-.so", None),
            ("libggml-cpu.so.1", None),
            ("ggml-cpu.so", None),
        ] {
            assert_eq!(backend_of(file), expected, "{file}");
        }
    }

    #[test]
    fn broken_backends_are_listed_with_their_problem() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = |name: &str| dir.path().join(name);
        for name in [
            "libggml-cpu-b.so",
            "libggml-cpu-a.so",
            "libggml-vulkan.so",
            "libggml-base.so",
            "other",
        ] {
            std::fs::write(file(name), "no library").expect("it can be written");
        }
        std::fs::create_dir(file("libggml-cuda.so")).expect("it can be made");
        let found = BackendDir::list(dir.path()).expect("it can be read").0;
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["cpu", "vulkan"]);
        assert_eq!(
            found["cpu"].variants,
            [file("libggml-cpu-a.so"), file("libggml-cpu-b.so")]
        );
        assert_eq!(found["vulkan"].plain, Some(file("libggml-vulkan.so")));
        let cpu = load("cpu", &found["cpu"]);
        let problem = cpu.problem.expect("it is no library");
        assert!(problem.contains("libggml-cpu-a.so"), "{problem}");
        log::forward();
        let vulkan = load("vulkan", &found["vulkan"]);
        let problem = vulkan.problem.expect("it is no library");
        assert!(problem.contains("libggml-vulkan.so"), "{problem}");
    }

    #[test]
    fn missing_dir_and_unusable_backends_are_errors() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let missing = load_backends(&dir.path().join("missing"));
        let missing = missing.expect_err("the directory is missing").to_string();
        assert!(
            missing.contains("cannot read the backend directory"),
            "{missing}"
        );
        if cfg!(feature = "dynamic-backends") {
            return;
        }
        assert_eq!(load_backends(dir.path()).ok(), Some(Vec::new()));
        std::fs::write(dir.path().join("libggml-cuda.so"), "").expect("it can be written");
        let error = load_backends(dir.path()).expect_err("it loads none");
        let text = error.to_string();
        assert!(text.contains("without `dynamic-backends`"), "{text}");
        assert_eq!(default_backend_dir(), None);
    }
}
