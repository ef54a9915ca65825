//! API keys: authentication, tenants and their quotas.
//!
//! A file holds the SHA-256 digests of the keys, so reading the file reveals no key. It is read again when
//! it changes (see [`file_watcher`](crate::file_watcher)) and on [`ApiKeys::reload`]; an invalid file
//! changes nothing. Used quota stays used across reloads, even if an entry is missing for a while.
//!
//! A deployment that requires keys reads them from `Authorization: Bearer KEY`, else from `x-api-key: KEY`, and
//! removes the header, so neither the plugin nor a log sees a key. A deployment that requires none receives the
//! headers, unless they hold a key of this file: clients send keys everywhere, and a plugin could collect them.

mod file;
mod key;
mod quota_registry;

use crate::file_watcher::{FileWatcher, Reloadable};
use crate::problem::Problem;
use corral_engine::{Metric, Tenant};
use corral_runtime::Quota;
use file::{KeyEntry, KeyFile};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, StatusCode};
use key::KeyDigest;
use quota_registry::QuotaRegistry;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

pub use file::ApiKeysError;
pub use key::NewApiKey;

/// Header of Anthropic's API with the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// First id of tenants of keys; ids of deployments start at 0.
const FIRST_TENANT: u32 = 1 << 31;

/// The API keys of a file.
#[derive(Debug)]
pub struct ApiKeys {
    /// Locked while it is read, so that the keys are always those of this file.
    file: Mutex<PathBuf>,
    index: RwLock<Arc<KeyIndex>>,
    persistent: Mutex<PersistentState>,
    watcher: FileWatcher,
    counters: KeyCounters,
}

#[derive(Debug, Default)]
struct KeyCounters {
    missing: AtomicU64,
    invalid: AtomicU64,
    not_granted: AtomicU64,
    failed_reloads: AtomicU64,
}

/// State that outlives a reload.
#[derive(Debug, Default)]
struct PersistentState {
    /// Ids by name, in the order of first use. Never shrinks.
    tenants: HashMap<String, Tenant>,
    tenant_quotas: QuotaRegistry<String>,
    key_quotas: QuotaRegistry<KeyDigest>,
}

/// The content of the file after one reload.
#[derive(Debug, Default)]
struct KeyIndex {
    keys: Vec<RegisteredKey>,
    /// Indexes into `keys` by a keyed hash of the digest, so that lookup times reveal nothing about
    /// digests.
    by_hash: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
    tenants: HashMap<Tenant, String>,
}

#[derive(Debug)]
struct RegisteredKey {
    digest: KeyDigest,
    deployments: Option<Vec<String>>,
    holder: KeyHolder,
}

/// The authenticated sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct KeyHolder {
    /// Name of the key, for logs.
    pub(crate) key_name: Arc<str>,
    pub(crate) tenant: Tenant,
    /// Name of the tenant, for logs.
    pub(crate) tenant_name: Arc<str>,
    /// Quotas of the key and of its tenant.
    pub(crate) quotas: Vec<Arc<Quota>>,
}

impl ApiKeys {
    /// Reads the keys of a file.
    pub fn open(file: &Path) -> Result<Self, ApiKeysError> {
        let watcher = FileWatcher::new(&[file]);
        let keys = ApiKeys {
            file: Mutex::new(file.to_owned()),
            index: RwLock::default(),
            persistent: Mutex::default(),
            watcher,
            counters: KeyCounters::default(),
        };
        keys.reload()?;
        Ok(keys)
    }

    /// An empty set of keys.
    pub(crate) fn none() -> &'static Self {
        static NONE: LazyLock<ApiKeys> = LazyLock::new(|| ApiKeys {
            file: Mutex::default(),
            index: RwLock::default(),
            persistent: Mutex::default(),
            watcher: FileWatcher::new(&[]),
            counters: KeyCounters::default(),
        });
        &NONE
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// If the file is invalid; the keys stay as they were.
    pub fn reload(&self) -> Result<(), ApiKeysError> {
        let file = self.file();
        self.load(&file)
    }

    /// Reads the keys of another file, and watches it from now on.
    ///
    /// # Errors
    /// If the file is invalid; the keys and their file stay as they were.
    pub fn reload_from(&self, file: &Path) -> Result<(), ApiKeysError> {
        let watcher = FileWatcher::new(&[file]);
        let mut current = self.file();
        self.load(file)?;
        file.clone_into(&mut current);
        self.watcher.replace(watcher);
        Ok(())
    }

    fn file(&self) -> MutexGuard<'_, PathBuf> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, file: &Path) -> Result<(), ApiKeysError> {
        match KeyFile::read(file) {
            Ok(file) => {
                let mut persistent = self
                    .persistent
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let index = Arc::new(persistent.build_index(file));
                *self.index.write().unwrap_or_else(PoisonError::into_inner) = index;
                Ok(())
            }
            Err(error) => {
                self.counters.failed_reloads.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Number of keys.
    pub fn count(&self) -> usize {
        self.index().keys.len()
    }

    /// Authenticates a request to `deployment` and removes the key from its headers.
    pub(crate) fn authenticate(
        &self,
        headers: &mut HeaderMap,
        deployment: &str,
    ) -> Result<KeyHolder, Problem> {
        let bearer = bearer_key(headers).map(|key| (AUTHORIZATION, key));
        let sent = bearer.or_else(|| Some((X_API_KEY, single(headers, X_API_KEY)?.to_owned())));
        let Some((header, key)) = sent else {
            self.counters.missing.fetch_add(1, Ordering::Relaxed);
            return Err(Problem::unauthorized(
                "missing-key",
                "this path requires an API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            ));
        };
        let digest = KeyDigest::of(&key);
        headers.remove(header);
        // A client may send its key in both.
        self.remove_from(headers);
        let index = self.index();
        let Some(key) = index.find(&digest) else {
            self.counters.invalid.fetch_add(1, Ordering::Relaxed);
            return Err(Problem::unauthorized(
                "invalid-key",
                "this API key is unknown; check it, or ask the operator for one",
            ));
        };
        let granted = key.deployments.as_ref();
        if granted.is_some_and(|granted| !granted.iter().any(|name| name == deployment)) {
            self.counters.not_granted.fetch_add(1, Ordering::Relaxed);
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "key-not-granted",
                format!("this API key does not grant access to {deployment}; ask the operator"),
            ));
        }
        Ok(key.holder.clone())
    }

    /// The holder of the key with this name and tenant, if it still exists and grants access to `deployment`, if one is given.
    pub(crate) fn holder(
        &self,
        tenant: &str,
        key: &str,
        deployment: Option<&str>,
    ) -> Option<KeyHolder> {
        let index = self.index();
        let mut keys = index.keys.iter();
        let found = keys.find(|found| {
            let granted = found.deployments.as_ref().zip(deployment);
            *found.holder.tenant_name == *tenant
                && *found.holder.key_name == *key
                && granted.is_none_or(|(granted, name)| granted.iter().any(|one| one == name))
        });
        found.map(|found| found.holder.clone())
    }

    /// Removes API keys from the headers of a request. Other values of these headers stay for the plugin.
    pub(crate) fn remove_from(&self, headers: &mut HeaderMap) {
        let index = self.index();
        let is_key = |text: &[u8]| index.find(&KeyDigest::of(text.trim_ascii())).is_some();
        for name in [AUTHORIZATION, X_API_KEY] {
            let mut others = Vec::new();
            let mut found = false;
            for value in headers.get_all(&name) {
                let text = value.as_bytes().trim_ascii();
                // With any scheme before the key, or none.
                let scheme = text.iter().take_while(|byte| !byte.is_ascii_whitespace());
                if is_key(text) || is_key(&text[scheme.count()..]) {
                    found = true;
                } else {
                    others.push(value.clone());
                }
            }
            if found {
                headers.remove(&name);
                for value in others {
                    headers.append(&name, value);
                }
            }
        }
    }

    /// Names of the tenants by their ids.
    pub(crate) fn tenants(&self) -> HashMap<Tenant, String> {
        self.index().tenants.clone()
    }

    /// Metrics of rejections, reloads and quotas.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let rejections = [
            ("missing", &self.counters.missing),
            ("invalid", &self.counters.invalid),
            ("not-granted", &self.counters.not_granted),
        ];
        let mut metrics: Vec<Metric> = rejections
            .into_iter()
            .map(|(reason, count)| {
                Metric::counter(
                    "corral_api_key_rejections_total",
                    "Requests rejected for lack of a valid API key, by reason.",
                    count.load(Ordering::Relaxed),
                )
                .with_label("reason", reason)
            })
            .collect();
        metrics.push(Metric::counter(
            "corral_api_keys_reload_failures_total",
            "Reloads of the key file that failed.",
            self.counters.failed_reloads.load(Ordering::Relaxed),
        ));
        let mut quotas = Vec::new();
        for key in &self.index().keys {
            for quota in &key.holder.quotas {
                if !quotas.iter().any(|known| Arc::ptr_eq(known, quota)) {
                    quotas.push(quota.clone());
                }
            }
        }
        metrics.extend(quotas.iter().flat_map(|quota| quota.metrics()));
        metrics
    }

    fn index(&self) -> Arc<KeyIndex> {
        self.index
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Reloadable for ApiKeys {
    fn watcher(&self) -> &FileWatcher {
        &self.watcher
    }

    fn reload_and_log(&self) {
        match self.reload() {
            Ok(()) => tracing::info!("API keys reloaded"),
            Err(error) => tracing::warn!(%error, "API keys not reloaded; the old ones stay in use"),
        }
    }
}

impl KeyIndex {
    fn find(&self, digest: &KeyDigest) -> Option<&RegisteredKey> {
        let candidates = self.by_hash.get(&self.hasher.hash_one(digest))?;
        let mut keys = candidates.iter().map(|at| &self.keys[*at]);
        keys.find(|key| key.digest.matches(digest))
    }
}

impl PersistentState {
    fn build_index(&mut self, file: KeyFile) -> KeyIndex {
        let mut index = KeyIndex::default();
        let now = Instant::now();
        self.tenant_quotas.begin_reload(now);
        self.key_quotas.begin_reload(now);
        for KeyEntry {
            name,
            digest,
            tenant: tenant_name,
            deployments,
            quota: key_limits,
        } in file.keys
        {
            let tenant = self.tenant(&tenant_name);
            // A tenant without limits has a quota too: it counts usage.
            let limits = file.tenants.get(&tenant_name).copied().unwrap_or_default();
            let new_quota = |limits| Quota::new("tenant", &tenant_name, limits);
            let mut quotas = vec![self.tenant_quotas.get(&tenant_name, limits, new_quota)];
            // A key keeps its quota when its limits are removed: they may come back.
            if !key_limits.is_unlimited() || self.key_quotas.contains(&digest) {
                let new_quota = |limits| Quota::new("key", &name, limits);
                quotas.push(self.key_quotas.get(&digest, key_limits, new_quota));
            }
            let at = index.keys.len();
            let hash = index.hasher.hash_one(digest);
            index.by_hash.entry(hash).or_default().push(at);
            let holder_tenant = Arc::from(tenant_name.as_str());
            index.tenants.insert(tenant, tenant_name);
            index.keys.push(RegisteredKey {
                digest,
                deployments,
                holder: KeyHolder {
                    key_name: name.into(),
                    tenant,
                    tenant_name: holder_tenant,
                    quotas,
                },
            });
        }
        self.tenant_quotas.end_reload(now);
        self.key_quotas.end_reload(now);
        index
    }

    /// The id of a tenant, always the same for a name.
    fn tenant(&mut self, name: &str) -> Tenant {
        if let Some(tenant) = self.tenants.get(name) {
            return *tenant;
        }
        let number = u32::try_from(self.tenants.len()).unwrap_or(u32::MAX);
        let tenant = Tenant(FIRST_TENANT.saturating_add(number));
        self.tenants.insert(name.to_owned(), tenant);
        tenant
    }
}

/// The key in a single `Authorization: Bearer KEY` header.
fn bearer_key(headers: &HeaderMap) -> Option<String> {
    let (scheme, key) = single(headers, AUTHORIZATION)?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then(|| key.to_owned())
}

/// The value of a header that is given once.
fn single(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    value.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_runtime::QuotaPermit;
    use http::HeaderValue;

    fn headers(authorization: &str) -> HeaderMap {
        let value = HeaderValue::from_str(authorization).expect("a header");
        HeaderMap::from_iter([(AUTHORIZATION, value)])
    }

    struct TestDir(tempfile::TempDir);

    impl TestDir {
        fn new() -> Self {
            TestDir(tempfile::tempdir().expect("a directory"))
        }

        fn write(&self, text: &str) -> PathBuf {
            let path = self.0.path().join("keys.toml");
            std::fs::write(&path, text).expect("written");
            path
        }
    }

    #[test]
    fn key_identifies_tenant_and_is_removed() {
        let (one, other) = (NewApiKey::generate(), NewApiKey::generate());
        let dir = TestDir::new();
        let text = one.toml_entry("one", "alice", &["/chat".to_owned()])
            + &other.toml_entry("two", "bob", &[]);
        let keys = ApiKeys::open(&dir.write(&text)).expect("good");
        assert_eq!(keys.count(), 2);
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let mut headers = headers(&format!("{scheme} {}", one.key()));
            let holder = keys.authenticate(&mut headers, "/chat").expect("granted");
            assert_eq!(&*holder.key_name, "one");
            assert_eq!(keys.tenants()[&holder.tenant], "alice");
            assert!(headers.is_empty(), "the key is removed");
        }
        // As Anthropic's clients send it, also beside a header for the plugin.
        let mut sent = HeaderMap::from_iter([
            (
                X_API_KEY,
                HeaderValue::from_str(one.key()).expect("a header"),
            ),
            (AUTHORIZATION, HeaderValue::from_static("Basic YTpi")),
        ]);
        let holder = keys.authenticate(&mut sent, "/chat").expect("granted");
        assert_eq!(&*holder.key_name, "one");
        assert_eq!(Vec::from_iter(sent.keys()), [AUTHORIZATION]);
        let value = HeaderValue::from_str(other.key()).expect("a header");
        let mut sent = HeaderMap::from_iter([(X_API_KEY, value)]);
        keys.remove_from(&mut sent);
        assert!(sent.is_empty(), "an open deployment sees no key");
        let refused = |authorization: &str, deployment| {
            let problem = keys.authenticate(&mut headers(authorization), deployment);
            let problem = problem.expect_err("refused");
            let text = format!("{problem:?}");
            assert!(!text.contains(one.key()), "{text}");
            (problem.status().as_u16(), text)
        };
        assert_eq!(refused(&format!("Bearer {}", one.key()), "/other").0, 403);
        for wrong in [
            format!("Bearer {}x", one.key()),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            one.key().to_owned(),
            format!("Basic {}", one.key()),
        ] {
            assert_eq!(refused(&wrong, "/chat").0, 401, "{wrong}");
        }
        let problem = keys.authenticate(&mut HeaderMap::new(), "/chat");
        assert_eq!(problem.expect_err("no key").status(), 401);
        // A key without a list of deployments is valid everywhere.
        let mut headers = headers(&format!("Bearer {}", other.key()));
        let holder = keys
            .authenticate(&mut headers, "/anything")
            .expect("granted");
        assert_ne!(holder.tenant, Tenant(0));
    }

    #[test]
    fn open_deployment_receives_all_but_keys() {
        let key = NewApiKey::generate();
        let dir = TestDir::new();
        let keys = ApiKeys::open(&dir.write(&key.toml_entry("one", "alice", &[]))).expect("good");
        let left = |values: &[String]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().expect("a header"));
            }
            keys.remove_from(&mut headers);
            let left = headers.get_all(AUTHORIZATION).into_iter();
            Vec::from_iter(left.map(|value| value.to_str().expect("ASCII").to_owned()))
        };
        let key = key.key();
        for sent in [
            format!("Bearer {key}"),
            format!("bearer \t {key} "),
            format!("Token {key}"),
            key.to_owned(),
        ] {
            assert!(left(std::slice::from_ref(&sent)).is_empty(), "{sent}");
        }
        let others = [
            "Bearer of-the-plugin",
            "Basic YTpi",
            "",
            "Bearer",
            "Bearer ",
        ];
        let others = others.map(str::to_owned);
        assert_eq!(left(&others), others);
        assert_eq!(
            left(&[format!("Bearer {key}"), others[0].clone()]),
            others[..1]
        );
    }

    #[test]
    fn reload_keeps_tenants_and_used_quota() {
        let (one, other) = (NewApiKey::generate(), NewApiKey::generate());
        let dir = TestDir::new();
        let limited = |limit: u32| {
            format!(
                "{}[key.quota]\nrequests-per-minute = {limit}\n[tenant.alice]\nconcurrent-requests = 5\n",
                one.toml_entry("one", "alice", &[])
            )
        };
        let keys = ApiKeys::open(&dir.write(&limited(1))).expect("good");
        let authenticate = |key: &NewApiKey| {
            keys.authenticate(&mut headers(&format!("Bearer {}", key.key())), "/x")
        };
        let holder = authenticate(&one).expect("granted");
        assert_eq!(holder.quotas.len(), 2);
        QuotaPermit::acquire(holder.quotas.clone()).expect("the first");
        QuotaPermit::acquire(holder.quotas).expect_err("the second");

        dir.write("what = is this");
        keys.reload().expect_err("invalid");
        assert!(authenticate(&one).is_ok(), "the old keys stay");

        let text = limited(2) + &other.toml_entry("two", "bob", &[]);
        dir.write(&text);
        keys.reload().expect("good");
        let again = authenticate(&one).expect("granted");
        assert_eq!(again.tenant, holder.tenant);
        QuotaPermit::acquire(again.quotas.clone()).expect("two a minute now");
        QuotaPermit::acquire(again.quotas).expect_err("the first one is still counted");
        assert_ne!(authenticate(&other).expect("granted").tenant, holder.tenant);

        dir.write("");
        keys.reload().expect("no keys at all");
        assert_eq!(authenticate(&one).expect_err("gone").status(), 401);

        // The file comes back after it was empty.
        dir.write(&text);
        keys.reload().expect("good");
        let back = authenticate(&one).expect("granted again").quotas;
        QuotaPermit::acquire(back).expect_err("both are still counted");
    }

    #[test]
    fn removed_limits_count_usage_when_restored() {
        let key = NewApiKey::generate();
        let dir = TestDir::new();
        let entry = key.toml_entry("one", "alice", &[]);
        for limits in [
            "[key.quota]\nrequests-per-minute = 2\n",
            "[tenant.alice]\nrequests-per-minute = 2\n",
        ] {
            let keys = ApiKeys::open(&dir.write(&format!("{entry}{limits}"))).expect("good");
            let begin = || {
                let mut headers = headers(&format!("Bearer {}", key.key()));
                let holder = keys.authenticate(&mut headers, "/x").expect("granted");
                QuotaPermit::acquire(holder.quotas)
            };
            begin().expect("the first of two");
            dir.write(&entry);
            keys.reload().expect("good");
            begin().expect("the second, and nothing is limited");
            dir.write(&format!("{entry}{limits}"));
            keys.reload().expect("good");
            begin().expect_err(limits);
        }
    }
}
