//! The policy of a deployment for its requests: access, quota, format of the host's errors, and CORS.

use crate::api_keys::{ApiKeys, KeyHolder};
use crate::cors::Cors;
use crate::problem::{ErrorFormat, Problem};
use corral_runtime::{Quota, QuotaPermit};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Access to a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// No API key is required. The plugin receives the headers `Authorization` and `x-api-key`, unless they hold
    /// an API key of this server.
    #[default]
    Open,
    /// An API key is required.
    Keys,
}

/// Policy for the requests of a deployment. Independent of the plugin, so that a new revision can keep
/// it together with the usage of its quota.
#[derive(Clone, Debug, Default)]
pub struct RequestPolicy {
    /// Whether an API key is required.
    pub access: Access,
    /// Quota of all clients together.
    pub quota: Option<Arc<Quota>>,
    /// Format of the host's errors.
    pub error_format: ErrorFormat,
    /// Web pages whose scripts may read the responses.
    pub cors: Cors,
}

impl RequestPolicy {
    /// Checks the API key of a request to the deployment named `deployment`, and returns its holder. Removes API keys
    /// from the headers, even if none is required.
    pub(crate) fn authenticate(
        &self,
        keys: Option<&ApiKeys>,
        deployment: &str,
        headers: &mut HeaderMap,
    ) -> Result<Option<KeyHolder>, Problem> {
        match (self.access, keys) {
            (Access::Open, keys) => {
                if let Some(keys) = keys {
                    keys.remove_from(headers);
                }
                Ok(None)
            }
            (Access::Keys, Some(keys)) => keys.authenticate(headers, deployment).map(Some),
            // Without a key file the deployment is closed, not open.
            (Access::Keys, None) => {
                let holder = ApiKeys::none().authenticate(headers, deployment)?;
                Ok(Some(holder))
            }
        }
    }

    /// Acquires all quotas that apply to a request. The permit holds them while the request runs.
    pub(crate) fn acquire_quotas(
        &self,
        holder: Option<&KeyHolder>,
    ) -> Result<Option<Arc<QuotaPermit>>, Problem> {
        let holder_quotas = holder.into_iter().flat_map(|holder| &holder.quotas);
        let quotas: Vec<_> = self.quota.iter().chain(holder_quotas).cloned().collect();
        match quotas.is_empty() {
            true => Ok(None),
            false => Ok(Some(QuotaPermit::acquire(quotas)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deployment_requiring_keys_is_closed_without_any() {
        let policy = RequestPolicy {
            access: Access::Keys,
            ..RequestPolicy::default()
        };
        let mut headers = HeaderMap::new();
        let problem = policy.authenticate(None, "/x", &mut headers);
        let problem = problem.expect_err("closed");
        assert_eq!(problem.status(), 401);
        let value = "Bearer corral_0".parse().expect("a header");
        headers.insert(http::header::AUTHORIZATION, value);
        let problem = policy.authenticate(None, "/x", &mut headers);
        let problem = problem.expect_err("closed");
        assert_eq!(problem.status(), 401);
    }
}
