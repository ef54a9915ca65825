//! Prompts of an exact number of tokens, as text and as tokens. They share no prefix, so none is cached for another.

use corral_cli::Error;
use corral_engine::{Engine, Token};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Texts to try for a prompt.
const ATTEMPTS: usize = 1000;

#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// The tokens of the text, after the begin token if the model has one, as plugins encode it.
    pub(super) tokens: Vec<Token>,
}

/// Prompts for `requests` requests, of `length` tokens each.
pub(super) fn prompts(
    engine: &Engine,
    requests: usize,
    length: usize,
) -> Result<Vec<Prompt>, Error> {
    let tokenize = |text: &str| -> Result<Vec<Token>, corral_engine::Error> {
        let mut tokens = engine.tokenize(text, true)?;
        if let Some(begin) = engine.info().begin
            && tokens.first() != Some(&begin)
        {
            tokens.insert(0, begin);
        }
        Ok(tokens)
    };
    (0..requests)
        .map(|number| prompt(number, length, tokenize))
        .collect()
}

/// The prompt with this number: adds and removes letters until the length fits.
fn prompt(
    number: usize,
    length: usize,
    tokenize: impl Fn(&str) -> Result<Vec<Token>, corral_engine::Error>,
) -> Result<Prompt, Error> {
    let mut letters = letters(number);
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        let tokens = tokenize(&text)?;
        if tokens.len() == length {
            return Ok(Prompt { text, tokens });
        }
        match length.checked_sub(tokens.len()) {
            // A letter usually adds at most one token.
            Some(missing) => text.extend(letters.by_ref().take(missing)),
            None => {
                text.pop();
            }
        }
    }
    Err(Error::Failed(
        format!(
            "cannot build a text of exactly {length} tokens for this model; change --prompt-tokens"
        )
        .into(),
    ))
}

/// Letters that encode the number, then random ones.
fn letters(number: usize) -> impl Iterator<Item = char> {
    let count = LETTERS.len();
    let mut rng = ChaCha8Rng::seed_from_u64(number as u64);
    let random = std::iter::repeat_with(move || rng.random_range(0..count));
    let indexes = [number % count, number / count % count]
        .into_iter()
        .chain(random);
    indexes.filter_map(|index| LETTERS.get(index).copied().map(char::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes two letters as a token.
    fn pairs(text: &str) -> Result<Vec<Token>, corral_engine::Error> {
        Ok(text
            .as_bytes()
            .chunks(2)
            .map(|pair| pair[0].into())
            .collect())
    }

    #[test]
    fn prompts_have_exact_length_and_distinct_prefixes() {
        let mut prefixes = std::collections::HashSet::new();
        for number in 0..500 {
            let prompt = prompt(number, 9, pairs).expect("a prompt");
            assert_eq!(prompt.tokens.len(), 9);
            assert_eq!(pairs(&prompt.text).expect("tokens"), prompt.tokens);
            assert!(
                prefixes.insert(prompt.text[..2].to_owned()),
                "{}",
                prompt.text
            );
        }
    }

    #[test]
    fn impossible_length_is_an_error() {
        let never = |_: &str| Ok(vec![1, 2]);
        let error = prompt(0, 3, never).expect_err("always two tokens");
        let message = error.message(false);
        assert!(message.contains("3 tokens"), "{message}");
    }
}
