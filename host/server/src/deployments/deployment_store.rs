//! The trait of the two stores of deployments: the embedded [`Store`] of one host, and
//! [`JetStreamStore`](super::JetStreamStore) of a cluster.
//!
//! `tests/tests/cluster/cluster_store.rs` tests what this trait promises, with both.

use super::digest::Digest;
use super::name::DeploymentName;
use super::store::{Store, StoreError};
use super::stored_deployment::Entry;
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;

/// What an operation of a store returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store of deployments and their components.
pub trait DeploymentStore: Send + Sync {
    /// The names under which the store holds a deployment, or remembers a removed one.
    fn names(&self) -> StoreFuture<'_, Vec<DeploymentName>>;

    /// What the store holds under a name, with all acknowledged changes.
    fn entry<'a>(&'a self, name: &'a DeploymentName) -> StoreFuture<'a, Entry>;

    /// Replaces what the store holds under a name, if its version is still `expected`. Returns the new version once the
    /// change is durable. The version in `entry` has no effect.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if another change came first; the store is unchanged then.
    fn compare_and_set<'a>(
        &'a self,
        name: &'a DeploymentName,
        expected: u64,
        entry: &'a Entry,
    ) -> StoreFuture<'a, u64>;

    /// Stores a component, which must have this digest. Repairs one that is damaged.
    fn put_component(&self, digest: Digest, bytes: Bytes) -> StoreFuture<'_, ()>;

    /// Reads a component and verifies its digest.
    fn read_component(&self, digest: Digest) -> StoreFuture<'_, Bytes>;
}

impl DeploymentStore for Arc<Store> {
    fn names(&self) -> StoreFuture<'_, Vec<DeploymentName>> {
        Box::pin(async { Ok(self.all_names()) })
    }

    fn entry<'a>(&'a self, name: &'a DeploymentName) -> StoreFuture<'a, Entry> {
        Box::pin(async { Ok(self.get_entry(name)) })
    }

    fn compare_and_set<'a>(
        &'a self,
        name: &'a DeploymentName,
        expected: u64,
        entry: &'a Entry,
    ) -> StoreFuture<'a, u64> {
        let (name, entry) = (name.clone(), entry.clone());
        on_disk(self, move |store| store.swap_entry(&name, expected, &entry))
    }

    fn put_component(&self, digest: Digest, bytes: Bytes) -> StoreFuture<'_, ()> {
        on_disk(self, move |store| store.put(digest, &bytes).map(drop))
    }

    fn read_component(&self, digest: Digest) -> StoreFuture<'_, Bytes> {
        on_disk(self, move |store| store.read(digest).map(Bytes::from))
    }
}

/// Runs `work`, which waits for the disk, on a blocking thread.
fn on_disk<T: Send + 'static>(
    store: &Arc<Store>,
    work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> StoreFuture<'static, T> {
    let store = Arc::clone(store);
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.unwrap_or(Err(StoreError::Stopped))
    })
}
