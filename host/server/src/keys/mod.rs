//! API keys: who calls, on whose behalf, and what they may use.
//!
//! A file names the keys by their digests, so that who reads the file has no key. It is read again when
//! it changes (see [`changes`](crate::changes)) and when [`Keys::reload`] is called; a file that makes no
//! sense changes nothing. What was used of a quota stays used when the file is read again, also where its
//! entry was not there for a while.
//!
//! A deployment that asks for keys takes them from `Authorization: Bearer KEY`, and the header ends
//! here: neither the plugin nor any log sees a key. What a plugin does not need to know it can't lose.
//! One that asks for none has that header for itself, unless it holds a key of this file: clients send
//! theirs everywhere, and a plugin could collect them.

mod file;
mod kept;
mod secret;

use crate::changes::{Changes, Follow, follow};
use crate::problem::Problem;
use corral_engine::{Metric, Tenant};
use corral_runtime::Quota;
use file::{Contents, Entry};
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use kept::Kept;
use secret::{Digest, matches};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::Instant;

pub use file::KeysError;
pub use secret::NewKey;

/// The tenants of keys are numbered from here on, those of deployments from 0.
const FIRST_TENANT: u32 = 1 << 31;

/// The keys of a file, as it is now.
#[derive(Debug)]
pub struct Keys {
    file: PathBuf,
    table: RwLock<Arc<Table>>,
    known: Mutex<Known>,
    changes: Changes,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    missing: AtomicU64,
    wrong: AtomicU64,
    elsewhere: AtomicU64,
    failed_reloads: AtomicU64,
}

/// What has to stay the same when the file is read again.
#[derive(Debug, Default)]
struct Known {
    /// In the order of their numbers. Grows with each new name, as long as the process runs.
    tenants: HashMap<String, Tenant>,
    tenant_quotas: Kept<String>,
    key_quotas: Kept<Digest>,
}

/// One reading of the file.
#[derive(Debug, Default)]
struct Table {
    holders: Vec<Holder>,
    /// Places in `holders` by a hash of the digest with a key of our own: how long a look takes says
    /// nothing about the digests.
    places: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
    tenants: HashMap<Tenant, String>,
}

#[derive(Debug)]
struct Holder {
    digest: Digest,
    deployments: Option<Vec<String>>,
    visitor: Visitor,
}

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// The key's name, for logs.
    pub(crate) key: Arc<str>,
    pub(crate) tenant: Tenant,
    /// Those of the key and of its tenant.
    pub(crate) quotas: Vec<Arc<Quota>>,
}

impl Keys {
    /// Reads the keys of a file.
    pub fn open(file: &Path) -> Result<Self, KeysError> {
        let changes = Changes::of(&[file]);
        let keys = Keys {
            file: file.to_owned(),
            table: RwLock::default(),
            known: Mutex::default(),
            changes,
            counts: Counts::default(),
        };
        keys.reload()?;
        Ok(keys)
    }

    /// No keys at all.
    pub(crate) fn none() -> &'static Self {
        static NONE: LazyLock<Keys> = LazyLock::new(|| Keys {
            file: PathBuf::new(),
            table: RwLock::default(),
            known: Mutex::default(),
            changes: Changes::of(&[]),
            counts: Counts::default(),
        });
        &NONE
    }

    /// Reads the file again. If it makes no sense the keys stay as they were.
    pub fn reload(&self) -> Result<(), KeysError> {
        match Contents::read(&self.file) {
            Ok(contents) => {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                let table = Arc::new(known.take_in(contents));
                *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
                Ok(())
            }
            Err(error) => {
                self.counts.failed_reloads.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Reads the file again if it has changed, looked at once a second at most.
    pub(crate) async fn refresh(self: &Arc<Self>) {
        follow(self).await;
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.table().holders.len()
    }

    /// Who sends a request with these headers to `deployment`. The key is taken out of the headers.
    pub(crate) fn admit(
        &self,
        headers: &mut HeaderMap,
        deployment: &str,
    ) -> Result<Visitor, Problem> {
        let Some(key) = bearer(headers) else {
            self.counts.missing.fetch_add(1, Ordering::Relaxed);
            return Err(Problem::unauthorized(
                "missing-key",
                "this path asks for a key; send it as Authorization: Bearer KEY",
            ));
        };
        let digest = Digest::of(&key);
        headers.remove(AUTHORIZATION);
        let table = self.table();
        let Some(holder) = table.find(&digest) else {
            self.counts.wrong.fetch_add(1, Ordering::Relaxed);
            return Err(Problem::unauthorized(
                "wrong-key",
                "this key is not known here; check it, or ask the operator for one",
            ));
        };
        let granted = holder.deployments.as_ref();
        if granted.is_some_and(|granted| !granted.iter().any(|name| name == deployment)) {
            self.counts.elsewhere.fetch_add(1, Ordering::Relaxed);
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "key-not-granted",
                format!("this key is good, but not for {deployment}; ask the operator"),
            ));
        }
        Ok(holder.visitor.clone())
    }

    /// Takes the keys out of the headers of a request that needs none. What else is sent as
    /// `Authorization` is the plugin's own, and stays.
    pub(crate) fn hide(&self, headers: &mut HeaderMap) {
        let table = self.table();
        let is_key = |text: &[u8]| table.find(&Digest::of(text.trim_ascii())).is_some();
        let mut kept = Vec::new();
        let mut found = false;
        for value in headers.get_all(AUTHORIZATION) {
            let text = value.as_bytes().trim_ascii();
            // With a scheme before it, whichever, and without.
            let scheme = text.iter().take_while(|byte| !byte.is_ascii_whitespace());
            if is_key(text) || is_key(&text[scheme.count()..]) {
                found = true;
            } else {
                kept.push(value.clone());
            }
        }
        if found {
            headers.remove(AUTHORIZATION);
            for value in kept {
                headers.append(AUTHORIZATION, value);
            }
        }
    }

    /// The tenants of the keys by what engines know them as.
    pub(crate) fn tenants(&self) -> HashMap<Tenant, String> {
        self.table().tenants.clone()
    }

    /// What was used of the quotas, and how often a key was no good.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let refused = [
            ("missing", &self.counts.missing),
            ("wrong", &self.counts.wrong),
            ("not-granted", &self.counts.elsewhere),
        ];
        let count = |name, help, labels, count: &AtomicU64| Metric {
            name,
            help,
            kind: corral_engine::Kind::Counter,
            labels,
            value: count.load(Ordering::Relaxed) as f64,
        };
        let mut metrics: Vec<Metric> = refused
            .into_iter()
            .map(|(why, refused)| {
                count(
                    "corral_api_key_rejections_total",
                    "Requests without a key that is good for them, by reason.",
                    vec![("reason", why.to_owned())],
                    refused,
                )
            })
            .collect();
        metrics.push(count(
            "corral_api_keys_reload_failures_total",
            "Times that the file of keys made no sense when it was read again.",
            Vec::new(),
            &self.counts.failed_reloads,
        ));
        let mut quotas = Vec::new();
        for holder in &self.table().holders {
            for quota in &holder.visitor.quotas {
                if !quotas.iter().any(|known| Arc::ptr_eq(known, quota)) {
                    quotas.push(quota.clone());
                }
            }
        }
        metrics.extend(quotas.iter().flat_map(|quota| quota.metrics()));
        metrics
    }

    fn table(&self) -> Arc<Table> {
        self.table
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Follow for Keys {
    fn changes(&self) -> &Changes {
        &self.changes
    }

    fn read_again(&self) {
        match self.reload() {
            Ok(()) => tracing::info!("the keys were read again"),
            Err(error) => tracing::warn!(%error, "the old keys go on"),
        }
    }
}

impl Table {
    fn find(&self, digest: &Digest) -> Option<&Holder> {
        let places = self.places.get(&self.hasher.hash_one(digest))?;
        let mut holders = places.iter().map(|place| &self.holders[*place]);
        holders.find(|holder| matches(&holder.digest, digest))
    }
}

impl Known {
    fn take_in(&mut self, contents: Contents) -> Table {
        let mut table = Table::default();
        let now = Instant::now();
        self.tenant_quotas.begin(now);
        self.key_quotas.begin(now);
        for Entry {
            name,
            digest,
            tenant: tenant_name,
            deployments,
            quota: allowance,
        } in contents.keys
        {
            let tenant = self.tenant(&tenant_name);
            // A tenant has one without limits too: it counts what is used.
            let limits = contents.tenants.get(&tenant_name).copied();
            let limits = limits.unwrap_or_default();
            let made = |limits| Quota::new("tenant", &tenant_name, limits);
            let mut quotas = vec![self.tenant_quotas.of(&tenant_name, limits, made)];
            // A key that had one goes on with it: its limits may come back.
            if !allowance.is_unlimited() || self.key_quotas.knows(&digest) {
                let made = |allowance| Quota::new("key", &name, allowance);
                quotas.push(self.key_quotas.of(&digest, allowance, made));
            }
            let place = table.holders.len();
            let hash = table.hasher.hash_one(digest);
            table.places.entry(hash).or_default().push(place);
            table.tenants.insert(tenant, tenant_name);
            table.holders.push(Holder {
                digest,
                deployments,
                visitor: Visitor {
                    key: name.into(),
                    tenant,
                    quotas,
                },
            });
        }
        self.tenant_quotas.end(now);
        self.key_quotas.end(now);
        table
    }

    /// The number of a tenant: always the same one for a name.
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

/// The key that a request brings.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_runtime::QuotaPermit;
    use http::HeaderValue;

    fn with(authorization: &str) -> HeaderMap {
        let value = HeaderValue::from_str(authorization).expect("a header");
        HeaderMap::from_iter([(AUTHORIZATION, value)])
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Folder(tempfile::tempdir().expect("a folder"))
        }

        fn write(&self, text: &str) -> PathBuf {
            let path = self.0.path().join("keys.toml");
            std::fs::write(&path, text).expect("written");
            path
        }
    }

    #[test]
    fn a_key_leads_to_its_tenant_and_stays_here() {
        let (one, other) = (NewKey::generate(), NewKey::generate());
        let folder = Folder::new();
        let text =
            one.entry("one", "alice", &["/chat".to_owned()]) + &other.entry("two", "bob", &[]);
        let keys = Keys::open(&folder.write(&text)).expect("good");
        assert_eq!(keys.count(), 2);
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let mut headers = with(&format!("{scheme} {}", one.key()));
            let visitor = keys.admit(&mut headers, "/chat").expect("it is granted");
            assert_eq!(&*visitor.key, "one");
            assert_eq!(keys.tenants()[&visitor.tenant], "alice");
            assert!(headers.is_empty(), "the key is taken out");
        }
        let refused = |authorization: &str, deployment| {
            let problem = keys.admit(&mut with(authorization), deployment);
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
        let problem = keys.admit(&mut HeaderMap::new(), "/chat");
        assert_eq!(problem.expect_err("no key").status(), 401);
        // One without a list is good everywhere.
        let mut headers = with(&format!("Bearer {}", other.key()));
        let visitor = keys.admit(&mut headers, "/anything").expect("granted");
        assert_ne!(visitor.tenant, Tenant(0));
    }

    #[test]
    fn where_no_key_is_asked_for_keys_are_hidden_and_all_else_stays() {
        let key = NewKey::generate();
        let folder = Folder::new();
        let keys = Keys::open(&folder.write(&key.entry("one", "alice", &[]))).expect("good");
        let left = |values: &[String]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().expect("a header"));
            }
            keys.hide(&mut headers);
            let left = headers.get_all(AUTHORIZATION).into_iter();
            Vec::from_iter(left.map(|value| value.to_str().expect("as it was sent").to_owned()))
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
        let foreign = [
            "Bearer of-the-plugin",
            "Basic YTpi",
            "",
            "Bearer",
            "Bearer ",
        ];
        let foreign = foreign.map(str::to_owned);
        assert_eq!(left(&foreign), foreign);
        assert_eq!(
            left(&[format!("Bearer {key}"), foreign[0].clone()]),
            foreign[..1]
        );
    }

    #[test]
    fn reading_again_keeps_tenants_and_what_was_used() {
        let (one, other) = (NewKey::generate(), NewKey::generate());
        let folder = Folder::new();
        let limited = |limit: u32| {
            format!(
                "{}[key.quota]\nrequests-per-minute = {limit}\n[tenant.alice]\nconcurrent = 5\n",
                one.entry("one", "alice", &[])
            )
        };
        let keys = Keys::open(&folder.write(&limited(1))).expect("good");
        let admit = |key: &NewKey| keys.admit(&mut with(&format!("Bearer {}", key.key())), "/x");
        let visitor = admit(&one).expect("granted");
        assert_eq!(visitor.quotas.len(), 2);
        QuotaPermit::acquire(visitor.quotas.clone()).expect("the first");
        QuotaPermit::acquire(visitor.quotas).expect_err("the second");

        folder.write("what = is this");
        keys.reload().expect_err("it makes no sense");
        assert!(admit(&one).is_ok(), "the old keys go on");

        let text = limited(2) + &other.entry("two", "bob", &[]);
        folder.write(&text);
        keys.reload().expect("good");
        let again = admit(&one).expect("granted");
        assert_eq!(again.tenant, visitor.tenant);
        QuotaPermit::acquire(again.quotas.clone()).expect("two a minute now");
        QuotaPermit::acquire(again.quotas).expect_err("the first one is still counted");
        assert_ne!(admit(&other).expect("granted").tenant, visitor.tenant);

        folder.write("");
        keys.reload().expect("no keys at all");
        assert_eq!(admit(&one).expect_err("gone").status(), 401);

        // Half of the file, and then all of it.
        folder.write(&text);
        keys.reload().expect("good");
        let back = admit(&one).expect("granted again").quotas;
        QuotaPermit::acquire(back).expect_err("both are still counted");
    }

    #[test]
    fn limits_that_were_not_there_for_a_while_begin_with_what_was_used() {
        let key = NewKey::generate();
        let folder = Folder::new();
        let entry = key.entry("one", "alice", &[]);
        for limits in [
            "[key.quota]\nrequests-per-minute = 2\n",
            "[tenant.alice]\nrequests-per-minute = 2\n",
        ] {
            let keys = Keys::open(&folder.write(&format!("{entry}{limits}"))).expect("good");
            let visit = || {
                let mut headers = with(&format!("Bearer {}", key.key()));
                let visitor = keys.admit(&mut headers, "/x").expect("granted");
                QuotaPermit::acquire(visitor.quotas)
            };
            visit().expect("the first of two");
            folder.write(&entry);
            keys.reload().expect("good");
            visit().expect("the second, and nothing is limited");
            folder.write(&format!("{entry}{limits}"));
            keys.reload().expect("good");
            visit().expect_err(limits);
        }
    }
}
