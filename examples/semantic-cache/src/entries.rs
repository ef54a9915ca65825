//! The cache's entries, and their form as tokens: a sequence that is never computed holds any numbers below the size of
//! the vocabulary, which is at least 256.

use corral_sdk::Token;

/// Entries in the order of their questions.
#[derive(Default)]
pub struct Entries(Vec<Entry>);

/// The embedding of a question, in steps of its largest component, and the answer.
pub struct Entry {
    pub vector: Vec<f32>,
    pub answer: Vec<Token>,
}

/// The steps of a component on each side of 0.
const STEPS: f32 = 127.0;
/// Tokens before the vector: the answer's length as two digits of this base.
const HEAD: usize = 2;
const BASE: usize = 256;

impl Entries {
    /// Reads entries whose vectors have this length. Stops at what is no entry.
    pub fn from_tokens(tokens: Vec<Token>, dimensions: usize) -> Self {
        let mut entries = Vec::new();
        let mut rest = tokens.as_slice();
        while let Some((&[high, low], after)) = rest.split_first_chunk::<HEAD>() {
            let length = high as usize * BASE + low as usize;
            let Some((vector, after)) = after.split_at_checked(dimensions) else {
                break;
            };
            let Some((answer, after)) = after.split_at_checked(length) else {
                break;
            };
            entries.push(Entry {
                vector: vector.iter().map(|&step| step as f32 - STEPS).collect(),
                answer: answer.to_vec(),
            });
            rest = after;
        }
        Entries(entries)
    }

    /// Writes the newest entries that take at most `most` tokens.
    pub fn to_tokens(&self, most: u32) -> Vec<Token> {
        let size = |entry: &Entry| HEAD + entry.vector.len() + entry.answer.len();
        let mut total = 0;
        let newest = self.0.iter().rev();
        let fitting = newest.take_while(|entry| {
            total += size(entry);
            total <= most as usize
        });
        let first = self.0.len() - fitting.count();
        let mut tokens = Vec::new();
        for entry in &self.0[first..] {
            let length = entry.answer.len();
            tokens.extend([length / BASE, length % BASE].map(|digit| digit as Token));
            tokens.extend(entry.vector.iter().map(|step| (step + STEPS) as Token));
            tokens.extend(&entry.answer);
        }
        tokens
    }

    pub fn push(&mut self, vector: &[f32], answer: Vec<Token>) {
        let largest = vector
            .iter()
            .fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
        let steps = vector.iter().map(|value| (value / largest * STEPS).round());
        self.0.push(Entry {
            vector: steps.collect(),
            answer,
        });
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }
}

/// The cosine of the angle between two vectors; 0 if one has no length.
pub fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let product =
        |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    let lengths = (product(one, one) * product(other, other)).sqrt();
    if lengths > 0.0 {
        product(one, other) / lengths
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_as_tokens() {
        let mut entries = Entries::default();
        entries.push(&[0.5, -1.0, 0.25], vec![7; 300]);
        entries.push(&[0.0, 0.0, 0.0], vec![]);
        let tokens = entries.to_tokens(4096);
        assert!(tokens.iter().all(|&token| token < 256));
        let read = Entries::from_tokens(tokens.clone(), 3);
        let read: Vec<_> = read.iter().collect();
        assert!(cosine(&read[0].vector, &[0.5, -1.0, 0.25]) > 0.9999);
        assert_eq!((read[0].answer.len(), read.len()), (300, 2));
        assert_eq!(cosine(&read[1].vector, &[1.0, 0.0, 0.0]), 0.0);
        // The older entry does not fit.
        assert_eq!(entries.to_tokens(304), tokens[305..]);
        assert_eq!(
            Entries::from_tokens(tokens[..4].to_vec(), 3).iter().count(),
            0
        );
    }
}
