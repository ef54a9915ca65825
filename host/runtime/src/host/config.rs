//! `wasi:config/store`: the configuration of a deployment and the secrets that it is granted.

use super::bindings::wasi::config::store::{Error, Host};
use crate::deployment_config::DeploymentConfig;
use crate::state::State;

/// How the host's errors about missing grants begin.
const NOT_GRANTED: &str = "not granted: ";

impl DeploymentConfig {
    fn get(&self, key: &str) -> Result<Option<String>, Error> {
        if let Some(value) = self.values.get(key) {
            return Ok(Some(value.clone()));
        }
        if !self.granted.contains(key) {
            return Ok(None);
        }
        match self.secrets.get(key) {
            Some(secret) => Ok(Some(secret.expose().to_owned())),
            None => Err(Error::Upstream(format!(
                "this server does not define the secret '{key}' any more; its operator can add it with --secret"
            ))),
        }
    }
}

impl State {
    fn config(&self) -> Result<&DeploymentConfig, Error> {
        self.grants.config.as_deref().ok_or_else(|| {
            Error::Upstream(format!(
                "{NOT_GRANTED}the deployment has neither a configuration nor secrets; add [configuration] or \
                 `grants.secrets` to its corral.toml"
            ))
        })
    }
}

impl Host for State {
    fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<String>, Error>> {
        Ok(self.config().and_then(|config| config.get(&key)))
    }

    fn get_all(&mut self) -> wasmtime::Result<Result<Vec<(String, String)>, Error>> {
        let values = self.config().map(|config| config.values.clone());
        Ok(values.map(|values| values.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::{Secret, Secrets};
    use std::collections::BTreeMap;

    #[test]
    fn get_answers_values_and_granted_secrets() {
        let secrets = Secrets::default();
        let defined = ["granted", "other"].map(|name| (name.to_owned(), Secret::new("hidden")));
        secrets.replace(BTreeMap::from(defined));
        let config = DeploymentConfig {
            values: BTreeMap::from([("NAME".to_owned(), "value".to_owned())]),
            granted: ["granted", "gone"].map(str::to_owned).into(),
            secrets: secrets.clone(),
        };
        let get = |key: &str| config.get(key);
        assert_eq!(get("NAME").unwrap().as_deref(), Some("value"));
        assert_eq!(get("granted").unwrap().as_deref(), Some("hidden"));
        assert_eq!(get("other").unwrap(), None);
        assert_eq!(get("none").unwrap(), None);
        let Err(Error::Upstream(text)) = get("gone") else {
            panic!("an undefined secret has a value");
        };
        assert!(text.contains("'gone'"), "{text}");
        secrets.replace(BTreeMap::from([("granted".to_owned(), Secret::new("new"))]));
        assert_eq!(get("granted").unwrap().as_deref(), Some("new"));
    }
}
