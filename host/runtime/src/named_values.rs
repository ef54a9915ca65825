//! Values that an operator defines by name, such as secrets, and can replace while the server runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Longest name, in bytes.
const MAX_NAME: usize = 64;

/// Values by name. Clones share them.
pub struct Named<T>(Arc<RwLock<BTreeMap<String, T>>>);

impl<T: Clone> Named<T> {
    /// Replaces all values.
    pub fn replace(&self, values: BTreeMap<String, T>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = values;
    }

    /// The value of this name, if it is defined.
    pub(crate) fn get(&self, name: &str) -> Option<T> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.get(name).cloned()
    }
}

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Shows the names only.
impl<T> fmt::Debug for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_set().entries(values.keys()).finish()
    }
}

/// Checks a name that an operator gives to a `kind`.
///
/// # Errors
/// A message to append to the name.
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
