//! The configuration of the deployment, and the secrets that it is granted.
//!
//! A key is a name of `[configuration]` in `corral.toml`, or of a secret in its `grants.secrets`, whose value the server's
//! operator defines. Read a secret when it is needed, since its value may change while the server runs.
//!
//! ```
//! use corral_sdk::{Error, config, testing::Script};
//!
//! let script = Script::new().config("URL", "https://api.example.com").secret("api-key", "s3cret");
//! script.run(async {
//!     assert_eq!(config::require("api-key")?, "s3cret");
//!     assert_eq!(config::get("REGION")?, None);
//!     assert_eq!(config::all()?, [("URL".to_owned(), "https://api.example.com".to_owned())]);
//!     assert!(matches!(config::require("REGION"), Err(Error::NotGranted(_))));
//!     Ok::<(), Error>(())
//! }).unwrap();
//! ```

use crate::backend;
use crate::bindings::config::wasi::config::store;
use crate::error::Error;

/// How the host's errors about missing grants begin.
const NOT_GRANTED: &str = "not granted: ";

/// The value of a key, if the deployment has it; [`Error::NotGranted`] if it has neither a configuration nor secrets.
pub fn get(key: &str) -> Result<Option<String>, Error> {
    Ok(backend::get_config(key)?)
}

/// The value of a key that the plugin needs; [`Error::NotGranted`] if the deployment does not have it.
pub fn require(key: &str) -> Result<String, Error> {
    get(key)?.ok_or_else(|| {
        Error::NotGranted(format!(
            "the deployment has no '{key}'; add it to [configuration] of its corral.toml, or, if it is a secret, to \
             `grants.secrets`"
        ))
    })
}

/// All keys and values of the configuration, without secrets.
pub fn all() -> Result<Vec<(String, String)>, Error> {
    Ok(backend::all_config()?)
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        let (store::Error::Upstream(text) | store::Error::Io(text)) = error;
        match text.strip_prefix(NOT_GRANTED) {
            Some(text) => Error::NotGranted(text.to_owned()),
            None => Error::Failed(text),
        }
    }
}
