//! The scheduler's mirror of the cells against llama.cpp's own, step by step, and what becomes of
//! the logits when sequences are shared, truncated, saved and loaded.
//!
//! A saved state lists the used cells in order, but not which they are. So the steps fill the
//! context to its last cell again and again: then the list is the whole map, and a position that
//! was put into a wrong hole since stands at a wrong place in it.

use super::LlamaContext;
use crate::Token;
use crate::backend::{Backend, DecodeError, Input, SaveError};
use crate::llama::{ContextSettings, DeviceTop, Model};
use crate::offload::KvType;
use crate::progress::Progress;
use corral_scheduler::SeqId;
use corral_scheduler::cells::{Cells, Layout};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::Arc;

mod ahead;
mod drafts;
mod tops;

const IDS: u16 = 8;
const STEP_TOKENS: u32 = 64;

fn model() -> Arc<Model> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    Arc::new(Model::load(&file, &Progress::default()).expect("the demo model loads"))
}

/// Logits of a row that come through a chain.
const K: u32 = 8;
/// The first two ids have a chain, where there are any.
const TOP_IDS: u16 = 2;

fn with_chains(model: &Arc<Model>, device_top: Option<DeviceTop>) -> LlamaContext {
    let settings = ContextSettings {
        cells: 256,
        step_tokens: STEP_TOKENS,
        seq_ids: IDS,
        threads: 1,
        kv: KvType::F16,
        device_top,
    };
    LlamaContext::new(model.clone(), settings).expect("the context is made")
}

/// Takes a saved state apart.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> u32 {
        let (value, rest) = self.0.split_first_chunk().expect("the state goes on");
        self.0 = rest;
        u32::from_ne_bytes(*value)
    }

    fn skip(&mut self, bytes: u32) {
        self.0 = &self.0[bytes as usize..];
    }
}

/// Position and sequences of each used cell in cell order, as llama.cpp's
/// `llama_context::state_write_data` and `llama_kv_cache::state_write_meta` write them for a model
/// with one position per token.
fn used_cells(state: &[u8]) -> Vec<(u32, Vec<SeqId>)> {
    let mut state = Reader(state);
    let architecture = state.u32();
    state.skip(architecture);
    assert_eq!(state.u32(), 1, "a unified cache is one stream");
    let count = state.u32();
    let mut cells = Vec::new();
    for _ in 0..count {
        let position = state.u32();
        let holders = state.u32();
        let seq = |_| SeqId(u16::try_from(state.u32()).expect("a sequence id"));
        cells.push((position, (0..holders).map(seq).collect()));
    }
    if count > 0 {
        // What comes next is known, so a layout that moved does not go unnoticed.
        assert_eq!(state.u32(), 0, "values are not transposed");
    }
    cells
}

/// How often something happened.
#[derive(Debug, Default)]
struct Happened {
    placed: u32,
    aborted: u32,
    refused: u32,
    full: u32,
    shared: u32,
    truncated: u32,
    loaded: u32,
    /// Of the loaded, those whose positions stood out of order.
    scattered: u32,
    without_room: u32,
    damaged: u32,
}

/// A real context, its mirror, and what happened to them.
struct Pair {
    context: LlamaContext,
    mirror: Cells,
    size: u32,
    vocabulary: Token,
    random: ChaCha8Rng,
    saved: Vec<(Vec<u8>, Layout)>,
    happened: Happened,
}

impl Pair {
    fn new(model: &Arc<Model>, size: u32, seed: u64) -> Self {
        let context = context(model, size);
        assert_eq!(context.cells(), size, "a size that is not rounded");
        Self {
            context,
            mirror: Cells::new(size),
            size,
            vocabulary: Token::try_from(model.vocabulary_size()).expect("a small vocabulary"),
            random: ChaCha8Rng::seed_from_u64(seed),
            saved: Vec::new(),
            happened: Happened::default(),
        }
    }

    fn any_id(&mut self) -> SeqId {
        SeqId(self.random.random_range(0..IDS))
    }

    /// Rows of a step: mostly single tokens, some longer ones, in any order, ids more than once;
    /// now and then exactly as much as is free.
    fn any_rows(&mut self) -> Vec<(SeqId, u32)> {
        let free = self.size - self.mirror.used();
        if (1..=STEP_TOKENS).contains(&free) && self.random.random_bool(0.3) {
            return vec![(self.any_id(), free)];
        }
        let mut left = STEP_TOKENS;
        let mut rows = Vec::new();
        for _ in 0..self.random.random_range(1..=8) {
            let wanted = match self.random.random_range(0..4) {
                0 => self.random.random_range(1..=40),
                _ => 1,
            };
            let count = left.min(wanted);
            if count > 0 {
                left -= count;
                rows.push((self.any_id(), count));
            }
        }
        rows
    }

    fn inputs(&mut self, rows: &[(SeqId, u32)]) -> Vec<Input> {
        let mut next: Vec<u32> = (0..IDS).map(|id| self.mirror.held_by(SeqId(id))).collect();
        let mut inputs = Vec::new();
        for &(seq, count) in rows {
            for _ in 0..count {
                let position = &mut next[usize::from(seq.0)];
                inputs.push(Input {
                    token: self.random.random_range(0..self.vocabulary),
                    position: *position,
                    seq,
                    output: false,
                });
                *position += 1;
            }
        }
        inputs.last_mut().expect("a row has tokens").output = true;
        inputs
    }

    fn step(&mut self) {
        let rows = self.any_rows();
        let inputs = self.inputs(&rows);
        let abort = self.random.random_bool(0.1);
        self.context.abort_decodes(abort);
        let decoded = self.context.decode(&inputs);
        let room = self.mirror.place(rows.iter().copied());
        match decoded {
            Ok(()) => {
                assert!(room && !abort, "llama.cpp had room");
                self.happened.placed += 1;
            }
            Err(DecodeError::Failed(2)) => {
                assert!(room && abort, "llama.cpp had room and was aborted");
                self.mirror.undo(rows.iter().copied());
                self.happened.aborted += 1;
            }
            Err(DecodeError::NoRoom) => {
                assert!(!room, "llama.cpp had no room");
                self.happened.refused += 1;
            }
            Err(error) => panic!("an unexpected answer: {error}"),
        }
    }

    fn clear(&mut self, seq: SeqId) {
        self.context.clear(seq);
        self.mirror.clear(seq);
    }

    fn share(&mut self) {
        let (from, to) = (self.any_id(), self.any_id());
        if from != to {
            self.clear(to);
            let length = self.random.random_range(0..=self.mirror.held_by(from));
            self.context.share(from, to, length);
            self.mirror.share(from, to, length);
            self.happened.shared += u32::from(length > 0);
        }
    }

    fn truncate(&mut self) {
        let seq = self.any_id();
        let has = self.mirror.held_by(seq);
        let length = self.random.random_range(0..=has + 1);
        self.context.truncate(seq, length);
        self.mirror.truncate(seq, length);
        self.happened.truncated += u32::from(length < has);
    }

    fn save(&mut self) {
        let seq = self.any_id();
        if self.mirror.held_by(seq) > 0 {
            let state = self.context.save(seq, usize::MAX).expect("it is saved");
            if self.saved.len() == 8 {
                self.saved.swap_remove(0);
            }
            self.saved.push((state, self.mirror.layout(seq)));
            self.clear(seq);
        }
    }

    fn load(&mut self) {
        if self.saved.is_empty() {
            return;
        }
        let which = self.random.random_range(0..self.saved.len());
        let (state, layout) = self.saved[which].clone();
        let empty = |seq: &SeqId| self.mirror.held_by(*seq) == 0;
        let seq = (0..IDS).map(SeqId).find(empty);
        let seq = seq.unwrap_or_else(|| self.any_id());
        self.clear(seq);
        if self.random.random_bool(0.2) {
            let length = self.random.random_range(0..state.len());
            assert!(!self.context.load(seq, &state[..length]));
            self.happened.damaged += 1;
            return;
        }
        let restored = self.mirror.restore(seq, &layout);
        assert_eq!(self.context.load(seq, &state), restored);
        if restored {
            self.happened.loaded += 1;
            let mut in_order = Cells::new(self.size);
            in_order.place([(seq, layout.length())].into_iter());
            self.happened.scattered += u32::from(layout != in_order.layout(seq));
        } else {
            self.happened.without_room += 1;
        }
    }

    fn check(&mut self) {
        let used = used_cells(&self.context.state());
        assert!(
            self.mirror.occupied().eq(used.iter().cloned()),
            "the same positions in the same order of cells"
        );
        assert_eq!(self.mirror.used() as usize, used.len());
        for id in (0..IDS).map(SeqId) {
            assert_eq!(self.mirror.held_by(id), self.context.length(id));
        }
        self.happened.full += u32::from(self.mirror.used() == self.size);
    }
}

#[test]
fn the_mirror_has_every_position_where_llama_cpp_has_it() {
    let model = model();
    let mut happened = Happened::default();
    for (size, seed) in [(256, 1), (512, 2), (512, 3)] {
        let mut pair = Pair::new(&model, size, seed);
        pair.happened = happened;
        pair.check();
        for _ in 0..800 {
            // A context that is full stays so until something is freed: do that often.
            let full = pair.mirror.used() == pair.size;
            match pair.random.random_range(0..100) {
                0..8 => {
                    let seq = pair.any_id();
                    pair.clear(seq);
                }
                8..16 => pair.truncate(),
                16..24 => pair.save(),
                24..36 => pair.load(),
                36..44 => pair.share(),
                44..60 if full => pair.truncate(),
                60..70 if full => pair.load(),
                _ => pair.step(),
            }
            pair.check();
        }
        for id in 0..IDS {
            pair.clear(SeqId(id));
        }
        pair.check();
        assert_eq!(pair.mirror.used(), 0);
        happened = pair.happened;
    }
    let Happened {
        placed,
        aborted,
        refused,
        full,
        shared,
        truncated,
        loaded,
        scattered,
        without_room,
        damaged,
    } = happened;
    let steps = [placed, aborted, refused, full];
    let changes = [shared, truncated, loaded, scattered, without_room, damaged];
    assert!(
        steps.iter().chain(&changes).all(|&times| times >= 20),
        "{:?}",
        happened
    );
}

fn context(model: &Arc<Model>, cells: u32) -> LlamaContext {
    let settings = ContextSettings {
        cells,
        step_tokens: STEP_TOKENS,
        seq_ids: IDS,
        threads: 1,
        kv: KvType::F16,
        device_top: None,
    };
    LlamaContext::new(model.clone(), settings).expect("the context is made")
}

/// Any tokens.
fn tokens(model: &Model, count: usize, seed: u64) -> Vec<Token> {
    let vocabulary = Token::try_from(model.vocabulary_size()).expect("a small vocabulary");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| random.random_range(0..vocabulary))
        .collect()
}

/// Puts tokens behind what a sequence holds, and returns the logits after the last.
fn feed(context: &mut LlamaContext, seq: SeqId, tokens: &[Token]) -> Vec<f32> {
    let mut logits = Vec::new();
    for chunk in tokens.chunks(STEP_TOKENS as usize) {
        let from = context.length(seq);
        let mut step: Vec<_> = (from..)
            .zip(chunk)
            .map(|(position, &token)| Input {
                token,
                position,
                seq,
                output: false,
            })
            .collect();
        let last = step.last_mut().expect("a chunk has tokens");
        last.output = true;
        context.decode(&step).expect("it is computed");
        logits = context.logits(step.len() - 1).expect("an output").to_vec();
    }
    logits
}

/// The logits after these tokens, from a context that did nothing else.
fn plain(model: &Arc<Model>, tokens: &[Token]) -> Vec<f32> {
    feed(&mut context(model, 512), SeqId(0), tokens)
}

/// The same logits, but for what adding up in another order and in other steps changes.
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

/// What is held is what all sequences together hold, and nothing else.
fn cells_used(context: &mut LlamaContext) -> usize {
    used_cells(&context.state()).len()
}

#[test]
fn a_shared_prefix_counts_once_and_goes_on_as_if_computed_anew() {
    let model = model();
    assert!(model.can_fork() && model.can_truncate());
    let mut context = context(&model, 512);
    assert!(context.can_truncate());
    let [a, b, c] = [0, 5, 7].map(SeqId);
    let (first, second) = (tokens(&model, 90, 1), tokens(&model, 20, 2));
    let forked = [&first[..50], &second].concat();
    feed(&mut context, a, &first);
    context.share(a, b, 50);
    context.share(a, c, 90);
    assert_eq!(cells_used(&mut context), 90);
    assert_eq!([a, b, c].map(|seq| context.length(seq)), [90, 50, 90]);
    assert_same(&feed(&mut context, b, &second), &plain(&model, &forked));
    assert_eq!(cells_used(&mut context), 110);
    // Whoever came first can go.
    context.clear(a);
    assert_eq!(cells_used(&mut context), 110);
    let on = [&first[..], &second].concat();
    assert_same(&feed(&mut context, c, &second), &plain(&model, &on));
    context.clear(c);
    assert_eq!(cells_used(&mut context), 70);
    let on = [&forked[..], &first[..3]].concat();
    assert_same(&feed(&mut context, b, &first[..3]), &plain(&model, &on));
}

#[test]
fn a_truncated_sequence_goes_on_as_if_it_had_never_been_longer() {
    let model = model();
    let mut context = context(&model, 512);
    let (first, second) = (tokens(&model, 90, 3), tokens(&model, 20, 4));
    let [a, b] = [1, 2].map(SeqId);
    feed(&mut context, a, &first);
    context.share(a, b, 60);
    context.truncate(a, 90);
    assert_eq!(context.length(a), 90);
    context.truncate(a, 40);
    assert_eq!((context.length(a), cells_used(&mut context)), (40, 60));
    let on = [&first[..40], &second].concat();
    assert_same(&feed(&mut context, a, &second), &plain(&model, &on));
    let on = [&first[..60], &second].concat();
    assert_same(&feed(&mut context, b, &second), &plain(&model, &on));
    context.truncate(a, 0);
    assert_eq!((context.length(a), cells_used(&mut context)), (0, 80));
}

#[test]
fn a_saved_sequence_goes_on_in_other_cells_as_if_it_had_stayed() {
    let model = model();
    let (mut context, mut other) = (context(&model, 512), context(&model, 256));
    let (first, second) = (tokens(&model, 90, 5), tokens(&model, 20, 6));
    let [a, b, c] = [0, 1, 2].map(SeqId);
    // The beginning is shared and the end stands in cells before it.
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
    // A second one, into another id, at the same time.
    assert!(context.load(SeqId(6), &state));
    context.truncate(SeqId(6), 70);
    let on = [&first[..], &second].concat();
    assert_same(&feed(&mut context, a, &second), &plain(&model, &on));
    let on = [&first[..70], &second].concat();
    assert_same(&feed(&mut context, SeqId(6), &second), &plain(&model, &on));
    // A context that has just been made takes it too; one that is too small does not.
    assert!(other.load(c, &state));
    feed(&mut other, a, &tokens(&model, 100, 7));
    assert!(!other.load(b, &state), "66 cells are free");
    assert_eq!((other.length(b), cells_used(&mut other)), (0, 190));
    let on = [&first[..], &second].concat();
    assert_same(&feed(&mut other, c, &second), &plain(&model, &on));
}

#[test]
fn damage_that_llama_cpp_notices_leaves_nothing_behind() {
    let model = model();
    let mut context = context(&model, 256);
    let [a, b] = [0, 1].map(SeqId);
    let text = tokens(&model, 12, 8);
    feed(&mut context, a, &text);
    let state = context.save(a, usize::MAX).expect("it is saved");
    let attempt = |context: &mut LlamaContext, damaged: &[u8]| {
        assert!(!context.load(b, damaged));
        assert_eq!((context.length(b), cells_used(context)), (0, 12));
    };
    // Mark, id, streams, cells; position, number of ids and id of each; form, layers, rotations;
    // type and row size of the first layer's keys.
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
            // Any form of the values but 0 is the transposed one.
            attempt(&mut context, &damaged);
        }
    }
    assert!(context.load(b, &state));
    let on = [&text[..], &text].concat();
    assert_same(&feed(&mut context, a, &text), &plain(&model, &on));
    assert_same(&feed(&mut context, b, &text), &plain(&model, &on));
}

#[test]
fn unknown_ids_never_reach_llama_cpp() {
    let model = model();
    let mut context = context(&model, 256);
    feed(&mut context, SeqId(0), &tokens(&model, 5, 10));
    let state = context.save(SeqId(0), usize::MAX).expect("it is saved");
    for unknown in [IDS, 256, u16::MAX].map(SeqId) {
        context.share(SeqId(0), unknown, 5);
        context.share(unknown, SeqId(1), 0);
        context.truncate(unknown, 0);
        context.clear(unknown);
        assert_eq!(context.save(unknown, usize::MAX), Err(SaveError::Failed));
        assert!(!context.load(unknown, &state));
        assert_eq!(context.length(unknown), 0);
    }
    assert_eq!(cells_used(&mut context), 5);
}
