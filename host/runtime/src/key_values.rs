//! Values that plugins keep by key, in one redb file for all deployments.
//!
//! A call sees the values of its deployment for its tenant, and no others. Invariants: an acknowledged change survives
//! a killed process; no change makes the keys and values of a tenant take more bytes than the deployment's grant.
//!
//! The file is created when a plugin first opens its values. After a failed write, such as on a full disk, redb refuses
//! everything until the file is opened again, which the next access does. Every function blocks on the disk.

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// Longest key, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// Longest value, in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 8 << 20;
/// Keys that one call lists.
const KEYS_PER_PAGE: usize = 1000;
/// Page cache.
const CACHE_BYTES: usize = 8 << 20;
/// Accesses at a time, over all instances: each occupies a thread.
const CONCURRENT: usize = 8;

/// Deployment, tenant and key → value.
const VALUES: TableDefinition<(&str, &str, &str), &[u8]> = TableDefinition::new("values");
/// Deployment and tenant → bytes of keys and values.
const USED_BYTES: TableDefinition<(&str, &str), u64> = TableDefinition::new("used_bytes");

/// Why an access failed. The texts are for the plugin's author.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyValueError {
    #[error("the key has {0} bytes; expected at most {MAX_KEY_BYTES}")]
    LongKey(usize),
    #[error("the value has {0} bytes; expected at most {MAX_VALUE_BYTES}")]
    LongValue(usize),
    #[error("the key and its value have {needed} bytes, and the grant is {limit}")]
    LargerThanGrant { needed: u64, limit: u64 },
    #[error(
        "quota: the keys and values would take {needed} bytes, and the grant is {limit}; delete some, or raise \
         `grants.key-value-mib`"
    )]
    Full { needed: u64, limit: u64 },
    /// The cause is for the operator's log only: it may name files.
    #[error("the values can't be accessed; the server's log says why")]
    Failed(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for KeyValueError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The values of all deployments.
#[derive(Debug)]
pub(crate) struct KeyValueStore {
    file: PathBuf,
    database: Mutex<Option<Arc<Database>>>,
    permits: Arc<Semaphore>,
}

/// The values that a call may use.
#[derive(Clone, Debug)]
pub(crate) struct KeyValues {
    pub(crate) store: Arc<KeyValueStore>,
    pub(crate) deployment: Arc<str>,
    /// The tenant of the call's API key; empty for none.
    pub(crate) tenant: Arc<str>,
    pub(crate) quota_bytes: u64,
}

impl KeyValueStore {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self {
            file,
            database: Mutex::default(),
            permits: Arc::new(Semaphore::new(CONCURRENT)),
        }
    }

    /// Removes the values of a deployment, if there are any.
    pub(crate) fn remove_deployment(&self, deployment: &str) -> Result<(), KeyValueError> {
        if !self.file.exists() {
            return Ok(());
        }
        self.access(|database| {
            let write = database.begin_write()?;
            {
                let mut values = write.open_table(VALUES)?;
                // No string sorts between a name and the name with a zero byte.
                let next = format!("{deployment}\0");
                values.retain_in((deployment, "", "")..(next.as_str(), "", ""), |_, _| false)?;
                let mut used = write.open_table(USED_BYTES)?;
                used.retain_in((deployment, "")..(next.as_str(), ""), |_, _| false)?;
            }
            Ok(write.commit()?)
        })
    }

    /// Runs an access on a thread that may block.
    async fn run<R: Send + 'static>(
        self: Arc<Self>,
        access: impl FnOnce(&Database) -> Result<R, KeyValueError> + Send + 'static,
    ) -> wasmtime::Result<Result<R, KeyValueError>> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let done = tokio::task::spawn_blocking(move || {
            let done = self.access(access);
            drop(permit);
            done
        });
        Ok(done.await?)
    }

    fn access<R>(
        &self,
        access: impl FnOnce(&Database) -> Result<R, KeyValueError>,
    ) -> Result<R, KeyValueError> {
        let result = self.open().and_then(|database| access(&database));
        if let Err(KeyValueError::Failed(cause)) = &result {
            tracing::warn!(file = %self.file.display(), %cause, "values of plugins can't be accessed");
            *self.lock() = None;
        }
        result
    }

    fn open(&self) -> Result<Arc<Database>, KeyValueError> {
        let mut open = self.lock();
        if let Some(database) = &*open {
            return Ok(Arc::clone(database));
        }
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(&self.file);
        let file = file.map_err(redb::Error::Io)?;
        let mut builder = Builder::new();
        let database = builder.set_cache_size(CACHE_BYTES).create_file(file)?;
        // Reading needs the tables.
        let write = database.begin_write()?;
        write.open_table(VALUES)?;
        write.open_table(USED_BYTES)?;
        write.commit()?;
        let database = Arc::new(database);
        *open = Some(Arc::clone(&database));
        Ok(database)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Database>>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyValues {
    /// Opens the file, which shows whether it can be.
    pub(crate) async fn open(&self) -> wasmtime::Result<Result<(), KeyValueError>> {
        Arc::clone(&self.store).run(|_| Ok(())).await
    }

    pub(crate) async fn get(
        self,
        key: String,
    ) -> wasmtime::Result<Result<Option<Vec<u8>>, KeyValueError>> {
        let (deployment, tenant) = (self.deployment, self.tenant);
        let read = move |database: &Database| {
            let values = database.begin_read()?.open_table(VALUES)?;
            let value = values.get((&*deployment, &*tenant, &*key))?;
            Ok(value.map(|value| value.value().to_vec()))
        };
        self.store.run(read).await
    }

    /// Sets the value of a key, or removes it.
    pub(crate) async fn set(
        self,
        key: String,
        value: Option<Vec<u8>>,
    ) -> wasmtime::Result<Result<(), KeyValueError>> {
        let limit = self.quota_bytes;
        let length = value.as_ref().map_or(0, Vec::len);
        if value.is_some() && key.len() > MAX_KEY_BYTES {
            return Ok(Err(KeyValueError::LongKey(key.len())));
        }
        if length > MAX_VALUE_BYTES {
            return Ok(Err(KeyValueError::LongValue(length)));
        }
        let needed = (key.len() + length) as u64;
        if value.is_some() && needed > limit {
            return Ok(Err(KeyValueError::LargerThanGrant { needed, limit }));
        }
        let (deployment, tenant) = (self.deployment, self.tenant);
        let write = move |database: &Database| {
            let (scope, size) = ((&*deployment, &*tenant), |value: &[u8]| {
                (key.len() + value.len()) as u64
            });
            let transaction = database.begin_write()?;
            {
                let mut values = transaction.open_table(VALUES)?;
                let mut used = transaction.open_table(USED_BYTES)?;
                let before = used.get(scope)?.map_or(0, |bytes| bytes.value());
                let entry = (&*deployment, &*tenant, &*key);
                let freed = values.get(entry)?.map_or(0, |old| size(old.value()));
                let rest = before.saturating_sub(freed);
                let needed = rest + value.as_deref().map_or(0, size);
                match value.as_deref() {
                    // A smaller grant than before does not keep a plugin from making values smaller.
                    Some(_) if needed > limit && needed >= before => {
                        return Err(KeyValueError::Full { needed, limit });
                    }
                    Some(value) => values.insert(entry, value)?.map(drop),
                    None => values.remove(entry)?.map(drop),
                };
                match needed {
                    0 => used.remove(scope)?.map(drop),
                    _ => used.insert(scope, needed)?.map(drop),
                };
            }
            Ok(transaction.commit()?)
        };
        self.store.run(write).await
    }

    /// Keys in ascending order, beginning with the one of this number, and the number of the next if there are more.
    pub(crate) async fn keys(
        self,
        first: u64,
    ) -> wasmtime::Result<Result<(Vec<String>, Option<u64>), KeyValueError>> {
        let (deployment, tenant) = (self.deployment, self.tenant);
        let read = move |database: &Database| {
            let values = database.begin_read()?.open_table(VALUES)?;
            let next = format!("{tenant}\0");
            let range = (&*deployment, &*tenant, "")..(&*deployment, next.as_str(), "");
            let mut range = values.range(range)?;
            let mut keys = Vec::new();
            let mut number = 0;
            while let Some(entry) = range.next().transpose()? {
                if keys.len() == KEYS_PER_PAGE {
                    return Ok((keys, Some(number)));
                }
                if number >= first {
                    keys.push(entry.0.value().2.to_owned());
                }
                number += 1;
            }
            Ok((keys, None))
        };
        self.store.run(read).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(store: &Arc<KeyValueStore>, deployment: &str, tenant: &str) -> KeyValues {
        KeyValues {
            store: Arc::clone(store),
            deployment: deployment.into(),
            tenant: tenant.into(),
            quota_bytes: 100,
        }
    }

    async fn set(values: &KeyValues, key: &str, length: usize) -> Result<(), KeyValueError> {
        let value = Some(vec![7; length]);
        values.clone().set(key.to_owned(), value).await.unwrap()
    }

    async fn get(values: &KeyValues, key: &str) -> Option<usize> {
        let value = values.clone().get(key.to_owned()).await.unwrap();
        value.unwrap().map(|value| value.len())
    }

    async fn keys(values: &KeyValues) -> Vec<String> {
        values.clone().keys(0).await.unwrap().unwrap().0
    }

    fn store(dir: &tempfile::TempDir) -> Arc<KeyValueStore> {
        Arc::new(KeyValueStore::new(dir.path().join("values.redb")))
    }

    #[tokio::test]
    async fn tenants_and_deployments_are_apart() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let all = [("a", ""), ("a", "t"), ("a", "u"), ("ab", ""), ("b", "t")];
        let all = all.map(|(deployment, tenant)| values(&store, deployment, tenant));
        for (number, values) in all.iter().enumerate() {
            set(values, "k", number).await.unwrap();
            set(values, &number.to_string(), 1).await.unwrap();
        }
        for (number, values) in all.iter().enumerate() {
            assert_eq!(get(values, "k").await, Some(number));
            assert_eq!(keys(values).await, [number.to_string(), "k".to_owned()]);
        }
        store.remove_deployment("a").unwrap();
        for (number, values) in all.iter().enumerate() {
            let kept = (number > 2).then_some(number);
            assert_eq!(get(values, "k").await, kept);
        }
        set(&all[0], "k", 99).await.expect("its quota is free");
    }

    #[tokio::test]
    async fn quota_counts_keys_and_values() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let mut one = values(&store, "a", "");
        set(&one, "key", 47).await.unwrap();
        set(&one, "yek", 47).await.unwrap();
        let error = set(&one, "k", 0).await.unwrap_err().to_string();
        assert!(
            error.contains("101 bytes") && error.contains("100"),
            "{error}"
        );
        let error = set(&one, "key", 98).await.unwrap_err().to_string();
        assert!(error.contains("have 101 bytes"), "{error}");
        assert_eq!(get(&one, "k").await, None);
        set(&values(&store, "a", "t"), "k", 99).await.unwrap();
        // Replacing and removing free what they replace.
        set(&one, "key", 40).await.unwrap();
        set(&one, "k", 6).await.unwrap();
        one.clone()
            .set("yek".to_owned(), None)
            .await
            .unwrap()
            .unwrap();
        set(&one, "x", 49).await.unwrap();
        // A smaller grant.
        one.quota_bytes = 60;
        set(&one, "x", 50).await.unwrap_err();
        set(&one, "x", 48).await.unwrap();
        for (key, length) in [
            ("k".repeat(MAX_KEY_BYTES + 1), 0),
            ("k".to_owned(), MAX_VALUE_BYTES + 1),
        ] {
            let error = set(&one, &key, length).await.unwrap_err().to_string();
            assert!(error.contains("at most"), "{error}");
        }
    }

    #[tokio::test]
    async fn values_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = store(&dir);
        set(&values(&first, "a", "t"), "k", 5).await.unwrap();
        drop(first);
        let second = store(&dir);
        assert_eq!(get(&values(&second, "a", "t"), "k").await, Some(5));
    }

    #[tokio::test]
    async fn keys_come_in_pages() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = values(&store(&dir), "a", "");
        one.quota_bytes = u64::MAX;
        for number in 0..=KEYS_PER_PAGE {
            set(&one, &format!("{number:05}"), 0).await.unwrap();
        }
        let (keys, next) = one.clone().keys(0).await.unwrap().unwrap();
        assert_eq!(
            (keys.len(), next),
            (KEYS_PER_PAGE, Some(KEYS_PER_PAGE as u64))
        );
        let (keys, next) = one.keys(KEYS_PER_PAGE as u64).await.unwrap().unwrap();
        assert_eq!((keys, next), (vec![format!("{KEYS_PER_PAGE:05}")], None));
    }

    #[tokio::test]
    async fn broken_file_is_an_error_and_can_be_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("values.redb");
        std::fs::write(&file, [1; 10_000]).unwrap();
        let one = values(&store(&dir), "a", "");
        let error = one.open().await.unwrap().unwrap_err();
        assert!(matches!(error, KeyValueError::Failed(_)), "{error:?}");
        std::fs::remove_file(&file).unwrap();
        set(&one, "k", 5).await.unwrap();
        assert_eq!(get(&one, "k").await, Some(5));
    }
}
