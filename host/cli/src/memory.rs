//! What the command line says about where the state of sequences may be.

use crate::complaint::Complaint;
use clap::Args;
use corral_engine::{Config, SnapshotLimits, Snapshots};
use std::path::PathBuf;
use std::sync::Arc;

/// Largest snapshot, in bytes, where a deployment may have as much: it is in memory while it is written.
const SNAPSHOT_BYTES: u64 = 1 << 30;
/// Snapshots of a deployment.
const SNAPSHOTS: usize = 1000;

#[derive(Args, Debug)]
pub(crate) struct Memory {
    /// Compute every prompt anew, also where it begins like one that was computed before. A loop that a
    /// plugin runs itself then computes its whole text for each token.
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Memory for the states of sequences that had to leave the KV cells, for each model; with 0 they
    /// are computed again.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    pub(crate) spill_memory: u64,
    /// Memory for the states of prefixes that nobody runs, for each model: they leave the KV cells when they make
    /// steps longer there by more than it takes to move them. With 0 they are dropped instead.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    pub(crate) prefix_memory: u64,
    /// A folder for those sequences that find no room in their memory. What a process put there is removed when it ends, or when the next one starts.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) spill_folder: Option<PathBuf>,
    /// Most that is put into that folder, for each model.
    #[arg(long, value_name = "MIB", default_value_t = 8192, requires = "spill_folder", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) spill_disk: u64,
    /// A folder in which plugins may keep sequences under names, of this process alone; made if it
    /// isn't there. Without it they can't.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) snapshots: Option<PathBuf>,
    /// Most that the snapshots of a deployment take there.
    #[arg(long, value_name = "MIB", default_value_t = 4096, requires = "snapshots", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) snapshot_disk: u64,
}

impl Memory {
    /// Says so if what was given can't have the meant effect.
    pub(crate) fn check(&self) -> Result<(), Complaint> {
        if self.spill_memory == 0 && self.spill_folder.is_some() {
            return Err(Complaint::Usage(
                "--spill-folder is of no use with --spill-memory 0, since states go to disk through \
                 memory; give some memory, or leave the folder away"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Opens the folder of snapshots, if there is to be one.
    pub(crate) fn snapshots(&self) -> Result<Option<Arc<Snapshots>>, Complaint> {
        let Some(folder) = &self.snapshots else {
            return Ok(None);
        };
        let bytes = self.snapshot_disk << 20;
        let limits = SnapshotLimits {
            snapshot_bytes: bytes.min(SNAPSHOT_BYTES),
            tenant_bytes: bytes,
            tenant_count: SNAPSHOTS,
        };
        Ok(Some(Arc::new(Snapshots::new(folder, limits)?)))
    }

    /// Tells the engine; what are the snapshots of all models goes to each.
    pub(crate) fn apply(&self, config: &mut Config, snapshots: Option<&Arc<Snapshots>>) {
        config.snapshots = snapshots.cloned();
        config.prefix_cache = !self.no_prefix_cache;
        config.spill_ram = self.spill_memory << 20;
        config.prefix_ram = self.prefix_memory << 20;
        config.spill_disk = self
            .spill_folder
            .clone()
            .map(|folder| (folder, self.spill_disk << 20));
    }
}
