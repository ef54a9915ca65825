//! How likely tokens were, token by token beside the text that they became.
//!
//! The host tells a token as soon as it has it, and its text when that can't be the beginning of a stop
//! string any more. Here a token waits until its text is told, so what became of a stop string is never
//! told, and the token that ended the text only to whoever asks for it.

use std::borrow::Cow;
use std::collections::VecDeque;

use corral_sdk::{Error, Finish, Model, Token as Number, TokenLogprobs};

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub bytes: Vec<u8>,
    /// Nothing for the first token of a prompt, which comes after none.
    pub logprob: Option<f32>,
}

/// A token of a text, and the likeliest ones in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Likely {
    pub token: Token,
    /// Falling.
    pub top: Vec<Token>,
    /// Characters of the text that come before it.
    pub offset: usize,
}

impl Token {
    /// A token of the model's. Of one without text it is the name.
    pub fn of(model: &Model, number: Number, logprob: Option<f32>) -> Result<Self, Error> {
        let mut bytes = model.bytes(&[number])?;
        if bytes.is_empty() {
            bytes = model.detokenize_with_control(&[number])?.into_bytes();
        }
        Ok(Token { bytes, logprob })
    }

    /// Its text; U+FFFD stands for what is a part of a character.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// The logarithm as it is written: as short as it can be without being another `f32`. JSON has no
    /// minus infinity; OpenAI's API writes -9999 for what is as good as impossible.
    pub fn logarithm(&self) -> Option<f64> {
        let value = self.logprob?.to_string().parse();
        Some(value.unwrap_or(f64::NEG_INFINITY).max(-9999.0))
    }
}

/// Characters that begin in these bytes: all of them but those that go on with one.
pub fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&byte| byte & 0xc0 != 0x80).count()
}

/// The tokens of one text that wait for it.
#[derive(Default)]
pub struct Waiting {
    /// With the byte of the text that each begins at.
    tokens: VecDeque<(usize, Number, Likely)>,
    /// Bytes and characters of all tokens so far.
    bytes: usize,
    characters: usize,
    /// Bytes of the text so far.
    told: usize,
    /// Whether the token that ends the text is told too.
    ends: bool,
}

impl Waiting {
    /// The same with the token that ends the text, under its name and where the text ends. Whoever reads
    /// how likely a prompt was counts on an entry for each token that came after it.
    pub fn with_end() -> Self {
        Waiting {
            ends: true,
            ..Waiting::default()
        }
    }

    /// Takes a piece of the generation, and gives the tokens whose text has been told by now.
    pub fn piece(
        &mut self,
        model: &Model,
        tokens: &[Number],
        logprobs: Vec<TokenLogprobs>,
        text: &str,
    ) -> Result<Vec<Likely>, Error> {
        for (&number, told) in tokens.iter().zip(logprobs) {
            let top = told.top.into_iter();
            let likely = Likely {
                token: Token::of(model, number, Some(told.logprob))?,
                top: top
                    .map(|(number, logprob)| Token::of(model, number, Some(logprob)))
                    .collect::<Result<_, Error>>()?,
                offset: self.characters,
            };
            self.tokens.push_back((self.bytes, number, likely));
            let bytes = model.bytes(&[number])?;
            self.bytes += bytes.len();
            self.characters += characters(&bytes);
        }
        self.told += text.len();
        let ready = self.tokens.iter().take_while(|(at, ..)| *at < self.told);
        let ready = ready.count();
        Ok(self
            .tokens
            .drain(..ready)
            .map(|(.., likely)| likely)
            .collect())
    }

    /// What is left to tell at the end.
    pub fn rest(&mut self, model: &Model, finish: Finish) -> Vec<Likely> {
        let mut rest: Vec<_> = self.tokens.drain(..).collect();
        match finish {
            Finish::Stop => rest.clear(),
            Finish::End if !self.ends => rest.retain(|(_, number, _)| !model.ends(*number)),
            Finish::End | Finish::Length => {}
        }
        rest.into_iter().map(|(.., likely)| likely).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use corral_sdk::{Generate, Generation};

    fn told(answer: &str, how: impl FnOnce() -> Generate) -> Vec<(String, usize)> {
        told_by(Waiting::default(), answer, how)
    }

    fn told_by(
        mut waiting: Waiting,
        answer: &str,
        how: impl FnOnce() -> Generate,
    ) -> Vec<(String, usize)> {
        let script = Script::new().answers("a", answer);
        let all = script.run(async {
            let model = Model::first().await?;
            let sequence = model.sequence()?;
            sequence.append("a")?;
            let mut generation: Generation = sequence.generate(&how().logprobs(1))?;
            let mut all = Vec::new();
            while let Some(chunk) = generation.next().await {
                all.extend(waiting.piece(&model, &chunk.tokens, chunk.logprobs, &chunk.text)?);
            }
            all.extend(waiting.rest(&model, generation.outcome().await?.finish));
            Ok::<_, Error>(all)
        });
        let all = all.unwrap().into_iter();
        all.map(|likely| {
            assert_eq!(likely.top[0], likely.token);
            (likely.token.text().into_owned(), likely.offset)
        })
        .collect()
    }

    fn of(tokens: &[(&str, usize)]) -> Vec<(String, usize)> {
        let tokens = tokens.iter();
        tokens.map(|(text, at)| ((*text).to_owned(), *at)).collect()
    }

    #[test]
    fn tokens_are_those_of_the_text() {
        // Neither what ends a text nor what stops it is told.
        assert_eq!(told("xy", || Generate::new(9)), of(&[("x", 0), ("y", 1)]));
        assert_eq!(told("xyz", || Generate::new(9).stop("yz")), of(&[("x", 0)]));
        assert_eq!(
            told("xyz", || Generate::new(9).stop("y!")),
            of(&[("x", 0), ("y", 1), ("z", 2)])
        );
        assert_eq!(told("xyz", || Generate::new(2)), of(&[("x", 0), ("y", 1)]));
        // The two bytes of a character are two tokens of one character.
        assert_eq!(
            told("éx", || Generate::new(9)),
            of(&[("\u{fffd}", 0), ("\u{fffd}", 1), ("x", 1)])
        );
    }

    #[test]
    fn what_ends_a_text_is_told_where_it_is_asked_for() {
        let told = |answer, how: fn() -> Generate| told_by(Waiting::with_end(), answer, how);
        let end = "<|im_end|>";
        assert_eq!(told("", || Generate::new(1)), of(&[(end, 0)]));
        assert_eq!(told("é", || Generate::new(9))[2..], of(&[(end, 1)]));
        assert_eq!(told("xy", || Generate::new(1)), of(&[("x", 0)]));
        // A stop string is no token that ends a text.
        assert_eq!(told("xyz", || Generate::new(9).stop("yz")), of(&[("x", 0)]));
    }
}
