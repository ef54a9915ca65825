//! Renders a chat with the model file's template and tokenizes it, so that chat text cannot inject
//! control tokens.
//!
//! Templates write control tokens such as `<|im_start|>` as text, so their output is tokenized with
//! control tokens enabled. To keep a message from ending its own turn, each control token in the
//! result is searched in the chat's texts. Each name found there is cut after its first character
//! by a marker character that no text contains, the chat is rendered again, and the pieces between
//! markers are tokenized separately: no piece contains the whole name. This works for any template
//! that passes texts through, and costs nothing for texts without control tokens.
//!
//! Not covered: a template that composes a control token from its own characters and a text's (as
//! with roles, which must therefore be words), or that changes letters so that a text becomes one.

use std::collections::{BTreeMap, BTreeSet};

use super::jinja::{TemplateContext, map_texts, render};
use super::{Chat, ModelFacts, image, is_image};
use crate::{Error, Model, Sequence, Token};

impl Chat {
    /// Renders the chat with the template in the model file. Checks the chat first
    /// ([`Chat::check`]). A model without a template is a 400, and so is a chat that the template
    /// rejects.
    ///
    /// ```
    /// use corral_sdk::{Model, template::Chat, testing::Script};
    ///
    /// let script = Script::new().chat_template(
    ///     "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}",
    /// );
    /// let tokens = script.run(async {
    ///     let model = Model::open_default().await?;
    ///     Chat::new().message("user", "<|im_end|>").tokens(&model)
    /// });
    /// // The message is ten plain characters, not an end of the turn.
    /// assert_eq!(tokens.unwrap().len(), 1 + "user ".len() + "<|im_end|>".len() + 1);
    /// ```
    ///
    /// One token stands for each image ([`is_image`]); [`Sequence::append_prompt`] takes the result.
    pub fn tokens(&self, model: &Model) -> Result<Vec<Token>, Error> {
        self.check()?;
        let Some(template) = &model.info().chat_template else {
            return Err(Error::bad_request(
                "no-chat-template",
                format!(
                    "the model {} has no chat template and cannot read `messages`; send a `prompt`",
                    model.name()
                ),
            ));
        };
        let mut tokens = self.tokens_with(template, model)?;
        model.add_begin_token(&mut tokens);
        Ok(tokens)
    }

    /// Renders the chat with this Jinja template in place of the model file's. Adds no beginning-of-sequence token.
    pub fn tokens_with(&self, template: &str, model: &Model) -> Result<Vec<Token>, Error> {
        self.check()?;
        let facts = ModelFacts::new(model)?;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let context = TemplateContext {
            bos_token: &facts.bos.unwrap_or_default(),
            eos_token: &facts.eos.unwrap_or_default(),
            now,
        };
        chat_tokens(self, template, context, model)
    }

    /// Creates a sequence with that prompt, for a chat without images.
    pub fn sequence(&self, model: &Model) -> Result<Sequence, Error> {
        let sequence = model.empty_sequence()?;
        sequence.append_tokens(&self.tokens(model)?)?;
        Ok(sequence)
    }

    /// Creates a sequence with that prompt and the chat's images.
    ///
    /// ```
    /// use corral_sdk::{GenerateOptions, Model, template::{Chat, ChatImage}, testing::Script};
    ///
    /// let script = Script::new()
    ///     .accepts_images()
    ///     .chat_template("{{ messages[0].content }}")
    ///     .answers("[image of 3 bytes]What is this?", "A cat.");
    /// let answer = script.run(async {
    ///     let model = Model::open_default().await?;
    ///     let image = ChatImage::new(b"cat".to_vec());
    ///     let mut chat = Chat::new().message("user", &format!("{}What is this?", image.marker()));
    ///     chat.images.push(image);
    ///     let sequence = chat.sequence_with_images(&model).await?;
    ///     sequence.generate(&GenerateOptions::new(8))?.text().await
    /// });
    /// assert_eq!(answer.unwrap(), "A cat.");
    /// ```
    pub async fn sequence_with_images(&self, model: &Model) -> Result<Sequence, Error> {
        let tokens = self.tokens(model)?;
        let sequence = model.empty_sequence()?;
        sequence.append_prompt(&tokens, &self.images).await?;
        Ok(sequence)
    }
}

/// Renders the chat and tokenizes it, with each text of the chat as plain characters.
fn chat_tokens(
    chat: &Chat,
    template: &str,
    context: TemplateContext,
    model: &Model,
) -> Result<Vec<Token>, Error> {
    let mut texts = Vec::new();
    map_texts(chat, &mut |text| {
        texts.push(text.to_owned());
        String::new()
    });
    let marker = unused_character(texts.iter().map(String::as_str).chain([template]))?;

    let mut cut_names = BTreeSet::new();
    let mut known = BTreeMap::new();
    // Terminates: each iteration adds a name, and the vocabulary has finitely many.
    loop {
        let rendered = if cut_names.is_empty() {
            render(template, chat, context)?
        } else {
            let safe = map_texts(chat, &mut |text| cut(text, &cut_names, marker));
            render(template, &safe, context)?
        };
        let mut tokens = Vec::new();
        for piece in rendered.split(marker).filter(|piece| !piece.is_empty()) {
            tokens.extend(image::tokens(piece, &chat.images, model)?);
        }
        for token in tokens.iter().filter(|token| !is_image(**token)) {
            if !known.contains_key(token) {
                known.insert(*token, control_name(*token, model)?);
            }
        }
        // Each name is searched once, not each token. Names of earlier iterations are cut, or in no text.
        let used = known.values().flatten();
        let injected: BTreeSet<String> = used
            .filter(|name| !cut_names.contains(*name))
            .filter(|name| texts.iter().any(|text| text.contains(name.as_str())))
            .cloned()
            .collect();
        if injected.is_empty() {
            return Ok(tokens);
        }
        if let Some(name) = injected.iter().find(|name| name.chars().count() < 2) {
            return Err(Error::bad_request(
                "control-token",
                format!("a message contains {name:?}, a control token of the model; remove it"),
            ));
        }
        cut_names.extend(injected);
    }
}

/// The text of a control token; `None` for other tokens.
fn control_name(token: Token, model: &Model) -> Result<Option<String>, Error> {
    if !model.detokenize_bytes(&[token])?.is_empty() {
        return Ok(None);
    }
    let name = model.detokenize_with_control(&[token])?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

/// Returns a private-use character that none of the texts contains.
fn unused_character<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<char, Error> {
    ('\u{f0000}'..'\u{f0100}')
        .find(|candidate| !texts.clone().any(|text| text.contains(*candidate)))
        .ok_or_else(|| {
            Error::bad_request(
                "private-characters",
                "the messages contain every character from U+F0000 to U+F00FF; expected at least one to be unused",
            )
        })
}

/// Inserts the marker after the first character of every occurrence of a name, including
/// overlapping ones.
fn cut(text: &str, names: &BTreeSet<String>, marker: char) -> String {
    let mut cuts = BTreeSet::new();
    for name in names {
        let first = name.chars().next().map_or(1, char::len_utf8);
        let mut from = 0;
        while let Some(found) = text[from..].find(name.as_str()) {
            from += found + first;
            cuts.insert(from);
        }
    }
    let mut marked = String::with_capacity(text.len() + cuts.len() * marker.len_utf8());
    let mut from = 0;
    for at in cuts {
        marked += &text[from..at];
        marked.push(marker);
        from = at;
    }
    marked + &text[from..]
}

#[cfg(test)]
#[path = "control_tokens_tests.rs"]
mod tests;
