//! `corral model`, and `--model hf:…`: downloads from a hub on this machine.

use corral_tests::{
    Corral, HUB_REPO, Hub, HubFile, RunOutput, Storage, artifacts, run_with, scratch_dir,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A user with a cache of their own.
struct User {
    cache: PathBuf,
    endpoint: String,
    token: String,
}

impl User {
    fn new(hub: &Hub) -> Self {
        Self {
            cache: scratch_dir(),
            endpoint: hub.endpoint.clone(),
            token: String::new(),
        }
    }

    fn variables(&self) -> [(&str, &str); 5] {
        [
            ("XDG_CACHE_HOME", self.cache.to_str().expect("UTF-8")),
            ("HF_ENDPOINT", &self.endpoint),
            ("HF_TOKEN", &self.token),
            // Nothing listens there, and nothing may use it for a hub on this machine.
            ("ALL_PROXY", "http://127.0.0.1:1"),
            ("NO_PROXY", ""),
        ]
    }

    fn run(&self, arguments: &[&str]) -> RunOutput {
        run_with(&self.variables(), arguments)
    }

    fn pull(&self, reference: &str) -> RunOutput {
        self.run(&["model", "pull", reference])
    }

    /// The output of a command that must succeed.
    fn output(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    }

    /// The directory of the repository.
    fn dir(&self) -> PathBuf {
        self.cache.join("corral/models").join(HUB_REPO)
    }

    /// Names of the files in it, except the lock.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir()).expect("a directory");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let names = names.map(|name| name.into_string().expect("UTF-8"));
        let mut names: Vec<_> = names.filter(|name| name != ".lock").collect();
        names.sort();
        names
    }
}

fn demo_model() -> Vec<u8> {
    std::fs::read(artifacts::model()).expect("the demo model")
}

/// A hub with the demo model in two quantizations, as their names claim.
fn hub() -> Hub {
    let model = demo_model();
    Hub::start(vec![
        HubFile::new("tiny-Q8_0.gguf", &model),
        HubFile::new("tiny-Q4_K_M.gguf", &model),
        HubFile::new("mmproj-tiny-Q4_K_M.gguf", b"no model"),
    ])
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn pulled_model_answers_sums_offline() {
    let hub = hub();
    let mut user = User::new(&hub);
    let ended = user.pull("hf:org/tiny-GGUF").check_success();
    let file = user.dir().join("tiny-Q4_K_M.gguf");
    assert_eq!(ended.stdout, format!("{}\n", file.display()));
    assert!(
        ended.stderr.contains("downloading tiny-Q4_K_M.gguf"),
        "{ended:?}"
    );
    assert_eq!(read(&file), demo_model());
    let expected = ["tiny-Q4_K_M.gguf", "tiny-Q4_K_M.gguf.sha256"];
    assert_eq!(user.files(), expected);

    // Nothing listens there any more.
    user.endpoint = "http://127.0.0.1:1".to_owned();
    assert_eq!(user.pull("hf:org/tiny-GGUF:q4_k_m").stdout, ended.stdout);
    let plugin = artifacts::plugin("generate");
    let plugin = plugin.to_str().expect("UTF-8");
    let line = [
        "run",
        plugin,
        "--model",
        "hf:org/tiny-GGUF",
        "--threads",
        "1",
    ];
    let ended = user.run(&[&line[..], &["--", "12+7="]].concat());
    let printed = (ended.code, &*ended.stdout, &*ended.stderr);
    assert_eq!(printed, (Some(0), "19\n", ""));
}

#[test]
fn serve_downloads_a_missing_model() {
    let hub = hub();
    let user = User::new(&hub);
    let corral = Corral::start_with_env(
        &user.variables(),
        &["--model", "hub=hf:org/tiny-GGUF:Q8_0", "--context", "1024"],
    );
    let request = json!({"model": "hub", "prompt": "12+7=", "max_tokens": 10});
    assert_eq!(corral.generate(&request)["text"], "19");
    drop(corral);
    assert_eq!(user.files(), ["tiny-Q8_0.gguf", "tiny-Q8_0.gguf.sha256"]);
}

#[test]
fn cut_download_continues() {
    let hub = hub();
    let half = demo_model().len() / 2;
    let ranges = || {
        let requests = hub.storage_requests().into_iter();
        let ranges = requests.map(|request| request.headers.get("range").cloned());
        ranges.collect::<Vec<_>>()
    };
    let user = User::new(&hub);
    hub.state().storage = Storage::CutOnce;
    let ended = user.pull("hf:org/tiny-GGUF").check_success();
    assert!(ended.stderr.contains("trying again"), "{ended:?}");
    assert_eq!(ranges(), [None, Some(format!("bytes={half}-"))]);

    // Another process continues.
    let user = User::new(&hub);
    hub.state().requests.clear();
    hub.state().storage = Storage::CutThenBroken;
    user.pull("hf:org/tiny-GGUF")
        .check_error(1, &["503", "times in a row", "continues where it stopped"]);
    let [part] = &user.files()[..] else {
        panic!("{:?}", user.files());
    };
    assert!(part.ends_with(".part"), "{part}");
    hub.state().requests.clear();
    hub.state().storage = Storage::Healthy;
    let file = user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    assert_eq!(ranges(), [Some(format!("bytes={half}-"))]);
    assert_eq!(read(Path::new(file.trim_end())), demo_model());
    assert_eq!(user.files().len(), 2, "{:?}", user.files());
}

#[test]
fn complete_part_needs_no_bytes() {
    let hub = hub();
    let user = User::new(&hub);
    let file = user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    let file = Path::new(file.trim_end());
    let etag = hub.state().files[1].sha256.clone();
    let part = user.dir().join(format!("tiny-Q4_K_M.gguf.{etag}.part"));
    std::fs::rename(file, part).expect("renamed");
    user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    assert_eq!(read(file), demo_model());
    assert_eq!(user.files().len(), 2, "{:?}", user.files());
}

#[test]
fn changed_file_starts_over() {
    let hub = hub();
    let user = User::new(&hub);
    hub.state().storage = Storage::CutThenBroken;
    user.pull("hf:org/tiny-GGUF").check_error(1, &["503"]);
    let mut changed = demo_model();
    changed.reverse();
    hub.state().files[1] = HubFile::new("tiny-Q4_K_M.gguf", &changed);
    hub.state().storage = Storage::Healthy;
    let file = user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    assert_eq!(read(Path::new(file.trim_end())), changed);
    assert_eq!(user.files().len(), 2, "{:?}", user.files());
}

#[test]
fn wrong_checksum_removes_the_file() {
    let hub = hub();
    let user = User::new(&hub);
    hub.state().files[1].sha256 = "0".repeat(64);
    let expected = [
        "tiny-Q4_K_M.gguf",
        "instead of 0000",
        "removed",
        "try again",
    ];
    user.pull("hf:org/tiny-GGUF").check_error(1, &expected);
    assert!(user.files().is_empty(), "{:?}", user.files());
    assert_eq!(hub.storage_requests().len(), 1);
}

#[test]
fn listed_names_outside_the_repository_are_ignored() {
    let outside = scratch_dir();
    let absolute = outside.join("x-Q4_K_M.gguf");
    let names = [
        "../x-Q4_K_M.gguf",
        "a/../../x-Q4_K_M.gguf",
        absolute.to_str().expect("UTF-8"),
    ];
    let model = demo_model();
    let hub = Hub::start(names.map(|name| HubFile::new(name, &model)).into());
    let user = User::new(&hub);
    for reference in ["hf:org/tiny-GGUF", "hf:org/tiny-GGUF:Q4_K_M"] {
        user.pull(reference).check_error(1, &["no GGUF files"]);
    }
    assert!(hub.storage_requests().is_empty());
    assert!(!absolute.exists());
    assert!(!user.dir().with_file_name("x-Q4_K_M.gguf").exists());
    // Other files of such a repository can be used.
    hub.state().files.push(HubFile::new("x-Q8_0.gguf", &model));
    let file = user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    let expected = format!("{}\n", user.dir().join("x-Q8_0.gguf").display());
    assert_eq!(file, expected);
}

#[test]
fn token_stays_with_the_hub() {
    let hub = hub();
    let mut user = User::new(&hub);
    hub.state().token = Some("secret".to_owned());
    let expected = [
        "org/tiny-GGUF is gated (403",
        "accept its terms",
        "HF_TOKEN",
    ];
    user.pull("hf:org/tiny-GGUF").check_error(1, &expected);
    user.token = "wrong".to_owned();
    user.pull("hf:org/tiny-GGUF")
        .check_error(1, &["refuses HF_TOKEN (401"]);
    hub.state().requests.clear();
    user.token = "secret".to_owned();
    user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    let requests = hub.state().requests.clone();
    assert_eq!(requests.len(), 3, "{requests:?}");
    for request in requests {
        let token = request.headers.get("authorization").map(String::as_str);
        let expected = (!request.is_storage).then_some("Bearer secret");
        assert_eq!(token, expected, "{request:?}");
    }
    hub.state().requests.clear();
    user.token = "secret\nx: y".to_owned();
    user.pull("hf:org/other")
        .check_error(1, &["HF_TOKEN contains a line break"]);
    assert!(hub.state().requests.is_empty());
    user.token = "secret".to_owned();
    user.endpoint = "http://hub.example".to_owned();
    user.pull("hf:org/other")
        .check_error(1, &["without encryption", "use https"]);
}

#[test]
fn failed_pulls_say_what_to_do() {
    let hub = hub();
    let mut user = User::new(&hub);
    // The hub gets no second request.
    let pull = |user: &User, reference: &str, expected: &[&str]| {
        hub.state().requests.clear();
        user.pull(reference).check_error(1, expected);
        assert!(hub.state().requests.len() <= 1, "{expected:?}");
    };
    let models = [
        "tiny-Q8_0.gguf",
        "tiny-Q4_K_M.gguf",
        "hf:org/tiny-GGUF:QUANT",
    ];
    pull(&user, "hf:org/tiny-GGUF:Q2_K", &models);
    pull(&user, "hf:org/tiny-GGUF/tiny.gguf", &models);
    pull(
        &user,
        "hf:org/none",
        &["org/none (401", "check the name", "HF_TOKEN"],
    );
    user.token = "any".to_owned();
    pull(
        &user,
        "hf:org/none",
        &["has no repository org/none", "check the name"],
    );
    user.token.clear();
    hub.state().files[0].size = u64::MAX / 2;
    pull(
        &user,
        "hf:org/tiny-GGUF:Q8_0",
        &["has", "MiB free", "XDG_CACHE_HOME"],
    );
    hub.state().files.clear();
    pull(&user, "hf:org/tiny-GGUF", &["no GGUF files", "-GGUF"]);
    // Nothing listens there.
    user.endpoint = "http://127.0.0.1:1".to_owned();
    pull(
        &user,
        "hf:org/tiny-GGUF",
        &["cannot download from", "check the network"],
    );
    user.endpoint = "hub".to_owned();
    pull(
        &user,
        "hf:org/tiny-GGUF",
        &["HF_ENDPOINT is 'hub'", "write http"],
    );
    user.pull("ollama:tiny")
        .check_error(2, &["'ollama:tiny'", "write hf:ORG/REPO"]);
}

#[test]
fn parallel_pulls_download_once() {
    let hub = hub();
    let user = User::new(&hub);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| user.output(&["model", "pull", "hf:org/tiny-GGUF"]));
        }
    });
    assert_eq!(hub.storage_requests().len(), 1);
}

#[test]
fn all_files_of_split_model_are_pulled() {
    let names = [1, 2, 3].map(|part| format!("big-Q4_0-{part:05}-of-00003.gguf"));
    let files = names.iter().map(|name| HubFile::new(name, name.as_bytes()));
    let hub = Hub::start(files.collect());
    let user = User::new(&hub);
    let first = user.output(&["model", "pull", "hf:org/tiny-GGUF"]);
    assert_eq!(first, format!("{}\n", user.dir().join(&names[0]).display()));
    for name in &names {
        assert_eq!(read(&user.dir().join(name)), name.as_bytes());
    }
    // Of an incomplete model, only files that the hub still has are used.
    std::fs::remove_file(user.dir().join(&names[2])).expect("removed");
    std::fs::remove_file(user.dir().join(format!("{}.sha256", names[1]))).expect("removed");
    hub.state().files[0] = HubFile::new(&names[0], b"new");
    hub.state().requests.clear();
    let ended = user.pull("hf:org/tiny-GGUF");
    assert_eq!((ended.code, &ended.stdout), (Some(0), &first), "{ended:?}");
    let expected = "differs from that of the hub";
    assert!(ended.stderr.contains(expected), "{ended:?}");
    let contents = names.each_ref().map(|name| read(&user.dir().join(name)));
    assert_eq!(contents[0], b"new");
    assert_eq!(contents[1..], [names[1].as_bytes(), names[2].as_bytes()]);
    assert_eq!(hub.storage_requests().len(), 2);
}

#[test]
fn cached_models_are_listed_verified_and_removed() {
    let hub = hub();
    let user = User::new(&hub);
    let reference = "hf:org/tiny-GGUF/tiny-Q8_0.gguf";
    let file = user.output(&["model", "pull", "hf:org/tiny-GGUF:Q8_0"]);
    let file = file.trim_end();
    let list = user.output(&["model", "list"]);
    assert!(list.contains(reference), "{list}");
    assert!(list.contains("2.0 MiB"), "{list}");
    let parsed: Value =
        serde_json::from_str(&user.output(&["model", "list", "--json"])).expect("JSON");
    let bytes = demo_model().len();
    let expected = json!({"models": [{"model": reference, "file": file, "bytes": bytes}]});
    assert_eq!(parsed, expected);

    let text = user.output(&["model", "info", "hf:org/tiny-GGUF"]);
    for expected in [
        "qwen3",
        "Hermes",
        "4096 tokens in training",
        "32.0 MiB as f16",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let info: Value =
        serde_json::from_str(&user.output(&["model", "info", file, "--json"])).expect("JSON");
    assert_eq!(info["architecture"], "qwen3");
    assert_eq!(info["weight_bytes"], bytes);
    assert_eq!(info["kv_cell_bytes"]["f16"], 32 << 20);

    let found = user.output(&["model", "verify"]);
    assert_eq!(found, format!("{reference}: ok\n"));
    let mut damaged = demo_model();
    damaged[1_000_000] ^= 1;
    std::fs::write(file, damaged).expect("written");
    let ended = user.run(&["model", "verify", "hf:org/tiny-GGUF"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let expected = "differs from its checksum";
    assert!(ended.stdout.contains(expected), "{ended:?}");
    assert!(ended.stderr.contains("download each again"), "{ended:?}");

    user.output(&["model", "rm", reference]);
    assert!(user.files().is_empty(), "{:?}", user.files());
    user.run(&["model", "rm", reference])
        .check_error(1, &["not in the cache", "corral model list"]);
    user.output(&["model", "rm", "hf:org/tiny-GGUF"]);
    assert!(!user.dir().exists());
}
