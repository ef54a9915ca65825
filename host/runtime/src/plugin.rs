//! A loaded plugin, and the two ways to call it.

use crate::account::Account;
use crate::admission::{Gate, Pass};
use crate::body::{Body, inbound};
use crate::call::{Handle, Live, Verdict, exit_code, serve};
use crate::failure::Failure;
use crate::host::Snapshots;
use crate::models::Visible;
use crate::output::{Origin, Output};
use crate::runtime::Shared;
use crate::settings::{Call, Limits, Terms};
use crate::state::{Grants, State};
use crate::store::store;
use crate::validate::{CliPre, Compiled};
use bytes::Bytes;
use corral_engine::{Caller, Priority, Share, Tenant};
use futures_channel::oneshot;
use http::header::{CONTENT_LENGTH, HOST};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Uri};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi_http::handler::ProxyPre;

/// A time that clocks can still count with: a year.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a plugin can be called for. What it can be linked for is looked at where that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// It handles HTTP requests.
    pub http: bool,
    /// It runs as a command.
    pub cli: bool,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(i32);

impl Exit {
    /// Its exit code; 0 is success.
    pub fn code(self) -> i32 {
        self.0
    }

    /// Whether it succeeded.
    pub fn success(self) -> bool {
        self.0 == 0
    }
}

/// A plugin that can be called. Cheap to clone; it lives as long as a clone or a call does.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    limits: Arc<Limits>,
    account: Account,
    grants: Grants,
    environment: Vec<(String, String)>,
    /// The number of the revision that it is, once it has one.
    revision: OnceLock<u64>,
    gate: Gate,
    http: Option<Arc<ProxyPre<State>>>,
    cli: Option<CliPre>,
    calls: AtomicU64,
    shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.counters.unloaded();
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.0.name)
            .field("roles", &self.roles())
            .finish_non_exhaustive()
    }
}

impl Plugin {
    /// A plugin of `account` that may open `models`, whatever the terms say of them.
    pub(crate) fn new(
        name: &str,
        account: &Account,
        compiled: Compiled,
        terms: Terms,
        models: Visible,
        shared: Arc<Shared>,
    ) -> Self {
        shared.counters.loaded();
        Self(Arc::new(Inner {
            name: name.into(),
            gate: account.gate(&terms.limits),
            limits: Arc::new(terms.limits),
            account: account.clone(),
            grants: Grants {
                models,
                snapshots: Snapshots::new(name, Arc::clone(&shared.snapshot_turns)),
                samplers: Arc::new(compiled.samplers),
                sampling: Arc::clone(account.sampling()),
            },
            environment: terms.environment,
            revision: OnceLock::new(),
            http: compiled.http.map(Arc::new),
            cli: compiled.cli,
            calls: AtomicU64::new(0),
            shared,
        }))
    }

    /// The name under which it was loaded.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Who it is to the engines, among whom their time is shared fairly.
    pub fn tenant(&self) -> Tenant {
        self.0.account.tenant()
    }

    /// Whose it is.
    pub fn account(&self) -> &Account {
        &self.0.account
    }

    /// Says the number of the revision that it is, for its log. The first number counts.
    pub fn number(&self, revision: u64) {
        self.0.revision.get_or_init(|| revision);
    }

    /// What one call of it may use.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// What it can be called for.
    pub fn roles(&self) -> Roles {
        Roles {
            http: self.0.http.is_some(),
            cli: self.0.cli.is_some(),
        }
    }

    /// Lets a fresh instance answer `request`, within the plugin's limits. A [`Call`] among the
    /// request's extensions names the call, may bring its deadline forward, and says on whose behalf
    /// it comes and whose tokens it uses.
    ///
    /// Returns when the response's headers are known; the body follows as the plugin writes it.
    /// Dropping this future, or the body before its end, stops the plugin at once. On failure
    /// nothing of the plugin's response is there.
    ///
    /// Must be called in a tokio runtime.
    pub async fn handle<B>(
        &self,
        request: http::Request<B>,
    ) -> Result<http::Response<Body>, Failure>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let plugin = &*self.0;
        let call = request.extensions().get::<Call>().cloned();
        let (verdict, span, id) = self.begin(call.as_ref());
        let fail = |failure| Err(verdict.fail(failure));
        let Some(pre) = &plugin.http else {
            return fail(Failure::Role {
                interface: "wasi:http/handler",
            });
        };
        if let Err(failure) = announced(request.headers(), plugin.limits.request_bytes) {
            return fail(failure);
        }
        let call = call.unwrap_or_default();
        let time = self.time(call.deadline);
        let pass = match plugin.gate.enter(time.1).await {
            Ok(pass) => pass,
            Err(failure) => return fail(failure),
        };
        let live = self.live(&verdict, time, pass);
        let meter = Arc::clone(&live.meter);
        let origin = Origin {
            logs: Arc::clone(plugin.account.logs()),
            revision: plugin.revision.get().copied(),
            call: id,
            counters: Arc::clone(&plugin.shared.counters),
        };
        let mut wasi = WasiCtxBuilder::new();
        wasi.stdout(Output::new("stdout", origin.clone()))
            .stderr(Output::new("stderr", origin.clone()));
        let mut state = self.state(&mut wasi, &live, time.1, call);
        state.origin = Some(origin);
        let request = prepare(request, plugin.limits.request_bytes);
        let (reply, response) = oneshot::channel();
        let engine = plugin.shared.engine.clone();
        let task = serve(live, Arc::clone(pre), engine, state, request, reply);
        let task = tokio::spawn(task.instrument(span.clone()));
        let handle = Handle::new(task.abort_handle(), Arc::clone(&verdict));
        match response.await {
            Ok(Ok(response)) => {
                let (length, limit) = (length(response.headers()), plugin.limits.response_bytes);
                if length.is_some_and(|length| length > limit) {
                    return Err(handle.fail(Failure::ResponseTooLarge { limit }));
                }
                Ok(response.map(|body| Body::from_plugin(body, handle, length, limit)))
            }
            Ok(Err(error)) => {
                let _span = span.enter();
                fail(Failure::from_wasmtime(&error, &meter, &plugin.limits))
            }
            // The task ended without a response: it knows why.
            Err(oneshot::Canceled) => {
                let ended = task.await;
                fail(match (verdict.failure(), ended) {
                    (Some(failure), _) => failure,
                    (None, Ok(())) => Failure::NoResponse,
                    (None, Err(error)) => {
                        tracing::error!(parent: &span, %error, "a call's task died");
                        Failure::Internal
                    }
                })
            }
        }
    }

    /// Runs a fresh instance as a command with this process's standard input and output. `args`
    /// follow the plugin's name, which takes the place of the program's.
    pub async fn run(&self, args: &[String]) -> Result<Exit, Failure> {
        let plugin = &*self.0;
        let (verdict, span, _) = self.begin(None);
        let Some(pre) = &plugin.cli else {
            return Err(verdict.fail(Failure::Role {
                interface: "wasi:cli/run",
            }));
        };
        let time = self.time(None);
        let pass = match plugin.gate.enter(time.1).await {
            Ok(pass) => pass,
            Err(failure) => return Err(verdict.fail(failure)),
        };
        let live = self.live(&verdict, time, pass);
        let mut wasi = WasiCtxBuilder::new();
        wasi.inherit_stdio().arg(&plugin.name).args(args);
        let began = Instant::now();
        let state = self.state(&mut wasi, &live, time.1, Call::default());
        let mut store = store(&plugin.shared.engine, state);
        let work = async {
            let result = match pre {
                CliPre::P2(pre) => {
                    let command = pre.instantiate_async(&mut store).await?;
                    live.started(began);
                    command.wasi_cli_run().call_run(&mut store).await
                }
                CliPre::P3(pre) => {
                    let command = pre.instantiate_async(&mut store).await?;
                    live.started(began);
                    let run = async |accessor: &wasmtime::component::Accessor<State>| {
                        let result = command.wasi_cli_run().call_run(accessor).await?;
                        poll_fn(|cx| accessor.poll_no_interesting_tasks(cx)).await;
                        Ok(result)
                    };
                    store.run_concurrent(run).await.flatten()
                }
            };
            match result {
                Ok(Ok(())) => Ok(0),
                Ok(Err(())) => Ok(1),
                Err(error) => exit_code(error),
            }
        };
        live.bounded(work).instrument(span).await.map(Exit)
    }

    /// Counts and names a call.
    fn begin(&self, call: Option<&Call>) -> (Arc<Verdict>, tracing::Span, Arc<str>) {
        let plugin = &*self.0;
        plugin.shared.counters.call();
        let number = plugin.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let name = &*plugin.name;
        let span = match call.and_then(|call| call.id.as_deref()) {
            Some(id) => tracing::info_span!(target: "corral::plugin", "call", plugin = name, id),
            None => tracing::info_span!(target: "corral::plugin", "call", plugin = name, number),
        };
        let counters = Arc::clone(&plugin.shared.counters);
        let verdict = Verdict::new(counters, Arc::clone(plugin.account.tally()));
        let id = match call.and_then(|call| call.id.as_deref()) {
            Some(id) => id.into(),
            None => number.to_string().into(),
        };
        (Arc::new(verdict), span, id)
    }

    /// The time that a call has from now on, and when it is over.
    fn time(&self, sooner: Option<std::time::Instant>) -> (Duration, Instant) {
        let now = Instant::now();
        let limit = self.0.limits.time.min(FOREVER);
        let time = match sooner {
            Some(sooner) => limit.min(Instant::from(sooner).saturating_duration_since(now)),
            None => limit,
        };
        (time, now + time)
    }

    fn live(&self, verdict: &Arc<Verdict>, time: (Duration, Instant), pass: Pass) -> Live {
        let plugin = &*self.0;
        Live::new(
            Arc::clone(&plugin.limits),
            Arc::clone(verdict),
            time,
            plugin.shared.ticker.tick(),
            pass,
            self.clone(),
        )
    }

    fn state(
        &self,
        wasi: &mut WasiCtxBuilder,
        live: &Live,
        deadline: Instant,
        call: Call,
    ) -> State {
        wasi.envs(&self.0.environment);
        let caller = Caller {
            tenant: call.tenant.unwrap_or(self.tenant()),
            shares: live.limits.share_prefixes.then_some(0),
            priority: Priority(live.limits.priority),
            share: live.limits.cells_percent.map(|percent| Share {
                group: self.tenant().0,
                percent,
            }),
            queue_time: live.limits.queue_time,
            deadline: Some(deadline.into_std()),
        };
        State::new(
            wasi,
            self.0.grants.clone(),
            caller,
            call.visit,
            &live.limits,
            Arc::clone(&live.meter),
            Arc::clone(self.0.account.tally()),
        )
    }
}

/// The length of a body, where the headers say it.
fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Refuses a body that says itself that it is too long.
fn announced(headers: &HeaderMap, limit: usize) -> Result<(), Failure> {
    match length(headers) {
        Some(bytes) if bytes > limit as u64 => Err(Failure::TooLarge { bytes, limit }),
        _ => Ok(()),
    }
}

/// The request as `wasi:http` wants it: with an authority, and a bounded body.
fn prepare<B>(request: http::Request<B>, limit: usize) -> wasmtime_wasi_http::handler::Request
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut parts, body) = request.into_parts();
    if parts.uri.authority().is_none() {
        let host = parts
            .headers
            .get(HOST)
            .and_then(|host| Authority::try_from(host.as_bytes()).ok())
            .unwrap_or_else(|| Authority::from_static("localhost"));
        let mut uri = std::mem::take(&mut parts.uri).into_parts();
        uri.scheme.get_or_insert(Scheme::HTTP);
        uri.authority = Some(host);
        // Only a path that is no path, such as the * of OPTIONS, makes no URI with an authority.
        uri.path_and_query = uri
            .path_and_query
            .filter(|path| path.as_str().starts_with('/'))
            .or(Some(http::uri::PathAndQuery::from_static("/")));
        parts.uri = Uri::from_parts(uri).unwrap_or_default();
    }
    http::Request::from_parts(parts, inbound(body, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Empty;

    fn uri_of(uri: &str, host: Option<&str>) -> String {
        let mut request = http::Request::builder().uri(uri);
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        prepare(request, 0).uri().to_string()
    }

    #[test]
    fn a_request_gets_an_authority() {
        assert_eq!(
            uri_of("/a?b", Some("x.example:1")),
            "http://x.example:1/a?b"
        );
        assert_eq!(uri_of("/a", None), "http://localhost/a");
        assert_eq!(uri_of("*", Some("x.example")), "http://x.example/");
        assert_eq!(uri_of("/a", Some("not a host")), "http://localhost/a");
        assert_eq!(
            uri_of("https://y.example/", Some("x")),
            "https://y.example/"
        );
    }
}
