//! Control tokens that mean something in an answer, such as `[TOOL_CALLS]`.
//!
//! The text that the host tells is without control tokens; where a model writes its tags as such, they are
//! put back in here.

use std::collections::VecDeque;

use corral_sdk::{Error, Model, Token};

/// How a model writes a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spelling {
    /// As any text.
    Text,
    /// As a control token.
    Control(Token),
}

impl Spelling {
    /// Of a tag, by a model.
    pub fn of(tag: &str, model: &Model) -> Result<Self, Error> {
        Ok(match model.tokenize_trusted(tag)?[..] {
            [token] if model.bytes(&[token])?.is_empty() => Spelling::Control(token),
            _ => Spelling::Text,
        })
    }
}

/// Weaves tags back into one text.
#[derive(Debug, Clone, Default)]
pub struct Markers {
    known: Vec<(Token, &'static str)>,
    /// Tags to come, with the byte of the text that each stands before.
    waiting: VecDeque<(usize, &'static str)>,
    /// Bytes of all tokens so far.
    bytes: usize,
    /// Bytes of the text so far.
    told: usize,
}

impl Markers {
    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        self.known.is_empty()
    }

    /// Those of these tags that the model writes as control tokens.
    pub fn of(tags: &[&'static str], model: &Model) -> Result<Self, Error> {
        let mut known = Vec::new();
        for &tag in tags {
            if let Spelling::Control(token) = Spelling::of(tag, model)? {
                known.push((token, tag));
            }
        }
        Ok(Markers {
            known,
            ..Markers::default()
        })
    }

    /// A piece of the text with the tags that stand in it.
    pub fn weave(
        &mut self,
        model: &Model,
        tokens: &[Token],
        text: String,
    ) -> Result<String, Error> {
        if self.known.is_empty() {
            return Ok(text);
        }
        for &token in tokens {
            match self.known.iter().find(|(known, _)| *known == token) {
                Some((_, tag)) => self.waiting.push_back((self.bytes, tag)),
                None => self.bytes += model.bytes(&[token])?.len(),
            }
        }
        let mut woven = String::with_capacity(text.len());
        let mut from = 0;
        while let Some(&(at, tag)) = self.waiting.front() {
            let mut until = at.saturating_sub(self.told);
            if until > text.len() {
                break;
            }
            // Bytes that are no text count differently as tokens.
            while !text.is_char_boundary(until) {
                until += 1;
            }
            woven += &text[from..until.max(from)];
            woven += tag;
            from = until.max(from);
            self.waiting.pop_front();
        }
        self.told += text.len();
        Ok(woven + &text[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::Generate;
    use corral_sdk::testing::Script;

    #[test]
    fn tags_stand_where_their_tokens_were() {
        let text = "[T]ab[T][T]é[T]";
        let script = || {
            Script::new()
                .control_token("[T]")
                .control_token("[U]")
                .answers("x", &text.replace("ab", "a[U]b"))
        };
        for stop in ["zz", "é!"] {
            let woven = script().run(async {
                let model = Model::first().await?;
                let mut markers = Markers::of(&["[T]", "[V]"], &model)?;
                let sequence = model.sequence()?;
                sequence.append("x")?;
                let mut generation = sequence.generate(&Generate::new(64).stop(stop))?;
                let mut woven = String::new();
                while let Some(chunk) = generation.next().await {
                    woven += &markers.weave(&model, &chunk.tokens, chunk.text)?;
                }
                Ok::<_, Error>(woven)
            });
            assert_eq!(woven.as_deref(), Ok(text));
        }
    }
}
