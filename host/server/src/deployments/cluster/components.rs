//! Components in the cluster's bucket of objects, in the form of NATS: parts, and an information that names them.
//!
//! The client of NATS could store them, but it leaves the parts of an upload that fails, so that each one takes room.

use super::cleanup::MIN_AGE;
use super::jetstream::{COMPONENTS, JetStreamStore, LIST_TIME};
use crate::clock::now;
use crate::deployments::digest::Digest;
use crate::deployments::store::StoreError;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::object_store::{GetErrorKind, ObjectInfo, ObjectOptions};
use async_nats::{HeaderMap, datetime};
use bytes::Bytes;
use data_encoding::BASE64URL;
use futures_util::{StreamExt, TryStreamExt};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// The stream of the bucket.
const STREAM: &str = "OBJ_corral_components";
/// Components of a list; more are left for the next one.
const MAX_COMPONENTS: usize = 100_000;
/// Size of a part.
const PART_BYTES: usize = 128 << 10;
/// Time limit for one component.
const COMPONENT_TIME: Duration = Duration::from_secs(300);
/// Time limit for the beginning of a component, and for each part of it.
const IDLE_TIME: Duration = Duration::from_secs(15);

impl JetStreamStore {
    /// Stores a component, unless it was stored lately.
    pub(super) async fn write_component(
        &self,
        digest: Digest,
        bytes: Bytes,
    ) -> Result<(), StoreError> {
        let actual = digest_of(bytes.clone()).await?;
        if actual != digest {
            return Err(StoreError::DigestMismatch { digest, actual });
        }
        let buckets = self.buckets()?;
        let name = digest.hex();
        let stated = format!("SHA-256={}", BASE64URL.encode(digest.bytes()));
        let before = buckets.components.info(&name).await.ok();
        if let Some(info) = &before
            && !info.deleted
            && info.size == bytes.len()
            && info.digest.as_ref() == Some(&stated)
            && age(info) < MIN_AGE / 2
            && self.has_parts(info).await
        {
            return Ok(());
        }
        let id = format!("{:032x}", rand::random::<u128>());
        let info = ObjectInfo {
            name,
            description: None,
            metadata: HashMap::new(),
            headers: None,
            options: Some(ObjectOptions {
                link: None,
                max_chunk_size: Some(PART_BYTES),
            }),
            bucket: COMPONENTS.to_owned(),
            nuid: id.clone(),
            size: bytes.len(),
            chunks: bytes.len().div_ceil(PART_BYTES),
            modified: Some(datetime::now()),
            digest: Some(stated),
            deleted: false,
        };
        let late = |_| PublishError::new(PublishErrorKind::TimedOut);
        let parts = timeout(COMPONENT_TIME, self.store_parts(&id, bytes)).await;
        if let Err(error) = parts.map_err(late).flatten() {
            self.remove_parts(&id).await;
            return Err(self.failed(format!("the upload of {digest} failed: {error}")));
        }
        let named = self.store_info(&info).await;
        match (&named, &before) {
            (Ok(()), Some(before)) => self.remove_parts(&before.nuid).await,
            (Ok(()), None) => {}
            // It may be stored all the same, and then names the parts.
            (Err(error), _) if error.kind() == PublishErrorKind::TimedOut => {}
            (Err(_), _) => self.remove_parts(&id).await,
        }
        named.map_err(|error| self.failed(format!("the upload of {digest} failed: {error}")))
    }

    /// Whether no part of a component is missing.
    async fn has_parts(&self, info: &ObjectInfo) -> bool {
        let count = async {
            let stream = self
                .connection
                .context
                .get_stream_no_info(STREAM)
                .await
                .ok()?;
            let parts = stream.info_with_subjects(parts_subject(&info.nuid)).await;
            let counts = parts.ok()?.try_collect::<Vec<_>>().await.ok()?;
            Some(counts.iter().map(|(_, count)| count).sum::<usize>())
        };
        count.await == Some(info.chunks)
    }

    async fn store_parts(&self, id: &str, bytes: Bytes) -> Result<(), PublishError> {
        for start in (0..bytes.len()).step_by(PART_BYTES) {
            let part = bytes.slice(start..bytes.len().min(start + PART_BYTES));
            self.connection
                .context
                .publish(parts_subject(id), part)
                .await?
                .await?;
        }
        Ok(())
    }

    /// Stores what names the parts of a component, in place of what named others.
    async fn store_info(&self, info: &ObjectInfo) -> Result<(), PublishError> {
        let other = |error| PublishError::with_source(PublishErrorKind::Other, error);
        let bytes = serde_json::to_vec(info).map_err(other)?;
        let name = BASE64URL.encode(info.name.as_bytes());
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Rollup", "sub");
        let subject = format!("$O.{COMPONENTS}.M.{name}");
        let context = &self.connection.context;
        let stored = context.publish_with_headers(subject, headers, bytes.into());
        stored.await?.await.map(drop)
    }

    /// Removes the parts of a component that is not stored, or no longer. If that fails, they take room.
    async fn remove_parts(&self, id: &str) {
        let removed = async {
            let stream = self.connection.context.get_stream_no_info(STREAM).await;
            let stream = stream.map_err(|error| self.failed(error))?;
            let removed = stream.purge().filter(parts_subject(id)).await;
            removed.map_err(|error| self.failed(error))
        };
        if let Err(error) = removed.await {
            tracing::warn!("parts of a component stay in the cluster's store: {error}");
        }
    }

    /// The components that were uploaded longer than `min_age` ago.
    pub(super) async fn components_before(
        &self,
        min_age: Duration,
    ) -> Result<Vec<Digest>, StoreError> {
        let buckets = self.buckets()?;
        let read = async {
            let list = buckets.components.list().await;
            let list = list
                .map_err(|error| self.failed(error))?
                .take(MAX_COMPONENTS);
            let infos = list.try_collect::<Vec<_>>().await;
            infos.map_err(|error| self.failed(error))
        };
        let late = |_| self.failed("it did not list its components in time");
        let infos = timeout(LIST_TIME, read).await.map_err(late)??;
        let old = infos.iter().filter(|info| age(info) >= min_age);
        Ok(old
            .filter_map(|info| Digest::from_hex(&info.name))
            .collect())
    }

    /// Removes a component, unless another host has removed it, or uploaded it again within `min_age`. Returns whether it
    /// did.
    pub(super) async fn remove_component(
        &self,
        digest: Digest,
        min_age: Duration,
    ) -> Result<bool, StoreError> {
        let components = &self.buckets()?.components;
        let info = components.info(digest.hex()).await;
        let info = info.map_err(|error| self.failed(error))?;
        if info.deleted || age(&info) < min_age {
            return Ok(false);
        }
        let removed = components.delete(digest.hex()).await;
        removed.map_err(|error| self.failed(error))?;
        Ok(true)
    }

    /// Reads a component.
    pub(super) async fn download(&self, digest: Digest) -> Result<Bytes, StoreError> {
        let unusable = |problem: String| StoreError::ClusterComponent { digest, problem };
        let late = |_| self.failed("the download of a component took too long");
        let buckets = self.buckets()?;
        let object = timeout(IDLE_TIME, buckets.components.get(digest.hex())).await;
        let object = object.map_err(late)?.map_err(|error| match error.kind() {
            GetErrorKind::NotFound => unusable("is missing".to_owned()),
            _ => self.failed(error),
        })?;
        let (size, limit) = (object.info.size as u64, self.max_component_bytes);
        if size > limit {
            return Err(unusable(format!("has {size} bytes, the limit is {limit}")));
        }
        let mut bytes = Vec::with_capacity(object.info.size);
        let mut reader = object.take(limit + 1);
        let read = async {
            loop {
                match timeout(IDLE_TIME, reader.read_buf(&mut bytes)).await {
                    Ok(Ok(0)) => return Ok(()),
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                        return Err(unusable("is damaged".to_owned()));
                    }
                    Ok(Err(error)) => return Err(self.failed(error)),
                    // Missing parts do not come.
                    Err(_) if self.is_connected() => {
                        let read = bytes.len();
                        return Err(unusable(format!("ended after {read} of {size} bytes")));
                    }
                    Err(_) => return Err(self.unreachable()),
                }
            }
        };
        timeout(COMPONENT_TIME, read).await.map_err(late)??;
        let bytes = Bytes::from(bytes);
        match digest_of(bytes.clone()).await? {
            actual if actual == digest => Ok(bytes),
            actual => Err(unusable(format!("has another digest, {actual}"))),
        }
    }
}

/// The digest of a component. It may be large, so another thread computes it.
async fn digest_of(bytes: Bytes) -> Result<Digest, StoreError> {
    let digest = tokio::task::spawn_blocking(move || Digest::of(&bytes)).await;
    digest.map_err(|_| StoreError::Stopped)
}

/// The time since the upload of an object, by the clocks of two hosts.
fn age(info: &ObjectInfo) -> Duration {
    let uploaded = info.modified.map_or(0, |time| time.unix_timestamp());
    let uploaded = u64::try_from(uploaded).unwrap_or(0);
    Duration::from_secs(now().as_secs().saturating_sub(uploaded))
}

fn parts_subject(id: &str) -> String {
    format!("$O.{COMPONENTS}.C.{id}")
}
