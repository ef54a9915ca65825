//! Which tokens the next step computes: a pure state machine without clock, thread or llama type.
//!
//! A *sequence* is a caller's request; a *seq id* is a resource of the backend. A sequence waits in
//! a bounded queue until an id and enough cells are free for the most it can ever need, and holds
//! both until it ends: so no step can run out of room, and what is admitted is never thrown out
//! for another. Ids are cleared (`Step::clear`) before they are lent again.
//!
//! Each step sends what is new and nothing else: one token of every sequence that is generating,
//! then chunks of the prompts that are still being read, oldest first, up to the token limit of a
//! step. A step that fails is halved until it works; a sequence that fails alone, with one token,
//! is given up, so that a bad one can't take others with it.
//!
//! Invariants, tested with random workloads: every id is either free,
//! held by exactly one sequence, or waiting to be cleared; reserved cells never exceed the limit; a
//! sequence's tokens are computed in order, each once.

use std::collections::VecDeque;

/// A sequence for as long as it lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u64);

/// A sequence id of the backend, from 0; lent to one sequence at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u16);

/// The sizes that bound every step.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequence ids that the backend has.
    pub seq_ids: u16,
    /// KV cells that all sequences share.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Most sequences that wait.
    pub queue: usize,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose it is.
    pub key: Key,
    /// Where its cells are.
    pub seq: SeqId,
    /// First position that is computed.
    pub from: u32,
    /// One past the last position that is computed.
    pub to: u32,
    /// Whether a token is sampled after the last position.
    pub output: bool,
}

/// What to do next, in this order: clear, then decode the rows together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Ids whose cells are freed.
    pub clear: Vec<SeqId>,
    /// Sequences that left the queue with this step.
    pub admitted: Vec<Key>,
    /// What is computed.
    pub rows: Vec<Row>,
}

/// How a step went.
#[derive(Clone, Copy, Debug)]
pub enum StepResult<'a> {
    /// Its rows were computed; the sequences named here ended with it.
    Decoded {
        /// Sequences that want no further token.
        ended: &'a [Key],
    },
    /// Nothing was computed.
    Failed,
}

/// Why a sequence was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The queue is full.
    QueueFull,
    /// It can never fit: it may need more cells than there are.
    TooLarge {
        /// Cells that it may need.
        needed: u32,
    },
}

#[derive(Clone, Debug)]
struct Waiting {
    key: Key,
    prompt: u32,
    cells: u32,
}

#[derive(Clone, Debug)]
struct Running {
    key: Key,
    seq: SeqId,
    /// Tokens known: the prompt and what was generated.
    tokens: u32,
    /// Tokens whose cells are filled.
    computed: u32,
    /// Cells set aside for it.
    cells: u32,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Waiting>,
    /// In order of admission, but for rotations after a failed step.
    running: Vec<Running>,
    /// Kept sorted, highest first, so that the lowest id is lent next.
    free: Vec<SeqId>,
    to_clear: Vec<SeqId>,
    reserved: u32,
    /// Tokens that the next step may have: below the limit only after a failure.
    budget: u32,
    planned: Vec<Row>,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            running: Vec::new(),
            free: (0..limits.seq_ids).rev().map(SeqId).collect(),
            to_clear: Vec::new(),
            reserved: 0,
            budget: limits.step_tokens,
            planned: Vec::new(),
        }
    }

    /// Puts a sequence of `prompt` tokens that generates at most `max_tokens` (at least 1 each) at
    /// the end of the queue.
    pub fn enqueue(&mut self, key: Key, prompt: u32, max_tokens: u32) -> Result<(), Rejected> {
        // The last generated token is never computed, so it needs no cell.
        let cells = prompt.saturating_add(max_tokens.saturating_sub(1));
        if cells > self.limits.cells {
            return Err(Rejected::TooLarge { needed: cells });
        }
        if self.waiting.len() >= self.limits.queue {
            return Err(Rejected::QueueFull);
        }
        self.waiting.push_back(Waiting { key, prompt, cells });
        Ok(())
    }

    /// Takes a sequence out, wherever it is; its id is cleared with the next step.
    pub fn cancel(&mut self, key: Key) {
        debug_assert!(self.planned.is_empty(), "cancel between plan and applied");
        self.waiting.retain(|waiting| waiting.key != key);
        self.end(key);
    }

    /// The next step. Empty if there is nothing to do. Every step must be answered by
    /// [`Scheduler::applied`] if it has rows.
    pub fn plan(&mut self) -> Step {
        debug_assert!(self.planned.is_empty(), "plan before applied");
        let clear = std::mem::take(&mut self.to_clear);
        self.free.extend_from_slice(&clear);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        let admitted = self.admit();
        let rows = self.rows();
        self.planned.clone_from(&rows);
        Step {
            clear,
            admitted,
            rows,
        }
    }

    /// Takes note of how the last planned step went. Returns a sequence that is given up, since it
    /// failed alone; its id is cleared with the next step.
    pub fn applied(&mut self, result: StepResult<'_>) -> Option<Key> {
        let planned = std::mem::take(&mut self.planned);
        let tokens: u32 = planned.iter().map(|row| row.to - row.from).sum();
        match result {
            StepResult::Decoded { ended } => {
                for row in &planned {
                    if let Some(running) = self.running.iter_mut().find(|r| r.key == row.key) {
                        running.computed = row.to;
                        running.tokens += u32::from(row.output);
                    }
                }
                for &key in ended {
                    self.end(key);
                }
                if self.budget < self.limits.step_tokens {
                    // Let those be tried next that were left out, then try more at once.
                    let served = |running: &Running| planned.iter().any(|r| r.key == running.key);
                    self.running.sort_by_key(served);
                    self.budget = self.budget.saturating_mul(2).min(self.limits.step_tokens);
                }
                None
            }
            StepResult::Failed if tokens > 1 => {
                self.budget = tokens / 2;
                None
            }
            StepResult::Failed => {
                let key = planned.first()?.key;
                self.end(key);
                Some(key)
            }
        }
    }

    /// Whether there is nothing to do until something is enqueued.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.to_clear.is_empty()
    }

    /// Sequences in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that hold an id.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Ids that are lent or not yet cleared.
    pub fn ids_used(&self) -> usize {
        usize::from(self.limits.seq_ids) - self.free.len()
    }

    /// Cells that hold a position of a running sequence.
    pub fn cells_used(&self) -> u32 {
        self.running.iter().map(|running| running.computed).sum()
    }

    /// Cells set aside for the running sequences.
    pub fn cells_reserved(&self) -> u32 {
        self.reserved
    }

    fn admit(&mut self) -> Vec<Key> {
        let mut admitted = Vec::new();
        while let Some(next) = self.waiting.front() {
            // First come, first served: whoever can't be seated yet is not overtaken, so a large
            // request is delayed by those before it and by nobody else.
            if self.free.is_empty() || self.reserved + next.cells > self.limits.cells {
                break;
            }
            let (Some(next), Some(seq)) = (self.waiting.pop_front(), self.free.pop()) else {
                break;
            };
            self.reserved += next.cells;
            admitted.push(next.key);
            self.running.push(Running {
                key: next.key,
                seq,
                tokens: next.prompt,
                computed: 0,
                cells: next.cells,
            });
        }
        admitted
    }

    fn rows(&self) -> Vec<Row> {
        let mut left = self.budget;
        let mut rows = Vec::with_capacity(self.running.len());
        let mut push = |running: &Running, left: &mut u32| {
            let pending = running.tokens - running.computed;
            let count = pending.min(*left);
            if count > 0 {
                *left -= count;
                rows.push(Row {
                    key: running.key,
                    seq: running.seq,
                    from: running.computed,
                    to: running.computed + count,
                    output: count == pending,
                });
            }
        };
        // One pending token is a generating sequence (or the last token of a prompt): they go
        // first, so that no prompt keeps them waiting.
        let single = |running: &&Running| running.tokens - running.computed == 1;
        for running in self.running.iter().filter(single) {
            push(running, &mut left);
        }
        for running in self.running.iter().filter(|r| !single(r)) {
            push(running, &mut left);
        }
        rows
    }

    fn end(&mut self, key: Key) {
        if let Some(index) = self.running.iter().position(|running| running.key == key) {
            let running = self.running.remove(index);
            self.reserved -= running.cells;
            self.to_clear.push(running.seq);
        }
    }

    /// Panics if an invariant does not hold.
    #[cfg(test)]
    fn check(&self) {
        let reserved: u32 = self.running.iter().map(|running| running.cells).sum();
        assert_eq!(self.reserved, reserved);
        assert!(reserved <= self.limits.cells);
        assert_eq!(self.ids_used(), self.to_clear.len() + self.running.len());
        for running in &self.running {
            assert!(running.computed < running.tokens);
            assert!(running.computed < running.cells);
        }
    }
}

#[cfg(test)]
mod tests;
