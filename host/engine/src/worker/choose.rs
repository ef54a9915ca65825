//! Sequences whose tokens somebody else chooses (see [`crate::external_sampler`]).

use super::follows::GrammarTime;
use super::sample::{Gained, Sampled, Short, nothing_sampled};
use super::{Sequence, Worker};
use crate::backend::Backend;
use crate::external_sampler::{
    ExternalSampler, ExternalSamplerFactory, SamplerMailbox, SamplingRequest,
    SamplingRequestOptions,
};
use crate::metrics::{add, add_time};
use crate::{Error, Token};
use corral_sampling::{Logits, Scratch, TokenLogprobs};
use corral_scheduler::{RequestId, Row};
use std::sync::Arc;
use std::time::Instant;

/// Who chooses the tokens of a sequence, and what it was told.
pub(super) struct Asking {
    choosers: Arc<dyn ExternalSamplerFactory>,
    seed: u64,
    /// From when the sequence is admitted.
    chooser: Option<Box<dyn ExternalSampler>>,
    wanted: SamplingRequestOptions,
    /// What it has not been told of the text.
    since: Vec<Token>,
    question: Option<Question>,
}

/// What has not been answered.
struct Question {
    asked: Instant,
    /// What was shown.
    candidates: Vec<(Token, f32)>,
    /// How likely the first of them is, and the likeliest tokens, if that is to be told.
    likely: Option<TokenLogprobs>,
}

impl Asking {
    /// Nobody was asked yet.
    pub fn new(choosers: Arc<dyn ExternalSamplerFactory>, seed: u64, prompt: &[Token]) -> Self {
        let wanted = choosers.request_options();
        let first = prompt.len().saturating_sub(wanted.history as usize);
        Self {
            choosers,
            seed,
            chooser: None,
            wanted,
            since: prompt[first..].to_vec(),
            question: None,
        }
    }

    /// The sequence is admitted.
    pub fn begin(&mut self) {
        let (choosers, seed) = (&self.choosers, self.seed);
        self.chooser.get_or_insert_with(|| choosers.start(seed));
    }

    /// These were added to the text.
    fn gained(&mut self, tokens: &[Token]) {
        self.since.extend_from_slice(tokens);
    }
}

impl Question {
    /// What is told of a token that was chosen. `None` if it was not shown.
    fn told(self, token: Token) -> Option<Option<TokenLogprobs>> {
        let logit = |token| {
            let mut shown = self.candidates.iter();
            shown.find_map(|&(other, logit)| (other == token).then_some(logit))
        };
        let less = self.candidates.first()?.1 - logit(token)?;
        Some(self.likely.map(|likely| {
            // As it was computed from the whole row, to the last bit, where it was.
            let of = |&(other, logprob)| (other == token).then_some(logprob);
            let told = likely.top.iter().find_map(of);
            TokenLogprobs {
                logprob: told.unwrap_or(likely.logprob - less),
                top: likely.top,
            }
        }))
    }
}

impl Sequence {
    /// Shows what may come next to whoever chooses it.
    fn ask(
        &mut self,
        logits: Logits<'_>,
        position: u32,
        desk: (&Arc<SamplerMailbox>, RequestId),
        scratch: &mut Scratch,
        time: &mut GrammarTime,
    ) -> Result<(), Short> {
        let Some(asking) = &mut self.asking else {
            return Ok(());
        };
        let among = match &mut self.follows {
            Some(follows) => Some(follows.mask(time)?),
            None => None,
        };
        let count = asking.wanted.candidates as usize;
        let (candidates, whole) = match logits {
            Logits::Full(row) => (
                corral_sampling::most_likely(row, among, count, scratch),
                Some(row),
            ),
            Logits::TopK(top) => (top.most_likely(among, count, scratch)?, None),
        };
        let Some(&(likeliest, _)) = candidates.first() else {
            return Err(nothing_sampled().into());
        };
        let statistics = match (asking.wanted.statistics, whole) {
            (true, Some(row)) => {
                Some(corral_sampling::statistics(row, scratch).ok_or_else(nothing_sampled)?)
            }
            (true, None) => return Err(Short::Unsettled),
            (false, _) => None,
        };
        let likely = match (self.options.logprobs, whole) {
            (Some(top), Some(row)) => {
                let top = usize::from(top);
                Some(corral_sampling::logprobs(row, likeliest, top, scratch)?)
            }
            (Some(_), None) => return Err(Short::Unsettled),
            (None, _) => None,
        };
        asking.question = Some(Question {
            asked: Instant::now(),
            candidates: candidates.clone(),
            likely,
        });
        let shown = SamplingRequest {
            candidates,
            statistics,
            new_tokens: std::mem::take(&mut asking.since),
            position,
        };
        asking.begin();
        if let Some(chooser) = &mut asking.chooser {
            let (desk, key) = desk;
            chooser.sample(shown, desk.reply_for(key));
        }
        Ok(())
    }

    /// Whether a question has not been answered.
    fn is_asked(&self) -> bool {
        let asking = self.asking.as_ref();
        asking.is_some_and(|asking| asking.question.is_some())
    }
}

impl<B: Backend> Worker<B> {
    /// A row with output was computed of one whose tokens are chosen elsewhere; `last` is the index of its
    /// last input.
    pub(super) fn ask(
        &mut self,
        row: &Row,
        last: usize,
        sampled: &mut Sampled,
        time: &mut GrammarTime,
    ) {
        let Some(sequence) = self.sequences.get_mut(&row.request) else {
            return;
        };
        // What had to give way and was read again meanwhile is not asked again.
        if !sequence.is_asked() {
            let desk = (&self.desk, row.request);
            let asked = match self.backend.output(last) {
                Some(logits) => sequence.ask(logits, row.to, desk, &mut self.scratch, time),
                None => Err(nothing_sampled().into()),
            };
            match asked {
                Ok(()) => {}
                Err(Short::Unsettled) => {
                    sampled.unsettled.push(row.request);
                    return;
                }
                Err(Short::Failed(error)) => {
                    self.fail(row.request, error);
                    sampled.broken.push(row.request);
                    return;
                }
            }
            add(&self.counters.external_sampler_calls, 1);
        }
        sampled.asked.push(row.request);
    }

    /// Takes in what was chosen.
    pub(super) fn take_choices(&mut self) {
        let answers = self.desk.take();
        let follows = |key: &RequestId| {
            let sequence = self.sequences.get(key);
            sequence.is_some_and(|sequence| sequence.follows.is_some())
        };
        let many = answers.iter().filter(|(key, _)| follows(key)).count();
        let mut grammars = GrammarTime::among(many);
        for (key, answer) in answers {
            let now = Instant::now();
            let Some(sequence) = self.sequences.get_mut(&key) else {
                continue;
            };
            let asking = sequence.asking.as_mut();
            let Some(question) = asking.and_then(|asking| asking.question.take()) else {
                continue;
            };
            add_time(&self.counters.external_sampler_nanos, now - question.asked);
            let chosen = answer.and_then(|token| {
                let told = question.told(token).ok_or_else(|| {
                    Error::Failed(format!(
                        "token {token} was chosen, which is not one of those that were shown"
                    ))
                })?;
                Ok((token, told))
            });
            let chosen =
                chosen.and_then(|(token, told)| self.choose(key, token, told, now, &mut grammars));
            if let Err(error) = chosen {
                self.scheduler.cancel(key);
                self.fail(key, error);
            }
        }
    }

    /// A sequence goes on by a token that was chosen for it.
    fn choose(
        &mut self,
        key: RequestId,
        token: Token,
        told: Option<TokenLogprobs>,
        now: Instant,
        grammars: &mut GrammarTime,
    ) -> Result<(), Error> {
        let Some((sequence, mut tools)) = self.sequence(key, grammars) else {
            return Ok(());
        };
        if let Some(follows) = &mut sequence.follows {
            follows.accept(token, tools.grammars)?;
        }
        let mut gained = Gained::default();
        sequence.settle(token, told, &mut tools, &mut gained)?;
        let (tokens, finish) = (gained.tokens, gained.finish);
        if let Some(asking) = &mut sequence.asking {
            asking.gained(&tokens);
        }
        let first = sequence.time_to_first_token(now);
        let last = sequence.last_token.replace(now);
        if let Some(seconds) = first {
            self.counters.time_to_first_token.observe(seconds);
        }
        if let Some(last) = last {
            let seconds = (now - last).as_secs_f64();
            self.counters.inter_token_latency.observe(seconds);
        }
        if let Some(finish) = finish {
            self.finish(key, finish, tokens.len() as u64, now);
        }
        let now = self.time(now);
        self.scheduler
            .sampled_externally(now, key, &tokens, finish.is_some());
        Ok(())
    }
}
