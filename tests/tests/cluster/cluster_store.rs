//! What every store of deployments promises: the embedded one, and that of a cluster in NATS JetStream.

use corral_server::deployments::{
    ClusterConfig, DeploymentName, DeploymentStore, Digest, Entry, JetStreamStore, Manifest,
    NewRevision, Store, StoreError, StoreLimits, TrafficShare,
};
use corral_tests::{Nats, block_on, scratch_dir};
use std::sync::Arc;
use std::time::Duration;

/// Revisions that a deployment keeps in this test.
const MAX_REVISIONS: usize = 4;
const RACERS: usize = 8;

fn name(text: &str) -> DeploymentName {
    text.parse().expect("a name")
}

fn revision(name: &str, component: &[u8]) -> NewRevision {
    let digest = Digest::of(component);
    let text = format!("name = '{name}'\ncomponent = '{digest}'\nroutes = ['/{name}']");
    NewRevision {
        component: digest,
        component_bytes: component.len() as u64,
        source: None,
        manifest: Manifest::from_toml(&text).expect("valid"),
    }
}

/// Deploys a component as the newest revision, from what the store has now.
async fn deploy(store: &dyn DeploymentStore, deployment: &str, component: &[u8]) -> Entry {
    let deployment = name(deployment);
    let mut entry = store.entry(&deployment).await.expect("readable");
    let expected = entry.version;
    entry.deploy(
        revision(deployment.as_str(), component),
        true,
        MAX_REVISIONS,
    );
    let version = store.compare_and_set(&deployment, expected, &entry).await;
    entry.version = version.expect("nobody else changes it");
    entry
}

/// What is stored, without what embedded stores do not keep.
async fn stored(store: &dyn DeploymentStore, deployment: &str) -> Entry {
    let entry = store.entry(&name(deployment)).await.expect("readable");
    Entry {
        first_revision: 0,
        ..entry
    }
}

fn without_first(entry: &Entry) -> Entry {
    Entry {
        first_revision: 0,
        ..entry.clone()
    }
}

async fn check_components(store: &dyn DeploymentStore) {
    let large = vec![7; 300_000];
    for bytes in [&b"one"[..], &large] {
        let digest = Digest::of(bytes);
        for _ in 0..2 {
            let put = store.put_component(digest, bytes.to_vec().into());
            put.await.expect("there is room");
        }
        let read = store.read_component(digest).await.expect("it is there");
        assert_eq!(read, bytes);
    }
    let wrong = store.put_component(Digest::of(b"two"), b"three".to_vec().into());
    let error = wrong.await.expect_err("another digest");
    assert!(
        matches!(error, StoreError::DigestMismatch { .. }),
        "{error}"
    );
    let missing = store.read_component(Digest::of(b"none")).await;
    missing.expect_err("it was never stored");
}

async fn check_changes(store: &dyn DeploymentStore) {
    let a = name("a");
    assert_eq!(stored(store, "a").await, Entry::default());
    let first = deploy(store, "a", b"one").await;
    assert!(first.version > 0);
    assert_eq!(stored(store, "a").await, without_first(&first));
    deploy(store, "b", b"one").await;
    assert_eq!(
        stored(store, "a").await,
        without_first(&first),
        "another name"
    );
    let second = deploy(store, "a", b"one").await;
    assert!(second.version > first.version);

    let mut split = second.clone();
    let shares = [(1, 90), (2, 10)].map(|(revision, weight)| TrafficShare { revision, weight });
    split.set_traffic(&a, shares.to_vec()).expect("both exist");
    split.set_paused(&a, true).expect("it exists");
    let overtaken = store.compare_and_set(&a, first.version, &split).await;
    let error = overtaken.expect_err("another change came first");
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("is now at revision 2, traffic 2=1"),
        "{error}"
    );
    assert_eq!(stored(store, "a").await, without_first(&second));
    let version = store.compare_and_set(&a, second.version, &split).await;
    split.version = version.expect("the newest");
    assert_eq!(stored(store, "a").await, without_first(&split));

    for _ in 0..6 {
        deploy(store, "a", b"one").await;
    }
    let many = stored(store, "a").await;
    let kept = many.deployment.expect("it exists").revisions;
    assert_eq!(Vec::from_iter(kept.into_keys()), [5, 6, 7, 8]);
}

async fn check_removal(store: &dyn DeploymentStore) {
    let c = name("c");
    let deployed = deploy(store, "c", b"one").await;
    let mut removed = deployed.clone();
    removed.remove(&c).expect("it exists");
    let version = store.compare_and_set(&c, deployed.version, &removed).await;
    removed.version = version.expect("the newest");
    assert_eq!(stored(store, "c").await, without_first(&removed));
    let late = store.compare_and_set(&c, deployed.version, &deployed).await;
    let error = late.expect_err("it was removed");
    assert!(error.to_string().contains("does not exist now"), "{error}");
    let again = deploy(store, "c", b"one").await;
    assert_eq!(again.latest_revision, 2, "numbers are not reused");
    let revisions = again.deployment.expect("it exists").revisions;
    assert_eq!(Vec::from_iter(revisions.into_keys()), [2]);
    let mut names = store.names().await.expect("readable");
    names.sort();
    assert_eq!(names, ["a", "b", "c"].map(name));
}

/// Components that no revision references are removed, but not soon after their upload.
async fn check_cleanup(store: &JetStreamStore) {
    let (used, unused) = (Digest::of(b"one"), Digest::of(b"unused"));
    let put = store.put_component(unused, b"unused".to_vec().into());
    put.await.expect("there is room");
    let hour = Duration::from_secs(3600);
    assert_eq!(store.remove_unused(hour).await.expect("it answers"), 0);
    // The large one of the test of components, and this one.
    let removed = store.remove_unused(Duration::ZERO).await;
    assert_eq!(removed.expect("it answers"), 2);
    store.read_component(unused).await.expect_err("removed");
    store.read_component(used).await.expect("referenced");
}

/// Of changes that start from the same state, one is made.
async fn check_races(store: Arc<dyn DeploymentStore>) {
    for (start, deployment) in [(0, "race"), (1, "race")] {
        let deployment = name(deployment);
        let base = store.entry(&deployment).await.expect("readable");
        assert_eq!(base.latest_revision, start);
        let racers = (0..RACERS).map(|_| {
            let (store, deployment, base) = (store.clone(), deployment.clone(), base.clone());
            tokio::spawn(async move {
                let mut entry = base.clone();
                entry.deploy(revision("race", b"one"), true, MAX_REVISIONS);
                store
                    .compare_and_set(&deployment, base.version, &entry)
                    .await
            })
        });
        let mut won = 0;
        for racer in Vec::from_iter(racers) {
            match racer.await.expect("no panic") {
                Ok(_) => won += 1,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(won, 1);
    }
}

async fn check_store(store: Arc<dyn DeploymentStore>) {
    check_components(&*store).await;
    check_changes(&*store).await;
    check_removal(&*store).await;
    check_races(store).await;
}

#[test]
fn embedded_store_conforms() {
    let dir = scratch_dir();
    let store = Store::open(&dir.join("store"), StoreLimits::default()).expect("opens");
    block_on(check_store(Arc::new(Arc::new(store))));
}

#[test]
fn jetstream_store_conforms() {
    let nats = Nats::start();
    let config = ClusterConfig {
        servers: nats.url().parse().expect("an address"),
        credentials: None,
        tls: None,
        require_tls: false,
    };
    block_on(async {
        let store = JetStreamStore::connect(config, 1 << 20).await;
        let store = store.expect("valid");
        let early = store.entry(&name("a")).await;
        early.expect_err("no connection, or no buckets yet");
        store.connected().await;
        store.open().await.expect("it has JetStream");
        let store = Arc::new(store);
        check_store(store.clone()).await;
        check_cleanup(&store).await;
    });
}
