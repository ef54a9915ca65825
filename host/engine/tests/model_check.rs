//! Loads beside their checks, with real children. This binary has a `main` of its own, since a child is the same binary
//! with the hidden command.

use corral_engine::{CHECK_MODEL_JOB, Engine, LoadError, ModelCheck, ModelConfig, check_model_job};
use corral_isolation::{ChildProcesses, run_as_child};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

type Test = fn(&ChildProcesses);

const TESTS: [(&str, Test); 4] = [
    (
        "file_is_checked_at_first_load",
        file_is_checked_at_first_load,
    ),
    (
        "file_that_ends_child_is_refused",
        file_that_ends_child_is_refused,
    ),
    ("incomplete_file_is_refused", incomplete_file_is_refused),
    (
        "load_ends_where_child_stops_in_header",
        load_ends_where_child_stops_in_header,
    ),
];

fn main() -> ExitCode {
    if let Some(code) = run_as_child(&[(CHECK_MODEL_JOB, check_model_job)]) {
        return code;
    }
    let children = ChildProcesses::new().expect("this binary is known");
    for (name, test) in TESTS {
        println!("test {name}");
        test(&children);
        assert_eq!(children.counters().running, 0, "{name}");
    }
    ExitCode::SUCCESS
}

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
}

fn check(children: &ChildProcesses) -> Arc<ModelCheck> {
    Arc::new(ModelCheck::new(children.clone(), None, None))
}

fn load(file: &Path, check: &Arc<ModelCheck>) -> Result<Engine, LoadError> {
    let mut config = ModelConfig::new("tiny", file);
    config.context = Some(256);
    config.cells = Some(256);
    config.threads = Some(1);
    config.check = Some(check.clone());
    Engine::load(config)
}

fn file_is_checked_at_first_load(children: &ChildProcesses) {
    let check = check(children);
    let before = children.counters().started;
    for _ in 0..2 {
        load(&demo_model(), &check)
            .expect("a good model")
            .shutdown();
        assert_eq!(children.counters().started, before + 1);
    }
}

fn file_that_ends_child_is_refused(children: &ChildProcesses) {
    const KEY: &[u8] = b"qwen3.rope.dimension_count";
    let dir = tempfile::tempdir().expect("a directory");
    let mut bytes = fs::read(demo_model()).expect("the model can be read");
    let key = bytes.windows(KEY.len()).position(|some| some == KEY);
    // The type of the value lies between.
    let value = key.expect("the model has the key") + KEY.len() + 4;
    // llama.cpp reads the file, and ends the process when it computes.
    for dimensions in [63_u32, 64 ^ 1] {
        bytes[value..value + 4].copy_from_slice(&dimensions.to_le_bytes());
        let file = dir.path().join(format!("{dimensions}.gguf"));
        fs::write(&file, &bytes).expect("the directory can be written");
        for _ in 0..3 {
            let error = load(&file, &check(children)).err().expect("a broken model");
            assert!(matches!(error, LoadError::Refused { .. }), "{error}");
        }
    }
}

fn incomplete_file_is_refused(children: &ChildProcesses) {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = fs::read(demo_model()).expect("the model can be read");
    let file = dir.path().join("half.gguf");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("the directory can be written");
    let error = load(&file, &check(children)).err().expect("a broken model");
    assert!(matches!(error, LoadError::Refused { .. }), "{error}");
}

fn load_ends_where_child_stops_in_header(children: &ChildProcesses) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut bytes = fs::read(demo_model()).expect("the model can be read");
    // llama.cpp parses the file and lists its values, which the child reports, before it needs the merges.
    let key = b"tokenizer.ggml.merges";
    let at = bytes.windows(key.len()).position(|some| some == key);
    bytes[at.expect("the model has the key")] = b'x';
    let file = dir.path().join("no-merges.gguf");
    fs::write(&file, &bytes).expect("the directory can be written");
    let check = check(children);
    for _ in 0..3 {
        let error = load(&file, &check).err().expect("a broken model");
        assert!(matches!(error, LoadError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("merges"), "{error}");
    }
    // The thread that ended a load loads another file.
    load(&demo_model(), &check)
        .expect("a good model")
        .shutdown();
}
