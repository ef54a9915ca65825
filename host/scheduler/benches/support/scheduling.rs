//! Schedulers at work, without a model or a clock. Not every bench uses all of this.
#![allow(dead_code)]

use corral_scheduler::{
    Latency, LogitsKind, Overlap, PositionOrder, PrefillPolicy, PrefixScope, Priority, Request,
    RequestId, RequestProgress, Retention, Scheduler, SchedulerConfig, Step, StepResult, Tenant,
    Time, Token, WeakRetention,
};
use std::time::Duration;

/// Decoding and waiting requests.
pub type Load = (u16, usize);

const PROMPT: u32 = 64;
/// Tokens that each request generates before the bench starts again.
const LENGTH: u32 = 192;
/// The engine's defaults.
const CELLS: u32 = 16_384;
const IDS: u16 = 64;
/// Waiting requests are spread over this many tenants.
const TENANTS: u64 = 16;
/// The time of a step.
const STEP: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

fn config(seq_ids: u16, cells: u32, max_step_tokens: u32) -> SchedulerConfig {
    SchedulerConfig {
        seq_ids,
        top_k_seq_ids: 0,
        cells,
        max_step_tokens,
        max_compaction_tokens: u32::MAX,
        max_queue: 2048,
        max_tenant_queue: 2048,
        prefill: PrefillPolicy::default(),
        prefix_cache: true,
        can_truncate: true,
        swap: true,
        offload_prefixes: false,
        max_drafts: 8,
        overlap: Overlap::Off,
    }
}

/// A request with a prompt of its own.
fn request(number: u64, now: Time, max_tokens: u32) -> Request {
    let first = number as Token * PROMPT;
    let tenant = (number % TENANTS) as u32;
    Request {
        id: RequestId(number),
        tenant: Tenant(tenant),
        scope: PrefixScope(tenant.into()),
        priority: Priority::default(),
        latency: Latency::default(),
        tokens: (first..first + PROMPT).collect(),
        max_tokens,
        arrived_at: now,
        queue_until: None,
        deadline: None,
        quota: None,
        retention: WeakRetention::default(),
        continued: None,
        logits: LogitsKind::All,
        progress: RequestProgress::default(),
    }
}

/// Reports that a step was computed.
fn apply(
    scheduler: &mut Scheduler,
    step: &Step,
    gained: &[(RequestId, Token)],
    finished: &[RequestId],
) {
    if step.rows.is_empty() {
        return;
    }
    let failed = scheduler.step_done(StepResult::Decoded {
        gained,
        finished,
        awaits_sampler: &[],
        needs_all_logits: &[],
        took: STEP,
    });
    assert_eq!(failed, None, "no request fails");
}

/// A scheduler in which as many requests decode as can.
pub struct DecodeScene {
    load: Load,
    scheduler: Scheduler,
    now: Time,
    step: Step,
    gained: Vec<(RequestId, Token)>,
    /// Steps until requests finish.
    steps_left: u32,
}

impl DecodeScene {
    pub fn new(load: Load) -> Self {
        let (running, waiting) = (u32::from(load.0), load.1);
        // More cells than the requests fill, and all prompts in one step.
        let cells = CELLS.max(running * 2 * (PROMPT + LENGTH));
        let mut scene = Self {
            load,
            scheduler: Scheduler::new(config(load.0, cells, running * PROMPT)),
            now: Time::ZERO,
            step: Step::default(),
            gained: Vec::new(),
            steps_left: LENGTH - 4,
        };
        (0..u64::from(running)).for_each(|number| scene.enqueue(number));
        scene.plan();
        scene.answer();
        scene.plan();
        assert_eq!(scene.step.shape.decode_rows, running, "all decode");
        scene.answer();
        (1000..1000 + waiting as u64).for_each(|number| scene.enqueue(number));
        scene
    }

    fn enqueue(&mut self, number: u64) {
        let request = Request {
            queue_until: Some(self.now + HOUR),
            ..request(number, self.now, LENGTH)
        };
        let queued = self.scheduler.enqueue(self.now, request);
        assert_eq!(queued, Ok(()));
    }

    pub fn plan(&mut self) {
        self.now += STEP;
        self.step = self.scheduler.plan(self.now);
    }

    /// Samples a token for each row with output.
    pub fn sample(&mut self) {
        let rows = self.step.rows.iter().filter(|row| row.output);
        self.gained.clear();
        self.gained.extend(rows.map(|row| (row.request, 7)));
    }

    pub fn apply(&mut self) {
        apply(&mut self.scheduler, &self.step, &self.gained, &[]);
    }

    /// Completes the planned step.
    pub fn answer(&mut self) {
        self.sample();
        self.apply();
        self.step = Step::default();
    }

    /// Runs whole steps, fewer than are left.
    pub fn steps(&mut self, times: u32) {
        let left = self.steps_left.checked_sub(times);
        self.steps_left = left.expect("requests finish too early");
        for _ in 0..times {
            self.plan();
            self.answer();
        }
    }

    /// A copy of the scheduler, and the time of its next step.
    pub fn copy(&self) -> (Scheduler, Time) {
        (self.scheduler.clone(), self.now + STEP)
    }

    /// Starts again if no step is left in which all decode.
    pub fn ensure_step(&mut self) {
        match self.steps_left.checked_sub(1) {
            Some(left) => self.steps_left = left,
            None => *self = Self::new(self.load),
        }
    }
}

/// A scheduler with many swapped-out retained sequences. Others hold all ids and cells, and each new request needs
/// those of one of them.
pub struct AdmissionScene {
    scheduler: Scheduler,
    now: Time,
    /// One for each sequence.
    retentions: Vec<Retention>,
    step: Step,
}

impl AdmissionScene {
    pub fn new(swapped_out: u32) -> Self {
        let mut scene = Self {
            scheduler: Scheduler::new(config(IDS, u32::from(IDS) * PROMPT, 512)),
            now: Time::ZERO,
            retentions: Vec::new(),
            step: Step::default(),
        };
        for _ in 0..swapped_out {
            let request = scene.next_request();
            let order = PositionOrder::new(std::iter::once(0..PROMPT).collect());
            let order = order.expect("each position once");
            scene
                .scheduler
                .import_entry(request.scope, request.tokens, order, request.retention);
        }
        while scene.scheduler.cells().free() > 0 {
            scene.enqueue();
            scene.plan();
            scene.answer();
        }
        scene
    }

    /// A request whose sequence is retained.
    fn next_request(&mut self) -> Request {
        let retention = Retention::default();
        let request = Request {
            retention: retention.downgrade(),
            ..request(self.retentions.len() as u64, self.now, 1)
        };
        self.retentions.push(retention);
        request
    }

    pub fn enqueue(&mut self) {
        let request = self.next_request();
        let queued = self.scheduler.enqueue(self.now, request);
        assert_eq!(queued, Ok(()));
    }

    pub fn plan(&mut self) {
        self.now += STEP;
        self.step = self.scheduler.plan(self.now);
    }

    /// Completes the planned step; its requests finish.
    pub fn answer(&mut self) {
        let step = std::mem::take(&mut self.step);
        let rows = step.rows.iter().filter(|row| row.output);
        let finished: Vec<_> = rows.map(|row| row.request).collect();
        let gained: Vec<_> = finished.iter().map(|id| (*id, 7)).collect();
        apply(&mut self.scheduler, &step, &gained, &finished);
    }
}
