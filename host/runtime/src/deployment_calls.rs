//! Calls of plugins to other deployments of the server: HTTP requests to `NAME.corral.internal`, without a socket.
//!
//! The caller needs a grant for the name. The call counts for the caller's tenant and uses its quotas of tokens, ends with
//! its deadline, and adds its tokens to those of the client's request. The called deployment has its own limits and quota,
//! and answers errors as it answers clients. Calls may call further, up to [`MAX_DEPTH`]: a cycle ends there.
//!
//! A call waits for an instance no longer than for a connection. So deployments that wait for each other's instances get
//! 503 in seconds.

use crate::call_context::CallContext;
use crate::call_error::CallError;
use crate::counters::{DeploymentCounters, OutboundRefusal};
use crate::deployment_lookup::DeploymentLookup;
use crate::outbound::{BODY_BYTES, RequestBody};
use crate::plugin_output::LogOrigin;
use crate::quota::QuotaPermit;
use crate::response_body::content_length;
use crate::runtime_config::CallOptions;
use corral_engine::{Caller, Tenant, TokenUsage};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use wasmtime_wasi_http::{Error, WasiBody};

/// The end of the host names of deployments.
const SUFFIX: &str = ".corral.internal";
/// Deepest nesting of deployment calls.
pub(crate) const MAX_DEPTH: u8 = 8;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// On whose behalf a call calls deployments.
pub(crate) struct DeploymentCaller {
    caller: Caller,
    tenant: Tenant,
    fairness_tenant: Option<Tenant>,
    tenant_name: Arc<str>,
    key_name: Option<Arc<str>>,
    tenant_deployment: Arc<str>,
    quota_permit: Option<Arc<QuotaPermit>>,
    usage: Arc<TokenUsage>,
    log_origin: Arc<LogOrigin>,
    depth: u8,
    message_depth: u8,
}

impl DeploymentCaller {
    pub(crate) fn of(context: &CallContext) -> Self {
        Self {
            caller: context.caller,
            tenant: context.tenant,
            fairness_tenant: context.fairness_tenant,
            tenant_name: Arc::clone(&context.tenant_name),
            key_name: context.key_name.clone(),
            tenant_deployment: Arc::clone(&context.tenant_deployment),
            quota_permit: context.quota_permit.clone(),
            usage: Arc::clone(&context.usage),
            log_origin: Arc::clone(&context.log_origin),
            depth: context.depth,
            message_depth: context.message_depth,
        }
    }

    /// Whether it may call another deployment.
    pub(crate) fn may_call(&self) -> bool {
        self.depth < MAX_DEPTH
    }

    /// Sends a request to a deployment that is granted. Waits for an instance for up to `wait`. Counts the request's body in
    /// the caller's `counters`.
    pub(crate) async fn call(
        &self,
        lookup: &dyn DeploymentLookup,
        name: &str,
        mut request: Request<WasiBody>,
        wait: Duration,
        counters: &Arc<DeploymentCounters>,
    ) -> Response<WasiBody> {
        let headers = request.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&self.log_origin.call) {
            headers.insert(REQUEST_ID, id);
        }
        let answer = match lookup.find(name, headers, self.quota_permit.clone()) {
            Ok(target) => {
                let limit = BODY_BYTES.min(target.plugin.request_bytes() as u64);
                if content_length(headers).is_some_and(|length| length > limit) {
                    counters.outbound_refused(OutboundRefusal::Body);
                    lookup.too_large(name, limit)
                } else {
                    let (head, body) = request.into_parts();
                    let (body, progress) = RequestBody::new(body, limit, counters);
                    let options = self.options(target.quota_permit, wait);
                    let request = Request::from_parts(head, body);
                    match target.plugin.answer(request, options).await {
                        // The plugin may answer anything when its body is cut off.
                        _ if progress.is_too_large() => lookup.too_large(name, limit),
                        Ok(answer) => answer,
                        Err(error) => lookup.failed(name, error),
                    }
                }
            }
            Err(answer) => *answer,
        };
        answer.map(|body| {
            let failed = |error: CallError| Error::InternalError(Some(error.to_string()));
            body.map_err(failed).boxed_unsync()
        })
    }

    fn options(&self, quota_permit: Option<Arc<QuotaPermit>>, wait: Duration) -> CallOptions {
        let tenant_name = Some(&self.tenant_name).filter(|name| !name.is_empty());
        CallOptions {
            id: Some(Arc::clone(&self.log_origin.call)),
            deadline: self.caller.deadline,
            instance_wait: Some(wait),
            first_token: None,
            tenant: Some(self.tenant),
            tenant_deployment: Some(Arc::clone(&self.tenant_deployment)),
            fairness_tenant: self.fairness_tenant,
            tenant_name: tenant_name.cloned(),
            key_name: self.key_name.clone(),
            quota_permit,
            usage: Some(Arc::clone(&self.usage)),
            last_error_line: self.log_origin.last_error_line.clone(),
            depth: self.depth + 1,
            message_depth: self.message_depth,
            trace: self.log_origin.trace.clone(),
        }
    }
}

/// The deployment that a URI names by its host.
pub(crate) fn called_deployment(uri: &Uri) -> Option<String> {
    let host = uri.host()?.trim_end_matches('.').to_ascii_lowercase();
    host.strip_suffix(SUFFIX).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_deployment() {
        for (uri, name) in [
            ("http://chat.corral.internal/a", Some("chat")),
            ("http://Chat.CORRAL.internal.:80/", Some("chat")),
            ("https://a.b.corral.internal/", Some("a.b")),
            ("http://corral.internal/", None),
            ("http://xcorral.internal/", None),
            ("http://chat.corral.internal.example/", None),
            ("/chat", None),
        ] {
            let found = called_deployment(&Uri::from_static(uri));
            assert_eq!(found.as_deref(), name, "{uri}");
        }
    }
}
