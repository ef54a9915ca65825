//! The services that all plugins of the process share: models, permits, counters, the compiler.

use crate::admission::InstancePermits;
use crate::compiler::Compiler;
use crate::compute_turns::ComputeTurns;
use crate::counters::ProcessCounters;
use crate::deployment_lookup::DeploymentLookupSlot;
use crate::epoch_ticker::Ticker;
use crate::folders::{FolderFiles, Folders};
use crate::key_values::KeyValueStore;
use crate::outbound::OutboundClient;
use crate::sampling::resources::SamplerResources;
use crate::secrets::Secrets;
use crate::tokenization::TokenizationPermits;
use corral_engine::ModelPool;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tokio::sync::Semaphore;

/// The services that all plugins share.
pub(crate) struct SharedServices {
    pub(crate) models: ModelPool,
    pub(crate) pool: Arc<InstancePermits>,
    /// Permits for instances that wait for another call.
    pub(crate) waiting_instances: Arc<Semaphore>,
    pub(crate) ticker: Arc<Ticker>,
    pub(crate) counters: Arc<ProcessCounters>,
    pub(crate) sampling: SamplerResources,
    pub(crate) turns: Arc<ComputeTurns>,
    /// Permits for writing, reading and removing snapshots.
    pub(crate) snapshot_permits: Arc<Semaphore>,
    pub(crate) key_values: Option<Arc<KeyValueStore>>,
    pub(crate) secrets: Secrets,
    pub(crate) folders: Folders,
    pub(crate) folder_files: FolderFiles,
    pub(crate) outbound: Arc<OutboundClient>,
    pub(crate) tokenization: Arc<TokenizationPermits>,
    pub(crate) compiler: Compiler,
    pub(crate) component_bytes: usize,
    pub(crate) deployment_lookup: DeploymentLookupSlot,
    pub(crate) next_tenant: AtomicU32,
}
