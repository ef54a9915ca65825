//! Values that plugins keep by key, in one redb file for all deployments.
//!
//! A call sees the values of its deployment for its tenant, and no others. Invariants: an acknowledged change survives
//! a killed process; no change makes the keys and values of a tenant take more bytes than the deployment's grant; nothing
//! is written for a deployment after its removal, which its running calls may outlive.
//!
//! The [file](values_file) is created when a plugin first opens its values. Async threads never access it, since it blocks.

mod values_file;

use crate::deployment_share::deployment_share;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;
use values_file::ValuesFile;

/// Longest key, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// Longest value, in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 8 << 20;
/// Keys that one call lists.
const KEYS_PER_PAGE: usize = 1000;
/// Bytes that each key takes beside its own and those of its value: the names of its deployment and tenant, and what the
/// pages of the file lose. So the grant also bounds the number of keys.
pub(crate) const KEY_OVERHEAD_BYTES: u64 = 256;
/// Keys that a list may skip one by one.
const MAX_SKIPPED_KEYS: u64 = 100_000;
/// Accesses at a time, over all instances: each occupies a thread.
const CONCURRENT: usize = 8;

/// Deployment, tenant and key → value.
const VALUES: TableDefinition<(&str, &str, &str), &[u8]> = TableDefinition::new("values");
/// Deployment and tenant → bytes of keys and values, with the overhead.
const USED_BYTES: TableDefinition<(&str, &str), u64> = TableDefinition::new("used_bytes");

/// Why an access failed. The texts are for the plugin's author.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyValueError {
    #[error("the key has {0} bytes; expected at most {MAX_KEY_BYTES}")]
    LongKey(usize),
    #[error("the value has {0} bytes; expected at most {MAX_VALUE_BYTES}")]
    LongValue(usize),
    #[error("the deployment was removed, and its values with it; nothing is kept for it")]
    Removed,
    #[error(
        "the key and its value take {needed} bytes with an overhead of {KEY_OVERHEAD_BYTES}, and the grant is {limit}"
    )]
    LargerThanGrant { needed: u64, limit: u64 },
    #[error(
        "quota: the keys and values would take {needed} bytes, and the grant is {limit}; delete some, or raise \
         `grants.key-value-mib`"
    )]
    Full { needed: u64, limit: u64 },
    #[error(
        "the cursor {0} is not the last list's of this bucket, and only up to {MAX_SKIPPED_KEYS} keys are counted to find one; \
         list from the beginning, and pass each list's cursor to the next one of the same bucket"
    )]
    FarCursor(u64),
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
    file: ValuesFile,
    permits: Arc<Semaphore>,
}

/// The values that a call may use.
#[derive(Clone, Debug)]
pub(crate) struct KeyValues {
    pub(crate) store: Arc<KeyValueStore>,
    /// Permits of the deployment's accesses.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) deployment: Arc<str>,
    /// Whether the deployment was removed.
    pub(crate) is_removed: Arc<AtomicBool>,
    /// The tenant of the call's API key; empty for none.
    pub(crate) tenant: Arc<str>,
    pub(crate) quota_bytes: u64,
}

/// Where a page of keys begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageStart {
    /// The number of its first key, in ascending order.
    pub(crate) number: u64,
    /// Its first key, or one before it. `None` if only the number is known: then the keys before it are counted.
    pub(crate) key: Option<String>,
}

/// Keys in ascending order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeysPage {
    pub(crate) keys: Vec<String>,
    /// The next page, if there are more keys.
    pub(crate) next: Option<PageStart>,
}

impl KeyValueStore {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self {
            file: ValuesFile::new(file),
            permits: Arc::new(Semaphore::new(CONCURRENT)),
        }
    }

    /// Permits of a new deployment.
    pub(crate) fn deployment_permits() -> Arc<Semaphore> {
        deployment_share(CONCURRENT)
    }

    /// Removes the values of a deployment, if there are any. Blocks on the disk. To refuse what its running calls would
    /// write later, mark it as removed before.
    pub(crate) fn remove_deployment(&self, deployment: &str) -> Result<(), KeyValueError> {
        if !self.file.exists() {
            return Ok(());
        }
        self.file.access(|database| {
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
        })?;
        self.file.compact();
        Ok(())
    }
}

impl KeyValues {
    /// Opens the file, which shows whether it can be.
    pub(crate) async fn open(self) -> wasmtime::Result<Result<(), KeyValueError>> {
        self.read(|_, _| Ok(())).await
    }

    pub(crate) async fn get(
        self,
        key: String,
    ) -> wasmtime::Result<Result<Option<Vec<u8>>, KeyValueError>> {
        self.read(move |this, database| {
            let values = database.begin_read()?.open_table(VALUES)?;
            let value = values.get((&*this.deployment, &*this.tenant, &*key))?;
            Ok(value.map(|value| value.value().to_vec()))
        })
        .await
    }

    pub(crate) async fn exists(self, key: String) -> wasmtime::Result<Result<bool, KeyValueError>> {
        self.read(move |this, database| {
            let values = database.begin_read()?.open_table(VALUES)?;
            let value = values.get((&*this.deployment, &*this.tenant, &*key))?;
            Ok(value.is_some())
        })
        .await
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
        let needed = charged_bytes(&key, length);
        if value.is_some() && needed > limit {
            return Ok(Err(KeyValueError::LargerThanGrant { needed, limit }));
        }
        self.run(move |this| {
            let file = &this.store.file;
            let freed = file.access(|database| this.write(database, &key, value.as_deref()))?;
            file.freed(freed);
            Ok(())
        })
        .await
    }

    /// Sets or removes a value. Returns the bytes that the old one took.
    fn write(
        &self,
        database: &Database,
        key: &str,
        value: Option<&[u8]>,
    ) -> Result<u64, KeyValueError> {
        let limit = self.quota_bytes;
        let scope = (&*self.deployment, &*self.tenant);
        let transaction = database.begin_write()?;
        // Changes come one after another. The removal's may have come before this one.
        self.check_removed()?;
        let freed = {
            let mut values = transaction.open_table(VALUES)?;
            let mut used = transaction.open_table(USED_BYTES)?;
            let before = used.get(scope)?.map_or(0, |bytes| bytes.value());
            let entry = (&*self.deployment, &*self.tenant, key);
            let old = values.get(entry)?;
            let freed = old.map_or(0, |old| charged_bytes(key, old.value().len()));
            let rest = before.saturating_sub(freed);
            let needed = rest + value.map_or(0, |value| charged_bytes(key, value.len()));
            match value {
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
            freed
        };
        transaction.commit()?;
        Ok(freed)
    }

    /// A page of keys.
    pub(crate) async fn keys(
        self,
        start: PageStart,
    ) -> wasmtime::Result<Result<KeysPage, KeyValueError>> {
        let skipped = if start.key.is_some() { 0 } else { start.number };
        if skipped > MAX_SKIPPED_KEYS {
            return Ok(Err(KeyValueError::FarCursor(skipped)));
        }
        self.read(move |this, database| {
            let values = database.begin_read()?.open_table(VALUES)?;
            let end = format!("{}\0", this.tenant);
            let from = start.key.as_deref().unwrap_or_default();
            let from = (&*this.deployment, &*this.tenant, from);
            let mut range = values.range(from..(&*this.deployment, end.as_str(), ""))?;
            for _ in 0..skipped {
                if range.next().transpose()?.is_none() {
                    break;
                }
            }
            let mut keys = Vec::new();
            while let Some(entry) = range.next().transpose()? {
                let key = entry.0.value().2.to_owned();
                if keys.len() == KEYS_PER_PAGE {
                    let next = PageStart {
                        number: start.number + KEYS_PER_PAGE as u64,
                        key: Some(key),
                    };
                    return Ok(KeysPage {
                        keys,
                        next: Some(next),
                    });
                }
                keys.push(key);
            }
            Ok(KeysPage { keys, next: None })
        })
        .await
    }

    fn check_removed(&self) -> Result<(), KeyValueError> {
        match self.is_removed.load(Ordering::SeqCst) {
            true => Err(KeyValueError::Removed),
            false => Ok(()),
        }
    }

    async fn read<R: Send + 'static>(
        self,
        read: impl FnOnce(&Self, &Database) -> Result<R, KeyValueError> + Send + 'static,
    ) -> wasmtime::Result<Result<R, KeyValueError>> {
        self.run(move |this| this.store.file.access(|database| read(this, database)))
            .await
    }

    /// Runs an access on a thread that may block.
    async fn run<R: Send + 'static>(
        self,
        access: impl FnOnce(&Self) -> Result<R, KeyValueError> + Send + 'static,
    ) -> wasmtime::Result<Result<R, KeyValueError>> {
        // First its own: a deployment never waits for more of the others than it may have itself.
        let own = Arc::clone(&self.permits).acquire_owned().await?;
        let shared = Arc::clone(&self.store.permits).acquire_owned().await?;
        let done = tokio::task::spawn_blocking(move || {
            // A new deployment of the same name may have values by now.
            let done = self.check_removed().and_then(|()| access(&self));
            drop((own, shared));
            done
        });
        Ok(done.await?)
    }
}

/// What a key and its value take of the grant.
fn charged_bytes(key: &str, value_bytes: usize) -> u64 {
    (key.len() + value_bytes) as u64 + KEY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three keys and a hundred bytes.
    const QUOTA_BYTES: u64 = 3 * KEY_OVERHEAD_BYTES + 100;

    fn values(store: &Arc<KeyValueStore>, deployment: &str, tenant: &str) -> KeyValues {
        KeyValues {
            store: Arc::clone(store),
            permits: KeyValueStore::deployment_permits(),
            deployment: deployment.into(),
            is_removed: Arc::default(),
            tenant: tenant.into(),
            quota_bytes: QUOTA_BYTES,
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
        let first = values.clone().keys(PageStart::default());
        first.await.unwrap().unwrap().keys
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
            error.contains("869 bytes") && error.contains("868"),
            "{error}"
        );
        let error = set(&one, "key", 610).await.unwrap_err().to_string();
        assert!(error.contains("take 869 bytes"), "{error}");
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
        one.quota_bytes -= 40;
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
        let page = async |start| one.clone().keys(start).await.unwrap().unwrap();
        let first = page(PageStart::default()).await;
        assert_eq!(first.keys.len(), KEYS_PER_PAGE);
        let last = KeysPage {
            keys: vec![format!("{KEYS_PER_PAGE:05}")],
            next: None,
        };
        let next = first.next.expect("one more key");
        assert_eq!(page(next.clone()).await, last);
        // Only the number is known.
        let number = next.number;
        assert_eq!(page(PageStart { number, key: None }).await, last);
        // Keys that were removed between two pages move no other.
        let removed = one.clone().set("00007".to_owned(), None).await;
        removed.unwrap().unwrap();
        assert_eq!(page(next).await, last);
        let number = number + 1;
        assert_eq!(page(PageStart { number, key: None }).await.keys.len(), 0);
    }

    #[tokio::test]
    async fn removed_deployment_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let removed = values(&store, "a", "");
        set(&removed, "k", 5).await.unwrap();
        removed.is_removed.store(true, Ordering::SeqCst);
        store.remove_deployment("a").unwrap();
        // A new deployment of its name.
        let new = values(&store, "a", "");
        assert_eq!(get(&new, "k").await, None);
        set(&new, "new", 5).await.unwrap();
        // A call of the removed one still runs.
        let refused = set(&removed, "k", 5).await;
        assert!(
            matches!(refused, Err(KeyValueError::Removed)),
            "{refused:?}"
        );
        let refused = removed.clone().get("new".to_owned()).await.unwrap();
        assert!(
            matches!(refused, Err(KeyValueError::Removed)),
            "{refused:?}"
        );
        assert_eq!(keys(&new).await, ["new"]);
        // The removal comes after the check of a write that has begun.
        let late = store
            .file
            .access(|database| removed.write(database, "k", Some(&[1])));
        assert!(matches!(late, Err(KeyValueError::Removed)), "{late:?}");
    }

    #[tokio::test]
    async fn deployment_leaves_accesses_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let (one, other) = (values(&store, "a", ""), values(&store, "b", ""));
        let (mut ends, mut accesses) = (Vec::new(), Vec::new());
        for _ in 0..CONCURRENT {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            ends.push(end);
            let access = one.clone().run(move |_| {
                // Ends when the sender is dropped.
                let _ = ended.recv();
                Ok(())
            });
            accesses.push(tokio::spawn(access));
        }
        tokio::task::yield_now().await;
        assert_eq!(one.permits.available_permits(), 0);
        assert!(store.permits.available_permits() > 0);
        set(&other, "k", 5).await.unwrap();
        drop(ends);
        for access in accesses {
            access.await.unwrap().unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn only_near_cursors_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let one = values(&store(&dir), "a", "");
        for key in ["j", "k"] {
            set(&one, key, 5).await.unwrap();
        }
        let exists = |key: &str| one.clone().exists(key.to_owned());
        assert!(exists("k").await.unwrap().unwrap());
        assert!(!exists("l").await.unwrap().unwrap());
        let from = |number, key: Option<&str>| {
            let key = key.map(str::to_owned);
            one.clone().keys(PageStart { number, key })
        };
        for (number, keys) in [(1, &["k"][..]), (MAX_SKIPPED_KEYS, &[][..])] {
            assert_eq!(from(number, None).await.unwrap().unwrap().keys, keys);
        }
        let far = from(u64::MAX, None).await.unwrap();
        let far = far.unwrap_err().to_string();
        assert!(far.contains("list from the beginning"), "{far}");
        // The key of a cursor is looked up.
        let known = from(u64::MAX - 1000, Some("k")).await.unwrap();
        assert_eq!(known.unwrap().keys, ["k"]);
    }

    #[tokio::test]
    async fn broken_file_is_an_error_until_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("values.redb");
        std::fs::write(&file, [1; 10_000]).unwrap();
        let one = values(&store(&dir), "a", "");
        let error = one.clone().open().await.unwrap().unwrap_err();
        assert!(matches!(error, KeyValueError::Failed(_)), "{error:?}");
        std::fs::remove_file(&file).unwrap();
        set(&one, "k", 5).await.unwrap();
        assert_eq!(get(&one, "k").await, Some(5));
    }
}
