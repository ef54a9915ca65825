//! The parts that the server needs to answer requests of deployments.

use crate::deployments::Deployments;
use corral_engine::ModelPool;
use corral_runtime::Runtime;

/// Everything that is loaded before the first request.
pub struct Services {
    /// The plugin runtime; read for its counters.
    pub runtime: Runtime,
    /// The models. If the engine of a loaded model stops, the server is no longer ready.
    pub models: ModelPool,
    /// The deployments, by route.
    pub deployments: Deployments,
}

impl Services {
    /// Reasons why requests cannot be served; empty if they can.
    pub(crate) fn not_ready_reasons(&self) -> Vec<String> {
        let models = self.models.status().into_iter();
        models
            .filter(|model| model.stopped)
            .map(|model| format!("the model {} has stopped", model.name))
            .collect()
    }
}
