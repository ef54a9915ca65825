//! What belongs to one call of a handler: on whose behalf it runs, and what counts it.

use crate::plugin_output::LogOrigin;
use crate::quota::QuotaPermit;
use corral_engine::{Caller, Tenant, TokenUsage};
use std::sync::Arc;

/// What belongs to one call of a handler.
pub(crate) struct CallContext {
    pub(crate) caller: Caller,
    /// The tenant, and the one that the engines charge for fairness, if it is another.
    pub(crate) tenant: Tenant,
    pub(crate) fairness_tenant: Option<Tenant>,
    pub(crate) tenant_name: Arc<str>,
    /// Name of the API key.
    pub(crate) key_name: Option<Arc<str>>,
    /// Name of the deployment that a client called.
    pub(crate) tenant_deployment: Arc<str>,
    pub(crate) quota_permit: Option<Arc<QuotaPermit>>,
    pub(crate) usage: Arc<TokenUsage>,
    pub(crate) log_origin: Arc<LogOrigin>,
    /// Calls that it is within.
    pub(crate) depth: u8,
    /// Messages in a row that led to it.
    pub(crate) message_depth: u8,
}
