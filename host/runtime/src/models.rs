//! The models that plugins may open.

use corral_engine::Engine;
use std::sync::Arc;

/// The loaded models by name. Cheap to clone.
#[derive(Clone)]
pub struct Models(Arc<[Engine]>);

impl Models {
    /// These models; the first is the default one. Of two with the same name the first is found.
    pub fn new(engines: Vec<Engine>) -> Self {
        Self(engines.into())
    }

    /// Their names, the default one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|engine| engine.info().name.as_str())
    }

    /// The model of this name, or the default one.
    pub fn find(&self, name: Option<&str>) -> Option<&Engine> {
        match name {
            Some(name) => self.0.iter().find(|engine| engine.info().name == name),
            None => self.0.first(),
        }
    }
}
