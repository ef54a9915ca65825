//! Prompts that are read while nothing else can be computed.
//!
//! While the rows of a step are sampled, a backend that computes by itself has nothing to do; and while steps
//! wait for callers that sample themselves ([`cohort`](super::cohort)), nobody computes. Then a part of the
//! prompts that wait is read: of sequences that run already, never up to the last token, so that nothing comes
//! of it but cells that are filled; in cells that are free, so that nobody has to make room; and of the adapter
//! that computed last.
//!
//! It may go on when the next step begins, which those who generate wait for. So it counts against the budget
//! of that step ([`prefill`](super::prefill)): half of it at most, so that prompts also come to their ends, and
//! with what the step itself reads no more than without. Sizes are those of the ladder: equal steps let the
//! backend use its graphs again, and so do the halves that are left.
//!
//! How long it takes can't be seen: it is begun, and the next step ends when both are done. So the time of that
//! step is taken for that of all prompt tokens, its own and those ahead of it. Where something came between,
//! the time of the step tells nothing and is not learnt from.
//!
//! A step of its own costs what every step does, whatever is in it. So it pays where sampling takes longer than
//! that; where it is quicker, prompts are read with the next rows as ever.

use super::cost::StepShape;
use super::experience::LADDER;
use super::rows::placements;
use super::running::Running;
use super::words::{Overlap, Row, Step, length};
use super::{Scheduler, Time};
use std::time::Duration;

/// What ran ahead, and what of it is not accounted for.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead {
    /// LogitsKind that were planned and not answered.
    planned: Vec<Row>,
    /// Tokens that count against the next step that is not ahead itself.
    tokens: u32,
    /// The next step does not tell how long they took.
    apart: bool,
    /// Tokens that the time of the step that was planned last tells of, beside its own. `None` if it tells
    /// nothing.
    told: Option<u32>,
}

impl Ahead {
    /// Whether something was planned and not answered.
    pub fn is_planned(&self) -> bool {
        !self.planned.is_empty()
    }

    /// Tokens that count against the next step.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// What is left of a budget. The smallest chunk always is, so that prompts come to their ends; such a step may
    /// fill no tile, and then nothing is learnt from it.
    pub fn left_of(&self, budget: u32) -> u32 {
        let least = LADDER[0].min(budget);
        budget.saturating_sub(self.tokens).max(least)
    }

    /// This is what is done next.
    pub fn precedes(&mut self, step: &Step) {
        if step.rows.is_empty() {
            self.apart = true;
        } else if step.is_overlap {
            self.told = (self.tokens == 0).then_some(0);
            self.tokens += step.shape.prefill;
            self.apart = true;
        } else {
            let seen = self.tokens == 0 || !self.apart;
            self.told = seen.then_some(self.tokens);
            (self.tokens, self.apart) = (0, false);
        }
    }

    /// Tokens that the time of the step that was planned last tells of, beside its own. `None` if it tells
    /// nothing.
    pub fn told(&self) -> Option<u32> {
        self.told
    }
}

impl Scheduler {
    /// What can be computed while the rows of the step that was planned last are sampled: parts of prompts,
    /// without output. To be asked between [`Scheduler::plan`] and [`Scheduler::applied`] of a step that was
    /// computed; where there is something, [`Scheduler::applied_ahead`] is to be said after `applied` and before
    /// anything else. The backend is expected to have nothing to do for so long.
    pub fn plan_overlap(&mut self, rest: Duration) -> Option<Step> {
        debug_assert!(!self.ahead.is_planned(), "plan_ahead before applied_ahead");
        let pays = match self.limits.overlap {
            Overlap::Off => false,
            // What was not seen apart from the rest is no reason.
            Overlap::Auto => {
                let fixed = self.cost.fixed();
                self.cost.is_fitted() && fixed > 0.0 && rest.as_secs_f64() > fixed
            }
            Overlap::On => true,
        };
        let outputs = self.planned.iter().filter(|row| row.output).count();
        // What is still to be done to the cells would have to be done first.
        if !pays || outputs == 0 || !self.memory.is_empty() {
            return None;
        }
        let generating = self.all_generating().saturating_add(self.soon_generating());
        let waiting = generating.max(u32::try_from(outputs).unwrap_or(u32::MAX));
        let mut step = self.prompts_alone(waiting, |_| true)?;
        let placed = self.cells.place(placements(&step.rows));
        debug_assert!(placed, "it takes what is free");
        step.shape.n_kv = self.cells.n_kv();
        self.ahead.planned.clone_from(&step.rows);
        Some(step)
    }

    /// Takes note of whether what was planned ahead was computed. If not, it is tried again in steps like any
    /// other after a failure, which tell who is to blame.
    pub fn applied_overlap(&mut self, success: bool) {
        debug_assert!(self.planned.is_empty(), "applied_ahead before applied");
        let mut rows = std::mem::take(&mut self.ahead.planned);
        // The cells of one that is gone went with it.
        let running = &self.running;
        rows.retain(|row| {
            running
                .iter()
                .any(|r| (r.key(), r.seq) == (row.request, row.seq))
        });
        let tokens: u32 = rows.iter().map(Row::tokens).sum();
        if !success {
            self.rotation.failed();
            self.cells.undo(placements(&rows));
            self.start_anew(&rows);
            // Half of what the next step would have had with it: those who generate were not part of it, and
            // all of them go on.
            let generating = self.all_generating();
            self.recovery
                .halve(tokens.saturating_add(generating.saturating_mul(2)));
            return;
        }
        self.ahead.tokens += tokens;
        for row in &rows {
            if let Some(running) = self.find(row.request) {
                running.gets_on(row.to);
            }
        }
    }

    /// What is computed while those who could get on wait for others that sample themselves, if it is done by
    /// then.
    pub(super) fn meanwhile(&mut self, now: Time) -> Option<Step> {
        let left = self.awaited?.saturating_sub(now).as_secs_f64();
        let off = self.limits.overlap == Overlap::Off;
        if off || !self.cost.is_fitted() || self.rotation.is_changing() {
            return None;
        }
        let n_kv = self.cells.n_kv();
        let seconds = |prefill| {
            self.cost.predict(StepShape {
                prefill,
                n_kv,
                ..StepShape::default()
            })
        };
        let waiting = self.all_generating().saturating_add(self.soon_generating());
        let step = self.prompts_alone(waiting, |size| seconds(size) <= left)?;
        self.awaited = None;
        Some(step)
    }

    /// A step of as many prompt tokens as may run ahead of one that so many wait for, of a size that fits.
    fn prompts_alone(&self, waiting: u32, fits: impl Fn(u32) -> bool) -> Option<Step> {
        let policy = self.limits.prefill;
        if policy.gap().is_none() || self.is_recovering() || self.paused_until().is_some() {
            return None;
        }
        let (adapter, n_kv) = (self.rotation.current(), self.cells.n_kv());
        // Where its own part of the step that was planned last ends, a sequence goes on.
        let reached = |running: &Running| {
            let row = self.planned.iter().find(|row| row.request == running.key());
            row.map_or(running.computed, |row| row.to)
        };
        let pending = |running: &&Running| {
            let end = length(running.tokens()).saturating_sub(1);
            end.saturating_sub(reached(running))
        };
        let prompts = self.prompts(adapter);
        let pending: Vec<_> = prompts.iter().map(pending).collect();
        let room = self.limits.max_step_tokens.saturating_sub(waiting);
        let budget = policy.budget(&self.cost, &self.experience, waiting, n_kv, room);
        let most = (budget / 2).saturating_sub(self.ahead.tokens);
        let free = self.cells.free().saturating_sub(waiting);
        let most = most.min(free).min(pending.iter().sum());
        let mut sizes = LADDER.iter().rev().copied();
        let size = sizes.find(|&size| size <= most && fits(size))?;
        let shares = policy.share(&pending, size);
        let parts = prompts.iter().zip(shares).filter(|(_, share)| *share > 0);
        let rows = parts.map(|(running, share)| Row {
            request: running.key(),
            seq: running.seq,
            from: reached(running),
            to: reached(running) + share,
            output: false,
            drafts: 0,
        });
        Some(Step {
            rows: rows.collect(),
            adapter,
            shape: StepShape {
                prefill: size,
                ..StepShape::default()
            },
            prefill_budget: budget,
            is_overlap: true,
            ..Step::default()
        })
    }
}
