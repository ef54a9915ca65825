//! A backend without a model: what llama.cpp does to cells, ids and return codes, in virtual time.
//!
//! It predicts `token + 1`, so whoever reads can tell whether a sequence was computed whole, once
//! and in order. It is strict where llama.cpp ends the process or silently computes nonsense:
//! unknown ids, gaps in positions and steps that are too large are panics here.
//!
//! [`simulation`] drives the scheduler over it, with arrivals, cancellations and faults, and checks
//! every invariant at every step.

pub mod simulation;

use crate::Token;
use crate::backend::{Backend, DecodeError, Input};
use crate::scheduler::SeqId;
use std::collections::BTreeMap;
use std::time::Duration;

/// A token that makes every step fail which it is part of.
pub const POISON: Token = 666;

/// How large the simulated context is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Sequence ids.
    pub seq_ids: u16,
    /// Cells that all sequences share.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Tokens of the vocabulary, more than [`POISON`].
    pub vocabulary: u32,
}

/// How long steps take, in seconds: `fixed + row * rows + prefill * tokens of prompts +
/// attention * tokens * used cells`.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Of every step.
    pub fixed: f64,
    /// Of each sequence that generates.
    pub row: f64,
    /// Of each prompt token.
    pub prefill: f64,
    /// Of each token for each used cell.
    pub attention: f64,
    /// By what part steps take longer or shorter than this, at random.
    pub noise: f64,
}

impl Default for Machine {
    /// About what two cores do with a model of 0.6 billion weights.
    fn default() -> Self {
        Self {
            fixed: 0.040,
            row: 0.004,
            prefill: 0.0025,
            attention: 1e-8,
            noise: 0.0,
        }
    }
}

/// What goes wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It fails with a return code of llama_decode: 1, 2, -2 or -3. Nothing of it stays.
    Code(i32),
    /// It takes so many times as long.
    Slow(f64),
}

/// The backend.
#[derive(Clone, Debug)]
pub struct Simulator {
    size: Size,
    machine: Machine,
    /// By the number of the step, from 0.
    faults: BTreeMap<u64, Fault>,
    steps: u64,
    held: Vec<Vec<Token>>,
    /// For each input of the last step, the token that is predicted after it.
    predicted: Vec<Option<Token>>,
    /// One peak in the middle: a window of it is the logits of any token.
    peak: Vec<f32>,
    took: Duration,
}

impl Simulator {
    /// An empty one.
    pub fn new(size: Size, machine: Machine, faults: BTreeMap<u64, Fault>) -> Self {
        let vocabulary = size.vocabulary as usize;
        let mut peak = vec![0.0; 2 * vocabulary - 1];
        peak[vocabulary - 1] = 10.0;
        Self {
            size,
            machine,
            faults,
            steps: 0,
            held: vec![Vec::new(); usize::from(size.seq_ids)],
            predicted: Vec::new(),
            peak,
            took: Duration::ZERO,
        }
    }

    /// How long the last step took, failed or not.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The tokens that a sequence id holds.
    pub fn held(&self, seq: SeqId) -> &[Token] {
        &self.held[usize::from(seq.0)]
    }

    /// Cells that are taken.
    pub fn used(&self) -> usize {
        self.held.iter().map(Vec::len).sum()
    }

    fn seconds(&self, step: &[Input]) -> f64 {
        let alone = |input: &&Input| {
            let mates = step.iter().filter(|other| other.seq == input.seq);
            input.output && mates.count() == 1
        };
        #[allow(clippy::cast_precision_loss)]
        let [rows, tokens, used] =
            [step.iter().filter(alone).count(), step.len(), self.used()].map(|n| n as f64);
        let machine = &self.machine;
        machine.fixed
            + machine.row * rows
            + machine.prefill * (tokens - rows)
            + machine.attention * tokens * used
    }
}

/// A number from -1 to 1 that looks random, the same for the same `step` (splitmix64).
#[allow(clippy::cast_precision_loss)]
fn scatter(step: u64) -> f64 {
    let mut x = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

impl Backend for Simulator {
    fn decode(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        assert!(!step.is_empty() && step.len() <= self.size.step_tokens as usize);
        let fault = self.faults.get(&self.steps).copied();
        self.steps += 1;
        let mut seconds = self.seconds(step);
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
            Some(Fault::Code(code)) => return Err(DecodeError::Failed(code)),
            Some(Fault::Slow(_)) | None => {}
        }
        if step.iter().any(|input| input.token == POISON) {
            return Err(DecodeError::Failed(-3));
        }
        self.predicted.clear();
        for input in step {
            let held = &mut self.held[usize::from(input.seq.0)];
            assert_eq!(
                held.len(),
                input.position as usize,
                "positions without gaps"
            );
            held.push(input.token);
            let next = (input.token + 1) % self.size.vocabulary;
            self.predicted.push(input.output.then_some(next));
        }
        Ok(())
    }

    fn logits(&self, index: usize) -> Option<&[f32]> {
        let token = (*self.predicted.get(index)?)? as usize;
        let vocabulary = self.size.vocabulary as usize;
        self.peak.get(vocabulary - 1 - token..)?.get(..vocabulary)
    }

    fn clear(&mut self, seq: SeqId) {
        self.held[usize::from(seq.0)].clear();
    }

    fn length(&self, seq: SeqId) -> u32 {
        u32::try_from(self.held(seq).len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_predicts_the_next_number_and_keeps_cells_and_time() {
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
}
