//! Model files, and files that belong to a model, that end llama.cpp's process, and files that change while they are served. The
//! server refuses such a file, or serves what it has read; other models never notice.

use corral_tests::pictures::{drawn_sum, projector};
use corral_tests::recordings::{audio_projector, recorded_sum};
use corral_tests::{Corral, RELIABLE_SUMS, Response, artifacts, scratch_dir, words};
use data_encoding::BASE64;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Bytes of the demo model's header: metadata and the list of tensors.
const HEADER: usize = 10_174;
/// Metadata types of GGUF.
const U32: u32 = 4;
const F32: u32 = 6;
const STRING: u32 = 8;
/// Random mutants of a normal run.
const MUTANTS: usize = 24;
/// Random mutants of the ignored tests, unless `CORRAL_MUTANTS` is set.
const SOAK_MUTANTS: u64 = 10_000;
/// Mutants of each companion in a normal run.
const COMPANION_MUTANTS: u64 = 3;
/// The ignored test mutates each companion once for this many seeds.
const MODELS_PER_COMPANION: usize = 20;
/// Models of one server.
const BATCH: usize = 40;

/// A changed copy of the demo model.
struct Mutant {
    name: String,
    bytes: Vec<u8>,
}

impl Mutant {
    fn new(name: &str) -> Self {
        Self::of(name, &artifacts::model())
    }

    fn of(name: &str, file: &Path) -> Self {
        Mutant {
            name: name.to_owned(),
            bytes: std::fs::read(file).expect("the file can be read"),
        }
    }

    fn find(&self, text: &str) -> usize {
        let mut windows = self.bytes[..HEADER].windows(text.len());
        windows
            .position(|some| some == text.as_bytes())
            .expect(text)
    }

    /// Replaces the value of a key by one of the same length.
    fn set(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let at = self.find(key) + key.len();
        assert_eq!(self.bytes[at..at + 4], kind.to_le_bytes(), "{key}");
        let at = at + 4 + if kind == STRING { 8 } else { 0 };
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// Replaces a string by one of another length, and takes the difference from another string, so that the header
    /// keeps its length.
    fn set_text(mut self, key: &str, text: &str, other_key: &str) -> Self {
        let mut splice = |key: &str, change: &dyn Fn(&str) -> String| {
            let at = self.find(key) + key.len() + 4;
            let length = u64::from_le_bytes(*self.bytes[at..].first_chunk().expect("a length"));
            let end = at + 8 + usize::try_from(length).expect("short");
            let old = String::from_utf8(self.bytes[at + 8..end].to_vec()).expect("text");
            let new = change(&old);
            let mut value = (new.len() as u64).to_le_bytes().to_vec();
            value.extend(new.as_bytes());
            self.bytes.splice(at..end, value);
            new.len() as i64 - old.len() as i64
        };
        let longer = splice(key, &|_| text.to_owned());
        let shorten = |old: &str| {
            let length = usize::try_from(old.len() as i64 - longer).expect("long enough");
            format!("{old:<length$}")[..length].to_owned()
        };
        splice(other_key, &shorten);
        self
    }

    /// Replaces the type of a tensor with two dimensions.
    fn set_type(mut self, tensor: &str, kind: u32) -> Self {
        let at = self.find(tensor) + tensor.len() + 4 + 2 * 8;
        self.bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
        self
    }

    fn random(seed: u64) -> Self {
        Mutant::new(&format!("random-{seed}")).damage(HEADER, seed)
    }

    /// Changes a few random bytes, most of them in the header.
    fn damage(self, header: usize, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut mutant = self;
        for _ in 0..random.random_range(1..=3) {
            let end = match random.random_range(0..20) {
                0 => mutant.bytes.len(),
                _ => header,
            };
            // The magic number stays, or the file is no model.
            let at = random.random_range(4..end - 8);
            match random.random_range(0..6) {
                0 | 1 => mutant.bytes[at] ^= 1 << random.random_range(0..8),
                2 => mutant.bytes[at] = random.random(),
                3 => {
                    let extremes = [0, 1, 7, u32::MAX, 1 << 31];
                    let number = match random.random_range(0..=extremes.len()) {
                        index if index < extremes.len() => extremes[index],
                        _ => random.random(),
                    };
                    mutant.bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
                }
                4 => {
                    let from = random.random_range(4..end - 8);
                    mutant.bytes.copy_within(from..from + 8, at);
                }
                _ if random.random_range(0..8) == 0 => mutant.bytes.truncate(at),
                _ => mutant.bytes[at..at + 8].fill(0),
            }
            if mutant.bytes.len() <= header {
                break;
            }
        }
        mutant
    }

    fn write(&self, dir: &Path) -> PathBuf {
        let file = dir.join(format!("{}.gguf", self.name));
        std::fs::write(&file, &self.bytes).expect("the scratch directory can be written");
        file
    }
}

/// `NAME=FILE`.
fn named(name: &str, file: &Path) -> String {
    format!("{name}={}", file.to_str().expect("UTF-8"))
}

/// A server with few cells for each model, and a cache of its own, so that it knows no file.
fn start(dir: &Path, models: &[String]) -> Corral {
    let cache = dir.join("cache");
    let mut line = words("--context 512 --kv-cells 512 --max-running 8");
    line.extend(["--cache-dir", cache.to_str().expect("UTF-8")]);
    line.extend(models.iter().flat_map(|model| ["--model", model]));
    Corral::start_with(&line)
}

fn request(model: &str) -> Value {
    json!({"model": model, "prompt": "1+1=", "max_tokens": 4})
}

/// Asks each mutant beside two neighbors. Returns the statuses.
fn ask_all(mutants: &[Mutant]) -> Vec<u16> {
    let dir = scratch_dir();
    let models = mutants.iter();
    let models = models.map(|mutant| named(&mutant.name, &mutant.write(&dir)));
    let models: Vec<_> = models.collect();
    let corral = start(&dir, &models);
    let mut statuses = Vec::new();
    let asked = corral.with_neighbors(|| {
        for mutant in mutants {
            let answer = corral.post("/generate", request(&mutant.name).to_string());
            assert!(answer.status < 600, "{}: {answer:?}", mutant.name);
            statuses.push(answer.status);
        }
    });
    assert!(asked >= 2, "1+1 was answered {asked} times meanwhile");
    corral.check_alive();
    drop(corral);
    std::fs::remove_dir_all(dir).expect("it is ours");
    statuses
}

/// Files that belong to a model: the option, the file, and the bytes of its header.
fn companions() -> [(&'static str, PathBuf, usize); 4] {
    [
        ("--adapter", artifacts::adapter(), 4136),
        ("--draft", artifacts::draft_model(), 8898),
        ("--mmproj", projector().into(), 1196),
        ("--mmproj", audio_projector().into(), 1743),
    ]
}

/// Mutants of each companion, with its option.
fn random_companions(seed: u64) -> Vec<(&'static str, Mutant)> {
    let all = companions().into_iter().enumerate();
    all.map(|(number, (option, file, header))| {
        let mutant = Mutant::of(&format!("with-{number}-{seed}"), &file);
        (option, mutant.damage(header, seed))
    })
    .collect()
}

/// Asks the demo model with each of these companions, and about a picture and a recording if one may encode them, beside two
/// neighbors. Returns the first response of each.
fn ask_with_companions(mutants: &[(&str, Mutant)]) -> Vec<Response> {
    let dir = scratch_dir();
    let mut line = Vec::new();
    for (option, mutant) in mutants {
        let file = mutant.write(&dir);
        let file = match *option {
            "--adapter" => named(&format!("{}:damaged", mutant.name), &file),
            _ => named(&mutant.name, &file),
        };
        let model = named(&mutant.name, &artifacts::model());
        line.extend(["--model".to_owned(), model, (*option).to_owned(), file]);
    }
    let mut arguments = words("--context 512 --kv-cells 512 --max-running 8");
    arguments.extend(line.iter().map(String::as_str));
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &arguments);
    let sum = RELIABLE_SUMS[0];
    let picture = format!("data:image/png;base64,{}", BASE64.encode(&drawn_sum(sum)));
    let recording = BASE64.encode(&recorded_sum(sum));
    let media = [
        json!({"type": "image_url", "image_url": {"url": picture}}),
        json!({"type": "input_audio", "input_audio": {"data": recording, "format": "wav"}}),
    ];
    let mut responses = Vec::new();
    let asked = corral.with_neighbors(|| {
        for (option, mutant) in mutants {
            let mut body = request(&mutant.name);
            if *option == "--adapter" {
                body["adapter"] = json!("damaged");
            }
            let response = corral.post("/generate", body.to_string());
            for part in &media {
                if response.status == 200 && *option == "--mmproj" {
                    let content = json!([part, {"type": "text", "text": "="}]);
                    let messages = json!([{"role": "user", "content": content}]);
                    let body = json!({"model": mutant.name, "max_tokens": 4, "messages": messages});
                    // Its encoder may not accept it.
                    let _ = corral.post("/v1/chat/completions", body.to_string());
                }
            }
            responses.push(response);
        }
    });
    assert!(asked >= 2, "1+1 was answered {asked} times meanwhile");
    corral.check_alive();
    drop(corral);
    for (response, (_, mutant)) in responses.iter().zip(mutants) {
        let is_public = !response.body.contains(dir.to_str().expect("UTF-8"));
        assert!(is_public, "{}: {response:?}", mutant.name);
    }
    std::fs::remove_dir_all(dir).expect("it is ours");
    responses
}

#[test]
fn files_that_abort_llama_cpp_are_refused() {
    let u32 = |key: &str, value: u32| {
        Mutant::new(&format!("{key}-{value}")).set(key, U32, &value.to_le_bytes())
    };
    let rms = |value: f32| {
        let key = "qwen3.attention.layer_norm_rms_epsilon";
        Mutant::new(&format!("rms{value}")).set(key, F32, &value.to_le_bytes())
    };
    let tokenizer = |text: &str| {
        Mutant::new(text).set_text("tokenizer.ggml.model", text, "general.description")
    };
    let tensor =
        |kind: u32| Mutant::new(&format!("type-{kind}")).set_type("blk.0.attn_k.weight", kind);
    let mutants = [
        u32("qwen3.block_count", 0),
        u32("qwen3.block_count", 513),
        u32("qwen3.block_count", u32::MAX),
        u32("qwen3.rope.dimension_count", 0),
        u32("qwen3.rope.dimension_count", 63),
        // One flipped bit.
        u32("qwen3.rope.dimension_count", 64 ^ 1),
        u32("qwen3.rope.dimension_count", 64 ^ (1 << 20)),
        rms(-1.0),
        rms(f32::NAN),
        tokenizer("llama"),
        tokenizer("none"),
        tensor(25),
        tensor(26),
    ];
    let statuses = ask_all(&mutants);
    for (mutant, status) in mutants.iter().zip(statuses) {
        assert_eq!(status, 500, "{}", mutant.name);
    }
}

#[test]
fn random_mutants_leave_server_running() {
    let mutants: Vec<_> = (0..MUTANTS as u64).map(Mutant::random).collect();
    ask_all(&mutants);
}

#[test]
fn random_companions_leave_server_running() {
    let mutants: Vec<_> = (0..COMPANION_MUTANTS).flat_map(random_companions).collect();
    ask_with_companions(&mutants);
}

#[test]
fn projectors_that_abort_llama_cpp_are_refused() {
    let mutant = |name: &str, file: &str, key: &str, value: u32| {
        let mutant = Mutant::of(name, Path::new(file));
        ("--mmproj", mutant.set(key, U32, &value.to_le_bytes()))
    };
    let mutants = [
        mutant("sees", projector(), "clip.vision.embedding_length", 7),
        mutant("hears", audio_projector(), "clip.audio.embedding_length", 7),
    ];
    for (response, (_, mutant)) in ask_with_companions(&mutants).iter().zip(&mutants) {
        assert_eq!(response.status, 500, "{response:?}");
        let named = format!("with {}.gguf: opening it fails", mutant.name);
        assert!(response.body.contains(&named), "{response:?}");
    }
}

/// The seeds of the ignored tests: `CORRAL_MUTANTS` of them, from `CORRAL_SEED` on.
fn many_seeds() -> std::ops::Range<u64> {
    let number = |name: &str, otherwise: u64| {
        let text = std::env::var(name).ok();
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let first = number("CORRAL_SEED", 1_000_000);
    first..first + number("CORRAL_MUTANTS", SOAK_MUTANTS)
}

/// Counts the responses of usable and of refused mutants.
#[derive(Default)]
struct Outcomes {
    usable: usize,
    refused: usize,
}

impl Outcomes {
    fn add(&mut self, statuses: impl IntoIterator<Item = u16>) {
        for status in statuses {
            match status {
                200 => self.usable += 1,
                _ => self.refused += 1,
            }
        }
        println!("{} usable, {} refused", self.usable, self.refused);
    }
}

#[test]
#[ignore = "takes minutes for each thousand: make soak; CORRAL_MUTANTS and CORRAL_SEED choose"]
fn many_random_mutants_leave_server_running() {
    let mut outcomes = Outcomes::default();
    for seeds in Vec::from_iter(many_seeds()).chunks(BATCH) {
        let mutants: Vec<_> = seeds.iter().copied().map(Mutant::random).collect();
        outcomes.add(ask_all(&mutants));
    }
}

#[test]
#[ignore = "takes minutes for each thousand: make soak; CORRAL_MUTANTS and CORRAL_SEED choose"]
fn many_random_companions_leave_server_running() {
    let mut outcomes = Outcomes::default();
    let seeds = Vec::from_iter(many_seeds().step_by(MODELS_PER_COMPANION));
    for seeds in seeds.chunks(BATCH / companions().len()) {
        let mutants: Vec<_> = seeds.iter().copied().flat_map(random_companions).collect();
        let responses = ask_with_companions(&mutants);
        outcomes.add(responses.iter().map(|response| response.status));
    }
}

#[test]
fn served_file_may_change() {
    let dir = scratch_dir();
    let file = dir.join("copy.gguf");
    std::fs::copy(artifacts::model(), &file).expect("copied");
    let corral = start(&dir, &[named("copy", &file)]);
    assert_eq!(corral.generate(&request("copy"))["text"], "2");
    let bytes = std::fs::read(&file).expect("readable");
    let asked = corral.with_neighbors(|| {
        for changed in [&bytes[..4096], &[], &vec![0xff; bytes.len()]] {
            // In place: the same inode.
            std::fs::write(&file, changed).expect("writable");
            for _ in 0..20 {
                assert_eq!(corral.generate(&request("copy"))["text"], "2");
            }
        }
    });
    assert!(asked >= 2, "1+1 was answered {asked} times meanwhile");
    corral.wait_until_idle();
}

#[test]
fn passed_check_is_kept_until_file_changes() {
    let dir = scratch_dir();
    let file = dir.join("copy.gguf");
    std::fs::copy(artifacts::model(), &file).expect("copied");
    let children = |corral: &Corral| {
        assert_eq!(corral.generate(&request("copy"))["text"], "2");
        corral.metrics().get("corral_child_processes_started_total")
    };
    // The first start also checks the first model, and compiles the plugins.
    let corral = start(&dir, &[named("copy", &file)]);
    assert!(children(&corral) >= 2.0);
    drop(corral);
    let corral = start(&dir, &[named("copy", &file)]);
    assert_eq!(children(&corral), 0.0, "known");
    drop(corral);
    std::fs::copy(artifacts::model(), &file).expect("copied");
    let corral = start(&dir, &[named("copy", &file)]);
    assert_eq!(children(&corral), 1.0, "changed");
}
