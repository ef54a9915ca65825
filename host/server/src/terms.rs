//! A deployment's terms: who may call it, how much of it, and how errors of the host look there.

use crate::keys::{Keys, Visitor};
use crate::problem::{ErrorFormat, Problem};
use corral_runtime::{Quota, QuotaPermit};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who may call a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Everyone. The header `Authorization` is the plugin's own, unless it holds a key of this server.
    #[default]
    Open,
    /// Who has an API key.
    Keys,
}

/// On what terms a deployment is called. They stand beside the plugin: another revision of it may keep
/// them, and with them what was used of its quota.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Who may call it.
    pub access: Access,
    /// How much all its callers together may use of it.
    pub quota: Option<Arc<Quota>>,
    /// How errors of the host look.
    pub errors: ErrorFormat,
}

impl Terms {
    /// Lets a request to the deployment named `deployment` in: whose it is, where a key says that, and
    /// what stands for it in all quotas that concern it. A key is taken out of its headers, also where
    /// none is asked for.
    pub(crate) fn admit(
        &self,
        keys: Option<&Keys>,
        deployment: &str,
        headers: &mut HeaderMap,
    ) -> Result<Admitted, Problem> {
        let visitor = match (self.access, keys) {
            (Access::Open, keys) => {
                if let Some(keys) = keys {
                    keys.hide(headers);
                }
                None
            }
            (Access::Keys, Some(keys)) => Some(keys.admit(headers, deployment)?),
            // Closed rather than open, where nobody said which keys are good.
            (Access::Keys, None) => Some(Keys::none().admit(headers, deployment)?),
        };
        let of_visitor = visitor.iter().flat_map(|visitor| &visitor.quotas);
        let quotas: Vec<_> = self.quota.iter().chain(of_visitor).cloned().collect();
        let quota_permit = match quotas.is_empty() {
            true => None,
            false => Some(QuotaPermit::acquire(quotas)?),
        };
        Ok(Admitted {
            visitor,
            quota_permit,
        })
    }
}

/// A request that was let in.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) visitor: Option<Visitor>,
    pub(crate) quota_permit: Option<Arc<QuotaPermit>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::NewKey;
    use corral_runtime::QuotaLimits;

    #[test]
    fn without_keys_a_deployment_that_asks_for_them_is_closed() {
        let terms = Terms {
            access: Access::Keys,
            ..Terms::default()
        };
        let mut headers = HeaderMap::new();
        let problem = terms.admit(None, "/x", &mut headers).expect_err("closed");
        assert_eq!(problem.status(), 401);
        let value = "Bearer corral_0".parse().expect("a header");
        headers.insert(http::header::AUTHORIZATION, value);
        let problem = terms.admit(None, "/x", &mut headers).expect_err("closed");
        assert_eq!(problem.status(), 401);
    }

    #[test]
    fn who_calls_an_open_deployment_with_a_key_does_not_hand_it_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, key) = (folder.path().join("keys.toml"), NewKey::generate());
        std::fs::write(&file, key.entry("one", "alice", &[])).expect("written");
        let keys = Keys::open(&file).expect("good");
        let left_of = |sent: &str| {
            let value = sent.parse().expect("a header");
            let mut headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
            let admitted = Terms::default().admit(Some(&keys), "/x", &mut headers);
            assert!(admitted.expect("it is open").visitor.is_none());
            headers.len()
        };
        assert_eq!(left_of(&format!("Bearer {}", key.key())), 0);
        assert_eq!(left_of("Bearer of-the-plugin"), 1);
    }

    #[test]
    fn the_quota_of_a_deployment_concerns_all_its_callers() {
        let allowance = QuotaLimits {
            concurrent: Some(1),
            ..QuotaLimits::default()
        };
        let terms = Terms {
            quota: Some(Quota::new("deployment", "/x", allowance)),
            ..Terms::default()
        };
        let mut headers = HeaderMap::new();
        let admitted = terms.admit(None, "/x", &mut headers).expect("the first");
        let problem = terms.admit(None, "/x", &mut headers);
        assert_eq!(problem.expect_err("the second").status(), 429);
        drop(admitted);
        assert!(terms.admit(None, "/x", &mut headers).is_ok());
        let open = Terms::default().admit(None, "/x", &mut headers);
        assert!(open.expect("no terms").quota_permit.is_none());
    }
}
