//! A chat that is to be answered, whichever API it came by.

use corral_sdk::template::Chat;
use corral_sdk::{Constraint, Error, Grammar, Model, Token};
use serde_json::{Value, json};

use super::answers::Answers;
use super::arguments::Arguments;
use super::hearing::Hearing;
use super::markers::Markers;
use super::prompt;
use super::reasoning::{CLOSE, OPEN, Reasoning};
use super::tools::{Calls, Family, Lark, Tools};
use crate::asking::{Choices, Settings};
use crate::models;

/// A chat, and how to answer it.
#[derive(Debug, Default)]
pub struct Ask {
    /// The model by name, or the deployment's default.
    pub model: Option<String>,
    /// The messages as templates have them, without the tools.
    pub chat: Chat,
    /// What else the template is told.
    pub arguments: Arguments,
    pub tools: Tools,
    pub format: Format,
    pub settings: Settings,
    /// What the API calls the member that says the format, for errors.
    pub format_member: &'static str,
}

/// What the content looks like.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Format {
    #[default]
    Text,
    JsonObject,
    /// A JSON value of this schema.
    Schema(Value),
}

impl Format {
    fn schema(&self) -> Option<Value> {
        match self {
            Format::Text => None,
            Format::JsonObject => Some(json!({"type": "object"})),
            Format::Schema(schema) => Some(schema.clone()),
        }
    }
}

impl Ask {
    /// Opens the model, writes the prompt and begins to generate.
    pub async fn begin(mut self) -> Result<Answers, Error> {
        let model = models::open(self.model.as_deref()).await?;
        let family = match self.tools.are_offered() {
            true => Some(Family::of(&model)?),
            false => None,
        };
        if family.is_some() {
            self.chat.tools = self
                .tools
                .list
                .iter()
                .map(|tool| tool.shown.clone())
                .collect();
        }
        self.chat.arguments = std::mem::take(&mut self.arguments).for_template(&model)?;
        self.name_speakers(&model);
        let tokens = prompt::tokens(&self.chat, &model)?;
        prompt::check_names(&self.chat, &tokens, &model)?;
        let (thinks, open) = thinking(&model, &tokens)?;
        let constraint = self.constraint(&model, family, open).await?;
        let prompts = [tokens];
        let choices = Choices::begin(
            &model,
            "messages",
            &prompts,
            &self.settings,
            constraint.as_ref(),
        )?;

        let mut tags = Vec::new();
        if thinks {
            tags.extend([OPEN, CLOSE]);
        }
        if let Some(family) = family {
            tags.push(family.opening());
            tags.extend(family.closing());
        }
        let markers = Markers::of(&tags, &model)?;
        let names: Vec<_> = self
            .tools
            .list
            .iter()
            .map(|tool| tool.name.clone())
            .collect();
        let hearing = (0..choices.len()).map(|_| Hearing {
            markers: markers.clone(),
            reasoning: match thinks {
                true => Reasoning::new(open),
                false => Reasoning::none(),
            },
            calls: match family {
                Some(family) => Calls::new(family, names.clone(), self.tools.parallel),
                None => Calls::none(),
            },
        });
        Ok(Answers::new(choices, hearing.collect(), family))
    }

    /// OpenAI's newer name for the system, for templates that do not know it.
    fn name_speakers(&mut self, model: &Model) {
        let template = model.info().chat_template.as_deref().unwrap_or_default();
        if !template.contains("developer") {
            for message in &mut self.chat.messages {
                if message["role"] == "developer" {
                    message["role"] = "system".into();
                }
            }
        }
    }

    async fn constraint(
        &self,
        model: &Model,
        family: Option<Family>,
        open: bool,
    ) -> Result<Option<Constraint>, Error> {
        let format = self.format.schema().map(|schema| Lark::value(&schema));
        let calls = match family {
            Some(family) if self.tools.are_needed() || format.is_some() => {
                Some(Lark::calls(&self.tools, family, model)?)
            }
            Some(family) if self.tools.are_strict() => {
                Some(Lark::calls(&self.tools, family, model)?.if_any(family, model)?)
            }
            _ => None,
        };
        let (lark, member) = match (calls, format) {
            (None, None) => return Ok(None),
            (Some(calls), Some(format)) if !self.tools.are_needed() => {
                (format.or(calls), self.format_member)
            }
            (Some(calls), _) => (calls, "tools"),
            (None, Some(format)) => (format, self.format_member),
        };
        let grammar = match &self.format {
            // What is wrong with a schema alone is told with its place.
            Format::JsonObject if family.is_none() && !open => Grammar::JsonObject,
            Format::Schema(schema) if family.is_none() && !open => {
                Grammar::JsonSchema(schema.to_string())
            }
            _ => Grammar::Lark(lark.text(model, open)?),
        };
        let compiled = Constraint::compile(model, grammar).await;
        compiled.map(Some).map_err(|error| match error {
            Error::Invalid(text) => Error::bad_request("invalid-constraint", text).about(member),
            other => other,
        })
    }
}

/// Whether the model may think, and whether the prompt ends within a thought.
fn thinking(model: &Model, tokens: &[Token]) -> Result<(bool, bool), Error> {
    let template = model.info().chat_template.as_deref().unwrap_or_default();
    let open = prompt::is_open(tokens, model)?;
    Ok((open || template.contains(CLOSE), open))
}
