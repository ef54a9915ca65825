//! Control tokens that act as tags in an answer, such as `[TOOL_CALLS]`.
//!
//! The host's text omits control tokens. Where a model writes its tags as control tokens, this
//! module inserts them into the text.

use std::collections::VecDeque;

use corral_sdk::{Error, Model, Token};

/// How a model writes a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagSpelling {
    /// As plain text.
    Text,
    /// As a control token.
    Control(Token),
}

impl TagSpelling {
    /// Determines how a model writes a tag.
    pub fn detect(tag: &str, model: &Model) -> Result<Self, Error> {
        Ok(match model.tokenize_trusted(tag)?[..] {
            [token] if model.detokenize_bytes(&[token])?.is_empty() => TagSpelling::Control(token),
            _ => TagSpelling::Text,
        })
    }
}

/// Inserts tags into the text of one answer.
#[derive(Debug, Clone, Default)]
pub struct ControlTags {
    tags: Vec<(Token, &'static str)>,
    /// Tags to insert, each with the byte offset of the text after it.
    pending: VecDeque<(usize, &'static str)>,
    /// Bytes of all tokens so far.
    bytes: usize,
    /// Bytes of the text so far.
    text_bytes: usize,
}

impl ControlTags {
    /// Whether the model has no such tags.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Selects the tags that the model writes as control tokens.
    pub fn new(tags: &[&'static str], model: &Model) -> Result<Self, Error> {
        let mut found = Vec::new();
        for &tag in tags {
            if let TagSpelling::Control(token) = TagSpelling::detect(tag, model)? {
                found.push((token, tag));
            }
        }
        Ok(ControlTags {
            tags: found,
            ..ControlTags::default()
        })
    }

    /// Returns a chunk of the text with its tags.
    pub fn insert(
        &mut self,
        model: &Model,
        tokens: &[Token],
        text: String,
    ) -> Result<String, Error> {
        if self.tags.is_empty() {
            return Ok(text);
        }
        for &token in tokens {
            match self.tags.iter().find(|(known, _)| *known == token) {
                Some((_, tag)) => self.pending.push_back((self.bytes, tag)),
                None => self.bytes += model.detokenize_bytes(&[token])?.len(),
            }
        }
        let mut output = String::with_capacity(text.len());
        let mut from = 0;
        while let Some(&(at, tag)) = self.pending.front() {
            let mut until = at.saturating_sub(self.text_bytes);
            if until > text.len() {
                break;
            }
            // Bytes that are not UTF-8 have other lengths as tokens.
            while !text.is_char_boundary(until) {
                until += 1;
            }
            output += &text[from..until.max(from)];
            output += tag;
            from = until.max(from);
            self.pending.pop_front();
        }
        self.text_bytes += text.len();
        Ok(output + &text[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::GenerateOptions;
    use corral_sdk::testing::Script;

    #[test]
    fn tags_are_inserted_at_their_tokens() {
        let text = "[T]ab[T][T]é[T]";
        let script = || {
            Script::new()
                .control_token("[T]")
                .control_token("[U]")
                .answers("x", &text.replace("ab", "a[U]b"))
        };
        for stop in ["zz", "é!"] {
            let output = script().run(async {
                let model = Model::open_default().await?;
                let mut tags = ControlTags::new(&["[T]", "[V]"], &model)?;
                let sequence = model.sequence()?;
                sequence.append("x")?;
                let mut generation = sequence.generate(&GenerateOptions::new(64).stop(stop))?;
                let mut output = String::new();
                while let Some(chunk) = generation.next().await {
                    output += &tags.insert(&model, &chunk.tokens, chunk.text)?;
                }
                Ok::<_, Error>(output)
            });
            assert_eq!(output.as_deref(), Ok(text));
        }
    }
}
