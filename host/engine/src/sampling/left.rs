//! What is left of the vocabulary while a chain is applied: first the [`Whole`] row, and from the
//! first link that leaves out most of it a [list](super::list).

use super::Scratch;
use super::dry::Lengths;
use super::list::{self, Candidate, MOST_SORTED, falling};
use super::marks::Marks;
use super::whole::{Moments, Whole, clamp_divisor};
use crate::Token;

/// If a mask allows fewer than one token in so many, they are listed at once.
const SPARSE: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Left<'a> {
    whole: Option<Whole<'a>>,
    list: &'a mut Vec<Candidate>,
    spare: &'a mut Vec<Candidate>,
    counted: usize,
}

/// What some links work with.
#[derive(Debug)]
pub struct Tools<'a> {
    /// For the row's vocabulary, none set.
    pub marks: &'a mut Marks,
    /// For DRY.
    pub lengths: &'a mut Lengths,
}

impl<'a> Left<'a> {
    /// All of the row that is finite and whose bit is set, and what links need beside it.
    pub fn new(
        row: &'a [f32],
        allowed: Option<&'a [u32]>,
        scratch: &'a mut Scratch,
    ) -> (Self, Tools<'a>) {
        let Scratch {
            whole,
            list,
            spare,
            marks,
            lengths,
        } = scratch;
        list.clear();
        marks.fit(row.len());
        let sparse = allowed.filter(|allowed| {
            let bits: usize = allowed.iter().map(|word| word.count_ones() as usize).sum();
            bits < row.len() / SPARSE
        });
        let whole = match sparse {
            Some(allowed) => {
                list_allowed(row, allowed, list);
                None
            }
            None => Some(Whole::new(row, allowed, whole)),
        };
        let left = Self {
            whole,
            list,
            spare,
            counted: row.len(),
        };
        (left, Tools { marks, lengths })
    }

    /// What the scratch's list holds already, of a row with so many tokens.
    pub fn listed(vocabulary: usize, scratch: &'a mut Scratch) -> (Self, Tools<'a>) {
        let Scratch {
            list,
            spare,
            marks,
            lengths,
            ..
        } = scratch;
        marks.fit(vocabulary);
        let left = Self {
            whole: None,
            list,
            spare,
            counted: vocabulary,
        };
        (left, Tools { marks, lengths })
    }

    /// The list, once there is one.
    pub fn list(&mut self) -> &mut Vec<Candidate> {
        self.list
    }

    /// So many count as candidates from now on, see [`Left::counted`].
    pub fn count_as(&mut self, counted: usize) {
        self.counted = counted;
    }

    /// Number of candidates as llama.cpp counts them: those that were given a logit of minus
    /// infinity, but not left out, still count. Dynamic temperature is measured against it.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// The most likely token, the lowest id among equals.
    pub fn best(&self) -> Option<Candidate> {
        match &self.whole {
            Some(whole) => whole.best(),
            None => self.list.iter().copied().min_by(falling),
        }
    }

    /// The sums of the softmax; `None` if nothing may be drawn.
    pub fn moments(&mut self) -> Option<Moments> {
        match &mut self.whole {
            Some(whole) => whole.moments(),
            None => list::moments(self.list),
        }
    }

    /// Number, mean and standard deviation of the logits.
    pub fn spread(&self) -> (f64, f64, f64) {
        match &self.whole {
            Some(whole) => whole.spread(),
            None => list::spread(self.list),
        }
    }

    /// Divides the logits.
    pub fn divide(&mut self, by: f32) {
        match &mut self.whole {
            Some(whole) => whole.divide(by),
            None => {
                let by = clamp_divisor(by);
                for candidate in self.list.iter_mut() {
                    candidate.logit /= by;
                }
                self.drop_infinite();
            }
        }
    }

    /// Gives the marked tokens another logit, which `to` says from the present one and the mark.
    pub fn change(&mut self, marks: &Marks, to: impl Fn(f32, u32) -> f32) {
        match &mut self.whole {
            Some(whole) => whole.change(marks.tokens(), |token, logit| to(logit, marks.of(token))),
            None => {
                for candidate in self.list.iter_mut() {
                    let mark = marks.of(candidate.token);
                    if mark > 0 {
                        candidate.logit = to(candidate.logit, mark);
                    }
                }
                self.drop_infinite();
            }
        }
    }

    fn drop_infinite(&mut self) {
        self.list.retain(|candidate| candidate.logit.is_finite());
    }

    /// Leaves the most likely token.
    pub fn keep_best(&mut self) {
        let best = self.best();
        self.whole = None;
        self.list.clear();
        self.list.extend(best);
    }

    /// Leaves the `count` most likely tokens; up to [`MOST_SORTED`] in their order: who knows no more of the
    /// row than those ([`Top`](super::Top)) has the same list.
    pub fn keep_top(&mut self, count: usize) {
        if let Some(whole) = &mut self.whole {
            let least = whole.reached_by(count);
            self.list_from(least);
        }
        list::keep_first(self.list, count, falling);
        if count <= MOST_SORTED as usize {
            self.list.sort_unstable_by(falling);
        }
        self.counted = self.counted.min(count);
    }

    /// Gives all tokens below the logit `least` one of minus infinity: they still count.
    pub fn silence_below(&mut self, least: f32) {
        self.list_from(least);
        self.list.retain(|candidate| candidate.logit >= least);
    }

    /// Leaves the tokens whose logit is at least `least`.
    pub fn keep_from(&mut self, least: f32) {
        self.silence_below(least);
        self.counted = self.list.len();
    }

    /// Leaves the fewest most likely tokens whose shares (e^d, see [`Moments`]) sum up to `wanted`.
    pub fn keep_likely(&mut self, moments: Moments, wanted: f64) {
        let share = |candidate: &Candidate| list::share(candidate, moments.most);
        if let Some(whole) = &mut self.whole {
            // Mostly the few tokens near the highest hold enough.
            for nats in [2.0, 4.0, 6.0, 8.0, 12.0, 16.0, f32::INFINITY] {
                self.list.clear();
                let mut sum = 0.0;
                whole.each_from(moments.most - nats, |candidate| {
                    sum += share(&candidate);
                    self.list.push(candidate);
                });
                if sum >= wanted {
                    break;
                }
            }
            self.whole = None;
        }
        list::keep_mass(self.list, falling, share, |sum| sum >= wanted);
        self.counted = self.list.len();
    }

    /// Leaves the fewest tokens nearest to the logit `center` whose shares exceed `wanted`.
    pub fn keep_near(&mut self, moments: Moments, center: f32, wanted: f64) {
        let share = |candidate: &Candidate| list::share(candidate, moments.most);
        let distance = |candidate: &Candidate| (candidate.logit - center).abs();
        if let Some(whole) = &mut self.whole {
            for nats in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, f32::INFINITY] {
                self.list.clear();
                let mut sum = 0.0;
                whole.each_from(center - nats, |candidate| {
                    if distance(&candidate) <= nats {
                        sum += share(&candidate);
                        self.list.push(candidate);
                    }
                });
                if sum > wanted {
                    break;
                }
            }
            self.whole = None;
        }
        let order = |a: &Candidate, b: &Candidate| {
            distance(a)
                .total_cmp(&distance(b))
                .then_with(|| falling(a, b))
        };
        list::keep_mass(self.list, order, share, |sum| sum > wanted);
        self.counted = self.list.len();
    }

    /// Leaves out the tokens with a logit of at least `least`, but for the least likely of them.
    pub fn drop_top(&mut self, least: f32, marks: &mut Marks) {
        self.spare.clear();
        match &self.whole {
            Some(whole) => whole.each_from(least, |candidate| self.spare.push(candidate)),
            None => {
                let top = self.list.iter().filter(|one| one.logit >= least);
                self.spare.extend(top);
            }
        }
        let Some(last) = self.spare.iter().copied().max_by(falling) else {
            return;
        };
        for candidate in self.spare.iter().filter(|one| **one != last) {
            marks.raise(candidate.token, 1);
        }
        self.change(marks, |_, _| f32::NEG_INFINITY);
        marks.clear();
        self.counted -= self.spare.len() - 1;
    }

    /// Turns a whole row into a list of the tokens whose logit is at least `least`.
    fn list_from(&mut self, least: f32) {
        if let Some(whole) = self.whole.take() {
            whole.each_from(least, |candidate| self.list.push(candidate));
        }
    }

    /// Draws by the softmax; `point` is uniform in [0, 1). `None` if nothing may be drawn.
    pub fn draw(&mut self, point: f64) -> Option<Token> {
        match &mut self.whole {
            Some(whole) => whole.draw(point),
            None => list::draw(self.list, point),
        }
    }

    /// The logit of a token in a list; `None` if it is not left.
    pub fn logit(&self, token: Token) -> Option<f32> {
        let found = self.list.iter().find(|one| one.token == token);
        found.map(|candidate| candidate.logit)
    }

    /// The tokens left with their logits.
    #[cfg(test)]
    pub fn into_list(mut self) -> Vec<Candidate> {
        self.list_from(f32::NEG_INFINITY);
        self.list.clone()
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
