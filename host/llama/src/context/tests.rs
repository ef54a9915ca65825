//! Decoding, sharing, truncating, saving and loading over the demo model.

use super::*;
use crate::{DevicePlacement, KvType, LoadProgress, Token};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;

mod device_top_k;
mod drafts;
mod overlap;

const IDS: u16 = 8;
const STEP_TOKENS: u32 = 64;
/// Logits of a top-k output.
const K: u32 = 8;
/// Sequence ids with device top-k, the first ones.
const TOP_K_IDS: u16 = 2;

fn model() -> Arc<Model> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let model = Model::load(&file, DevicePlacement::default(), &LoadProgress::default());
    Arc::new(model.expect("the demo model loads"))
}

fn context_with(model: &Arc<Model>, cells: u32, device_top_k: Option<DeviceTopK>) -> LlamaContext {
    context_of_threads(model, cells, device_top_k, 1)
}

fn context_of_threads(
    model: &Arc<Model>,
    cells: u32,
    device_top_k: Option<DeviceTopK>,
    threads: u32,
) -> LlamaContext {
    let settings = ContextSettings {
        cells,
        step_tokens: STEP_TOKENS,
        seq_ids: IDS,
        threads,
        kv_type: KvType::F16,
        device_top_k,
    };
    LlamaContext::new(model.clone(), settings).expect("the context is made")
}

fn context(model: &Arc<Model>, cells: u32) -> LlamaContext {
    context_with(model, cells, None)
}

/// Random tokens.
fn tokens(model: &Model, count: usize, seed: u64) -> Vec<Token> {
    let vocabulary = Token::try_from(model.vocabulary_size()).expect("a small vocabulary");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| random.random_range(0..vocabulary))
        .collect()
}

/// Appends tokens to a sequence and returns the logits after the last.
fn feed(context: &mut LlamaContext, seq: SeqId, tokens: &[Token]) -> Vec<f32> {
    let mut logits = Vec::new();
    for chunk in tokens.chunks(STEP_TOKENS as usize) {
        let from = context.length(seq);
        let mut step: Vec<_> = (from..)
            .zip(chunk)
            .map(|(position, &token)| TokenInput {
                token,
                position,
                seq,
                output: false,
            })
            .collect();
        let last = step.last_mut().expect("a chunk has tokens");
        last.output = true;
        context
            .decode(step.iter().copied())
            .expect("it is computed");
        logits = context.logits(step.len() - 1).expect("an output").to_vec();
    }
    logits
}

/// The logits after these tokens in a new context.
fn fresh_logits(model: &Arc<Model>, tokens: &[Token]) -> Vec<f32> {
    feed(&mut context(model, 512), 0, tokens)
}

/// Compares logits, up to rounding: it depends on the order of sums and on the steps.
#[track_caller]
fn assert_same(got: &[f32], wanted: &[f32]) {
    let top = |row: &[f32]| {
        row.iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1))
            .map(|(i, _)| i)
    };
    assert_eq!(top(got), top(wanted), "the most likely token");
    let apart = got.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    let apart = apart.fold(0.0, f32::max);
    let largest = wanted.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    assert!(apart <= 0.005 * largest, "{apart} apart of {largest}");
}

/// Number of cells that all sequences use together.
fn cells_used(context: &mut LlamaContext) -> usize {
    context.used_cells().len()
}

#[test]
fn shared_prefix_takes_no_cells_and_continues() {
    let model = model();
    assert!(!model.has_recurrent_layers() && model.can_truncate());
    let mut context = context(&model, 512);
    assert!(context.can_truncate());
    let [a, b, c] = [0, 5, 7];
    let (first, second) = (tokens(&model, 90, 1), tokens(&model, 20, 2));
    let forked = [&first[..50], &second].concat();
    feed(&mut context, a, &first);
    context.share(a, b, 50);
    context.share(a, c, 90);
    assert_eq!(cells_used(&mut context), 90);
    assert_eq!([a, b, c].map(|seq| context.length(seq)), [90, 50, 90]);
    assert_same(
        &feed(&mut context, b, &second),
        &fresh_logits(&model, &forked),
    );
    assert_eq!(cells_used(&mut context), 110);
    // The first owner of the cells can go.
    context.clear(a);
    assert_eq!(cells_used(&mut context), 110);
    let on = [&first[..], &second].concat();
    assert_same(&feed(&mut context, c, &second), &fresh_logits(&model, &on));
    context.clear(c);
    assert_eq!(cells_used(&mut context), 70);
    let on = [&forked[..], &first[..3]].concat();
    assert_same(
        &feed(&mut context, b, &first[..3]),
        &fresh_logits(&model, &on),
    );
}

#[test]
fn truncated_sequence_continues_from_its_length() {
    let model = model();
    let mut context = context(&model, 512);
    let (first, second) = (tokens(&model, 90, 3), tokens(&model, 20, 4));
    let [a, b] = [1, 2];
    feed(&mut context, a, &first);
    context.share(a, b, 60);
    context.truncate(a, 90);
    assert_eq!(context.length(a), 90);
    context.truncate(a, 40);
    assert_eq!((context.length(a), cells_used(&mut context)), (40, 60));
    let on = [&first[..40], &second].concat();
    assert_same(&feed(&mut context, a, &second), &fresh_logits(&model, &on));
    let on = [&first[..60], &second].concat();
    assert_same(&feed(&mut context, b, &second), &fresh_logits(&model, &on));
    context.truncate(a, 0);
    assert_eq!((context.length(a), cells_used(&mut context)), (0, 80));
}

#[test]
fn saved_sequence_continues_in_other_cells() {
    let model = model();
    let (mut context, mut other) = (context(&model, 512), context(&model, 256));
    let (first, second) = (tokens(&model, 90, 5), tokens(&model, 20, 6));
    let [a, b, c] = [0, 1, 2];
    // The prefix is shared, and the rest lies in lower cells.
    feed(&mut context, b, &second);
    feed(&mut context, a, &first[..60]);
    context.share(a, c, 30);
    context.clear(b);
    feed(&mut context, a, &first[60..]);
    let state = context.save(a, usize::MAX).expect("it is saved");
    let exactly = context.save(a, state.len()).expect("it has room");
    assert!(exactly == state, "saving changes nothing");
    let (bytes, limit) = (state.len(), state.len() - 1);
    let refused = context.save(a, limit);
    assert_eq!(refused, Err(SaveError::TooLarge { bytes, limit }));
    context.clear(a);
    feed(&mut context, b, &second[..7]);
    assert!(context.load(a, &state));
    assert_eq!((context.length(a), cells_used(&mut context)), (90, 127));
    // A second copy under another id.
    assert!(context.load(6, &state));
    context.truncate(6, 70);
    let on = [&first[..], &second].concat();
    assert_same(&feed(&mut context, a, &second), &fresh_logits(&model, &on));
    let on = [&first[..70], &second].concat();
    assert_same(&feed(&mut context, 6, &second), &fresh_logits(&model, &on));
    // A new context loads it too, unless it has too few free cells.
    assert!(other.load(c, &state));
    feed(&mut other, a, &tokens(&model, 100, 7));
    assert!(!other.load(b, &state), "66 cells are free");
    assert_eq!((other.length(b), cells_used(&mut other)), (0, 190));
    let on = [&first[..], &second].concat();
    assert_same(&feed(&mut other, c, &second), &fresh_logits(&model, &on));
}

#[test]
fn damaged_state_leaves_the_sequence_empty() {
    let model = model();
    let mut context = context(&model, 256);
    let [a, b] = [0, 1];
    let text = tokens(&model, 12, 8);
    feed(&mut context, a, &text);
    let state = context.save(a, usize::MAX).expect("it is saved");
    let attempt = |context: &mut LlamaContext, damaged: &[u8]| {
        assert!(!context.load(b, damaged));
        assert_eq!((context.length(b), cells_used(context)), (0, 12));
    };
    // Mark, architecture, streams, number of cells; position, number of ids and id of each cell; layout, layers,
    // rotations; type and row size of the first layer's keys.
    let cells = 16..16 + 12 * 12;
    let head = cells.end + 16 + 12;
    for length in (0..head).step_by(2).chain((head..state.len()).step_by(997)) {
        attempt(&mut context, &state[..length]);
    }
    attempt(&mut context, &[&state[..], &[0]].concat());
    attempt(
        &mut context,
        &tokens(&model, 1000, 9)
            .iter()
            .flat_map(|t| t.to_ne_bytes())
            .collect::<Vec<_>>(),
    );
    let id_counts = cells.clone().step_by(12).map(|cell| cell + 4);
    let words = [0, 8, 12]
        .into_iter()
        .chain(id_counts)
        .chain((cells.end..head).step_by(4));
    for word in words {
        for bit in [0, 1, 9, 31] {
            let mut damaged = state.clone();
            damaged[word + bit / 8] ^= 1 << (bit % 8);
            // Any layout of the values but 0 is the transposed one.
            attempt(&mut context, &damaged);
        }
    }
    assert!(context.load(b, &state));
    let on = [&text[..], &text].concat();
    assert_same(&feed(&mut context, a, &text), &fresh_logits(&model, &on));
    assert_same(&feed(&mut context, b, &text), &fresh_logits(&model, &on));
}

#[test]
fn unknown_ids_are_ignored() {
    let model = model();
    let mut context = context(&model, 256);
    feed(&mut context, 0, &tokens(&model, 5, 10));
    let state = context.save(0, usize::MAX).expect("it is saved");
    for unknown in [SeqId::from(IDS), 256, -1, SeqId::MAX] {
        context.share(0, unknown, 5);
        context.share(unknown, 1, 0);
        context.truncate(unknown, 0);
        context.clear(unknown);
        assert_eq!(context.save(unknown, usize::MAX), Err(SaveError::Failed));
        assert!(!context.load(unknown, &state));
        assert_eq!(context.length(unknown), 0);
    }
    assert_eq!(cells_used(&mut context), 5);
}

/// The attention of the CPU divides work for all threads, also when fewer compute.
#[test]
#[cfg(own_attention)]
fn fewer_threads_compute_same_logits() {
    let model = model();
    let prompt = tokens(&model, 600, 11);
    let mut context = context_of_threads(&model, 2048, None, 4);
    assert!(context.prepare_fewer_threads());
    let logits = |context: &mut LlamaContext, seq| {
        let mut all = feed(context, seq, &prompt);
        for token in 0..20 {
            all.extend(feed(context, seq, &[token]));
        }
        context.clear(seq);
        all
    };
    let expected = logits(&mut context, 0);
    for threads in [1, 3, 2, 4, 1, 4] {
        context.use_threads(threads);
        assert!(logits(&mut context, 0) == expected, "{threads} threads");
    }
    // More than two threads for each head of the keys: ggml computes single tokens.
    assert!(!context_of_threads(&model, 2048, None, 5).prepare_fewer_threads());
    // Changes without a step between them.
    for threads in [2, 4, 3, 3, 1] {
        context.use_threads(threads);
    }
    assert!(logits(&mut context, 0) == expected);
    // Numbers out of range.
    for threads in [0, 9] {
        context.use_threads(threads);
        assert!(logits(&mut context, 0) == expected, "{threads} threads");
    }
    #[cfg(target_os = "linux")]
    for (threads, used) in [(4, 4), (3, 2), (2, 2), (1, 1)] {
        context.use_threads(threads);
        let delays = context.queue_delays().expect("Linux tells");
        assert_eq!(delays.len(), used, "{threads} threads");
    }
}
