//! The secret that changes deployments: where `corral serve` has it from, and where the other commands
//! find it.

use crate::Error;
use corral_server::Token;
use corral_server::deployments::Store;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Holds the token itself.
pub const VARIABLE: &str = "CORRAL_ADMIN_TOKEN";
/// The file in the store.
const FILE: &str = "admin-token";
/// Longest file that is read.
const BYTES: u64 = 4096;

/// A token, and the file that it was read from.
#[derive(Clone, Debug)]
pub(crate) struct AdminToken {
    pub(crate) token: Token,
    pub(crate) file: Option<PathBuf>,
}

/// The token that a server asks for: from `file`, the environment, or the store, which gets a new one
/// if it has none.
pub(crate) fn find(
    file: Option<&Path>,
    store: Option<&Store>,
) -> Result<Option<AdminToken>, Error> {
    let named = match text(file)? {
        Some(text) => Some((text, file.map(Path::to_owned))),
        None => match store {
            Some(store) => {
                let path = store.folder().join(FILE);
                Some((read_or_make(&path)?, Some(path)))
            }
            None => None,
        },
    };
    let Some((text, file)) = named else {
        return Ok(None);
    };
    let token = Token::new(&text)?;
    Ok(Some(AdminToken { token, file }))
}

/// The token's text: from `file`, or else from the environment.
pub(crate) fn text(file: Option<&Path>) -> Result<Option<String>, Error> {
    match file {
        Some(path) => read(path).map(Some),
        None => Ok(std::env::var(VARIABLE).ok()),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(BYTES).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text.trim().to_owned())
    };
    read().map_err(Error::context(format!(
        "the admin token cannot be read from {}; name a file that this user can read",
        path.display()
    )))
}

fn read_or_make(path: &Path) -> Result<String, Error> {
    if path.exists() {
        return read(path);
    }
    let make = || {
        let mut random = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        // Whole or not there: a kill in between leaves no half token.
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
    make().map_err(Error::context(format!(
        "no admin token could be written to {}; give one with --admin-token-file",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_for_this_user_alone() {
        let folder = std::env::temp_dir().join(format!("corral-token-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("made");
        let path = folder.join(FILE);
        let first = read_or_make(&path).map_err(|error| error.message(true));
        let second = read_or_make(&path).map_err(|error| error.message(true));
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        fs::remove_dir_all(&folder).expect("ours");
        let first = first.expect("made");
        assert_eq!(second, Ok(first.clone()));
        assert_eq!(first.len(), 64);
        assert!(Token::new(&first).is_ok());
        assert_eq!(mode & 0o777, 0o600);
    }
}
