//! Where downloads and compiled plugins of this user are.

use std::path::PathBuf;

/// `corral` in the user's cache directory, if the environment names one.
pub(crate) fn user_cache_dir() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("corral"))
}
