use super::*;
use crate::deployments::fixture::manifest;
use crate::deployments::revision::Share;
use std::os::unix::fs::PermissionsExt;

/// A folder of a test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("corral-store-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Scratch(folder)
    }

    /// Without grace: what nobody names or holds goes at once.
    fn open(&self) -> Store {
        let bounds = Bounds {
            grace: Duration::ZERO,
            ..Bounds::default()
        };
        self.open_with(bounds).expect("opens")
    }

    fn open_with(&self, bounds: Bounds) -> Result<Store, StoreError> {
        Store::open(&self.0, bounds)
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join("components")).expect("is there");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("ours"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn put(store: &Store, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    store.put(digest, bytes).expect("there is room");
    digest
}

fn deploy(store: &Store, name: &str, bytes: &[u8]) -> u64 {
    let digest = put(store, bytes);
    let revision = store.add(manifest(name, digest), true).expect("added");
    revision.number
}

/// Deploys what is there already.
fn deploy_kept(store: &Store, name: &str, digest: Digest) -> u64 {
    let revision = store.add(manifest(name, digest), true).expect("added");
    revision.number
}

fn share(revision: u64, weight: u32) -> Share {
    Share { revision, weight }
}

#[test]
fn everything_is_there_after_a_restart() {
    let scratch = Scratch::new("restart");
    let name: Name = "a".parse().expect("a name");
    let store = scratch.open();
    assert_eq!(deploy(&store, "a", b"one"), 1);
    assert_eq!(deploy(&store, "a", b"two"), 2);
    assert_eq!(deploy(&store, "b", b"one"), 1);
    let split = vec![share(1, 90), share(2, 10)];
    store.set_traffic(&name, split.clone()).expect("both there");
    store.set_paused(&name, true).expect("there");
    let before = store.list();
    drop(store);
    let store = scratch.open();
    assert_eq!(store.list(), before);
    let kept = store.get(&name).expect("there");
    assert_eq!(kept.record.traffic, split);
    assert_eq!(kept.record.before, [share(2, 1)]);
    assert!(kept.record.paused);
    assert_eq!(store.read(Digest::of(b"two")).expect("whole"), b"two");
    assert_eq!(scratch.files().len(), 2, "one file for equal bytes");
    let mode = std::fs::metadata(&scratch.0).expect("there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o700);
    store.remove(&name).expect("there");
    assert_eq!(scratch.files().len(), 1, "the other one still names it");
    drop(store);
    let store = scratch.open();
    assert_eq!(store.list().len(), 1);
    assert_eq!(deploy(&store, "a", b"three"), 3, "no number is given twice");
}

#[test]
fn the_numbers_of_a_removed_deployment_are_not_given_again() {
    let scratch = Scratch::new("numbers");
    let name: Name = "a".parse().expect("a name");
    let mut store = scratch.open();
    for number in [1, 2, 3] {
        assert_eq!(deploy(&store, "a", b"one"), number);
        store.remove(&name).expect("there");
        if number == 2 {
            drop(store);
            store = scratch.open();
        }
    }
    let back = store.set_traffic(&name, vec![share(3, 1)]);
    assert!(matches!(back, Err(StoreError::NoDeployment(_))));
    assert_eq!(deploy(&store, "a", b"two"), 4);
    assert_eq!(deploy(&store, "a", b"two"), 5);
    let back = store.set_traffic(&name, vec![share(3, 1)]);
    assert!(matches!(back, Err(StoreError::NoRevision { .. })));
    assert_eq!(deploy(&store, "b", b"two"), 1, "another name");
}

#[test]
fn what_is_remembered_of_removed_deployments_is_bounded() {
    let name = |number: usize| -> Name { format!("n{number}").parse().expect("a name") };
    let removed = |count: usize| -> BTreeMap<Name, (u64, u64)> {
        (0..count)
            .map(|number| (name(number), (1, 7000 - number as u64)))
            .collect()
    };
    assert_eq!(surplus(&removed(MOST_REMOVED - 1)), None);
    assert_eq!(
        surplus(&removed(MOST_REMOVED)),
        Some(name(MOST_REMOVED - 1))
    );
    // A database that was written before it was remembered is read all the same.
    let scratch = Scratch::new("before");
    deploy(&scratch.open(), "a", b"one");
    {
        let redb = redb::Database::open(scratch.0.join("deployments.redb")).expect("closed");
        let writing = redb.begin_write().expect("free");
        let table = redb::TableDefinition::<&str, (u64, u64)>::new("removed");
        assert!(
            writing.delete_table(table).expect("it can go"),
            "it was there"
        );
        writing.commit().expect("written");
    }
    assert_eq!(deploy(&scratch.open(), "a", b"two"), 2);
}

#[test]
fn what_is_made_is_this_users_alone() {
    let above = Scratch::new("private");
    let scratch = Scratch(above.0.join("not/there/yet"));
    let store = scratch.open();
    deploy(&store, "a", b"one");
    let mode = |path: &Path| {
        let there = std::fs::metadata(path).expect("there");
        there.permissions().mode() & 0o777
    };
    for folder in [&above.0, &above.0.join("not/there"), &scratch.0] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    let component = format!("components/{}.wasm", Digest::of(b"one").hex());
    for file in ["lock", "deployments.redb", &component] {
        assert_eq!(mode(&scratch.0.join(file)), 0o600, "{file}");
    }
    // A folder that is there is somebody's; a database that others could read is taken away from them.
    drop(store);
    let open_to_others = |path: &Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("ours");
    };
    let database = scratch.0.join("deployments.redb");
    open_to_others(&scratch.0, 0o755);
    open_to_others(&database, 0o644);
    assert_eq!(deploy(&scratch.open(), "a", b"two"), 2);
    assert_eq!((mode(&scratch.0), mode(&database)), (0o755, 0o600));
}

#[test]
fn a_store_is_one_processs() {
    let scratch = Scratch::new("locked");
    let store = scratch.open();
    let error = scratch.open_with(Bounds::default()).expect_err("taken");
    assert!(
        error.to_string().contains("in use by another process"),
        "{error}"
    );
    drop(store);
    scratch.open();
}

#[test]
fn another_format_and_a_damaged_database_are_refused() {
    let scratch = Scratch::new("format");
    drop(scratch.open());
    let path = scratch.0.join("deployments.redb");
    {
        let redb = redb::Database::open(&path).expect("closed");
        let writing = redb.begin_write().expect("free");
        {
            let table = redb::TableDefinition::<&str, u64>::new("about");
            let mut table = writing.open_table(table).expect("there");
            table.insert("format", 99).expect("written");
        }
        writing.commit().expect("written");
    }
    let error = scratch.open_with(Bounds::default()).expect_err("unknown");
    assert!(error.to_string().contains("has format 99"), "{error}");
    std::fs::write(&path, b"not a database at all").expect("written");
    let error = scratch.open_with(Bounds::default()).expect_err("nonsense");
    let told = error.to_string();
    assert!(told.contains("move the whole folder away"), "{error}");
}

#[test]
fn components_without_their_database_are_not_swept() {
    let scratch = Scratch::new("moved");
    let store = scratch.open();
    deploy(&store, "a", b"one");
    drop(store);
    let [path, aside] = ["deployments.redb", "aside"].map(|name| scratch.0.join(name));
    std::fs::rename(&path, &aside).expect("ours");
    let error = scratch
        .open_with(Bounds::default())
        .expect_err("it is gone");
    let told = error.to_string();
    assert!(
        told.contains("holds 1 components, but its database deployments.redb is gone"),
        "{told}"
    );
    assert_eq!(scratch.files().len(), 1);
    assert!(!path.exists(), "none is made");
    std::fs::rename(&aside, &path).expect("ours");
    let store = scratch.open();
    assert_eq!(store.read(Digest::of(b"one")).expect("there"), b"one");
    // Without components there is nothing to lose.
    drop(store);
    std::fs::remove_file(&path).expect("ours");
    std::fs::remove_dir_all(scratch.0.join("components")).expect("ours");
    assert_eq!(scratch.open().list().len(), 0);
}

#[test]
fn what_a_kill_leaves_over_is_swept() {
    let scratch = Scratch::new("sweep");
    let store = scratch.open();
    deploy(&store, "a", b"one");
    put(&store, b"never named");
    drop(store);
    let folder = scratch.0.join("components");
    std::fs::write(folder.join("being-written"), b"hal").expect("written");
    std::fs::write(folder.join("README"), b"not ours").expect("written");
    std::fs::write(scratch.0.join("being-made.redb"), b"hal").expect("written");
    let store = scratch.open();
    let expected = format!("{}.wasm", Digest::of(b"one").hex());
    assert_eq!(scratch.files(), [expected, "README".to_owned()]);
    assert_eq!(store.component(Digest::of(b"never named")), None);
}

#[test]
fn a_damaged_component_is_noticed_and_mended() {
    let scratch = Scratch::new("damaged");
    let store = scratch.open();
    deploy(&store, "a", b"one");
    let digest = Digest::of(b"one");
    let file = scratch.0.join(format!("components/{}.wasm", digest.hex()));
    std::fs::write(&file, b"onf").expect("written");
    assert!(matches!(store.read(digest), Err(StoreError::Damaged(_))));
    assert_eq!(store.component(digest), None, "not taken to be there");
    put(&store, b"one");
    assert_eq!(store.read(digest).expect("mended"), b"one");
    // What can't be read now is not taken to be damaged.
    let aside = scratch.0.join("aside");
    std::fs::rename(&file, &aside).expect("ours");
    std::fs::create_dir(&file).expect("ours");
    let error = store.read(digest).expect_err("a folder");
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
    assert_eq!(store.component(digest), Some(3));
    std::fs::remove_dir(&file).expect("ours");
    std::fs::rename(&aside, &file).expect("ours");
    assert_eq!(store.read(digest).expect("whole"), b"one");
    for number in 0..20_u8 {
        put(&store, &[number]);
    }
    assert_eq!(store.read(digest).expect("it is named"), b"one");
}

#[test]
fn what_a_revision_links_stays_as_long_as_it_does() {
    let scratch = Scratch::new("links");
    let store = scratch.open();
    let parts = ["handler", "template", "sampler"];
    let [handler, template, sampler] = parts.map(|part| put(&store, part.as_bytes()));
    let linked = |template: String| {
        let links = serde_json::json!({"templating": template, "sampling": {"x": sampler}});
        let mut manifest = manifest("a", handler);
        manifest.links = serde_json::from_value(links).expect("good");
        manifest
    };
    let error = store.add(linked("template.wasm".to_owned()), true);
    assert!(matches!(error, Err(StoreError::NoDigest(file)) if file == "template.wasm"));
    let gone = Digest::of(b"gone");
    let error = store.add(linked(gone.to_string()), true);
    assert!(matches!(error, Err(StoreError::NoComponent(digest)) if digest == gone));
    let added = store.add(linked(template.to_string()), true);
    added.expect("all parts are there");
    // Whoever deploys something else sweeps what nobody names, and so does the next start.
    deploy(&store, "b", b"other");
    assert_eq!(scratch.files().len(), 4);
    drop(store);
    let store = scratch.open();
    assert_eq!(scratch.files().len(), 4);
    assert_eq!(store.read(sampler).expect("whole"), b"sampler");
    let name: Name = "a".parse().expect("a name");
    store.remove(&name).expect("it is there");
    assert_eq!(scratch.files().len(), 1);
}

#[test]
fn nothing_grows_beyond_its_bounds() {
    let scratch = Scratch::new("bounds");
    let bounds = Bounds {
        component_bytes: 10,
        total_bytes: 25,
        deployments: 2,
        revisions: 3,
        loose: 2,
        grace: Duration::ZERO,
    };
    let store = scratch.open_with(bounds).expect("opens");
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
    assert!(matches!(error, StoreError::OtherDigest { .. }));
    // Of those that nobody names, the oldest goes.
    let loose = [b"a", b"b", b"c"].map(|bytes| put(&store, bytes));
    assert_eq!(
        loose.map(|digest| store.component(digest)),
        [None, Some(1), Some(1)]
    );
    // Revisions: the oldest go, with their files, but never those that get requests.
    for number in 1..=3_u8 {
        assert_eq!(deploy(&store, "a", &[number; 2]), u64::from(number));
    }
    let name: Name = "a".parse().expect("a name");
    store.set_traffic(&name, vec![share(1, 1)]).expect("there");
    for number in 4..=6_u8 {
        let digest = put(&store, &[number; 2]);
        store.add(manifest("a", digest), false).expect("added");
    }
    let kept = store.get(&name).expect("there");
    assert_eq!(Vec::from_iter(kept.revisions.into_keys()), [1, 3, 6]);
    assert_eq!(store.component(Digest::of(&[2; 2])), None);
    assert_eq!(store.component(Digest::of(&[1; 2])), Some(2));
    assert_eq!(scratch.files().len(), 4, "three, and one that nobody names");
    // Deployments, and bytes in all.
    deploy(&store, "b", &[8; 10]);
    let error = store.add(manifest("c", Digest::of(&[8; 10])), true);
    assert!(matches!(error, Err(StoreError::TooMany { limit: 2 })));
    let error = store.put(Digest::of(&[9; 10]), &[9; 10]).expect_err("full");
    assert!(
        matches!(error, StoreError::Full { limit: 25, .. }),
        "{error}"
    );
}

#[test]
fn who_was_told_of_a_component_finds_it_when_it_deploys() {
    let scratch = Scratch::new("grace");
    let bounds = Bounds {
        loose: 2,
        grace: Duration::from_secs(3600),
        ..Bounds::default()
    };
    let store = scratch.open_with(bounds).expect("opens");
    let name: Name = "a".parse().expect("a name");
    let one = Digest::of(b"one");
    deploy(&store, "a", b"one");
    // Whoever asks for it, or uploads it again, relies on it; then the one goes that named it.
    assert_eq!(store.component(one), Some(3));
    store.remove(&name).expect("there");
    assert_eq!(deploy_kept(&store, "b", one), 1);
    assert!(!store.put(one, b"one").expect("there"), "it is there");
    store.remove(&"b".parse().expect("a name")).expect("there");
    assert_eq!(deploy_kept(&store, "c", one), 1);
    // Of more than there is room for, none goes that somebody waits to deploy.
    let two = put(&store, b"two");
    put(&store, b"three");
    let error = store.put(Digest::of(b"four"), b"four").expect_err("two");
    assert!(matches!(error, StoreError::Crowded { limit: 2, wait } if wait > Duration::ZERO));
    deploy_kept(&store, "d", two);
    deploy_kept(&store, "e", Digest::of(b"three"));
    put(&store, b"four");
    // One that was deployed since is left over for now, and makes room first.
    store.remove(&"d".parse().expect("a name")).expect("there");
    assert_eq!(scratch.files().len(), 4);
    put(&store, b"five");
    assert_eq!(store.component(two), None);
    drop(store);
    assert_eq!(scratch.files().len(), 4);
    scratch.open();
    assert_eq!(scratch.files().len(), 2, "only what is named");
}

#[test]
fn what_a_change_holds_is_not_swept() {
    let scratch = Scratch::new("held");
    let bounds = Bounds {
        loose: 1,
        grace: Duration::ZERO,
        ..Bounds::default()
    };
    let store = scratch.open_with(bounds).expect("opens");
    let one = Digest::of(b"one");
    deploy(&store, "a", b"one");
    let held = [store.hold(one), store.hold(one)].map(|held| held.expect("there"));
    store.remove(&"a".parse().expect("a name")).expect("there");
    let error = store.put(Digest::of(b"two"), b"two").expect_err("one");
    assert!(matches!(error, StoreError::Crowded { limit: 1, .. }));
    let [held, other] = held;
    drop(other);
    assert_eq!(deploy_kept(&store, "b", one), 1);
    drop(held);
    store.remove(&"b".parse().expect("a name")).expect("there");
    assert!(matches!(store.hold(one), Err(StoreError::NoComponent(_))));
    assert_eq!(scratch.files().len(), 0);
}

#[test]
fn what_is_not_there_is_named() {
    let scratch = Scratch::new("missing");
    let store = scratch.open();
    let digest = Digest::of(b"x");
    let error = store
        .add(manifest("a", digest), true)
        .expect_err("not uploaded");
    assert!(matches!(error, StoreError::NoComponent(_)), "{error}");
    let mut by_file = manifest("a", digest);
    by_file.component = "a.wasm".to_owned();
    assert!(matches!(
        store.add(by_file, true),
        Err(StoreError::NoDigest(_))
    ));
    deploy(&store, "a", b"x");
    let name: Name = "a".parse().expect("a name");
    for (traffic, expected) in [
        (vec![], "name one at least"),
        (vec![share(7, 1)], "'a' has no revision 7; it has 1"),
        (vec![share(1, 0)], "give from 1 to 10000"),
        (vec![share(1, 1), share(1, 2)], "named twice"),
    ] {
        let error = store.set_traffic(&name, traffic).expect_err("bad");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let other: Name = "b".parse().expect("a name");
    assert!(matches!(
        store.remove(&other),
        Err(StoreError::NoDeployment(_))
    ));
    assert!(matches!(
        store.set_paused(&other, true),
        Err(StoreError::NoDeployment(_))
    ));
    assert!(matches!(
        store.get(&other),
        Err(StoreError::NoDeployment(_))
    ));
}
