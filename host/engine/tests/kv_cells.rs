//! The scheduler's mirror of the KV cells against llama.cpp's cells, after each of many random steps.
//!
//! A saved state lists the used cells in order, but not their indices. So the steps fill the context to its last cell
//! again and again: then the list is the whole map, and a position that went to a wrong hole earlier stands at a wrong
//! index.

use corral_llama::{
    ContextSettings, DecodeError, DevicePlacement, KvType, LlamaContext, LoadProgress, Model,
    Token, TokenInput,
};
use corral_scheduler::SeqId;
use corral_scheduler::{KvCells, PositionOrder};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::Arc;

const IDS: u16 = 8;
const STEP_TOKENS: u32 = 64;

fn model() -> Arc<Model> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let model = Model::load(&file, DevicePlacement::default(), &LoadProgress::default());
    Arc::new(model.expect("the demo model loads"))
}

fn context(model: &Arc<Model>, cells: u32) -> LlamaContext {
    let settings = ContextSettings {
        cells,
        step_tokens: STEP_TOKENS,
        seq_ids: IDS,
        threads: 1,
        kv_type: KvType::F16,
        device_top_k: None,
    };
    LlamaContext::new(model.clone(), settings).expect("there is memory for the context")
}

/// Number of steps and changes by outcome.
#[derive(Debug, Default)]
struct Counts {
    placed: u32,
    aborted: u32,
    refused: u32,
    full: u32,
    shared: u32,
    truncated: u32,
    loaded: u32,
    /// Loads of positions that were out of order.
    scattered: u32,
    without_room: u32,
    damaged: u32,
}

/// A context and its mirror.
struct Pair {
    context: LlamaContext,
    mirror: KvCells,
    size: u32,
    vocabulary: Token,
    random: ChaCha8Rng,
    saved: Vec<(Vec<u8>, PositionOrder)>,
    counts: Counts,
}

impl Pair {
    fn new(model: &Arc<Model>, size: u32, seed: u64) -> Self {
        let context = context(model, size);
        assert_eq!(context.cells(), size, "a size that is not rounded");
        Self {
            context,
            mirror: KvCells::new(size),
            size,
            vocabulary: Token::try_from(model.vocabulary_size()).expect("a small vocabulary"),
            random: ChaCha8Rng::seed_from_u64(seed),
            saved: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn any_id(&mut self) -> SeqId {
        SeqId(self.random.random_range(0..IDS))
    }

    /// Rows of a step: mostly single tokens, some longer ones, in any order, with repeated ids; sometimes exactly as
    /// many tokens as are free.
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

    fn inputs(&mut self, rows: &[(SeqId, u32)]) -> Vec<TokenInput> {
        let mut next: Vec<u32> = (0..IDS).map(|id| self.mirror.held_by(SeqId(id))).collect();
        let mut inputs = Vec::new();
        for &(seq, count) in rows {
            for _ in 0..count {
                let position = &mut next[usize::from(seq.0)];
                inputs.push(TokenInput {
                    token: self.random.random_range(0..self.vocabulary),
                    position: *position,
                    seq: seq.0.into(),
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
        let decoded = self.context.decode(inputs);
        let room = self.mirror.place(rows.iter().copied());
        match decoded {
            Ok(()) => {
                assert!(room && !abort, "llama.cpp had room");
                self.counts.placed += 1;
            }
            Err(DecodeError::Failed(2)) => {
                assert!(room && abort, "llama.cpp had room and was aborted");
                self.mirror.undo(rows.iter().copied());
                self.counts.aborted += 1;
            }
            Err(DecodeError::NoRoom) => {
                assert!(!room, "llama.cpp had no room");
                self.counts.refused += 1;
            }
            Err(error) => panic!("unexpected error: {error}"),
        }
    }

    fn clear(&mut self, seq: SeqId) {
        self.context.clear(seq.0.into());
        self.mirror.clear(seq);
    }

    fn share(&mut self) {
        let (from, to) = (self.any_id(), self.any_id());
        if from != to {
            self.clear(to);
            let length = self.random.random_range(0..=self.mirror.held_by(from));
            self.context.share(from.0.into(), to.0.into(), length);
            self.mirror.share(from, to, length);
            self.counts.shared += u32::from(length > 0);
        }
    }

    fn truncate(&mut self) {
        let seq = self.any_id();
        let has = self.mirror.held_by(seq);
        let length = self.random.random_range(0..=has + 1);
        self.context.truncate(seq.0.into(), length);
        self.mirror.truncate(seq, length);
        self.counts.truncated += u32::from(length < has);
    }

    fn save(&mut self) {
        let seq = self.any_id();
        if self.mirror.held_by(seq) > 0 {
            let state = self
                .context
                .save(seq.0.into(), usize::MAX)
                .expect("the state is saved");
            if self.saved.len() == 8 {
                self.saved.swap_remove(0);
            }
            self.saved.push((state, self.mirror.order(seq)));
            self.clear(seq);
        }
    }

    fn load(&mut self) {
        if self.saved.is_empty() {
            return;
        }
        let index = self.random.random_range(0..self.saved.len());
        let (state, order) = self.saved[index].clone();
        let empty = |seq: &SeqId| self.mirror.held_by(*seq) == 0;
        let seq = (0..IDS).map(SeqId).find(empty);
        let seq = seq.unwrap_or_else(|| self.any_id());
        self.clear(seq);
        if self.random.random_bool(0.2) {
            let length = self.random.random_range(0..state.len());
            assert!(!self.context.load(seq.0.into(), &state[..length]));
            self.counts.damaged += 1;
            return;
        }
        let restored = self.mirror.restore(seq, &order);
        assert_eq!(self.context.load(seq.0.into(), &state), restored);
        if restored {
            self.counts.loaded += 1;
            let mut in_order = KvCells::new(self.size);
            in_order.place([(seq, order.length())].into_iter());
            self.counts.scattered += u32::from(order != in_order.order(seq));
        } else {
            self.counts.without_room += 1;
        }
    }

    fn check(&mut self) {
        let used = self.context.used_cells();
        let mirrored = self.mirror.occupied().map(|(position, holders)| {
            let holders = holders.iter().map(|seq| seq.0.into()).collect();
            (position, holders)
        });
        assert!(
            mirrored.eq(used.iter().cloned()),
            "the same positions in the same order of cells"
        );
        assert_eq!(self.mirror.used() as usize, used.len());
        let only_holder = match used.last().map(|(_, holders)| holders.as_slice()) {
            Some(&[holder]) => u16::try_from(holder).ok().map(SeqId),
            _ => None,
        };
        assert_eq!(self.mirror.highest(), only_holder);
        for id in (0..IDS).map(SeqId) {
            assert_eq!(self.mirror.held_by(id), self.context.length(id.0.into()));
            let alone = [i32::from(id.0)];
            let freed = used.iter().filter(|(_, holders)| *holders == alone).count();
            assert_eq!(self.mirror.freed_by_clearing(id) as usize, freed);
        }
        self.counts.full += u32::from(self.mirror.used() == self.size);
    }
}

#[test]
fn mirror_matches_cells_of_llama_cpp() {
    let model = model();
    let mut counts = Counts::default();
    for (size, seed) in [(256, 1), (512, 2), (512, 3)] {
        let mut pair = Pair::new(&model, size, seed);
        pair.counts = counts;
        pair.check();
        for _ in 0..800 {
            // A full context stays full until something frees cells: do that often.
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
        counts = pair.counts;
    }
    let Counts {
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
    } = counts;
    let steps = [placed, aborted, refused, full];
    let changes = [shared, truncated, loaded, scattered, without_room, damaged];
    assert!(
        steps.iter().chain(&changes).all(|&times| times >= 20),
        "{:?}",
        counts
    );
}
