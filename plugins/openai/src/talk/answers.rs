//! Answers as they come.

use corral_sdk::{Error, Finish as HostFinish, Generation, Model, Outcome, Token};

use super::hearing::Hearing;
use super::tools::Family;
use super::{Part, push};
use crate::asking::{Choices, Likely, Usage};
use crate::identity;

/// Answers in the making. Dropping them cancels.
pub struct Answers {
    choices: Choices,
    hearing: Vec<Hearing>,
    /// What is kept of each until all have ended.
    heard: Vec<Heard>,
    family: Option<Family>,
}

#[derive(Debug, Clone, Default)]
struct Heard {
    calls: bool,
    thought: String,
    tokens: Vec<Token>,
    /// Bytes of the text.
    text: usize,
}

/// What one of the answers goes on with.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Which answer.
    pub index: usize,
    pub parts: Vec<Part>,
    /// If the settings ask for them.
    pub likely: Vec<Likely>,
    /// Why the answer ended, with the last of it.
    pub finish: Option<Finish>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model said all.
    End,
    /// A stop string came.
    Stop,
    /// There was no more room, or no more was wanted.
    Length,
    /// Tools are called.
    Calls,
}

impl From<HostFinish> for Finish {
    fn from(finish: HostFinish) -> Self {
        match finish {
            HostFinish::End => Finish::End,
            HostFinish::Stop => Finish::Stop,
            HostFinish::Length => Finish::Length,
        }
    }
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
    pub likely: Vec<Likely>,
    pub finish: Option<Finish>,
}

/// A tool that is called.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl Answers {
    pub(super) fn new(choices: Choices, hearing: Vec<Hearing>, family: Option<Family>) -> Self {
        Answers {
            heard: vec![Heard::default(); hearing.len()],
            choices,
            hearing,
            family,
        }
    }

    /// Waits for the first piece. What fails before it can so be told with its own status.
    pub async fn begun(mut self) -> Result<Self, Error> {
        self.choices = self.choices.begun().await?;
        Ok(self)
    }

    /// The model that speaks.
    pub fn model(&self) -> &Model {
        self.choices.model()
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.choices.prompt_tokens()
    }

    /// Number of answers.
    pub fn len(&self) -> usize {
        self.hearing.len()
    }

    /// A name for a call.
    pub fn name_for_call(&self) -> String {
        self.family
            .map_or_else(|| identity::unique("call_"), Family::name_for_call)
    }

    /// The generation of the only answer, for whoever passes its text on without looking at it, and then
    /// [tells](Self::ended) how it went. Nothing where there is more in the text than content.
    pub fn unseen(&mut self) -> Option<Generation> {
        match &self.hearing[..] {
            [hearing] if hearing.is_plain() => self.choices.unseen(),
            _ => None,
        }
    }

    /// The only answer went like this.
    pub fn ended(&mut self, outcome: Outcome) {
        self.choices.ended(outcome);
    }

    /// What one of them says next; nothing when all have ended.
    pub async fn next(&mut self) -> Result<Option<Said>, Error> {
        let Some(mut piece) = self.choices.next().await? else {
            return Ok(None);
        };
        let index = piece.index;
        let (hearing, heard) = (&mut self.hearing[index], &mut self.heard[index]);
        heard.text += piece.text.len();
        heard.tokens.extend(&piece.tokens);
        let mut parts = hearing.hear(self.choices.model(), &piece.tokens, piece.text)?;
        if piece.end.is_none() && hearing.calls.is_over() {
            piece.end = Some(self.choices.end(index));
        }
        if piece.end.is_some() {
            hearing
                .end()
                .into_iter()
                .for_each(|part| push(&mut parts, part));
        }
        for part in &parts {
            match part {
                Part::Call(_) => heard.calls = true,
                Part::Reasoning(text) => heard.thought += text,
                Part::Content(_) | Part::Arguments(_) => {}
            }
        }
        let finish = piece.end.map(|outcome| match outcome.finish {
            HostFinish::End | HostFinish::Stop if heard.calls => Finish::Calls,
            other => other.into(),
        });
        Ok(Some(Said {
            index,
            parts,
            likely: piece.likely,
            finish,
        }))
    }

    /// All answers, whole.
    pub async fn whole(&mut self) -> Result<Vec<Answer>, Error> {
        // Where calls may come, an answer can be over before the model is.
        if self.hearing.iter().all(|hearing| hearing.calls.are_none()) {
            self.choices.at_once();
        }
        let mut answers = vec![Answer::default(); self.len()];
        while let Some(said) = self.next().await? {
            let answer = &mut answers[said.index];
            for part in said.parts {
                match part {
                    Part::Reasoning(text) => answer.reasoning += &text,
                    Part::Content(text) => answer.content += &text,
                    Part::Call(name) => answer.calls.push(Call {
                        id: self.name_for_call(),
                        name,
                        arguments: String::new(),
                    }),
                    Part::Arguments(text) => {
                        if let Some(call) = answer.calls.last_mut() {
                            call.arguments += &text;
                        }
                    }
                }
            }
            answer.likely.extend(said.likely);
            answer.finish = said.finish.or(answer.finish);
        }
        Ok(answers)
    }

    /// What it all took, once all have ended.
    pub fn usage(&self) -> Result<Usage, Error> {
        let mut usage = self.choices.usage();
        for heard in self.heard.iter().filter(|heard| !heard.thought.is_empty()) {
            let tokens = self.model().tokenize(&heard.thought)?.len();
            usage.reasoning += u32::try_from(tokens).unwrap_or(u32::MAX);
        }
        Ok(usage)
    }

    /// Which of the stop strings ended an answer that was stopped.
    pub fn stopped_by<'a>(
        &self,
        index: usize,
        stops: &'a [String],
    ) -> Result<Option<&'a str>, Error> {
        let heard = &self.heard[index];
        let bytes = self.model().bytes(&heard.tokens)?;
        let rest = bytes.get(heard.text..).unwrap_or_default();
        let mut stops = stops.iter();
        Ok(stops
            .find(|stop| rest.starts_with(stop.as_bytes()))
            .map(String::as_str))
    }
}
