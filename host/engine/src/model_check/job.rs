//! The child's side of a check: opens the model and generates.

use crate::block_on::block_on;
use crate::device_placement::{DeviceSelection, GpuLayers, PlacementOptions};
use crate::media::audio::{SECONDS, test_audio};
use crate::media::picture::test_picture;
use crate::memory_estimate::MemoryEstimate;
use crate::model_check::input::ModelCheckInput;
use crate::{
    Caller, EmbedOptions, Engine, GenerateOptions, LoadError, ModelConfig, Sequence, Token,
};
use corral_isolation::{ChildJob, report_progress};
use corral_llama::{FileAccess, LoadProgress, LoadStage, load_backends};

/// Positions of a sequence, and cells. Enough for the text and the tokens after it.
const CONTEXT: u32 = 256;
/// Sequences at once.
const MAX_RUNNING: u16 = 2;
/// Most tokens of a prompt: more rows than kernels compute together, and one that is left.
const PROMPT_TOKENS: u32 = 9;
/// Tokens to generate.
const TOKENS: u32 = 2;
/// Sizes of pictures: a usual one, the smallest, and the longest strips that are accepted.
const PICTURES: [(u32, u32); 4] = [(640, 480), (1, 1), (1280, 20), (3, 192)];
/// Cells for an image beside the text.
const IMAGE_CELLS: u32 = 4096;
/// A text with words, digits, other scripts, an emoji, spaces and a control token.
const TEXT: &str = "The cat sat on 12 mats.\n\tÄpfel, 猫 и кот 🐈  <|im_start|>";

/// Opens the model as the server will and generates. Reports after each part of the header, after each tensor if the server
/// reads them in the same order, when all weights are read, and when the context is made.
///
/// # Errors
/// Why the server would refuse the file.
pub fn check_model_job(job: ChildJob) -> Result<Vec<u8>, String> {
    let (model, backend_dir) =
        ModelCheckInput::decode(&job.input).ok_or("the job is incomplete")?;
    if let Some(dir) = &backend_dir {
        load_backends(dir).map_err(|error| error.to_string())?;
    }
    let path = model.path.display().to_string();
    let each_tensor = model.same_order.is_some();
    let report = |stage| {
        match stage {
            LoadStage::Header(0) => {}
            LoadStage::Weights(tensor) if tensor > 0 && !each_tensor => {}
            _ => report_progress(),
        }
        true
    };
    let engine = config(model)
        .and_then(|config| Engine::load_gated(config, &LoadProgress::default(), &report))
        .map_err(|error| error.to_string())?;
    generate(&engine)
        .and_then(|()| encode(&engine))
        .map_err(|error| format!("the model file {path} does not compute: {error}"))?;
    engine.shutdown();
    Ok(Vec::new())
}

fn config(model: ModelCheckInput) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::new("checked", &model.path);
    // Fails as the server's load does if the context does not fit the model.
    config.context = model.context;
    let trained = MemoryEstimate::read_without_vocabulary(&model.path)?.trained_context();
    let most = match model.projector {
        Some(_) => CONTEXT + IMAGE_CELLS,
        None => CONTEXT,
    };
    let context = config.context_for(trained.max(1))?.min(most);
    config.context = Some(context).filter(|context| *context >= 2);
    config.cells = Some(context.max(CONTEXT));
    // Several would wait for each other on a busy machine.
    config.threads = Some(1);
    config.max_running = MAX_RUNNING;
    config.swap_ram = 0;
    config.prefix_offload_ram = 0;
    config.adapters = model.adapters;
    config.projector = model.projector;
    config.repeat_windows = true;
    config.file_access = model.same_order.unwrap_or(FileAccess::Map);
    config.placement = PlacementOptions {
        devices: DeviceSelection::Cpu,
        gpu_layers: GpuLayers::Exactly(0),
        kv_type: model.kv_type,
    };
    Ok(config)
}

/// Computes a prompt, tokens after it in two sequences that share it, and with each adapter; or an embedding.
fn generate(engine: &Engine) -> Result<(), crate::Error> {
    let info = engine.info();
    let mut tokens: Vec<Token> = info.begin.into_iter().collect();
    tokens.extend(engine.tokenize(TEXT, true)?);
    let room = info.context.saturating_sub(TOKENS + 1);
    let room = room.clamp(1, PROMPT_TOKENS);
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
                ignore_eos: true,
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

/// Encodes pictures of extreme shapes and audio of extreme lengths, and computes a prompt with each that fits, except with the
/// longest audio: its thousands of positions take minutes on one thread, and each has an embedding as those of the shortest.
fn encode(engine: &Engine) -> Result<(), crate::Error> {
    let info = engine.info();
    let pictures = PICTURES.iter().filter(|_| info.accepts_images);
    let pictures = pictures.map(|(width, height)| test_picture(*width, *height));
    let audio = info.accepts_audio.then(|| test_audio(*SECONDS.start()));
    for file in pictures.chain(audio) {
        let image = block_on(engine.encode_image(file, Caller::default())?)?;
        let mut sequence = Sequence::new(engine.clone(), Caller::default());
        sequence.append(&engine.tokenize(TEXT, true)?)?;
        match sequence.append_image(image) {
            // The context of the check is small.
            Err(crate::Error::ContextFull { .. }) => continue,
            appended => appended?,
        };
        sequence.append(&engine.tokenize("What is it?", true)?)?;
        let options = GenerateOptions {
            max_tokens: 1,
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let mut generation = sequence.generate(options)?;
        block_on(async { while generation.next().await.is_some() {} });
        generation.outcome().transpose()?;
    }
    if info.accepts_audio {
        // llama.cpp aborts on audio with more positions than an encoder has.
        let longest = test_audio(*SECONDS.end());
        block_on(engine.encode_image(longest, Caller::default())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_llama::KvType;
    use std::path::{Path, PathBuf};

    fn model() -> ModelCheckInput {
        ModelCheckInput {
            path: "/a/b.gguf".into(),
            kv_type: KvType::Q8_0,
            context: None,
            projector: Some("/a/p.gguf".into()),
            adapters: vec![("x".to_owned(), "/a/x.gguf".into())],
            same_order: Some(FileAccess::Read),
        }
    }

    #[test]
    fn model_survives_the_pipe() {
        let other = ModelCheckInput {
            context: Some(7),
            projector: None,
            adapters: Vec::new(),
            same_order: None,
            ..model()
        };
        let mapped = ModelCheckInput {
            same_order: Some(FileAccess::Map),
            ..model()
        };
        for (model, dir) in [
            (model(), None),
            (mapped, None),
            (other, Some(PathBuf::from("/b"))),
        ] {
            let bytes = model.encode(dir.as_deref());
            assert_eq!(ModelCheckInput::decode(&bytes), Some((model, dir)));
        }
    }

    #[test]
    fn good_and_truncated_models_are_told_apart() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
        let check = |path: PathBuf| {
            let model = ModelCheckInput {
                path,
                kv_type: KvType::F16,
                projector: None,
                adapters: Vec::new(),
                ..model()
            };
            check_model_job(ChildJob {
                input: model.encode(None),
                writable: None,
            })
        };
        let dir = tempfile::tempdir().unwrap();
        let [good, cut] = ["good", "cut"].map(|name| dir.path().join(format!("{name}.gguf")));
        let bytes = std::fs::read(tiny).unwrap();
        // The check knows less of a file than other tests of this process expect.
        std::fs::write(&good, &bytes).unwrap();
        check(good).unwrap();
        std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
        let error = check(cut.clone()).unwrap_err();
        assert!(error.contains(cut.to_str().unwrap()), "{error}");
    }
}
