//! The scheduler's mirror of the cells against llama.cpp's own, step by step.
//!
//! A saved state lists the used cells in order, but not which they are. So the steps fill the
//! context to its last cell again and again: then the list is the whole map, and a position that
//! was put into a wrong hole since stands at a wrong place in it.

use super::{ContextSettings, LlamaContext};
use crate::Token;
use crate::backend::{Backend, DecodeError, Input};
use crate::llama::Model;
use crate::scheduler::SeqId;
use crate::scheduler::cells::Cells;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::Arc;

const IDS: u16 = 8;
const STEP_TOKENS: u32 = 64;

fn model() -> Arc<Model> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    Arc::new(Model::load(&file).expect("the demo model loads"))
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

/// Sequence and position of each used cell in cell order, as llama.cpp's
/// `llama_context::state_write_data` and `llama_kv_cache::state_write_meta` write them for a model
/// with one position per token.
fn used_cells(state: &[u8]) -> Vec<(SeqId, u32)> {
    let mut state = Reader(state);
    let architecture = state.u32();
    state.skip(architecture);
    assert_eq!(state.u32(), 1, "a unified cache is one stream");
    let count = state.u32();
    let mut cells = Vec::new();
    for _ in 0..count {
        let position = state.u32();
        assert_eq!(state.u32(), 1, "a cell belongs to one sequence");
        let seq = u16::try_from(state.u32()).expect("a sequence id");
        cells.push((SeqId(seq), position));
    }
    if count > 0 {
        // What comes next is known, so a layout that moved does not go unnoticed.
        assert_eq!(state.u32(), 0, "values are not transposed");
    }
    cells
}

/// A real context, its mirror, and what happened to them.
struct Pair {
    context: LlamaContext,
    mirror: Cells,
    size: u32,
    vocabulary: Token,
    random: ChaCha8Rng,
    placed: u32,
    aborted: u32,
    refused: u32,
    full: u32,
}

impl Pair {
    fn new(model: &Arc<Model>, size: u32, seed: u64) -> Self {
        let settings = ContextSettings {
            cells: size,
            step_tokens: STEP_TOKENS,
            seq_ids: IDS,
            threads: 1,
        };
        let context = LlamaContext::new(model.clone(), settings).expect("the context is made");
        assert_eq!(context.cells(), size, "a size that is not rounded");
        Self {
            context,
            mirror: Cells::new(size),
            size,
            vocabulary: Token::try_from(model.vocabulary_size()).expect("a small vocabulary"),
            random: ChaCha8Rng::seed_from_u64(seed),
            placed: 0,
            aborted: 0,
            refused: 0,
            full: 0,
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
                self.placed += 1;
            }
            Err(DecodeError::Failed(2)) => {
                assert!(room && abort, "llama.cpp had room and was aborted");
                self.mirror.undo(rows.iter().copied());
                self.aborted += 1;
            }
            Err(DecodeError::NoRoom) => {
                assert!(!room, "llama.cpp had no room");
                self.refused += 1;
            }
            Err(error) => panic!("an unexpected answer: {error}"),
        }
    }

    fn clear(&mut self) {
        let seq = self.any_id();
        self.context.clear(seq);
        self.mirror.clear(seq);
    }

    fn check(&mut self) {
        let used = used_cells(&self.context.state());
        assert!(
            self.mirror.occupied().eq(used.iter().copied()),
            "the same positions in the same order of cells"
        );
        assert_eq!(self.mirror.used() as usize, used.len());
        for id in (0..IDS).map(SeqId) {
            assert_eq!(self.mirror.held_by(id), self.context.length(id));
        }
        self.full += u32::from(self.mirror.used() == self.size);
    }
}

#[test]
fn the_mirror_has_every_position_where_llama_cpp_has_it() {
    let model = model();
    for (size, seed) in [(256, 1), (512, 2), (512, 3)] {
        let mut pair = Pair::new(&model, size, seed);
        pair.check();
        for _ in 0..400 {
            // A context that is full stays so until something is cleared: do that often.
            let full = pair.mirror.used() == pair.size;
            let clear = if full { 0.6 } else { 0.08 };
            if pair.random.random_bool(clear) {
                pair.clear();
            } else {
                pair.step();
            }
            pair.check();
        }
        let happened = [pair.placed, pair.aborted, pair.refused, pair.full];
        assert!(
            happened.iter().all(|&times| times >= 10),
            "placed, aborted, refused, full: {happened:?}"
        );
        for id in 0..IDS {
            pair.context.clear(SeqId(id));
            pair.mirror.clear(SeqId(id));
        }
        pair.check();
        assert_eq!(pair.mirror.used(), 0);
    }
}
