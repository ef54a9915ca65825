//! The texts of a simulation: prompts, what is sampled after them, and guesses of it.

use super::{End, Simulation};
use crate::Token;
use crate::scheduler::speculation::accepted;
use crate::scheduler::{Key, Row};
use crate::simulator::POISON;

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
        let key = Key(index as u64);
        for position in 0..arrival.prompt {
            let same = position < shared && arrival.goes_on.is_none();
            let of = if same { Key(1 << 32 | family) } else { key };
            tokens.push(token(of, position));
        }
        if let Some(last) = tokens.last_mut().filter(|_| arrival.poisoned) {
            *last = POISON;
        }
        tokens
    }

    /// What came of a step that was computed: tokens in the order of the rows, and who ended.
    pub(super) fn computed(&mut self, rows: &[Row]) -> (Vec<(Key, Token)>, Vec<Key>) {
        let (mut sampled, mut ended) = (Vec::new(), Vec::new());
        for row in rows {
            let draft = self.scheduler.draft(row).to_vec();
            let alive = self.alive.get_mut(&row.key).expect("checked before");
            alive.submitted += row.certain() - row.from;
            if !row.output {
                continue;
            }
            let arrival = &self.arrivals[alive.index];
            let last = arrival.max_tokens.min(arrival.ends_after.max(1)) as usize;
            let (had, before) = (alive.tokens.len(), alive.text.len());
            while alive.tokens.len() < last {
                let gained = alive.text.len() - before;
                if gained > draft.len() || draft[..gained] != alive.text[before..] {
                    break;
                }
                // One is sampled, and some are certain to follow it.
                let chance = mix(row.key, alive.text.len(), 1);
                let forced = match arrival.forced {
                    most if most > 0 && chance.is_multiple_of(3) => {
                        chance / 3 % (u64::from(most) + 1)
                    }
                    _ => 0,
                };
                for _ in 0..=forced {
                    if alive.tokens.len() < last {
                        let position = u32::try_from(alive.text.len()).unwrap();
                        alive.text.push(token(row.key, position));
                        alive.tokens.push(self.now);
                    }
                }
            }
            let gained = &alive.text[before..];
            let right = accepted(&draft, gained);
            alive.submitted += right;
            alive.drafts.0 += right;
            alive.drafts.1 += row.drafts - right;
            sampled.extend(gained.iter().map(|&token| (row.key, token)));
            if alive.tokens.len() >= last {
                alive.told = u32::try_from(alive.tokens.len() - had).unwrap();
                alive.left = alive.told - right;
                ended.push(row.key);
            }
        }
        for &key in &ended {
            self.end(key, End::Finished);
        }
        (sampled, ended)
    }

    /// Guesses what comes next, sometimes wrongly.
    pub(super) fn propose(&mut self, rows: &[Row]) {
        for row in rows {
            let Some(alive) = self.alive.get(&row.key) else {
                continue;
            };
            let chance = mix(row.key, alive.text.len(), 2);
            let most = u64::from(self.arrivals[alive.index].drafts);
            let right = chance / 7 % (most + 1);
            let mut draft = Vec::new();
            for (place, position) in (0..chance % (most + 1)).zip(alive.text.len()..) {
                let next = token(row.key, u32::try_from(position).unwrap());
                // Some wrong ones would make the step fail.
                let wrong = if chance.is_multiple_of(31) {
                    POISON
                } else {
                    next ^ 1
                };
                draft.push(if place < right { next } else { wrong });
            }
            if !draft.is_empty() {
                self.scheduler.propose(row.key, &draft);
            }
        }
    }
}

/// A number that looks random, and is the same for the same arguments.
fn mix(key: Key, position: usize, salt: u64) -> u64 {
    let mut x = (key.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= (position as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (salt << 56);
    x = (x ^ (x >> 30)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) >> 8
}

/// The token of a sequence at a position: another one for each of both, so that a mix-up shows.
fn token(key: Key, position: u32) -> Token {
    let mixed = (key.0 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(position).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    #[allow(clippy::cast_possible_truncation)]
    let high = (mixed >> 33) as Token;
    high % POISON
}
