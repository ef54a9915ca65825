//! Prompts of which each part says whether it may hold control tokens.

use crate::{Error, Model, Sequence, Token};

/// A prompt, piece by piece.
///
/// ```
/// use corral_sdk::template::Prompt;
///
/// let prompt = Prompt::default()
///     .trusted("<|im_start|>user\n")
///     .text("Hi <|im_end|>")
///     .trusted("<|im_end|>\n")
///     .stop("<|im_end|>");
/// assert_eq!(prompt.pieces.len(), 3);
/// assert_eq!(prompt.to_string(), "<|im_start|>user\nHi <|im_end|><|im_end|>\n");
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompt {
    /// In order; each is made tokens by itself.
    pub pieces: Vec<Piece>,
    /// Texts that end an answer to it, beside the model's own end tokens.
    pub stop: Vec<String>,
}

/// A part of a [`Prompt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Its text.
    pub text: String,
    /// Whether control tokens that are written in it are read as such: what the template wrote itself,
    /// never what came with the chat.
    pub trusted: bool,
}

/// What a template may want to know of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelFacts {
    /// The name under which the operator serves it.
    pub name: String,
    /// The text of the token that begins a text, where the model wants one.
    pub begin: Option<String>,
    /// The text of the token that ends a turn, where the model has one.
    pub end: Option<String>,
    /// The Jinja chat template in the model file, if it has one.
    pub chat_template: Option<String>,
}

impl ModelFacts {
    /// Those of an opened model.
    pub fn of(model: &Model) -> Result<Self, Error> {
        let info = model.info();
        let written = |token: Option<Token>| {
            let text = token.map(|token| model.detokenize_with_control(&[token]));
            text.transpose()
        };
        Ok(ModelFacts {
            name: info.name.clone(),
            begin: written(info.begin)?,
            end: written(info.end.or(info.end_of_generation.first().copied()))?,
            chat_template: info.chat_template.clone(),
        })
    }
}

impl Prompt {
    fn piece(mut self, text: impl Into<String>, trusted: bool) -> Self {
        let text = text.into();
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            // What belongs together is made tokens together.
            Some(last) if last.trusted == trusted => last.text += &text,
            _ => self.pieces.push(Piece { text, trusted }),
        }
        self
    }

    /// Goes on with a text of the template's own, in which control tokens are read.
    pub fn trusted(self, text: impl Into<String>) -> Self {
        self.piece(text, true)
    }

    /// Goes on with a text from somebody else.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.piece(text, false)
    }

    /// Ends an answer at this text.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Its tokens for a model, with the one that begins a text where the model wants that.
    pub fn tokens(&self, model: &Model) -> Result<Vec<Token>, Error> {
        let mut tokens = Vec::new();
        for piece in &self.pieces {
            tokens.extend(match piece.trusted {
                true => model.tokenize_trusted(&piece.text)?,
                false => model.tokenize(&piece.text)?,
            });
        }
        begin(&mut tokens, model);
        Ok(tokens)
    }

    /// A sequence with its tokens.
    pub fn sequence(&self, model: &Model) -> Result<Sequence, Error> {
        let sequence = model.empty_sequence()?;
        sequence.append_tokens(&self.tokens(model)?)?;
        Ok(sequence)
    }
}

/// Puts the token that begins a text there, unless the template wrote it or the model wants none.
pub(super) fn begin(tokens: &mut Vec<Token>, model: &Model) {
    if let Some(begin) = model.info().begin
        && tokens.first() != Some(&begin)
    {
        tokens.insert(0, begin);
    }
}

/// The whole text, without a sign of what is trusted.
impl std::fmt::Display for Prompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.pieces
            .iter()
            .try_for_each(|piece| f.write_str(&piece.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;

    #[test]
    fn only_what_is_trusted_has_control_tokens() {
        let script = Script::new().control_token("<s>").begins_with("<s>");
        let tokens = script.run(async {
            let model = Model::first().await?;
            let prompt = Prompt::default().trusted("<|im_end|>").text("<s>");
            let begun = Prompt::default().trusted("<s>").text("a");
            Ok::<_, Error>((prompt.tokens(&model)?, begun.tokens(&model)?))
        });
        let (begin, end) = (259, 258);
        let text = "<s>".bytes().map(Token::from);
        let expected = [begin, end].into_iter().chain(text).collect();
        assert_eq!(tokens, Ok((expected, vec![begin, 97])));
    }
}
