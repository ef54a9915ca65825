//! The input of one run of a program.

use super::client::Endpoint;
use crate::workload::random_digits;
use corral_cli::Error;
use corral_engine::{Engine, Token};
use serde_json::{Value, json};

/// Lengths of all programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// Tokens of the prompt, instructions or outline question.
    pub(super) prompt: u64,
    /// Tokens of each answer.
    pub(super) output: u64,
}

/// The input of one run, unlike that of any other.
#[derive(Clone)]
pub(super) struct Input {
    /// The tokenizer of the client, which has the same model file.
    engine: Engine,
    pub(super) lengths: Lengths,
    /// Digits, each of which is a token in the vocabularies of both models.
    pub(super) text: String,
    /// The first prompt of a client, which is `text` or a chat.
    pub(super) prompt: Vec<Token>,
    pub(super) seed: u64,
}

impl Input {
    /// The input with this number.
    pub(super) fn new(engine: &Engine, lengths: Lengths, number: u64) -> Result<Self, Error> {
        let text = random_digits(number, lengths.prompt);
        let mut input = Self {
            engine: engine.clone(),
            lengths,
            text,
            prompt: Vec::new(),
            seed: number * 1000,
        };
        input.prompt = input.extended(&input.begin(), &input.text)?;
        Ok(input)
    }

    /// Makes the first prompt a chat, rendered by the server.
    pub(super) async fn render(
        mut self,
        endpoint: &Endpoint,
        message: &str,
        tools: &Value,
    ) -> Result<Self, Error> {
        let chat = json!({"messages": [{"role": "user", "content": message}], "tools": tools});
        let response = endpoint.post("/apply-template", &chat).await?;
        let response: Value = serde_json::from_slice(&response)?;
        let prompt = response["prompt"].as_str();
        let prompt = prompt.ok_or_else(|| Error::failed("the server rendered no prompt"))?;
        self.prompt = self.tokens(prompt)?;
        Ok(self)
    }

    /// The token that every text begins with, if the model has one.
    pub(super) fn begin(&self) -> Vec<Token> {
        self.engine.info().begin.into_iter().collect()
    }

    /// Tokens of a text, with control tokens.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.engine.tokenize(text, true)?)
    }

    /// `prompt` with the tokens of `text`.
    pub(super) fn extended(&self, prompt: &[Token], text: &str) -> Result<Vec<Token>, Error> {
        Ok([prompt, &self.tokens(text)?].concat())
    }

    /// Digits for one part of the input.
    pub(super) fn part(&self, part: u64, digits: u64) -> String {
        random_digits(self.seed + part, digits)
    }
}
