//! Answers to a chat, parsed while the model generates them.

use corral_sdk::{Error, Finish as HostFinish, Generation, Model, Outcome, Token};

use super::output_parser::OutputParser;
use super::tools::CallFormat;
use super::{OutputPart, push};
use crate::generation::{Choices, LogprobEntry, Usage};
use crate::ids;

/// Answers in progress. Dropping them cancels their generations.
pub struct AnswerStream {
    choices: Choices,
    parsers: Vec<OutputParser>,
    /// One entry for each answer.
    states: Vec<AnswerState>,
    call_format: Option<CallFormat>,
}

#[derive(Debug, Clone, Default)]
struct AnswerState {
    has_calls: bool,
    reasoning: String,
    tokens: Vec<Token>,
    /// Bytes of the text.
    text_bytes: usize,
}

/// A parsed part of one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerDelta {
    /// The answer.
    pub index: usize,
    pub parts: Vec<OutputPart>,
    /// One entry per token if the settings have `logprobs`.
    pub logprobs: Vec<LogprobEntry>,
    /// The finish reason, in the answer's last delta.
    pub finish: Option<FinishReason>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the answer.
    End,
    /// A stop string appeared.
    Stop,
    /// The length limit or the context was reached.
    Length,
    /// The answer calls tools.
    ToolCalls,
}

impl From<HostFinish> for FinishReason {
    fn from(finish: HostFinish) -> Self {
        match finish {
            HostFinish::End => FinishReason::End,
            HostFinish::Stop => FinishReason::Stop,
            HostFinish::Length => FinishReason::Length,
        }
    }
}

/// A complete answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<ToolCall>,
    pub logprobs: Vec<LogprobEntry>,
    pub finish: Option<FinishReason>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl AnswerStream {
    pub(super) fn new(
        choices: Choices,
        parsers: Vec<OutputParser>,
        call_format: Option<CallFormat>,
    ) -> Self {
        AnswerStream {
            states: vec![AnswerState::default(); parsers.len()],
            choices,
            parsers,
            call_format,
        }
    }

    /// Answers without reasoning and tool calls.
    pub fn plain(choices: Choices) -> Self {
        let parsers = (0..choices.count()).map(|_| OutputParser::plain());
        Self::new(choices, parsers.collect(), None)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.choices.model()
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.choices.prompt_tokens()
    }

    /// Number of answers.
    pub fn count(&self) -> usize {
        self.parsers.len()
    }

    /// Creates an id for a tool call.
    pub fn new_call_id(&self) -> String {
        self.call_format
            .map_or_else(|| ids::unique_id("call_"), CallFormat::new_call_id)
    }

    /// Takes the generation of the only answer, so that the host can stream its text. The caller
    /// passes the outcome to [`set_outcome`](Self::set_outcome). `None` if the text needs parsing.
    pub fn take_generation(&mut self) -> Option<Generation> {
        match &self.parsers[..] {
            [parser] if parser.is_plain() => self.choices.take_generation(),
            _ => None,
        }
    }

    /// Sets the outcome of the only answer.
    pub fn set_outcome(&mut self, outcome: Outcome) {
        self.choices.set_outcome(outcome);
    }

    /// Returns the next delta of any answer, or `None` when all have ended.
    pub async fn next(&mut self) -> Result<Option<AnswerDelta>, Error> {
        let Some(mut delta) = self.choices.next().await? else {
            return Ok(None);
        };
        let index = delta.index;
        let (parser, state) = (&mut self.parsers[index], &mut self.states[index]);
        state.text_bytes += delta.text.len();
        state.tokens.extend(&delta.tokens);
        let mut parts = parser.parse(self.choices.model(), &delta.tokens, delta.text)?;
        if delta.end.is_none() && parser.calls.may_stop_generation() {
            delta.end = Some(self.choices.stop_choice(index));
        }
        if delta.end.is_some() {
            parser
                .end()
                .into_iter()
                .for_each(|part| push(&mut parts, part));
        }
        for part in &parts {
            match part {
                OutputPart::ToolCall(_) => state.has_calls = true,
                OutputPart::Reasoning(text) => state.reasoning += text,
                OutputPart::Content(_) | OutputPart::Arguments(_) => {}
            }
        }
        let finish = delta.end.map(|outcome| match outcome.finish {
            HostFinish::End | HostFinish::Stop if state.has_calls => FinishReason::ToolCalls,
            other => other.into(),
        });
        Ok(Some(AnswerDelta {
            index,
            parts,
            logprobs: delta.logprobs,
            finish,
        }))
    }

    /// Waits for the end and returns all answers.
    pub async fn collect(&mut self) -> Result<Vec<Answer>, Error> {
        // With tools, an answer can end before the model does.
        if self.parsers.iter().all(|parser| parser.calls.is_disabled()) {
            self.choices.read_whole();
        }
        let mut answers = vec![Answer::default(); self.count()];
        while let Some(delta) = self.next().await? {
            let answer = &mut answers[delta.index];
            for part in delta.parts {
                match part {
                    OutputPart::Reasoning(text) => answer.reasoning += &text,
                    OutputPart::Content(text) => answer.content += &text,
                    OutputPart::ToolCall(name) => answer.calls.push(ToolCall {
                        id: self.new_call_id(),
                        name,
                        arguments: String::new(),
                    }),
                    OutputPart::Arguments(text) => {
                        if let Some(call) = answer.calls.last_mut() {
                            call.arguments += &text;
                        }
                    }
                }
            }
            answer.logprobs.extend(delta.logprobs);
            answer.finish = delta.finish.or(answer.finish);
        }
        Ok(answers)
    }

    /// The number of tokens that an answer has so far.
    pub fn generated_tokens(&self, index: usize) -> u32 {
        self.choices.generated_tokens(index)
    }

    /// The outcome of an answer that has ended; otherwise an error.
    pub fn outcome(&self, index: usize) -> Result<Outcome, Error> {
        self.choices.outcome(index)
    }

    /// The usage of all answers after their end.
    pub fn usage(&self) -> Result<Usage, Error> {
        let mut usage = self.choices.usage();
        for state in self
            .states
            .iter()
            .filter(|state| !state.reasoning.is_empty())
        {
            let tokens = self.model().tokenize(&state.reasoning)?.len();
            usage.reasoning += u32::try_from(tokens).unwrap_or(u32::MAX);
        }
        Ok(usage)
    }

    /// The stop string that ended an answer.
    pub fn stopped_by<'a>(
        &self,
        index: usize,
        stops: &'a [String],
    ) -> Result<Option<&'a str>, Error> {
        let state = &self.states[index];
        let bytes = self.model().detokenize_bytes(&state.tokens)?;
        let rest = bytes.get(state.text_bytes..).unwrap_or_default();
        let mut stops = stops.iter();
        Ok(stops
            .find(|stop| rest.starts_with(stop.as_bytes()))
            .map(String::as_str))
    }
}
