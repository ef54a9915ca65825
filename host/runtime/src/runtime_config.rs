//! What an operator configures, and the bounds that hold for every plugin.

use crate::call_trace::CallTrace;
use crate::component_source::ComponentSource;
use crate::folders::Folders;
use crate::last_stderr_line::LastLine;
use crate::message_subject::SubjectPattern;
use crate::outbound::OutboundGrant;
use crate::quota::QuotaPermit;
use crate::secrets::Secrets;
use corral_engine::{Latency, Tenant, TokenUsage};
use corral_isolation::ChildProcesses;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Components that may stand before a handler.
pub const MAX_MIDDLEWARE: usize = 8;
/// Core instances of one plugin instance. A component has up to 5, and one more if another component calls it: these suffice
/// for a handler with a template and [`MAX_MIDDLEWARE`].
pub(crate) const CORE_INSTANCES: u32 = 64;
/// Linear memories of one plugin instance.
pub(crate) const MEMORIES: u32 = 16;
/// Tables of one plugin instance.
pub(crate) const TABLES: u32 = 32;
/// Elements of one table.
pub(crate) const TABLE_ELEMENTS: usize = 20_000;
/// Entries in the host resource table of one plugin instance: handles, streams, headers.
pub(crate) const RESOURCES: usize = 4096;
/// Bytes that a plugin may pass in one host call.
pub(crate) const HOSTCALL_BYTES: usize = 32 << 20;
/// Bytes of all header fields in one `wasi:http` fields resource.
pub(crate) const FIELD_BYTES: usize = 64 << 10;
/// Random bytes that a plugin may request in one call.
pub(crate) const RANDOM_BYTES: u64 = 1 << 20;

/// Configuration of the [`Runtime`](crate::Runtime).
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Plugin instances that may exist at once, over all deployments. One in eight, and at least one, is
    /// reserved: a deployment that uses all others does not get it.
    ///
    /// Each instance reserves about 36 GiB of address space, the sampling plugins' share included. It
    /// uses memory only for the pages that the plugin touches.
    pub instances: u32,
    /// Private directory for compiled plugins, created with mode 0700. Without one, every load compiles.
    pub cache: Option<PathBuf>,
    /// File of the values that plugins keep, created when a plugin first opens its values. Without it, plugins keep none.
    pub key_values: Option<PathBuf>,
    /// Largest component, in bytes.
    pub component_bytes: usize,
    /// Compiles components in child processes, with limits. Without it, this process compiles.
    pub children: Option<ChildProcesses>,
    /// Compiles in a fraction of the time to slower code, for authors who wait for it.
    pub develop: bool,
    /// Outgoing requests of plugins that are granted some.
    pub outbound: OutboundConfig,
    /// Secrets of plugins that are granted some.
    pub secrets: Secrets,
    /// Folders of plugins that are granted some.
    pub folders: Folders,
    /// Files in folders that all plugins together may have open. One deployment has at most a quarter of them.
    pub folder_files: usize,
}

/// Outgoing requests of all plugins.
#[derive(Clone, Debug)]
pub struct OutboundConfig {
    /// Connections at once. One deployment has at most a quarter of them.
    pub connections: usize,
    /// Makes the configuration of TLS, with the trusted certificates, when the first request needs it. Without it,
    /// requests to `https` URLs fail.
    pub tls: Option<TlsSource>,
    /// The server's admin listener, which only a grant with its address and port reaches.
    pub admin_listener: Option<SocketAddr>,
}

/// Reads the trusted certificates. Blocks.
pub type TlsSource = fn() -> io::Result<rustls::ClientConfig>;

impl Default for OutboundConfig {
    fn default() -> Self {
        Self {
            connections: 128,
            tls: None,
            admin_listener: None,
        }
    }
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            instances: 256,
            cache: None,
            key_values: None,
            component_bytes: 64 << 20,
            children: None,
            develop: false,
            outbound: OutboundConfig::default(),
            secrets: Secrets::default(),
            folders: Folders::default(),
            folder_files: 256,
        }
    }
}

/// Limits of one call, and of the calls of a deployment.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of linear memory, over all memories of the instance.
    pub memory: usize,
    /// Wall time of the call: waiting in the queue, running, and streaming the body. Then its generations end with an
    /// error. The plugin has half as long again, at most 10 s, to report it; then the call ends.
    pub time: Duration,
    /// CPU time of the plugin and of the host's work for it, such as tokenization. Waiting is free.
    pub cpu: Duration,
    /// Largest request body, in bytes. The caller of [`Plugin::handle`](crate::Plugin::handle) enforces it.
    pub request_bytes: usize,
    /// Largest response body, in bytes.
    pub response_bytes: u64,
    /// Calls of the deployment that may run at once, over all its revisions. The instance pool allows at most
    /// [`Runtime::max_calls`](crate::Runtime::max_calls), and fewer of a plugin composed of many components.
    pub concurrent: usize,
    /// Calls of the deployment that may wait for a permit, before they have an instance. `queued-requests` in the
    /// manifest.
    pub waiting_calls: usize,
    /// How long a generation of a running call may wait in the engine's queue before it is refused.
    /// Unlimited if `None`. `queue-time-seconds` in the manifest: it limits the wait for the model, not for an instance.
    pub generation_queue_time: Option<Duration>,
    /// Priority of the plugin's generations. Higher priorities always run first.
    pub priority: u8,
    /// Targets of its generations for the gap between tokens and for the first token.
    pub latency: Latency,
    /// Share the prefix cache with all deployments that set this. Prefill times then reveal whether
    /// another deployment used the same prefix.
    pub share_prefixes: bool,
    /// Largest part of each model's KV cells that the deployment's running sequences may use, from 1 to
    /// 100 percent. A request that needs more is refused or ends early.
    pub cells_percent: Option<u8>,
    /// Bytes of keys and values that the plugin may keep for each tenant. With 0 it may keep none.
    pub key_value_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            time: Duration::from_secs(3600),
            cpu: Duration::from_secs(10),
            request_bytes: 8 << 20,
            response_bytes: 256 << 20,
            concurrent: 64,
            waiting_calls: 256,
            generation_queue_time: None,
            priority: 0,
            latency: Latency::default(),
            share_prefixes: false,
            cells_percent: None,
            key_value_bytes: 0,
        }
    }
}

/// How calls reuse an instance. Each instance serves one call at a time, and one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Instances of a revision that wait for a call, over all tenants.
    pub instances: usize,
    /// Calls of one instance.
    pub calls: u32,
    /// Time from the start of an instance until it serves no further call.
    pub age: Duration,
}

/// Configuration of one plugin.
#[derive(Clone, Debug, Default)]
pub struct PluginConfig {
    /// Limits of its calls.
    pub limits: Limits,
    /// Lets calls reuse an instance. Each call has a fresh one if `None`.
    pub reuse: Option<Reuse>,
    /// Calls its export `corral:plugin/initialization` once while it is loaded. Each instance then begins with the memory that
    /// this call left.
    pub initialize: bool,
    /// Models that it may open; the first is its default. All models if `None`.
    pub models: Option<Vec<String>>,
    /// Its configuration: its environment variables, which `wasi:config` answers too. It sees no others.
    pub environment: Vec<(String, String)>,
    /// Names of the secrets that it may read with `wasi:config`.
    pub secrets: Vec<String>,
    /// Names of the folders that it may read, as the preopened directories `/NAME`.
    pub folders: Vec<String>,
    /// Outgoing requests that it may send; none if empty.
    pub outbound: Vec<OutboundGrant>,
    /// Names of other deployments that it may call.
    pub deployments: BTreeSet<String>,
    /// Subjects of messages that it may publish; none if empty.
    pub messages: Vec<SubjectPattern>,
    /// What it may use of this machine's clocks and random numbers.
    pub system: SystemGrants,
    /// Components that answer its imports.
    pub linked: LinkedComponents,
}

/// What a plugin and its linked components may use of this machine. Everything by default: language runtimes need it to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemGrants {
    /// Clocks that run. Otherwise they stand still during a call, except for the plugin's own timers.
    pub clocks: bool,
    /// Random numbers. Otherwise `wasi:random/random` ends the call, and the insecure ones are always the same.
    pub random: bool,
}

impl Default for SystemGrants {
    fn default() -> Self {
        Self {
            clocks: true,
            random: true,
        }
    }
}

/// Components linked to a plugin. Each of them, the plugin, and their composition must fit into
/// [`RuntimeConfig::component_bytes`].
#[derive(Clone, Debug, Default)]
pub struct LinkedComponents {
    /// Answers the plugin's import of `corral:plugin/templating`.
    pub templating: Option<LinkedComponent>,
    /// Components that export `corral:plugin/sampling`, by the name that the plugin's generations use. If
    /// the plugin imports that interface itself, exactly one must be linked. They see only the
    /// distributions that they sample from.
    pub sampling: BTreeMap<String, ComponentSource>,
    /// Components through which requests reach the plugin, at most [`MAX_MIDDLEWARE`], the outermost first. Each imports and
    /// exports `wasi:http/handler` of WASI 0.3, and the plugin exports it.
    pub middleware: Vec<LinkedComponent>,
}

/// A linked component.
#[derive(Clone, Debug)]
pub struct LinkedComponent {
    /// The component.
    pub component: ComponentSource,
    /// Grants it what the plugin is granted: models, environment, values, folders and outgoing requests. Without this it gets none.
    pub inherit: bool,
}

/// Options of one HTTP call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Request id for logs. The runtime numbers calls without one.
    pub id: Option<Arc<str>>,
    /// Deadline of its generations; only shortens [`Limits::time`].
    pub deadline: Option<Instant>,
    /// Tenant for the engines' fairness. The deployment's own if `None`.
    pub tenant: Option<Tenant>,
    /// Name of the deployment whose own tenant that is, if it is another one's.
    pub tenant_deployment: Option<Arc<str>>,
    /// Name of that tenant: the plugin keeps the values of each apart.
    pub tenant_name: Option<Arc<str>>,
    /// Name of the API key of the call.
    pub key_name: Option<Arc<str>>,
    /// Quota permit of the request. Its generations reserve tokens from it. Released with the instance.
    pub quota_permit: Option<Arc<QuotaPermit>>,
    /// Counts the tokens of its generations.
    pub usage: Option<Arc<TokenUsage>>,
    /// Receives the last line that the plugin writes to standard error.
    pub last_error_line: Option<Arc<LastLine>>,
    /// Tenant that the engines and compute turns charge for fairness; `tenant` if `None`. Isolation always uses `tenant`.
    pub fairness_tenant: Option<Tenant>,
    /// When the first token of a generation is due; only shortens the time of [`Limits::latency`].
    pub first_token: Option<Duration>,
    /// Longest wait for an instance; only shortens [`Limits::time`].
    pub instance_wait: Option<Duration>,
    /// Nesting depth of deployment calls; 0 for a call that no plugin made.
    pub depth: u8,
    /// Messages in a row that led to the call, each published while the one before was handled; 0 for none.
    pub message_depth: u8,
    /// The trace that the call belongs to.
    pub trace: Option<Arc<dyn CallTrace>>,
}

/// Instances of sampling plugins that generate, for each one that checks settings.
const GENERATIONS_PER_CHECK: usize = 8;

/// Instances that may wait for another call beside `instances` that run: a quarter as many.
pub(crate) fn waiting_instances(instances: usize) -> usize {
    instances.div_ceil(4)
}

/// Instances of sampling plugins that may check settings beside `instances` that generate, at least one.
pub(crate) fn check_instances(instances: usize) -> usize {
    (instances / GENERATIONS_PER_CHECK).max(1)
}
