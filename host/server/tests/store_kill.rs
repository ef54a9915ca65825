//! Kills a process that writes to a store, at hundreds of moments. Checks that every acknowledged change
//! survives, and that none is applied in part.
//!
//! The test binary is both parent and child, so it has no test harness. The child changes the store in two
//! threads as fast as it can, and prints an [`Event`] before each change and after its acknowledgment. The
//! parent kills the child at a random moment, opens the store, and compares it with the events.

use corral_server::deployments::{
    DeploymentName, DeploymentRecord, Digest, Manifest, Store, StoreError, StoreLimits,
    StoredDeployment, TrafficShare,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KILLS: u64 = 600;
/// Names of the deployments that each thread of the child changes.
const NAMES: [[&str; 2]; 2] = [["a", "b"], ["c", "d"]];
/// Latest revisions that the store always keeps: its limit is 20, and those in traffic, which may be older,
/// count.
const KEPT_REVISIONS: usize = 13;

fn main() {
    let arguments = Vec::from_iter(std::env::args().skip(1));
    match &arguments[..] {
        [role, directory, seed] if role == "child" => {
            run_child(Path::new(directory), seed.parse().expect("a number"));
        }
        _ => run_parent(),
    }
}

/// A component of some kilobytes that depends on its number alone.
fn component(number: u64) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(number);
    let mut bytes = vec![0; random.random_range(1_000..61_000)];
    random.fill_bytes(&mut bytes);
    bytes
}

fn manifest(name: &DeploymentName, digest: Digest, component: u64) -> Manifest {
    let text = format!(
        "name = '{name}'\ncomponent = '{digest}'\nroutes = ['/{name}']\n\
         [configuration]\nCOMPONENT = '{component}'"
    );
    Manifest::from_toml(&text).expect("valid")
}

/// The expected or actual state of a deployment.
#[derive(Clone, Debug, PartialEq)]
struct State {
    record: DeploymentRecord,
    /// The number of each revision's component.
    components: BTreeMap<u64, u64>,
}

/// A change of a deployment.
#[derive(Clone, Debug, Deserialize, Serialize)]
enum Change {
    Add { component: u64, activate: bool },
    SetTraffic(Vec<TrafficShare>),
    SetPaused(bool),
    Remove,
}

/// A line of the child's output.
#[derive(Debug, Deserialize, Serialize)]
enum Event {
    Opened,
    Begin(DeploymentName, Change),
    /// The change of the deployment is acknowledged, with the number of a new revision.
    Acknowledged(DeploymentName, Option<u64>),
}

impl Change {
    fn random(stored: Option<&StoredDeployment>, random: &mut ChaCha8Rng) -> Self {
        let choice = random.random_range(0..20);
        if let Some(stored) = stored {
            let record = &stored.record;
            match choice {
                0 => return Change::Remove,
                1..3 => return Change::SetPaused(!record.paused),
                // A rollback.
                3 if !record.previous_traffic.is_empty() => {
                    return Change::SetTraffic(record.previous_traffic.clone());
                }
                4..7 => {
                    let first = random.random_range(0..stored.revisions.len());
                    let count = random.random_range(1..=3);
                    let revisions = stored.revisions.keys().skip(first).take(count);
                    let traffic = revisions.map(|revision| TrafficShare {
                        revision: *revision,
                        weight: random.random_range(1..10),
                    });
                    return Change::SetTraffic(traffic.collect());
                }
                _ => {}
            }
        }
        Change::Add {
            component: random.random_range(0..300),
            activate: random.random_ratio(3, 4),
        }
    }

    /// Applies the change to the store. Returns the number of a new revision.
    fn apply(&self, store: &Store, name: &DeploymentName) -> Option<u64> {
        match self {
            Change::Add {
                component: number,
                activate,
            } => {
                let bytes = component(*number);
                let digest = Digest::of(&bytes);
                loop {
                    store.put(digest, &bytes).expect("the store has room");
                    match store.add(manifest(name, digest, *number), *activate) {
                        Ok(revision) => return Some(revision.number),
                        // The other thread removed the last revision with this component.
                        Err(StoreError::NoComponent(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            Change::SetTraffic(traffic) => {
                store.set_traffic(name, traffic.clone()).expect("it exists");
            }
            Change::SetPaused(paused) => {
                store.set_paused(name, *paused).expect("it exists");
            }
            Change::Remove => store.remove(name).expect("it exists"),
        }
        None
    }

    /// The state after the change. A new revision has the number `revision`.
    fn expected(&self, before: Option<&State>, revision: u64) -> Option<State> {
        let all = vec![TrafficShare {
            revision,
            weight: 1,
        }];
        let mut state = before.cloned().unwrap_or_else(|| State {
            record: DeploymentRecord {
                latest_revision: revision,
                traffic: all.clone(),
                previous_traffic: Vec::new(),
                paused: false,
            },
            components: BTreeMap::new(),
        });
        let record = &mut state.record;
        let mut set_traffic = |traffic: Vec<TrafficShare>| {
            if record.traffic != traffic {
                record.previous_traffic = std::mem::replace(&mut record.traffic, traffic);
            }
        };
        match self {
            Change::Add {
                component,
                activate,
            } => {
                if *activate {
                    set_traffic(all);
                }
                record.latest_revision = revision;
                state.components.insert(revision, *component);
            }
            Change::SetTraffic(traffic) => set_traffic(traffic.clone()),
            Change::SetPaused(paused) => record.paused = *paused,
            Change::Remove => return None,
        }
        Some(state)
    }
}

impl State {
    /// The state in the store. Checks the bytes of the components.
    fn read(store: &Store, name: &DeploymentName, stored: &StoredDeployment) -> Self {
        let mut components = BTreeMap::new();
        for (number, revision) in &stored.revisions {
            assert_eq!(*number, revision.number);
            assert_eq!(revision.manifest.name, *name);
            assert_eq!(revision.manifest.component, revision.component.to_string());
            let expected = &revision.manifest.configuration["COMPONENT"];
            let expected = expected.parse().expect("a number");
            let bytes = store.read(revision.component).expect("a complete file");
            assert!(bytes == component(expected), "other bytes: {revision:?}");
            components.insert(*number, expected);
        }
        State {
            record: stored.record.clone(),
            components,
        }
    }

    /// Whether the store's state equals the expected one, except for old revisions that it may drop.
    fn matches(actual: Option<&Self>, expected: Option<&Self>) -> bool {
        let (actual, expected) = match (actual, expected) {
            (Some(actual), Some(expected)) => (actual, expected),
            (actual, expected) => return actual.is_none() && expected.is_none(),
        };
        let record = &expected.record;
        let traffic = record.traffic.iter().chain(&record.previous_traffic);
        let mut kept: BTreeSet<_> = traffic.map(|share| share.revision).collect();
        kept.extend(expected.components.keys().rev().take(KEPT_REVISIONS));
        let mut components = actual.components.iter();
        actual.record == expected.record
            && kept
                .iter()
                .all(|number| actual.components.contains_key(number))
            && components
                .all(|(number, component)| expected.components.get(number) == Some(component))
    }
}

/// Changes the store until killed.
fn run_child(directory: &Path, seed: u64) {
    let store = Store::open(directory, StoreLimits::default()).expect("opens");
    let print = |event: Event| {
        let line = serde_json::to_string(&event).expect("serializable") + "\n";
        let mut stdout = std::io::stdout().lock();
        // One write, so that the lines of two threads do not mix.
        stdout.write_all(line.as_bytes()).expect("the parent reads");
        stdout.flush().expect("the parent reads");
    };
    print(Event::Opened);
    std::thread::scope(|scope| {
        for (thread, names) in (0..).zip(NAMES) {
            let (store, print) = (&store, &print);
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(thread);
            scope.spawn(move || {
                loop {
                    let name = names[random.random_range(0..names.len())];
                    let name: DeploymentName = name.parse().expect("a name");
                    let change = Change::random(store.get(&name).ok().as_ref(), &mut random);
                    print(Event::Begin(name.clone(), change.clone()));
                    let number = change.apply(store, &name);
                    print(Event::Acknowledged(name, number));
                }
            });
        }
    });
}

/// What the parent knows about a deployment.
#[derive(Default)]
struct Observed {
    acknowledged: Option<State>,
    in_progress: Option<Change>,
    /// The highest revision number that was acknowledged, removed deployments included.
    latest_revision: u64,
}

fn run_parent() {
    let began = Instant::now();
    let seed = match std::env::var("CORRAL_SEED") {
        Ok(seed) => seed.parse().expect("CORRAL_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("store_kill: to repeat this run, set CORRAL_SEED={seed}");
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let mut deployments: BTreeMap<DeploymentName, Observed> = NAMES
        .concat()
        .iter()
        .map(|name| (name.parse().expect("a name"), Observed::default()))
        .collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut acknowledged, mut interrupted, mut applied) = (0, 0, 0);
    for kill in 0..KILLS {
        for event in run_and_kill(directory, &mut random, kill) {
            match event {
                Event::Opened => {}
                Event::Begin(name, change) => {
                    let observed = deployments.get_mut(&name).expect("a known name");
                    observed.in_progress = Some(change);
                }
                Event::Acknowledged(name, number) => {
                    let observed = deployments.get_mut(&name).expect("a known name");
                    let change = observed.in_progress.take().expect("it began");
                    if let Some(number) = number {
                        assert!(
                            number > observed.latest_revision,
                            "{name} reuses revision {number} after kill {kill}"
                        );
                        observed.latest_revision = number;
                    }
                    let before = observed.acknowledged.as_ref();
                    observed.acknowledged = change.expected(before, number.unwrap_or(0));
                    acknowledged += 1;
                }
            }
        }
        let store = Store::open(directory, StoreLimits::default()).expect("opens after a kill");
        let stored = store.list();
        check_files(directory, &stored);
        for (name, observed) in &mut deployments {
            let stored = stored.get(name);
            let actual = stored.map(|stored| State::read(&store, name, stored));
            // A change that was in progress at the kill is applied completely or not at all.
            let alternative = observed.in_progress.take().map(|change| {
                interrupted += 1;
                let latest = actual.as_ref().map(|state| state.record.latest_revision);
                change.expected(observed.acknowledged.as_ref(), latest.unwrap_or(0))
            });
            if !State::matches(actual.as_ref(), observed.acknowledged.as_ref()) {
                applied += 1;
                assert!(
                    matches!(&alternative, Some(state) if State::matches(actual.as_ref(), state.as_ref())),
                    "{name} after kill {kill}: the store has {actual:#?}, acknowledged is {:#?}, in progress \
                     was {alternative:#?}",
                    observed.acknowledged
                );
            }
            observed.acknowledged = actual;
        }
        assert!(
            stored.keys().all(|name| deployments.contains_key(name)),
            "unknown deployments: {stored:?}"
        );
    }
    println!(
        "store_kill: {KILLS} kills in {:.0} s: {acknowledged} changes acknowledged, none lost; {interrupted} \
         interrupted, {applied} of them applied, none in part",
        began.elapsed().as_secs_f64()
    );
    assert!(acknowledged > KILLS / 2, "the child makes progress");
    assert!(interrupted > KILLS / 4, "kills interrupt changes");
}

/// Starts a child, kills it after a random time, and returns its events.
fn run_and_kill(directory: &Path, random: &mut ChaCha8Rng, kill: u64) -> Vec<Event> {
    let program: PathBuf = std::env::current_exe().expect("the path of this test");
    let mut child = Command::new(program)
        .arg("child")
        .arg(directory)
        .arg(random.next_u64().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).split(b'\n');
    let mut read = || lines.next().map(|line| line.expect("a pipe"));
    let mut events = Vec::new();
    // Every fifth child may be killed while it opens the store. The others make some changes first, however
    // slow the machine is.
    if !kill.is_multiple_of(5) {
        for _ in 0..=random.random_range(0..10) {
            events.push(read().expect("the child runs"));
        }
    }
    std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
    child.kill().expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), None, "it ended by the kill");
    events.extend(std::iter::from_fn(read));
    // The kill may cut off the last line, whose change is then not acknowledged.
    let last = events.len().saturating_sub(1);
    let parsed = events.iter().enumerate();
    let parsed = parsed.map(|(at, line)| (at, serde_json::from_slice(line)));
    parsed
        .filter(|(at, event)| event.is_ok() || *at < last)
        .map(|(_, event)| event.expect("an event"))
        .collect()
}

/// Checks that there is one file for each referenced component, and no other.
fn check_files(directory: &Path, stored: &BTreeMap<DeploymentName, StoredDeployment>) {
    let revisions = stored.values().flat_map(|stored| stored.revisions.values());
    let referenced: BTreeSet<_> = revisions.map(|revision| revision.component).collect();
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(directory.join("components")).expect("exists") {
        let file = entry.expect("readable").file_name();
        let file = file.to_string_lossy().into_owned();
        let hex = file.strip_suffix(".wasm").expect("no partial file");
        files.insert(Digest::from_hex(hex).expect("a digest"));
    }
    assert_eq!(files, referenced);
}
