//! What the server serves: models, runtime and deployments, once they are loaded.

use crate::routes::Routes;
use crate::terms::Terms;
use corral_engine::Engine;
use corral_runtime::{Plugin, Quota, Runtime};
use std::collections::HashSet;
use std::sync::Arc;

/// A plugin and what its route allows.
#[derive(Clone)]
pub struct Deployment {
    /// What handles the requests.
    pub plugin: Plugin,
    /// Longest request body, in bytes; a longer one is answered by 413.
    pub request_bytes: u64,
    /// Who may call it and how much, and how it is told what went wrong.
    pub terms: Terms,
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
    /// The quotas of the deployments, each once.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = &Quota> {
        let mut seen = HashSet::new();
        let quotas = self.routes.targets().filter_map(|d| d.terms.quota.as_ref());
        quotas
            .filter(move |quota| seen.insert(Arc::as_ptr(quota)))
            .map(|quota| &**quota)
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
