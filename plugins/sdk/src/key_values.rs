//! Values that a deployment keeps between calls.

use crate::backend;
use crate::bindings::key_values::wasi::keyvalue::store;
use crate::error::Error;

/// How the host's errors about quotas begin.
const QUOTA: &str = "quota: ";

/// The values of the deployment for the tenant whose API key the request has.
///
/// The deployment needs the grant `key-value-mib`, which bounds the bytes of keys and values, and the server a store.
/// A key has at most 1 KiB and a value 8 MiB. A change is on disk when its function returns. Values do not expire.
///
/// ```
/// use corral_sdk::{Error, KeyValues, testing::Script};
///
/// let script = Script::new().key_values(100);
/// script.run(async {
///     let values = KeyValues::open()?;
///     values.set("visits", b"1")?;
///     assert_eq!(values.get("visits")?.as_deref(), Some(&b"1"[..]));
///     assert!(matches!(values.set("log", &[0; 95]), Err(Error::NotGranted(_))));
///     values.delete("visits")?;
///     assert!(values.keys()?.is_empty());
///     Ok::<(), Error>(())
/// }).unwrap();
/// ```
pub struct KeyValues(backend::Bucket);

impl KeyValues {
    /// Opens the values; [`Error::NotGranted`] if the deployment may keep none.
    pub fn open() -> Result<Self, Error> {
        Ok(KeyValues(backend::open_bucket("")?))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.get(key)?)
    }

    /// Sets the value of a key; [`Error::NotGranted`] if others would have to be removed first,
    /// [`Error::Failed`] if it can never fit.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        Ok(self.0.set(key, value)?)
    }

    /// Removes a key, if it is there.
    pub fn delete(&self, key: &str) -> Result<(), Error> {
        Ok(self.0.delete(key)?)
    }

    /// The first keys in ascending order, at most 1000.
    pub fn first_keys(&self) -> Result<Vec<String>, Error> {
        Ok(self.0.list_keys(None)?.keys)
    }

    /// All keys, in ascending order.
    pub fn keys(&self) -> Result<Vec<String>, Error> {
        let mut keys = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.0.list_keys(cursor)?;
            keys.extend(page.keys);
            match page.cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(keys),
            }
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::NoSuchStore | store::Error::AccessDenied => Error::NotGranted(
                "the deployment may keep no values; its operator can set `grants.key-value-mib`"
                    .to_owned(),
            ),
            store::Error::Other(text) if text.starts_with(QUOTA) => Error::NotGranted(text),
            store::Error::Other(text) => Error::Failed(text),
        }
    }
}
