//! ggml's backends: those that are built in, and those that are shared objects in a folder.
//!
//! Which it is was decided when Corral was built (`dynamic-backends`). ggml looks for shared objects in the
//! folder of the executable, in the current one, and wherever `GGML_BACKEND_PATH` says, unless it has a
//! backend already; and what it can't load it passes over in silence. So it is never asked to look: the
//! files of one folder are looked at here, and it is given those that are to be loaded, one by one. Then it
//! says what is wrong with them.
//!
//! Of a backend that is there in several variants, for processors of different ages, the one is loaded that
//! gives itself the highest score, which is how ggml chooses.
//!
//! Backends are loaded before anything else, once; nothing else touches ggml's list of them.

mod report;

pub use report::{BackendStatus, backends, built_with};

use super::log;
use crate::LoadError;
use llama_cpp_sys_2 as sys;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared objects beside backends that are none, and one that computes on machines elsewhere.
const NO_BACKENDS: [&str; 2] = ["base", "rpc"];

/// A backend whose file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFile {
    /// What it is for, as its file is named: `cpu`, `cuda`, `vulkan` and so on.
    pub name: String,
    /// The file that was loaded, or was to be.
    pub path: PathBuf,
    /// Why it was not loaded.
    pub problem: Option<String>,
    /// What was logged of errors and warnings when it was loaded.
    pub said: Vec<String>,
}

struct State {
    /// Whether a model may be loaded: nothing changes any more.
    started: bool,
    /// The folder that was looked at.
    folder: Option<PathBuf>,
    files: Vec<BackendFile>,
    /// What built-in backends logged when they were started.
    said: Vec<String>,
}

static STATE: Mutex<State> = Mutex::new(State {
    started: false,
    folder: None,
    files: Vec::new(),
    said: Vec::new(),
});

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the backends that lie as shared objects in a folder, and in no other; to be called before anything
/// is loaded. A second call with the same folder does nothing.
///
/// The error says that the folder can't be read, that this binary has its backends built in and the folder
/// holds some, or that none of them can compute on the processor. Others that can't be loaded are no error:
/// the answer says what is wrong with each.
pub fn load_backends(folder: &Path) -> Result<Vec<BackendFile>, LoadError> {
    let found = Found::in_folder(folder)?;
    if !cfg!(feature = "dynamic-backends") {
        return match found.0.keys().next() {
            None => Ok(Vec::new()),
            Some(name) => Err(LoadError::Config(format!(
                "{} holds backends (libggml-{name} and {} others), and this binary was built without \
                 `dynamic-backends`: what it has is built in, and it loads none; leave the folder away, or \
                 build with `--features dynamic-backends`",
                folder.display(),
                found.0.len() - 1
            ))),
        };
    }
    let mut state = lock();
    if state.folder.as_deref() == Some(folder) {
        return Ok(state.files.clone());
    }
    if state.started || state.folder.is_some() {
        return Err(LoadError::Config(format!(
            "backends can't be loaded from {} any more: others are in use; name the folder before anything \
             is loaded",
            folder.display()
        )));
    }
    state.load(folder, &found);
    match has_processor() {
        true => Ok(state.files.clone()),
        false => Err(state.no_processor()),
    }
}

/// The folder whose backends are loaded where nobody names another: `backends` beside the executable, or
/// else the executable's own; never the current one. None where all backends are built in.
pub fn default_backends() -> Option<PathBuf> {
    if !cfg!(feature = "dynamic-backends") {
        return None;
    }
    let executable = std::env::current_exe().ok()?;
    let own = executable.parent()?;
    let beside = own.join("backends");
    Some(if beside.is_dir() {
        beside
    } else {
        own.to_owned()
    })
}

/// Makes llama.cpp ready, once per process; loads the backends of [`default_backends`] if nobody did.
pub(super) fn start() -> Result<(), LoadError> {
    let mut state = lock();
    if !state.started {
        log::quiet_logs();
        let folder = match state.folder {
            Some(_) => None,
            None => default_backends(),
        };
        if let Some(folder) = folder {
            let found = Found::in_folder(&folder)?;
            state.load(&folder, &found);
        }
        // The first question starts those that are built in.
        let (count, said) = log::listen(|| {
            // SAFETY: counts the backends.
            unsafe { sys::ggml_backend_reg_count() }
        });
        state.said.extend(said);
        if count > 0 {
            // First, since it may refuse, and the next call begins anew then.
            #[cfg(own_attention)]
            super::attention::install()?;
            // SAFETY: once per process, before anything is loaded or quantised. It looks for backends
            // by itself only where there is none.
            unsafe { sys::llama_backend_init() };
        }
        state.started = true;
    }
    match has_processor() {
        true => Ok(()),
        false => Err(state.no_processor()),
    }
}

fn has_processor() -> bool {
    // SAFETY: looks at the list of devices.
    unsafe { !sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU).is_null() }
}

impl State {
    fn load(&mut self, folder: &Path, found: &Found) {
        log::quiet_logs();
        self.folder = Some(folder.to_owned());
        let files = found.0.iter();
        self.files = files.map(|(name, files)| load(name, files)).collect();
    }

    fn no_processor(&self) -> LoadError {
        let folder = self.folder.clone().unwrap_or_default();
        let problem = self.files.iter().find(|file| file.name == "cpu");
        let problem = problem.and_then(|file| file.problem.clone());
        let problem = problem.unwrap_or_else(|| "there is no libggml-cpu".to_owned());
        LoadError::Config(format!(
            "no backend in {} computes on this processor: {problem}; name the folder of those that were \
             built with this binary",
            folder.display()
        ))
    }
}

/// The files of a backend: for any processor, and variants for some.
#[derive(Debug, Default, PartialEq, Eq)]
struct Files {
    plain: Option<PathBuf>,
    variants: Vec<PathBuf>,
}

/// Backends by their names.
#[derive(Debug, PartialEq, Eq)]
struct Found(BTreeMap<String, Files>);

impl Found {
    fn in_folder(folder: &Path) -> Result<Self, LoadError> {
        let unreadable = |cause: std::io::Error| {
            LoadError::Config(format!(
                "the folder of backends {} can't be read: {cause}; name one that holds libggml-cpu and \
                 others",
                folder.display()
            ))
        };
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some((backend, is_variant)) = name.and_then(backend_of) else {
                continue;
            };
            if !path.is_file() {
                continue;
            }
            let files: &mut Files = found.entry(backend.to_owned()).or_default();
            if is_variant {
                files.variants.push(path);
            } else {
                files.plain = Some(path);
            }
        }
        // Two of one score: always the same.
        for files in found.values_mut() {
            files.variants.sort();
        }
        Ok(Self(found))
    }
}

/// The backend that a file of this name holds, and whether it is a variant of it.
fn backend_of(file: &str) -> Option<(&str, bool)> {
    let stem = file.strip_prefix("libggml-")?;
    let stem = stem
        .strip_suffix(".so")
        .or_else(|| stem.strip_suffix(".dylib"))?;
    let (backend, is_variant) = match stem.split_once('-') {
        Some((backend, _)) => (backend, true),
        None => (stem, false),
    };
    (!backend.is_empty() && !NO_BACKENDS.contains(&backend)).then_some((backend, is_variant))
}

/// Loads one of the files of a backend.
fn load(name: &str, files: &Files) -> BackendFile {
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
        let none = "none of its variants is for this machine".to_owned();
        return BackendFile {
            name: name.to_owned(),
            path: files.variants.first().cloned().unwrap_or_default(),
            problem: Some(problems.into_iter().next().unwrap_or(none)),
            said: Vec::new(),
        };
    };
    let (problem, said) = load_file(path);
    BackendFile {
        name: name.to_owned(),
        path: path.clone(),
        problem,
        said,
    }
}

/// How well a variant suits this processor; 0 if it does not run on it.
fn score(path: &Path) -> Result<c_int, String> {
    // SAFETY: the folder's owner is trusted with code, as the folder was named for that or lies with the
    // executable. Nothing of the library is used when it is closed at the end.
    unsafe {
        let library = libloading::Library::new(path).map_err(|error| error.to_string())?;
        let score = library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0");
        let score = score.map_err(|_| format!("{} has no score", path.display()))?;
        Ok(score())
    }
}

/// What went wrong if anything did, and what was logged.
fn load_file(path: &Path) -> (Option<String>, Vec<String>) {
    let file = path.to_str().and_then(|text| CString::new(text).ok());
    let Some(file) = file else {
        let problem = "its path is not valid UTF-8, which ggml needs; rename it".to_owned();
        return (Some(problem), Vec::new());
    };
    let (loaded, said) = log::listen(|| {
        // SAFETY: the path is NUL-terminated and outlives the call; its code is trusted as above.
        // Nothing else is done with ggml meanwhile (`STATE` is locked, and nothing is loaded yet).
        !unsafe { sys::ggml_backend_load(file.as_ptr()) }.is_null()
    });
    let unsaid = || "it says that it does not run on this machine".to_owned();
    let problem = (!loaded).then(|| said.first().cloned().unwrap_or_else(unsaid));
    (problem, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_their_names() {
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
    fn a_folder_is_looked_at_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
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
        let found = Found::in_folder(folder.path()).expect("it can be read").0;
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["cpu", "vulkan"]);
        assert_eq!(
            found["cpu"].variants,
            [file("libggml-cpu-a.so"), file("libggml-cpu-b.so")]
        );
        assert_eq!(found["vulkan"].plain, Some(file("libggml-vulkan.so")));
        // What can't be loaded says why, and is no end of anything.
        let cpu = load("cpu", &found["cpu"]);
        let problem = cpu.problem.expect("it is no library");
        assert!(problem.contains("libggml-cpu-a.so"), "{problem}");
        log::quiet_logs();
        let vulkan = load("vulkan", &found["vulkan"]);
        let problem = vulkan.problem.expect("it is no library");
        assert!(problem.contains("libggml-vulkan.so"), "{problem}");
    }

    #[test]
    fn a_folder_that_is_missing_is_an_error_and_so_are_backends_for_a_binary_that_loads_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = load_backends(&folder.path().join("missing"));
        let missing = missing.expect_err("there is none").to_string();
        assert!(missing.contains("missing can't be read"), "{missing}");
        if cfg!(feature = "dynamic-backends") {
            return;
        }
        assert_eq!(load_backends(folder.path()).ok(), Some(Vec::new()));
        std::fs::write(folder.path().join("libggml-cuda.so"), "").expect("it can be written");
        let error = load_backends(folder.path()).expect_err("it loads none");
        let text = error.to_string();
        assert!(text.contains("without `dynamic-backends`"), "{text}");
        assert_eq!(default_backends(), None);
    }
}
