//! Pooling: from a vector per token to the result of an input.
//!
//! This is not left to llama.cpp, so that one context serves every pooling and the chunks of a long
//! input can be combined. Only [`Pooling::Rank`] needs layers of the model.

/// How the vectors of an input's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The first token's vector ("cls"), which models like BERT are trained for.
    Cls,
    /// The last token's vector, the only one that depends on the whole input of a causal model.
    Last,
    /// Every token's vector ("none").
    Tokens,
    /// The scores of a reranker's head, one per class, instead of a vector.
    Rank,
}

impl Pooling {
    /// The pooling for `pooling_type` in a GGUF file; `None` for unknown numbers.
    pub fn from_gguf(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Tokens),
            1 => Some(Self::Mean),
            2 => Some(Self::Cls),
            3 => Some(Self::Last),
            4 => Some(Self::Rank),
            _ => None,
        }
    }

    /// Whether an input has one vector.
    pub fn is_pooled(self) -> bool {
        matches!(self, Self::Mean | Self::Cls | Self::Last)
    }

    /// Numbers in the result of an input.
    pub fn numbers(self, tokens: usize, width: usize) -> usize {
        match self {
            Self::Tokens => tokens.saturating_mul(width),
            _ => width,
        }
    }
}

/// Pools the vectors of an input. Holds no more numbers than the result.
#[derive(Debug)]
pub struct Pooler {
    pooling: Pooling,
    width: usize,
    /// For [`Pooling::Mean`]; in f64, so that the order of a long sum does not matter.
    sum: Vec<f64>,
    numbers: Vec<f32>,
    tokens: usize,
}

impl Pooler {
    /// A pooler for an input of `tokens` tokens and vectors of `width` numbers.
    pub fn new(pooling: Pooling, width: usize, tokens: usize) -> Self {
        let mean = pooling == Pooling::Mean;
        Self {
            pooling,
            width,
            sum: vec![0.0; if mean { width } else { 0 }],
            numbers: Vec::with_capacity(if mean {
                0
            } else {
                pooling.numbers(tokens, width)
            }),
            tokens: 0,
        }
    }

    /// Whether it takes scores instead of vectors.
    pub fn is_rank(&self) -> bool {
        self.pooling == Pooling::Rank
    }

    /// Adds the next token's vector; for [`Pooling::Rank`], the scores so far.
    pub fn add(&mut self, vector: &[f32]) {
        debug_assert_eq!(vector.len(), self.width, "the length of a vector");
        match self.pooling {
            Pooling::Mean => {
                for (sum, &number) in self.sum.iter_mut().zip(vector) {
                    *sum += f64::from(number);
                }
            }
            Pooling::Cls if self.tokens > 0 => {}
            Pooling::Cls | Pooling::Tokens => self.numbers.extend_from_slice(vector),
            Pooling::Last | Pooling::Rank => {
                self.numbers.clear();
                self.numbers.extend_from_slice(vector);
            }
        }
        self.tokens += 1;
    }

    /// Drops all vectors so far.
    pub fn restart(&mut self) {
        self.sum.fill(0.0);
        self.numbers.clear();
        self.tokens = 0;
    }

    /// The result: one vector, or the concatenated vectors of the tokens; with `normalize`, of length 1
    /// each. `None` if a number is not finite, since the model's computation overflowed.
    pub fn finish(self, normalize: bool) -> Option<Vec<f32>> {
        let mut numbers = self.numbers;
        if self.pooling == Pooling::Mean {
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tokens")]
            let count = self.tokens.max(1) as f64;
            #[expect(clippy::cast_possible_truncation, reason = "the result's precision")]
            let mean = |sum: &f64| (sum / count) as f32;
            numbers = self.sum.iter().map(mean).collect();
        }
        if normalize && self.width > 0 {
            numbers.chunks_mut(self.width).for_each(to_unit_length);
        }
        numbers.iter().all(|x| x.is_finite()).then_some(numbers)
    }
}

/// Divides a vector by its Euclidean length. A vector of zeros has no direction and stays.
fn to_unit_length(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let length = square.sqrt();
    if length > 0.0 {
        for number in vector {
            #[expect(clippy::cast_possible_truncation, reason = "the input's precision")]
            let scaled = (f64::from(*number) / length) as f32;
            *number = scaled;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTORS: [[f32; 2]; 3] = [[3.0, 4.0], [0.0, -2.0], [6.0, 4.0]];

    fn pooled(pooling: Pooling, normalize: bool) -> Vec<f32> {
        let mut pooler = Pooler::new(pooling, 2, VECTORS.len());
        // Vectors before a restart have no effect.
        pooler.add(&[100.0, 100.0]);
        pooler.restart();
        VECTORS.iter().for_each(|vector| pooler.add(vector));
        pooler.finish(normalize).expect("all numbers are finite")
    }

    #[test]
    fn each_pooling_gives_expected_numbers() {
        assert_eq!(pooled(Pooling::Mean, false), [3.0, 2.0]);
        assert_eq!(pooled(Pooling::Cls, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Last, false), [6.0, 4.0]);
        assert_eq!(pooled(Pooling::Rank, false), [6.0, 4.0]);
        assert_eq!(pooled(Pooling::Tokens, false), VECTORS.concat());
    }

    #[test]
    fn zeros_stay_and_overflow_gives_none() {
        let mut pooler = Pooler::new(Pooling::Last, 2, 1);
        pooler.add(&[0.0, 0.0]);
        assert_eq!(pooler.finish(true), Some(vec![0.0, 0.0]));
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Tokens] {
            let mut pooler = Pooler::new(pooling, 2, 1);
            pooler.add(&[1.0, f32::NAN]);
            assert_eq!(pooler.finish(false), None, "{pooling:?}");
        }
    }

    #[test]
    fn large_numbers_are_normalized() {
        let mut pooler = Pooler::new(Pooling::Last, 2, 1);
        pooler.add(&[3e30, 4e30]);
        let unit = pooler.finish(true).expect("all numbers are finite");
        assert!((unit[0] - 0.6).abs() < 1e-6 && (unit[1] - 0.8).abs() < 1e-6);
    }
}
