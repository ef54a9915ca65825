//! Kills the server at random moments while clients deploy, split, roll back, pause and remove. After each restart
//! every acknowledged change is there and serves, an unacknowledged one is there completely or not at all.

use corral_tests::deployments::{digest, manifest, variant};
use corral_tests::{Corral, Response, TIMEOUT, artifacts, scratch_dir, seed};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KILLS: u64 = 250;

/// One client each, so as many changes run concurrently.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Reused components, which are compiled already.
const COMPONENTS: u64 = 4;
/// Revisions that are certainly expected. The server keeps 20, including older ones in use.
const KEPT: u64 = 13;

/// The expected state of a deployment.
#[derive(Clone, Debug, Default, PartialEq)]
struct DeploymentState {
    latest: u64,
    /// Revisions and their weights.
    traffic: Vec<(u64, u64)>,
    before: Vec<(u64, u64)>,
    paused: bool,
    revisions: BTreeMap<u64, Revision>,
}

#[derive(Clone, Debug, PartialEq)]
struct Revision {
    component: String,
    version: u64,
}

/// One change.
#[derive(Clone, Debug)]
enum Change {
    Deploy { revision: Revision, activate: bool },
    Share(Vec<(u64, u64)>),
    RollBack,
    Pause(bool),
    Remove,
}

impl Change {
    /// The deployment after this change; a new revision gets `number`.
    fn of(&self, expected: Option<&DeploymentState>, number: u64) -> Option<DeploymentState> {
        let mut expected = expected.cloned().unwrap_or_default();
        let share = |expected: &mut DeploymentState, traffic: Vec<(u64, u64)>| {
            if expected.traffic != traffic {
                expected.before = std::mem::replace(&mut expected.traffic, traffic);
            }
        };
        match self {
            Change::Deploy { revision, activate } => {
                expected.latest = number;
                expected.revisions.insert(number, revision.clone());
                // The first revision always gets the traffic.
                if expected.traffic.is_empty() {
                    expected.traffic = vec![(number, 1)];
                } else if *activate {
                    share(&mut expected, vec![(number, 1)]);
                }
            }
            Change::Share(traffic) => share(&mut expected, traffic.clone()),
            Change::RollBack => {
                let before = expected.before.clone();
                share(&mut expected, before);
            }
            Change::Pause(paused) => expected.paused = *paused,
            Change::Remove => return None,
        }
        Some(expected)
    }
}

/// A deployment as the server shows it, without the target of a rollback.
fn shown_state(corral: &Corral, name: &str) -> Option<DeploymentState> {
    let answer = corral.request_admin("GET", &format!("/deployments/{name}"), "");
    if answer.status == 404 {
        answer.problem(404, "no-deployment");
        return None;
    }
    let shown = answer.ok_json();
    let number = |value: &Value| value.as_u64().expect("a number");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let deployment = &shown["deployment"];
    assert_ne!(deployment["state"], "failed", "{shown}");
    let traffic = deployment["traffic"].as_array().expect("a list").iter();
    let revisions = shown["revisions"].as_array().expect("a list").iter();
    Some(DeploymentState {
        latest: number(&deployment["latest_revision"]),
        traffic: traffic
            .map(|part| (number(&part["revision"]), number(&part["weight"])))
            .collect(),
        before: Vec::new(),
        paused: deployment["state"] == "paused",
        revisions: revisions
            .map(|revision| {
                let version = text(&revision["manifest"]["configuration"]["VERSION"]);
                assert_eq!(revision["component"], revision["manifest"]["component"]);
                let of = Revision {
                    component: text(&revision["component"]),
                    version: version.parse().expect("a number"),
                };
                (number(&revision["number"]), of)
            })
            .collect(),
    })
}

/// Whether `shown` matches the expected state.
fn matches(shown: Option<&DeploymentState>, expected: Option<&DeploymentState>) -> bool {
    let (shown, expected) = match (shown, expected) {
        (Some(shown), Some(expected)) => (shown, expected),
        (shown, expected) => return shown.is_none() && expected.is_none(),
    };
    let used = expected.traffic.iter().chain(&expected.before);
    let mut needed: BTreeSet<_> = used.map(|(revision, _)| *revision).collect();
    let newest = expected.latest.saturating_sub(KEPT)..=expected.latest;
    needed.extend(newest.filter(|number| expected.revisions.contains_key(number)));
    (shown.latest, &shown.traffic, shown.paused)
        == (expected.latest, &expected.traffic, expected.paused)
        && needed
            .iter()
            .all(|number| shown.revisions.contains_key(number))
        && shown
            .revisions
            .iter()
            .all(|(number, is)| expected.revisions.get(number) == Some(is))
}

/// A client that makes one change after another to one deployment.
struct Connection {
    name: &'static str,
    random: ChaCha8Rng,
    /// The acknowledged state.
    expected: Option<DeploymentState>,
    /// The change in flight.
    in_flight: Option<Change>,
    /// The highest number of a revision that was acknowledged, removed deployments included.
    latest_revision: u64,
    versions: u64,
}

/// The server was killed.
struct ServerKilled;

impl Connection {
    /// Makes changes until the server is killed.
    fn change(&mut self, corral: &Corral, component: &[u8], acknowledged: &AtomicU64) {
        while self.change_once(corral, component).is_ok() {
            acknowledged.fetch_add(1, Ordering::Release);
        }
    }

    fn change_once(&mut self, corral: &Corral, component: &[u8]) -> Result<(), ServerKilled> {
        let (change, bytes) = self.next(component);
        self.in_flight = Some(change.clone());
        let path = |rest: &str| format!("/deployments/{}{rest}", self.name);
        let shares = |traffic: &[(u64, u64)]| {
            let share =
                |(revision, weight): &(u64, u64)| json!({"revision": revision, "weight": weight});
            json!({"traffic": traffic.iter().map(share).collect::<Vec<_>>()})
        };
        let (method, path, body) = match &change {
            Change::Deploy { revision, activate } => {
                let configuration = json!({"VERSION": revision.version.to_string()});
                let more = json!({ "configuration": configuration });
                let manifest = manifest(self.name, &revision.component, more);
                ("POST", path(&format!("?traffic={activate}")), manifest)
            }
            Change::Share(traffic) => ("PUT", path("/traffic"), shares(traffic)),
            Change::RollBack => ("POST", path("/rollback"), json!({"revision": null})),
            Change::Pause(paused) => ("PUT", path("/paused"), json!({ "paused": paused })),
            Change::Remove => ("DELETE", path(""), json!(null)),
        };
        let answer = loop {
            if let Change::Deploy { revision, .. } = &change {
                upload(corral, &revision.component, &bytes)?;
            }
            let answer = corral.try_request_admin(method, &path, body.to_string().as_bytes());
            let answer = answer.map_err(|_| ServerKilled)?;
            // Another client's removal may have dropped the component.
            if answer.status != 404 || answer.json()["code"] != "no-component" {
                break answer;
            }
        };
        assert!(matches!(answer.status, 200 | 201), "{change:?}: {answer:?}");
        let number = answer.json()["revision"]["number"].as_u64();
        if let (Change::Deploy { .. }, Some(number)) = (&change, number) {
            assert!(number > self.latest_revision, "revision {number} is reused");
            self.latest_revision = number;
        }
        self.expected = change.of(self.expected.as_ref(), number.unwrap_or(0));
        self.in_flight = None;
        Ok(())
    }

    /// Draws the next change and a component to deploy.
    fn next(&mut self, component: &[u8]) -> (Change, Vec<u8>) {
        let random = &mut self.random;
        let chance = random.random_range(0..20);
        if let Some(expected) = &self.expected {
            let numbers =
                Vec::from_iter(expected.revisions.keys().rev().take(KEPT as usize).copied());
            let change = match chance {
                0 => Some(Change::Remove),
                1..3 => Some(Change::Pause(!expected.paused)),
                3..5 if !expected.before.is_empty() => Some(Change::RollBack),
                5..8 => {
                    let first = random.random_range(0..numbers.len() as u64);
                    let chosen = numbers.iter().skip(first as usize);
                    let chosen = chosen.take(1 + random.random_range(0..3) as usize);
                    let chosen = Vec::from_iter(chosen.copied());
                    let shares = chosen
                        .iter()
                        .map(|number| (*number, 1 + random.random_range(0..9)));
                    Some(Change::Share(shares.collect()))
                }
                _ => None,
            };
            if let Some(change) = change {
                return (change, Vec::new());
            }
        }
        // Sometimes a component that was never compiled.
        let number = match random.random_range(0..60) {
            0 => (1 << 40) + random.random_range(0..1 << 30),
            other => other % COMPONENTS,
        };
        let bytes = variant(component, number);
        self.versions += 1;
        let revision = Revision {
            component: digest(&bytes),
            version: self.versions,
        };
        let activate = random.random_range(0..4) > 0;
        (Change::Deploy { revision, activate }, bytes)
    }

    /// Compares the restarted server with the acknowledged state. The change in flight may or may not have happened.
    fn check(&mut self, corral: &Corral) {
        let shown = shown_state(corral, self.name);
        let number = shown.as_ref().map_or(0, |shown| shown.latest);
        let made = self.in_flight.take().map(|change| {
            let made = change.of(self.expected.as_ref(), number);
            (change, made)
        });
        match made {
            _ if matches(shown.as_ref(), self.expected.as_ref()) => {}
            Some((_, made)) if matches(shown.as_ref(), made.as_ref()) => self.expected = made,
            made => panic!(
                "{}: there is {shown:#?}, acknowledged was {:#?}, in flight {made:#?}",
                self.name, self.expected
            ),
        }
        // The server drops old revisions.
        if let (Some(expected), Some(shown)) = (&mut self.expected, shown) {
            expected.revisions = shown.revisions;
        }
        self.check_serving(corral);
    }

    fn check_serving(&self, corral: &Corral) {
        let ask = || corral.get(&format!("/{}/env", self.name));
        let Some(expected) = &self.expected else {
            ask().problem(404, "no-route");
            return;
        };
        if expected.paused {
            ask().problem(503, "paused");
            return;
        }
        let parts = expected.traffic.iter();
        let bodies: BTreeSet<_> = parts
            .map(|(number, _)| format!("VERSION={}\n", expected.revisions[number].version))
            .collect();
        for _ in 0..=bodies.len() {
            let answer = ask();
            assert_eq!(answer.status, 200, "{answer:?}");
            assert!(bodies.contains(&answer.body), "{answer:?}, not {bodies:?}");
        }
    }
}

/// Uploads a component once fewer uploads are running.
fn upload(corral: &Corral, digest: &str, bytes: &[u8]) -> Result<(), ServerKilled> {
    let path = format!("/components/{digest}");
    loop {
        let Response { status, body, .. } = corral
            .try_request_admin("PUT", &path, bytes)
            .map_err(|_| ServerKilled)?;
        match status {
            200 | 201 => return Ok(()),
            503 => std::thread::sleep(Duration::from_millis(1)),
            _ => panic!("{status}: {body}"),
        }
    }
}

/// Asserts that the directory holds exactly the components that revisions name, each complete.
fn check_files(store: &Path, clients: &[Connection]) {
    let expected = clients.iter().flat_map(|client| &client.expected);
    let named: BTreeSet<_> = expected
        .flat_map(|expected| expected.revisions.values())
        .map(|revision| revision.component.clone())
        .collect();
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(store.join("components")).expect("readable") {
        let path = entry.expect("readable").path();
        let found = digest(&std::fs::read(&path).expect("readable"));
        let name = path.file_stem().expect("a file").to_string_lossy();
        assert_eq!(
            format!("sha256:{name}"),
            found,
            "an incomplete file is left"
        );
        files.insert(found);
    }
    assert_eq!(files, named);
}

#[test]
fn acknowledged_changes_survive_kill() {
    let dir = scratch_dir();

    let component = artifacts::component("misbehave");
    let seed = seed();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut clients = NAMES.map(|name| Connection {
        name,
        random: ChaCha8Rng::from_rng(&mut random),
        expected: None,
        in_flight: None,
        latest_revision: 0,
        versions: 0,
    });
    let acknowledged = AtomicU64::new(0);
    let mut caught = 0;
    for kill in 0..=KILLS {
        let corral = Corral::start_bare(&dir);
        for client in &mut clients {
            caught += u64::from(client.in_flight.is_some());
            client.check(&corral);
        }
        check_files(&dir, &clients);
        if kill == KILLS {
            break;
        }
        // Kill after so many changes plus a moment spread over the duration of one.
        let enough = acknowledged.load(Ordering::Acquire) + random.random_range(0..6);
        let moment = Duration::from_micros(random.random_range(0..20_000));
        std::thread::scope(|scope| {
            let changing = clients.each_mut().map(|client| {
                let (corral, component, acknowledged) = (&corral, &component, &acknowledged);
                scope.spawn(move || client.change(corral, component, acknowledged))
            });
            let waiting = Instant::now();
            let failed = || changing.iter().any(|client| client.is_finished());
            while acknowledged.load(Ordering::Acquire) < enough && !failed() {
                assert!(waiting.elapsed() < TIMEOUT, "nothing is acknowledged");
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(moment);
            corral.signal("KILL");
        });
    }
    let least = KILLS / 4;
    assert!(caught >= least, "only {caught} kills interrupted a change");
}
