//! The tokens that a chain may still draw. Represented as [all logits](LogitRow) at first, and as a
//! [list](crate::candidate_list) after a sampler has removed most of them.

use crate::RepetitionLengths;
use crate::candidate_list::{self, Candidate, MAX_SORTED, falling};
use crate::logit_row::LogitRow;
use crate::softmax::{SoftmaxSums, clamp_divisor};
use crate::token_map::TokenMap;
use crate::{Scratch, Token};

/// A mask that allows fewer than one token in this many makes a list at once.
const SPARSE: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// The row, unless the list took its place.
    row: Option<LogitRow<'a>>,
    list: &'a mut Vec<Candidate>,
    spare: &'a mut Vec<Candidate>,
    counted: usize,
}

/// Memory for some samplers.
#[derive(Debug)]
pub struct Workspace<'a> {
    /// Empty, for the row's vocabulary.
    pub tokens: &'a mut TokenMap,
    /// For DRY.
    pub lengths: &'a mut RepetitionLengths,
}

impl<'a> Candidates<'a> {
    /// All tokens of the row with a finite logit whose bit in `allowed` is set.
    pub fn new(
        row: &'a [f32],
        allowed: Option<&'a [u32]>,
        scratch: &'a mut Scratch,
    ) -> (Self, Workspace<'a>) {
        let Scratch {
            row: row_scratch,
            list,
            spare,
            tokens,
            lengths,
        } = scratch;
        list.clear();
        tokens.reset(row.len());
        let sparse = allowed.filter(|allowed| {
            let bits: usize = allowed.iter().map(|word| word.count_ones() as usize).sum();
            bits < row.len() / SPARSE
        });
        let counted = row.len();
        let row = match sparse {
            Some(allowed) => {
                list_allowed(row, allowed, list);
                None
            }
            None => Some(LogitRow::new(row, allowed, row_scratch)),
        };
        let candidates = Self {
            row,
            list,
            spare,
            counted,
        };
        (candidates, Workspace { tokens, lengths })
    }

    /// The candidates in the scratch's list, of a row with `vocabulary` tokens.
    pub fn from_list(vocabulary: usize, scratch: &'a mut Scratch) -> (Self, Workspace<'a>) {
        scratch.tokens.reset(vocabulary);
        let candidates = Self {
            row: None,
            list: &mut scratch.list,
            spare: &mut scratch.spare,
            counted: vocabulary,
        };
        let workspace = Workspace {
            tokens: &mut scratch.tokens,
            lengths: &mut scratch.lengths,
        };
        (candidates, workspace)
    }

    /// The list, if it has taken the row's place.
    pub fn list(&mut self) -> &mut Vec<Candidate> {
        self.list
    }

    /// Sets [`Candidates::counted`].
    pub fn set_counted(&mut self, counted: usize) {
        self.counted = counted;
    }

    /// Number of candidates as llama.cpp counts them: tokens that a sampler gave a logit of minus
    /// infinity, but did not remove, count. Dynamic temperature depends on it.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// The most likely token, the lowest id among equals.
    pub fn best(&self) -> Option<Candidate> {
        match &self.row {
            Some(row) => row.best(),
            None => self.list.iter().copied().min_by(falling),
        }
    }

    /// The sums of the softmax; `None` if no candidate is left.
    pub fn softmax_sums(&self) -> Option<SoftmaxSums> {
        match &self.row {
            Some(row) => row.softmax_sums(),
            None => candidate_list::softmax_sums(self.list),
        }
    }

    /// The standard deviation of the logits.
    pub fn standard_deviation(&self) -> f64 {
        match &self.row {
            Some(row) => row.standard_deviation(),
            None => candidate_list::standard_deviation(self.list),
        }
    }

    /// Divides the logits.
    pub fn divide(&mut self, by: f32) {
        match &mut self.row {
            Some(row) => row.divide(by),
            None => {
                let by = clamp_divisor(by);
                for candidate in self.list.iter_mut() {
                    candidate.logit /= by;
                }
                self.remove_infinite();
            }
        }
    }

    /// Gives each token of the map the logit that `to` returns for its logit and its number.
    pub fn change(&mut self, tokens: &TokenMap, to: impl Fn(f32, u32) -> f32) {
        match &mut self.row {
            Some(row) => row.change(tokens.tokens(), |token, logit| to(logit, tokens.get(token))),
            None => {
                for candidate in self.list.iter_mut() {
                    let number = tokens.get(candidate.token);
                    if number > 0 {
                        candidate.logit = to(candidate.logit, number);
                    }
                }
                self.remove_infinite();
            }
        }
    }

    fn remove_infinite(&mut self) {
        self.list.retain(|candidate| candidate.logit.is_finite());
    }

    /// Keeps the most likely token.
    pub fn keep_best(&mut self) {
        let best = self.best();
        self.row = None;
        self.list.clear();
        self.list.extend(best);
    }

    /// Keeps the `count` most likely tokens, sorted if they are [`MAX_SORTED`] or fewer: then
    /// [`TopLogits`](crate::TopLogits) give the same list.
    pub fn keep_top(&mut self, count: usize) {
        if let Some(row) = &mut self.row {
            let lowest = row.threshold(count);
            self.list_from(lowest);
        }
        candidate_list::keep_first(self.list, count, falling);
        if count <= MAX_SORTED as usize {
            self.list.sort_unstable_by(falling);
        }
        self.counted = self.counted.min(count);
    }

    /// Sets logits below `lowest` to minus infinity; these tokens stay in `counted`.
    pub fn suppress_below(&mut self, lowest: f32) {
        self.list_from(lowest);
        self.list.retain(|candidate| candidate.logit >= lowest);
    }

    /// Keeps the tokens with a logit of at least `lowest`.
    pub fn keep_from(&mut self, lowest: f32) {
        self.suppress_below(lowest);
        self.counted = self.list.len();
    }

    /// Keeps the fewest most likely tokens whose weights (e^d, see [`SoftmaxSums`]) sum up to
    /// `wanted`.
    pub fn keep_likely(&mut self, sums: SoftmaxSums, wanted: f64) {
        let weight = |candidate: &Candidate| candidate_list::weight(candidate, sums.highest);
        if let Some(row) = &mut self.row {
            // Usually the few tokens near the highest logit suffice.
            for nats in [2.0, 4.0, 6.0, 8.0, 12.0, 16.0, f32::INFINITY] {
                self.list.clear();
                let mut sum = 0.0;
                row.for_each_from(sums.highest - nats, |candidate| {
                    sum += weight(&candidate);
                    self.list.push(candidate);
                });
                if sum >= wanted {
                    break;
                }
            }
            self.row = None;
        }
        candidate_list::keep_mass(self.list, falling, weight, |sum| sum >= wanted);
        self.counted = self.list.len();
    }

    /// Keeps the fewest tokens nearest to the logit `center` whose weights exceed `wanted`.
    pub fn keep_near(&mut self, sums: SoftmaxSums, center: f32, wanted: f64) {
        let weight = |candidate: &Candidate| candidate_list::weight(candidate, sums.highest);
        let distance = |candidate: &Candidate| (candidate.logit - center).abs();
        if let Some(row) = &mut self.row {
            for nats in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, f32::INFINITY] {
                self.list.clear();
                let mut sum = 0.0;
                row.for_each_from(center - nats, |candidate| {
                    if distance(&candidate) <= nats {
                        sum += weight(&candidate);
                        self.list.push(candidate);
                    }
                });
                if sum > wanted {
                    break;
                }
            }
            self.row = None;
        }
        let order = |a: &Candidate, b: &Candidate| {
            distance(a)
                .total_cmp(&distance(b))
                .then_with(|| falling(a, b))
        };
        candidate_list::keep_mass(self.list, order, weight, |sum| sum > wanted);
        self.counted = self.list.len();
    }

    /// Removes the tokens with a logit of at least `lowest`, except the least likely of them.
    pub fn drop_top(&mut self, lowest: f32, tokens: &mut TokenMap) {
        self.spare.clear();
        match &self.row {
            Some(row) => row.for_each_from(lowest, |candidate| self.spare.push(candidate)),
            None => {
                let top = self.list.iter().filter(|one| one.logit >= lowest);
                self.spare.extend(top);
            }
        }
        let Some(last) = self.spare.iter().copied().max_by(falling) else {
            return;
        };
        for candidate in self.spare.iter().filter(|one| **one != last) {
            tokens.raise(candidate.token, 1);
        }
        self.change(tokens, |_, _| f32::NEG_INFINITY);
        tokens.clear();
        self.counted -= self.spare.len() - 1;
    }

    /// Replaces a row by a list of its tokens with a logit of at least `lowest`.
    fn list_from(&mut self, lowest: f32) {
        if let Some(row) = self.row.take() {
            row.for_each_from(lowest, |candidate| self.list.push(candidate));
        }
    }

    /// Draws by the softmax; `point` is uniform in [0, 1). `None` if no candidate is left.
    pub fn draw(&mut self, point: f64) -> Option<Token> {
        match &mut self.row {
            Some(row) => row.draw(point),
            None => candidate_list::draw(self.list, point),
        }
    }

    /// The logit of a token in the list.
    pub fn logit(&self, token: Token) -> Option<f32> {
        let found = self.list.iter().find(|one| one.token == token);
        found.map(|candidate| candidate.logit)
    }

    /// All candidates with their logits, by rising token.
    pub fn into_pairs(mut self) -> Vec<(Token, f32)> {
        self.list_from(f32::NEG_INFINITY);
        self.list.sort_unstable_by_key(|one| one.token);
        self.list.iter().map(|one| (one.token, one.logit)).collect()
    }
}

fn list_allowed(row: &[f32], allowed: &[u32], list: &mut Vec<Candidate>) {
    for (index, (word, logits)) in allowed.iter().zip(row.chunks(32)).enumerate() {
        let mut rest = *word;
        while rest != 0 {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if let Some(&logit) = logits.get(bit).filter(|logit| logit.is_finite()) {
                let token = (index * 32 + bit) as Token;
                list.push(Candidate { token, logit });
            }
        }
    }
}
