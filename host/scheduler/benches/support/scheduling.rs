//! Schedulers at work, without a model and without a clock. Not all who share this use all of it.
#![allow(dead_code)]

use corral_scheduler::PrefillPolicy;
use corral_scheduler::Token;
use corral_scheduler::{
    Layout, LogitsKind, Overlap, PrefixScope, Priority, Request, RequestId, RequestProgress,
    Retention, Scheduler, SchedulerConfig, Step, StepResult, Tenant, Time, WeakRetention,
};
use std::time::Duration;

/// How many generate, and how many wait.
pub type Size = (u16, usize);

const PROMPT: u32 = 64;
/// Tokens that each sequence generates before all begin anew.
const LENGTH: u32 = 192;
/// As many as the engine has unless it is told otherwise.
const CELLS: u32 = 16_384;
const IDS: u16 = 64;
/// Among whom those that wait are shared out.
const TENANTS: u64 = 16;
/// What a step takes.
const STEP: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

/// A scheduler in which everybody who can generates.
pub struct House {
    size: Size,
    scheduler: Scheduler,
    now: Time,
    /// What was planned.
    step: Step,
    sampled: Vec<(RequestId, Token)>,
    /// Steps until sequences come to their end.
    left: u32,
}

impl House {
    pub fn new(size: Size) -> Self {
        let (running, waiting) = (u32::from(size.0), size.1);
        let limits = SchedulerConfig {
            seq_ids: size.0,
            top_k_seq_ids: 0,
            // More than they fill, so that nobody has to make room.
            cells: CELLS.max(running * 2 * (PROMPT + LENGTH)),
            // All prompts are read in one step.
            max_step_tokens: running * PROMPT,
            max_queue: 2048,
            max_tenant_queue: 2048,
            prefill: PrefillPolicy::default(),
            prefix_cache: true,
            can_truncate: true,
            swap: true,
            offload_prefixes: false,
            max_drafts: 8,
            overlap: Overlap::Off,
        };
        let mut house = Self {
            size,
            scheduler: Scheduler::new(limits),
            now: Time::ZERO,
            step: Step::default(),
            sampled: Vec::new(),
            left: LENGTH - 4,
        };
        (0..u64::from(running)).for_each(|number| house.enqueue(number));
        house.plan();
        house.answer();
        house.plan();
        assert_eq!(house.step.shape.rows, running, "all of them generate");
        house.answer();
        (1000..1000 + waiting as u64).for_each(|number| house.enqueue(number));
        house
    }

    fn enqueue(&mut self, number: u64) {
        let first = number as Token * PROMPT;
        let tenant = (number % TENANTS) as u32;
        let request = Request {
            id: RequestId(number),
            tenant: Tenant(tenant),
            scope: PrefixScope(tenant.into()),
            priority: Priority::default(),
            tokens: (first..first + PROMPT).collect(),
            max_tokens: LENGTH,
            arrived_at: self.now,
            queue_until: Some(self.now + HOUR),
            deadline: None,
            quota: None,
            retention: WeakRetention::default(),
            continues: None,
            logits: LogitsKind::All,
            progress: RequestProgress::default(),
        };
        let taken = self.scheduler.enqueue(self.now, request);
        assert_eq!(taken, Ok(()), "there is room in the queue");
    }

    pub fn plan(&mut self) {
        self.now += STEP;
        self.step = self.scheduler.plan(self.now);
    }

    /// Finds a token for each row that wants one.
    pub fn sample(&mut self) {
        let rows = self.step.rows.iter().filter(|row| row.output);
        self.sampled.clear();
        self.sampled.extend(rows.map(|row| (row.request, 7)));
    }

    pub fn apply(&mut self) {
        if self.step.rows.is_empty() {
            return;
        }
        let given_up = self.scheduler.applied(StepResult::Decoded {
            sampled: &self.sampled,
            finished: &[],
            sampled_externally: &[],
            needs_all_logits: &[],
            took: STEP,
        });
        assert_eq!(given_up, None, "nothing failed");
    }

    /// Brings what was planned to its end.
    pub fn answer(&mut self) {
        self.sample();
        self.apply();
        self.step = Step::default();
    }

    /// So many whole steps in which everybody generates, of fewer than are left.
    pub fn steps(&mut self, times: u32) {
        let left = self.left.checked_sub(times);
        self.left = left.expect("no sequence comes to its end");
        for _ in 0..times {
            self.plan();
            self.answer();
        }
    }

    /// The scheduler once more, and when its next step is to be planned.
    pub fn copy(&self) -> (Scheduler, Time) {
        (self.scheduler.clone(), self.now + STEP)
    }

    /// Makes sure that there is another step in which everybody generates.
    pub fn go_on(&mut self) {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => *self = Self::new(self.size),
        }
    }
}

/// A scheduler that keeps so many chats which were put aside. All its ids and cells are taken by chats that
/// were spoken to last, and each newcomer needs those of one of them.
pub struct Attic {
    scheduler: Scheduler,
    now: Time,
    /// One for each chat.
    claims: Vec<Retention>,
    /// What was planned.
    step: Step,
}

impl Attic {
    pub fn new(kept: u32) -> Self {
        let limits = SchedulerConfig {
            seq_ids: IDS,
            top_k_seq_ids: 0,
            cells: u32::from(IDS) * PROMPT,
            max_step_tokens: 512,
            max_queue: 16,
            max_tenant_queue: 16,
            prefill: PrefillPolicy::default(),
            prefix_cache: true,
            can_truncate: true,
            swap: true,
            offload_prefixes: false,
            max_drafts: 8,
            overlap: Overlap::Off,
        };
        let mut attic = Self {
            scheduler: Scheduler::new(limits),
            now: Time::ZERO,
            claims: Vec::new(),
            step: Step::default(),
        };
        for _ in 0..kept {
            let request = attic.chat();
            let layout = Layout::new(std::iter::once(0..PROMPT).collect());
            let layout = layout.expect("each position is there once");
            let Request {
                scope,
                tokens,
                retention: claim,
                ..
            } = request;
            attic.scheduler.import_entry(scope, tokens, layout, claim);
        }
        while attic.scheduler.cells().free() > 0 {
            attic.enqueue();
            attic.plan();
            attic.answer();
        }
        attic
    }

    /// A chat of its own.
    fn chat(&mut self) -> Request {
        let number = self.claims.len() as u64;
        let claim = Retention::default();
        let first = number as Token * PROMPT;
        let tenant = (number % TENANTS) as u32;
        let request = Request {
            id: RequestId(number),
            tenant: Tenant(tenant),
            scope: PrefixScope(tenant.into()),
            priority: Priority::default(),
            tokens: (first..first + PROMPT).collect(),
            max_tokens: 1,
            arrived_at: self.now,
            queue_until: None,
            deadline: None,
            quota: None,
            retention: claim.downgrade(),
            continues: None,
            logits: LogitsKind::All,
            progress: RequestProgress::default(),
        };
        self.claims.push(claim);
        request
    }

    pub fn enqueue(&mut self) {
        let request = self.chat();
        let taken = self.scheduler.enqueue(self.now, request);
        assert_eq!(taken, Ok(()), "nobody waits");
    }

    pub fn plan(&mut self) {
        self.now += STEP;
        self.step = self.scheduler.plan(self.now);
    }

    /// Whoever was read ends.
    pub fn answer(&mut self) {
        let step = std::mem::take(&mut self.step);
        let rows = step.rows.iter().filter(|row| row.output);
        let ended: Vec<_> = rows.map(|row| row.request).collect();
        let sampled: Vec<_> = ended.iter().map(|key| (*key, 7)).collect();
        if step.rows.is_empty() {
            return;
        }
        let given_up = self.scheduler.applied(StepResult::Decoded {
            sampled: &sampled,
            finished: &ended,
            sampled_externally: &[],
            needs_all_logits: &[],
            took: STEP,
        });
        assert_eq!(given_up, None, "nothing failed");
    }
}
