//! Constraints: the script lists the texts that a grammar allows.

use std::cell::RefCell;
use std::rc::Rc;

use super::installed::script;
use super::model::Model;
use super::script_state::{HostCall, ScriptState, invalid};
use crate::Token;
use crate::bindings::constraints::Grammar;
use crate::bindings::types::Error;

pub struct Constraint {
    pub(super) texts: Rc<Vec<Vec<u8>>>,
    ignored: Vec<String>,
}

pub async fn compile_constraint(model: &Model, grammar: Grammar) -> Result<Constraint, Error> {
    let text = match grammar {
        Grammar::JsonObject => String::new(),
        Grammar::JsonSchema(text)
        | Grammar::LenientJsonSchema(text)
        | Grammar::Regex(text)
        | Grammar::Lark(text)
        | Grammar::Gbnf(text) => text,
    };
    let script = model.script();
    script.record(HostCall::Compile(text.clone()));
    script.scripted_error("compile")?;
    let Some(texts) = script.languages.get(&text) else {
        return invalid(&format!("the script has no grammar {text:?}"));
    };
    let texts = texts.iter().map(|text| text.clone().into_bytes());
    let ignored = script.ignored.get(&text).cloned();
    Ok(Constraint {
        texts: Rc::new(texts.collect()),
        ignored: ignored.unwrap_or_default(),
    })
}

impl Constraint {
    pub fn ignored(&self) -> Vec<String> {
        self.ignored.clone()
    }
}

/// The allowed texts and the text so far.
#[derive(Clone)]
pub struct Matcher {
    texts: Rc<Vec<Vec<u8>>>,
    text: RefCell<Vec<u8>>,
    script: Rc<ScriptState>,
}

impl Matcher {
    pub fn start(constraint: &Constraint) -> Result<Self, Error> {
        Ok(Self::of_texts(Rc::clone(&constraint.texts)))
    }

    pub(super) fn of_texts(texts: Rc<Vec<Vec<u8>>>) -> Self {
        Matcher {
            texts,
            text: RefCell::default(),
            script: script(),
        }
    }

    pub fn fork(&self) -> Result<Self, Error> {
        Ok(self.clone())
    }

    pub(super) fn next(&self) -> Vec<Token> {
        let text = self.text.borrow();
        let fitting = self
            .texts
            .iter()
            .filter_map(|allowed| allowed.strip_prefix(&text[..]));
        let mut tokens = Vec::new();
        for rest in fitting {
            match rest.first() {
                Some(&byte) => tokens.push(byte.into()),
                None => tokens.extend(&self.script.info.end_of_generation),
            }
        }
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    pub fn mask(&self) -> Result<Vec<u32>, Error> {
        let words = self.script.info.vocabulary.div_ceil(32);
        let mut mask = vec![0; words as usize];
        for token in self.next() {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(mask)
    }

    pub fn allowed(&self, max_tokens: u32) -> Result<Option<Vec<Token>>, Error> {
        Ok(Some(self.next()).filter(|tokens| tokens.len() <= max_tokens as usize))
    }

    pub fn allows(&self, token: Token) -> Result<bool, Error> {
        Ok(self.next().contains(&token))
    }

    pub fn accept(&self, token: Token) -> Result<(), Error> {
        if !self.allows(token)? {
            return invalid(&format!("token {token} is not allowed next"));
        }
        self.text.borrow_mut().extend(u8::try_from(token));
        Ok(())
    }

    pub fn forced(&self, max_tokens: u32) -> Result<Vec<Token>, Error> {
        let mut forced = Vec::new();
        while let (true, &[token]) = (forced.len() < max_tokens as usize, &self.next()[..]) {
            if token >= 256 {
                break;
            }
            self.accept(token)?;
            forced.push(token);
        }
        Ok(forced)
    }

    pub fn is_complete(&self) -> bool {
        self.next().iter().all(|&token| token >= 256)
    }
}
