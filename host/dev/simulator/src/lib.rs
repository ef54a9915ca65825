//! A simulated backend in virtual time: what llama.cpp does to cells, ids and return codes, without a model.
//!
//! It predicts `token + 1`, and `token + 1 + n` with adapter `n`, so that a caller can tell whether a sequence was
//! computed whole, once and in order. It panics where llama.cpp ends the process or silently computes nonsense: unknown
//! ids, gaps in positions, steps that are too large, rows whose state was computed with another adapter, and sharing or
//! loading into an id that is not empty. As with llama.cpp, some ids can give the highest logits alone.
//!
//! [`simulation`] drives a scheduler over it, with arrivals, cancellations and faults, and checks the invariants in every
//! step.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod machine;
pub mod simulation;

use corral_scheduler::{AdapterId, SeqId, Token};
use machine::scatter;
pub use machine::{Fault, Machine};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// A token that makes every step with it fail.
pub const POISON: Token = 666;

/// The first bytes of a saved state.
const MARK: [u8; 4] = *b"CRLS";

/// The size of a simulated context.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Sequence ids.
    pub seq_ids: u16,
    /// Cells of all sequences together.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Tokens of the vocabulary, more than [`POISON`].
    pub vocabulary: u32,
}

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The token.
    pub token: Token,
    /// Its position in the sequence, from 0.
    pub position: u32,
    /// The sequence it belongs to.
    pub seq: SeqId,
    /// Whether logits are wanted after it.
    pub output: bool,
}

/// The logits after an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output<'a> {
    /// One for each token of the vocabulary.
    All(&'a [f32]),
    /// The highest ones, in no order.
    Top {
        /// The token of each logit.
        tokens: &'a [Token],
        /// The logits.
        logits: &'a [f32],
    },
}

/// Why a step failed. Nothing of it stays, unless the memory can't truncate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too few cells are free.
    #[error("too few cells are free")]
    NoRoom,
    /// The computation failed with this code.
    #[error("the computation failed with code {0}")]
    Failed(i32),
}

/// Why a state was not saved. The sequence is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// The state is larger than the caller allows.
    #[error("the state has {bytes} bytes; at most {limit} are allowed")]
    TooLarge {
        /// The size of the state.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A fault of [`Simulator::with_state_faults`].
    #[error("no memory for {bytes} bytes of state")]
    NoMemory {
        /// The size of the state.
        bytes: usize,
    },
}

/// A pseudo-random number, the same for equal values.
pub(crate) fn pseudo_random(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The backend.
#[derive(Clone, Debug)]
pub struct Simulator {
    size: Size,
    machine: Machine,
    /// By step, from 0.
    faults: BTreeMap<u64, Fault>,
    steps: u64,
    /// The saves and loads that fail, counted together from 0.
    state_faults: BTreeSet<u64>,
    states: u64,
    /// Whether sequences can be truncated, and shared in part.
    can_truncate: bool,
    adapter: AdapterId,
    /// Whether the next step includes an adapter change.
    switched: bool,
    held: Vec<Sequence>,
    /// The number of holders of each cell.
    holders: Vec<u16>,
    free: BTreeSet<u32>,
    taken: BTreeSet<u32>,
    /// The predicted token after each input of the last step.
    predicted: Vec<Option<Token>>,
    /// The number of ids, from 0 on, with only the highest logits, and the number of those logits.
    top: (u16, u32),
    /// The highest logits, by input of the last step.
    tops: BTreeMap<usize, (Vec<Token>, Vec<f32>)>,
    /// A single peak in the middle: the logits that predict any token are a window of it.
    peak: Vec<f32>,
    took: Duration,
}

/// The tokens and cells of an id, by position.
#[derive(Clone, Debug, Default)]
struct Sequence {
    tokens: Vec<Token>,
    cells: Vec<u32>,
    /// The adapter that computed them.
    adapter: AdapterId,
}

impl Simulator {
    /// An empty backend.
    pub fn new(size: Size, machine: Machine, faults: BTreeMap<u64, Fault>) -> Self {
        let vocabulary = size.vocabulary as usize;
        let mut peak = vec![0.0; 2 * vocabulary - 1];
        peak[vocabulary - 1] = 10.0;
        Self {
            size,
            machine,
            faults,
            steps: 0,
            state_faults: BTreeSet::new(),
            states: 0,
            can_truncate: true,
            adapter: AdapterId::NONE,
            switched: false,
            held: vec![Sequence::default(); usize::from(size.seq_ids)],
            holders: vec![0; size.cells as usize],
            free: (0..size.cells).collect(),
            taken: BTreeSet::new(),
            predicted: Vec::new(),
            top: (0, 0),
            tops: BTreeMap::new(),
            peak,
            took: Duration::ZERO,
        }
    }

    /// Lets these saves and loads fail, counted together from 0.
    #[must_use]
    pub fn with_state_faults(mut self, faults: BTreeSet<u64>) -> Self {
        self.state_faults = faults;
        self
    }

    /// A memory that can't truncate, as of recurrent and sliding-window models: sharing or keeping a part of a sequence
    /// panics.
    #[must_use]
    pub fn without_parts(mut self) -> Self {
        self.can_truncate = false;
        self
    }

    /// Gives only the `k` highest logits for the first `ids` ids, after one position of each in a step: a second output
    /// panics. All but the highest logit are equal.
    #[must_use]
    pub fn with_top(mut self, ids: u16, k: u32) -> Self {
        self.top = (ids, k.min(self.size.vocabulary));
        self
    }

    /// A state as [`Simulator::save`] returns it, of a sequence that was computed elsewhere.
    pub fn state_of(tokens: &[Token], adapter: AdapterId) -> Vec<u8> {
        let length = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let mut state = MARK.to_vec();
        state.extend((length | u32::from(adapter.0) << 24).to_le_bytes());
        state.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        state
    }

    /// The time of the last step, failed or not.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The tokens of an id.
    pub fn held(&self, seq: SeqId) -> &[Token] {
        &self.held[usize::from(seq.0)].tokens
    }

    /// The adapter that computed the tokens of an id.
    pub fn adapter_of(&self, seq: SeqId) -> AdapterId {
        self.held[usize::from(seq.0)].adapter
    }

    /// Used cells. A shared cell counts once.
    pub fn used(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// Takes a free cell for a token.
    fn push(&mut self, seq: SeqId, token: Token) {
        let cell = self.free.pop_first().expect("there is a free cell");
        self.taken.insert(cell);
        self.holders[cell as usize] = 1;
        let adapter = self.adapter;
        let held = &mut self.held[usize::from(seq.0)];
        if held.tokens.is_empty() {
            held.adapter = adapter;
        }
        held.tokens.push(token);
        held.cells.push(cell);
    }

    /// Keeps a part of a failed step, if the memory can't truncate.
    fn keep_part(&mut self, step: &[Input]) {
        if !self.can_truncate {
            for input in &step[..step.len() / 2] {
                self.push(input.seq, input.token);
            }
        }
    }

    /// The highest logits that predict a token, with the highest of all in the middle.
    fn highest(&self, token: Token) -> (Vec<Token>, Vec<f32>) {
        let count = self.top.1;
        let tokens = (0..count).map(|i| (token + count / 2 + i + 1) % self.size.vocabulary);
        let tokens: Vec<_> = tokens
            .enumerate()
            .map(|(place, other)| match place {
                place if place == count as usize / 2 => token,
                _ => other,
            })
            .collect();
        let logit = |&other: &Token| if other == token { 10.0 } else { 0.0 };
        let logits = tokens.iter().map(logit).collect();
        (tokens, logits)
    }

    /// Whether this save or load fails.
    fn state_fails(&mut self) -> bool {
        self.states += 1;
        self.state_faults.contains(&(self.states - 1))
    }

    /// The tokens of a saved state and their adapter.
    fn read(&self, state: &[u8]) -> Option<(Vec<Token>, AdapterId)> {
        let (count, rest) = state.strip_prefix(&MARK)?.split_first_chunk()?;
        let (tokens, more) = rest.as_chunks();
        let tokens: Vec<_> = tokens.iter().copied().map(Token::from_le_bytes).collect();
        // The highest byte is the adapter.
        let [low, middle, high, adapter] = *count;
        let count = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let whole = more.is_empty() && tokens.len() == count;
        let known = tokens.iter().all(|&token| token < self.size.vocabulary);
        (whole && known).then_some((tokens, AdapterId(adapter)))
    }

    /// Computes a step and its time.
    fn compute(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        assert!(!step.is_empty() && step.len() <= self.size.step_tokens as usize);
        let fault = self.faults.get(&self.steps).copied();
        self.steps += 1;
        let mut seconds = self.seconds(step);
        self.switched = false;
        seconds *= 1.0 + self.machine.noise * scatter(self.steps);
        if let Some(Fault::Slow(times)) = fault {
            seconds *= times;
        }
        self.took = Duration::from_secs_f64(seconds);
        if self.used() + step.len() > self.size.cells as usize {
            return Err(DecodeError::NoRoom);
        }
        match fault {
            Some(Fault::Code(1)) => return Err(DecodeError::NoRoom),
            Some(Fault::Code(code)) => {
                self.keep_part(step);
                return Err(DecodeError::Failed(code));
            }
            Some(Fault::Slow(_)) | None => {}
        }
        if step.iter().any(|input| input.token == POISON) {
            self.keep_part(step);
            return Err(DecodeError::Failed(-3));
        }
        for input in step {
            let length = self.held(input.seq).len();
            assert_eq!(length, input.position as usize, "a gap in the positions");
            let of = self.adapter_of(input.seq);
            assert!(length == 0 || of == self.adapter, "a state of {of:?}");
            self.push(input.seq, input.token);
        }
        Ok(())
    }

    fn seconds(&self, step: &[Input]) -> f64 {
        // The tokens and outputs of each sequence.
        let mut mates: BTreeMap<SeqId, (u32, u32)> = BTreeMap::new();
        for input in step {
            let (all, outputs) = mates.entry(input.seq).or_default();
            *all += 1;
            *outputs += u32::from(input.output);
        }
        let alone = |input: &&Input| {
            let (all, outputs) = mates.get(&input.seq).copied().unwrap_or_default();
            input.output && (all == 1 || outputs > 1)
        };
        let reach = self.taken.last().map_or(0, |highest| *highest as usize + 1);
        #[allow(clippy::cast_precision_loss)]
        let [rows, tokens, reach] =
            [step.iter().filter(alone).count(), step.len(), reach].map(|n| n as f64);
        let machine = &self.machine;
        machine.fixed
            + machine.row * rows
            + machine.prefill * (tokens - rows)
            + machine.attention * tokens * reach
            + if self.switched {
                machine.adapter_change
            } else {
                0.0
            }
    }
}

impl Simulator {
    /// Computes with this adapter from the next step on.
    pub fn adapt(&mut self, adapter: AdapterId) -> Result<(), DecodeError> {
        assert!(adapter.0 <= AdapterId::MAX, "unknown {adapter:?}");
        self.switched |= adapter != self.adapter;
        self.adapter = adapter;
        Ok(())
    }

    /// Computes one step.
    pub fn decode(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        self.compute(step)?;
        self.predicted.clear();
        self.tops.clear();
        let mut given = BTreeSet::new();
        for (index, input) in step.iter().enumerate() {
            let next = (input.token + 1 + u32::from(self.adapter.0)) % self.size.vocabulary;
            let top = input.output && input.seq.0 < self.top.0;
            if top {
                assert!(given.insert(input.seq), "two outputs of {:?}", input.seq);
                let highest = self.highest(next);
                self.tops.insert(index, highest);
            }
            self.predicted.push((input.output && !top).then_some(next));
        }
        Ok(())
    }

    /// Starts a step without outputs. The caller adds [`Simulator::took`] where something waits for it.
    pub fn decode_ahead(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        assert!(!step.iter().any(|input| input.output), "outputs ahead");
        self.compute(step)
    }

    /// All logits after an input of the last step; `None` if it has no output or only its highest logits are kept.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        let token = (*self.predicted.get(index)?)? as usize;
        let vocabulary = self.size.vocabulary as usize;
        self.peak.get(vocabulary - 1 - token..)?.get(..vocabulary)
    }

    /// The logits after an input of the last step; `None` if it has no output.
    pub fn output(&self, index: usize) -> Option<Output<'_>> {
        let Some((tokens, logits)) = self.tops.get(&index) else {
            return self.logits(index).map(Output::All);
        };
        Some(Output::Top { tokens, logits })
    }

    /// The number of highest logits, if some ids have those alone.
    pub fn top_k(&self) -> Option<u32> {
        (self.top.0 > 0).then_some(self.top.1)
    }

    /// Frees the cells of a sequence, except those it shares.
    pub fn clear(&mut self, seq: SeqId) {
        self.truncate(seq, 0);
    }

    /// Lets `to`, which holds nothing, share the first `length` positions of `from`.
    pub fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        let length = length as usize;
        let has = self.held(from).len();
        assert!(self.held(to).is_empty() && from != to, "{to:?} is in use");
        assert!(length <= has, "{from:?} has only {has} positions");
        assert!(self.can_truncate || length == has, "{from:?} as a whole");
        let from = &self.held[usize::from(from.0)];
        let shared = Sequence {
            tokens: from.tokens[..length].to_vec(),
            cells: from.cells[..length].to_vec(),
            adapter: from.adapter,
        };
        for &cell in &shared.cells {
            self.holders[cell as usize] += 1;
        }
        self.held[usize::from(to.0)] = shared;
    }

    /// Frees the positions of a sequence from `length` on, except those it shares.
    pub fn truncate(&mut self, seq: SeqId, length: u32) {
        let held = &mut self.held[usize::from(seq.0)];
        let has = held.tokens.len();
        let length = has.min(length as usize);
        assert!(
            self.can_truncate || length == 0 || length == has,
            "{seq:?} as a whole"
        );
        held.tokens.truncate(length);
        for cell in held.cells.drain(length..) {
            let holders = &mut self.holders[cell as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.insert(cell);
                self.taken.remove(&cell);
            }
        }
    }

    /// A copy of the state of a sequence, of at most `limit` bytes.
    pub fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        let fails = self.state_fails();
        let state = Self::state_of(self.held(seq), self.adapter_of(seq));
        let bytes = state.len();
        if bytes > limit {
            return Err(SaveError::TooLarge { bytes, limit });
        }
        if fails {
            return Err(SaveError::NoMemory { bytes });
        }
        Ok(state)
    }

    /// Loads a saved state into a sequence that holds nothing. False if it does not fit or is damaged.
    #[must_use]
    pub fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        assert!(self.held(seq).is_empty(), "{seq:?} is in use");
        let fails = self.state_fails();
        let Some((tokens, adapter)) = self.read(state) else {
            return false;
        };
        if fails || tokens.len() > self.free.len() {
            return false;
        }
        for token in tokens {
            self.push(seq, token);
        }
        self.held[usize::from(seq.0)].adapter = adapter;
        true
    }

    /// The number of positions of a sequence.
    pub fn length(&self, seq: SeqId) -> u32 {
        u32::try_from(self.held(seq).len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_predict_and_take_cells_and_time() {
        let size = Size {
            seq_ids: 2,
            cells: 3,
            step_tokens: 4,
            vocabulary: 1000,
        };
        let faults = BTreeMap::from([(1, Fault::Code(-2)), (2, Fault::Slow(10.0))]);
        let mut simulator = Simulator::new(size, Machine::default(), faults);
        let input = |token, position, output| Input {
            token,
            position,
            seq: SeqId(1),
            output,
        };
        let step = [input(7, 0, false), input(8, 1, true)];
        assert_eq!(simulator.decode(&step), Ok(()));
        assert_eq!(simulator.logits(0), None);
        let row = simulator.logits(1).unwrap();
        assert_eq!((row.len(), row[9], row[8], row[10]), (1000, 10.0, 0.0, 0.0));
        let took = simulator.took();
        let next = [input(9, 2, true)];
        assert_eq!(simulator.decode(&next), Err(DecodeError::Failed(-2)));
        assert_eq!(simulator.decode(&next), Ok(()));
        assert!(simulator.took() > 5 * took);
        assert_eq!(
            simulator.decode(&[input(1, 3, true)]),
            Err(DecodeError::NoRoom)
        );
        assert_eq!(simulator.held(SeqId(1)), [7, 8, 9]);
        simulator.clear(SeqId(1));
        assert_eq!((simulator.used(), simulator.length(SeqId(1))), (0, 0));
    }

    const SIZE: Size = Size {
        seq_ids: 4,
        cells: 10,
        step_tokens: 8,
        vocabulary: 1000,
    };

    /// Puts tokens behind what a sequence holds.
    fn feed(simulator: &mut Simulator, seq: SeqId, tokens: &[Token]) -> Result<(), DecodeError> {
        let from = simulator.length(seq);
        let input = |(position, &token)| Input {
            token,
            position,
            seq,
            output: false,
        };
        let step: Vec<_> = (from..).zip(tokens).map(input).collect();
        simulator.decode(&step)
    }

    #[test]
    fn shared_cells_free_with_last_holder() {
        let [a, b, c] = [0, 1, 2].map(SeqId);
        let mut simulator = Simulator::new(SIZE, Machine::default(), BTreeMap::new());
        feed(&mut simulator, a, &[1, 2, 3, 4, 5]).unwrap();
        simulator.share(a, b, 3);
        simulator.share(b, c, 2);
        assert_eq!((simulator.used(), simulator.length(b)), (5, 3));
        feed(&mut simulator, b, &[9]).unwrap();
        assert_eq!(
            (simulator.held(b), simulator.held(a)[3]),
            (&[1, 2, 3, 9][..], 4)
        );
        simulator.truncate(a, 1);
        assert_eq!((simulator.used(), simulator.held(a)), (4, &[1][..]));
        simulator.clear(b);
        assert_eq!((simulator.used(), simulator.held(c)), (2, &[1, 2][..]));
        // Room is counted by cells: eight are free.
        feed(&mut simulator, b, &[0; 8]).unwrap();
        assert_eq!(feed(&mut simulator, a, &[0]), Err(DecodeError::NoRoom));
        for seq in [a, b, c] {
            simulator.clear(seq);
        }
        assert_eq!(simulator.used(), 0);
    }

    #[test]
    fn saved_state_loads_unless_damaged_or_full() {
        let [a, b] = [0, 1].map(SeqId);
        let faults = BTreeSet::from([1, 3]);
        let mut simulator =
            Simulator::new(SIZE, Machine::default(), BTreeMap::new()).with_state_faults(faults);
        feed(&mut simulator, a, &[7, 8, 999]).unwrap();
        let state = simulator.save(a, 20).unwrap();
        let bytes = state.len();
        assert_eq!(simulator.save(a, 20), Err(SaveError::NoMemory { bytes }));
        assert_eq!(
            simulator.save(a, 19),
            Err(SaveError::TooLarge { bytes, limit: 19 })
        );
        assert!(!simulator.load(b, &state), "a fault");
        for damaged in [
            &state[..0],
            &state[..19],
            &state[4..],
            &[state.clone(), vec![0]].concat(),
        ] {
            assert!(!simulator.load(b, damaged));
        }
        let mut damaged = state.clone();
        damaged[17] ^= 0x80;
        assert!(!simulator.load(b, &damaged), "an unknown token");
        assert_eq!((simulator.length(b), simulator.used()), (0, 3));
        assert!(simulator.load(b, &state));
        assert_eq!((simulator.held(b), simulator.used()), (&[7, 8, 999][..], 6));
        feed(&mut simulator, a, &[0, 0]).unwrap();
        assert!(!simulator.load(SeqId(2), &state), "no room for three more");
        simulator.truncate(a, 4);
        assert!(simulator.load(SeqId(2), &state));
    }

    #[test]
    #[should_panic(expected = "as a whole")]
    fn memory_without_parts_frees_wholes_only() {
        let mut simulator =
            Simulator::new(SIZE, Machine::default(), BTreeMap::new()).without_parts();
        feed(&mut simulator, SeqId(0), &[1, 2, 3]).unwrap();
        simulator.share(SeqId(0), SeqId(1), 3);
        simulator.truncate(SeqId(0), 0);
        assert_eq!((simulator.used(), simulator.length(SeqId(1))), (3, 3));
        simulator.truncate(SeqId(1), 2);
    }
}
