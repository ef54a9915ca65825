//! Log probabilities of tokens, aligned with the text.
//!
//! The host returns a token immediately, but its text only when it can't be a prefix of a stop
//! string. Here the entry of a token waits for its text, so tokens of a stop string are never
//! reported. The end-of-generation token is reported only on request.

use std::borrow::Cow;
use std::collections::VecDeque;

use corral_sdk::{Error, Finish, Model, Token, TokenLogprobs};

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    pub id: Token,
    pub bytes: Vec<u8>,
    /// `None` for the first token of a prompt.
    pub logprob: Option<f32>,
}

/// A token of a text and the most likely tokens at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobEntry {
    pub token: TokenLogprob,
    /// In descending order.
    pub top: Vec<TokenLogprob>,
    /// Number of characters of the text before the token.
    pub offset: usize,
}

impl TokenLogprob {
    /// Creates an entry for a token of the model. A token without text gets its name.
    pub fn new(model: &Model, token: Token, logprob: Option<f32>) -> Result<Self, Error> {
        let mut bytes = model.detokenize_bytes(&[token])?;
        if bytes.is_empty() {
            bytes = model.detokenize_with_control(&[token])?.into_bytes();
        }
        Ok(TokenLogprob {
            id: token,
            bytes,
            logprob,
        })
    }

    /// The text; U+FFFD for a part of a character.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// The logprob for JSON, as the shortest number that reads back as the same `f32`. JSON has no
    /// infinity; OpenAI's API uses -9999 for impossible tokens.
    pub fn json_logprob(&self) -> Option<f64> {
        let value = self.logprob?.to_string().parse();
        Some(value.unwrap_or(f64::NEG_INFINITY).max(-9999.0))
    }
}

/// Number of characters that begin in these bytes: all bytes but continuation bytes.
pub fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&byte| byte & 0xc0 != 0x80).count()
}

/// Entries of one choice that wait for their text.
#[derive(Default)]
pub struct PendingLogprobs {
    /// Each with its token and the byte offset of its text.
    tokens: VecDeque<(usize, Token, LogprobEntry)>,
    /// Bytes and characters of all tokens so far.
    bytes: usize,
    characters: usize,
    /// Bytes of the text so far.
    text_bytes: usize,
    /// Whether to report the end-of-generation token.
    with_end: bool,
}

impl PendingLogprobs {
    /// Also reports the end-of-generation token, by name and at the end of the text. Evaluation
    /// tools expect an entry for each token after a prompt with logprobs.
    pub fn with_end() -> Self {
        PendingLogprobs {
            with_end: true,
            ..PendingLogprobs::default()
        }
    }

    /// Adds a chunk and returns the entries whose text is complete.
    pub fn add(
        &mut self,
        model: &Model,
        tokens: &[Token],
        logprobs: Vec<TokenLogprobs>,
        text: &str,
    ) -> Result<Vec<LogprobEntry>, Error> {
        for (&token, logprobs) in tokens.iter().zip(logprobs) {
            let top = logprobs.top.into_iter();
            let entry = LogprobEntry {
                token: TokenLogprob::new(model, token, Some(logprobs.logprob))?,
                top: top
                    .map(|(token, logprob)| TokenLogprob::new(model, token, Some(logprob)))
                    .collect::<Result<_, Error>>()?,
                offset: self.characters,
            };
            self.tokens.push_back((self.bytes, token, entry));
            let bytes = model.detokenize_bytes(&[token])?;
            self.bytes += bytes.len();
            self.characters += characters(&bytes);
        }
        self.text_bytes += text.len();
        let ready = self
            .tokens
            .iter()
            .take_while(|(at, ..)| *at < self.text_bytes);
        let ready = ready.count();
        Ok(self
            .tokens
            .drain(..ready)
            .map(|(.., entry)| entry)
            .collect())
    }

    /// Returns the remaining entries at the end.
    pub fn rest(&mut self, model: &Model, finish: Finish) -> Vec<LogprobEntry> {
        let mut rest: Vec<_> = self.tokens.drain(..).collect();
        match finish {
            Finish::Stop => rest.clear(),
            Finish::End if !self.with_end => {
                rest.retain(|(_, token, _)| !model.is_end_of_generation(*token))
            }
            Finish::End | Finish::Length => {}
        }
        rest.into_iter().map(|(.., entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use corral_sdk::{GenerateOptions, Generation};

    fn entries(answer: &str, options: impl FnOnce() -> GenerateOptions) -> Vec<(String, usize)> {
        entries_with(PendingLogprobs::default(), answer, options)
    }

    fn entries_with(
        mut pending: PendingLogprobs,
        answer: &str,
        options: impl FnOnce() -> GenerateOptions,
    ) -> Vec<(String, usize)> {
        let script = Script::new().answers("a", answer);
        let all = script.run(async {
            let model = Model::open_default().await?;
            let sequence = model.sequence()?;
            sequence.append("a")?;
            let mut generation: Generation = sequence.generate(&options().logprobs(1))?;
            let mut all = Vec::new();
            while let Some(chunk) = generation.next().await {
                all.extend(pending.add(&model, &chunk.tokens, chunk.logprobs, &chunk.text)?);
            }
            all.extend(pending.rest(&model, generation.outcome().await?.finish));
            Ok::<_, Error>(all)
        });
        let all = all.unwrap().into_iter();
        all.map(|entry| {
            assert_eq!(entry.top[0], entry.token);
            (entry.token.text().into_owned(), entry.offset)
        })
        .collect()
    }

    fn expected(tokens: &[(&str, usize)]) -> Vec<(String, usize)> {
        let tokens = tokens.iter();
        tokens.map(|(text, at)| ((*text).to_owned(), *at)).collect()
    }

    #[test]
    fn entries_match_the_text() {
        // The tokens that end or stop a text have no entries.
        let found = entries("xy", || GenerateOptions::new(9));
        assert_eq!(found, expected(&[("x", 0), ("y", 1)]));
        let found = entries("xyz", || GenerateOptions::new(9).stop("yz"));
        assert_eq!(found, expected(&[("x", 0)]));
        let found = entries("xyz", || GenerateOptions::new(9).stop("y!"));
        assert_eq!(found, expected(&[("x", 0), ("y", 1), ("z", 2)]));
        let found = entries("xyz", || GenerateOptions::new(2));
        assert_eq!(found, expected(&[("x", 0), ("y", 1)]));
        // The two bytes of one character are two tokens.
        assert_eq!(
            entries("éx", || GenerateOptions::new(9)),
            expected(&[("\u{fffd}", 0), ("\u{fffd}", 1), ("x", 1)])
        );
    }

    #[test]
    fn end_token_is_reported_on_request() {
        let entries = |answer, options: fn() -> GenerateOptions| {
            entries_with(PendingLogprobs::with_end(), answer, options)
        };
        let end = "<|im_end|>";
        let found = entries("", || GenerateOptions::new(1));
        assert_eq!(found, expected(&[(end, 0)]));
        assert_eq!(
            entries("é", || GenerateOptions::new(9))[2..],
            expected(&[(end, 1)])
        );
        let found = entries("xy", || GenerateOptions::new(1));
        assert_eq!(found, expected(&[("x", 0)]));
        // A stop string is not an end-of-generation token.
        let found = entries("xyz", || GenerateOptions::new(9).stop("yz"));
        assert_eq!(found, expected(&[("x", 0)]));
    }
}
