//! From a step's logits to tokens, their text and what becomes of their sequences; and what is proposed
//! for the next step.
//!
//! A row with drafts has logits after its last certain token and after each draft. Tokens are sampled
//! one after the other, by the sequence's own chain, as they would be without drafts; the next logits
//! count as long as what was sampled is the draft that they come after. So a sequence generates what it
//! would have generated without, with one draw of its random numbers for each token.
//!
//! Where a grammar leaves no choice, tokens follow without being sampled.
//!
//! Of some rows only the highest logits are there. If they do not tell which token comes, nothing of it is
//! sampled: the scheduler has the last token computed again where all logits are seen.

use super::follows::GrammarTime;
use super::{Sequence, Vocabulary, Worker};
use crate::Error;
use crate::Token;
use crate::backend::Backend;
use crate::generation::{FinishReason, Outcome};
use crate::metrics::add;
use crate::wake_batch::WakeBatch;
use corral_sampling::{Logits, Scratch, TokenLogprobs, TopKMiss, logprobs};
use corral_scheduler::accepted_drafts;
use corral_scheduler::{RequestId, Row};
use std::time::{Duration, Instant};

/// What came of a step's rows with output.
#[derive(Default)]
pub(super) struct Sampled {
    /// In the order of the rows; several of a row one after the other.
    pub tokens: Vec<(RequestId, Token)>,
    /// Who wants no further token.
    pub ended: Vec<RequestId>,
    /// Whose next token is chosen elsewhere.
    pub asked: Vec<RequestId>,
    /// Of which the highest logits did not tell enough.
    pub unsettled: Vec<RequestId>,
    /// For whom nothing could be sampled.
    pub broken: Vec<RequestId>,
    /// The part of the time that grammars took.
    pub grammars: Duration,
}

/// What a sequence gained by a step.
#[derive(Default)]
pub(super) struct Gained {
    /// In order: drafts that were right, and one that was sampled after them.
    pub tokens: Vec<Token>,
    /// It wants no further token.
    pub finish: Option<FinishReason>,
    /// Why nothing could be sampled after the last of the tokens.
    failed: Option<Short>,
}

/// Why nothing came of a row.
pub(super) enum Short {
    /// The highest logits, which are all that there is of it, do not tell what the whole row does.
    Unsettled,
    /// The sequence fails.
    Failed(Error),
}

impl From<TopKMiss> for Short {
    fn from(_: TopKMiss) -> Self {
        Self::Unsettled
    }
}

impl<E: Into<Error>> From<E> for Short {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What a row is sampled with.
pub(super) struct Tools<'a> {
    words: &'a dyn Vocabulary,
    scratch: &'a mut Scratch,
    text: &'a mut String,
    /// By which readers are woken.
    bell: &'a mut WakeBatch,
    /// MemoryOp for a sequence's tokens together with those it gains.
    history: &'a mut Vec<Token>,
    pub grammars: &'a mut GrammarTime,
}

impl Sequence {
    /// Samples as many tokens as a row with these drafts tells, and delivers them. `tokens` are those
    /// that are certain, `logits` those after the last of them and so many drafts.
    fn gain<'a>(
        &mut self,
        tokens: &[Token],
        draft: &[Token],
        logits: impl Fn(usize) -> Option<Logits<'a>>,
        tools: &mut Tools<'_>,
    ) -> Gained {
        let mut gained = Gained::default();
        // Each round begins with as many tokens gained as drafts were right. Whatever is added to
        // them in one round, the next one begins after all of it, or there is none.
        while gained.finish.is_none() && draft.get(..gained.tokens.len()) == Some(&gained.tokens) {
            let Some(row) = logits(gained.tokens.len()) else {
                gained.failed = Some(Short::Failed(nothing_sampled()));
                break;
            };
            if let Err(short) = self.gain_one(tokens, row, tools, &mut gained) {
                gained.failed = Some(short);
                break;
            }
        }
        gained
    }

    /// Samples a token and takes what is certain to follow.
    fn gain_one(
        &mut self,
        tokens: &[Token],
        row: Logits<'_>,
        tools: &mut Tools<'_>,
        gained: &mut Gained,
    ) -> Result<(), Short> {
        let whole = match row {
            Logits::Full(row) => Some(row),
            Logits::TopK(_) => None,
        };
        // Before anything is drawn.
        if self.options.logprobs.is_some() && whole.is_none() {
            return Err(Short::Unsettled);
        }
        let history = if gained.tokens.is_empty() {
            tokens
        } else {
            tools.history.clear();
            tools.history.extend_from_slice(tokens);
            tools.history.extend_from_slice(&gained.tokens);
            tools.history.as_slice()
        };
        let token = match (&mut self.follows, self.options.fixed_token) {
            (Some(follows), _) => {
                let chain = &mut self.chain;
                follows.sample(chain, row, history, tools.scratch, tools.grammars)?
            }
            (None, Some(fixed)) => fixed,
            (None, None) => self
                .chain
                .sample(row, history, None, tools.scratch)?
                .ok_or_else(nothing_sampled)?,
        };
        let told = match (self.options.logprobs, whole) {
            (Some(top), Some(row)) => Some(logprobs(row, token, usize::from(top), tools.scratch)?),
            _ => None,
        };
        Ok(self.settle(token, told, tools, gained)?)
    }

    /// Delivers a token that was sampled, and those that are certain to follow it.
    pub(super) fn settle(
        &mut self,
        token: Token,
        told: Option<TokenLogprobs>,
        tools: &mut Tools<'_>,
        gained: &mut Gained,
    ) -> Result<(), Error> {
        gained.tokens.push(token);
        gained.finish = self.take(token, told, tools);
        let left = self.options.max_tokens.saturating_sub(self.generated);
        if let Some(follows) = &mut self.follows {
            // Where it is asked how likely each token was, each has to be computed.
            let most = match (gained.finish, self.options.logprobs) {
                (None, None) => left as usize,
                _ => 0,
            };
            let forced = if most > 0 {
                follows.forced(most, tools.grammars)?
            } else {
                Vec::new()
            };
            let complete = follows.is_complete();
            for token in forced {
                gained.tokens.push(token);
                gained.finish = self.take(token, None, tools);
                if gained.finish.is_some() {
                    break;
                }
            }
            if complete {
                gained.finish.get_or_insert(FinishReason::End);
            }
        }
        Ok(())
    }

    /// Delivers a token. Says if it is the last one.
    fn take(
        &mut self,
        token: Token,
        told: Option<TokenLogprobs>,
        tools: &mut Tools<'_>,
    ) -> Option<FinishReason> {
        self.generated += 1;
        let text = &mut *tools.text;
        text.clear();
        let stopped = self.text.push(tools.words.piece(token), text);
        let reader = self.delivery.push(token, told, text);
        tools.bell.add(reader);
        if stopped {
            Some(FinishReason::Stop)
        } else if !self.options.ignore_end && tools.words.ends_generation(token) {
            Some(FinishReason::End)
        } else if self.generated >= self.options.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }
}

pub(super) fn nothing_sampled() -> Error {
    Error::Failed(
        "no token is left with a finite logit; the samplers ban them all, or the model's weights are \
         damaged"
            .into(),
    )
}

impl<B: Backend> Worker<B> {
    /// Samples tokens for each row with output and delivers them, or what may come next where that is
    /// wanted.
    pub(super) fn sample(&mut self, rows: &[Row], now: Instant) -> Sampled {
        let mut sampled = Sampled::default();
        let follows = |row: &&Row| {
            let sequence = self.sequences.get(&row.request);
            row.output && sequence.is_some_and(|sequence| sequence.follows.is_some())
        };
        let mut grammars = GrammarTime::among(rows.iter().filter(follows).count());
        let mut index = 0;
        for row in rows {
            self.bell.flush_if_due();
            let certain = row.certain() - row.from;
            let last = index + certain as usize - 1;
            index += row.tokens() as usize;
            if self.looks.contains_key(&row.request) {
                self.look(row, last, now, &mut sampled);
                continue;
            }
            let Some(sequence) = self.sequences.get_mut(&row.request) else {
                continue;
            };
            sequence.computed += u64::from(certain);
            if !row.output {
                continue;
            }
            if sequence.asking.is_some() {
                self.ask(row, last, &mut sampled, &mut grammars);
                continue;
            }
            let draft = self.scheduler.draft(row);
            let logits = |drafts| self.backend.output(last + drafts);
            let mut tools = Tools {
                words: &*self.vocabulary,
                scratch: &mut self.scratch,
                text: &mut self.text,
                bell: &mut self.bell,
                history: &mut self.history,
                grammars: &mut grammars,
            };
            let tokens = self.scheduler.tokens(row.request);
            let gained = sequence.gain(tokens, draft, logits, &mut tools);
            let right = u64::from(accepted_drafts(draft, &gained.tokens));
            sequence.computed += right;
            add(&self.counters.accepted_drafts, right);
            add(
                &self.counters.rejected_drafts,
                u64::from(row.drafts) - right,
            );
            if !gained.tokens.is_empty() {
                if let Some(seconds) = sequence.time_to_first_token(now) {
                    self.counters.time_to_first_token.observe(seconds);
                }
                if let Some(last) = sequence.last_token.replace(now) {
                    self.counters
                        .inter_token_latency
                        .observe((now - last).as_secs_f64());
                }
            }
            let tokens = gained.tokens.iter().map(|&token| (row.request, token));
            sampled.tokens.extend(tokens);
            match (gained.failed, gained.finish) {
                (Some(Short::Failed(error)), _) => {
                    self.fail(row.request, error);
                    sampled.broken.push(row.request);
                }
                (Some(Short::Unsettled), _) => sampled.unsettled.push(row.request),
                (None, Some(finish)) => {
                    sampled.ended.push(row.request);
                    let uncomputed = gained.tokens.len() as u64 - right;
                    self.finish(row.request, finish, uncomputed, now);
                }
                (None, None) => {}
            }
        }
        self.bell.flush();
        sampled.grammars = grammars.took;
        sampled
    }

    /// A sequence, and what is needed to deliver a token of it.
    pub(super) fn sequence<'a>(
        &'a mut self,
        key: RequestId,
        grammars: &'a mut GrammarTime,
    ) -> Option<(&'a mut Sequence, Tools<'a>)> {
        let tools = Tools {
            words: &*self.vocabulary,
            scratch: &mut self.scratch,
            text: &mut self.text,
            bell: &mut self.bell,
            history: &mut self.history,
            grammars,
        };
        Some((self.sequences.get_mut(&key)?, tools))
    }

    /// Guesses what comes next in the sequences that gained something and want it guessed.
    pub(super) fn propose(&mut self, sampled: &Sampled) {
        for of_one in sampled.tokens.chunk_by(|a, b| a.0 == b.0) {
            let key = of_one[0].0;
            let Some(sequence) = self.sequences.get_mut(&key) else {
                continue;
            };
            if let Some(lookup) = &mut sequence.lookup {
                let most = usize::from(sequence.options.max_draft_tokens);
                lookup.propose(self.scheduler.tokens(key), most, &mut self.draft);
                self.scheduler.propose_draft(key, &self.draft);
            }
        }
    }

    /// Ends a sequence. So many of its tokens were not computed.
    pub(super) fn finish(
        &mut self,
        key: RequestId,
        finish: FinishReason,
        uncomputed: u64,
        now: Instant,
    ) {
        let Some(sequence) = self.sequences.remove(&key) else {
            return;
        };
        let progress = self.scheduler.progress(key);
        let (cached, recomputed) = progress.map_or((0, 0), |p| (p.cached, p.recomputed));
        let times = sequence.times(now);
        let outcome = Outcome {
            finish,
            prompt_tokens: sequence.prompt,
            cached_tokens: cached.min(sequence.prompt),
            generated_tokens: sequence.generated,
            queue_time: times.queue,
            prefill_time: times.prefill,
            decode_time: times.decode,
        };
        let counters = &self.counters;
        add(&counters.finished, 1);
        add(&counters.prompt_tokens, u64::from(outcome.prompt_tokens));
        let generated = u64::from(outcome.generated_tokens);
        add(&counters.generated_tokens, generated);
        // The last one never is: what comes after it does not matter.
        add(&counters.uncomputed_tokens, uncomputed - 1);
        add(&counters.cached_tokens, u64::from(cached));
        add(&counters.recomputed_tokens, u64::from(recomputed));
        self.count_times(&times);
        let Sequence {
            mut text,
            delivery,
            place,
            ..
        } = sequence;
        self.text.clear();
        text.finish(&mut self.text);
        // Before the caller knows: it may come again at once.
        drop(place);
        self.bell.add(delivery.finish(&self.text, Ok(outcome)));
    }
}
