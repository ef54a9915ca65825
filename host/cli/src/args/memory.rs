//! Arguments for KV cells, the prefix cache, swap and snapshots.

use crate::Error;
use clap::Args;
use corral_engine::{ModelConfig, SnapshotLimits, Snapshots};
use std::path::PathBuf;
use std::sync::Arc;

/// Largest snapshot in bytes: it is in memory while it is written.
const MAX_SNAPSHOT_BYTES: u64 = 1 << 30;
/// Most snapshots of a deployment.
const MAX_SNAPSHOTS: usize = 1000;

#[derive(Args, Debug)]
#[command(next_help_heading = "Memory")]
pub struct MemoryArgs {
    /// KV cells that all requests of a model share [default: 16384, fewer on small machines, at least one context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_cells: Option<u32>,
    /// Requests of a model that run at once, at most 256; others wait [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub max_running: Option<u16>,
    /// Compute every prompt in full; a plugin with its own loop then recomputes its text for each token
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// RAM for offloaded prefixes of each model, in MiB; 0 drops them instead
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    pub prefix_offload_memory: u64,
    /// Directory for prefixes, which a restarted server reads instead of computing them
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix_cache")]
    pub prefix_dir: Option<PathBuf>,
    /// Disk space for prefixes of each model, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8192, requires = "prefix_dir",
          value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub prefix_disk: u64,
    /// RAM for swapped-out sequences of each model, in MiB; 0 recomputes them instead
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    pub swap_memory: u64,
    /// Directory for swapped-out sequences that do not fit in --swap-memory
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
    /// Disk space for swapped-out sequences of each model, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8192, requires = "swap_dir",
          value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub swap_disk: u64,
    /// Directory for named snapshots of plugins; without it snapshots fail
    #[arg(long, value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,
    /// Disk space for the snapshots of each deployment, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096, requires = "snapshot_dir",
          value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub snapshot_disk: u64,
}

impl MemoryArgs {
    /// Refuses combinations without effect.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.swap_memory == 0 && self.swap_dir.is_some() {
            return Err(Error::usage(
                "--swap-dir has no effect with --swap-memory 0, since sequences reach the disk through \
                 memory; give some memory, or remove --swap-dir",
            ));
        }
        if self.prefix_offload_memory == 0 && self.prefix_dir.is_some() {
            return Err(Error::usage(
                "--prefix-dir has no effect with --prefix-offload-memory 0, since prefixes reach the disk \
                 through memory; give some memory, or remove --prefix-dir",
            ));
        }
        Ok(())
    }

    /// Opens the directory of snapshots, if there is one.
    pub(crate) fn open_snapshots(&self) -> Result<Option<Arc<Snapshots>>, Error> {
        let Some(dir) = &self.snapshot_dir else {
            return Ok(None);
        };
        let bytes = self.snapshot_disk << 20;
        let limits = SnapshotLimits {
            snapshot_bytes: bytes.min(MAX_SNAPSHOT_BYTES),
            owner_bytes: bytes,
            owner_count: MAX_SNAPSHOTS,
        };
        Ok(Some(Arc::new(Snapshots::new(dir, limits)?)))
    }

    /// Applies the arguments to a model's configuration. All models share `snapshots`.
    pub(crate) fn apply(&self, config: &mut ModelConfig, snapshots: Option<&Arc<Snapshots>>) {
        config.snapshots = snapshots.cloned();
        config.cells = self.kv_cells;
        config.max_running = self.max_running.unwrap_or(config.max_running);
        config.prefix_cache = !self.no_prefix_cache;
        config.swap_ram = self.swap_memory << 20;
        config.prefix_offload_ram = self.prefix_offload_memory << 20;
        let swap_dir = self.swap_dir.clone();
        config.swap_disk = swap_dir.map(|dir| (dir, self.swap_disk << 20));
        let prefix_dir = self.prefix_dir.clone();
        config.prefix_disk = prefix_dir.map(|dir| (dir, self.prefix_disk << 20));
    }
}
