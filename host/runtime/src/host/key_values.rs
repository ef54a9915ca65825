//! `wasi:keyvalue/store`: values that a deployment keeps.

use super::bindings::wasi::keyvalue::store::{Error, Host, HostBucket, KeyResponse};
use crate::key_values::{KeyValueError, KeyValues, PageStart};
use crate::state::State;
use wasmtime::component::Resource;

/// The names under which a plugin may open its values: the usual ones of other hosts.
const BUCKETS: [&str; 2] = ["", "default"];

/// The values of the call's deployment and tenant.
pub struct Bucket {
    values: KeyValues,
    /// The page after the last one that was listed.
    next_page: Option<PageStart>,
}

/// Why a function failed.
pub enum BucketError {
    Guest(Error),
    /// Ends the guest.
    Trap(wasmtime::Error),
}

impl<E: Into<wasmtime::Error>> From<E> for BucketError {
    fn from(error: E) -> Self {
        Self::Trap(error.into())
    }
}

/// What a value access returns to the guest.
fn for_guest<T>(result: Result<T, KeyValueError>) -> Result<T, BucketError> {
    result.map_err(|error| BucketError::Guest(Error::Other(error.to_string())))
}

impl State {
    fn bucket(&self, bucket: &Resource<Bucket>) -> Result<KeyValues, BucketError> {
        Ok(self.table.get(bucket)?.values.clone())
    }
}

impl Host for State {
    async fn open(&mut self, identifier: String) -> Result<Resource<Bucket>, BucketError> {
        if !BUCKETS.contains(&&*identifier) {
            return Err(BucketError::Guest(Error::NoSuchStore));
        }
        let Some(values) = self.key_values() else {
            return Err(BucketError::Guest(Error::AccessDenied));
        };
        for_guest(values.clone().open().await?)?;
        Ok(self.table.push(Bucket {
            values,
            next_page: None,
        })?)
    }

    fn convert_error(&mut self, error: BucketError) -> wasmtime::Result<Error> {
        match error {
            BucketError::Guest(error) => Ok(error),
            BucketError::Trap(error) => Err(error),
        }
    }
}

impl HostBucket for State {
    async fn get(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
    ) -> Result<Option<Vec<u8>>, BucketError> {
        for_guest(self.bucket(&bucket)?.get(key).await?)
    }

    async fn set(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
        value: Vec<u8>,
    ) -> Result<(), BucketError> {
        for_guest(self.bucket(&bucket)?.set(key, Some(value)).await?)
    }

    async fn delete(&mut self, bucket: Resource<Bucket>, key: String) -> Result<(), BucketError> {
        for_guest(self.bucket(&bucket)?.set(key, None).await?)
    }

    async fn exists(&mut self, bucket: Resource<Bucket>, key: String) -> Result<bool, BucketError> {
        for_guest(self.bucket(&bucket)?.exists(key).await?)
    }

    async fn list_keys(
        &mut self,
        bucket: Resource<Bucket>,
        cursor: Option<u64>,
    ) -> Result<KeyResponse, BucketError> {
        let number = cursor.unwrap_or(0);
        let next_page = self.table.get_mut(&bucket)?.next_page.take();
        let start = next_page.filter(|page| page.number == number);
        let start = start.unwrap_or(PageStart { number, key: None });
        let page = for_guest(self.bucket(&bucket)?.keys(start).await?)?;
        let cursor = page.next.as_ref().map(|next| next.number);
        self.table.get_mut(&bucket)?.next_page = page.next;
        Ok(KeyResponse {
            keys: page.keys,
            cursor,
        })
    }

    async fn drop(&mut self, bucket: Resource<Bucket>) -> wasmtime::Result<()> {
        self.table.delete(bucket)?;
        Ok(())
    }
}
