//! Which tokens of which inputs make a step.
//!
//! A model that attends to all of its input at once reads it whole: inputs are put together as far
//! as a step goes, and each is done in it. A causal model reads chunks: inputs that were taken up
//! hold cells until they are done and share each step evenly, so that short ones are through at once
//! and a long one gets what they leave. Long inputs, of which one is read at a time, and short ones
//! have cells of their own: neither kind waits for the other. A request may hold half the cells of
//! the short ones, so that one with many inputs leaves room for who comes next.
//!
//! After a failed step its inputs are computed again one after another, each alone from its
//! beginning; what fails alone twice is the culprit. Meanwhile nobody is taken up.

use super::pooling::Pool;
use super::turns::Key;
use corral_scheduler::SeqId;

/// Longest input that is short.
pub const SHORT: u32 = 512;
/// Cells for all short ones together.
pub const SHORT_CELLS: u32 = 2 * SHORT;
/// Attempts alone until an input is given up.
const ATTEMPTS: u32 = 2;

/// What fits a step and the context.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Whether an input is read in one step.
    pub whole: bool,
    /// Most tokens of a step.
    pub step_tokens: u32,
    /// Of inputs that are read whole, several share a step up to so many tokens.
    pub together: u32,
    /// Most inputs at once.
    pub seq_ids: u16,
    /// Longest input.
    pub longest: u32,
}

impl Sizes {
    /// Cells that are never too few.
    pub fn cells(&self) -> u32 {
        if self.whole {
            self.step_tokens
        } else {
            self.longest + SHORT_CELLS
        }
    }
}

/// An input that is being computed.
#[derive(Debug)]
pub struct Active {
    /// Of which request.
    pub key: Key,
    /// Its place there.
    pub input: usize,
    /// Its sequence in the context.
    pub seq: SeqId,
    /// What is known of its answer.
    pub pool: Pool,
    length: u32,
    done: u32,
    /// It was in a step that failed, and so often it failed alone.
    suspect: Option<u32>,
}

impl Active {
    fn is_short(&self) -> bool {
        self.length <= SHORT
    }
}

/// An input's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Of which request.
    pub key: Key,
    /// Which input of it.
    pub input: usize,
    /// Its sequence in the context.
    pub seq: SeqId,
    /// The first token.
    pub start: u32,
    /// How many tokens.
    pub count: u32,
}

/// The inputs that are being computed.
pub struct Packing {
    sizes: Sizes,
    active: Vec<Active>,
    /// Sequence ids that nobody has.
    free: Vec<SeqId>,
}

impl Packing {
    /// Nothing is computed yet.
    pub fn new(sizes: Sizes) -> Self {
        debug_assert!(u32::from(sizes.seq_ids) <= sizes.step_tokens);
        debug_assert!(!sizes.whole || sizes.longest <= sizes.step_tokens);
        Self {
            sizes,
            active: Vec::new(),
            free: (0..sizes.seq_ids).rev().map(SeqId).collect(),
        }
    }

    /// Whether an input of this length can be taken up.
    pub fn has_room(&self, length: u32) -> bool {
        let sum = |which: &dyn Fn(&&Active) -> bool| -> u32 {
            self.active.iter().filter(which).map(|a| a.length).sum()
        };
        if self.free.is_empty() || self.active.iter().any(|a| a.suspect.is_some()) {
            return false;
        }
        if self.sizes.whole {
            self.active.is_empty() || sum(&|_| true) + length <= self.sizes.together
        } else if length <= SHORT {
            sum(&|a| a.is_short()) + length <= SHORT_CELLS
        } else {
            self.active.iter().all(Active::is_short)
        }
    }

    /// Whether a request holds as much as one may, so that an input of this length has to wait for
    /// its own.
    pub fn holds_its_part(&self, key: Key, length: u32) -> bool {
        if self.sizes.whole || length > SHORT {
            return false;
        }
        let own = self.active.iter().filter(|a| a.key == key && a.is_short());
        own.map(|a| a.length).sum::<u32>() + length > SHORT
    }

    /// Takes up an input, for which there is room.
    pub fn take_up(&mut self, key: Key, input: usize, length: u32, pool: Pool) {
        debug_assert!(self.has_room(length) && (1..=self.sizes.longest).contains(&length));
        if let Some(seq) = self.free.pop() {
            self.active.push(Active {
                key,
                input,
                seq,
                pool,
                length,
                done: 0,
                suspect: None,
            });
        }
    }

    /// The next step; empty when nothing is active.
    pub fn step(&self) -> Vec<Row> {
        if let Some(suspect) = self.active.iter().find(|a| a.suspect.is_some()) {
            return vec![row(suspect, self.sizes.step_tokens)];
        }
        let mut order: Vec<_> = self.active.iter().collect();
        order.sort_by_key(|active| active.length - active.done);
        let mut left = self.sizes.step_tokens;
        let mut rows = Vec::with_capacity(order.len());
        for (place, active) in order.iter().enumerate() {
            let behind = u32::try_from(order.len() - place).unwrap_or(u32::MAX);
            // Inputs that are read whole fit together, whatever their even share would be.
            let share = if self.sizes.whole {
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

    /// The input that has a sequence id.
    pub fn get(&mut self, seq: SeqId) -> Option<&mut Active> {
        self.active.iter_mut().find(|active| active.seq == seq)
    }

    /// Notes that a step was computed, and hands out the inputs that are done with it. Their
    /// sequences are to be cleared.
    pub fn computed(&mut self, rows: &[Row]) -> Vec<Active> {
        for row in rows {
            if let Some(active) = self.get(row.seq) {
                active.done += row.count;
            }
        }
        self.take_out(|active| active.done == active.length)
    }

    /// Notes that a step failed: its inputs begin anew, and their sequences are to be cleared.
    /// Hands out those that are given up.
    pub fn failed(&mut self, rows: &[Row]) -> Vec<Active> {
        let alone = rows.len() == 1;
        for row in rows {
            if let Some(active) = self.get(row.seq) {
                active.done = 0;
                active.pool.restart();
                *active.suspect.get_or_insert(0) += u32::from(alone);
            }
        }
        self.take_out(|active| active.suspect >= Some(ATTEMPTS))
    }

    /// Takes out what belongs to a request. The sequences are to be cleared.
    pub fn remove(&mut self, key: Key) -> Vec<Active> {
        self.take_out(|active| active.key == key)
    }

    fn take_out(&mut self, which: impl Fn(&Active) -> bool) -> Vec<Active> {
        let out: Vec<_> = self.active.extract_if(.., |active| which(active)).collect();
        self.free.extend(out.iter().map(|active| active.seq));
        out
    }
}

/// At most `most` of the tokens that an input still needs.
fn row(active: &Active, most: u32) -> Row {
    Row {
        key: active.key,
        input: active.input,
        seq: active.seq,
        start: active.done,
        count: most.min(active.length - active.done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedding::pooling::Pooling;

    const CHUNKS: Sizes = Sizes {
        whole: false,
        step_tokens: 128,
        together: 128,
        seq_ids: 8,
        longest: 2048,
    };
    const WHOLE: Sizes = Sizes {
        whole: true,
        step_tokens: 600,
        together: 200,
        seq_ids: 8,
        longest: 600,
    };

    fn take_up(packing: &mut Packing, key: u64, length: u32) -> bool {
        let room = packing.has_room(length);
        if room {
            packing.take_up(Key(key), 0, length, Pool::new(Pooling::Mean, 2, 0));
        }
        room
    }

    fn counts(rows: &[Row]) -> Vec<(u64, u32, u32)> {
        rows.iter().map(|r| (r.key.0, r.start, r.count)).collect()
    }

    fn keys(active: &[Active]) -> Vec<u64> {
        active.iter().map(|active| active.key.0).collect()
    }

    #[test]
    fn short_inputs_are_through_at_once_beside_a_long_one() {
        let mut packing = Packing::new(CHUNKS);
        assert!(take_up(&mut packing, 0, 2048));
        assert!(!take_up(&mut packing, 1, 513), "one long one at a time");
        let step = packing.step();
        assert_eq!(counts(&step), [(0, 0, 128)]);
        assert!(packing.computed(&step).is_empty());
        assert!(take_up(&mut packing, 2, 10));
        assert!(take_up(&mut packing, 3, 500));
        let step = packing.step();
        assert_eq!(counts(&step), [(2, 0, 10), (3, 0, 59), (0, 128, 59)]);
        assert_eq!(keys(&packing.computed(&step)), [2]);
        let step = packing.step();
        assert_eq!(counts(&step), [(3, 59, 64), (0, 187, 64)]);
    }

    #[test]
    fn everybody_gets_on_and_cells_and_ids_suffice() {
        let mut packing = Packing::new(CHUNKS);
        let lengths = [
            1, 500, 513, 2048, 3, 512, 130, 700, 1, 1, 1, 1, 1, 1, 1, 400,
        ];
        let mut waiting: Vec<_> = lengths.into_iter().enumerate().rev().collect();
        let mut done = Vec::new();
        let mut steps = 0;
        while done.len() < lengths.len() {
            while let Some(&(key, length)) = waiting.last()
                && take_up(&mut packing, key as u64, length)
            {
                waiting.pop();
            }
            let held: u32 = packing.active.iter().map(|active| active.length).sum();
            assert!(held <= CHUNKS.cells() && packing.active.len() <= 8);
            let step = packing.step();
            let tokens: u32 = step.iter().map(|row| row.count).sum();
            assert!((1..=128).contains(&tokens) && step.iter().all(|row| row.count > 0));
            done.extend(keys(&packing.computed(&step)));
            steps += 1;
            assert!(steps < 100, "nobody gets on");
        }
        assert_eq!(packing.free.len(), 8);
    }

    #[test]
    fn whole_inputs_share_a_step_and_a_longer_one_has_its_own() {
        let mut packing = Packing::new(WHOLE);
        assert!(take_up(&mut packing, 0, 150));
        assert!(take_up(&mut packing, 1, 50));
        assert!(!take_up(&mut packing, 2, 1));
        let step = packing.step();
        assert_eq!(counts(&step), [(1, 0, 50), (0, 0, 150)]);
        assert_eq!(keys(&packing.computed(&step)), [0, 1]);
        assert!(take_up(&mut packing, 3, 600));
        assert!(!take_up(&mut packing, 4, 1));
        let step = packing.step();
        assert_eq!(counts(&step), [(3, 0, 600)]);
        assert_eq!(keys(&packing.computed(&step)), [3]);
        assert!(packing.active.is_empty() && packing.step().is_empty());
    }

    #[test]
    fn after_a_failure_each_stands_alone_until_the_culprit_is_found() {
        let mut packing = Packing::new(CHUNKS);
        for key in 0..3 {
            assert!(take_up(&mut packing, key, 200));
        }
        let mut given_up = Vec::new();
        let mut done = Vec::new();
        let mut failures = 0;
        while !packing.active.is_empty() {
            let step = packing.step();
            if step.iter().any(|row| row.key == Key(1)) {
                failures += 1;
                given_up.extend(keys(&packing.failed(&step)));
            } else {
                assert_eq!(step.len(), 1, "each stands alone");
                done.extend(keys(&packing.computed(&step)));
            }
            assert!(!packing.has_room(1) || packing.active.is_empty());
        }
        assert_eq!((given_up, done, failures), (vec![1], vec![0, 2], 3));
        assert!(take_up(&mut packing, 5, 1));
    }

    #[test]
    fn a_request_holds_half_the_short_cells_at_most() {
        let mut packing = Packing::new(CHUNKS);
        assert!(take_up(&mut packing, 1, 500));
        assert!(packing.holds_its_part(Key(1), 13) && !packing.holds_its_part(Key(1), 12));
        assert!(!packing.holds_its_part(Key(2), 512) && take_up(&mut packing, 2, 512));
        // Long ones are one at a time anyway.
        assert!(!packing.holds_its_part(Key(1), 513));
        assert!(!Packing::new(WHOLE).holds_its_part(Key(1), 512));
    }

    #[test]
    fn a_request_that_goes_away_leaves_its_ids() {
        let mut packing = Packing::new(CHUNKS);
        for key in [1, 2, 1] {
            assert!(take_up(&mut packing, key, 300));
        }
        assert_eq!(packing.remove(Key(1)).len(), 2);
        assert_eq!((packing.active.len(), packing.free.len()), (1, 7));
        assert!(packing.remove(Key(1)).is_empty());
    }
}
