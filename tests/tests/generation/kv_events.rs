//! `--kv-events`: what a subscriber of ZeroMQ learns of the prefix caches. The subscriber is `kv_events/subscriber.py`.

use corral_tests::{
    Corral, TIMEOUT, artifacts, key_file, new_key, run, run_command, signal, wait_for, wait_until,
};
use data_encoding::HEXLOWER;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

const OPTIONS: [&str; 4] = [
    "--kv-events",
    "tcp://127.0.0.1:0",
    "--kv-events-replay",
    "tcp://127.0.0.1:0",
];
/// Tokens of a block, and of a prompt, which fills [`BLOCKS`].
const BLOCK: usize = 16;
const PROMPT: usize = 600;
const BLOCKS: usize = PROMPT / BLOCK;

fn start(more: &[&str]) -> Corral {
    Corral::start_with(&[&OPTIONS, more].concat())
}

/// A prompt that no other begins like.
fn prompt(words: &str) -> String {
    words.chars().cycle().take(PROMPT).collect()
}

fn ask(corral: &Corral, words: &str) {
    corral.generate(&json!({"prompt": prompt(words), "max_tokens": 1}));
}

/// The addresses of subscribers and of replays.
fn addresses(corral: &Corral) -> [String; 2] {
    let lines = corral.announced().iter();
    let addresses = lines.filter_map(|line| line.strip_prefix("KV events on "));
    let addresses = Vec::from_iter(addresses.map(str::to_owned));
    addresses.try_into().expect("two addresses")
}

fn subscriber(arguments: &[&str]) -> Command {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generation/kv_events/subscriber.py");
    let mut command = Command::new(artifacts::clients().join("python/bin/python"));
    command
        .arg(file)
        .args(arguments)
        .env("PYTHONPATH", artifacts::zmq());
    command
}

/// The batches that a server repeats from a number on.
fn replay(corral: &Corral, start: u64, topic: &[&str]) -> Vec<Value> {
    let [_, address] = addresses(corral);
    let arguments = ["replay", &address, &start.to_string()];
    let ended = run_command(&mut subscriber(&[&arguments, topic].concat()), TIMEOUT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ended.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// What a subscriber knows.
#[derive(Default)]
struct Blocks {
    /// By hash: the block before it, the tokens, and the salt of a first one.
    known: HashMap<u64, (Option<u64>, Value, Option<String>)>,
    /// Hashes and locations.
    stored: HashSet<(u64, String)>,
}

impl Blocks {
    fn apply_batch(&mut self, batch: &Value) {
        let events = batch["events"].as_array().expect("events");
        events.iter().for_each(|event| self.apply(event));
    }

    fn apply(&mut self, event: &Value) {
        let hashes = || {
            let hashes = event["block_hashes"].as_array().expect("hashes").iter();
            hashes.map(|hash| hash.as_u64().expect("a number"))
        };
        let medium = || event["medium"].as_str().expect("a text").to_owned();
        match event["type"].as_str().expect("a text") {
            "AllBlocksCleared" => self.stored.clear(),
            "BlockRemoved" => {
                for hash in hashes() {
                    assert!(self.stored.remove(&(hash, medium())), "{event}");
                }
            }
            "BlockStored" => {
                assert_eq!(event["block_size"], BLOCK, "{event}");
                let tokens = event["token_ids"].as_array().expect("tokens");
                assert_eq!(tokens.len(), BLOCK * hashes().count(), "{event}");
                let mut parent = event["parent_block_hash"].as_u64();
                let salt = event["extra_keys"][0][0].as_str().map(str::to_owned);
                assert_eq!(parent.is_none(), salt.is_some(), "{event}");
                let parent_is_known = parent.is_none_or(|hash| self.known.contains_key(&hash));
                assert!(parent_is_known, "{event}");
                for (hash, tokens) in hashes().zip(tokens.chunks(BLOCK)) {
                    let salt = salt.clone().filter(|_| parent.is_none());
                    self.known.insert(hash, (parent, json!(tokens), salt));
                    assert!(self.stored.insert((hash, medium())), "{event}");
                    parent = Some(hash);
                }
            }
            _ => panic!("{event}"),
        }
    }

    /// The stored blocks of a salt, as text.
    fn of(&self, salt: &str) -> Vec<String> {
        let is_of = |(hash, _): &&(u64, String)| {
            let mut first = &self.known[hash];
            while let Some(parent) = first.0 {
                first = &self.known[&parent];
            }
            first.2.as_deref() == Some(salt)
        };
        let stored = self.stored.iter().filter(is_of);
        let mut texts = Vec::from_iter(stored.map(|(hash, _)| text(&self.known[hash].1)));
        texts.sort();
        texts
    }

    /// How many blocks of a prompt are stored.
    fn count(&self, words: &str) -> usize {
        let prompt = prompt(words);
        let texts = self
            .stored
            .iter()
            .map(|(hash, _)| text(&self.known[hash].1));
        texts.filter(|text| prompt.contains(text)).count()
    }

    /// Whether a prompt is stored; the first block may have other tokens.
    fn has(&self, words: &str) -> bool {
        self.count(words) + 1 >= BLOCKS
    }
}

/// The text of tokens, which are bytes here.
fn text(tokens: &Value) -> String {
    let tokens = tokens.as_array().expect("tokens").iter();
    let bytes = tokens.map(|token| token.as_u64().and_then(|token| u8::try_from(token).ok()));
    bytes.map(|byte| char::from(byte.unwrap_or(0))).collect()
}

/// A subscriber that runs until it is dropped.
struct Subscriber {
    child: Child,
    lines: Receiver<Value>,
    topic: String,
    /// The number of the next batch; earlier ones are known.
    next: u64,
    blocks: Blocks,
}

impl Subscriber {
    /// Starts a subscriber, and returns once it gets batches.
    fn start(corral: &Corral) -> Self {
        let [address, _] = addresses(corral);
        let mut child = subscriber(&["follow", &address, "kv@"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel::<Value>();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).expect("JSON"));
            }
        });
        for number in 0.. {
            match lines.try_recv() {
                Ok(_) => break,
                Err(TryRecvError::Empty) => ask(corral, &format!("{number} begins ")),
                Err(TryRecvError::Disconnected) => panic!("the subscriber has ended"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // Now it gets all that comes.
        let mut blocks = Blocks::default();
        let before = replay(corral, 0, &[]);
        before.iter().for_each(|batch| blocks.apply_batch(batch));
        Subscriber {
            child,
            lines,
            topic: format!("kv@{}@tiny", corral.public()),
            next: before.len() as u64,
            blocks,
        }
    }

    /// Waits until the blocks are as they should be.
    fn until(&mut self, what: &str, condition: impl Fn(&Blocks) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !condition(&self.blocks) {
            let left = deadline.saturating_duration_since(Instant::now());
            let batch = self.lines.recv_timeout(left);
            let batch = batch.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(batch["topic"], self.topic);
            if sequence(&batch) >= self.next {
                assert_eq!(sequence(&batch), self.next, "a gap");
                self.next += 1;
                self.blocks.apply_batch(&batch);
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sequence(batch: &Value) -> u64 {
    batch["sequence"].as_u64().expect("a number")
}

/// The salt of a tenant of API keys, as the documentation says.
fn salt_of_tenant(name: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(format!("tenant\0{name}")))
}

#[test]
fn tenants_blocks_have_their_own_salts() {
    let (file, alice) = key_file();
    let bob = new_key(&file, &["--tenant", "bob"]);
    let keys = ["--keys", &file, "--open-route", "/generate"];
    let corral =
        Corral::start_with_routes(&[("/keyed", "generate")], &[&OPTIONS, &keys[..]].concat());
    let mut subscriber = Subscriber::start(&corral);
    let request = json!({"prompt": prompt("shared words "), "max_tokens": 1}).to_string();
    for key in [&alice, &bob] {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let answer = corral.request("POST", "/keyed", &headers, &request);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let salts = ["alice", "bob"].map(salt_of_tenant);
    subscriber.until("blocks of both tenants", |blocks| {
        salts.iter().all(|salt| blocks.of(salt).len() >= BLOCKS)
    });
    let [alice, bob] = salts.map(|salt| subscriber.blocks.of(&salt));
    assert_eq!(alice, bob, "the same tokens under other hashes");
    let in_cells = |(_, medium): &(u64, String)| medium == "GPU";
    assert!(subscriber.blocks.stored.iter().any(in_cells));
    corral.request_admin("DELETE", "/prefix-cache", "");
    subscriber.until("an empty cache", |blocks| blocks.stored.is_empty());
}

#[test]
fn evicted_prefix_is_removed() {
    let (cells, none) = ("1024", "0");
    let corral = start(&[
        "--context",
        cells,
        "--kv-cells",
        cells,
        "--prefix-offload-memory",
        none,
    ]);
    let mut subscriber = Subscriber::start(&corral);
    let (first, second) = ("the first prompt ", "another one ");
    ask(&corral, first);
    subscriber.until("the first prompt", |blocks| blocks.has(first));
    corral.wait_until_idle();
    // Both do not fit.
    ask(&corral, second);
    subscriber.until("an eviction", |blocks| {
        blocks.has(second) && blocks.count(first) == 0
    });
}

#[test]
fn replay_gives_what_was_missed() {
    let corral = start(&[]);
    let prompts = ["one ", "two ", "three "];
    prompts.iter().for_each(|words| ask(&corral, words));
    let all = wait_for("batches of all prompts", || {
        let all = replay(&corral, 0, &[]);
        let mut blocks = Blocks::default();
        all.iter().for_each(|batch| blocks.apply_batch(batch));
        prompts.iter().all(|words| blocks.has(words)).then_some(all)
    });
    let numbers = Vec::from_iter(all.iter().map(sequence));
    assert_eq!(numbers, Vec::from_iter(0..all.len() as u64));
    assert_eq!(all[0]["events"], json!([{"type": "AllBlocksCleared"}]));
    let later = replay(&corral, 2, &[]);
    assert_eq!(later[..all.len() - 2], all[2..]);
    let topic = format!("kv@{}@tiny", corral.public());
    assert!(replay(&corral, 0, &[&topic]).len() >= all.len());
    assert!(replay(&corral, 0, &["kv@elsewhere@tiny"]).is_empty());
    let published = corral.metrics().get("corral_kv_events_batches_total");
    assert!(published >= all.len() as f64, "{published}");
}

#[test]
fn rendered_tokens_are_those_of_events() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &OPTIONS);
    let messages = json!([{"role": "user", "content": prompt("a chat ")}]);
    for (path, request) in [
        (
            "/v1/completions",
            json!({"prompt": prompt("a text "), "max_tokens": 1}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 1}),
        ),
    ] {
        let post = |path: &str| corral.post_json(path, &request);
        let rendered = post(&format!("{path}/render"));
        // Completions may have several prompts.
        let rendered = rendered.get(0).unwrap_or(&rendered);
        let tokens = rendered["token_ids"].as_array().expect("tokens");
        assert!(tokens.len() >= PROMPT, "{rendered}");
        post(path);
        wait_until("blocks of these tokens", || {
            let mut blocks = Blocks::default();
            let batches = replay(&corral, 0, &[]);
            batches.iter().for_each(|batch| blocks.apply_batch(batch));
            let is_known = |block: &[Value]| {
                let block = json!(block);
                blocks.known.values().any(|known| known.1 == block)
            };
            tokens.chunks_exact(BLOCK).all(is_known)
        });
    }
}

#[test]
fn stopped_subscriber_delays_nobody() {
    let corral = start(&[]);
    let (mut stopped, mut other) = (Subscriber::start(&corral), Subscriber::start(&corral));
    signal(stopped.child.id(), "STOP");
    let before = corral.resident_bytes();
    for number in 0..20 {
        ask(&corral, &format!("{number} words "));
    }
    let last = "the last prompt ";
    ask(&corral, last);
    other.until("the last prompt", |blocks| blocks.has(last));
    let grown = corral.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    signal(stopped.child.id(), "CONT");
    stopped.until("the last prompt", |blocks| blocks.has(last));
    let missed = "corral_kv_events_missed_batches_total";
    assert_eq!(corral.metrics().get(missed), 0.0);
}

#[test]
fn garbage_on_sockets_disturbs_no_subscriber() {
    let corral = start(&[]);
    let mut subscriber = Subscriber::start(&corral);
    // Of a peer that speaks ZMTP 3.
    let mut greeting = [0_u8; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    let ready = &b"\x04\x06\x05READY"[..];
    let mut peers = Vec::new();
    for address in addresses(&corral) {
        let address = address.strip_prefix("tcp://").expect("a TCP address");
        for seed in 0..30 {
            let mut noise = vec![0; 4096];
            ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut noise);
            let bytes = match seed % 3 {
                0 => noise,
                1 => [&greeting[..], &noise[..]].concat(),
                _ => [&greeting[..], ready, &noise[..]].concat(),
            };
            let mut peer = TcpStream::connect(address).expect("the socket is open");
            // The server may close it meanwhile.
            let _ = peer.write_all(&bytes);
            peers.push(peer);
        }
    }
    let words = "beside the noise ";
    ask(&corral, words);
    subscriber.until("the prompt", |blocks| blocks.has(words));
    corral.check_alive();
}

#[test]
fn check_names_events_and_bad_addresses() {
    let check = |address: &str| {
        let model = artifacts::long_model();
        let model = model.to_str().expect("a path in UTF-8");
        run(["serve", "--check", "--model", model, "--kv-events", address])
    };
    let good = check("tcp://127.0.0.1:5557").check_success();
    assert!(
        good.stdout.contains("kv-events on tcp://127.0.0.1:5557"),
        "{good:?}"
    );
    let wrong = check("127.0.0.1:5557");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("write tcp://HOST:PORT"), "{wrong:?}");
}
