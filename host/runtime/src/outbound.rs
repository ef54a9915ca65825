//! Outgoing HTTP requests of plugins, and the bytes that the host buffers of a body.
//!
//! All outgoing HTTP passes through here, in both versions of WASI. A request needs a grant of its deployment for its
//! scheme, host, port and method. The host does not follow redirects: the plugin gets them, and its next request is
//! checked like any other. What a connection may connect to is checked after the resolution of names (`client.rs`).
//!
//! Each request has a connection of its own. Connections, times and bytes are bounded; the call's own limits hold beside
//! that. It runs in the task of its call or in one that ends with it, and blocks no thread.

mod address;
mod client;
mod exchange;
mod grant;
mod request_body;
mod traced_request;

pub(crate) use client::{OutboundClient, OutboundPermits};
pub use grant::{OutboundGrant, OutboundUrl, OutboundUrlError};
pub(crate) use request_body::{BODY_BYTES, RequestBody};

use crate::call_trace::CallTrace;
use crate::counters::{DeploymentCounters, OutboundRefusal};
use crate::deployment_calls::{DeploymentCaller, MAX_DEPTH, called_deployment};
use crate::deployment_lookup::DeploymentGrants;
use crate::resource_limiter::InstanceMemory;
use crate::use_count::{UseCount, UseGuard};
use address::is_public;
use exchange::ResponseBody;
use grant::Target;
use http::Method;
use http_body_util::BodyExt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use traced_request::TracedRequest;
use tracing::{Instrument, Span};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// Longest write to a body that a guest of WASI 0.2 makes.
const P2_CHUNK_BYTES: usize = 64 << 10;
/// Writes that such a body buffers, beside the one that `wasmtime-wasi-http` always allows.
const P2_CHUNKS: usize = 1;
/// Most bytes that the host buffers for such a body.
pub(crate) const P2_BODY_BYTES: usize = (P2_CHUNKS + 1) * P2_CHUNK_BYTES;
/// Refused requests of one call that are logged as warnings.
const MAX_WARNINGS: u32 = 8;

/// Outgoing requests of a deployment that has grants for some.
pub(crate) struct OutboundAccess {
    grants: Vec<OutboundGrant>,
    permits: OutboundPermits,
    client: Arc<OutboundClient>,
}

impl OutboundAccess {
    pub(crate) fn new(
        grants: Vec<OutboundGrant>,
        permits: OutboundPermits,
        client: Arc<OutboundClient>,
    ) -> Self {
        Self {
            grants,
            permits,
            client,
        }
    }

    /// Whether a request that has a grant may connect to this address.
    fn may_connect(&self, address: IpAddr, target: &Target, method: &Method) -> bool {
        let is_admin = self.client.is_admin_listener(address, target.port);
        let names = |grant: &OutboundGrant| {
            grant.allows_method(method)
                && grant.url.names(address, target)
                && (!is_admin || grant.url.has_port())
        };
        let is_free = !is_admin && is_public(address) && !self.client.is_own(address);
        is_free || self.grants.iter().any(names)
    }
}

/// Outgoing requests of an instance, for the call that it serves.
pub(crate) struct Outbound(Arc<CallOutbound>);

struct CallOutbound {
    access: Option<Arc<OutboundAccess>>,
    deployments: Option<Arc<DeploymentGrants>>,
    /// On whose behalf it calls deployments.
    caller: Option<DeploymentCaller>,
    counters: Arc<DeploymentCounters>,
    /// Headers of responses count as memory of the call.
    memory: Arc<InstanceMemory>,
    warnings: AtomicU32,
    /// Requests that are sent, or whose response is not read to its end.
    open: UseCount,
    trace: Option<Arc<dyn CallTrace>>,
}

/// Why a request failed: what the plugin gets, what is counted, and what is logged.
struct Failure {
    error: Error,
    refusal: Option<OutboundRefusal>,
    warning: Option<String>,
}

impl Failure {
    /// A request that the host refused or ended.
    fn refused(error: Error, refusal: OutboundRefusal) -> Self {
        Self {
            error,
            refusal: Some(refusal),
            warning: None,
        }
    }

    fn with_warning(self, warning: String) -> Self {
        Self {
            warning: Some(warning),
            ..self
        }
    }
}

/// A request that the network or the other side failed.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            refusal: None,
            warning: None,
        }
    }
}

impl Outbound {
    pub(crate) fn new(
        access: Option<Arc<OutboundAccess>>,
        deployments: Option<Arc<DeploymentGrants>>,
        counters: &Arc<DeploymentCounters>,
        memory: &Arc<InstanceMemory>,
    ) -> Self {
        Self(Arc::new(CallOutbound {
            access,
            deployments,
            caller: None,
            counters: Arc::clone(counters),
            memory: Arc::clone(memory),
            warnings: AtomicU32::new(0),
            open: UseCount::default(),
            trace: None,
        }))
    }

    /// Whether no request is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.open.get() == 0
    }

    /// Begins another call on behalf of `caller`, in this trace. Between calls there is neither.
    pub(crate) fn begin_call(
        &mut self,
        caller: Option<DeploymentCaller>,
        trace: Option<Arc<dyn CallTrace>>,
    ) {
        if Arc::get_mut(&mut self.0).is_none() {
            let call = &*self.0;
            let (access, deployments) = (call.access.clone(), call.deployments.clone());
            *self = Self::new(access, deployments, &call.counters, &call.memory);
        }
        if let Some(call) = Arc::get_mut(&mut self.0) {
            call.caller = caller;
            call.trace = trace;
            *call.warnings.get_mut() = 0;
        }
    }
}

impl CallOutbound {
    /// The target of a request that has a grant.
    fn check(
        &self,
        request: &http::Request<WasiBody>,
    ) -> Result<(Arc<OutboundAccess>, Target), Failure> {
        let (method, uri) = (request.method(), request.uri());
        let Some(target) = Target::of(uri) else {
            let failure = Failure::refused(Error::HttpRequestUriInvalid, OutboundRefusal::Host);
            return Err(failure.with_warning(format!(
                "refused an outbound request: {method} {:?} names no host in its usual form",
                uri.authority().map_or("", |authority| authority.as_str())
            )));
        };
        let grants = self.access.iter().flat_map(|access| &access.grants);
        let mut grants = grants.filter(|grant| grant.url.matches(&target)).peekable();
        let url = target.url();
        let Some(access) = self.access.as_ref().filter(|_| grants.peek().is_some()) else {
            let failure = Failure::refused(Error::HttpRequestDenied, OutboundRefusal::Grant);
            return Err(failure.with_warning(format!(
                "refused an outbound request: {method} {url} needs a grant; add \"{url}\" to 'grants.outbound' in \
                 the manifest if the deployment may call it"
            )));
        };
        // A tunnel could carry anything.
        let allowed = *method != Method::CONNECT && grants.any(|grant| grant.allows_method(method));
        if !allowed {
            let failure = Failure::refused(Error::HttpRequestDenied, OutboundRefusal::Method);
            return Err(failure.with_warning(format!(
                "refused an outbound request: the grant for {url} does not allow {method}; add it to 'methods' of \
                 that entry of 'grants.outbound' in the manifest if the deployment may use it"
            )));
        }
        Ok((Arc::clone(access), target))
    }

    /// Sends a request to another deployment, which needs a grant.
    async fn call_deployment(
        &self,
        name: &str,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        open: UseGuard,
    ) -> Result<http::Response<WasiBody>, Failure> {
        let grants = self.deployments.as_ref();
        let granted = grants.filter(|grants| grants.names.contains(name));
        let found = granted.and_then(|grants| grants.deployment_lookup.get());
        let (Some(lookup), Some(caller)) = (found, &self.caller) else {
            let failure = Failure::refused(Error::HttpRequestDenied, OutboundRefusal::Grant);
            return Err(failure.with_warning(format!(
                "refused a call of the deployment {name:?}: it needs a grant; add its name to 'grants.deployments' in \
                 the manifest if the deployment may call it"
            )));
        };
        if !caller.may_call() {
            let failure = Failure::refused(Error::LoopDetected, OutboundRefusal::Depth);
            return Err(failure.with_warning(format!(
                "refused a call of the deployment {name:?}: it would be within {MAX_DEPTH} others, the most; check for a cycle"
            )));
        }
        let options = options.unwrap_or_default();
        let wait = exchange::shorter(options.connect_timeout, exchange::CONNECT_TIME);
        let time = exchange::shorter(options.first_byte_timeout, exchange::FIRST_BYTE_TIME);
        let called = caller.call(&**lookup, name, request, wait, &self.counters);
        let response = tokio::time::timeout(wait.saturating_add(time), called).await;
        let response = response
            .map_err(|_| Failure::refused(Error::HttpResponseTimeout, OutboundRefusal::Time))?;
        exchange::count_headers(response.headers(), &self.memory)?;
        Ok(response.map(|body| {
            let body = body.map_frame(move |frame| {
                let _open = &open;
                frame
            });
            // The called deployment's own limit ends a response that is too long.
            ResponseBody::new(body, u64::MAX, &options, &self.counters).boxed_unsync()
        }))
    }

    /// Counts a failed request, and logs why.
    fn failed(&self, failure: Failure) -> Error {
        let Failure {
            error,
            refusal,
            warning,
        } = failure;
        match refusal {
            Some(refusal) => self.counters.outbound_refused(refusal),
            None => {
                self.counters.outbound_failures.increment();
            }
        }
        match warning {
            Some(text) if self.warnings.fetch_add(1, Ordering::Relaxed) < MAX_WARNINGS => {
                tracing::warn!("{text}");
            }
            Some(text) => tracing::debug!("{text}"),
            None => tracing::debug!(%error, "an outbound request failed"),
        }
        error
    }
}

type SendResult = wasmtime_wasi_http::Result<(
    http::Response<WasiBody>,
    Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
)>;

impl WasiHttpHooks for Outbound {
    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        P2_CHUNKS
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        P2_CHUNK_BYTES
    }

    fn send_request(
        &mut self,
        mut request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
    ) -> Box<dyn Future<Output = SendResult> + Send> {
        let call = Arc::clone(&self.0);
        call.counters.outbound_requests.increment();
        let open = call.open.guard();
        let sent = async move {
            let sent = match (called_deployment(request.uri()), call.check(&request)) {
                (Some(name), _) => {
                    let called = call.call_deployment(&name, request, options, open).await;
                    let done: Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send> =
                        Box::new(async { Ok(()) });
                    called.map(|response| (response, done))
                }
                (None, Ok((access, target))) => {
                    let traced = TracedRequest::begin(&call, &target, &mut request);
                    let sent = exchange::exchange(&call, &access, &target, request, options, open);
                    let sent = sent.await;
                    if let Some(traced) = traced {
                        traced.end(&sent);
                    }
                    sent
                }
                (None, Err(failure)) => Err(failure),
            };
            sent.map_err(|failure| call.failed(failure))
        };
        // In WASI 0.2 another task runs it.
        Box::new(sent.instrument(Span::current()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource_limiter::Limiter;
    use http_body_util::Empty;

    /// Otherwise its instance could serve another call meanwhile.
    #[test]
    fn request_is_open_from_its_start() {
        let counters = Arc::<DeploymentCounters>::default();
        let limiter = Limiter::new(1 << 20, Arc::default(), Arc::clone(&counters));
        let mut outbound = Outbound::new(None, None, &counters, limiter.memory());
        assert!(outbound.is_idle());
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let request = http::Request::get("http://127.0.0.1:9/").body(body);
        let processed = Box::new(std::future::ready(Ok(())));
        let sent = outbound.send_request(request.expect("valid"), None, processed);
        assert!(!outbound.is_idle());
        drop(sent);
        assert!(outbound.is_idle());
    }
}
