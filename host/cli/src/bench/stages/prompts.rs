//! Prompts of exactly so many tokens, as text and as tokens. They mean nothing, and no two begin alike, so
//! nothing of one is there already when the next is read.

use crate::complaint::Complaint;
use corral_engine::{Engine, Error, Token};

/// What the texts consist of.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Texts that are tried for a prompt.
const ATTEMPTS: usize = 1000;

/// A prompt.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// What plugins make of the text: the token that begins one comes first, where the model wants that.
    pub(super) tokens: Vec<Token>,
}

/// Prompts for so many requests, of `length` tokens each.
pub(super) fn prompts(
    engine: &Engine,
    requests: usize,
    length: usize,
) -> Result<Vec<Prompt>, Complaint> {
    let tokenize = |text: &str| -> Result<Vec<Token>, Error> {
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

/// The prompt of this number: letters are added, or taken away again, until there are as many tokens.
fn prompt(
    number: usize,
    length: usize,
    tokenize: impl Fn(&str) -> Result<Vec<Token>, Error>,
) -> Result<Prompt, Complaint> {
    let mut letters = letters(number);
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        let tokens = tokenize(&text)?;
        if tokens.len() == length {
            return Ok(Prompt { text, tokens });
        }
        match length.checked_sub(tokens.len()) {
            // A letter is a token at most, as a rule.
            Some(missing) => text.extend(letters.by_ref().take(missing)),
            None => {
                text.pop();
            }
        }
    }
    Err(Complaint::Failed(
        format!(
            "no text of exactly {length} tokens was found for this model; give --prompt another number"
        )
        .into(),
    ))
}

/// First the number, then letters that follow from it.
fn letters(number: usize) -> impl Iterator<Item = char> {
    let (mut rest, count) = (number, LETTERS.len());
    let mut place = 0;
    std::iter::from_fn(move || {
        let letter = rest % count;
        place += 1;
        rest = match place {
            1 | 2 => rest / count,
            _ => rest.wrapping_mul(31).wrapping_add(number + place * 7),
        };
        LETTERS.get(letter).map(|letter| char::from(*letter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two letters are a token.
    fn pairs(text: &str) -> Result<Vec<Token>, Error> {
        Ok(text
            .as_bytes()
            .chunks(2)
            .map(|pair| pair[0].into())
            .collect())
    }

    #[test]
    fn prompts_have_as_many_tokens_as_was_asked_and_begin_each_in_its_own_way() {
        let mut begun = std::collections::HashSet::new();
        for number in 0..500 {
            let prompt = prompt(number, 9, pairs).expect("it can be made");
            assert_eq!(prompt.tokens.len(), 9);
            assert_eq!(pairs(&prompt.text).expect("tokens"), prompt.tokens);
            assert!(begun.insert(prompt.text[..2].to_owned()), "{}", prompt.text);
        }
    }

    #[test]
    fn a_length_that_no_text_has_is_told() {
        let never = |_: &str| Ok(vec![1, 2]);
        let Err(Complaint::Failed(error)) = prompt(0, 3, never) else {
            panic!("there are two tokens always");
        };
        assert!(error.to_string().contains("3 tokens"), "{error}");
    }
}
