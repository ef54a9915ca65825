//! Everything at once for as long as `CORRAL_MINUTES` says: `make soak`. All APIs, deploys, model loads, hostile plugins,
//! damaged swap files and components, and a server that is killed and started again. After each round nothing is in use,
//! and the token identity holds. At the last server's end, its memory and descriptors have not grown.

use corral_tests::deployments::{deploy, manifest, show, try_deploy, upload, variant};
use corral_tests::{Corral, RELIABLE_SUMS, Sum, artifacts, scratch_dir, seed, words};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DEFAULT_MINUTES: u64 = 60;
/// Eighths of the time for each server. All but the last are killed; the last one's memory is measured.
const SERVER_EIGHTHS: [u32; 3] = [1, 1, 6];
/// Allowed growth of memory, allocated and resident, from the third quarter of the last server's rounds to the last quarter.
const GROWTH: f64 = 0.01;
/// With fewer rounds the server's caches still fill, and the growth is only printed.
const FULL_ROUNDS: usize = 600;
/// Different components and deployments, so that the server's caches are full soon.
const COMPONENTS: u64 = 4;
const DEPLOYMENTS: u64 = 3;
/// Different bodies of random calls, for the same reason: many compile a grammar, and a model's cache holds 256.
const RANDOM_CALLS: u64 = 200;
/// Models that load on demand.
const MODELS: [&str; 2] = ["second", "third"];
/// Lengths of prompts. The model answers [`RELIABLE_SUMS`] after each.
const LENGTHS: [usize; 4] = [32, 100, 300, 600];

/// Resources of an idle server.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// Bytes of the process, without those of mapped files: the kernel drops these and reads them again.
    resident: f64,
    /// Of these, blocks of the heap in use.
    allocated: f64,
    /// Free blocks of the heap.
    free: f64,
    /// What ended plugin instances left.
    idle_pool: f64,
    files: usize,
    threads: usize,
}

impl Usage {
    /// Sockets of clients do not count: they stay open for a while.
    fn of(corral: &Corral) -> Self {
        let process = PathBuf::from(format!("/proc/{}", corral.pid()));
        let list = |name: &str| {
            std::fs::read_dir(process.join(name))
                .expect("Linux")
                .flatten()
        };
        let is_file = |entry: &std::fs::DirEntry| {
            let target = std::fs::read_link(entry.path());
            target.is_ok_and(|target| !target.to_string_lossy().starts_with("socket:"))
        };
        let metrics = corral.metrics();
        Usage {
            resident: anonymous_bytes(&process),
            allocated: metrics.get("corral_heap_allocated_bytes"),
            free: metrics.get("corral_heap_free_bytes"),
            idle_pool: metrics.get("corral_plugin_pool_idle_bytes"),
            files: list("fd").filter(is_file).count(),
            threads: list("task").count(),
        }
    }
}

/// Resident memory of a process that is no file's.
fn anonymous_bytes(process: &Path) -> f64 {
    let status = std::fs::read_to_string(process.join("status")).expect("Linux");
    let field = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = field.and_then(|value| value.trim().strip_suffix(" kB"));
    1024.0 * kib.and_then(|kib| kib.parse::<f64>().ok()).expect("Linux")
}

/// How much the median grows from `early` to `late`.
fn growth(early: &[Usage], late: &[Usage], of: fn(&Usage) -> f64) -> f64 {
    let median = |usages: &[Usage]| {
        let mut bytes: Vec<f64> = usages.iter().map(of).collect();
        bytes.sort_by(f64::total_cmp);
        bytes[bytes.len() / 2]
    };
    median(late) / median(early) - 1.0
}

struct Soak {
    dir: PathBuf,
    /// Version of each stored deployment.
    deployed: BTreeMap<String, u64>,
    version: u64,
    random: ChaCha8Rng,
}

fn start(dir: &Path) -> Corral {
    let path = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let model = artifacts::long_model();
    let models = MODELS.map(|name| format!("{name}={}", model.display()));
    let mut line: Vec<String> = models
        .into_iter()
        .flat_map(|model| ["--model".to_owned(), model])
        .collect();
    for (option, value) in [
        ("--store", path("store")),
        ("--swap-dir", path("swap")),
        ("--snapshot-dir", path("snapshots")),
        ("--cache-dir", path("cache")),
    ] {
        line.extend([option.to_owned(), value]);
    }
    let mut line: Vec<&str> = line.iter().map(String::as_str).collect();
    // Small budgets, so that they are in use from the first round on.
    line.extend(words("--context 2048 --kv-cells 2048 --max-running 16"));
    line.extend(words("--swap-memory 1 --swap-disk 64 --snapshot-disk 16"));
    line.extend(words(
        "--prefix-offload-memory 2 --time-limit 60 --cpu-limit 2",
    ));
    let routes = ["/v1", "/tokenize", "/detokenize"].map(|route| (route, "openai"));
    let more = [
        ("/loops", "loops"),
        ("/blocking", "blocking"),
        ("/random-calls", "random-calls"),
    ];
    Corral::start_with_routes(&[&routes[..], &more].concat(), &line)
}

fn sum(random: &mut ChaCha8Rng) -> Sum {
    RELIABLE_SUMS[random.random_range(0..RELIABLE_SUMS.len())]
}

/// Each API once, with and without a stream.
fn ask_apis(corral: &Corral, random: &mut ChaCha8Rng) {
    let sum = sum(random);
    let messages = json!([{"role": "user", "content": sum.question()}]);
    let chat = json!({"messages": messages, "temperature": 0, "max_tokens": 20});
    let post = |path: &str, body: &Value| corral.post_json(path, body);
    let answer = post("/v1/chat/completions", &chat);
    assert_eq!(answer["choices"][0]["message"]["content"], sum.answer());
    let answer = post("/v1/messages", &chat);
    assert_eq!(answer["content"][0]["text"], sum.answer());
    let body = json!({"input": sum.question(), "temperature": 0, "max_output_tokens": 20});
    let answer = post("/v1/responses", &body);
    assert_eq!(answer["output"][0]["content"][0]["text"], sum.answer());
    let body = json!({"prompt": sum.question(), "temperature": 0, "max_tokens": 20});
    let answer = post("/v1/completions", &body);
    assert_eq!(answer["choices"][0]["text"], sum.answer());
    let answer = post("/v1/embeddings", &json!({"input": [sum.question(), "a"]}));
    assert_eq!(answer["data"].as_array().map(Vec::len), Some(2));
    let tokens = post("/tokenize", &json!({"content": sum.question()}));
    assert_eq!(post("/detokenize", &tokens)["content"], sum.question());
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let mut body = chat.clone();
        body["stream"] = json!(true);
        let mut stream = corral.post_stream(path, body.to_string());
        assert_eq!(stream.status, 200, "{path}");
        // Some clients hang up.
        let hangs_up = random.random_range(0..4) == 0;
        let mut lines = 0;
        while let Some(line) = stream.line().expect("the stream ends as it should") {
            lines += usize::from(line.starts_with("data: "));
            if hangs_up && lines == 2 {
                break;
            }
        }
        assert!(lines >= 2, "{path}: {lines} events");
    }
    let (texts, _) = corral.generate_stream(&sum.long_request(40)).texts();
    assert!(texts.concat().starts_with(&sum.answer()), "{texts:?}");
    assert_eq!(corral.get("/v1/models").status, 200);
}

fn ask_sums(corral: &Corral, random: &mut ChaCha8Rng) {
    for _ in 0..12 {
        let sum = sum(random);
        let length = LENGTHS[random.random_range(0..LENGTHS.len())];
        let found = corral.text(&sum.question_in(length));
        assert_eq!(found, sum.answer(), "{sum:?} after {length}");
    }
}

/// Loops of guests, which hold sequences while they think: these are swapped out.
fn run_loops(corral: &Corral, random: &mut ChaCha8Rng) {
    for which in [
        "next", "generate", "many", "keep", "kept", "match", "collect", "frame", "leave",
    ] {
        let sum = sum(random);
        let question = match which {
            "many" => vec![sum.question_in(100); 8].join("\n"),
            "keep" => format!("owl\n{}", sum.question()),
            "kept" => "owl".to_owned(),
            "match" => format!("[0-9]+\n{}", sum.question()),
            _ => sum.question_in(600),
        };
        let answer = corral.post(&format!("/loops/{which}"), question);
        let may_miss = ["many", "kept"].contains(&which);
        assert!(
            answer.status == 200 || may_miss && answer.status == 400,
            "{which}: {answer:?}"
        );
    }
}

fn attack(corral: &Corral, random: &mut ChaCha8Rng) {
    for fault in [
        "trap", "panic", "refuse", "upgrade", "abandon", "midtrap", "hog", "spin",
    ] {
        let _ = corral.begin_post(&format!("/misbehave/{fault}"), "");
        let answer = corral.get(&format!(
            "/misbehave/{}",
            ["trap", "log", "env", "?"][random.random_range(0..4)]
        ));
        assert!([200, 404, 500, 503].contains(&answer.status), "{answer:?}");
    }
    drop((corral.drip("/misbehave"), corral.endless("/generate")));
    for body in [
        "",
        "{",
        "[1]",
        r#"{"prompt": 5}"#,
        r#"{"prompt": "a", "max_tokens": -1}"#,
    ] {
        assert_eq!(corral.post("/generate", body).status, 400, "{body}");
    }
    for _ in 0..20 {
        let mut body = ChaCha8Rng::seed_from_u64(random.random_range(0..RANDOM_CALLS));
        let mut bytes = vec![0; body.random_range(1..800)];
        body.fill_bytes(&mut bytes);
        let answer = corral.post("/random-calls", bytes);
        assert!([200, 503, 504].contains(&answer.status), "{answer:?}");
    }
}

fn load_models(corral: &Corral, random: &mut ChaCha8Rng) {
    for name in MODELS {
        let sum = sum(random);
        let request = json!({"model": name, "prompt": sum.question(), "max_tokens": 20});
        assert_eq!(corral.generate(&request)["text"], sum.answer());
        let unloaded = corral.request_admin("DELETE", &format!("/models/{name}"), "");
        assert!(
            [200, 202, 204, 409].contains(&unloaded.status),
            "{unloaded:?}"
        );
    }
}

/// Damages some of the files of swapped-out states.
fn damage_swap_files(dir: &Path, random: &mut ChaCha8Rng) {
    let list = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in list(dir.join("swap")).flat_map(|dir| list(dir.path())) {
        let file = entry.path();
        if file.extension().is_none_or(|end| end != "state") {
            continue;
        }
        // The server may remove the file meanwhile.
        let _ = match random.random_range(0..6) {
            0 => std::fs::remove_file(file),
            1 => std::fs::write(file, b"short"),
            2 => std::fs::read(&file).and_then(|mut bytes| {
                // Empty if the server has just begun to write it.
                if let Some(first) = bytes.first_mut() {
                    *first ^= 1;
                }
                std::fs::write(file, bytes)
            }),
            _ => Ok(()),
        };
    }
}

impl Soak {
    fn random(&mut self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.random.random())
    }

    /// Changes deployments, each time differently.
    fn change_deployments(&mut self, corral: &Corral) {
        let component = artifacts::component("misbehave");
        for _ in 0..3 {
            let name = format!("d{}", self.random.random_range(0..DEPLOYMENTS));
            match self.random.random_range(0..5) {
                0 if self.deployed.contains_key(&name) => {
                    let removed =
                        corral.request_admin("DELETE", &format!("/deployments/{name}"), "");
                    assert_eq!(removed.status, 200, "{removed:?}");
                    self.deployed.remove(&name);
                }
                1 => {
                    let digest = upload(corral, b"\0asm, but no component");
                    let refused = try_deploy(corral, &manifest("none", &digest, json!({})));
                    assert!((400..500).contains(&refused.status), "{refused:?}");
                }
                _ => {
                    self.version += 1;
                    let component = variant(&component, self.random.random_range(0..COMPONENTS));
                    let digest = upload(corral, &component);
                    let version = json!({"configuration": {"VERSION": self.version.to_string()}});
                    deploy(corral, &manifest(&name, &digest, version));
                    self.deployed.insert(name, self.version);
                }
            }
        }
        self.check_deployments(corral);
    }

    fn check_deployments(&self, corral: &Corral) {
        for number in 0..DEPLOYMENTS {
            let name = format!("d{number}");
            let answer = corral.get(&format!("/{name}/env"));
            match self.deployed.get(&name) {
                Some(version) => assert_eq!(answer.body, format!("VERSION={version}\n"), "{name}"),
                None => assert_eq!(answer.status, 404, "{name}: {answer:?}"),
            }
        }
    }

    /// Everything at once, until all of it has ended.
    fn round(&mut self, corral: &Corral) -> Usage {
        let clients: [fn(&Corral, &mut ChaCha8Rng); 6] =
            [ask_apis, ask_sums, ask_sums, run_loops, attack, load_models];
        let randoms = clients.map(|_| self.random());
        let (dir, mut random) = (self.dir.clone(), self.random());
        std::thread::scope(|scope| {
            for (client, mut random) in clients.into_iter().zip(randoms) {
                scope.spawn(move || client(corral, &mut random));
            }
            scope.spawn(move || {
                for _ in 0..10 {
                    damage_swap_files(&dir, &mut random);
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
            self.change_deployments(corral);
        });
        // What is left in the caches is not in use.
        let cleared = corral.request_admin("DELETE", "/prefix-cache", "");
        assert!(cleared.status < 300, "{cleared:?}");
        corral.wait_until_idle();
        for sum in RELIABLE_SUMS {
            assert_eq!(corral.text(&sum.question()), sum.answer());
        }
        Usage::of(corral)
    }

    /// Kills the server while it is busy. A component in its store is damaged before the next one starts.
    fn kill(&mut self, mut corral: Corral) {
        let component = variant(&artifacts::component("misbehave"), COMPONENTS);
        let digest = upload(&corral, &component);
        deploy(&corral, &manifest("damaged", &digest, json!({})));
        let busy: Vec<_> = (0..4).map(|_| corral.endless("/generate")).collect();
        corral.signal("KILL");
        corral.wait();
        drop((busy, corral));
        let digits = digest.strip_prefix("sha256:").expect("a digest");
        let file = self.dir.join(format!("store/components/{digits}.wasm"));
        std::fs::write(&file, b"damaged").expect("the component is stored");

        let corral = start(&self.dir);
        corral.get("/damaged/env").problem(503, "deployment-failed");
        self.check_deployments(&corral);
        assert_eq!(show(&corral, "damaged")["deployment"]["state"], "failed");
        upload(&corral, &component);
        deploy(&corral, &manifest("damaged", &digest, json!({})));
        assert_eq!(corral.get("/damaged/env").status, 200);
        let removed = corral.request_admin("DELETE", "/deployments/damaged", "");
        assert_eq!(removed.status, 200, "{removed:?}");
    }

    /// Runs rounds on one server for `time`.
    fn run_server(&mut self, server: usize, time: Duration) {
        let corral = start(&self.dir);
        self.check_deployments(&corral);
        let (started, mut usages) = (Instant::now(), Vec::new());
        while started.elapsed() < time || usages.len() < 3 {
            let usage = self.round(&corral);
            println!("server {server}, round {}: {usage:?}", usages.len());
            usages.push(usage);
        }
        // The first half fills caches: in an hour's run, resident memory grew by 2.5 % from the first quarter to the third,
        // and by 0.6 % from there to the last.
        let quarter = usages.len() / 4;
        let (early, late) = (&usages[2 * quarter..3 * quarter], &usages[3 * quarter..]);
        let allocated = growth(early, late, |usage| usage.allocated);
        let resident = growth(early, late, |usage| usage.resident);
        let metrics = corral.wait_until_idle();
        println!(
            "server {server}: {} rounds, {} requests, {} tokens computed, {} swapped out, {} states lost, allocated memory {:+.2} %, resident \
             {:+.2} %",
            usages.len(),
            metrics.get("corral_engine_requests_finished_total"),
            metrics.get("corral_engine_computed_tokens_total"),
            metrics.get("corral_engine_swap_outs_total"),
            metrics.get("corral_engine_swapped_states_lost_total"),
            allocated * 100.0,
            resident * 100.0,
        );
        if let Some(last) = usages.last() {
            println!(
                "server {server}: free blocks {:.1} MB, idle in the instance pool {:.1} MB",
                last.free / 1e6,
                last.idle_pool / 1e6
            );
        }
        if server + 1 < SERVER_EIGHTHS.len() {
            return self.kill(corral);
        }
        let is_full = usages.len() >= FULL_ROUNDS;
        for (what, growth) in [("allocated", allocated), ("resident", resident)] {
            assert!(
                !is_full || growth < GROWTH,
                "{what} memory grew by {:.2} %",
                growth * 100.0
            );
        }
        for (what, of) in [
            ("files", (|usage| usage.files) as fn(&Usage) -> usize),
            ("threads", |usage| usage.threads),
        ] {
            let (before, after) = (early.iter().map(of).max(), late.iter().map(of).min());
            assert!(
                after <= before,
                "{what}: {before:?} before, {after:?} after"
            );
        }
    }
}

#[test]
#[ignore = "takes CORRAL_MINUTES: make soak"]
fn soak_leaves_resources_as_they_were() {
    let minutes = std::env::var("CORRAL_MINUTES").map_or(DEFAULT_MINUTES, |minutes| {
        minutes.parse().expect("CORRAL_MINUTES is a number")
    });
    let mut soak = Soak {
        dir: scratch_dir(),
        deployed: BTreeMap::new(),
        version: 0,
        random: ChaCha8Rng::seed_from_u64(seed()),
    };
    for (server, eighths) in SERVER_EIGHTHS.into_iter().enumerate() {
        soak.run_server(server, Duration::from_secs(minutes * 60) / 8 * eighths);
    }
    std::fs::remove_dir_all(&soak.dir).expect("it is ours");
}
