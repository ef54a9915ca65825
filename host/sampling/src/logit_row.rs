//! A whole row of logits, before a sampler removes tokens from it.
//!
//! A vocabulary has 150,000 tokens and a chain usually wants a few of the best, so a row never
//! becomes a list of candidates. It is read once for the highest logit of each chunk of [`CHUNK`]
//! tokens; searches for high logits skip chunks without any. Samplers that change a few logits
//! (penalties, biases) store the changes beside the row; a temperature is one divisor.
//!
//! Invariants: `maxima[i]` is the highest logit of chunk `i` after changes and mask, minus infinity
//! if no token there may be drawn; `changed` is sorted by token, each once. Logits that are not
//! finite read as minus infinity. Stored logits are those before the divisor.

use crate::Token;
use crate::candidate_list::Candidate;
use crate::exp::{bound, exp};
use crate::softmax::{SoftmaxSums, clamp_divisor};

/// Tokens per chunk: few enough that reading a chunk is nearly free, enough that there are few chunks.
pub const CHUNK: usize = 64;
/// Numbers in a wide register: a loop over this many becomes one instruction.
const LANES: usize = 16;

/// Memory for a [`LogitRow`]: a few numbers per chunk.
#[derive(Debug, Default)]
pub struct RowScratch {
    maxima: Vec<f32>,
    /// One bit per chunk, set if it has changes.
    touched: Vec<u64>,
    changed: Vec<(Token, f32)>,
    /// Weights of the chunks in the softmax, or a copy of `maxima` to select from.
    spare: Vec<f32>,
}

/// See the module.
#[derive(Debug)]
pub struct LogitRow<'a> {
    row: &'a [f32],
    allowed: Option<&'a [u32]>,
    /// Whether the row has NaN or positive infinities.
    dirty: bool,
    divisor: f32,
    scratch: &'a mut RowScratch,
}

type Values = [f32; CHUNK];

impl<'a> LogitRow<'a> {
    /// Reads the row once. With `allowed`, only tokens whose bit is set may be drawn; missing bits are
    /// not set.
    pub fn new(row: &'a [f32], allowed: Option<&'a [u32]>, scratch: &'a mut RowScratch) -> Self {
        let chunks = row.len().div_ceil(CHUNK);
        scratch.maxima.clear();
        scratch.changed.clear();
        scratch.touched.clear();
        scratch.touched.resize(chunks.div_ceil(64), 0);
        let mut bad = [0_u32; LANES];
        let (full, _) = row.as_chunks::<CHUNK>();
        for chunk in full {
            for part in chunk.as_chunks::<LANES>().0 {
                for (bad, &logit) in bad.iter_mut().zip(part) {
                    *bad |= u32::from(logit.is_nan() | (logit == f32::INFINITY));
                }
            }
            scratch.maxima.push(highest(chunk));
        }
        let dirty = bad.iter().any(|&lane| lane != 0);
        let logits = Self {
            row,
            allowed,
            dirty,
            divisor: 1.0,
            scratch,
        };
        let ready = if dirty || allowed.is_some() {
            0
        } else {
            full.len()
        };
        logits.scratch.maxima.truncate(ready);
        for chunk in ready..chunks {
            let highest = highest(logits.chunk(chunk, &mut [0.0; CHUNK]));
            logits.scratch.maxima.push(highest);
        }
        logits
    }

    /// A chunk after changes and mask, padded with minus infinity: a part of the row, or `buffer` if
    /// it differs from the row.
    #[inline]
    fn chunk<'b>(&'b self, index: usize, buffer: &'b mut Values) -> &'b Values {
        let start = index * CHUNK;
        let raw = &self.row[start..self.row.len().min(start + CHUNK)];
        let touched = self.scratch.touched[index / 64] >> (index % 64) & 1 == 1;
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
            let changed = &self.scratch.changed;
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

    /// The highest logit, minus infinity if no token may be drawn.
    fn highest(&self) -> f32 {
        self.scratch
            .maxima
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max)
    }

    /// The most likely token, the lowest id among equals.
    pub fn best(&self) -> Option<Candidate> {
        let highest = self.highest();
        if highest == f32::NEG_INFINITY {
            return None;
        }
        let index = self.scratch.maxima.iter().position(|&max| max == highest)?;
        let mut buffer = [0.0; CHUNK];
        let offset = self
            .chunk(index, &mut buffer)
            .iter()
            .position(|&logit| logit == highest)?;
        Some(self.candidate(index, offset, highest))
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

    /// Gives each of `tokens`, which has none twice, the logit that `to` returns for its present one.
    /// Skips tokens outside the vocabulary.
    pub fn change(&mut self, tokens: &[Token], mut to: impl FnMut(Token, f32) -> f32) {
        let known = self.scratch.changed.len();
        for &token in tokens {
            let Some(&logit) = self.row.get(token as usize) else {
                continue;
            };
            let old =
                self.scratch.changed[..known].binary_search_by_key(&token, |(token, _)| *token);
            let before = old.map_or(logit, |at| self.scratch.changed[at].1);
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
                Ok(at) => self.scratch.changed[at].1 = after,
                Err(_) => self.scratch.changed.push((token, after)),
            }
            let chunk = token as usize / CHUNK;
            self.scratch.touched[chunk / 64] |= 1 << (chunk % 64);
        }
        self.scratch
            .changed
            .sort_unstable_by_key(|(token, _)| *token);
        let mut done = None;
        for index in 0..self.scratch.changed.len() {
            let chunk = self.scratch.changed[index].0 as usize / CHUNK;
            if done != Some(chunk) {
                let highest = highest(self.chunk(chunk, &mut [0.0; CHUNK]));
                self.scratch.maxima[chunk] = highest;
                done = Some(chunk);
            }
        }
    }

    /// The sums of the softmax; `None` if no token may be drawn.
    pub fn softmax_sums(&self) -> Option<SoftmaxSums> {
        let highest = self.highest();
        if highest == f32::NEG_INFINITY {
            return None;
        }
        let (mut total, mut weighted) = (0.0, 0.0);
        self.weights(highest, |sum, product| {
            total += f64::from(sum);
            weighted += f64::from(product);
        });
        Some(SoftmaxSums {
            highest: highest / self.divisor,
            total,
            weighted,
        })
    }

    /// Calls `take` with the sums of e^d and of d e^d of each chunk.
    fn weights(&self, highest: f32, mut take: impl FnMut(f32, f32)) {
        let factor = 1.0 / self.divisor;
        let mut buffer = [0.0; CHUNK];
        for (index, &max) in self.scratch.maxima.iter().enumerate() {
            if exp((max - highest) * factor) == 0.0 {
                take(0.0, 0.0);
                continue;
            }
            let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
            for part in self.chunk(index, &mut buffer).as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    let d = (part[lane] - highest) * factor;
                    let weight = exp(d);
                    sums[lane] += weight;
                    products[lane] += weight * bound(d);
                }
            }
            take(sums.iter().sum(), products.iter().sum());
        }
    }

    /// Calls `take` with each candidate whose logit is at least `lowest`, by rising token.
    pub fn for_each_from(&self, lowest: f32, mut take: impl FnMut(Candidate)) {
        let mut buffer = [0.0; CHUNK];
        for (index, &max) in self.scratch.maxima.iter().enumerate() {
            if max == f32::NEG_INFINITY || max / self.divisor < lowest {
                continue;
            }
            for (offset, &logit) in self.chunk(index, &mut buffer).iter().enumerate() {
                if logit > f32::NEG_INFINITY && logit / self.divisor >= lowest {
                    take(self.candidate(index, offset, logit));
                }
            }
        }
    }

    /// A logit that at least `count` tokens reach, and few more unless many are equal: the maxima of
    /// `count` chunks reach it.
    pub fn threshold(&mut self, count: usize) -> f32 {
        let RowScratch { maxima, spare, .. } = &mut *self.scratch;
        if count == 0 || count > maxima.len() {
            return f32::NEG_INFINITY;
        }
        spare.clear();
        spare.extend_from_slice(maxima);
        let (_, lowest, _) = spare.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        *lowest / self.divisor
    }

    /// The standard deviation of the finite logits.
    pub fn standard_deviation(&self) -> f64 {
        let highest = self.highest();
        if highest == f32::NEG_INFINITY {
            return 0.0;
        }
        // Around the highest logit the squares can be large beside their differences, so the first
        // pass finds the mean.
        let (count, sum, _) = self.sums_around(highest);
        let mean = (f64::from(highest) + sum / count) as f32;
        let (_, first, second) = self.sums_around(mean);
        let variance = (second / count - (first / count).powi(2)).max(0.0);
        variance.sqrt() / f64::from(self.divisor)
    }

    /// Number of finite logits, and the sums of their differences to `center` and of the squares of
    /// these.
    fn sums_around(&self, center: f32) -> (f64, f64, f64) {
        let mut buffer = [0.0; CHUNK];
        let (mut count, mut first, mut second) = (0.0, 0.0, 0.0);
        for (index, &max) in self.scratch.maxima.iter().enumerate() {
            if max == f32::NEG_INFINITY {
                continue;
            }
            let (mut counts, mut sums, mut squares) =
                ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
            for part in self.chunk(index, &mut buffer).as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    let finite = part[lane] > f32::NEG_INFINITY;
                    let d = if finite { part[lane] - center } else { 0.0 };
                    counts[lane] += if finite { 1.0 } else { 0.0 };
                    sums[lane] += d;
                    squares[lane] += d * d;
                }
            }
            count += f64::from(counts.iter().sum::<f32>());
            first += f64::from(sums.iter().sum::<f32>());
            second += f64::from(squares.iter().sum::<f32>());
        }
        (count, first, second)
    }

    /// Draws by the softmax; `point` is uniform in [0, 1). `None` if no token may be drawn.
    pub fn draw(&mut self, point: f64) -> Option<Token> {
        let highest = self.highest();
        if highest == f32::NEG_INFINITY {
            return None;
        }
        let mut spare = std::mem::take(&mut self.scratch.spare);
        spare.clear();
        self.weights(highest, |sum, _| spare.push(sum));
        let total: f64 = spare.iter().copied().map(f64::from).sum();
        let mut rest = point * total;
        let mut chosen = None;
        for (index, &weight) in spare.iter().enumerate() {
            if weight > 0.0 {
                chosen = Some((index, rest));
                if rest < f64::from(weight) {
                    break;
                }
                rest -= f64::from(weight);
            }
        }
        self.scratch.spare = spare;
        let (index, mut rest) = chosen?;
        let mut buffer = [0.0; CHUNK];
        let factor = 1.0 / self.divisor;
        let mut last = None;
        for (offset, &logit) in self.chunk(index, &mut buffer).iter().enumerate() {
            let weight = f64::from(exp((logit - highest) * factor));
            if weight > 0.0 {
                // Rounding can leave a remainder behind the last token.
                last = Some((index * CHUNK + offset) as Token);
                rest -= weight;
                if rest < 0.0 {
                    break;
                }
            }
        }
        last
    }
}

/// The highest value; ignores NaN.
#[inline(always)]
fn highest(values: &Values) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for part in values.as_chunks::<LANES>().0 {
        for (highest, &value) in lanes.iter_mut().zip(part) {
            *highest = if value > *highest { value } else { *highest };
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
