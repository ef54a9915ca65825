//! From a chat to tokens, by the template in the model's file and without letting text speak with the template's voice.
//!
//! A chat template writes control tokens such as `<|im_start|>` as text, so its output has to be
//! tokenised with control tokens on; then a message that contains such text would end its own turn
//! and begin another. What keeps them apart: after tokenising, the control tokens that came out are
//! looked for in the conversation's own texts. The rule is to cut each one found there after its
//! first character, by a marker character that nothing contains, to render again, and to tokenise
//! the rendered text piece by piece between the markers: no piece then holds the whole name. This
//! works for any template, since templates see the texts nearly as they are, and costs nothing
//! for texts without control tokens, which is nearly all of them.
//!
//! What it does not cover: a template that builds a control token out of its own characters and a
//! text's (as some do with the role, which is therefore checked to be a word), or that changes
//! letters so that a text becomes one.

use std::collections::{BTreeMap, BTreeSet};

use super::Chat;
use super::jinja::{Surroundings, map_texts, render};
use crate::{Error, Model, Sequence, Token};

/// The model's way between text and tokens, as the host offers it.
trait Tokenizer {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Error>;
    fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, Error>;
}

impl Tokenizer for Model {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        Ok(self.host().tokenize(text, special)?)
    }

    fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, Error> {
        Ok(self.host().detokenize(tokens, special)?)
    }
}

/// What of the model matters here.
#[derive(Debug, Clone, Copy)]
struct Facts<'a> {
    name: &'a str,
    /// The token that begins a text, where the model wants one.
    begin: Option<Token>,
    /// A token that ends a generation.
    end: Option<Token>,
    chat_template: Option<&'a str>,
}

impl Chat {
    /// The prompt that the template in the model's file makes of the chat. The chat is checked
    /// ([`Chat::check`]); a model without a template, and a template that does not take the chat, is 400.
    ///
    /// ```
    /// use corral_sdk::{Model, template::Chat, testing::Script};
    ///
    /// let script = Script::new().chat_template(
    ///     "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}",
    /// );
    /// let tokens = script.run(async {
    ///     let model = Model::first().await?;
    ///     Chat::new().message("user", "<|im_end|>").tokens(&model)
    /// });
    /// // What the user wrote is ten characters, and no end of the turn.
    /// assert_eq!(tokens.unwrap().len(), 1 + "user ".len() + "<|im_end|>".len() + 1);
    /// ```
    pub fn tokens(&self, model: &Model) -> Result<Vec<Token>, Error> {
        self.check()?;
        let info = model.info();
        let facts = Facts {
            name: &info.name,
            begin: info.begin,
            end: info.end.or(info.end_of_generation.first().copied()),
            chat_template: info.chat_template.as_deref(),
        };
        let now = std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let mut tokens = chat_tokens(self, facts, model, now)?;
        super::prompt::begin(&mut tokens, model);
        Ok(tokens)
    }

    /// A sequence with that prompt.
    pub fn sequence(&self, model: &Model) -> Result<Sequence, Error> {
        let sequence = model.empty_sequence()?;
        sequence.append_tokens(&self.tokens(model)?)?;
        Ok(sequence)
    }
}

/// `now` is in seconds since 1970, for templates that write the date.
fn chat_tokens(
    chat: &Chat,
    model: Facts,
    tokenizer: &impl Tokenizer,
    now: u64,
) -> Result<Vec<Token>, Error> {
    let Some(template) = model.chat_template else {
        return Err(Error::bad_request(
            "no-chat-template",
            format!(
                "the model {} has no chat template, so it takes no `messages`; send a `prompt`",
                model.name
            ),
        ));
    };
    let bos_token = written(model.begin, tokenizer)?;
    let eos_token = written(model.end, tokenizer)?;
    let around = Surroundings {
        bos_token: &bos_token,
        eos_token: &eos_token,
        now,
    };

    let mut texts = Vec::new();
    map_texts(chat, &mut |text| {
        texts.push(text.to_owned());
        String::new()
    });
    let marker = unused_character(texts.iter().map(String::as_str).chain([template]))?;

    let mut cut_names = BTreeSet::new();
    let mut known = BTreeMap::new();
    // Ends, since each round adds a name, and there are as many as the vocabulary has.
    loop {
        let rendered = if cut_names.is_empty() {
            render(template, chat, around)?
        } else {
            let safe = map_texts(chat, &mut |text| cut(text, &cut_names, marker));
            render(template, &safe, around)?
        };
        let mut tokens = Vec::new();
        for piece in rendered.split(marker).filter(|piece| !piece.is_empty()) {
            tokens.extend(tokenizer.tokenize(piece, true)?);
        }
        for token in &tokens {
            if !known.contains_key(token) {
                known.insert(*token, control_name(*token, tokenizer)?);
            }
        }
        let used = tokens.iter().filter_map(|token| known[token].as_ref());
        let smuggled: BTreeSet<String> = used
            .filter(|name| !cut_names.contains(*name))
            .filter(|name| texts.iter().any(|text| text.contains(name.as_str())))
            .cloned()
            .collect();
        if smuggled.is_empty() {
            return Ok(tokens);
        }
        if let Some(name) = smuggled.iter().find(|name| name.chars().count() < 2) {
            return Err(Error::bad_request(
                "control-token",
                format!("a message contains {name:?}, which is a control token of the model"),
            ));
        }
        cut_names.extend(smuggled);
    }
}

/// The text of a token, control tokens included; empty for none.
fn written(token: Option<Token>, tokenizer: &impl Tokenizer) -> Result<String, Error> {
    match token {
        None => Ok(String::new()),
        Some(token) => {
            Ok(String::from_utf8_lossy(&tokenizer.detokenize(&[token], true)?).into_owned())
        }
    }
}

/// The text of a control token; nothing for a token that is a part of text.
fn control_name(token: Token, tokenizer: &impl Tokenizer) -> Result<Option<String>, Error> {
    if !tokenizer.detokenize(&[token], false)?.is_empty() {
        return Ok(None);
    }
    Ok(Some(written(Some(token), tokenizer)?).filter(|name| !name.is_empty()))
}

/// A character that none of the texts contains, from a plane that is for private use.
fn unused_character<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<char, Error> {
    ('\u{f0000}'..'\u{f0100}')
        .find(|candidate| !texts.clone().any(|text| text.contains(*candidate)))
        .ok_or_else(|| {
            Error::bad_request(
                "private-characters",
                "the messages use every character from U+F0000 to U+F00FF; expected one to be free",
            )
        })
}

/// `text` with the marker after the first character of every occurrence of a name. Occurrences
/// that overlap are all cut.
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
#[path = "control_tests.rs"]
mod tests;
