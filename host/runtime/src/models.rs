//! The models that a plugin may open.

use corral_engine::{Caller, ModelPool, OpenModel};
use std::sync::Arc;

/// All models of the server, or some of them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VisibleModels {
    models: ModelPool,
    only: Option<Arc<[String]>>,
}

impl VisibleModels {
    /// All models, or those named in `only` with the first as the default.
    ///
    /// # Errors
    /// The first name that is not a model.
    pub(crate) fn new(models: &ModelPool, only: Option<&[String]>) -> Result<Self, String> {
        for wanted in only.unwrap_or_default() {
            if !models.names().any(|name| name == wanted) {
                return Err(wanted.clone());
            }
        }
        Ok(Self {
            models: models.clone(),
            only: only.map(Into::into),
        })
    }

    /// No models.
    pub(crate) fn none(&self) -> Self {
        Self {
            models: self.models.clone(),
            only: Some(Arc::default()),
        }
    }

    /// Their names, the default first.
    pub(crate) fn names(&self) -> Vec<&str> {
        match &self.only {
            None => self.models.names().collect(),
            Some(only) => only.iter().map(String::as_str).collect(),
        }
    }

    /// Opens the named model, or the default. None if it is not visible.
    pub(crate) fn open(&self, name: Option<&str>, caller: &Caller) -> Option<OpenModel> {
        let name = match &self.only {
            None => name,
            Some(only) => {
                let wanted = name.or(only.first().map(String::as_str));
                Some(wanted.filter(|wanted| only.iter().any(|name| name == wanted))?)
            }
        };
        Some(self.models.open(name, caller))
    }
}
