//! From a vector for each token to what was asked for.
//!
//! Pooling happens here and not in llama.cpp, so that one context serves every pooling and the
//! chunks of a long input add up. Only [`Pooling::Rank`] needs the model's own layers.

/// How the vectors of an input's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The first token's vector ("cls"), which models like BERT are trained to speak through.
    Cls,
    /// The last token's vector, the only one that has seen all of the input where attention is
    /// causal.
    Last,
    /// Every token's vector ("none").
    Tokens,
    /// The scores of a reranker's head, one for each of its classes, in place of a vector.
    Rank,
}

impl Pooling {
    /// What the number in a GGUF file's `pooling_type` means; `None` for any other.
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

    /// Whether there is one vector for an input.
    pub fn is_pooled(self) -> bool {
        matches!(self, Self::Mean | Self::Cls | Self::Last)
    }

    /// Numbers that the answer for an input has.
    pub fn numbers(self, tokens: usize, width: usize) -> usize {
        match self {
            Self::Tokens => tokens.saturating_mul(width),
            _ => width,
        }
    }
}

/// What is known so far of an input's answer. Holds no more numbers than the answer has.
#[derive(Debug)]
pub struct Pool {
    pooling: Pooling,
    width: usize,
    /// Of [`Pooling::Mean`]: in f64, so that the order of a long sum does not show.
    sum: Vec<f64>,
    numbers: Vec<f32>,
    tokens: usize,
}

impl Pool {
    /// For an input of `tokens` tokens and vectors of `width` numbers.
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

    /// Whether it takes scores in place of vectors.
    pub fn is_rank(&self) -> bool {
        self.pooling == Pooling::Rank
    }

    /// Takes in the next token's vector; of [`Pooling::Rank`], the scores so far.
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

    /// Forgets what it took in.
    pub fn restart(&mut self) {
        self.sum.fill(0.0);
        self.numbers.clear();
        self.tokens = 0;
    }

    /// The answer: one vector, or one for each token, one after another. With `normalize` each has
    /// the length 1. `None` if a number is none (the model's computation overflowed).
    pub fn finish(self, normalize: bool) -> Option<Vec<f32>> {
        let mut numbers = self.numbers;
        if self.pooling == Pooling::Mean {
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tokens")]
            let count = self.tokens.max(1) as f64;
            #[expect(clippy::cast_possible_truncation, reason = "to the answer's precision")]
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
            #[expect(
                clippy::cast_possible_truncation,
                reason = "back to where it came from"
            )]
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
        let mut pool = Pool::new(pooling, 2, VECTORS.len());
        // What was taken in before a restart leaves no trace.
        pool.add(&[100.0, 100.0]);
        pool.restart();
        VECTORS.iter().for_each(|vector| pool.add(vector));
        pool.finish(normalize).expect("all numbers are finite")
    }

    #[test]
    fn each_pooling_takes_what_its_name_says() {
        assert_eq!(pooled(Pooling::Mean, false), [3.0, 2.0]);
        assert_eq!(pooled(Pooling::Cls, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Last, false), [6.0, 4.0]);
        assert_eq!(pooled(Pooling::Rank, false), [6.0, 4.0]);
        assert_eq!(pooled(Pooling::Tokens, false), VECTORS.concat());
    }

    #[test]
    fn a_normalised_vector_has_length_one_and_each_token_has_its_own() {
        assert_eq!(pooled(Pooling::Cls, true), [0.6, 0.8]);
        let tokens = pooled(Pooling::Tokens, true);
        assert_eq!(tokens[..4], [0.6, 0.8, 0.0, -1.0]);
        let length = tokens[4].hypot(tokens[5]);
        assert!((length - 1.0).abs() < 1e-6, "{length}");
    }

    #[test]
    fn zeros_stay_and_overflow_is_noticed() {
        let mut pool = Pool::new(Pooling::Last, 2, 1);
        pool.add(&[0.0, 0.0]);
        assert_eq!(pool.finish(true), Some(vec![0.0, 0.0]));
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Tokens] {
            let mut pool = Pool::new(pooling, 2, 1);
            pool.add(&[1.0, f32::NAN]);
            assert_eq!(pool.finish(false), None, "{pooling:?}");
        }
    }

    #[test]
    fn large_numbers_are_normalised_too() {
        let mut pool = Pool::new(Pooling::Last, 2, 1);
        pool.add(&[3e30, 4e30]);
        let unit = pool.finish(true).expect("all numbers are finite");
        assert!((unit[0] - 0.6).abs() < 1e-6 && (unit[1] - 0.8).abs() < 1e-6);
    }
}
