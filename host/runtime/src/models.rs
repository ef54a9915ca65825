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

    /// Only these of them, the first as the default one; or the name that there is not.
    pub(crate) fn only(&self, names: &[String]) -> Result<Self, String> {
        let found = names.iter().map(|name| {
            let engine = self.find(Some(name)).cloned();
            engine.ok_or_else(|| name.clone())
        });
        Ok(Self(found.collect::<Result<Vec<_>, _>>()?.into()))
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
