//! The simulated backend: steps, their time, faults and results.

mod cells;

use crate::machine::scatter;
use crate::{DecodeError, Fault, Input, Machine, POISON};
use cells::SimulatedSequence;
use corral_scheduler::{AdapterId, SeqId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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

/// The backend.
#[derive(Clone, Debug)]
pub struct SimulatedBackend {
    pub(crate) size: Size,
    machine: Machine,
    /// By step, from 0.
    faults: BTreeMap<u64, Fault>,
    steps: u64,
    /// The saves and loads that fail, counted together from 0.
    pub(crate) state_faults: BTreeSet<u64>,
    pub(crate) states: u64,
    /// Whether sequences can be truncated, and shared in part.
    pub(crate) can_truncate: bool,
    pub(crate) adapter: AdapterId,
    /// Whether the next step includes an adapter change.
    switched: bool,
    pub(crate) held: Vec<SimulatedSequence>,
    /// The number of holders of each cell.
    pub(crate) holders: Vec<u16>,
    pub(crate) free: BTreeSet<u32>,
    pub(crate) taken: BTreeSet<u32>,
    /// The predicted token after each input of the last step.
    predicted: Vec<Option<Token>>,
    /// The number of ids, from 0 on, with only the highest logits.
    top_ids: u16,
    /// A single peak in the middle: the logits that predict any token are a window of it.
    peak: Vec<f32>,
    took: Duration,
}

impl SimulatedBackend {
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
            held: vec![SimulatedSequence::default(); usize::from(size.seq_ids)],
            holders: vec![0; size.cells as usize],
            free: (0..size.cells).collect(),
            taken: BTreeSet::new(),
            predicted: Vec::new(),
            top_ids: 0,
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

    /// Gives no whole rows for the first `ids` ids, and one output of each in a step: a second one panics.
    #[must_use]
    pub fn with_top(mut self, ids: u16) -> Self {
        self.top_ids = ids;
        self
    }

    /// The time of the last step, failed or not.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Keeps a part of a failed step, if the memory can't truncate.
    fn keep_part(&mut self, step: &[Input]) {
        if !self.can_truncate {
            for input in &step[..step.len() / 2] {
                self.push(input.seq, input.token);
            }
        }
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
        let mut by_seq: BTreeMap<SeqId, (u32, u32)> = BTreeMap::new();
        for input in step {
            let (all, outputs) = by_seq.entry(input.seq).or_default();
            *all += 1;
            *outputs += u32::from(input.output);
        }
        let alone = |input: &&Input| {
            let (all, outputs) = by_seq.get(&input.seq).copied().unwrap_or_default();
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
        let mut given = BTreeSet::new();
        for input in step {
            let next = (input.token + 1 + u32::from(self.adapter.0)) % self.size.vocabulary;
            let top = input.output && input.seq.0 < self.top_ids;
            assert!(
                !top || given.insert(input.seq),
                "two outputs of {:?}",
                input.seq
            );
            self.predicted.push((input.output && !top).then_some(next));
        }
        Ok(())
    }

    /// Starts a step without outputs. The caller adds [`SimulatedBackend::took`] where something waits for it.
    pub fn decode_ahead(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        assert!(!step.iter().any(|input| input.output), "outputs ahead");
        self.compute(step)
    }

    /// The logits after an input of the last step; `None` if it has no output or its id gives no whole rows.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        let token = (*self.predicted.get(index)?)? as usize;
        let vocabulary = self.size.vocabulary as usize;
        self.peak.get(vocabulary - 1 - token..)?.get(..vocabulary)
    }
}
