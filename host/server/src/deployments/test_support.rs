//! Deployments for tests: a runtime without models, a temporary store, and handwritten plugins.

use super::{DeploymentName, Deployments, Digest, Manifest, Store, StoreLimits};
use crate::request_policy::Access;
use corral_runtime::{Limits, Runtime};
use std::path::Path;
use std::time::Duration;

#[path = "../../../runtime/tests/support/mod.rs"]
mod plugins;

/// Deployments with a store without a grace period.
pub(super) struct Fixture {
    pub(super) deployments: Deployments,
    pub(super) runtime: Runtime,
    dir: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::open(tempfile::tempdir().expect("there is room"))
    }

    fn open(dir: tempfile::TempDir) -> Self {
        let limits = StoreLimits {
            grace_period: Duration::ZERO,
            ..StoreLimits::default()
        };
        let store = Store::open(dir.path(), limits).expect("opens");
        let runtime = plugins::runtime(2);
        let own = Limits::default();
        let deployments = Deployments::new(runtime.clone(), Some(store), own, Access::Open);
        Fixture {
            deployments,
            runtime,
            dir,
        }
    }

    /// Restarts with the same store, without restoring deployments.
    pub(super) fn restart(self) -> Self {
        drop((self.deployments, self.runtime));
        Self::open(self.dir)
    }

    pub(super) fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Uploads an HTTP component; each number gives a different one.
    pub(super) fn upload(&self, number: u64) -> Digest {
        self.upload_with_padding(number, 0)
    }

    /// The same with a custom section of this length.
    pub(super) fn upload_with_padding(&self, number: u64, length: u64) -> Digest {
        let mut bytes = plugins::http_3(&format!("(drop (i64.const {number})) unreachable"));
        if length > 0 {
            // A custom section with an empty name.
            bytes.push(0);
            let mut rest = length + 1;
            while rest >= 0x80 {
                bytes.push((rest & 0x7f) as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
            bytes.resize(bytes.len() + length as usize + 1, 0);
        }
        let digest = Digest::of(&bytes);
        let store = self.deployments.store().expect("there is one");
        store.put(digest, &bytes).expect("there is room");
        digest
    }

    /// Number of components compiled or taken from the cache.
    pub(super) fn compiled(&self) -> f64 {
        plugins::counter(&self.runtime, "corral_plugin_components_loaded_total", None)
    }
}

pub(super) fn name(text: &str) -> DeploymentName {
    text.parse().expect("a name")
}

/// A manifest for `/NAME`.
pub(super) fn manifest(name: &str, digest: Digest) -> Manifest {
    let text = format!("name = '{name}'\ncomponent = '{digest}'\nroutes = ['/{name}']");
    Manifest::from_toml(&text).expect("good")
}
