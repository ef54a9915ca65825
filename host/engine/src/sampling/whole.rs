//! A row of logits of which nothing is left out yet.
//!
//! A vocabulary has 150,000 tokens and a chain mostly wants a few of the best, so the row is never
//! turned into a list of candidates. It is read once for the highest logit of each chunk of
//! [`CHUNK`] tokens; what looks for high logits later skips the chunks that have none. Links that
//! change a few logits (penalties, bias) are kept as changes beside the row, and a temperature as
//! one divisor.
//!
//! Invariants: `maxima[i]` is the highest of chunk `i` with changes and mask applied, minus
//! infinity if nothing there may be drawn; `changed` rises by token and has no token twice.
//! What is not finite reads as minus infinity. Logits in here are before the divisor.

use super::exp::{bound, exp};
use super::list::Candidate;
use crate::Token;

/// Tokens of a chunk: few enough that reading one is nearly free, many enough that there are few.
pub const CHUNK: usize = 64;
/// Numbers that a wide register holds; loops over so many become one instruction.
const LANES: usize = 16;

/// Divisors stay within these bounds, so that no usual logit is divided into infinity. Logits that
/// differ at all differ by more than 1e-18, so the lower bound draws as 0 does.
const DIVISORS: std::ops::RangeInclusive<f32> = 1e-20..=1e20;

/// Memory of a [`Whole`], a few numbers for each chunk.
#[derive(Debug, Default)]
pub struct Memory {
    maxima: Vec<f32>,
    /// One bit for each chunk that has changes.
    touched: Vec<u64>,
    changed: Vec<(Token, f32)>,
    /// Shares of the chunks in the softmax, or their maxima to select from.
    spare: Vec<f32>,
}

/// See the module.
#[derive(Debug)]
pub struct Whole<'a> {
    row: &'a [f32],
    allowed: Option<&'a [u32]>,
    /// There are NaN or positive infinities.
    dirty: bool,
    divisor: f32,
    memory: &'a mut Memory,
}

/// The sums that a softmax needs. `d` is a logit less the highest one, so it is 0 or less.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    /// The highest logit.
    pub most: f32,
    /// Sum of e^d.
    pub total: f64,
    /// Sum of d e^d.
    pub weighted: f64,
}

impl Moments {
    /// Entropy of the softmax in nats: with p = e^d / Z, the sum of -p ln p is ln Z - sum(p d).
    pub fn entropy(&self) -> f64 {
        self.total.ln() - self.weighted / self.total
    }

    /// The logit of a token whose probability has this natural logarithm.
    pub fn logit(&self, log_probability: f64) -> f32 {
        (f64::from(self.most) + self.total.ln() + log_probability) as f32
    }
}

type Values = [f32; CHUNK];

impl<'a> Whole<'a> {
    /// Reads the row once. A token may be drawn if its bit in `allowed` is set; bits that `allowed`
    /// lacks are not set.
    pub fn new(row: &'a [f32], allowed: Option<&'a [u32]>, memory: &'a mut Memory) -> Self {
        let chunks = row.len().div_ceil(CHUNK);
        memory.maxima.clear();
        memory.changed.clear();
        memory.touched.clear();
        memory.touched.resize(chunks.div_ceil(64), 0);
        let mut bad = [0_u32; LANES];
        let (full, _) = row.as_chunks::<CHUNK>();
        for chunk in full {
            for part in chunk.as_chunks::<LANES>().0 {
                for (bad, &logit) in bad.iter_mut().zip(part) {
                    *bad |= u32::from(logit.is_nan() | (logit == f32::INFINITY));
                }
            }
            memory.maxima.push(highest(chunk));
        }
        let dirty = bad.iter().any(|&lane| lane != 0);
        let whole = Self {
            row,
            allowed,
            dirty,
            divisor: 1.0,
            memory,
        };
        let right = if dirty || allowed.is_some() {
            0
        } else {
            full.len()
        };
        whole.memory.maxima.truncate(right);
        for chunk in right..chunks {
            let most = highest(whole.chunk(chunk, &mut [0.0; CHUNK]));
            whole.memory.maxima.push(most);
        }
        whole
    }

    /// A chunk as it is now, filled up with minus infinity; `buffer` is used if the row has it
    /// otherwise.
    #[inline]
    fn chunk<'b>(&'b self, index: usize, buffer: &'b mut Values) -> &'b Values {
        let start = index * CHUNK;
        let raw = &self.row[start..self.row.len().min(start + CHUNK)];
        let touched = self.memory.touched[index / 64] >> (index % 64) & 1 == 1;
        if !self.dirty
            && self.allowed.is_none()
            && !touched
            && let Ok(raw) = raw.try_into()
        {
            return raw;
        }
        *buffer = [f32::NEG_INFINITY; CHUNK];
        for (value, &logit) in buffer.iter_mut().zip(raw) {
            *value = if logit < f32::INFINITY {
                logit
            } else {
                f32::NEG_INFINITY
            };
        }
        if touched {
            let changed = &self.memory.changed;
            let first = changed.partition_point(|(token, _)| (*token as usize) < start);
            for &(token, logit) in &changed[first..] {
                let Some(value) = buffer.get_mut(token as usize - start) else {
                    break;
                };
                *value = logit;
            }
        }
        if let Some(allowed) = self.allowed {
            for (word, values) in buffer.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let word = allowed.get(start / 32 + word).copied().unwrap_or(0);
                for (bit, value) in values.iter_mut().enumerate() {
                    *value = if word >> bit & 1 == 1 {
                        *value
                    } else {
                        f32::NEG_INFINITY
                    };
                }
            }
        }
        buffer
    }

    /// The highest logit, minus infinity if none may be drawn.
    fn most(&self) -> f32 {
        self.memory
            .maxima
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max)
    }

    /// The most likely token, the lowest id among equals.
    pub fn best(&self) -> Option<Candidate> {
        let most = self.most();
        if most == f32::NEG_INFINITY {
            return None;
        }
        let index = self.memory.maxima.iter().position(|&max| max == most)?;
        let mut buffer = [0.0; CHUNK];
        let offset = self
            .chunk(index, &mut buffer)
            .iter()
            .position(|&logit| logit == most)?;
        Some(self.candidate(index, offset, most))
    }

    fn candidate(&self, chunk: usize, offset: usize, logit: f32) -> Candidate {
        Candidate {
            token: (chunk * CHUNK + offset) as Token,
            logit: logit / self.divisor,
        }
    }

    /// Divides all logits.
    pub fn divide(&mut self, by: f32) {
        self.divisor = clamp_divisor(self.divisor * clamp_divisor(by));
    }

    /// Gives some tokens another logit, which `to` says from the present one. No token may be in
    /// `tokens` twice; those outside the vocabulary are passed over.
    pub fn change(&mut self, tokens: &[Token], mut to: impl FnMut(Token, f32) -> f32) {
        let known = self.memory.changed.len();
        for &token in tokens {
            let Some(&logit) = self.row.get(token as usize) else {
                continue;
            };
            let old =
                self.memory.changed[..known].binary_search_by_key(&token, |(token, _)| *token);
            let before = old.map_or(logit, |at| self.memory.changed[at].1);
            if !before.is_finite() {
                continue;
            }
            let after = to(token, before / self.divisor) * self.divisor;
            let after = if after.is_finite() {
                after
            } else {
                f32::NEG_INFINITY
            };
            match old {
                Ok(at) => self.memory.changed[at].1 = after,
                Err(_) => self.memory.changed.push((token, after)),
            }
            let chunk = token as usize / CHUNK;
            self.memory.touched[chunk / 64] |= 1 << (chunk % 64);
        }
        self.memory
            .changed
            .sort_unstable_by_key(|(token, _)| *token);
        let mut done = None;
        for index in 0..self.memory.changed.len() {
            let chunk = self.memory.changed[index].0 as usize / CHUNK;
            if done != Some(chunk) {
                let most = highest(self.chunk(chunk, &mut [0.0; CHUNK]));
                self.memory.maxima[chunk] = most;
                done = Some(chunk);
            }
        }
    }

    /// The sums of the softmax; `None` if nothing may be drawn.
    pub fn moments(&mut self) -> Option<Moments> {
        let most = self.most();
        if most == f32::NEG_INFINITY {
            return None;
        }
        let (mut total, mut weighted) = (0.0, 0.0);
        self.shares(most, |sum, product| {
            total += f64::from(sum);
            weighted += f64::from(product);
        });
        Some(Moments {
            most: most / self.divisor,
            total,
            weighted,
        })
    }

    /// Calls `take` with the sums of e^d and of d e^d of each chunk.
    fn shares(&self, most: f32, mut take: impl FnMut(f32, f32)) {
        let factor = 1.0 / self.divisor;
        let mut buffer = [0.0; CHUNK];
        for (index, &max) in self.memory.maxima.iter().enumerate() {
            if exp((max - most) * factor) == 0.0 {
                take(0.0, 0.0);
                continue;
            }
            let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
            for part in self.chunk(index, &mut buffer).as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    let d = (part[lane] - most) * factor;
                    let share = exp(d);
                    sums[lane] += share;
                    products[lane] += share * bound(d);
                }
            }
            take(sums.iter().sum(), products.iter().sum());
        }
    }

    /// Calls `take` with each candidate whose logit is at least `least`, by rising token.
    pub fn each_from(&self, least: f32, mut take: impl FnMut(Candidate)) {
        let mut buffer = [0.0; CHUNK];
        for (index, &max) in self.memory.maxima.iter().enumerate() {
            if max == f32::NEG_INFINITY || max / self.divisor < least {
                continue;
            }
            for (offset, &logit) in self.chunk(index, &mut buffer).iter().enumerate() {
                if logit > f32::NEG_INFINITY && logit / self.divisor >= least {
                    take(self.candidate(index, offset, logit));
                }
            }
        }
    }

    /// A logit that at least `count` tokens reach, and few more unless many are equal: the maxima
    /// of `count` chunks reach it.
    pub fn reached_by(&mut self, count: usize) -> f32 {
        let Memory { maxima, spare, .. } = &mut *self.memory;
        if count == 0 || count > maxima.len() {
            return f32::NEG_INFINITY;
        }
        spare.clear();
        spare.extend_from_slice(maxima);
        let (_, least, _) = spare.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        *least / self.divisor
    }

    /// Number, mean and standard deviation of the logits that are finite.
    pub fn spread(&self) -> (f64, f64, f64) {
        let mut buffer = [0.0; CHUNK];
        let (mut count, mut sum) = (0.0, 0.0);
        let mut pass = |from: f32| {
            let (mut counted, mut first, mut second) = (0.0_f64, 0.0_f64, 0.0_f64);
            for (index, &max) in self.memory.maxima.iter().enumerate() {
                if max == f32::NEG_INFINITY {
                    continue;
                }
                let (mut counts, mut sums, mut squares) =
                    ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
                for part in self.chunk(index, &mut buffer).as_chunks::<LANES>().0 {
                    for lane in 0..LANES {
                        let finite = part[lane] > f32::NEG_INFINITY;
                        let d = if finite { part[lane] - from } else { 0.0 };
                        counts[lane] += if finite { 1.0 } else { 0.0 };
                        sums[lane] += d;
                        squares[lane] += d * d;
                    }
                }
                counted += f64::from(counts.iter().sum::<f32>());
                first += f64::from(sums.iter().sum::<f32>());
                second += f64::from(squares.iter().sum::<f32>());
            }
            (counted, first, second)
        };
        // Around the highest logit the squares can be large beside their differences, so the mean
        // is found first.
        let most = self.most();
        if most > f32::NEG_INFINITY {
            (count, sum, _) = pass(most);
        }
        if count == 0.0 {
            return (0.0, 0.0, 0.0);
        }
        let mean = (f64::from(most) + sum / count) as f32;
        let (_, first, second) = pass(mean);
        let variance = (second / count - (first / count).powi(2)).max(0.0);
        let divisor = f64::from(self.divisor);
        (count, f64::from(mean) / divisor, variance.sqrt() / divisor)
    }

    /// Draws by the softmax; `point` is uniform in [0, 1).
    pub fn draw(&mut self, point: f64) -> Option<Token> {
        let most = self.most();
        if most == f32::NEG_INFINITY {
            return None;
        }
        let mut spare = std::mem::take(&mut self.memory.spare);
        spare.clear();
        self.shares(most, |sum, _| spare.push(sum));
        let total: f64 = spare.iter().copied().map(f64::from).sum();
        let mut rest = point * total;
        let mut chosen = None;
        for (index, &share) in spare.iter().enumerate() {
            if share > 0.0 {
                chosen = Some((index, rest));
                if rest < f64::from(share) {
                    break;
                }
                rest -= f64::from(share);
            }
        }
        self.memory.spare = spare;
        let (index, mut rest) = chosen?;
        let mut buffer = [0.0; CHUNK];
        let factor = 1.0 / self.divisor;
        let mut last = None;
        for (offset, &logit) in self.chunk(index, &mut buffer).iter().enumerate() {
            let share = f64::from(exp((logit - most) * factor));
            if share > 0.0 {
                // Rounding can leave a crumb of the last one's share.
                last = Some((index * CHUNK + offset) as Token);
                rest -= share;
                if rest < 0.0 {
                    break;
                }
            }
        }
        last
    }
}

/// Brings a divisor into [`DIVISORS`].
pub fn clamp_divisor(value: f32) -> f32 {
    value.clamp(*DIVISORS.start(), *DIVISORS.end())
}

/// The highest value; NaN counts for nothing.
#[inline(always)]
fn highest(values: &Values) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for part in values.as_chunks::<LANES>().0 {
        for (most, &value) in lanes.iter_mut().zip(part) {
            *most = if value > *most { value } else { *most };
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            let other = lanes[lane + width];
            lanes[lane] = if other > lanes[lane] {
                other
            } else {
                lanes[lane]
            };
        }
    }
    lanes[0]
}
