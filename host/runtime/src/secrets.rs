//! Secrets that the operator defines and that a deployment's plugins read by name, if it is granted them.
//!
//! Values leave this module only through [`Secret::expose`], which only `wasi:config` calls: no text form of a secret
//! contains its value. They are never written to disk.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Most secrets of a server.
pub const MAX_SECRETS: usize = 256;
/// Longest value, in bytes.
pub const MAX_SECRET_BYTES: usize = 64 << 10;
/// Longest name, in bytes.
const MAX_NAME: usize = 64;

/// The value of a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// The secrets of a server. Clones share them.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<BTreeMap<String, Secret>>>);

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

impl Secrets {
    /// Replaces all secrets. Running calls see the new ones.
    pub fn replace(&self, secrets: BTreeMap<String, Secret>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// The secret of this name, if it is defined.
    pub(crate) fn get(&self, name: &str) -> Option<Secret> {
        let secrets = self.0.read().unwrap_or_else(PoisonError::into_inner);
        secrets.get(name).cloned()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets = self.0.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("Secrets").field(&secrets.keys()).finish()
    }
}

/// Checks the name of a secret.
///
/// # Errors
/// A message to append to the name.
pub fn check_secret_name(name: &str) -> Result<(), String> {
    check_name(name, "secret")
}

/// Checks a name that an operator gives.
pub(crate) fn check_name(name: &str, kind: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if first && name.len() <= MAX_NAME && name.chars().all(fits) {
        return Ok(());
    }
    Err(format!(
        "is not a valid name of a {kind}; use 1 to {MAX_NAME} lower-case letters, digits, '-', '_' and '.', and begin with \
         a letter or digit"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
