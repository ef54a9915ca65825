//! `wasi:config/store` of the scripted host.

use super::installed::script;
use crate::bindings::config::wasi::config::store::Error;

pub(crate) fn get_config(key: &str) -> Result<Option<String>, Error> {
    let script = script();
    if script.config.is_empty() && script.secrets.is_empty() {
        let text = "not granted: the script has neither a configuration nor secrets";
        return Err(Error::Upstream(text.to_owned()));
    }
    let value = script.config.get(key).or_else(|| script.secrets.get(key));
    Ok(value.cloned())
}

pub(crate) fn all_config() -> Result<Vec<(String, String)>, Error> {
    Ok(script().config.clone().into_iter().collect())
}
