//! What holds an engine's resources at one moment, for the admin API and tests.

pub use corral_scheduler::{
    DroppedPrefixes, EntryLocation, EntryStatus, RequestStatus, SchedulerCounters,
};

/// How many requests of an engine run and wait, as of the end of its last step. Embeddings do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests that hold a sequence id.
    pub running: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// Most requests that run at a time, as configured.
    pub max_running: u16,
}

/// Everything that holds sequence ids, cells or memory at one moment.
#[derive(Clone, Debug)]
pub struct EngineStatus {
    /// KV cells of the model.
    pub cells: u32,
    /// Cells held by running requests; a shared cell counts once.
    pub cells_running: u32,
    /// Cells held by the prefix cache alone.
    pub cells_cached: u32,
    /// Cells that attention computes over.
    pub attention_cells: u32,
    /// Sequence ids of the context.
    pub sequence_ids: u16,
    /// Sequence ids held by running requests.
    pub sequence_ids_running: usize,
    /// Sequence ids held by the prefix cache.
    pub sequence_ids_cached: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Tokens generated since the model was loaded, also by requests that run or were canceled. Never falls.
    pub generated_tokens: u64,
    /// Bytes of sequences swapped out to RAM.
    pub swap_ram_bytes: u64,
    /// Bytes of sequences swapped out to disk.
    pub swap_disk_bytes: u64,
    /// Bytes of offloaded prefixes.
    pub prefix_offload_bytes: u64,
    /// Running requests, in order of admission.
    pub requests: Vec<RequestStatus>,
    /// The prefix cache, including retained sequences.
    pub prefix_cache: Vec<EntryStatus>,
    /// The scheduler's counters.
    pub counters: SchedulerCounters,
}
