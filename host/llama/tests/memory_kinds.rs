//! Whole sequences of every kind of memory can be shared, saved and loaded; only attention over all positions can be
//! truncated ([`Model::can_truncate`]).

use corral_llama::{
    ContextSettings, DevicePlacement, KvType, LlamaContext, LoadProgress, Model, SeqId, Token,
    TokenInput,
};
use corral_random_model::{Architecture, Qwen3, write_model};
use std::path::Path;
use std::sync::Arc;

/// Largest difference of logits of the same tokens: rounding depends on the rows of a step. Other tokens differ by 0.1 or
/// more.
const SAME: f32 = 0.03;

fn context(model: &Arc<Model>) -> LlamaContext {
    let settings = ContextSettings {
        cells: 512,
        step_tokens: 64,
        seq_ids: 4,
        threads: 1,
        kv_type: KvType::F16,
        device_top_k: None,
    };
    LlamaContext::new(model.clone(), settings).expect("the context is made")
}

/// Appends tokens to a sequence and returns the logits after the last.
fn feed(context: &mut LlamaContext, seq: SeqId, tokens: &[Token]) -> Vec<f32> {
    let last = tokens.len() - 1;
    let inputs = (context.length(seq)..).zip(tokens).enumerate();
    let inputs = inputs.map(|(index, (position, &token))| TokenInput {
        token,
        position,
        seq,
        output: index == last,
    });
    context.decode(inputs).expect("it is computed");
    context.logits(last).expect("an output").to_vec()
}

#[track_caller]
fn assert_same(a: &[f32], b: &[f32]) {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let difference = differences.fold(0.0, f32::max);
    assert!(difference < SAME, "the logits differ by {difference}");
}

#[test]
fn copied_and_loaded_sequences_continue_alike() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let dir = tempfile::tempdir().expect("a directory");
    let tokens = Vec::from_iter((0..50).map(|n: u32| (n * n * 7 + n * 31 + 5) % 250));
    for (architecture, can_truncate) in [
        (Architecture::Mamba, false),
        (Architecture::Hybrid, false),
        (Architecture::SlidingWindow, false),
        (Architecture::Qwen3(Qwen3::tiny()), true),
    ] {
        let file = dir.path().join("model.gguf");
        write_model(&architecture, &tiny, &file, 1).expect("the model is written");
        let model = Model::load(&file, DevicePlacement::default(), &LoadProgress::default());
        let model = Arc::new(model.expect("the model loads"));
        assert_eq!(model.can_truncate(), can_truncate, "{architecture:?}");
        let expected = feed(&mut context(&model), 0, &tokens);
        let mut context = context(&model);
        // Another sequence is not changed by what happens to this one.
        feed(&mut context, 3, &tokens[..20]);
        feed(&mut context, 0, &tokens[..40]);
        let state = context.save(0, usize::MAX).expect("it is saved");
        context.share(0, 1, 40);
        assert!(context.load(2, &state), "{architecture:?}");
        for seq in [1, 0, 2] {
            assert_eq!(context.length(seq), 40, "{architecture:?}");
            assert_same(&feed(&mut context, seq, &tokens[40..]), &expected);
            context.clear(seq);
        }
        assert_same(&feed(&mut context, 3, &tokens[20..]), &expected);
    }
}
