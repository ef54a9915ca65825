//! What an operator may choose, and the bounds nobody may.

use crate::quota::Visit;
use crate::runtime::Source;
use corral_engine::Tenant;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Core instances that one plugin instance may consist of: composed components have several.
pub(crate) const CORE_INSTANCES: u32 = 48;
/// Linear memories that one plugin instance may have; each reserves 4 GiB of address space.
pub(crate) const MEMORIES: u32 = 4;
/// Tables that one plugin instance may have.
pub(crate) const TABLES: u32 = 16;
/// Elements that a table may have.
pub(crate) const TABLE_ELEMENTS: usize = 20_000;
/// Entries in the table of host resources (handles, streams, headers) of one plugin instance.
pub(crate) const RESOURCES: usize = 4096;
/// Bytes that a plugin may hand over in one call to the host.
pub(crate) const HOSTCALL_BYTES: usize = 32 << 20;
/// Bytes of all header fields in one `wasi:http` fields resource.
pub(crate) const FIELD_BYTES: usize = 64 << 10;
/// Random bytes that a plugin may ask for in one call.
pub(crate) const RANDOM_BYTES: u64 = 1 << 20;

/// How the runtime is set up; one for the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Plugin instances that may live at once, of all deployments together: first come first served,
    /// but for one in eight (and one at least) that no deployment gets if it has all the others. Each takes some 17 GiB of address space (not of
    /// memory), and as much again and an eighth of it, since there may be as many instances of sampling
    /// plugins beside them, and some whose settings are only checked: memory is used only where a plugin
    /// touches it.
    pub instances: u32,
    /// A folder of ours alone for compiled plugins; made with mode 0700 if it isn't there.
    /// Without it every plugin is compiled when it is loaded.
    pub cache: Option<PathBuf>,
    /// Largest component accepted, in bytes.
    pub component_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            instances: 256,
            cache: None,
            component_bytes: 64 << 20,
        }
    }
}

/// What one call of a plugin may use, and how many calls may run at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of linear memory, all memories of the instance together.
    pub memory: usize,
    /// Wall clock for the whole call: waiting in the queue, the handler, and streaming the body.
    pub time: Duration,
    /// Processor time of the plugin and of what the host computes for it (tokenising). Waiting for
    /// tokens, timers or the client is free.
    pub cpu: Duration,
    /// Largest request body, in bytes.
    pub request_bytes: usize,
    /// Largest response body, in bytes.
    pub response_bytes: u64,
    /// Calls of the deployment that may run at once when one of this plugin begins, those of its other
    /// revisions included. At most what the pool has for one deployment.
    pub concurrent: usize,
    /// Calls of the deployment that may wait, for one of those to end or for the pool, when one of this
    /// plugin comes.
    pub queue: usize,
    /// How long a generation may wait for its turn; then it is refused. Without it, as long as the
    /// call has time.
    pub queue_time: Option<Duration>,
    /// Whose generations go first: those of the plugin with the higher one, always.
    pub priority: u8,
    /// Prefixes of prompts are shared with all other deployments that share theirs. How quickly a
    /// prompt is read then tells them whether another one began like it.
    pub share_prefixes: bool,
    /// The part of each model's cells that the deployment's sequences may have together while they run,
    /// from 1 to 100. Prompts and answers that need more alone are refused or cut short.
    pub cells_percent: Option<u8>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            time: Duration::from_secs(60),
            cpu: Duration::from_secs(10),
            request_bytes: 8 << 20,
            response_bytes: 256 << 20,
            concurrent: 64,
            queue: 256,
            queue_time: None,
            priority: 0,
            share_prefixes: false,
            cells_percent: None,
        }
    }
}

/// On what terms a plugin is loaded.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// What one call may use.
    pub limits: Limits,
    /// The models that it may open, the default one first; all that there are, if nothing is said.
    pub models: Option<Vec<String>>,
    /// Its environment variables; it sees no others.
    pub environment: Vec<(String, String)>,
    /// What it is linked with.
    pub links: Links,
}

/// Components that a plugin is linked with. All of them, the plugin, and what they make together are each
/// no larger than [`Settings::component_bytes`].
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// What answers the plugin's import of `corral:plugin/templating`.
    pub templating: Option<Link>,
    /// Components that export `corral:plugin/sampling`, by the names under which the plugin's generations
    /// ask for them. Where the plugin imports that interface itself there has to be one, which answers.
    /// They are handed distributions and see nothing else.
    pub sampling: BTreeMap<String, Source>,
}

/// A component that a plugin is linked with.
#[derive(Clone, Debug)]
pub struct Link {
    /// Where it comes from.
    pub component: Source,
    /// It may use what the plugin may: its models and its environment. Else it sees nothing of either.
    pub inherit: bool,
}

/// What the caller knows about one request: an extension of the [`http::Request`] that is given to
/// [`Plugin::handle`](crate::Plugin::handle).
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The request's id, for logs. Without one the runtime numbers the call.
    pub id: Option<String>,
    /// A deadline before that of [`Limits::time`]; a later one changes nothing.
    pub deadline: Option<Instant>,
    /// On whose behalf the engines work. Without one, on the deployment's own.
    pub tenant: Option<Tenant>,
    /// What let the request in: its generations take their tokens from the same quotas. The place that
    /// it holds comes free when the instance is gone.
    pub visit: Option<Arc<Visit>>,
}
