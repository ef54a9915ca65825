use super::*;
use crate::deployments::revision::{DeploymentRecord, TrafficShare};
use crate::deployments::test_support::{manifest, name};
use std::os::unix::fs::PermissionsExt;

/// A store in a temporary directory. Opening it creates its directory.
struct TemporaryStore {
    path: PathBuf,
    _parent: tempfile::TempDir,
}

impl TemporaryStore {
    fn new() -> Self {
        let parent = tempfile::tempdir().expect("a directory");
        TemporaryStore {
            path: parent.path().join("store"),
            _parent: parent,
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Opens without a grace period: unreferenced components are removed at once.
    fn open(&self) -> Store {
        let limits = StoreLimits {
            grace_period: Duration::ZERO,
            ..StoreLimits::default()
        };
        self.open_with(limits).expect("opens")
    }

    fn open_with(&self, limits: StoreLimits) -> Result<Store, StoreError> {
        Store::open(self.path(), limits)
    }

    fn open_error(&self) -> String {
        let opened = self.open_with(StoreLimits::default());
        opened.expect_err("refused").to_string()
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join("components")).expect("exists");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

impl Store {
    /// Adds a revision, whose components must be stored.
    fn add(&self, manifest: Manifest, activate: bool) -> Result<Revision, StoreError> {
        let name = manifest.name.clone();
        let new = self.new_revision(manifest, None)?;
        let limit = self.limits.max_revisions;
        self.change(&name, |entry| Ok(entry.deploy(new, activate, limit)))
    }

    fn set_traffic(
        &self,
        name: &DeploymentName,
        traffic: Vec<TrafficShare>,
    ) -> Result<DeploymentRecord, StoreError> {
        self.change(name, |entry| entry.set_traffic(name, traffic))?;
        self.get(name).map(|deployment| deployment.record)
    }

    fn set_paused(
        &self,
        name: &DeploymentName,
        paused: bool,
    ) -> Result<DeploymentRecord, StoreError> {
        self.change(name, |entry| entry.set_paused(name, paused))?;
        self.get(name).map(|deployment| deployment.record)
    }

    fn remove(&self, name: &DeploymentName) -> Result<(), StoreError> {
        self.change(name, |entry| entry.remove(name))
    }

    fn change<T>(
        &self,
        name: &DeploymentName,
        change: impl FnOnce(&mut Entry) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut entry = self.get_entry(name);
        let changed = change(&mut entry)?;
        self.swap_entry(name, entry.version, &entry)?;
        Ok(changed)
    }
}

fn mode(path: &Path) -> u32 {
    let metadata = std::fs::metadata(path).expect("exists");
    metadata.permissions().mode() & 0o777
}

fn put(store: &Store, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    store.put(digest, bytes).expect("room");
    digest
}

fn deploy(store: &Store, name: &str, bytes: &[u8]) -> u64 {
    deploy_existing(store, name, put(store, bytes))
}

/// Deploys an uploaded component.
fn deploy_existing(store: &Store, name: &str, digest: Digest) -> u64 {
    let revision = store.add(manifest(name, digest), true).expect("added");
    revision.number
}

fn share(revision: u64, weight: u32) -> TrafficShare {
    TrafficShare { revision, weight }
}

#[test]
fn content_survives_restart() {
    let temporary = TemporaryStore::new();
    let a = name("a");
    let store = temporary.open();
    assert_eq!(deploy(&store, "a", b"one"), 1);
    assert_eq!(deploy(&store, "a", b"two"), 2);
    assert_eq!(deploy(&store, "b", b"one"), 1);
    let split = vec![share(1, 90), share(2, 10)];
    store.set_traffic(&a, split.clone()).expect("both there");
    store.set_paused(&a, true).expect("exists");
    let before = store.list();
    drop(store);
    let store = temporary.open();
    assert_eq!(store.list(), before);
    let kept = store.get(&a).expect("exists");
    assert_eq!(kept.record.traffic, split);
    assert_eq!(kept.record.previous_traffic, [share(2, 1)]);
    assert!(kept.record.paused);
    assert_eq!(store.read(Digest::of(b"two")).expect("whole"), b"two");
    assert_eq!(temporary.files().len(), 2, "equal bytes share a file");
    assert_eq!(mode(temporary.path()), 0o700);
    store.remove(&a).expect("exists");
    assert_eq!(
        temporary.files().len(),
        1,
        "another deployment references it"
    );
    drop(store);
    let store = temporary.open();
    assert_eq!(store.list().len(), 1);
    assert_eq!(deploy(&store, "a", b"three"), 3, "numbers are not reused");
}

#[test]
fn revision_numbers_are_not_reused_after_removal() {
    let temporary = TemporaryStore::new();
    let a = name("a");
    let mut store = temporary.open();
    for number in [1, 2, 3] {
        assert_eq!(deploy(&store, "a", b"one"), number);
        store.remove(&a).expect("exists");
        if number == 2 {
            drop(store);
            store = temporary.open();
        }
    }
    let back = store.set_traffic(&a, vec![share(3, 1)]);
    assert!(matches!(back, Err(StoreError::NoDeployment(_))));
    assert_eq!(deploy(&store, "a", b"two"), 4);
    assert_eq!(deploy(&store, "a", b"two"), 5);
    let back = store.set_traffic(&a, vec![share(3, 1)]);
    assert!(matches!(back, Err(StoreError::NoRevision { .. })));
    assert_eq!(deploy(&store, "b", b"two"), 1, "another name");
}

#[test]
fn remembered_removals_are_bounded() {
    let name = |number: usize| -> DeploymentName { format!("n{number}").parse().expect("a name") };
    let removed = |count: usize| -> BTreeMap<DeploymentName, Removed> {
        (0..count)
            .map(|number| {
                let removed = Removed {
                    latest_revision: 1,
                    removed_ms: 7000 - number as u64,
                };
                (name(number), removed)
            })
            .collect()
    };
    assert_eq!(oldest_removed(&removed(MAX_REMOVED - 1)), None);
    assert_eq!(
        oldest_removed(&removed(MAX_REMOVED)),
        Some(name(MAX_REMOVED - 1))
    );
}

#[test]
fn files_are_private_to_the_user() {
    let temporary = TemporaryStore::new();
    let directory = temporary.path().join("not/there/yet");
    let open = || Store::open(&directory, StoreLimits::default()).expect("opens");
    let store = open();
    deploy(&store, "a", b"one");
    for created in ["not", "not/there", "not/there/yet"] {
        assert_eq!(mode(&temporary.path().join(created)), 0o700, "{created}");
    }
    let component = format!("components/{}.wasm", Digest::of(b"one").hex());
    for file in ["lock", "deployments.redb", &component] {
        assert_eq!(mode(&directory.join(file)), 0o600, "{file}");
    }
    // An existing directory keeps its mode; an existing database becomes private.
    drop(store);
    let set_mode = |path: &Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("changed");
    };
    let database = directory.join("deployments.redb");
    set_mode(&directory, 0o755);
    set_mode(&database, 0o644);
    assert_eq!(deploy(&open(), "a", b"two"), 2);
    assert_eq!((mode(&directory), mode(&database)), (0o755, 0o600));
}

#[test]
fn other_formats_and_damaged_databases_are_refused() {
    let temporary = TemporaryStore::new();
    drop(temporary.open());
    let path = temporary.path().join("deployments.redb");
    {
        let redb = redb::Database::open(&path).expect("closed");
        let writing = redb.begin_write().expect("free");
        {
            let table = redb::TableDefinition::<&str, u64>::new("metadata");
            let mut table = writing.open_table(table).expect("exists");
            table.insert("format", 99).expect("written");
        }
        writing.commit().expect("written");
    }
    let error = temporary.open_error();
    assert!(error.contains("has format 99"), "{error}");
    std::fs::write(&path, b"not a database at all").expect("written");
    let error = temporary.open_error();
    assert!(error.contains("move the whole directory away"), "{error}");
}

#[test]
fn components_without_database_are_kept() {
    let temporary = TemporaryStore::new();
    let store = temporary.open();
    deploy(&store, "a", b"one");
    drop(store);
    let [path, backup] = ["deployments.redb", "backup"].map(|name| temporary.path().join(name));
    std::fs::rename(&path, &backup).expect("changed");
    let error = temporary.open_error();
    let expected = "contains 1 components, but its database deployments.redb is missing";
    assert!(error.contains(expected), "{error}");
    assert_eq!(temporary.files().len(), 1);
    assert!(!path.exists(), "none is created");
    std::fs::rename(&backup, &path).expect("changed");
    let store = temporary.open();
    assert_eq!(store.read(Digest::of(b"one")).expect("exists"), b"one");
    // Without components, a new database is created.
    drop(store);
    std::fs::remove_file(&path).expect("changed");
    std::fs::remove_dir_all(temporary.path().join("components")).expect("changed");
    assert_eq!(temporary.open().list().len(), 0);
}

#[test]
fn leftovers_of_a_kill_are_removed() {
    let temporary = TemporaryStore::new();
    let store = temporary.open();
    deploy(&store, "a", b"one");
    put(&store, b"unreferenced");
    drop(store);
    let directory = temporary.path().join("components");
    std::fs::write(directory.join("being-written"), b"hal").expect("written");
    std::fs::write(directory.join("README"), b"not ours").expect("written");
    std::fs::write(temporary.path().join("being-made.redb"), b"hal").expect("written");
    let store = temporary.open();
    let expected = format!("{}.wasm", Digest::of(b"one").hex());
    assert_eq!(temporary.files(), [expected, "README".to_owned()]);
    assert_eq!(store.component(Digest::of(b"unreferenced")), None);
}

#[test]
fn damaged_component_is_detected_and_repaired() {
    let temporary = TemporaryStore::new();
    let store = temporary.open();
    deploy(&store, "a", b"one");
    let digest = Digest::of(b"one");
    let file = temporary
        .path()
        .join(format!("components/{}.wasm", digest.hex()));
    std::fs::write(&file, b"onf").expect("written");
    assert!(matches!(store.read(digest), Err(StoreError::Damaged(_))));
    assert_eq!(store.component(digest), None, "no longer stored");
    put(&store, b"one");
    assert_eq!(store.read(digest).expect("repaired"), b"one");
    // An unreadable file does not count as damaged.
    let backup = temporary.path().join("backup");
    std::fs::rename(&file, &backup).expect("changed");
    std::fs::create_dir(&file).expect("changed");
    let error = store.read(digest).expect_err("a directory");
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
    assert_eq!(store.component(digest), Some(3));
    std::fs::remove_dir(&file).expect("changed");
    std::fs::rename(&backup, &file).expect("changed");
    assert_eq!(store.read(digest).expect("whole"), b"one");
    for number in 0..20_u8 {
        put(&store, &[number]);
    }
    assert_eq!(store.read(digest).expect("referenced"), b"one");
}

#[test]
fn linked_components_live_as_long_as_revision() {
    let temporary = TemporaryStore::new();
    let store = temporary.open();
    let parts = ["handler", "template", "sampler"];
    let [handler, template, sampler] = parts.map(|part| put(&store, part.as_bytes()));
    let with_template = |template: String| {
        let linked = serde_json::json!({"templating": template, "sampling": {"x": sampler}});
        let mut manifest = manifest("a", handler);
        manifest.linked = serde_json::from_value(linked).expect("good");
        manifest
    };
    let error = store.add(with_template("template.wasm".to_owned()), true);
    assert!(matches!(error, Err(StoreError::NotADigest(file)) if file == "template.wasm"));
    let gone = Digest::of(b"gone");
    let error = store.add(with_template(gone.to_string()), true);
    assert!(matches!(error, Err(StoreError::NoComponent(digest)) if digest == gone));
    let added = store.add(with_template(template.to_string()), true);
    added.expect("all components exist");
    // Another deploy and a restart both remove unreferenced components.
    deploy(&store, "b", b"other");
    assert_eq!(temporary.files().len(), 4);
    drop(store);
    let store = temporary.open();
    assert_eq!(temporary.files().len(), 4);
    assert_eq!(store.read(sampler).expect("whole"), b"sampler");
    let a = name("a");
    store.remove(&a).expect("it exists");
    assert_eq!(temporary.files().len(), 1);
}

#[test]
fn limits_are_enforced() {
    let temporary = TemporaryStore::new();
    let limits = StoreLimits {
        max_component_bytes: 10,
        max_total_bytes: 25,
        max_deployments: 2,
        max_revisions: 3,
        max_unreferenced: 2,
        grace_period: Duration::ZERO,
    };
    let store = temporary.open_with(limits).expect("opens");
    let large = [7; 11];
    let error = store.put(Digest::of(&large), &large).expect_err("large");
    assert!(matches!(
        error,
        StoreError::TooLarge {
            bytes: 11,
            limit: 10
        }
    ));
    let error = store.put(Digest::of(b"x"), b"y").expect_err("others");
    assert!(matches!(error, StoreError::DigestMismatch { .. }));
    // The oldest unreferenced component is dropped.
    let unreferenced = [b"a", b"b", b"c"].map(|bytes| put(&store, bytes));
    assert_eq!(
        unreferenced.map(|digest| store.component(digest)),
        [None, Some(1), Some(1)]
    );
    // The oldest revisions are dropped with their files, except those in traffic.
    for number in 1..=3_u8 {
        assert_eq!(deploy(&store, "a", &[number; 2]), u64::from(number));
    }
    let a = name("a");
    store.set_traffic(&a, vec![share(1, 1)]).expect("exists");
    for number in 4..=6_u8 {
        let digest = put(&store, &[number; 2]);
        store.add(manifest("a", digest), false).expect("added");
    }
    let kept = store.get(&a).expect("exists");
    assert_eq!(Vec::from_iter(kept.revisions.into_keys()), [1, 3, 6]);
    assert_eq!(store.component(Digest::of(&[2; 2])), None);
    assert_eq!(store.component(Digest::of(&[1; 2])), Some(2));
    assert_eq!(temporary.files().len(), 4, "three, and an unreferenced one");
    // Deployments, and total bytes.
    deploy(&store, "b", &[8; 10]);
    let error = store.add(manifest("c", Digest::of(&[8; 10])), true);
    assert!(matches!(
        error,
        Err(StoreError::TooManyDeployments { limit: 2 })
    ));
    let error = store.put(Digest::of(&[9; 10]), &[9; 10]).expect_err("full");
    assert!(
        matches!(error, StoreError::Full { limit: 25, .. }),
        "{error}"
    );
}

#[test]
fn grace_period_protects_uploads_until_deploy() {
    let temporary = TemporaryStore::new();
    let limits = StoreLimits {
        max_unreferenced: 2,
        grace_period: Duration::from_secs(3600),
        ..StoreLimits::default()
    };
    let store = temporary.open_with(limits).expect("opens");
    let a = name("a");
    let one = Digest::of(b"one");
    deploy(&store, "a", b"one");
    // A query or an upload starts the grace period; then the deployment is removed.
    assert_eq!(store.component(one), Some(3));
    store.remove(&a).expect("exists");
    assert_eq!(deploy_existing(&store, "b", one), 1);
    assert!(!store.put(one, b"one").expect("exists"), "it exists");
    store.remove(&name("b")).expect("exists");
    assert_eq!(deploy_existing(&store, "c", one), 1);
    // Components within their grace period are not dropped for new ones.
    let two = put(&store, b"two");
    put(&store, b"three");
    let error = store.put(Digest::of(b"four"), b"four").expect_err("two");
    assert!(
        matches!(error, StoreError::TooManyUnreferenced { limit: 2, wait } if wait > Duration::ZERO)
    );
    deploy_existing(&store, "d", two);
    deploy_existing(&store, "e", Digest::of(b"three"));
    put(&store, b"four");
    // A component that has been deployed since makes room first.
    store.remove(&name("d")).expect("exists");
    assert_eq!(temporary.files().len(), 4);
    put(&store, b"five");
    assert_eq!(store.component(two), None);
    drop(store);
    assert_eq!(temporary.files().len(), 4);
    temporary.open();
    assert_eq!(temporary.files().len(), 2, "only referenced ones");
}

#[test]
fn held_component_is_not_removed() {
    let temporary = TemporaryStore::new();
    let limits = StoreLimits {
        max_unreferenced: 1,
        grace_period: Duration::ZERO,
        ..StoreLimits::default()
    };
    let store = temporary.open_with(limits).expect("opens");
    let one = Digest::of(b"one");
    deploy(&store, "a", b"one");
    let held = [store.hold(one), store.hold(one)].map(|held| held.expect("exists"));
    store.remove(&name("a")).expect("exists");
    let error = store.put(Digest::of(b"two"), b"two").expect_err("one");
    assert!(matches!(
        error,
        StoreError::TooManyUnreferenced { limit: 1, .. }
    ));
    let [held, other] = held;
    drop(other);
    assert_eq!(deploy_existing(&store, "b", one), 1);
    drop(held);
    store.remove(&name("b")).expect("exists");
    assert!(matches!(store.hold(one), Err(StoreError::NoComponent(_))));
    assert_eq!(temporary.files().len(), 0);
}

#[test]
fn missing_items_are_reported() {
    let temporary = TemporaryStore::new();
    let store = temporary.open();
    let digest = Digest::of(b"x");
    let error = store
        .add(manifest("a", digest), true)
        .expect_err("not uploaded");
    assert!(matches!(error, StoreError::NoComponent(_)), "{error}");
    let mut by_file = manifest("a", digest);
    by_file.component = "a.wasm".to_owned();
    assert!(matches!(
        store.add(by_file, true),
        Err(StoreError::NotADigest(_))
    ));
    deploy(&store, "a", b"x");
    let a = name("a");
    for (traffic, expected) in [
        (vec![], "name at least one"),
        (vec![share(7, 1)], "'a' has no revision 7; it has 1"),
        (vec![share(1, 0)], "give 1 to 10000"),
        (vec![share(1, 1), share(1, 2)], "given twice"),
    ] {
        let error = store.set_traffic(&a, traffic).expect_err("bad");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let b = name("b");
    assert!(matches!(store.remove(&b), Err(StoreError::NoDeployment(_))));
    assert!(matches!(
        store.set_paused(&b, true),
        Err(StoreError::NoDeployment(_))
    ));
    assert!(matches!(store.get(&b), Err(StoreError::NoDeployment(_))));
}
