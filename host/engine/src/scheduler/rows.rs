//! What a step computes: a token of every sequence that generates, then parts of prompts and other
//! tokens that are certain, then [drafts](super::speculation).

use super::Scheduler;
use super::cost::Shape;
use super::prefill::Prefill;
use super::queue;
use super::running::Running;
use super::words::{Row, SeqId, Step};

impl Scheduler {
    /// The rows of a step, for which there is room in the cells.
    pub(super) fn rows(&mut self) -> Step {
        self.join();
        if self.is_recovering() {
            return self.few_rows();
        }
        while !self.make_room(self.generating()) {
            if !self.preempt_least() {
                debug_assert!(false, "one sequence alone has room");
                return self.shaped(Vec::new(), 0, 0);
            }
        }
        let count = self.generating();
        let mut rows = Vec::with_capacity(self.running.len());
        let policy = self.limits.prefill;
        let room = self.limits.step_tokens.saturating_sub(count);
        let budget = policy.budget(&self.cost, &self.experience, count, self.cells.n_kv(), room);
        let budget = budget.min(self.room_for_prompts(count, budget));
        let mut prompts: Vec<_> = self.running.iter().filter(|r| r.reads()).collect();
        if policy != Prefill::SlotOrder {
            prompts.sort_by_key(|running| {
                let request = &running.request;
                let had = self.queue.counter(request.tenant);
                let priority = std::cmp::Reverse(request.priority);
                (priority, had, queue::due(request), request.key)
            });
        }
        let pending: Vec<_> = prompts.iter().map(|running| running.pending()).collect();
        // Half of the budget is for prompts if they want it, so that they get on whatever is certain.
        let for_prompts = pending.iter().sum::<u32>().min(budget.div_ceil(2));
        let mut more = budget - for_prompts;
        let generating = self.running.iter().filter(|running| running.generates());
        rows.extend(generating.map(|running| {
            let certain = running.readable().min(more);
            more -= certain;
            running.row(1 + certain)
        }));
        let shares = policy.share(&pending, for_prompts + more);
        for (running, share) in prompts.iter().zip(shares).filter(|(_, share)| *share > 0) {
            rows.push(running.row(share));
        }
        let mut step = self.shaped(rows, count, budget);
        self.speculate(&mut step);
        step
    }

    /// Sequences that generate.
    fn generating(&self) -> u32 {
        let generating = self.running.iter().filter(|running| running.generates());
        u32::try_from(generating.count()).unwrap_or(u32::MAX)
    }

    /// Cells for parts of prompts and what else is certain, beside `count` for those that generate; as
    /// many as are wanted of `budget` if what does not run can make way. If nobody generates, one that
    /// reads does.
    fn room_for_prompts(&mut self, count: u32, budget: u32) -> u32 {
        loop {
            let wanted = budget.min(self.running.iter().map(Running::readable).sum());
            if wanted == 0 {
                return budget;
            }
            self.make_room(count.saturating_add(wanted));
            let room = self.cells.free().saturating_sub(count);
            let stuck = room == 0 && count == 0;
            if !stuck || !self.preempt_least() {
                return if room >= wanted { budget } else { room };
            }
        }
    }

    /// The rows of a step after one failed: few tokens, of those whose turn it is in the rotation
    /// that finds the culprit, whether they generate or not.
    fn few_rows(&mut self) -> Step {
        let ready = |scheduler: &Self| scheduler.running.iter().any(Running::is_ready);
        while ready(self) && !self.make_room(1) {
            if !self.preempt_least() {
                break;
            }
        }
        self.make_room(self.recovery.most());
        let most = self.recovery.most().min(self.cells.free());
        let (mut left, mut generating) = (most, 0);
        let mut rows = Vec::new();
        for running in self.running.iter().filter(|running| running.is_ready()) {
            let ahead = running
                .failed_at
                .map(|at| at.saturating_sub(running.computed));
            let alone = ahead == Some(0);
            if alone && !rows.is_empty() {
                continue;
            }
            let until = ahead.filter(|_| !alone).unwrap_or(u32::MAX);
            let tokens = running.pending().min(left).min(until);
            if tokens > 0 {
                left -= tokens;
                generating += u32::from(running.generates());
                rows.push(running.row(tokens));
            }
            if alone {
                break;
            }
        }
        self.shaped(rows, generating, most)
    }

    fn shaped(&self, rows: Vec<Row>, generating: u32, budget: u32) -> Step {
        let tokens: u32 = rows.iter().map(Row::tokens).sum();
        Step {
            rows,
            shape: Shape {
                rows: generating,
                prefill: tokens - generating,
                n_kv: 0,
            },
            budget,
            skipped: self.generating() - generating,
            ..Step::default()
        }
    }
}

/// What the rows of a step put into cells.
pub(super) fn placements(rows: &[Row]) -> impl Iterator<Item = (SeqId, u32)> + Clone {
    rows.iter().map(|row| (row.seq, row.tokens()))
}
