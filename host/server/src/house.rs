//! What the server serves: models, runtime and deployments, once all is there that has to be.

use crate::routes::Routes;
use corral_engine::Models;
use corral_runtime::{Plugin, Runtime};

/// A plugin and what its route allows.
#[derive(Clone)]
pub struct Deployment {
    /// What handles the requests.
    pub plugin: Plugin,
    /// Longest request body, in bytes; a longer one is answered by 413.
    pub request_bytes: u64,
}

/// Everything that had to be loaded before the first request.
pub struct House {
    /// The plugins' runtime, for its counters.
    pub runtime: Runtime,
    /// The models. When the engine of one that is loaded stops, the server is no longer ready.
    pub models: Models,
    /// What answers which path.
    pub routes: Routes<Deployment>,
}

impl House {
    /// What is not as it should be, in words; empty when all is well.
    pub(crate) fn missing(&self) -> Vec<String> {
        let models = self.models.status().into_iter();
        models
            .filter(|model| model.stopped)
            .map(|model| format!("the model {} has stopped", model.name))
            .collect()
    }
}
