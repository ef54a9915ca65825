//! The child's side of a check: opens the model and generates.

use crate::device_placement::{DeviceSelection, GpuLayers, PlacementOptions};
use crate::memory_estimate::MemoryEstimate;
use crate::{
    Caller, EmbedOptions, Engine, GenerateOptions, LoadError, ModelConfig, Sequence, Token,
};
use corral_isolation::ChildJob;
use corral_llama::{FileAccess, KvType, load_backends};
use std::ffi::OsString;
use std::future::Future;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Name of the job.
pub const CHECK_MODEL_JOB: &str = "check-model";

/// Positions of a sequence, and cells. Enough for the text and the tokens after it.
const CONTEXT: u32 = 256;
/// Sequences at once.
const MAX_RUNNING: u16 = 2;
/// Tokens to generate.
const TOKENS: u32 = 2;
/// A text with words, digits, other scripts, an emoji, spaces and a control token.
const TEXT: &str = "The cat sat on 12 mats.\n\tÄpfel, 猫 и кот 🐈  <|im_start|>";

/// What a check needs to know. Crosses the pipe as fields that end with a zero byte.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobInput {
    pub path: PathBuf,
    pub backend_dir: Option<PathBuf>,
    pub kv_type: KvType,
    pub context: Option<u32>,
    pub adapters: Vec<(String, PathBuf)>,
}

impl JobInput {
    pub fn encode(&self) -> Vec<u8> {
        let backend_dir = self.backend_dir.as_deref().unwrap_or(Path::new(""));
        let context = self.context.unwrap_or(0).to_string();
        let mut fields = vec![
            self.path.as_os_str().as_bytes(),
            backend_dir.as_os_str().as_bytes(),
            self.kv_type.name().as_bytes(),
            context.as_bytes(),
        ];
        for (name, path) in &self.adapters {
            fields.extend([name.as_bytes(), path.as_os_str().as_bytes()]);
        }
        let mut bytes = fields.join(&0);
        bytes.push(0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
        let path = |field: &[u8]| PathBuf::from(OsString::from_vec(field.to_vec()));
        let mut input = Self {
            path: path(fields.next()?),
            backend_dir: Some(path(fields.next()?)).filter(|dir| !dir.as_os_str().is_empty()),
            kv_type: text(fields.next()?)?.parse().ok()?,
            context: Some(text(fields.next()?)?.parse().ok()?).filter(|context| *context > 0),
            adapters: Vec::new(),
        };
        while let Some(name) = fields.next() {
            let adapter = (text(name)?, path(fields.next()?));
            input.adapters.push(adapter);
        }
        Some(input)
    }
}

/// Opens the model as the server will and generates.
///
/// # Errors
/// Why the server would refuse the file.
pub fn check_model_job(job: ChildJob) -> Result<Vec<u8>, String> {
    let input = JobInput::decode(&job.input).ok_or("the job is incomplete")?;
    if let Some(dir) = &input.backend_dir {
        load_backends(dir).map_err(|error| error.to_string())?;
    }
    let path = input.path.display().to_string();
    let engine = config(input)
        .and_then(Engine::load)
        .map_err(|error| error.to_string())?;
    generate(&engine)
        .map_err(|error| format!("the model file {path} does not compute: {error}"))?;
    engine.shutdown();
    Ok(Vec::new())
}

fn config(input: JobInput) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::new("checked", &input.path);
    // Fails as the server's load does if the context does not fit the model.
    config.context = input.context;
    let trained = MemoryEstimate::read(&input.path)?.trained_context();
    let context = config.context_for(trained.max(1))?.min(CONTEXT);
    config.context = Some(context).filter(|context| *context >= 2);
    config.cells = Some(context.max(CONTEXT));
    // Several would wait for each other on a busy machine.
    config.threads = Some(1);
    config.max_running = MAX_RUNNING;
    config.swap_ram = 0;
    config.prefix_offload_ram = 0;
    config.adapters = input.adapters;
    config.file_access = FileAccess::Map;
    config.placement = PlacementOptions {
        devices: DeviceSelection::Cpu,
        gpu_layers: GpuLayers::Exactly(0),
        kv_type: input.kv_type,
    };
    Ok(config)
}

/// Computes a prompt, tokens after it in two sequences that share it, and with each adapter; or an embedding.
fn generate(engine: &Engine) -> Result<(), crate::Error> {
    let info = engine.info();
    let mut tokens: Vec<Token> = info.begin.into_iter().collect();
    tokens.extend(engine.tokenize(TEXT, true)?);
    let room = info.context.saturating_sub(TOKENS + 1).max(1);
    tokens.truncate(usize::try_from(room).unwrap_or(1));
    if tokens.is_empty() {
        tokens.push(0);
    }
    if !info.can_generate {
        let embedding = engine.embed(vec![tokens], EmbedOptions::default(), Caller::default())?;
        return block_on(embedding).map(|_| ());
    }
    let adapters = info.adapters.iter().map(|name| Some(name.clone()));
    for adapter in std::iter::once(None).chain(adapters) {
        let mut sequence = Sequence::new(engine.clone(), Caller::default());
        sequence.append(&tokens)?;
        let mut fork = sequence.fork();
        for sequence in [&mut sequence, &mut fork] {
            let options = GenerateOptions {
                max_tokens: TOKENS,
                ignore_end: true,
                adapter: adapter.clone(),
                ..GenerateOptions::default()
            };
            let mut generation = sequence.generate(options)?;
            block_on(async { while generation.next().await.is_some() {} });
            generation.outcome().transpose()?;
        }
    }
    Ok(())
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> JobInput {
        JobInput {
            path: "/a/b.gguf".into(),
            backend_dir: None,
            kv_type: KvType::Q8_0,
            context: None,
            adapters: vec![("x".to_owned(), "/a/x.gguf".into())],
        }
    }

    #[test]
    fn input_survives_the_pipe() {
        let other = JobInput {
            backend_dir: Some("/b".into()),
            context: Some(7),
            adapters: Vec::new(),
            ..input()
        };
        for input in [input(), other] {
            assert_eq!(JobInput::decode(&input.encode()), Some(input));
        }
    }

    #[test]
    fn good_and_truncated_models_are_told_apart() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
        let check = |path: PathBuf| {
            let input = JobInput {
                path,
                kv_type: KvType::F16,
                adapters: Vec::new(),
                ..input()
            };
            check_model_job(ChildJob {
                input: input.encode(),
                writable: None,
            })
        };
        check(tiny.clone()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cut = dir.path().join("cut.gguf");
        let bytes = std::fs::read(tiny).unwrap();
        std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
        let error = check(cut.clone()).unwrap_err();
        assert!(error.contains(cut.to_str().unwrap()), "{error}");
    }
}
