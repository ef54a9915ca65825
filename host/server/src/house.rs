//! What the server serves: models, runtime and deployments, once they are loaded.

use crate::deployments::Deployments;
use corral_engine::Engine;
use corral_runtime::{Quota, Runtime};
use std::sync::Arc;

/// Everything that had to be loaded before the first request.
pub struct House {
    /// The plugins' runtime, for its counters.
    pub runtime: Runtime,
    /// The models. When one of them stops, the server is no longer ready.
    pub engines: Vec<Engine>,
    /// What answers which path.
    pub deployments: Deployments,
}

impl House {
    /// The quotas of the deployments, each once.
    pub(crate) fn quotas(&self) -> Vec<Arc<Quota>> {
        self.deployments.quotas()
    }

    /// What is not as it should be, in words; empty when all is well.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.engines
            .iter()
            .filter(|engine| !engine.alive())
            .map(|engine| format!("the model {} has stopped", engine.info().name))
            .collect()
    }
}
