//! `wasi:keyvalue/store` of the scripted host.

use std::rc::Rc;

use super::installed::script;
use super::script_state::ScriptState;
use crate::bindings::key_values::wasi::keyvalue::store::{Error, KeyResponse};

pub(crate) struct Bucket(Rc<ScriptState>);

pub(crate) fn open_bucket(identifier: &str) -> Result<Bucket, Error> {
    let script = script();
    match (identifier, script.key_value_bytes) {
        ("" | "default", 1..) => Ok(Bucket(script)),
        ("" | "default", 0) => Err(Error::AccessDenied),
        _ => Err(Error::NoSuchStore),
    }
}

impl Bucket {
    pub(crate) fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.key_values.borrow().get(key).cloned())
    }

    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let mut values = self.0.key_values.borrow_mut();
        let others = values.iter().filter(|(other, _)| *other != key);
        let used: usize = others.map(|(key, value)| key.len() + value.len()).sum();
        let (needed, limit) = (used + key.len() + value.len(), self.0.key_value_bytes);
        let own = key.len() + value.len();
        if own > limit {
            let text = format!("the key and its value have {own} bytes, and the grant is {limit}");
            return Err(Error::Other(text));
        }
        if needed > limit {
            let text = format!(
                "quota: the keys and values would take {needed} bytes, and the grant is {limit}"
            );
            return Err(Error::Other(text));
        }
        values.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    pub(crate) fn delete(&self, key: &str) -> Result<(), Error> {
        self.0.key_values.borrow_mut().remove(key);
        Ok(())
    }

    pub(crate) fn list_keys(&self, _cursor: Option<u64>) -> Result<KeyResponse, Error> {
        let keys = self.0.key_values.borrow().keys().cloned().collect();
        Ok(KeyResponse { keys, cursor: None })
    }
}
