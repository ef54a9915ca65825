//! Sequences under pressure, over llama.cpp and the demo model: sums stay right while sequences are
//! shared, forked, truncated, swapped, preempted, canceled, saved or lost.

use corral_engine::{Caller, Engine, Error, Priority, Sequence, Tenant, Token};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use support::{
    SURE, answer, answer_sum, block_on, check_empty, check_identity, check_idle_sums, config,
    draft_model, exactly, idle_sums, limit, metric, read, sequence, settle, snapshots, start,
    status,
};

mod support;

/// Concurrent clients, and total sums in each of two engine processes.
const CLIENTS: u32 = 64;
const SUMS: u32 = 1000;
/// Environment variable: number of sums, for slow machines.
const FEWER: &str = "CORRAL_TEST_SUMS";
/// Sums after other text that the model answers correctly alone.
const SUMS_AFTER: [(u32, u32); 8] = [
    (12, 7),
    (20, 22),
    (3, 4),
    (31, 27),
    (45, 54),
    (10, 20),
    (33, 44),
    (50, 26),
];
/// The other text: four prefixes, each shared by many clients.
const LENGTHS: [usize; 4] = [32, 100, 47, 100];

fn story(kind: usize) -> String {
    let line = [
        "The quiet owl looks at the river and the stone. ",
        "The quiet owl looks at the river and the tree. ",
        "The old fox looks at the stone. ",
        "The quiet owl looks at the river and the stone. ",
    ][kind];
    line.chars().cycle().take(LENGTHS[kind]).collect::<String>() + "\n"
}

/// Sums that the model answers correctly after each story without shared state.
fn right_alone() -> Vec<Vec<(u32, u32)>> {
    let mut config = config();
    config.prefix_cache = false;
    let engine = Engine::load(config).unwrap();
    let right = |kind, (a, b): (u32, u32)| {
        let text = format!("{}{a}+{b}=", story(kind));
        let (chunk, outcome) = answer(&engine, &text, limit(8));
        assert_eq!(outcome.cached_tokens, 0);
        chunk.text == (a + b).to_string()
    };
    let of = |kind| {
        let sums = SUMS_AFTER.iter().copied();
        sums.filter(|&sum| right(kind, sum)).collect::<Vec<_>>()
    };
    let found: Vec<_> = (0..LENGTHS.len()).map(of).collect();
    assert!(found.iter().all(|sums| sums.len() >= 3), "{found:?}");
    found
}

fn sums() -> u32 {
    match std::env::var(FEWER) {
        Ok(fewer) => fewer.parse().expect("a number"),
        Err(_) => SUMS,
    }
}

/// A client that asks sums in many ways.
struct Client<'a> {
    engine: &'a Engine,
    /// Indexed by story.
    right: &'a [Vec<(u32, u32)>],
    dir: &'a str,
    random: ChaCha8Rng,
    caller: Caller,
    asked: &'a AtomicU32,
}

impl Client<'_> {
    fn tokens(&self, text: &str) -> Vec<Token> {
        self.engine.tokenize(text, true).unwrap()
    }

    fn sequence(&self, text: &str) -> Sequence {
        let mut sequence = Sequence::new(self.engine.clone(), self.caller);
        sequence.append(&self.tokens(text)).unwrap();
        sequence
    }

    fn check(&self, sequence: &Sequence, (a, b): (u32, u32), said: &str) {
        let text = self.engine.detokenize(sequence.tokens(), true).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(said, (a + b).to_string(), "after {text:?}");
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks a sum at the end of a sequence and appends the answer.
    fn ask(&mut self, sequence: &mut Sequence, sum: (u32, u32)) {
        let question = self.tokens(&format!("{}+{}=", sum.0, sum.1));
        sequence.append(&question).unwrap();
        let (chunk, outcome) = read(sequence.generate(limit(8)).unwrap());
        let outcome = outcome.unwrap();
        assert!(outcome.cached_tokens < outcome.prompt_tokens);
        self.check(sequence, sum, &chunk.text);
        sequence.append(&chunk.tokens).unwrap();
    }

    fn sure(&mut self, kind: usize) -> (u32, u32) {
        self.right[kind][self.random.random_range(0..self.right[kind].len())]
    }

    fn any(&mut self) -> (u32, u32) {
        (
            self.random.random_range(0..100),
            self.random.random_range(0..100),
        )
    }

    /// Asks in a random way.
    fn act(&mut self, kept: &mut Option<(usize, Sequence)>, name: &str) {
        self.caller.priority = Priority(self.random.random_range(0..3));
        match self.random.random_range(0..10) {
            0..2 => {
                let sum = self.any();
                let mut sequence = self.sequence("");
                self.ask(&mut sequence, sum);
            }
            2..5 => {
                // The same prefix with other sums, truncated each time.
                let kind = self.random.random_range(0..4);
                let text = story(kind);
                let new = || (kind, self.sequence(&text));
                let (kind, mut sequence) = kept.take().unwrap_or_else(new);
                let prefix_length = self.prefix_length(&sequence);
                sequence.truncate(prefix_length).unwrap();
                for _ in 0..2 {
                    let sum = self.sure(kind);
                    self.ask(&mut sequence, sum);
                    sequence.truncate(prefix_length).unwrap();
                }
                *kept = Some((kind, sequence));
            }
            5..7 => {
                // A fan and a chain of forks that generate concurrently.
                let kind = self.random.random_range(0..4);
                let trunk = self.sequence(&story(kind));
                let second = trunk.fork();
                let mut forks = [trunk.fork(), second.fork(), second, trunk];
                let generations: Vec<_> = forks
                    .iter_mut()
                    .map(|fork| {
                        let sum = self.sure(kind);
                        let question = self.tokens(&format!("{}+{}=", sum.0, sum.1));
                        fork.append(&question).unwrap();
                        (sum, fork.generate(limit(8)).unwrap())
                    })
                    .collect();
                for (fork, (sum, generation)) in forks.iter().zip(generations) {
                    let (chunk, outcome) = read(generation);
                    outcome.unwrap();
                    self.check(fork, sum, &chunk.text);
                }
            }
            7 => {
                // Canceled at once or after a token.
                let kind = self.random.random_range(0..4);
                let mut sequence = self.sequence(&story(kind));
                let mut generation = sequence.generate(exactly(50)).unwrap();
                if self.random.random() {
                    block_on(generation.next());
                }
            }
            8 => {
                let kind = self.random.random_range(0..4);
                let mut sequence = self.sequence(&story(kind));
                let sum = self.sure(kind);
                self.ask(&mut sequence, sum);
                sequence.snapshot(self.dir, name).unwrap();
            }
            _ => self.restore(name),
        }
    }

    /// Number of tokens before the first sum.
    fn prefix_length(&self, sequence: &Sequence) -> usize {
        let text = self.engine.detokenize(sequence.tokens(), true).unwrap();
        let line = text.iter().position(|byte| *byte == b'\n').unwrap();
        // A token is a character in this model.
        line + 1
    }

    /// Continues a saved snapshot, if there is one.
    fn restore(&mut self, name: &str) {
        let restored =
            Sequence::restore(self.engine.clone(), self.caller, self.dir, name, usize::MAX);
        let mut sequence = match restored {
            Ok(sequence) => sequence,
            Err(Error::NotFound(why)) => {
                assert!(why.contains("no snapshot"), "{why}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let prefix_length = self.prefix_length(&sequence);
        assert!(sequence.tokens().len() > prefix_length, "with its question");
        sequence.truncate(prefix_length).unwrap();
        let text = self.engine.detokenize(sequence.tokens(), true).unwrap();
        let kind = (0..4).position(|kind| story(kind).as_bytes() == text);
        let kind = kind.expect("the text is as it was");
        let sum = self.sure(kind);
        self.ask(&mut sequence, sum);
    }
}

/// Runs one engine process with 64 concurrent clients.
fn run_process(dir: &Path, life: u64, right: &[Vec<(u32, u32)>]) {
    let mut config = config();
    config.context = Some(192);
    // The 64 clients want about 5,000 cells; each context has 192.
    config.cells = Some(1280);
    config.max_running = 8;
    // Fits about two dozen states.
    config.swap_ram = 1 << 18;
    config.swap_disk = Some((dir.join("swap"), 4 << 20));
    config.snapshots = snapshots(&dir.join("snapshots"));
    // The second process has a draft model.
    config.draft = (life > 0).then(draft_model);
    let engine = Engine::load(config).unwrap();
    let sums = sums();
    let asked = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (engine, asked) = (&engine, &asked);
            scope.spawn(move || {
                let tenant = number % 4;
                let dir = format!("tenant-{tenant}");
                let name = format!("of-{number}");
                let mut client = Client {
                    engine,
                    right,
                    dir: &dir,
                    random: ChaCha8Rng::seed_from_u64(1000 * life + u64::from(number)),
                    caller: Caller {
                        tenant: Tenant(tenant),
                        ..Caller::default()
                    },
                    asked,
                };
                if life > 0 {
                    client.restore(&name);
                }
                let mut kept = None;
                while asked.load(Ordering::Relaxed) < sums {
                    client.act(&mut kept, &name);
                }
            });
        }
    });
    assert!(asked.load(Ordering::Relaxed) >= sums);
    settle(&engine);
    check_identity(&engine);
    // The first events happen soon; the others need many sums.
    for (what, soon) in [
        ("prefix_cache_hit_tokens", true),
        ("swap_outs", true),
        ("swap_ins", true),
        ("requests_canceled", true),
        ("recomputed_tokens", false),
        ("discarded_tokens", false),
        ("prefix_cache_entries_dropped", false),
        ("preemptions", false),
        ("swap_disk_written_bytes", false),
        ("swap_disk_read_bytes", false),
    ] {
        let count = metric(&engine, &format!("{what}_total"));
        println!("process {life}: {what} {count}");
        assert!(
            count > 0.0 || (!soon && sums < SUMS),
            "{what} did not happen"
        );
    }
    let drafted = metric(&engine, "draft_model_steps_total");
    assert_eq!(
        drafted > 0.0,
        life > 0,
        "{drafted} steps of the draft model"
    );
    for what in [
        "draft_model_steps_failed",
        "requests_failed",
        "requests_expired",
        "requests_refused",
    ] {
        assert_eq!(metric(&engine, &format!("{what}_total")), 0.0, "{what}");
    }
    check_empty(&engine);
    engine.shutdown();
}

/// In the child process: its number and the directory that both processes share.
const LIFE: &str = "CORRAL_TEST_LIFE";
const DIR: &str = "CORRAL_TEST_DIR";

/// Two processes; the second continues the snapshots of the first.
#[test]
fn two_thousand_sums_survive_sequence_changes() {
    let variable = |name| std::env::var(name).ok();
    if let (Some(life), Some(dir)) = (variable(LIFE), variable(DIR)) {
        let life = life.parse().expect("a number");
        run_process(Path::new(&dir), life, &right_alone());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for life in 0..2 {
        let name = "two_thousand_sums_survive_sequence_changes";
        let process = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(LIFE, life.to_string())
            .env(DIR, dir.path())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&process.stdout);
        let errors = String::from_utf8_lossy(&process.stderr);
        assert!(
            process.status.success(),
            "process {life}: {output}\n{errors}"
        );
        assert!(
            output.contains(&format!("process {life}: swap_ins")),
            "{output}"
        );
    }
}

/// Eight concurrent requests with one long prefix, then one more: the prefix is computed once.
#[test]
fn shared_prefix_is_computed_once() {
    let engine = Engine::load(config()).unwrap();
    let prefix = "All the birds in the garden sing. ".repeat(20);
    let prompt = |sum: (u32, u32)| {
        let text = format!("{prefix}\n{}+{}=", sum.0, sum.1);
        engine.tokenize(&text, true).unwrap()
    };
    let asked: Vec<_> = (0..8).map(|number| SURE[number % 5]).collect();
    let start = |sum| engine.generate(prompt(sum), limit(8), Caller::default());
    let generations: Vec<_> = asked.iter().map(|&sum| start(sum).unwrap()).collect();
    let mut cached = 0;
    for ((a, b), generation) in asked.into_iter().zip(generations) {
        let (chunk, outcome) = read(generation);
        assert_eq!(chunk.text, (a + b).to_string());
        cached += u32::from(outcome.unwrap().cached_tokens as usize >= prefix.len());
    }
    assert_eq!(cached, 7);
    let (_, outcome) = read(start((3, 4)).unwrap());
    let outcome = outcome.unwrap();
    // The same prompt: all but its last token.
    assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    // Other tenants share nothing without an agreement.
    let other = |tenant, prefix_group| Caller {
        tenant: Tenant(tenant),
        prefix_group,
        ..Caller::default()
    };
    for (caller, found) in [
        (other(1, None), false),
        (other(1, None), true),
        (other(2, Some(0)), false),
        (other(3, Some(0)), true),
    ] {
        let generation = engine.generate(prompt((3, 4)), limit(8), caller).unwrap();
        let (chunk, outcome) = read(generation);
        assert_eq!(chunk.text, "7");
        assert_eq!(outcome.unwrap().cached_tokens > 0, found, "{caller:?}");
    }
    check_empty(&engine);
}

#[test]
fn request_needing_all_cells_succeeds_beside_sixteen() {
    let mut config = config();
    config.context = Some(1024);
    config.cells = Some(1024);
    let engine = Engine::load(config).unwrap();
    let long = |text: &str, tokens| start(&engine, text, exactly(tokens));
    let few: Vec<_> = (0..16).map(|n| long(&format!("{n}+{n}="), 120)).collect();
    let large = "A fox and an owl. ".repeat(50);
    let large = long(&large, 1024 - 900);
    let more: Vec<_> = (20..28).map(|n| long(&format!("{n}+{n}="), 120)).collect();
    let (_, outcome) = read(large);
    assert_eq!(outcome.unwrap().generated_tokens, 124);
    for (n, generation) in (0..16).chain(20..28).zip(few.into_iter().chain(more)) {
        let (chunk, outcome) = read(generation);
        assert_eq!(outcome.unwrap().generated_tokens, 120);
        assert!(
            chunk.text.starts_with(&(n + n).to_string()),
            "{n}: {}",
            chunk.text
        );
    }
    check_empty(&engine);
}

/// An idle sequence keeps its state after other requests take its cells.
#[test]
fn idle_sequences_are_swapped_out_and_in() {
    let mut config = config();
    config.context = Some(512);
    config.cells = Some(512);
    config.max_running = 2;
    let engine = Engine::load(config).unwrap();
    let mut idle = idle_sums(&engine);
    settle(&engine);
    let status = status(&engine);
    let swapped_out = status
        .prefix_cache
        .iter()
        .filter(|entry| entry.seq.is_none());
    assert!(swapped_out.count() >= 3, "{status:?}");
    assert!(status.prefix_cache.iter().all(|entry| entry.retained));
    assert!(status.swap_ram_bytes > 0);
    check_idle_sums(&mut idle);
    drop(idle);
    check_empty(&engine);
}

/// A snapshot holds the state and not only the text: after a restart only new tokens are computed.
#[test]
fn snapshot_continues_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let engine = || {
        let mut config = config();
        config.snapshots = snapshots(dir.path());
        Engine::load(config).unwrap()
    };
    let first = engine();
    let story = "The quiet owl looks at the river and the stone. ".repeat(6);
    let mut sequence = sequence(&first, &format!("{story}\n12+7="));
    answer_sum(&mut sequence, 19);
    settle(&first);
    sequence.snapshot("owner", "owl").unwrap();
    let computed = sequence.tokens().to_vec();
    first.shutdown();
    drop((sequence, first));

    let second = engine();
    let restore =
        |owner, name| Sequence::restore(second.clone(), Caller::default(), owner, name, usize::MAX);
    for (owner, name) in [("owner", "fox"), ("another", "owl")] {
        let restored = restore(owner, name);
        assert!(
            matches!(restored, Err(Error::NotFound(_))),
            "{owner} {name}"
        );
    }
    assert!(matches!(restore("owner", "../owl"), Err(Error::Invalid(_))));
    let mut sequence = restore("owner", "owl").unwrap();
    assert_eq!(sequence.tokens(), computed);
    let outcome = answer_sum(&mut sequence, 19);
    assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    assert_eq!(metric(&second, "swap_ins_total"), 1.0);
    assert_eq!(
        metric(&second, "computed_tokens_total"),
        f64::from(outcome.generated_tokens)
    );
    drop(sequence);
    Sequence::delete_snapshot(&second, "owner", "owl").unwrap();
    assert!(matches!(restore("owner", "owl"), Err(Error::NotFound(_))));
    check_empty(&second);
}
