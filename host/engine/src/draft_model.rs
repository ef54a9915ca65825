//! A draft model: a smaller model that predicts the next tokens of requests, which the model then verifies.
//!
//! It has a context of its own on the engine thread, with one sequence for each request that it drafts for. A sequence
//! holds a prefix of the request's tokens, computed when the scheduler plans it, and the drafts that were computed last.
//! Drafts that the request did not gain are removed before the next ones. Requests of one prefix scope share the cells
//! of a prefix. Cells and sequences are freed when the request ends; if they run short, the least recently used
//! sequence without a plan is evicted.
//!
//! Drafts are the likeliest tokens, one after the other. Drafting stops at a token with a probability below 0.5, which
//! would rarely be accepted, and at one that ends a generation. Drafts ignore samplers and constraints, which only decide
//! what is accepted.

use crate::Token;
use crate::backend::{Backend, TokenInput};
use corral_scheduler::{DraftPlan, DraftState, KvCells, PrefixScope, RequestId, SeqId};
use std::time::{Duration, Instant};

/// The least probability of a draft, in the draft model's distribution.
const MIN_PROBABILITY: f32 = 0.5;
/// A shorter common prefix is not worth sharing.
const MIN_SHARED: usize = 16;

/// Sizes of a draft model.
#[derive(Clone, Debug)]
pub struct DraftSizes {
    /// Sequence ids.
    pub seq_ids: u16,
    /// KV cells.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Positions per sequence.
    pub context: u32,
    /// Tokens that both models have.
    pub vocabulary: u32,
    /// Tokens that end a generation, rising.
    pub end_of_generation: Vec<Token>,
}

/// A draft model and its sequences.
pub struct DraftModel<B> {
    backend: B,
    sizes: DraftSizes,
    cells: KvCells,
    /// By sequence id.
    sequences: Vec<Option<DraftSequence>>,
    inputs: Vec<TokenInput>,
    /// Number of calls of [`DraftModel::run`].
    runs: u64,
}

/// The sequence of a request.
struct DraftSequence {
    request: RequestId,
    scope: PrefixScope,
    /// Tokens of the request that are computed.
    computed: usize,
    /// Computed drafts after them.
    drafts: Vec<Token>,
    last_used: u64,
}

/// A request to draft for.
#[derive(Clone, Copy)]
pub struct DraftJob<'a> {
    pub plan: DraftPlan,
    /// The tokens of the request.
    pub tokens: &'a [Token],
    pub scope: PrefixScope,
}

/// A step of the draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftStep {
    pub sequences: u32,
    pub tokens: u32,
    pub took: Duration,
}

/// What the draft model computed.
#[derive(Debug, Default)]
pub struct DraftResults {
    pub steps: Vec<DraftStep>,
    /// For each plan with drafts, the drafts that the model proposes; possibly none.
    pub proposals: Vec<(DraftPlan, Vec<Token>)>,
    /// Requests that the draft model can't draft for.
    pub failed: Vec<RequestId>,
    /// Failed steps.
    pub failed_steps: u64,
}

/// A job in progress.
struct ActiveJob<'a> {
    job: DraftJob<'a>,
    seq: SeqId,
    /// The tokens of its row in the next step.
    row: Vec<Token>,
    drafts: Vec<Token>,
}

/// Why a step computed nothing.
enum StepError {
    NoCells,
    Failed,
}

impl ActiveJob<'_> {
    /// Whether its row ends with the last known token or a draft, so that the next draft follows.
    fn has_output(&self) -> bool {
        self.job.plan.drafts > 0
    }
}

impl<B: Backend> DraftModel<B> {
    pub fn new(backend: B, sizes: DraftSizes) -> Self {
        Self {
            backend,
            cells: KvCells::new(sizes.cells),
            sequences: (0..sizes.seq_ids).map(|_| None).collect(),
            sizes,
            inputs: Vec::new(),
            runs: 0,
        }
    }

    /// Its context, to set the number of threads.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Used cells.
    pub fn cells_used(&self) -> u32 {
        self.cells.used()
    }

    /// What it knows of a request with these tokens, which may have at most `max_drafts` drafts. `None` if the tokens
    /// are too many for its context.
    pub fn state(&self, id: RequestId, tokens: &[Token], max_drafts: u32) -> Option<DraftState> {
        let length = u32::try_from(tokens.len()).ok()?;
        // The last draft is never computed, so it needs no position.
        let room = (self.sizes.context + 1).checked_sub(length)?;
        let computed = self
            .sequence(id)
            .map_or(0, |(_, sequence)| sequence.reusable(tokens));
        let computed = u32::try_from(computed).unwrap_or(u32::MAX);
        Some(DraftState {
            uncomputed: length - computed,
            max_drafts: max_drafts.min(room),
        })
    }

    /// Frees the sequences of requests that `keep` rejects.
    pub fn retain(&mut self, mut keep: impl FnMut(RequestId) -> bool) {
        for index in 0..self.sequences.len() {
            let request = self.sequences[index]
                .as_ref()
                .map(|sequence| sequence.request);
            if request.is_some_and(|request| !keep(request)) {
                self.free(index);
            }
        }
    }

    /// Executes jobs, each of another request. `tokens_of` returns the tokens of a request.
    pub fn run<'a>(
        &mut self,
        jobs: &[DraftJob<'a>],
        tokens_of: impl Fn(RequestId) -> &'a [Token],
    ) -> DraftResults {
        self.runs += 1;
        let mut results = DraftResults::default();
        let mut active = Vec::new();
        let mut tokens = 0;
        for job in jobs {
            // Plans that do not fit the step come later.
            tokens += job.plan.prefill_tokens;
            if tokens > self.sizes.step_tokens && !active.is_empty() {
                break;
            }
            match self.prepare(*job, jobs, &tokens_of) {
                Some(job) => active.push(job),
                None => results.failed.push(job.plan.request),
            }
        }
        while !active.is_empty() {
            match self.step(&active, &mut results) {
                Ok(()) => self.add_drafts(&mut active, &mut results),
                Err(StepError::NoCells) => {
                    let cells = |(_, job): &(usize, &ActiveJob<'_>)| self.cells.held_by(job.seq);
                    let longest = active.iter().enumerate().max_by_key(cells);
                    let index = longest.map_or(0, |(index, _)| index);
                    self.fail(&active.remove(index), &mut results);
                }
                // Which of them is at fault is unknown.
                Err(StepError::Failed) => {
                    results.failed_steps += 1;
                    for job in active.drain(..) {
                        self.fail(&job, &mut results);
                    }
                }
            }
        }
        results
    }

    fn fail(&mut self, job: &ActiveJob<'_>, results: &mut DraftResults) {
        results.failed.push(job.job.plan.request);
        self.free(usize::from(job.seq.0));
    }

    /// Prepares the sequence of a job. `None` if a token is unknown to the draft model, or there is no room.
    fn prepare<'a>(
        &mut self,
        job: DraftJob<'a>,
        jobs: &[DraftJob<'a>],
        tokens_of: &impl Fn(RequestId) -> &'a [Token],
    ) -> Option<ActiveJob<'a>> {
        let id = job.plan.request;
        let index = match self.sequence(id) {
            Some((index, _)) => index,
            None => self.add_sequence(job, jobs, tokens_of)?,
        };
        let seq = seq_id(index);
        let sequence = self.sequences[index].as_mut()?;
        let reusable = sequence.reusable(job.tokens);
        sequence.drafts.clear();
        sequence.computed = reusable;
        sequence.last_used = self.runs;
        self.truncate(seq, reusable);
        // With a shared prefix, fewer tokens are left than were planned.
        let prefill_tokens = (job.plan.prefill_tokens as usize).min(job.tokens.len() - reusable);
        let row = job.tokens.get(reusable..reusable + prefill_tokens)?;
        if row.iter().any(|token| *token >= self.sizes.vocabulary) {
            return None;
        }
        Some(ActiveJob {
            job,
            seq,
            row: row.to_vec(),
            drafts: Vec::new(),
        })
    }

    /// Takes a sequence for a request, and lets it share the longest prefix of a sequence of its scope. Returns its index.
    fn add_sequence<'a>(
        &mut self,
        job: DraftJob<'a>,
        jobs: &[DraftJob<'a>],
        tokens_of: &impl Fn(RequestId) -> &'a [Token],
    ) -> Option<usize> {
        let free = self.sequences.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None => self.evict(jobs)?,
        };
        let same_scope = |sequence: &&(usize, &DraftSequence)| sequence.1.scope == job.scope;
        let common = |(index, sequence): (usize, &DraftSequence)| {
            let computed = tokens_of(sequence.request).iter().take(sequence.computed);
            let common = computed.zip(job.tokens).take_while(|(a, b)| a == b).count();
            // The last token is computed, for what follows it.
            (common.min(job.tokens.len() - 1), index)
        };
        let sequences = self.sequences.iter().enumerate();
        let others = sequences.filter_map(|(index, sequence)| Some((index, sequence.as_ref()?)));
        let longest = others.filter(|other| same_scope(&other)).map(common).max();
        let shared = longest.filter(|(length, _)| *length >= MIN_SHARED);
        if let Some((length, from)) = shared {
            let tokens = u32::try_from(length).unwrap_or(0);
            let (from, to) = (seq_id(from), seq_id(index));
            self.cells.share(from, to, tokens);
            self.backend.share(from, to, tokens);
        }
        self.sequences[index] = Some(DraftSequence {
            request: job.plan.request,
            scope: job.scope,
            computed: shared.map_or(0, |(length, _)| length),
            drafts: Vec::new(),
            last_used: self.runs,
        });
        Some(index)
    }

    /// Frees the least recently used sequence without a job. Returns its index.
    fn evict(&mut self, jobs: &[DraftJob<'_>]) -> Option<usize> {
        let has_job = |id| jobs.iter().any(|job| job.plan.request == id);
        let sequences = self.sequences.iter().enumerate();
        let idle = sequences.filter_map(|(index, sequence)| Some((index, sequence.as_ref()?)));
        let idle = idle.filter(|(_, sequence)| !has_job(sequence.request));
        let (index, _) = idle.min_by_key(|(_, sequence)| sequence.last_used)?;
        self.free(index);
        Some(index)
    }

    /// Computes the rows of all jobs.
    fn step(
        &mut self,
        active: &[ActiveJob<'_>],
        results: &mut DraftResults,
    ) -> Result<(), StepError> {
        let start = Instant::now();
        let rows = active
            .iter()
            .map(|job| (job.seq, u32::try_from(job.row.len()).unwrap_or(u32::MAX)));
        let jobs: Vec<_> = active.iter().map(|active| active.job).collect();
        while !self.cells.place(rows.clone()) {
            if self.evict(&jobs).is_none() {
                return Err(StepError::NoCells);
            }
        }
        self.inputs.clear();
        for job in active {
            let end = self.cells.held_by(job.seq);
            let positions = end - u32::try_from(job.row.len()).unwrap_or(end)..end;
            for (&token, position) in job.row.iter().zip(positions) {
                self.inputs.push(TokenInput {
                    token,
                    position,
                    seq: job.seq,
                    output: position + 1 == end && job.has_output(),
                });
            }
        }
        if let Err(error) = self.backend.decode(&self.inputs) {
            tracing::warn!(%error, tokens = self.inputs.len(), "a step of the draft model failed");
            return Err(StepError::Failed);
        }
        self.backend.wait();
        results.steps.push(DraftStep {
            sequences: u32::try_from(active.len()).unwrap_or(u32::MAX),
            tokens: u32::try_from(self.inputs.len()).unwrap_or(u32::MAX),
            took: start.elapsed(),
        });
        Ok(())
    }

    /// Adds the likeliest next token to the drafts of each job of a computed step. Jobs that need no further one end.
    fn add_drafts(&mut self, active: &mut Vec<ActiveJob<'_>>, results: &mut DraftResults) {
        let start = Instant::now();
        let mut end = 0;
        active.retain_mut(|active| {
            end += active.row.len();
            let plan = active.job.plan;
            if let Some(sequence) = &mut self.sequences[usize::from(active.seq.0)] {
                match active.drafts.last() {
                    None => sequence.computed += active.row.len(),
                    Some(draft) => sequence.drafts.push(*draft),
                }
            }
            if plan.drafts == 0 {
                return false;
            }
            let logits = self.backend.logits(end - 1);
            let logits = logits.map(|row| &row[..row.len().min(self.sizes.vocabulary as usize)]);
            let ends = |token: &Token| self.sizes.end_of_generation.binary_search(token).is_ok();
            if let Some(token) = logits.and_then(likely_token).filter(|token| !ends(token)) {
                active.drafts.push(token);
                if active.drafts.len() < plan.drafts as usize {
                    active.row = vec![token];
                    return true;
                }
            }
            let drafts = std::mem::take(&mut active.drafts);
            results.proposals.push((plan, drafts));
            false
        });
        if let Some(step) = results.steps.last_mut() {
            step.took += start.elapsed();
        }
    }

    fn sequence(&self, id: RequestId) -> Option<(usize, &DraftSequence)> {
        let mut sequences = self.sequences.iter().enumerate();
        sequences.find_map(|(index, sequence)| {
            let sequence = sequence
                .as_ref()
                .filter(|sequence| sequence.request == id)?;
            Some((index, sequence))
        })
    }

    fn truncate(&mut self, seq: SeqId, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if self.cells.held_by(seq) > length {
            self.cells.truncate(seq, length);
            self.backend.truncate(seq, length);
        }
    }

    fn free(&mut self, index: usize) {
        let seq = seq_id(index);
        self.sequences[index] = None;
        self.cells.clear(seq);
        self.backend.clear(seq);
    }
}

impl DraftSequence {
    /// How many of a request's tokens, without the last, are computed.
    fn reusable(&self, tokens: &[Token]) -> usize {
        let after = tokens.get(self.computed..).unwrap_or_default();
        let gained = after.iter().zip(&self.drafts);
        let gained = gained.take_while(|(token, draft)| token == draft).count();
        (self.computed + gained).min(tokens.len().saturating_sub(1))
    }
}

fn seq_id(index: usize) -> SeqId {
    SeqId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// The likeliest token, if it is at least as likely as all others together.
fn likely_token(logits: &[f32]) -> Option<Token> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() {
        return None;
    }
    let token = logits.iter().position(|logit| *logit == largest)?;
    let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    (1.0 / sum >= MIN_PROBABILITY)
        .then(|| u32::try_from(token).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlikely_tokens_are_no_drafts() {
        assert_eq!(likely_token(&[0.0, 9.0, 0.0]), Some(1));
        // The others are as likely together.
        assert_eq!(likely_token(&[1.0, 1.0]), Some(0));
        assert_eq!(likely_token(&[1.0, 1.0, 1.0]), None);
        assert_eq!(likely_token(&[f32::NEG_INFINITY, 3.0]), Some(1));
        for broken in [&[f32::NEG_INFINITY; 2][..], &[f32::INFINITY, 0.0], &[]] {
            assert_eq!(likely_token(broken), None, "{broken:?}");
        }
    }
}
