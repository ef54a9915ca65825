//! Deployments for tests: a runtime without models, a store in a folder of its own, and plugins written
//! by hand.

use super::{Bounds, Deployments, Digest, Manifest, Name, Store};
use crate::terms::Access;
use corral_runtime::{Limits, Runtime};
use std::path::Path;
use std::time::Duration;

#[path = "../../../runtime/tests/support/mod.rs"]
mod plugins;

/// Deployments over a store without grace.
pub(super) struct Fixture {
    pub(super) deployments: Deployments,
    pub(super) runtime: Runtime,
    folder: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::over(tempfile::tempdir().expect("there is room"))
    }

    fn over(folder: tempfile::TempDir) -> Self {
        let bounds = Bounds {
            grace: Duration::ZERO,
            ..Bounds::default()
        };
        let store = Store::open(folder.path(), bounds).expect("opens");
        let runtime = plugins::runtime(2);
        let own = Limits::default();
        let deployments = Deployments::new(runtime.clone(), Some(store), own, Access::Open);
        Fixture {
            deployments,
            runtime,
            folder,
        }
    }

    /// The same after a restart, which restores nothing yet.
    pub(super) fn again(self) -> Self {
        drop((self.deployments, self.runtime));
        Self::over(self.folder)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Uploads a component that answers requests; each number is another one.
    pub(super) fn upload(&self, number: u64) -> Digest {
        let bytes = plugins::http_3(&format!("(drop (i64.const {number})) unreachable"));
        let digest = Digest::of(&bytes);
        let store = self.deployments.store().expect("there is one");
        store.put(digest, &bytes).expect("there is room");
        digest
    }

    /// How many components were compiled, or taken from a cache.
    pub(super) fn compiled(&self) -> f64 {
        plugins::counter(&self.runtime, "corral_plugin_components_loaded_total", None)
    }
}

pub(super) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A manifest for `/NAME`.
pub(super) fn manifest(name: &str, digest: Digest) -> Manifest {
    let text = format!("name = '{name}'\ncomponent = '{digest}'\nroutes = ['/{name}']");
    Manifest::from_toml(&text).expect("good")
}
