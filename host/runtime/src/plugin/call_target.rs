//! A plugin as the target of other plugins' calls.

use super::Plugin;
use crate::deployment_lookup::{CallTarget, CalledPlugin, Calling};
use crate::outbound::RequestBody;
use crate::quota::QuotaPermit;
use crate::runtime_config::CallOptions;
use http::Request;
use std::sync::Arc;

impl Plugin {
    /// What answers another plugin's call, which holds the permit of all quotas.
    pub fn call_target(&self, quota_permit: Option<Arc<QuotaPermit>>) -> CallTarget {
        CallTarget {
            plugin: Box::new(self.clone()),
            quota_permit,
        }
    }
}

impl CalledPlugin for Plugin {
    fn request_bytes(&self) -> usize {
        self.limits().request_bytes
    }

    fn answer(&self, request: Request<RequestBody>, options: CallOptions) -> Calling<'_> {
        Box::pin(self.handle(request, options))
    }
}
