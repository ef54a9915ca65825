//! Which tokens of which inputs make a step.
//!
//! A model that attends to its whole input at once computes each input in one step; inputs share a step
//! as far as they fit. A causal model computes chunks: started inputs hold cells until they are done and
//! share each step evenly, so short inputs finish early and a long one gets the rest. Long inputs, one
//! at a time, and short inputs have separate cells, so neither waits for the other. A request may hold
//! half the cells of short inputs, so that a request with many inputs leaves room.
//!
//! After a failed step, each of its inputs is computed again alone from its start; an input that fails
//! alone twice fails its request. Meanwhile no input starts.

use super::fair_queue::FairQueueId;
use super::pooling::Pooler;
use corral_scheduler::SeqId;

/// Tokens of the longest short input.
pub const MAX_SHORT_TOKENS: u32 = 512;
/// Cells of all short inputs together.
pub const SHORT_CELLS: u32 = 2 * MAX_SHORT_TOKENS;
/// Failures alone until an input fails its request.
const MAX_FAILURES: u32 = 2;

/// The limits of a step and of the context.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Whether an input is computed in one step.
    pub whole: bool,
    /// Tokens of a step.
    pub step_tokens: u32,
    /// Tokens up to which several whole inputs share a step.
    pub shared_tokens: u32,
    /// Inputs computed at once.
    pub seq_ids: u16,
    /// Tokens of the longest input.
    pub max_input: u32,
}

impl BatchLimits {
    /// Cells that always suffice.
    pub fn cells(&self) -> u32 {
        if self.whole {
            self.step_tokens
        } else {
            self.max_input + SHORT_CELLS
        }
    }
}

/// An input that has started.
#[derive(Debug)]
pub struct ActiveInput {
    /// Its request.
    pub id: FairQueueId,
    /// Its index in the request.
    pub input: usize,
    /// Its sequence in the context.
    pub seq: SeqId,
    /// The pooled vectors so far.
    pub pooler: Pooler,
    length: u32,
    done: u32,
    /// Set after a step with it failed: how often it failed alone.
    failures: Option<u32>,
}

impl ActiveInput {
    fn is_short(&self) -> bool {
        self.length <= MAX_SHORT_TOKENS
    }
}

/// An input's row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputRow {
    /// The request.
    pub id: FairQueueId,
    /// The index of the input in the request.
    pub input: usize,
    /// Its sequence in the context.
    pub seq: SeqId,
    /// The first token.
    pub start: u32,
    /// The number of tokens.
    pub count: u32,
}

/// The started inputs.
pub struct EmbeddingBatch {
    limits: BatchLimits,
    active: Vec<ActiveInput>,
    /// Unused sequence ids.
    free: Vec<SeqId>,
}

impl EmbeddingBatch {
    /// An empty batch.
    pub fn new(limits: BatchLimits) -> Self {
        debug_assert!(u32::from(limits.seq_ids) <= limits.step_tokens);
        debug_assert!(!limits.whole || limits.max_input <= limits.step_tokens);
        Self {
            limits,
            active: Vec::new(),
            free: (0..limits.seq_ids).rev().map(SeqId).collect(),
        }
    }

    /// Whether an input of this length can start.
    pub fn has_room(&self, length: u32) -> bool {
        let sum = |which: &dyn Fn(&&ActiveInput) -> bool| -> u32 {
            self.active.iter().filter(which).map(|a| a.length).sum()
        };
        if self.free.is_empty() || self.active.iter().any(|a| a.failures.is_some()) {
            return false;
        }
        if self.limits.whole {
            self.active.is_empty() || sum(&|_| true) + length <= self.limits.shared_tokens
        } else if length <= MAX_SHORT_TOKENS {
            sum(&|a| a.is_short()) + length <= SHORT_CELLS
        } else {
            self.active.iter().all(ActiveInput::is_short)
        }
    }

    /// Whether a request holds too many cells to start an input of this length.
    pub fn exceeds_request_limit(&self, id: FairQueueId, length: u32) -> bool {
        if self.limits.whole || length > MAX_SHORT_TOKENS {
            return false;
        }
        let own = self.active.iter().filter(|a| a.id == id && a.is_short());
        own.map(|a| a.length).sum::<u32>() + length > MAX_SHORT_TOKENS
    }

    /// Starts an input, for which there must be room.
    pub fn start(&mut self, id: FairQueueId, input: usize, length: u32, pooler: Pooler) {
        debug_assert!(self.has_room(length) && (1..=self.limits.max_input).contains(&length));
        if let Some(seq) = self.free.pop() {
            self.active.push(ActiveInput {
                id,
                input,
                seq,
                pooler,
                length,
                done: 0,
                failures: None,
            });
        }
    }

    /// The rows of the next step; none if no input is active.
    pub fn step(&self) -> Vec<InputRow> {
        if let Some(suspect) = self.active.iter().find(|a| a.failures.is_some()) {
            return vec![row(suspect, self.limits.step_tokens)];
        }
        let mut order: Vec<_> = self.active.iter().collect();
        order.sort_by_key(|active| active.length - active.done);
        let mut left = self.limits.step_tokens;
        let mut rows = Vec::with_capacity(order.len());
        for (index, active) in order.iter().enumerate() {
            let behind = u32::try_from(order.len() - index).unwrap_or(u32::MAX);
            // Whole inputs fit shared_tokens, even if one exceeds an even share.
            let share = if self.limits.whole {
                left
            } else {
                left / behind
            };
            let row = row(active, share);
            left -= row.count;
            rows.push(row);
        }
        rows
    }

    /// The input with a sequence id.
    pub fn get(&mut self, seq: SeqId) -> Option<&mut ActiveInput> {
        self.active.iter_mut().find(|active| active.seq == seq)
    }

    /// A step succeeded. Returns the inputs that are done; the caller clears their sequences.
    pub fn complete_step(&mut self, rows: &[InputRow]) -> Vec<ActiveInput> {
        for row in rows {
            if let Some(active) = self.get(row.seq) {
                active.done += row.count;
            }
        }
        self.extract(|active| active.done == active.length)
    }

    /// A step failed. Its inputs restart; the caller clears their sequences. Returns the inputs that
    /// fail their requests.
    pub fn fail_step(&mut self, rows: &[InputRow]) -> Vec<ActiveInput> {
        let alone = rows.len() == 1;
        for row in rows {
            if let Some(active) = self.get(row.seq) {
                active.done = 0;
                active.pooler.restart();
                *active.failures.get_or_insert(0) += u32::from(alone);
            }
        }
        self.extract(|active| active.failures >= Some(MAX_FAILURES))
    }

    /// Removes the inputs of a request; the caller clears their sequences.
    pub fn remove(&mut self, id: FairQueueId) -> Vec<ActiveInput> {
        self.extract(|active| active.id == id)
    }

    fn extract(&mut self, which: impl Fn(&ActiveInput) -> bool) -> Vec<ActiveInput> {
        let out: Vec<_> = self.active.extract_if(.., |active| which(active)).collect();
        self.free.extend(out.iter().map(|active| active.seq));
        out
    }
}

/// At most `max` of the tokens that an input still needs.
fn row(active: &ActiveInput, max: u32) -> InputRow {
    InputRow {
        id: active.id,
        input: active.input,
        seq: active.seq,
        start: active.done,
        count: max.min(active.length - active.done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedding::pooling::Pooling;

    const CHUNKS: BatchLimits = BatchLimits {
        whole: false,
        step_tokens: 128,
        shared_tokens: 128,
        seq_ids: 8,
        max_input: 2048,
    };
    const WHOLE: BatchLimits = BatchLimits {
        whole: true,
        step_tokens: 600,
        shared_tokens: 200,
        seq_ids: 8,
        max_input: 600,
    };

    fn start(batch: &mut EmbeddingBatch, id: u64, length: u32) -> bool {
        let room = batch.has_room(length);
        if room {
            batch.start(FairQueueId(id), 0, length, Pooler::new(Pooling::Mean, 2, 0));
        }
        room
    }

    fn counts(rows: &[InputRow]) -> Vec<(u64, u32, u32)> {
        rows.iter().map(|r| (r.id.0, r.start, r.count)).collect()
    }

    fn ids(active: &[ActiveInput]) -> Vec<u64> {
        active.iter().map(|active| active.id.0).collect()
    }

    #[test]
    fn short_inputs_finish_beside_a_long_one() {
        let mut batch = EmbeddingBatch::new(CHUNKS);
        assert!(start(&mut batch, 0, 2048));
        assert!(!start(&mut batch, 1, 513), "one long input at a time");
        let step = batch.step();
        assert_eq!(counts(&step), [(0, 0, 128)]);
        assert!(batch.complete_step(&step).is_empty());
        assert!(start(&mut batch, 2, 10));
        assert!(start(&mut batch, 3, 500));
        let step = batch.step();
        assert_eq!(counts(&step), [(2, 0, 10), (3, 0, 59), (0, 128, 59)]);
        assert_eq!(ids(&batch.complete_step(&step)), [2]);
        let step = batch.step();
        assert_eq!(counts(&step), [(3, 59, 64), (0, 187, 64)]);
    }

    #[test]
    fn all_inputs_finish_within_cells_and_ids() {
        let mut batch = EmbeddingBatch::new(CHUNKS);
        let lengths = [
            1, 500, 513, 2048, 3, 512, 130, 700, 1, 1, 1, 1, 1, 1, 1, 400,
        ];
        let mut waiting: Vec<_> = lengths.into_iter().enumerate().rev().collect();
        let mut done = Vec::new();
        let mut steps = 0;
        while done.len() < lengths.len() {
            while let Some(&(id, length)) = waiting.last()
                && start(&mut batch, id as u64, length)
            {
                waiting.pop();
            }
            let held: u32 = batch.active.iter().map(|active| active.length).sum();
            assert!(held <= CHUNKS.cells() && batch.active.len() <= 8);
            let step = batch.step();
            let tokens: u32 = step.iter().map(|row| row.count).sum();
            assert!((1..=128).contains(&tokens) && step.iter().all(|row| row.count > 0));
            done.extend(ids(&batch.complete_step(&step)));
            steps += 1;
            assert!(steps < 100, "no progress");
        }
        assert_eq!(batch.free.len(), 8);
    }

    #[test]
    fn whole_inputs_share_a_step() {
        let mut batch = EmbeddingBatch::new(WHOLE);
        assert!(start(&mut batch, 0, 150));
        assert!(start(&mut batch, 1, 50));
        assert!(!start(&mut batch, 2, 1));
        let step = batch.step();
        assert_eq!(counts(&step), [(1, 0, 50), (0, 0, 150)]);
        assert_eq!(ids(&batch.complete_step(&step)), [0, 1]);
        assert!(start(&mut batch, 3, 600));
        assert!(!start(&mut batch, 4, 1));
        let step = batch.step();
        assert_eq!(counts(&step), [(3, 0, 600)]);
        assert_eq!(ids(&batch.complete_step(&step)), [3]);
        assert!(batch.active.is_empty() && batch.step().is_empty());
    }

    #[test]
    fn request_holds_at_most_half_the_short_cells() {
        let mut batch = EmbeddingBatch::new(CHUNKS);
        assert!(start(&mut batch, 1, 500));
        assert!(
            batch.exceeds_request_limit(FairQueueId(1), 13)
                && !batch.exceeds_request_limit(FairQueueId(1), 12)
        );
        assert!(!batch.exceeds_request_limit(FairQueueId(2), 512) && start(&mut batch, 2, 512));
        // The limit does not apply to long inputs.
        assert!(!batch.exceeds_request_limit(FairQueueId(1), 513));
        assert!(!EmbeddingBatch::new(WHOLE).exceeds_request_limit(FairQueueId(1), 512));
    }

    #[test]
    fn removed_request_frees_its_ids() {
        let mut batch = EmbeddingBatch::new(CHUNKS);
        for id in [1, 2, 1] {
            assert!(start(&mut batch, id, 300));
        }
        assert_eq!(batch.remove(FairQueueId(1)).len(), 2);
        assert_eq!((batch.active.len(), batch.free.len()), (1, 7));
        assert!(batch.remove(FairQueueId(1)).is_empty());
    }
}
