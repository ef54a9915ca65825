//! What the server serves: models, runtime and deployments, once all is there that has to be.

use crate::deployments::Deployments;
use corral_engine::ModelPool;
use corral_runtime::{Quota, Runtime};
use std::sync::Arc;

/// Everything that had to be loaded before the first request.
pub struct House {
    /// The plugins' runtime, for its counters.
    pub runtime: Runtime,
    /// The models. When the engine of one that is loaded stops, the server is no longer ready.
    pub models: ModelPool,
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
        let models = self.models.status().into_iter();
        models
            .filter(|model| model.stopped)
            .map(|model| format!("the model {} has stopped", model.name))
            .collect()
    }
}
