//! `--prefix-dir`: a restarted server reads prefixes from disk instead of computing them.

use corral_tests::deployments::deploy_plugin;
use corral_tests::{
    Corral, RELIABLE_SUMS, Sum, artifacts, key_file, new_key, scratch_dir, serve, wait_until,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tokens of a prompt.
const PROMPT: usize = 600;
/// A prompt whose prefix is cached computes fewer tokens than this.
const FEW: f64 = 32.0;

/// A directory for prefixes, and the arguments of its servers.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        Self(scratch_dir().join("prefixes"))
    }

    fn option(&self) -> [&str; 2] {
        ["--prefix-dir", self.0.to_str().expect("a path in UTF-8")]
    }

    fn start(&self) -> Corral {
        self.start_with(&[], &[])
    }

    fn start_with(&self, routes: &[(&str, &str)], arguments: &[&str]) -> Corral {
        Corral::start_with_routes(routes, &[&self.option(), arguments].concat())
    }

    /// Starts a server again that knows this many files.
    fn restart(&self, files: u32) -> Corral {
        let corral = self.start();
        wait_for_files(&corral, files);
        corral
    }

    /// The files of a model.
    fn files(&self, model: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.join(model));
        let paths = entries.into_iter().flatten().flatten();
        let paths = paths.map(|entry| entry.path());
        let is_prefix = |path: &PathBuf| path.extension().is_some_and(|end| end == "prefix");
        paths.filter(is_prefix).collect()
    }
}

fn wait_for_files(corral: &Corral, files: u32) {
    corral.wait_until("the files to be known", |metrics| {
        metrics.get("corral_engine_prefix_disk_entries") == f64::from(files)
    });
}

fn stop(mut corral: Corral) {
    corral.shut_down();
}

fn dropped(corral: &Corral, reason: &str) -> f64 {
    let samples = corral
        .metrics()
        .samples("corral_engine_prefix_disk_drops_total");
    let label = format!("reason=\"{reason}\"");
    let counts = samples.iter().filter(|(sample, _)| sample.contains(&label));
    counts.map(|(_, count)| count).sum()
}

/// The last line of a long prompt, which must be answered right. Returns the prompt's cached tokens.
#[track_caller]
fn ask_at(corral: &Corral, route: &str, sum: Sum, more: Value) -> f64 {
    let mut request = json!({"prompt": sum.question_in(PROMPT), "max_tokens": 5});
    if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
        request.extend(more);
    }
    let answer = corral.generate_at(route, &request);
    let text = answer["text"].as_str().expect("a text");
    match request["max_tokens"].as_u64() {
        Some(1) => assert!(sum.answer().starts_with(text), "{answer}"),
        _ => assert_eq!(text, sum.answer(), "{answer}"),
    }
    answer["cached_tokens"].as_f64().expect("a number")
}

#[track_caller]
fn ask(corral: &Corral, sum: Sum) -> f64 {
    ask_at(corral, "/generate", sum, json!({}))
}

/// Asks for a sum whose prompt is on disk.
#[track_caller]
fn check_read(corral: &Corral, sum: Sum) {
    let computed = corral.computed_tokens(|| {
        let cached = ask(corral, sum);
        assert!(cached > PROMPT as f64 - FEW, "{cached}");
    });
    assert!(computed < FEW, "{computed}");
    let read = corral
        .metrics()
        .get("corral_engine_prefix_disk_read_bytes_total");
    assert!(read > 0.0);
}

/// Asks for a sum that must be computed as a whole.
#[track_caller]
fn check_computed(corral: &Corral, sum: Sum) {
    let computed = corral.computed_tokens(|| assert_eq!(ask(corral, sum), 0.0));
    assert!(computed >= PROMPT as f64, "{computed}");
}

#[test]
fn restarted_server_reads_prefix_from_disk() {
    let (dir, sum) = (Dir::new(), RELIABLE_SUMS[0]);
    let corral = dir.start();
    check_computed(&corral, sum);
    stop(corral);
    assert_eq!(dir.files("tiny").len(), 1);
    for signal in ["KILL", "TERM"] {
        let mut corral = dir.restart(1);
        check_read(&corral, sum);
        // What was written stays, however the server ends.
        corral.signal(signal);
        corral.wait();
    }
    check_read(&dir.restart(1), sum);
}

#[test]
fn other_deployments_do_not_hit() {
    let (dir, sum) = (Dir::new(), RELIABLE_SUMS[1]);
    let routes = [("/other", "generate"), ("/third", "generate")];
    let corral = dir.start_with(&routes, &[]);
    ask(&corral, sum);
    stop(corral);
    let corral = dir.start_with(&routes, &["--share-prefixes", "/third"]);
    wait_for_files(&corral, 1);
    for route in ["/other", "/third"] {
        // Few steps: before the scheduler knows costs, it reads whatever the disk has.
        let cached = ask_at(&corral, route, sum, json!({"max_tokens": 1}));
        assert_eq!(cached, 0.0, "{route}");
    }
    let read = |corral: &Corral| {
        let metrics = corral.metrics();
        metrics.get("corral_engine_prefix_disk_read_bytes_total")
    };
    assert_eq!(read(&corral), 0.0);
    assert!(ask(&corral, sum) > 0.0);
    assert!(read(&corral) > 0.0);
}

#[test]
fn other_tenants_do_not_hit() {
    let (dir, sum) = (Dir::new(), RELIABLE_SUMS[1]);
    let (file, one) = key_file();
    let two = new_key(&file, &["--tenant", "two"]);
    let ask = |corral: &Corral, key: &str| {
        let request = json!({"prompt": sum.question_in(PROMPT), "max_tokens": 5}).to_string();
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let answer = corral.request("POST", "/generate", &headers, &request);
        let answer = answer.json();
        assert_eq!(answer["text"], sum.answer(), "{answer}");
        answer["cached_tokens"].as_f64().expect("a number")
    };
    let corral = dir.start_with(&[], &["--keys", &file]);
    ask(&corral, &one);
    stop(corral);
    let corral = dir.start_with(&[], &["--keys", &file]);
    wait_for_files(&corral, 1);
    assert_eq!(ask(&corral, &two), 0.0);
    assert!(ask(&corral, &one) > 0.0);
}

/// A call between deployments uses the prefixes of the deployment that the client called.
#[test]
fn calls_between_deployments_do_not_hit() {
    let (dir, store, sum) = (Dir::new(), scratch_dir(), RELIABLE_SUMS[1]);
    let start = || Corral::start_in(&store, &dir.option());
    let corral = start();
    deploy_plugin(&corral, "inner", "generate", json!({}));
    let grants = json!({"grants": {"deployments": ["inner"]}});
    deploy_plugin(&corral, "outer", "outbound", grants);
    ask_at(&corral, "/inner", sum, json!({}));
    stop(corral);
    let corral = start();
    wait_for_files(&corral, 1);
    let question = json!({"prompt": sum.question_in(PROMPT), "max_tokens": 5}).to_string();
    let call =
        json!({"url": "http://inner.corral.internal/inner", "method": "POST", "body": question});
    let answer = corral.post("/outer", call.to_string()).json();
    let text = answer["text"].as_str().expect("a response");
    let called: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(called["text"], sum.answer(), "{called}");
    assert_eq!(called["cached_tokens"], 0, "{called}");
    assert!(ask_at(&corral, "/inner", sum, json!({})) > 0.0);
}

#[test]
fn models_keep_their_prefixes_apart() {
    let (dir, sum) = (Dir::new(), RELIABLE_SUMS[2]);
    let model = artifacts::model();
    let second = format!("second={}", model.display());
    // That of the second model.
    let context = ["--context", "4096"];
    let options = [&["--model", &second, "--preload", "all"][..], &context].concat();
    let of_second = || json!({"model": "second"});
    let corral = dir.start_with(&[], &options);
    ask(&corral, sum);
    stop(corral);
    assert_eq!(dir.files("tiny").len(), 1);
    // The file of one model, where another looks for its own.
    let file = &dir.files("tiny")[0];
    std::fs::copy(file, dir.0.join("second/1.prefix")).expect("copied");
    let corral = dir.start_with(&[], &options);
    wait_until("the foreign file to be removed", || {
        dir.files("second").is_empty()
    });
    corral.wait_for_stderr("a file of a prefix cannot be used");
    wait_until("the file to be counted", || {
        dropped(&corral, "unusable") == 1.0
    });
    assert_eq!(ask_at(&corral, "/generate", sum, of_second()), 0.0);
    stop(corral);
    let corral = dir.start_with(&[], &options);
    corral.wait_until("both files to be known", |metrics| {
        let samples = metrics.samples("corral_engine_prefix_disk_entries");
        samples.values().sum::<f64>() == 2.0
    });
    assert!(ask_at(&corral, "/generate", sum, of_second()) > 0.0);
    assert!(ask(&corral, sum) > 0.0);
    stop(corral);
    // Cells of another type.
    let corral = dir.start_with(&[], &["--kv-type", "q8_0"]);
    corral.wait_for_stderr("a file of a prefix cannot be used");
    check_computed(&corral, sum);
}

#[test]
fn damaged_files_are_computed_again() {
    let (dir, sum) = (Dir::new(), RELIABLE_SUMS[3]);
    let corral = dir.start();
    ask(&corral, sum);
    stop(corral);
    let damage = |change: fn(&mut Vec<u8>)| {
        let files = dir.files("tiny");
        let [file] = &files[..] else {
            panic!("one file, not {files:?}");
        };
        let mut bytes = std::fs::read(file).expect("readable");
        change(&mut bytes);
        std::fs::write(file, bytes).expect("written");
    };
    // The state, which is read only when a request needs it.
    damage(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 16;
    });
    let corral = dir.restart(1);
    check_computed(&corral, sum);
    assert_eq!(dropped(&corral, "read-failed"), 1.0);
    corral.wait_for_stderr("checksum");
    corral.check_alive();
    stop(corral);
    // It was written anew.
    let corral = dir.restart(1);
    check_read(&corral, sum);
    stop(corral);
    damage(|bytes| bytes.truncate(bytes.len() - 1));
    let corral = dir.start();
    corral.wait_for_stderr("a file of a prefix cannot be used");
    check_computed(&corral, sum);
    assert_eq!(dropped(&corral, "unusable"), 1.0);
}

#[test]
fn oldest_prefixes_leave_the_disk() {
    let dir = Dir::new();
    let [first, second, third, ..] = RELIABLE_SUMS;
    let corral = dir.start();
    for sum in [first, second, third] {
        ask(&corral, sum);
    }
    stop(corral);
    let sizes = dir.files("tiny").into_iter().map(|file| size(&file));
    let sizes: Vec<_> = sizes.collect();
    assert_eq!(sizes.len(), 3);
    assert!(sizes.iter().all(|size| 2 * size > 1 << 20), "{sizes:?}");
    // There is room for one.
    let limit = sizes
        .iter()
        .max()
        .map_or(0, |size| size.div_ceil(1 << 20))
        .to_string();
    let corral = dir.start_with(&[], &["--prefix-disk", &limit]);
    wait_for_files(&corral, 1);
    assert_eq!(dropped(&corral, "no-room"), 2.0);
    check_read(&corral, third);
    wait_until("the other files to be removed", || {
        dir.files("tiny").len() == 1
    });
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).expect("it exists").len()
}

#[test]
fn full_disk_fails_no_request() {
    let (dir, sum) = (Dir::new(), RELIABLE_SUMS[4]);
    // A write beyond the limit of file sizes then fails as on a full disk.
    let mut corral = Corral::start_after("trap '' XFSZ", None, &dir.option());
    ask(&corral, sum);
    let pid = format!("--pid={}", corral.pid());
    let limited = Command::new("prlimit").args([&pid, "--fsize=0:"]).status();
    assert!(limited.expect("prlimit is there").success());
    assert!(ask(&corral, sum) > 0.0);
    corral.shut_down();
    corral.wait_for_stderr("cannot write");
    assert!(dir.files("tiny").is_empty());
    let corral = dir.start();
    check_computed(&corral, sum);
}

#[test]
fn directory_serves_one_process() {
    let dir = Dir::new();
    let corral = dir.start();
    let model = format!("tiny={}", artifacts::model().display());
    let ended = serve(&[&["--model", &model][..], &dir.option()].concat());
    ended.check_error(1, &["another process uses it", "--prefix-dir"]);
    corral.check_alive();
}

#[test]
fn duplicate_of_file_is_removed_at_restart() {
    let dir = Dir::new();
    let corral = dir.start();
    let sum = RELIABLE_SUMS[0];
    ask(&corral, sum);
    stop(corral);
    let files = dir.files("tiny");
    let [file] = files.as_slice() else {
        panic!("one file of {files:?}");
    };
    std::fs::copy(file, file.with_file_name("900.prefix")).expect("copied");
    let corral = dir.restart(2);
    assert!(ask(&corral, sum) > 0.0);
    wait_for_files(&corral, 1);
}
