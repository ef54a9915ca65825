//! What a step computes: a token of every sequence that generates, then parts of prompts and other
//! tokens that are certain, then [drafts](super::speculation); all of them of sequences of the adapter
//! whose turn it is.

use super::Scheduler;
use super::cost::StepShape;
use super::prefill::PrefillPolicy;
use super::queue;
use super::rotation::Ready;
use super::running::{Running, Wait};
use super::words::{AdapterId, Overlap, Row, SeqId, Step};

impl Scheduler {
    /// The rows of a step, for which there is room in the cells.
    pub(super) fn rows(&mut self) -> Step {
        self.join();
        if self.is_recovering() {
            return self.few_rows();
        }
        let Some(adapter) = self.turn() else {
            return self.shaped(AdapterId::NONE, Vec::new(), 0, 0);
        };
        let count = self.generating(adapter);
        let mut rows = Vec::with_capacity(self.running.len());
        let policy = self.limits.prefill;
        let room = self.limits.max_step_tokens.saturating_sub(count);
        // Those whose turn it is not wait for the step as well.
        let waiting = self.all_generating().saturating_add(self.soon_generating());
        let n_kv = self.cells.n_kv();
        let allowed = policy.budget(&self.cost, &self.experience, waiting, n_kv, room);
        let allowed = (allowed + policy.fill(count)).min(room);
        let budget = self.ahead.left_of(allowed);
        let budget = budget.min(self.room_for_prompts(adapter, count, budget));
        let prompts = self.prompts(adapter);
        let pending: Vec<_> = prompts.iter().map(|running| running.pending()).collect();
        // Half of the budget is for prompts if they want it, so that they get on whatever is certain.
        let for_prompts = pending.iter().sum::<u32>().min(budget.div_ceil(2));
        let mut more = budget - for_prompts;
        let generating = self.running.iter().filter(|running| running.generates());
        let generating = generating.filter(|running| running.adapter() == adapter);
        rows.extend(generating.map(|running| {
            let certain = running.readable().min(more);
            more -= certain;
            running.row(1 + certain)
        }));
        let shares = policy.share(&pending, for_prompts + more);
        for (running, share) in prompts.iter().zip(shares).filter(|(_, share)| *share > 0) {
            rows.push(running.row(share));
        }
        let ahead = self.ahead.tokens();
        let mut step = Step {
            overlapped: ahead,
            ..self.shaped(adapter, rows, count, allowed.min(budget + ahead))
        };
        if step.shape.prefill > 0
            && let Some(gap) = policy.gap()
        {
            self.experience.plans(gap, &self.cost, waiting, n_kv);
        }
        self.speculate(&mut step);
        step
    }

    /// An adapter's sequences that read, in the order of their turns.
    pub(super) fn prompts(&self, adapter: AdapterId) -> Vec<&Running> {
        let reading = self.running.iter().filter(|running| running.reads());
        let mut prompts: Vec<_> = reading.filter(|r| r.adapter() == adapter).collect();
        if self.limits.prefill != PrefillPolicy::SlotOrder {
            prompts.sort_by_key(|running| {
                let request = &running.request;
                let had = self.queue.counter(request.tenant);
                let priority = std::cmp::Reverse(request.priority);
                (priority, had, queue::due(request), request.id)
            });
        }
        prompts
    }

    /// Whose turn it is. There is room for each of its sequences that generate, or where none does for
    /// a token of a prompt: if it takes that, the least important sequence gives way. `None` if there is
    /// nothing to compute.
    fn turn(&mut self) -> Option<AdapterId> {
        loop {
            let ready = self.ready();
            if let Some(adapter) = self.rotation.next(&ready)
                && self.make_room(self.generating(adapter))
            {
                self.rotation.take(adapter, &ready);
                return Some(adapter);
            }
            if !self.running.iter().any(Running::is_ready) {
                return None;
            }
            if !self.preempt_least() {
                debug_assert!(false, "one sequence alone has room");
                return None;
            }
        }
    }

    /// The adapters that can get on: one of their sequences generates, or reads and there is room.
    fn ready(&mut self) -> Vec<Ready> {
        let mut all: Vec<(Ready, bool)> = Vec::new();
        for running in self.running.iter().filter(|running| running.is_ready()) {
            let (adapter, priority) = (running.adapter(), running.request.priority);
            let found = all.iter_mut().find(|(ready, _)| ready.adapter == adapter);
            match found {
                Some((ready, generates)) => {
                    ready.priority = ready.priority.max(priority);
                    *generates |= running.generates();
                }
                None => all.push((Ready { adapter, priority }, running.generates())),
            }
        }
        all.retain(|(_, generates)| *generates || self.make_room(1));
        all.into_iter().map(|(ready, _)| ready).collect()
    }

    /// Sequences of an adapter that generate.
    fn generating(&self, adapter: AdapterId) -> u32 {
        let generating = self.running.iter().filter(|running| running.generates());
        let own = generating.filter(|running| running.adapter() == adapter);
        u32::try_from(own.count()).unwrap_or(u32::MAX)
    }

    /// Sequences that generate.
    pub(super) fn all_generating(&self) -> u32 {
        let generating = self.running.iter().filter(|running| running.generates());
        u32::try_from(generating.count()).unwrap_or(u32::MAX)
    }

    /// Sequences whose next token is being chosen and will be there soon: they wait for the step too.
    pub(super) fn soon_generating(&self) -> u32 {
        let chosen = |running: &&Running| running.wait == Wait::Chosen;
        let soon = self.running.iter().filter(chosen);
        let soon = soon.filter(|running| !running.request.progress.late);
        u32::try_from(soon.count()).unwrap_or(u32::MAX)
    }

    /// Cells for parts of an adapter's prompts and what else is certain, beside `count` for those that
    /// generate; as many as are wanted of `budget` if what does not run can make way.
    fn room_for_prompts(&mut self, adapter: AdapterId, count: u32, budget: u32) -> u32 {
        let own = self.running.iter().filter(|r| r.adapter() == adapter);
        let readable: u32 = own.map(Running::readable).sum();
        let wanted = budget.min(readable);
        if wanted == 0 {
            return budget;
        }
        // What runs ahead of the next step makes no room for itself.
        let more = match self.limits.overlap {
            Overlap::Off => 0,
            Overlap::Auto | Overlap::On => (readable - wanted).min(budget),
        };
        self.make_room(count.saturating_add(wanted).saturating_add(more));
        let room = self.cells.free().saturating_sub(count);
        if room >= wanted { budget } else { room }
    }

    /// The rows of a step after one failed: few tokens, of those whose turn it is in the rotation
    /// that finds the culprit, whether they generate or not, and of the adapter of the first.
    fn few_rows(&mut self) -> Step {
        let ready = |scheduler: &Self| scheduler.running.iter().any(Running::is_ready);
        while ready(self) && !self.make_room(1) {
            if !self.preempt_least() {
                break;
            }
        }
        self.make_room(self.recovery.most());
        let most = self.recovery.most().min(self.cells.free());
        let one_by_one = !self.limits.can_truncate && self.recovery.one_by_one();
        let (mut left, mut generating) = (most, 0);
        let mut rows = Vec::new();
        let ready = self.running.iter().filter(|running| running.is_ready());
        let first = ready.clone().next();
        let adapter = first.map_or(AdapterId::NONE, Running::adapter);
        for running in ready.filter(|running| running.adapter() == adapter) {
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
            if alone || (one_by_one && !rows.is_empty()) {
                break;
            }
        }
        if !rows.is_empty() {
            self.rotation.take(adapter, &[]);
        }
        self.shaped(adapter, rows, generating, most)
    }

    fn shaped(&self, adapter: AdapterId, rows: Vec<Row>, generating: u32, budget: u32) -> Step {
        let own = self.generating(adapter);
        let tokens: u32 = rows.iter().map(Row::tokens).sum();
        Step {
            rows,
            adapter,
            shape: StepShape {
                rows: generating,
                prefill: tokens - generating,
                n_kv: 0,
                ..StepShape::default()
            },
            prefill_budget: budget,
            skipped: own - generating,
            other_adapters: self.all_generating() - own,
            ..Step::default()
        }
    }
}

/// What the rows of a step put into cells.
pub(super) fn placements(rows: &[Row]) -> impl Iterator<Item = (SeqId, u32)> + Clone {
    rows.iter().map(|row| (row.seq, row.tokens()))
}
