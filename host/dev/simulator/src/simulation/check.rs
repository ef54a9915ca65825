//! What must hold at every step.

use super::Simulation;
use corral_scheduler::CHUNK_SIZES;
use corral_scheduler::{LogitsKind, MemoryOp, RequestId, RequestState, SeqId, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most steps of an adapter's turn while others wait, on machines whose steps take 25 ms or more.
const TURN: u32 = 8;

impl Simulation {
    /// What must hold of every step.
    pub(super) fn check(&self, step: &Step, relocated: bool) {
        let tokens: u32 = step.rows.iter().map(|row| row.to - row.from).sum();
        assert!(tokens <= self.limits.max_step_tokens);
        let shape = step.shape;
        assert_eq!(tokens, shape.rows + shape.drafts + shape.prefill);
        // The smallest chunk is always allowed.
        let prompts = match shape.prefill > CHUNK_SIZES[0] {
            true => shape.prefill + step.overlapped,
            false => shape.prefill,
        };
        assert!(prompts <= step.prefill_budget, "prompts within budget");
        if step.is_overlap {
            let outputs = step.rows.iter().filter(|row| row.output).count();
            assert_eq!((shape.rows, outputs, step.skipped), (0, 0, 0));
        } else if !step.rows.is_empty() {
            let generating = self
                .scheduler
                .requests()
                .filter(|s| s.state == RequestState::Decode);
            let generated = step.shape.rows;
            let in_step = (generated + step.skipped + step.other_adapters) as usize;
            assert_eq!(in_step, generating.count());
            let excused = self.scheduler.is_recovering();
            assert!(step.skipped == 0 || excused, "a row was left out");
        }
        let drafts: u32 = step.rows.iter().map(|row| row.drafts).sum();
        assert_eq!(drafts, step.shape.drafts);
        assert!(drafts == 0 || !self.scheduler.is_recovering());
        for row in &step.rows {
            assert!(row.from < row.certain() && row.drafts <= self.limits.max_drafts);
            assert!(
                row.output || row.drafts == 0,
                "drafts follow what is certain"
            );
            let alive = &self.alive[&row.request];
            let whole = alive.unsettled || self.arrivals[alive.index].rows == LogitsKind::All;
            let top = self.limits.logits_of(row.seq) == LogitsKind::TopK;
            assert!(
                !top || (!whole && row.drafts == 0),
                "an id of the wrong kind"
            );
        }
        let most = usize::from(self.limits.max_running());
        assert!(self.scheduler.running_count() <= most, "too many run");
        let paused = self
            .scheduler
            .paused_until()
            .is_some_and(|until| self.now < until);
        let awaited = self.scheduler.waiting_until();
        if self.scheduler.running_count() == 0 || paused || relocated || awaited.is_some() {
            assert!(step.rows.is_empty());
        } else {
            let coming = !self.wanted.is_empty();
            let ready = |state| matches!(state, RequestState::Decode | RequestState::Prefill);
            let nobody = !self.scheduler.requests().any(|s| ready(s.state));
            assert!(!step.rows.is_empty() || coming || nobody, "nobody gets on");
        }
        let prompts = step
            .rows
            .iter()
            .filter(|row| row.to < self.prompt(row.request));
        for row in prompts {
            assert!(!row.output, "no token is sampled inside a prompt");
        }
    }

    /// Nobody who could get on waits for those that sample themselves. To be asked before anything is done
    /// about memory: where that fails, somebody may be ready who was not when the step was planned.
    pub(super) fn check_awaited(&self, step: &Step) {
        let awaited = self.scheduler.waiting_until();
        if awaited.is_some() || step.is_overlap {
            let others = self.scheduler.requests().filter(|sequence| {
                let waits = matches!(
                    sequence.state,
                    RequestState::WaitsForPrefix | RequestState::SwapsIn | RequestState::Samples
                );
                let arrival = &self.arrivals[self.alive[&sequence.id].index];
                !waits && arrival.max_tokens > 0 && arrival.asks.is_none()
            });
            assert_eq!(others.count(), 0, "who generates waits for nobody");
        }
        if let Some(until) = awaited {
            let most = match self.scheduler.running_count() {
                // Others are on their way.
                0 => {
                    assert!(
                        self.scheduler.waiting_count() > 0,
                        "it waits, but nobody does"
                    );
                    Duration::from_millis(5)
                }
                // A part of a long step.
                _ => Duration::from_millis(10),
            };
            assert!(until > self.now && until - self.now <= most);
        }
    }

    /// A step is of one adapter, and who generates waits for its own turn no longer than it should:
    /// two rounds of the other adapters, or one where all are equally urgent.
    pub(super) fn check_turns(&mut self, step: &Step) {
        if step.rows.is_empty() || step.is_overlap {
            return;
        }
        for row in &step.rows {
            let adapter = self.arrivals[self.alive[&row.request].index].adapter;
            assert_eq!(adapter, step.adapter, "a step of one adapter");
        }
        let adapters: BTreeSet<_> = self.arrivals.iter().map(|a| a.adapter).collect();
        let urgencies: BTreeSet<_> = self.arrivals.iter().map(|a| a.priority).collect();
        let others = adapters.len() - 1;
        let rounds = if urgencies.len() > 1 { 2 } else { 1 };
        let most = u32::try_from(rounds * others).unwrap() * TURN;
        let excused = self.scheduler.is_recovering();
        for sequence in self.scheduler.requests() {
            let alive = self.alive.get_mut(&sequence.id).expect("it runs");
            let off_turn =
                sequence.state == RequestState::Decode && sequence.adapter != step.adapter;
            let more = off_turn && !excused;
            alive.off_turn = if more { alive.off_turn + 1 } else { 0 };
            assert!(alive.off_turn <= most, "{:?} waits", sequence.id);
        }
    }

    /// Those that share cells keep to their share of them, but for drafts, which give way at once.
    pub(super) fn check_shares(&self, step: &Step) {
        let mut held = BTreeMap::new();
        for sequence in self.scheduler.requests() {
            let arrival = &self.arrivals[self.alive[&sequence.id].index];
            let Some(share) = arrival.share else {
                continue;
            };
            let row = step.rows.iter().find(|row| row.request == sequence.id);
            let cells = row.map_or(sequence.computed, |row| row.certain());
            let (all, most) = held.entry(share.group).or_insert((0, 0));
            *all += cells;
            *most = share.cells.max(*most);
        }
        for (group, (cells, most)) in held {
            assert!(cells <= most, "group {group} has {cells} cells of {most}");
        }
    }

    pub(super) fn check_cells(&self, pending: &[MemoryOp]) {
        let (cells, backend) = (self.scheduler.cells(), &self.backend);
        assert_eq!(cells.used() as usize, backend.used(), "after {pending:?}");
        for id in (0..self.limits.seq_ids).map(SeqId) {
            let (mirrored, real) = (cells.held_by(id), backend.length(id));
            assert_eq!(mirrored, real, "the mirror of {id:?}");
        }
        let mut held = BTreeSet::new();
        let running = self.scheduler.requests().map(|sequence| sequence.seq);
        let kept = self.scheduler.entries().filter_map(|entry| entry.seq);
        for seq in running.chain(kept) {
            assert!(held.insert(seq), "{seq:?} has two holders");
        }
        assert_eq!(held.len(), self.scheduler.seq_ids_used());
        self.scheduler.check_consistency();
        assert!(cells.pinned() <= cells.used());
        if !self.limits.prefix_cache {
            assert_eq!(self.scheduler.entries().count(), 0);
        }
    }

    fn prompt(&self, key: RequestId) -> u32 {
        self.alive[&key].prompt
    }
}
