//! A loaded plugin, and the ways to call it: for an HTTP request, for a message and as a command.

mod call_target;
mod message;
#[cfg(test)]
mod tests;

use crate::admission::Admission;
use crate::call::{Call, CallInstance, CallTime, exit_code, serve};
use crate::call_context::CallContext;
use crate::call_error::CallError;
use crate::call_outcome::{CallHandle, CallOutcome};
use crate::call_trace::CallTrace;
use crate::compiled_plugin::{CliPre, CompiledPlugin, MessagesPre};
use crate::compute_turns::TurnQueue;
use crate::deployment::DeploymentState;
use crate::deployment_config::DeploymentConfig;
use crate::deployment_lookup::{DeploymentGrants, MessageGrants};
use crate::deployment_snapshots::DeploymentSnapshots;
use crate::folders::FolderAccess;
use crate::idle_instances::{IdleInstances, InstanceOwner};
use crate::initialization::Initialized;
use crate::key_values::KeyValues;
use crate::models::VisibleModels;
use crate::outbound::OutboundAccess;
use crate::plugin_output::{LogOrigin, Output};
use crate::response_body::{Body, content_length};
use crate::runtime_config::{CallOptions, Limits, PluginConfig};
use crate::shared_services::SharedServices;
use crate::state::{State, StoreGrants};
use crate::store::store;
use bytes::Bytes;
use corral_engine::{Caller, CellShare, PrefixOwner, Priority, Tenant};
use futures_channel::oneshot;
use http_body_util::BodyExt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument;
use wasmtime::Engine;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi_http::WasiBody;
use wasmtime_wasi_http::handler::ProxyPre;

/// Longest time limit, a year: adding it to the clock cannot overflow.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The ways in which a plugin can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// It handles HTTP requests.
    pub http: bool,
    /// It handles messages.
    pub messages: bool,
    /// It runs as a command.
    pub cli: bool,
}

impl Roles {
    /// Names of the exports, without versions.
    const HTTP: &'static str = "wasi:http/handler";
    const MESSAGES: &'static str = "wasmcloud:messaging/handler";
    const CLI: &'static str = "wasi:cli/run";

    /// The exports through which it can be called.
    fn exports(self) -> Vec<&'static str> {
        let all = [
            (self.http, Self::HTTP),
            (self.messages, Self::MESSAGES),
            (self.cli, Self::CLI),
        ];
        all.iter()
            .filter(|(has, _)| *has)
            .map(|(_, export)| *export)
            .collect()
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus(i32);

impl ExitStatus {
    /// The exit code; 0 is success.
    pub fn code(self) -> i32 {
        self.0
    }

    /// Whether the code is 0.
    pub fn success(self) -> bool {
        self.0 == 0
    }
}

/// A loaded plugin. Cheap to clone; unloaded when the last clone and the last call are gone.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    limits: Arc<Limits>,
    deployment: DeploymentState,
    grants: Arc<StoreGrants>,
    /// The owner of the prefixes of calls that share them with all, or that have neither an API key nor a calling deployment.
    prefix_owner: PrefixOwner,
    environment: Vec<(String, String)>,
    /// Number of the revision, once it has one.
    revision: OnceLock<u64>,
    admission: Admission,
    engine: Engine,
    http: Option<Arc<ProxyPre<State>>>,
    messages: Option<MessagesPre>,
    cli: Option<CliPre>,
    initialized: Option<Initialized>,
    /// Instances that wait for another call, if calls may reuse one.
    idle: Option<Arc<IdleInstances>>,
    calls: AtomicU64,
    shared: Arc<SharedServices>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.counters.plugins_loaded.decrement();
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
    /// A plugin of `deployment` that may open `models`, which replace those of `config`.
    pub(crate) fn new(
        name: &str,
        deployment: &DeploymentState,
        compiled: CompiledPlugin,
        config: PluginConfig,
        models: VisibleModels,
        shared: Arc<SharedServices>,
    ) -> Self {
        shared.counters.plugins_loaded.increment();
        let quota_bytes = config.limits.key_value_bytes;
        let store = shared.key_values.as_ref().filter(|_| quota_bytes > 0);
        let key_values = store.map(|store| KeyValues {
            store: Arc::clone(store),
            permits: Arc::clone(deployment.key_values()),
            deployment: name.into(),
            is_removed: Arc::clone(deployment.is_removed()),
            tenant: Arc::default(),
            quota_bytes,
        });
        let is_configured = !config.environment.is_empty() || !config.secrets.is_empty();
        let deployment_config = is_configured.then(|| {
            Arc::new(DeploymentConfig {
                values: config.environment.iter().cloned().collect(),
                granted: config.secrets.into_iter().collect(),
                secrets: shared.secrets.clone(),
            })
        });
        let folders = FolderAccess::new(
            config.folders,
            shared.folders.clone(),
            deployment.folder_files(),
            &shared.folder_files,
        );
        let outbound = match config.outbound {
            grants if grants.is_empty() => None,
            grants => Some(Arc::new(OutboundAccess::new(
                grants,
                deployment.outbound().clone(),
                Arc::clone(&shared.outbound),
            ))),
        };
        let idle = config.reuse.map(|reuse| {
            Arc::new(IdleInstances::new(
                reuse,
                Arc::clone(&shared.waiting_instances),
                compiled.permits,
                Arc::clone(deployment.counters()),
            ))
        });
        let prefix_owner = match config.limits.share_prefixes {
            true => PrefixOwner::new("shared", ""),
            false => PrefixOwner::new("deployment", name),
        };
        Self(Arc::new(Inner {
            name: name.into(),
            idle,
            admission: deployment.admission(&config.limits, compiled.permits),
            limits: Arc::new(config.limits),
            deployment: deployment.clone(),
            grants: Arc::new(StoreGrants {
                models,
                snapshots: DeploymentSnapshots::new(name, Arc::clone(&shared.snapshot_permits)),
                key_values,
                config: deployment_config,
                folders,
                outbound,
                deployments: (!config.deployments.is_empty()).then(|| {
                    Arc::new(DeploymentGrants {
                        names: config.deployments,
                        deployment_lookup: Arc::clone(&shared.deployment_lookup),
                    })
                }),
                messages: (!config.messages.is_empty()).then(|| {
                    Arc::new(MessageGrants {
                        subjects: config.messages,
                        deployment_lookup: Arc::clone(&shared.deployment_lookup),
                    })
                }),
                system: config.system,
                tokenization: Arc::clone(&shared.tokenization),
                samplers: Arc::new(compiled.samplers),
                sampling: Arc::clone(deployment.sampling()),
                turns: Some(Arc::clone(&shared.turns)),
            }),
            prefix_owner,
            environment: config.environment,
            revision: OnceLock::new(),
            engine: compiled.engine,
            http: compiled.http.map(Arc::new),
            messages: compiled.messages,
            cli: compiled.cli,
            initialized: compiled.initialized,
            calls: AtomicU64::new(0),
            shared,
        }))
    }

    /// The name under which it was loaded.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its deployment's tenant.
    pub fn tenant(&self) -> Tenant {
        self.0.deployment.tenant()
    }

    /// Its deployment.
    pub fn deployment(&self) -> &DeploymentState {
        &self.0.deployment
    }

    /// Sets the number of its revision, for its log. Later calls have no effect.
    pub fn set_revision(&self, revision: u64) {
        self.0.revision.get_or_init(|| revision);
    }

    /// Number of its revision, if it has one.
    pub fn revision(&self) -> Option<u64> {
        self.0.revision.get().copied()
    }

    /// Limits of its calls.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The ways in which it can be called.
    pub fn roles(&self) -> Roles {
        Roles {
            http: self.0.http.is_some(),
            messages: self.0.messages.is_some(),
            cli: self.0.cli.is_some(),
        }
    }

    /// The error of a call that needs this export.
    fn missing_export(&self, interface: &'static str) -> CallError {
        CallError::MissingExport {
            interface,
            exports: self.roles().exports(),
        }
    }

    /// What its initialization did, if it had one.
    pub fn initialized(&self) -> Option<Initialized> {
        self.0.initialized
    }

    /// Lets an instance answer `request`, a fresh one unless calls reuse one. Returns when the response's headers are known; the body
    /// follows as the plugin writes it. Dropping this future, or the body before its end, stops the plugin.
    ///
    /// The caller checks the request: its URI must be absolute, and its body no longer than
    /// [`Limits::request_bytes`]. Must run in a tokio runtime.
    ///
    /// # Errors
    /// Why the call failed. No part of the plugin's response has been returned then.
    pub async fn handle<B>(
        &self,
        request: http::Request<B>,
        options: CallOptions,
    ) -> Result<http::Response<Body>, CallError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let plugin = &*self.0;
        let trace = options.trace.as_deref().map(CallTrace::id);
        let (outcome, span, id) = self.begin(options.id.clone(), trace);
        let fail = |error| Err(outcome.fail(error));
        let Some(pre) = &plugin.http else {
            return fail(self.missing_export(Roles::HTTP));
        };
        let mut call = match self.admit(&outcome, &options).await {
            Ok(call) => call,
            Err(error) => return fail(error),
        };
        let context = self.context(&call, options, id);
        let idle = plugin.idle.as_ref().map(|idle| {
            let owner = InstanceOwner {
                tenant: context.tenant,
                name: Arc::clone(&context.tenant_name),
            };
            (Arc::clone(idle), owner)
        });
        let used = idle.as_ref().and_then(|(idle, owner)| idle.take(owner));
        let instance = match used {
            Some(used) => {
                call.meter = Arc::clone(&used.store.data().meter);
                call.meter.reset();
                CallInstance::Reused(Box::new(used))
            }
            None => {
                let store = store(&plugin.engine, self.handler_state(&call, &context));
                CallInstance::Fresh(Arc::clone(pre), store)
            }
        };
        let meter = Arc::clone(&call.meter);
        let (reply, response) = oneshot::channel();
        let request = request.map(request_body);
        // Boxed, because spawning moves a future several times.
        let task = Box::pin(serve(call, instance, context, idle, request, reply));
        let task = tokio::spawn(task.instrument(span.clone()));
        let handle = CallHandle::new(task.abort_handle(), Arc::clone(&outcome));
        match response.await {
            Ok(Ok(response)) => {
                let status = response.status().as_u16();
                if !(200..600).contains(&status) {
                    let message = format!("invalid status {status}; expected 200 to 599");
                    return Err(handle.fail(CallError::ReturnedError { message }));
                }
                let limit = plugin.limits.response_bytes;
                let announced = content_length(response.headers());
                if announced.is_some_and(|length| length > limit) {
                    return Err(handle.fail(CallError::ResponseTooLarge { limit }));
                }
                Ok(response.map(|body| Body::from_plugin(body, handle, announced, limit)))
            }
            Ok(Err(error)) => {
                let _span = span.enter();
                fail(CallError::from_wasmtime(
                    &error,
                    &meter,
                    plugin.limits.memory,
                ))
            }
            // The task ended without a response.
            Err(oneshot::Canceled) => {
                let ended = task.await;
                fail(match (outcome.error(), ended) {
                    (Some(error), _) => error,
                    (None, Ok(())) => CallError::NoResponse,
                    (None, Err(error)) => {
                        tracing::error!(parent: &span, %error, "the task of a call failed");
                        CallError::Internal
                    }
                })
            }
        }
    }

    /// Runs a fresh instance as a command with this process's standard input and output. `args` follow the
    /// plugin's name, which is argument 0.
    ///
    /// # Errors
    /// Why the call failed.
    pub async fn run(&self, args: &[String]) -> Result<ExitStatus, CallError> {
        let plugin = &*self.0;
        let (outcome, span, _) = self.begin(None, None);
        let Some(pre) = &plugin.cli else {
            return Err(outcome.fail(self.missing_export(Roles::CLI)));
        };
        let call = match self.admit(&outcome, &CallOptions::default()).await {
            Ok(call) => call,
            Err(error) => return Err(outcome.fail(error)),
        };
        let mut wasi = WasiCtxBuilder::new();
        wasi.inherit_stdio().arg(&plugin.name).args(args);
        let began = Instant::now();
        let mut state = self.state(&mut wasi, &call);
        state.caller = self.caller(&call, &CallOptions::default());
        let mut store = store(&plugin.engine, state);
        let work = async {
            let result = match pre {
                CliPre::P2(pre) => {
                    let command = pre.instantiate_async(&mut store).await?;
                    call.instance_started(began);
                    command.wasi_cli_run().call_run(&mut store).await
                }
                CliPre::P3(pre) => {
                    let command = pre.instantiate_async(&mut store).await?;
                    call.instance_started(began);
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
        call.run(work).instrument(span).await.map(ExitStatus)
    }

    /// Counts a call, and returns its outcome, span and id.
    fn begin(
        &self,
        id: Option<Arc<str>>,
        trace_id: Option<&str>,
    ) -> (Arc<CallOutcome>, tracing::Span, Arc<str>) {
        let plugin = &*self.0;
        plugin.shared.counters.calls.increment();
        let number = plugin.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let name = &*plugin.name;
        let (span, id) = match id {
            Some(id) => (
                tracing::info_span!(target: "corral::plugin", "call", deployment = name, request_id = &*id, trace_id),
                id,
            ),
            None => (
                tracing::info_span!(target: "corral::plugin", "call", deployment = name, number),
                number.to_string().into(),
            ),
        };
        let outcome = CallOutcome::new(
            Arc::clone(&plugin.shared.counters),
            Arc::clone(plugin.deployment.counters()),
        );
        (Arc::new(outcome), span, id)
    }

    /// Waits for a permit and begins the call.
    async fn admit(
        &self,
        outcome: &Arc<CallOutcome>,
        options: &CallOptions,
    ) -> Result<Call, CallError> {
        let plugin = &*self.0;
        let trace = options
            .trace
            .as_ref()
            // A call of another deployment is a part of its caller's.
            .filter(|trace| trace.is_sampled() && options.depth == 0);
        let queued_since = trace.map(|_| std::time::Instant::now());
        let mut limit = plugin.limits.time.min(MAX_TIME);
        if let Some(deadline) = options.deadline {
            limit = limit.min(Instant::from(deadline).saturating_duration_since(Instant::now()));
        }
        let time = CallTime::start(limit);
        let wait = options.instance_wait.map(|wait| Instant::now() + wait);
        let until = wait.map_or(time.deadline, |wait| wait.min(time.deadline));
        let permit = plugin.admission.acquire(until).await;
        if let (Some(trace), Some(since)) = (trace, queued_since) {
            trace.queued(since);
        }
        let permit = permit?;
        Ok(Call::new(
            Arc::clone(&plugin.limits),
            Arc::clone(outcome),
            time,
            plugin.shared.ticker.tick(),
            TurnQueue::new(
                &plugin.shared.turns,
                self.fairness_tenant(options),
                plugin.deployment.counters(),
            ),
            permit,
            Arc::clone(&self.0) as _,
        )
        .with_trace(trace.cloned()))
    }

    /// What belongs to a call with this id.
    fn context(&self, call: &Call, options: CallOptions, id: Arc<str>) -> CallContext {
        let plugin = &*self.0;
        let caller = self.caller(call, &options);
        let log_origin = Arc::new(LogOrigin {
            logs: Arc::clone(plugin.deployment.logs()),
            deployment: Arc::clone(&plugin.name),
            revision: plugin.revision.get().copied(),
            call: id,
            counters: Arc::clone(&plugin.shared.counters),
            last_error_line: options.last_error_line,
            trace: options.trace,
        });
        CallContext {
            tenant: options.tenant.unwrap_or(self.tenant()),
            fairness_tenant: options.fairness_tenant,
            tenant_deployment: options
                .tenant_deployment
                .unwrap_or_else(|| Arc::clone(&plugin.name)),
            tenant_name: options.tenant_name.unwrap_or_default(),
            key_name: options.key_name,
            quota_permit: options.quota_permit,
            usage: options.usage.unwrap_or_default(),
            depth: options.depth,
            message_depth: options.message_depth,
            caller,
            log_origin,
        }
    }

    /// The tenant whose share of compute turns and of the engines' time a call uses.
    fn fairness_tenant(&self, options: &CallOptions) -> Tenant {
        let tenant = options.fairness_tenant.or(options.tenant);
        tenant.unwrap_or(self.tenant())
    }

    /// On whose behalf the engines run the requests of a call.
    fn caller(&self, call: &Call, options: &CallOptions) -> Caller {
        let tenant = options.tenant.unwrap_or(self.tenant());
        // The owner of a scope, under a name that is the same after a restart.
        let owner = match (&options.tenant_name, &options.tenant_deployment) {
            _ if call.limits.share_prefixes => self.0.prefix_owner,
            (Some(tenant), _) => PrefixOwner::new("tenant", tenant),
            (None, Some(other)) => PrefixOwner::new("deployment", other),
            (None, None) => self.0.prefix_owner,
        };
        Caller {
            tenant: self.fairness_tenant(options),
            prefix_group: match options.fairness_tenant {
                _ if call.limits.share_prefixes => Some(0),
                // Whoever the time is shared with, prefixes are the tenant's.
                Some(_) => Some(tenant.0.saturating_add(1)),
                None => None,
            },
            prefix_owner: Some(owner),
            priority: Priority(call.limits.priority),
            latency: match options.first_token {
                Some(time) => call.limits.latency.with_first_token(time),
                None => call.limits.latency,
            },
            cell_share: call.limits.cells_percent.map(|percent| CellShare {
                group: self.tenant().0,
                percent,
            }),
            queue_time: call.limits.generation_queue_time,
            deadline: Some(call.time.deadline.into_std()),
        }
    }

    /// The state of a new instance of a handler.
    fn handler_state(&self, call: &Call, context: &CallContext) -> State {
        let outputs =
            ["stdout", "stderr"].map(|stream| Output::new(stream, Arc::clone(&context.log_origin)));
        let mut wasi = WasiCtxBuilder::new();
        wasi.stdout(outputs[0].clone()).stderr(outputs[1].clone());
        let mut state = self.state(&mut wasi, call);
        state.outputs = Some(outputs);
        state
    }

    fn state(&self, wasi: &mut WasiCtxBuilder, call: &Call) -> State {
        wasi.envs(&self.0.environment);
        State::new(
            wasi,
            Arc::clone(&self.0.grants),
            &call.limits,
            Arc::clone(&call.meter),
            Arc::clone(self.0.deployment.counters()),
        )
    }
}

/// A request body as `wasi:http` takes it.
fn request_body<B>(body: B) -> WasiBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    body.map_err(|error| {
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        tracing::debug!(%error, "the request body ended early");
        wasmtime_wasi_http::Error::ConnectionTerminated
    })
    .boxed_unsync()
}
