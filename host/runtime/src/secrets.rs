//! Secrets that the operator defines and that a deployment's plugins read by name, if it is granted them.
//!
//! Only [`Secret::expose`] returns a value, and only `wasi:config` calls it: no text form of a secret contains its value.
//! Values are never written to disk.

use crate::named_values::{Named, check_name};
use std::fmt;
use std::sync::Arc;

/// Most secrets of a server.
pub const MAX_SECRETS: usize = 256;
/// Longest value, in bytes.
pub const MAX_SECRET_BYTES: usize = 64 << 10;

/// The value of a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// The secrets of a server. Running calls see replaced ones.
pub type Secrets = Named<Secret>;

impl Secret {
    /// A secret with this value.
    pub fn new(value: &str) -> Self {
        Secret(value.into())
    }

    /// The value.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Checks the name of a secret.
///
/// # Errors
/// A message to append to the name.
pub fn check_secret_name(name: &str) -> Result<(), String> {
    check_name(name, "secret")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn text_forms_contain_no_value() {
        let secrets = Secrets::default();
        let secret = Secret::new("hunter2");
        secrets.replace(BTreeMap::from([("key".to_owned(), secret.clone())]));
        let shown = format!("{secret:?} {secrets:?} {secrets:#?}");
        assert!(
            !shown.contains("hunter2") && shown.contains("key"),
            "{shown}"
        );
        assert_eq!(secrets.get("key"), Some(secret));
        secrets.replace(BTreeMap::new());
        assert_eq!(secrets.get("key"), None);
    }

    #[test]
    fn names_are_no_paths() {
        for good in ["a", "openai-key", "a.b_c", "1"] {
            assert_eq!(check_secret_name(good), Ok(()), "{good}");
        }
        for bad in ["", "A", ".", "..", "-a", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(check_secret_name(bad).is_err(), "{bad}");
        }
    }
}
