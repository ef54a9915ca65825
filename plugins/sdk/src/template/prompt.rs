//! Prompts that mark which parts may hold control tokens.

use crate::{Error, Model, Sequence, Token};

/// A prompt in pieces.
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
    /// The pieces in order, each tokenized separately.
    pub pieces: Vec<Piece>,
    /// Stop strings for the answer, in addition to the model's end-of-generation tokens.
    pub stop: Vec<String>,
}

/// A part of a [`Prompt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// Whether control tokens in the text are read as tokens. True only for the template's own
    /// text, never for text from the chat.
    pub trusted: bool,
}

/// Model metadata for a template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelFacts {
    /// The name under which the operator serves the model.
    pub name: String,
    /// The text of the beginning-of-sequence token, if the model expects one.
    pub bos: Option<String>,
    /// The text of the end-of-turn token, if the model has one.
    pub eos: Option<String>,
    /// The Jinja chat template in the model file, if it has one.
    pub chat_template: Option<String>,
}

impl ModelFacts {
    /// Reads the metadata of an opened model.
    pub fn new(model: &Model) -> Result<Self, Error> {
        let info = model.info();
        let token_text = |token: Option<Token>| {
            let text = token.map(|token| model.detokenize_with_control(&[token]));
            text.transpose()
        };
        Ok(ModelFacts {
            name: info.name.clone(),
            bos: token_text(info.bos)?,
            eos: token_text(info.eos.or(info.end_of_generation.first().copied()))?,
            chat_template: info.chat_template.clone(),
        })
    }
}

impl Prompt {
    fn piece(mut self, text: impl Into<String>, trusted: bool) -> Self {
        let text = text.into();
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            // Adjacent text of one kind is tokenized together.
            Some(last) if last.trusted == trusted => last.text += &text,
            _ => self.pieces.push(Piece { text, trusted }),
        }
        self
    }

    /// Appends the template's own text, in which control tokens are read.
    pub fn trusted(self, text: impl Into<String>) -> Self {
        self.piece(text, true)
    }

    /// Appends untrusted text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.piece(text, false)
    }

    /// Adds a stop string.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Tokenizes the prompt, with the beginning-of-sequence token if the model expects one.
    pub fn tokens(&self, model: &Model) -> Result<Vec<Token>, Error> {
        let mut tokens = self.own_tokens(model)?;
        model.add_begin_token(&mut tokens);
        Ok(tokens)
    }

    /// The tokens of the pieces.
    fn own_tokens(&self, model: &Model) -> Result<Vec<Token>, Error> {
        let mut tokens = Vec::new();
        for piece in &self.pieces {
            tokens.extend(match piece.trusted {
                true => model.tokenize_trusted(&piece.text)?,
                false => model.tokenize(&piece.text)?,
            });
        }
        Ok(tokens)
    }

    /// Appends the prompt to a sequence, without a beginning-of-sequence token: for the next turn of
    /// a chat, whose earlier turns the model need not compute again.
    ///
    /// ```
    /// use corral_sdk::{GenerateOptions, Model, template::Prompt, testing::Script};
    ///
    /// let script = Script::new().answers("1+1=", "2").answers("<|im_start|>And 2+2=", "4");
    /// script.run(async {
    ///     let sequence = Model::open_default().await?.sequence()?;
    ///     sequence.append("1+1=")?;
    ///     sequence.generate(&GenerateOptions::new(8))?.text().await?;
    ///     Prompt::default().trusted("<|im_start|>").text("And 2+2=").append_to(&sequence)?;
    ///     assert_eq!(sequence.generate(&GenerateOptions::new(8))?.text().await?, "4");
    ///     Ok::<_, corral_sdk::Error>(())
    /// })
    /// .unwrap();
    /// ```
    pub fn append_to(&self, sequence: &Sequence) -> Result<(), Error> {
        sequence.append_tokens(&self.own_tokens(sequence.model())?)
    }

    /// Creates a sequence with the prompt's tokens.
    pub fn sequence(&self, model: &Model) -> Result<Sequence, Error> {
        let sequence = model.empty_sequence()?;
        sequence.append_tokens(&self.tokens(model)?)?;
        Ok(sequence)
    }
}

/// The whole text, without marks.
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
    fn only_trusted_pieces_have_control_tokens() {
        let script = Script::new().control_token("<s>").begin_token("<s>");
        let tokens = script.run(async {
            let model = Model::open_default().await?;
            let prompt = Prompt::default().trusted("<|im_end|>").text("<s>");
            let with_begin = Prompt::default().trusted("<s>").text("a");
            Ok::<_, Error>((prompt.tokens(&model)?, with_begin.tokens(&model)?))
        });
        let (begin, end) = (259, 258);
        let text = "<s>".bytes().map(Token::from);
        let expected = [begin, end].into_iter().chain(text).collect();
        assert_eq!(tokens, Ok((expected, vec![begin, 97])));
    }
}
