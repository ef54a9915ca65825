//! What the command line says about where the state of sequences may be.

use crate::complaint::Complaint;
use clap::Args;
use corral_engine::{Config, SnapshotLimits, Snapshots};
use std::path::PathBuf;
use std::sync::Arc;

/// What one snapshot, and all of one deployment, may take. They are for sequences, whose states have
/// megabytes, not for archives.
const SNAPSHOTS: SnapshotLimits = SnapshotLimits {
    snapshot_bytes: 1 << 30,
    tenant_bytes: 16 << 30,
    tenant_count: 10_000,
};

#[derive(Args, Debug)]
pub(crate) struct Memory {
    /// Compute every prompt anew, also where it begins like one that was computed before.
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Memory for the states of sequences that had to leave the KV cells, for each model; with 0 they
    /// are computed again.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    pub(crate) spill_memory: u64,
    /// A folder for those that find no room in that memory. What is put there ends with the process.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) spill_folder: Option<PathBuf>,
    /// Most that is put into that folder, for each model.
    #[arg(long, value_name = "MIB", default_value_t = 8192, requires = "spill_folder", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) spill_disk: u64,
    /// A folder for named snapshots of sequences, which outlive the process.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) snapshots: Option<PathBuf>,
}

impl Memory {
    /// The folder of snapshots, which all models share.
    pub(crate) fn open_snapshots(&self) -> Result<Option<Arc<Snapshots>>, Complaint> {
        let Some(folder) = &self.snapshots else {
            return Ok(None);
        };
        let snapshots = Snapshots::new(folder, SNAPSHOTS).map_err(Complaint::telling(
            "no snapshots can be kept; see --snapshots",
        ))?;
        Ok(Some(Arc::new(snapshots)))
    }

    /// Tells the engine.
    pub(crate) fn apply(&self, config: &mut Config, snapshots: Option<Arc<Snapshots>>) {
        config.prefix_cache = !self.no_prefix_cache;
        config.spill_ram = self.spill_memory << 20;
        config.spill_disk = self
            .spill_folder
            .clone()
            .map(|folder| (folder, self.spill_disk << 20));
        config.snapshots = snapshots;
    }
}
