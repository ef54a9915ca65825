//! What the server serves: models, runtime and deployments, once they are loaded.

use crate::routes::Routes;
use corral_engine::Engine;
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
    /// The models. When one of them stops, the server is no longer ready.
    pub engines: Vec<Engine>,
    /// What answers which path.
    pub routes: Routes<Deployment>,
}

impl House {
    /// What is not as it should be, in words; empty when all is well.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.engines
            .iter()
            .filter(|engine| !engine.alive())
            .map(|engine| format!("the model {} has stopped", engine.info().name))
            .collect()
    }
}
