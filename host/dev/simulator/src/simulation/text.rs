//! The tokens of a simulation: prompts, sampled tokens and drafts.

use super::{Alive, Arrival, End, Simulation};
use crate::{POISON, pseudo_random};
use corral_scheduler::{LogitsKind, RequestId, Row, Time, Token, accepted_drafts};

impl Simulation {
    /// The prompt of an arrival.
    pub(super) fn prompt_of(&self, index: usize) -> Vec<Token> {
        let arrival = &self.arrivals[index];
        let earlier = arrival.continued.and_then(|(earlier, tokens)| {
            let text = self.texts.get(&earlier)?;
            text.get(..(tokens as usize).min(text.len()))
        });
        let mut tokens = earlier.unwrap_or_default().to_vec();
        let (shared, family) = arrival.family;
        let id = RequestId(index as u64);
        for position in 0..arrival.prompt {
            let is_shared = position < shared && arrival.continued.is_none();
            let of = match is_shared {
                true => RequestId(1 << 32 | family),
                false => id,
            };
            tokens.push(token(of, position as usize));
        }
        if let Some(last) = tokens.last_mut().filter(|_| arrival.poisoned) {
            *last = POISON;
        }
        tokens
    }

    /// Samples after the rows of a computed step.
    pub(super) fn sample(&mut self, rows: &[Row]) -> SampledStep {
        let mut step = SampledStep::default();
        for row in rows {
            let draft = self.scheduler.drafts_of(row).to_vec();
            let alive = self.alive.get_mut(&row.request).expect("checked before");
            alive.submitted += row.known_end() - row.from;
            if !row.output {
                continue;
            }
            let arrival = &self.arrivals[alive.index];
            let generated = u32::try_from(alive.tokens.len()).unwrap();
            let insufficient = arrival
                .needs_all_logits_after
                .is_some_and(|from| generated >= from);
            let top_k = self.config.logits_of(row.seq) == LogitsKind::TopK;
            if top_k && insufficient && !alive.sampling {
                let before = std::mem::replace(&mut alive.needs_all_logits, true);
                assert!(!before, "a second retry");
                step.needs_all_logits.push(row.request);
                continue;
            }
            if let Some(most) = arrival.external_sampler.filter(|_| arrival.max_tokens > 0) {
                // A row that is computed again after a preemption does not ask again.
                if !std::mem::replace(&mut alive.sampling, true) {
                    let part = random(row.request, alive.text.len(), 3) % 5;
                    let after = most.mul_f64(part as f64 / 4.0);
                    self.answers.push((self.now + after, alive.index));
                }
                step.awaits_sampler.push(row.request);
                continue;
            }
            let last = arrival.last() as usize;
            let (had, before) = (alive.tokens.len(), alive.text.len());
            while alive.tokens.len() < last {
                let gained = alive.text.len() - before;
                if gained > draft.len() || draft[..gained] != alive.text[before..] {
                    break;
                }
                alive.gain(row.request, arrival, self.now);
            }
            let gained = &alive.text[before..];
            let accepted = accepted_drafts(&draft, gained);
            alive.submitted += accepted;
            alive.drafts.0 += accepted;
            alive.drafts.1 += row.drafts - accepted;
            let tokens = gained.iter().map(|&token| (row.request, token));
            step.gained.extend(tokens);
            if alive.tokens.len() >= last {
                alive.last_gained = u32::try_from(alive.tokens.len() - had).unwrap();
                alive.uncomputed = alive.last_gained - accepted;
                step.finished.push(row.request);
            }
        }
        for &request in &step.finished {
            self.end(request, End::Finished);
        }
        step
    }

    /// The external sampler of an arrival answers; known tokens may follow.
    pub(super) fn answer(&mut self, index: usize) {
        let id = RequestId(index as u64);
        let Some(alive) = self.alive.get_mut(&id) else {
            return;
        };
        let arrival = &self.arrivals[index];
        let (had, before) = (alive.tokens.len(), alive.text.len());
        alive.sampling = false;
        alive.gain(id, arrival, self.now);
        let finished = alive.tokens.len() >= arrival.last() as usize;
        let tokens = alive.text[before..].to_vec();
        if finished {
            alive.last_gained = u32::try_from(alive.tokens.len() - had).unwrap();
            alive.uncomputed = alive.last_gained;
            self.end(id, End::Finished);
        }
        self.scheduler
            .external_sample_arrived(self.now, id, &tokens, finished);
        let pending = self.scheduler.take_memory_ops();
        self.apply_memory_ops(&pending);
    }

    /// Proposes drafts, some of them wrong.
    pub(super) fn propose(&mut self, rows: &[Row]) {
        for row in rows {
            let Some(alive) = self.alive.get(&row.request) else {
                continue;
            };
            let random = random(row.request, alive.text.len(), 2);
            let arrival = &self.arrivals[alive.index];
            if arrival.external_sampler.is_some() {
                continue;
            }
            let most = u64::from(arrival.max_drafts);
            let right = random / 7 % (most + 1);
            let mut draft = Vec::new();
            for (index, position) in (0..random % (most + 1)).zip(alive.text.len()..) {
                let next = token(row.request, position);
                // Some wrong ones would make the step fail.
                let wrong = match random.is_multiple_of(31) {
                    true => POISON,
                    false => next ^ 1,
                };
                draft.push(if index < right { next } else { wrong });
            }
            if !draft.is_empty() {
                self.scheduler.add_lookup_drafts(row.request, &draft);
            }
        }
    }

    /// What the draft model predicts for a position of a request. `None` where it is unsure.
    pub(super) fn prediction(&self, id: RequestId, position: usize) -> Option<Token> {
        let random = random(id, position, 4);
        let accuracy = self.arrivals[self.alive[&id].index].model_accuracy;
        match random % 100 < u64::from(accuracy) {
            true => Some(token(id, position)),
            false if random.is_multiple_of(3) => None,
            false => Some(token(id, position) ^ 1),
        }
    }
}

/// The result of a computed step.
#[derive(Default)]
pub(super) struct SampledStep {
    /// In the order of the rows.
    pub gained: Vec<(RequestId, Token)>,
    pub finished: Vec<RequestId>,
    pub awaits_sampler: Vec<RequestId>,
    pub needs_all_logits: Vec<RequestId>,
}

impl Arrival {
    /// The number of tokens that it generates.
    fn last(&self) -> u32 {
        self.max_tokens.min(self.ends_after.max(1))
    }
}

impl Alive {
    /// Gains a sampled token, and known tokens that follow it.
    fn gain(&mut self, id: RequestId, arrival: &Arrival, now: Time) {
        let random = random(id, self.text.len(), 1);
        let known = match arrival.max_known_tokens {
            most if most > 0 && random.is_multiple_of(3) => random / 3 % (u64::from(most) + 1),
            _ => 0,
        };
        for _ in 0..=known {
            if self.tokens.len() < arrival.last() as usize {
                self.text.push(token(id, self.text.len()));
                self.tokens.push(now);
            }
        }
    }
}

/// A pseudo-random number for a request's position; each `purpose` has its own.
fn random(id: RequestId, position: usize, purpose: u8) -> u64 {
    pseudo_random((id, position, purpose)) >> 8
}

/// The token of a request at a position. Tokens differ by both, so that a mix-up shows.
fn token(id: RequestId, position: usize) -> Token {
    #[allow(clippy::cast_possible_truncation)]
    let token = (pseudo_random((id, position)) >> 33) as Token;
    token % POISON
}
