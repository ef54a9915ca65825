//! LogitsKind that go on with tokens that are guessed.
//!
//! For a sequence that generates, its caller may propose *drafts*: what probably comes next. A row
//! computes some of them behind the tokens that are certain, and a token is sampled after each. As
//! long as that is the draft that stands there, the draft was right, and its computation counts; what
//! was computed of the others is undone. So a step can bring a sequence several tokens, and what it
//! generates is what it would have generated without (Leviathan et al., "Fast Inference from
//! Transformers via Speculative Decoding", 2023; a guess here is one token and no distribution).
//!
//! Drafts come last. They get cells that are free or that nobody claims, and nobody gives way or waits
//! for them. They get time as long as a step with them is expected to bring more tokens a second than
//! one without, and to take no longer than the [`prefill`](super::prefill) target allows its own rows.
//! How often a sequence's drafts were right tells what is to be expected of them; so where they are wrong, or where
//! many rows make each token dear, there are none. What they cost is seen only in steps that have some:
//! a few are tried now and then.

use super::Scheduler;
use super::ceiling::Ceiling;
use super::cost::StepShape;
use super::words::{EntryId, LogitsKind, RequestId, Row, SeqId, Step};
use crate::Token;

/// Most drafts in a step: up to a ceiling on this ladder.
const LADDER: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// Drafts that are tried where none is expected to pay: so often at first, and then at one opportunity
/// in so many.
const FIRST: u32 = 16;
const EVERY: u32 = 32;
/// How many are tried then.
const FEW: u32 = 2;
/// A draft that is less likely than this is not worth its sampling.
const LEAST: f64 = 0.05;
/// What an observation of a sequence's drafts is multiplied with at each later one.
const FORGET: f64 = 0.9;
/// What is left of a sequence's bad record each time that its drafts were passed over.
const FORGIVE: f64 = 0.98;

/// What may come after a sequence's tokens, and how often such guesses of it were right.
#[derive(Clone, Debug, Default)]
pub(super) struct Guess {
    /// Empty if nothing is proposed.
    pub draft: Vec<Token>,
    /// Drafts that were right, and first ones that were not; those long ago count less.
    hits: f64,
    misses: f64,
}

impl Guess {
    /// How likely a draft is right if those before it are.
    fn chance(&self) -> f64 {
        (self.hits + 1.0) / (self.hits + self.misses + 2.0)
    }

    fn observe(&mut self, drafts: u32, right: u32) {
        self.hits = FORGET * self.hits + f64::from(right);
        self.misses = FORGET * self.misses + f64::from(u8::from(right < drafts));
    }
}

/// What was seen of steps with drafts.
#[derive(Clone, Debug)]
pub(super) struct Speculation {
    ceiling: Ceiling,
    tried: u32,
    /// Opportunities since drafts were last computed.
    passed: u32,
}

impl Default for Speculation {
    fn default() -> Self {
        Self {
            ceiling: Ceiling::new(0, LADDER.len()),
            tried: 0,
            passed: 0,
        }
    }
}

/// A row that could have drafts.
struct Wish {
    /// Its place in the step.
    row: usize,
    /// How likely a draft of it is right, and how likely all up to the next one are.
    chance: f64,
    next: f64,
    most: u32,
    taken: u32,
}

/// How many drafts were right, where those tokens were gained: the first so many are equal. The last
/// token that was gained is always computed in a later step, since what comes after it is still to be
/// sampled.
pub fn accepted(drafts: &[Token], gained: &[Token]) -> u32 {
    let but_last = &gained[..gained.len().saturating_sub(1)];
    let equal = drafts.iter().zip(but_last).take_while(|(a, b)| a == b);
    u32::try_from(equal.count()).unwrap_or(u32::MAX)
}

impl Scheduler {
    /// Says what probably comes after the tokens of a sequence that generates. The next step may
    /// compute some of it, from the first one on, or nothing. It is forgotten as soon as the sequence
    /// gains a token.
    pub fn propose_draft(&mut self, key: RequestId, draft: &[Token]) {
        debug_assert!(self.is_between(), "propose between plan and applied");
        let most = draft.len().min(self.limits.max_drafts as usize);
        if let Some(running) = self.find(key).filter(|running| running.generates()) {
            running.guess.draft.clear();
            running.guess.draft.extend_from_slice(&draft[..most]);
        }
    }

    /// The drafts of a row of the step that was planned last.
    pub fn draft(&self, row: &Row) -> &[Token] {
        let running = self.running.iter().find(|r| r.key() == row.request);
        let draft = running.map_or(&[][..], |running| &running.guess.draft);
        &draft[..draft.len().min(row.drafts as usize)]
    }

    /// Lengthens rows of a step by drafts, as far as that pays and there is room.
    pub(super) fn speculate(&mut self, step: &mut Step) {
        if self.running.iter().all(|r| r.guess.draft.is_empty()) {
            return;
        }
        let mut wishes = self.wishes(&step.rows);
        if wishes.is_empty() {
            return;
        }
        let tokens: u32 = step.rows.iter().map(Row::tokens).sum();
        let room = self.limits.max_step_tokens.saturating_sub(tokens);
        // What ran ahead may go on when the step begins.
        let shape = StepShape {
            prefill: step.shape.prefill + step.overlapped,
            ..step.shape
        };
        let alone = shape.rows == 1 && shape.prefill == 0 && step.other_adapters == 0;
        let wanted = self.choose(shape, &mut wishes, room, alone);
        let cells = self.spare_cells(tokens, wanted);
        let mut drafts = wanted;
        // The least likely ones stay behind.
        while drafts > cells {
            let last = |wish: &&mut Wish| wish.taken > 0;
            let least = wishes.iter_mut().filter(last);
            let Some(wish) = least.min_by(|a, b| a.next.total_cmp(&b.next)) else {
                break;
            };
            wish.taken -= 1;
            wish.next /= wish.chance;
            drafts -= 1;
        }
        for wish in wishes {
            let row = &mut step.rows[wish.row];
            row.drafts = wish.taken;
            row.to += wish.taken;
            if wish.taken == 0
                && let Some(running) = self.running.iter_mut().find(|r| r.key() == row.request)
            {
                running.guess.misses *= FORGIVE;
            }
        }
        step.shape.drafts = drafts;
    }

    fn wishes(&self, rows: &[Row]) -> Vec<Wish> {
        let wish = |(row, planned): (usize, &Row)| {
            let running = self.running.iter().find(|r| r.key() == planned.request)?;
            let (request, guess) = (&running.request, &running.guess);
            // One more is sampled after them.
            let left = request
                .max_tokens
                .checked_sub(request.progress.generated + 1)?;
            let most = u32::try_from(guess.draft.len())
                .unwrap_or(u32::MAX)
                .min(left);
            // There the backend gives logits after one position only.
            let one = self.limits.logits_of(planned.seq) == LogitsKind::TopK;
            let can = planned.output && running.generates() && most > 0 && !one;
            let chance = guess.chance();
            can.then_some(Wish {
                row,
                chance,
                next: chance,
                most,
                taken: 0,
            })
        };
        rows.iter().enumerate().filter_map(wish).collect()
    }

    /// Takes the likeliest drafts, as many as pay. Returns how many.
    /// Who generates `alone` holds up nobody.
    fn choose(&mut self, shape: StepShape, wishes: &mut [Wish], room: u32, alone: bool) -> u32 {
        let (cost, experience) = (&self.cost, &self.experience);
        let n_kv = self.cells.n_kv();
        let seconds = |drafts, prefill| {
            let shape = StepShape {
                drafts,
                prefill,
                n_kv,
                ..shape
            };
            experience.expected(cost, shape)
        };
        let gap = self.limits.prefill.gap().filter(|_| !alone);
        let longest = gap.map(|gap| experience.longest(gap, cost, StepShape { n_kv, ..shape }));
        let room = room.min(LADDER[self.speculation.ceiling.place()]);
        let (mut drafts, mut tokens) = (0, f64::from(shape.rows));
        let likeliest = |wishes: &mut [Wish]| {
            let left = (0..wishes.len()).filter(|&i| wishes[i].taken < wishes[i].most);
            left.max_by(|&a, &b| wishes[a].next.total_cmp(&wishes[b].next))
        };
        while drafts < room && cost.is_fitted() {
            let Some(best) = likeliest(wishes) else {
                break;
            };
            let wish = &mut wishes[best];
            // Tokens a second must grow: (tokens + next) / after > tokens / before.
            let (before, after) = (seconds(drafts, 0), seconds(drafts + 1, 0));
            let pays = wish.next >= LEAST && wish.next * before > tokens * (after - before);
            let expected = seconds(drafts + 1, shape.prefill);
            if !pays || longest.is_some_and(|longest| expected > longest) {
                break;
            }
            tokens += wish.next;
            wish.taken += 1;
            wish.next *= wish.chance;
            drafts += 1;
        }
        let state = &mut self.speculation;
        state.passed = if drafts > 0 {
            0
        } else {
            state.passed.saturating_add(1)
        };
        let due = state.tried < FIRST || state.passed >= EVERY;
        if drafts == 0 && due && shape.prefill == 0 {
            state.passed = 0;
            state.tried = state.tried.saturating_add(1);
            if let Some(best) = likeliest(wishes) {
                let wish = &mut wishes[best];
                drafts = FEW.min(wish.most).min(room);
                wish.taken = drafts;
            }
        }
        drafts
    }

    /// How many of so many cells are to be had for drafts, beside those for `tokens`: what is free or
    /// is kept and nobody claims.
    fn spare_cells(&mut self, tokens: u32, wanted: u32) -> u32 {
        let all = tokens.saturating_add(wanted);
        if self.cells.free() < all {
            self.cache.settle();
        }
        while self.cells.free() < all {
            let gives = |_: EntryId, seq: SeqId| self.cells.freed_by_clearing(seq) > 0;
            let Some(id) = self.cache.oldest(false, gives) else {
                break;
            };
            self.put_aside(id);
        }
        self.cells.free().saturating_sub(tokens).min(wanted)
    }

    /// A row was computed. Returns how many of its drafts were right; what is in the cells of the
    /// others is undone.
    pub(super) fn verify(&mut self, row: &Row, sampled: &[(RequestId, Token)]) -> u32 {
        if row.drafts == 0 {
            return 0;
        }
        let own = sampled.iter().filter(|(key, _)| *key == row.request);
        let gained: Vec<_> = own.map(|(_, token)| *token).collect();
        let right = accepted(self.draft(row), &gained);
        self.truncate(row.seq, row.certain() + right);
        if let Some(running) = self.find(row.request) {
            running.guess.observe(row.drafts, right);
        }
        right
    }

    /// A step failed: who had drafts in it is tried again without.
    pub(super) fn drop_drafts(&mut self, planned: &[Row]) {
        for row in planned.iter().filter(|row| row.drafts > 0) {
            if let Some(running) = self.find(row.request) {
                running.guess.draft.clear();
                running.guess.observe(row.drafts, 0);
            }
        }
    }

    /// A step took so many seconds.
    pub(super) fn watch_drafts(&mut self, planned: &[Row], seconds: f64) {
        let drafts: u32 = planned.iter().map(|row| row.drafts).sum();
        if drafts == 0 || !self.cost.is_fitted() {
            return;
        }
        let gap = self.limits.prefill.gap().filter(|_| self.shape.rows > 1);
        let keeps = |gap| self.experience.keeps(gap, &self.cost, self.shape, seconds);
        let kept = gap.is_none_or(keeps);
        let place = LADDER.partition_point(|&most| most < drafts);
        self.speculation.ceiling.tried(place, kept);
    }
}
