//! kill -9 at hundreds of moments while a store is written to: what was acknowledged is there, and
//! nothing is half made.
//!
//! A test binary without the usual harness, since it is parent and child: the child changes the store as
//! fast as it can, with two threads, and says before each change what it is about to do, and after it
//! that it was acknowledged; the parent kills it at a random moment, opens the store itself, and
//! compares.

use corral_server::deployments::{
    DeploymentName, DeploymentRecord, Digest, Manifest, Store, StoreError, StoreLimits,
    StoredDeployment, TrafficShare,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KILLS: u64 = 600;
/// Those of each of the child's threads.
const NAMES: [&[&str]; 2] = [&["a", "b"], &["c", "d"]];
/// Revisions that are certainly kept: the store keeps 20, among them those in use, which may be older.
const KEPT: usize = 13;

fn main() {
    let arguments = Vec::from_iter(std::env::args().skip(1));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child", dir, seed] => child(Path::new(dir), seed.parse().expect("a number")),
        _ => parent(),
    }
}

/// xorshift64*: the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A component of some kilobytes, to be had again from its number.
fn component(number: u64) -> Vec<u8> {
    let mut random = Random(number | 1 << 40);
    let length = 1000 + random.below(60_000);
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn manifest(name: &str, digest: Digest, note: u64) -> Manifest {
    let text = format!(
        "name = '{name}'\ncomponent = '{digest}'\nroutes = ['/{name}']\n\
         [configuration]\nNOTE = '{note}'"
    );
    Manifest::from_toml(&text).expect("good")
}

/// A deployment as it has to be: its record, and the component of each revision by its number.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    record: DeploymentRecord,
    notes: BTreeMap<u64, u64>,
}

/// One change, as a line says it.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Add { note: u64, activate: bool },
    Share(Vec<TrafficShare>),
    Pause(bool),
    Remove,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Add { note, activate } => write!(f, "add {note} {activate}"),
            Change::Share(traffic) => {
                write!(f, "share")?;
                let mut shares = traffic.iter();
                shares.try_for_each(|share| write!(f, " {} {}", share.revision, share.weight))
            }
            Change::Pause(paused) => write!(f, "pause {paused}"),
            Change::Remove => write!(f, "remove"),
        }
    }
}

impl FromStr for Change {
    type Err = std::convert::Infallible;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        Ok(match words[..] {
            ["add", note, activate] => Change::Add {
                note: number(note),
                activate: activate == "true",
            },
            ["share", ref shares @ ..] => {
                let shares = shares.chunks_exact(2).map(|share| TrafficShare {
                    revision: number(share[0]),
                    weight: number(share[1]) as u32,
                });
                Change::Share(shares.collect())
            }
            ["pause", paused] => Change::Pause(paused == "true"),
            ["remove"] => Change::Remove,
            _ => panic!("the child said {line:?}"),
        })
    }
}

impl Change {
    /// What to do with a deployment of which this is kept.
    fn choose(kept: Option<&StoredDeployment>, random: &mut Random) -> Self {
        let chance = random.below(20);
        if let Some(kept) = kept {
            let record = &kept.record;
            match chance {
                0 => return Change::Remove,
                1..3 => return Change::Pause(!record.paused),
                // A roll back.
                3 if !record.previous_traffic.is_empty() => {
                    return Change::Share(record.previous_traffic.clone());
                }
                4..7 => {
                    let first = random.below(kept.revisions.len() as u64) as usize;
                    let many = 1 + random.below(3) as usize;
                    let numbers = kept.revisions.keys().skip(first).take(many);
                    let shares = numbers.map(|number| TrafficShare {
                        revision: *number,
                        weight: 1 + random.below(9) as u32,
                    });
                    return Change::Share(shares.collect());
                }
                _ => {}
            }
        }
        Change::Add {
            note: random.below(300),
            activate: random.below(4) > 0,
        }
    }

    /// Does it; returns the number of a new revision, or 0.
    fn make(&self, store: &Store, name: &DeploymentName) -> u64 {
        match self {
            Change::Add { note, activate } => {
                let bytes = component(*note);
                let digest = Digest::of(&bytes);
                loop {
                    store.put(digest, &bytes).expect("there is room");
                    match store.add(manifest(name.as_str(), digest, *note), *activate) {
                        Ok(revision) => return revision.number,
                        // The other thread removed the last revision that named it.
                        Err(StoreError::NoComponent(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            Change::Share(traffic) => drop(store.set_traffic(name, traffic.clone()).expect("kept")),
            Change::Pause(paused) => drop(store.set_paused(name, *paused).expect("kept")),
            Change::Remove => store.remove(name).expect("kept"),
        }
        0
    }

    /// What becomes of a deployment by it; a new revision gets this number.
    fn of(&self, known: Option<&Known>, number: u64) -> Option<Known> {
        let all = || {
            vec![TrafficShare {
                revision: number,
                weight: 1,
            }]
        };
        let mut known = known.cloned().unwrap_or_else(|| Known {
            record: DeploymentRecord {
                latest_revision: number,
                traffic: all(),
                previous_traffic: Vec::new(),
                paused: false,
            },
            notes: BTreeMap::new(),
        });
        let record = &mut known.record;
        let mut share = |traffic: Vec<TrafficShare>| {
            if record.traffic != traffic {
                record.previous_traffic = std::mem::replace(&mut record.traffic, traffic);
            }
        };
        match self {
            Change::Add { note, activate } => {
                if *activate {
                    share(all());
                }
                record.latest_revision = number;
                known.notes.insert(number, *note);
            }
            Change::Share(traffic) => share(traffic.clone()),
            Change::Pause(paused) => record.paused = *paused,
            Change::Remove => return None,
        }
        Some(known)
    }
}

impl Known {
    /// What is kept, with the components' bytes checked.
    fn read(store: &Store, name: &DeploymentName, kept: &StoredDeployment) -> Self {
        let mut notes = BTreeMap::new();
        for (number, revision) in &kept.revisions {
            assert_eq!(*number, revision.number);
            assert_eq!(revision.manifest.name, *name);
            assert_eq!(revision.manifest.component, revision.component.to_string());
            let note = &revision.manifest.configuration["NOTE"];
            let note = note.parse().expect("ours");
            // Complete, with the digest that the manifest names.
            let bytes = store.read(revision.component).expect("its file is whole");
            assert!(bytes == component(note), "another component: {revision:?}");
            notes.insert(*number, note);
        }
        Known {
            record: kept.record.clone(),
            notes,
        }
    }

    /// Whether what was `read` is what has to be there. The store drops old revisions.
    fn is(read: Option<&Self>, known: Option<&Self>) -> bool {
        let (read, known) = match (read, known) {
            (Some(read), Some(known)) => (read, known),
            (read, known) => return read.is_none() && known.is_none(),
        };
        let used = known
            .record
            .traffic
            .iter()
            .chain(&known.record.previous_traffic);
        let mut needed: BTreeSet<_> = used.map(|share| share.revision).collect();
        needed.extend(known.notes.keys().rev().take(KEPT));
        read.record == known.record
            && needed.iter().all(|number| read.notes.contains_key(number))
            && read
                .notes
                .iter()
                .all(|(number, note)| known.notes.get(number) == Some(note))
    }
}

/// Changes the store until killed, and prints each acknowledged change.
fn child(dir: &Path, seed: u64) {
    let store = Store::open(dir, StoreLimits::default()).expect("the store opens");
    let say = |line: String| {
        let mut stdout = std::io::stdout().lock();
        // In one piece, so that the lines of two threads stay apart.
        stdout.write_all(line.as_bytes()).expect("the parent reads");
        stdout.flush().expect("the parent reads");
    };
    say("open\n".to_owned());
    std::thread::scope(|scope| {
        for (turn, names) in (1..).zip(NAMES) {
            let (store, say) = (&store, &say);
            let mut random = Random(seed.wrapping_mul(2 * turn + 1));
            scope.spawn(move || {
                loop {
                    let name = names[random.below(names.len() as u64) as usize];
                    let known: DeploymentName = name.parse().expect("a name");
                    let change = Change::choose(store.get(&known).ok().as_ref(), &mut random);
                    say(format!("{name} {change}\n"));
                    let number = change.make(store, &known);
                    say(format!("{name} done {number}\n"));
                }
            });
        }
    });
}

/// A deployment in the eyes of the parent.
#[derive(Default)]
struct WatchedStream {
    known: Option<Known>,
    under_way: Option<Change>,
    /// The highest number that was ever acknowledged, also before it was removed.
    highest: u64,
}

fn parent() {
    let began = Instant::now();
    let seed = match std::env::var("CORRAL_SEED") {
        Ok(seed) => seed.parse().expect("CORRAL_SEED is a number"),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("later than 1970")
            .as_micros() as u64,
    };
    println!("store_kill: the seed; to try the same again: CORRAL_SEED={seed}");
    let dir = std::env::temp_dir().join(format!("corral-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let names = NAMES.concat();
    let mut watched: BTreeMap<_, _> = names
        .iter()
        .map(|name| ((*name).to_owned(), WatchedStream::default()))
        .collect();
    let mut random = Random(seed | 1);
    let (mut acknowledged, mut caught, mut made) = (0, 0, 0);
    for kill in 0..KILLS {
        for line in run_and_kill(&dir, &mut random, kill) {
            if line == "open" {
                continue;
            }
            let (name, said) = line.split_once(' ').expect("a name and what is done");
            let of = watched.get_mut(name).expect("one of ours");
            match said.strip_prefix("done ") {
                Some(number) => {
                    let change = of.under_way.take().expect("said before");
                    let number = number.parse().expect("a number");
                    if matches!(change, Change::Add { .. }) {
                        let before = std::mem::replace(&mut of.highest, number);
                        assert!(
                            number > before,
                            "{name} has {number} again after kill {kill}"
                        );
                    }
                    of.known = change.of(of.known.as_ref(), number);
                    acknowledged += 1;
                }
                None => of.under_way = Some(said.parse().expect("a change")),
            }
        }
        let store = Store::open(&dir, StoreLimits::default()).expect("it opens after a kill");
        let kept = store.list();
        check_files(&dir, &kept);
        for (name, of) in &mut watched {
            let parsed: DeploymentName = name.parse().expect("a name");
            let kept = kept.get(&parsed);
            let read = kept.map(|kept| Known::read(&store, &parsed, kept));
            // What was about to happen when the kill came has happened or not.
            let happened = of.under_way.take().map(|change| {
                caught += 1;
                let number = read.as_ref().map_or(0, |read| read.record.latest_revision);
                change.of(of.known.as_ref(), number)
            });
            if !Known::is(read.as_ref(), of.known.as_ref()) {
                made += 1;
                assert!(
                    matches!(&happened, Some(other) if Known::is(read.as_ref(), other.as_ref())),
                    "{name} after kill {kill}: there is {read:#?}, acknowledged was {:#?}, under way {happened:#?}",
                    of.known
                );
            }
            of.known = read;
        }
        assert!(
            kept.keys().all(|name| watched.contains_key(name.as_str())),
            "others than ours: {kept:?}"
        );
    }
    std::fs::remove_dir_all(&dir).expect("ours");
    println!(
        "store_kill: {KILLS} kills in {:.0} s, {acknowledged} changes acknowledged, none lost, none half \
         made; {caught} were under way, of which {made} were made",
        began.elapsed().as_secs_f64()
    );
    assert!(acknowledged > KILLS / 2, "the child got to work");
    assert!(caught > KILLS / 4, "kills come in the midst of something");
}

/// Starts a child, kills it after a random time, and returns the whole lines that it said.
fn run_and_kill(dir: &Path, random: &mut Random, kill: u64) -> Vec<String> {
    let own: PathBuf = std::env::current_exe().expect("a test knows its own path");
    let mut child = Command::new(own)
        .arg("child")
        .arg(dir)
        .arg((random.below(1 << 30) + 1).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    let mut said = Vec::new();
    // Every fifth is killed while it may still be opening the store.
    if !kill.is_multiple_of(5) {
        let mut line = String::new();
        reader.read_line(&mut line).expect("it opens the store");
        assert_eq!(line, "open\n", "at kill {kill}");
        said.push("open".to_owned());
        // So that there is something to lose, however slow the machine is.
        for _ in 0..random.below(10) {
            line.clear();
            reader.read_line(&mut line).expect("it says what it does");
            let whole = line.strip_suffix('\n').expect("it lives");
            said.push(whole.to_owned());
        }
    }
    std::thread::sleep(Duration::from_micros(random.below(20_000)));
    child.kill().expect("a child of ours");
    let status = child.wait().expect("a child of ours");
    assert_eq!(
        status.code(),
        None,
        "it was killed and did not end by itself"
    );
    let mut line = String::new();
    while reader.read_line(&mut line).expect("a pipe") > 0 {
        // A line that was cut off was not acknowledged.
        if let Some(whole) = line.strip_suffix('\n') {
            said.push(whole.to_owned());
        }
        line.clear();
    }
    said
}

/// One file for each component that a revision names, and nothing left over.
fn check_files(dir: &Path, kept: &BTreeMap<DeploymentName, StoredDeployment>) {
    let revisions = kept.values().flat_map(|kept| kept.revisions.values());
    let named: BTreeSet<_> = revisions.map(|revision| revision.component).collect();
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(dir.join("components")).expect("there") {
        let file = entry.expect("readable").file_name();
        let file = file.to_string_lossy().into_owned();
        let hex = file.strip_suffix(".wasm").expect("half files are swept");
        files.insert(Digest::from_hex(hex).expect("ours"));
    }
    assert_eq!(files, named);
}
