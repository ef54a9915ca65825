//! Headers of model files, which the server reads before it checks the model: metadata and tensors, for the memory estimate.

#![no_main]

use corral_engine::{ModelConfig, ModelPool, ModelPoolSettings};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tempfile::NamedTempFile;

struct Reader {
    file: NamedTempFile,
    pool: ModelPool,
}

static READER: LazyLock<Reader> = LazyLock::new(|| {
    let file = NamedTempFile::with_suffix(".gguf").expect("a temporary file");
    let config = ModelConfig::new("model", file.path());
    let pool = ModelPool::new(vec![config], &ModelPoolSettings::default()).expect("a thread");
    Reader { file, pool }
});

fuzz_target!(|data: &[u8]| {
    std::fs::write(READER.file.path(), data).expect("the file is ours");
    let _ = READER.pool.estimate("model");
    let _ = READER.pool.estimate_host_bytes("model");
});
