//! What goes on in an engine at one moment, for people.

pub use corral_scheduler::{EntryStatus, RequestStatus, SchedulerCounters};

/// Everything that holds ids, cells or memory.
#[derive(Clone, Debug)]
pub struct View {
    /// KV cells that there are.
    pub cells: u32,
    /// Cells that running sequences hold; one that several share counts once.
    pub cells_pinned: u32,
    /// Cells that anything holds.
    pub cells_used: u32,
    /// Cells that attention runs over.
    pub n_kv: u32,
    /// Sequence ids that there are.
    pub ids: u16,
    /// Sequence ids lent to sequences and entries.
    pub ids_used: usize,
    /// Sequences in the queue.
    pub waiting: usize,
    /// Bytes of states put aside in memory.
    pub spilled_ram: u64,
    /// Bytes of states put aside on disk.
    pub spilled_disk: u64,
    /// Bytes of the states of prefixes put aside.
    pub prefixes_ram: u64,
    /// Sequences that run, in order of admission.
    pub sequences: Vec<RequestStatus>,
    /// What stayed of sequences that ended: the prefix cache and idle sequences.
    pub entries: Vec<EntryStatus>,
    /// What was done about memory so far.
    pub tally: SchedulerCounters,
}
