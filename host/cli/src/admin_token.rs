//! The admin token, which authorizes changes of deployments: where `corral serve` and the other commands find it.

use crate::{Error, text_file};
use corral_server::AdminToken;
use corral_server::deployments::Store;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The environment variable with the token.
pub const VARIABLE: &str = "CORRAL_ADMIN_TOKEN";
/// The file in the store.
const FILE: &str = "admin-token";
const MAX_FILE_BYTES: u64 = 4096;

/// A token, and the file that contains it.
#[derive(Clone, Debug)]
pub(crate) struct ConfiguredToken {
    pub(crate) token: AdminToken,
    pub(crate) file: Option<PathBuf>,
}

/// The token of a server: from `file`, the environment, or the store, which gets a new one if it has none.
pub(crate) fn find(
    file: Option<&Path>,
    store: Option<&Store>,
) -> Result<Option<ConfiguredToken>, Error> {
    let (text, file) = match (read_text(file)?, store) {
        (Some(text), _) => (text, file.map(Path::to_owned)),
        (None, Some(store)) => {
            let path = file_in(store.directory());
            (read_or_create(&path)?, Some(path))
        }
        (None, None) => return Ok(None),
    };
    let token = AdminToken::new(&text)?;
    Ok(Some(ConfiguredToken { token, file }))
}

/// The file of the token in the directory of a store.
pub(crate) fn file_in(store: &Path) -> PathBuf {
    store.join(FILE)
}

/// The token from `file`, or else from the environment.
pub(crate) fn read_text(file: Option<&Path>) -> Result<Option<String>, Error> {
    match file {
        Some(path) => read(path).map(Some),
        None => Ok(std::env::var(VARIABLE).ok()),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let text = text_file::read(path, MAX_FILE_BYTES);
    let text = text.map_err(Error::context(format!(
        "cannot read the admin token from {}; name a file that this user can read",
        path.display()
    )))?;
    Ok(text.trim().to_owned())
}

fn read_or_create(path: &Path) -> Result<String, Error> {
    if path.exists() {
        return read(path);
    }
    let create = || {
        let mut random = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        // A rename leaves a whole token or none after a crash.
        let new = path.with_extension("new");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        Ok::<_, std::io::Error>(text)
    };
    create().map_err(Error::context(format!(
        "cannot write an admin token to {}; give one with --admin-token-file",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn new_token_is_private_and_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        let first = read_or_create(&path).map_err(|error| error.message(true));
        let second = read_or_create(&path).map_err(|error| error.message(true));
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        let first = first.expect("a token");
        assert_eq!(second, Ok(first.clone()));
        assert_eq!(first.len(), 64);
        assert!(AdminToken::new(&first).is_ok());
        assert_eq!(mode & 0o777, 0o600);
    }
}
