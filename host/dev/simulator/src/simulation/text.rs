//! The texts of a simulation: prompts, what is sampled after them, and guesses of it.

use super::{Alive, Arrival, End, Simulation};
use crate::POISON;
use corral_scheduler::accepted_drafts;
use corral_scheduler::{LogitsKind, RequestId, Row, Time, Token};

impl Simulation {
    /// The prompt of an arrival.
    pub(super) fn prompt_of(&self, index: usize) -> Vec<Token> {
        let arrival = &self.arrivals[index];
        let earlier = arrival.goes_on.and_then(|(earlier, tokens)| {
            let text = self.texts.get(&earlier)?;
            text.get(..(tokens as usize).min(text.len()))
        });
        let mut tokens = earlier.unwrap_or_default().to_vec();
        let (shared, family) = arrival.family;
        let key = RequestId(index as u64);
        for position in 0..arrival.prompt {
            let same = position < shared && arrival.goes_on.is_none();
            let of = if same {
                RequestId(1 << 32 | family)
            } else {
                key
            };
            tokens.push(token(of, position));
        }
        if let Some(last) = tokens.last_mut().filter(|_| arrival.poisoned) {
            *last = POISON;
        }
        tokens
    }

    /// What came of a step that was computed.
    pub(super) fn computed(&mut self, rows: &[Row]) -> Computed {
        let (mut sampled, mut ended, mut asked) = (Vec::new(), Vec::new(), Vec::new());
        let mut unsettled = Vec::new();
        for row in rows {
            let draft = self.scheduler.draft(row).to_vec();
            let alive = self.alive.get_mut(&row.request).expect("checked before");
            alive.submitted += row.certain() - row.from;
            if !row.output {
                continue;
            }
            let arrival = &self.arrivals[alive.index];
            let said = u32::try_from(alive.tokens.len()).unwrap();
            let tells_little = arrival.unsettled.is_some_and(|from| said >= from);
            let top = self.limits.logits_of(row.seq) == LogitsKind::TopK;
            if top && tells_little && !alive.asked {
                assert!(!std::mem::replace(&mut alive.unsettled, true), "once");
                unsettled.push(row.request);
                continue;
            }
            if let Some(most) = arrival.asks.filter(|_| arrival.max_tokens > 0) {
                // What is read again after a preemption is not asked again.
                if !std::mem::replace(&mut alive.asked, true) {
                    let part = mix(row.request, alive.text.len(), 3) % 5;
                    let after = most.mul_f64(part as f64 / 4.0);
                    self.chosen.push((self.now + after, alive.index));
                }
                asked.push(row.request);
                continue;
            }
            let last = arrival.last() as usize;
            let (had, before) = (alive.tokens.len(), alive.text.len());
            while alive.tokens.len() < last {
                let gained = alive.text.len() - before;
                if gained > draft.len() || draft[..gained] != alive.text[before..] {
                    break;
                }
                alive.goes_on(row.request, arrival, self.now);
            }
            let gained = &alive.text[before..];
            let right = accepted_drafts(&draft, gained);
            alive.submitted += right;
            alive.drafts.0 += right;
            alive.drafts.1 += row.drafts - right;
            sampled.extend(gained.iter().map(|&token| (row.request, token)));
            if alive.tokens.len() >= last {
                alive.told = u32::try_from(alive.tokens.len() - had).unwrap();
                alive.left = alive.told - right;
                ended.push(row.request);
            }
        }
        for &key in &ended {
            self.end(key, End::Finished);
        }
        Computed {
            sampled,
            ended,
            asked,
            unsettled,
        }
    }

    /// The next token of an arrival was chosen, and some are certain to follow it.
    pub(super) fn choose(&mut self, index: usize) {
        let key = RequestId(index as u64);
        let Some(alive) = self.alive.get_mut(&key) else {
            return;
        };
        let arrival = &self.arrivals[index];
        let (had, before) = (alive.tokens.len(), alive.text.len());
        alive.asked = false;
        alive.goes_on(key, arrival, self.now);
        let ended = alive.tokens.len() >= arrival.last() as usize;
        let tokens = alive.text[before..].to_vec();
        if ended {
            alive.told = u32::try_from(alive.tokens.len() - had).unwrap();
            alive.left = alive.told;
            self.end(key, End::Finished);
        }
        self.scheduler
            .sampled_externally(self.now, key, &tokens, ended);
        let pending = self.scheduler.take_memory_ops();
        self.do_memory(&pending);
    }

    /// Guesses what comes next, sometimes wrongly.
    pub(super) fn propose(&mut self, rows: &[Row]) {
        for row in rows {
            let Some(alive) = self.alive.get(&row.request) else {
                continue;
            };
            let chance = mix(row.request, alive.text.len(), 2);
            let arrival = &self.arrivals[alive.index];
            if arrival.asks.is_some() {
                continue;
            }
            let most = u64::from(arrival.drafts);
            let right = chance / 7 % (most + 1);
            let mut draft = Vec::new();
            for (place, position) in (0..chance % (most + 1)).zip(alive.text.len()..) {
                let next = token(row.request, u32::try_from(position).unwrap());
                // Some wrong ones would make the step fail.
                let wrong = if chance.is_multiple_of(31) {
                    POISON
                } else {
                    next ^ 1
                };
                draft.push(if place < right { next } else { wrong });
            }
            if !draft.is_empty() {
                self.scheduler.propose_draft(row.request, &draft);
            }
        }
    }
}

/// What came of a step that was computed.
pub(super) struct Computed {
    /// In the order of the rows.
    pub sampled: Vec<(RequestId, Token)>,
    pub ended: Vec<RequestId>,
    /// Whose next token is chosen elsewhere.
    pub asked: Vec<RequestId>,
    /// Of which the highest logits are not enough.
    pub unsettled: Vec<RequestId>,
}

impl Arrival {
    /// How many tokens it comes to.
    fn last(&self) -> u32 {
        self.max_tokens.min(self.ends_after.max(1))
    }
}

impl Alive {
    /// One token is sampled, and some are certain to follow it.
    fn goes_on(&mut self, key: RequestId, arrival: &Arrival, now: Time) {
        let chance = mix(key, self.text.len(), 1);
        let forced = match arrival.forced {
            most if most > 0 && chance.is_multiple_of(3) => chance / 3 % (u64::from(most) + 1),
            _ => 0,
        };
        for _ in 0..=forced {
            if self.tokens.len() < arrival.last() as usize {
                let position = u32::try_from(self.text.len()).unwrap();
                self.text.push(token(key, position));
                self.tokens.push(now);
            }
        }
    }
}

/// A number that looks random, and is the same for the same arguments.
fn mix(key: RequestId, position: usize, salt: u64) -> u64 {
    let mut x = (key.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= (position as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (salt << 56);
    x = (x ^ (x >> 30)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) >> 8
}

/// The token of a sequence at a position: another one for each of both, so that a mix-up shows.
fn token(key: RequestId, position: u32) -> Token {
    let mixed = (key.0 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(position).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    #[allow(clippy::cast_possible_truncation)]
    let high = (mixed >> 33) as Token;
    high % POISON
}
