//! kill -9 at hundreds of moments while a store is written to: what was acknowledged is there, and
//! nothing is half made.
//!
//! A test binary without the usual harness, since it is parent and child: the child deploys as fast as
//! it can and says after each change what was acknowledged; the parent kills it at a random moment,
//! opens the store itself, and compares.

use corral_server::deployments::{Bounds, Digest, Manifest, Name, Share, Store};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const KILLS: u64 = 300;
const NAMES: [&str; 3] = ["a", "b", "c"];

fn main() {
    let arguments = Vec::from_iter(std::env::args().skip(1));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child", folder, seed] => child(Path::new(folder), seed.parse().expect("a number")),
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
    let length = 1000 + random.below(200_000);
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn manifest(name: &str, digest: Digest, note: u64) -> Manifest {
    let text = format!(
        "name = '{name}'\ncomponent = '{digest}'\nroutes = ['/{name}']\n\
         [configuration]\nNOTE = '{note}'"
    );
    Manifest::from_toml(&text).expect("good")
}

/// Changes the store for ever. A line on stdout for each change that was acknowledged, and one before it
/// for what is about to be removed.
fn child(folder: &Path, seed: u64) {
    let store = Store::open(folder, Bounds::default()).expect("the store opens");
    let mut random = Random(seed);
    let say = |line: String| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{line}").expect("the parent reads");
        stdout.flush().expect("the parent reads");
    };
    say("open".to_owned());
    loop {
        let name = NAMES[random.below(3) as usize];
        let known: Name = name.parse().expect("a name");
        match (random.below(10), store.get(&known)) {
            (0, Ok(_)) => {
                say(format!("removing {name}"));
                store.remove(&known).expect("it is there");
                say(format!("removed {name}"));
            }
            (1, Ok(kept)) => {
                let revision = *kept.revisions.keys().next().expect("one at least");
                let share = Share {
                    revision,
                    weight: 1 + random.below(9) as u32,
                };
                say(format!("sharing {name}"));
                store.set_traffic(&known, vec![share]).expect("it is there");
                say(format!("shared {name} {revision} {}", share.weight));
            }
            _ => {
                let number = random.below(1000);
                let bytes = component(number);
                let digest = Digest::of(&bytes);
                store.put(digest, &bytes).expect("there is room");
                let revision = store
                    .add(manifest(name, digest, number), true)
                    .expect("added");
                say(format!("added {name} {} {number}", revision.number));
            }
        }
    }
}

/// What the parent knows of a deployment: the latest acknowledged number with its component, and who
/// gets its requests, where no change was on its way.
#[derive(Clone, Debug)]
struct Known {
    latest: u64,
    component: u64,
    share: Option<Share>,
}

fn parent() {
    let folder = std::env::temp_dir().join(format!("corral-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    let mut random = Random(0x5eed_0fc0_ffee);
    let mut acknowledged = 0;
    // The highest number that was ever acknowledged of each, also of those that were removed.
    let mut highest: BTreeMap<String, u64> = BTreeMap::new();
    for kill in 0..KILLS {
        let said = run_and_kill(&folder, &mut random, kill);
        // What was about to happen when the kill came may have happened or not.
        let mut removing = None;
        for line in &said {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["open"] => {}
                ["removing", name] => removing = Some(name.to_owned()),
                ["removed", name] => {
                    removing = None;
                    known.remove(name);
                    acknowledged += 1;
                }
                ["sharing", name] => known.get_mut(name).expect("it is there").share = None,
                ["shared", name, revision, weight] => {
                    let share = Share {
                        revision: revision.parse().expect("a number"),
                        weight: weight.parse().expect("a number"),
                    };
                    known.get_mut(name).expect("it is there").share = Some(share);
                    acknowledged += 1;
                }
                ["added", name, revision, component] => {
                    let latest = revision.parse().expect("a number");
                    let before = highest.insert(name.to_owned(), latest);
                    assert!(
                        before.is_none_or(|before| latest > before),
                        "{name} has {latest} again after kill {kill}"
                    );
                    let share = Share {
                        revision: latest,
                        weight: 1,
                    };
                    let now = Known {
                        latest,
                        component: component.parse().expect("a number"),
                        share: Some(share),
                    };
                    known.insert(name.to_owned(), now);
                    acknowledged += 1;
                }
                _ => panic!("the child said {line:?}"),
            }
        }
        check(&folder, &mut known, removing.as_deref(), kill);
    }
    std::fs::remove_dir_all(&folder).expect("ours");
    assert!(
        acknowledged > KILLS,
        "the child got to work: {acknowledged}"
    );
    println!(
        "store_kill: {KILLS} kills, {acknowledged} acknowledged changes, none lost, none half made"
    );
}

/// Starts a child, kills it after a random time, and returns the whole lines that it said.
fn run_and_kill(folder: &Path, random: &mut Random, kill: u64) -> Vec<String> {
    let own: PathBuf = std::env::current_exe().expect("a test knows its own path");
    let mut child = Command::new(own)
        .arg("child")
        .arg(folder)
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
        for _ in 0..random.below(6) {
            line.clear();
            reader.read_line(&mut line).expect("it says what it does");
            let whole = line.strip_suffix('\n').expect("it lives");
            said.push(whole.to_owned());
        }
    }
    std::thread::sleep(Duration::from_micros(random.below(40_000)));
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

/// Opens the store as the next process would, and compares it with what was acknowledged. What is there
/// beyond that is taken over: it was done, and the kill came before it was said.
fn check(folder: &Path, known: &mut BTreeMap<String, Known>, removing: Option<&str>, kill: u64) {
    let store = Store::open(folder, Bounds::default()).expect("the store opens after a kill");
    let kept = store.list();
    let mut files = 0;
    let mut digests = std::collections::BTreeSet::new();
    for (name, kept) in &kept {
        for (number, revision) in &kept.revisions {
            assert_eq!(*number, revision.number);
            assert_eq!(revision.manifest.name, *name);
            assert_eq!(revision.manifest.component, revision.component.to_string());
            // Whole, and what the manifest says that it is.
            let bytes = store.read(revision.component).expect("its file is whole");
            let note: u64 = revision.manifest.configuration["NOTE"]
                .parse()
                .expect("ours");
            assert_eq!(bytes, component(note), "{name} {number} after kill {kill}");
            digests.insert(revision.component);
        }
    }
    for entry in std::fs::read_dir(folder.join("components")).expect("there") {
        let file = entry.expect("readable").file_name();
        let file = file.to_string_lossy().into_owned();
        let hex = file.strip_suffix(".wasm").expect("half files are swept");
        let digest = Digest::from_hex(hex).expect("ours");
        assert!(digests.contains(&digest), "{file} is left over");
        files += 1;
    }
    assert_eq!(files, digests.len(), "one file for each component");
    for (name, was) in known.iter() {
        let parsed: Name = name.parse().expect("a name");
        let Some(now) = kept.get(&parsed) else {
            assert_eq!(
                removing,
                Some(name.as_str()),
                "{name} is lost after kill {kill}"
            );
            continue;
        };
        assert!(
            now.record.latest >= was.latest,
            "{name} lost {was:?} at kill {kill}"
        );
        // The child does one thing at a time: at most one deploy was done and not said.
        assert!(
            now.record.latest <= was.latest + 1,
            "{name}: {was:?}, {:?}",
            now.record
        );
        let revision = now
            .revisions
            .get(&was.latest)
            .expect("the acknowledged one is kept");
        assert_eq!(revision.component, Digest::of(&component(was.component)));
        if let (true, Some(share)) = (now.record.latest == was.latest, was.share) {
            assert_eq!(now.record.traffic, [share], "{name} after kill {kill}");
        }
    }
    known.clear();
    for (name, kept) in &kept {
        let latest = kept.record.latest;
        let note = &kept.revisions[&latest].manifest.configuration["NOTE"];
        let now = Known {
            latest,
            component: note.parse().expect("ours"),
            share: Some(kept.record.traffic[0]),
        };
        known.insert(name.to_string(), now);
    }
}
