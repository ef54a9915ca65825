//! A chat request, in a form independent of the API.

use corral_sdk::fields::ignored;
use corral_sdk::template::{Chat, image_of, is_image};
use corral_sdk::{Constraint, Error, Grammar, Model, Token};
use serde_json::{Value, json};

use super::answer_stream::AnswerStream;
use super::control_tags::ControlTags;
use super::output_parser::OutputParser;
use super::prompt;
use super::reasoning_parser::{CLOSING_TAG, OPENING_TAG, ReasoningParser};
use super::template_kwargs::TemplateKwargs;
use super::tools::{CallFormat, CallParser, LarkGrammar, Tools};
use crate::context_limit::check_prompt;
use crate::generation::{Choices, Settings};
use crate::{images, unsupported};

/// A chat request.
#[derive(Debug, Default)]
pub struct ChatRequest {
    /// The model's name; default: the first model.
    pub model: Option<String>,
    /// The messages in the format of templates, without the tools.
    pub chat: Chat,
    /// Further template variables.
    pub template_kwargs: TemplateKwargs,
    pub tools: Tools,
    pub format: Format,
    pub settings: Settings,
    /// The start of the answer, which the model continues.
    pub prefill: Option<String>,
    /// The API's name of the field for the messages, for errors.
    pub messages_field: &'static str,
    /// The API's name of the field for the format, for errors.
    pub format_field: &'static str,
}

/// A rendered prompt.
struct Prompt {
    model: Model,
    call_format: Option<CallFormat>,
    tokens: Vec<Token>,
    /// Whether the model reasons.
    reasons: bool,
    /// Whether the prompt ends inside reasoning.
    open: bool,
}

/// The format of the content.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Format {
    #[default]
    Text,
    JsonObject,
    /// A JSON value that satisfies this schema.
    Schema {
        schema: Value,
        /// Whether a keyword that cannot be enforced is an error; otherwise it is ignored.
        strict: bool,
    },
    /// A text that matches this regular expression.
    Regex(String),
    /// A text of this grammar in llama.cpp's notation.
    Gbnf(String),
    /// A text of this Lark grammar.
    Lark(String),
}

/// Checks that neither a format nor required tools constrain an answer that continues the assistant's last message:
/// they are about whole answers. `field`: the field that asks for the continuation.
pub fn check_unconstrained(format: &Format, tools: &Tools, field: &str) -> Result<(), Error> {
    if *format == Format::Text && !tools.are_required() {
        return Ok(());
    }
    let why =
        "the last message is the assistant's, and an answer that continues it can't be constrained";
    Err(unsupported(field, why))
}

impl Format {
    /// The grammar of an answer that has nothing else; `None` for any text.
    pub fn grammar_alone(&self) -> Option<Grammar> {
        Some(match self {
            Format::Text => return None,
            Format::JsonObject => Grammar::JsonObject,
            Format::Schema { schema, strict } => match *strict || ignored::is_strict() {
                true => Grammar::JsonSchema(schema.to_string()),
                false => Grammar::LenientJsonSchema(schema.to_string()),
            },
            Format::Regex(expression) => Grammar::Regex(expression.clone()),
            Format::Gbnf(text) => Grammar::Gbnf(text.clone()),
            Format::Lark(text) => Grammar::Lark(text.clone()),
        })
    }

    /// Compiles the grammar of an answer that has nothing else, and names the keywords of its schema that are
    /// ignored. `field`: the API's name of the field for the format.
    pub async fn constraint(
        &self,
        model: &Model,
        field: &str,
    ) -> Result<Option<Constraint>, Error> {
        let Some(grammar) = self.grammar_alone() else {
            return Ok(None);
        };
        let compiled = Constraint::compile(model, grammar).await;
        let constraint = compiled.map_err(|error| match error {
            Error::Invalid(text) => invalid_constraint(text, field),
            other => other,
        })?;
        name_ignored_keywords(&constraint, |_| field.to_owned());
        Ok(Some(constraint))
    }

    /// The grammar as a part of a larger one. Complete grammars can't be parts.
    fn part(&self, field: &str) -> Result<Option<LarkGrammar>, Error> {
        Ok(Some(match self {
            Format::Text => return Ok(None),
            Format::JsonObject => LarkGrammar::value(&json!({"type": "object"}), true),
            Format::Schema { schema, strict } => {
                LarkGrammar::value(schema, *strict || ignored::is_strict())
            }
            Format::Regex(expression) => LarkGrammar::regex(expression),
            Format::Gbnf(_) | Format::Lark(_) => {
                let why = "a whole grammar can't be combined with tools or with reasoning that the \
                           prompt has begun; omit `tools`, or turn reasoning off";
                return Err(unsupported(field, why));
            }
        }))
    }
}

fn invalid_constraint(text: String, field: &str) -> Error {
    Error::bad_request("invalid-constraint", text).with_field(field)
}

/// Names the keywords of schemas that a constraint does not enforce, each after the field of its schema, such as
/// `response_format/properties/a/not`. `field_of`: the field of the schema in a rule of the grammar.
fn name_ignored_keywords(constraint: &Constraint, field_of: impl Fn(&str) -> String) {
    for name in constraint.ignored() {
        match name.split_once('/') {
            Some((rule, pointer)) => ignored::add(&format!("{}/{pointer}", field_of(rule))),
            // How many more there are.
            None => ignored::add(&name),
        }
    }
}

impl ChatRequest {
    /// The text of the prompt, with control tokens written out. `[image]` and `[audio]` stand for files.
    pub async fn prompt_text(mut self) -> Result<String, Error> {
        let Prompt { model, tokens, .. } = self.render().await?;
        let parts = tokens.chunk_by(|one, other| !is_image(*one) && !is_image(*other));
        let texts = parts.map(|part| match image_of(part[0], &self.chat.images) {
            Some(image) if image.is_audio() => Ok("[audio]".to_owned()),
            Some(_) => Ok("[image]".to_owned()),
            None => model.detokenize_with_control(part),
        });
        texts.collect()
    }

    /// The tokens of the prompt, up to its first image or audio, which has none. An error if the prompt is too long.
    pub async fn prompt_tokens(mut self) -> Result<Vec<Token>, Error> {
        let Prompt {
            model, mut tokens, ..
        } = self.render().await?;
        check_prompt(&model, &tokens, 1, self.messages_field)?;
        let end = tokens.iter().position(|token| is_image(*token));
        tokens.truncate(end.unwrap_or(tokens.len()));
        Ok(tokens)
    }

    /// The number of tokens of the prompt. Images are encoded to count theirs.
    pub async fn count_tokens(mut self) -> Result<usize, Error> {
        let Prompt { model, tokens, .. } = self.render().await?;
        if self.chat.images.is_empty() {
            return Ok(tokens.len());
        }
        let sequence = model.empty_sequence()?;
        let appended = sequence.append_prompt(&tokens, &self.chat.images).await;
        appended.map_err(|error| image_error(error, self.messages_field))?;
        Ok(sequence.len() as usize)
    }

    /// Opens the model and renders the prompt.
    async fn render(&mut self) -> Result<Prompt, Error> {
        let model = Model::open_requested(self.model.as_deref()).await?;
        self.chat.images = images::take();
        self.check_images(&model)?;
        let call_format = match self.tools.are_offered() {
            true => Some(CallFormat::detect(&model)?),
            false => None,
        };
        if call_format.is_some() {
            self.chat.tools = self
                .tools
                .list
                .iter()
                .filter(|tool| !tool.deferred)
                .map(|tool| tool.definition.clone())
                .collect();
        }
        self.chat.variables = std::mem::take(&mut self.template_kwargs).for_template(&model)?;
        self.rename_developer_role(&model);
        let mut tokens = prompt::tokens(&self.chat, &model, self.messages_field)?;
        prompt::check_names(&self.chat, &tokens, &model)?;
        let (reasons, mut open) = reasoning(&model, &tokens)?;
        if let Some(prefill) = &self.prefill {
            if open {
                // The answer has begun, so the reasoning has ended.
                tokens.extend(model.tokenize_trusted(&format!("\n{CLOSING_TAG}\n\n"))?);
                open = false;
            }
            tokens.extend(model.tokenize(prefill)?);
        }
        Ok(Prompt {
            model,
            call_format,
            tokens,
            reasons,
            open,
        })
    }

    /// Refuses images and audio that the model does not accept.
    fn check_images(&self, model: &Model) -> Result<(), Error> {
        let (images, audio) = (model.accepts_images(), model.accepts_audio());
        let has = |audio| self.chat.images.iter().any(|file| file.is_audio() == audio);
        let (what, use_another) = match (has(false) && !images, has(true) && !audio) {
            (false, false) => return Ok(()),
            (true, _) => ("images", "use a vision model"),
            (_, true) => ("audio", "use a model that accepts audio"),
        };
        let reads = match (images, audio) {
            (true, _) => "text and images",
            (_, true) => "text and audio",
            _ => "text only",
        };
        let name = model.name();
        let why = format!("{what}: the model {name} reads {reads}; {use_another}");
        Err(unsupported(self.messages_field, &why))
    }

    /// Opens the model, renders the prompt and starts the generations.
    pub async fn start(mut self) -> Result<AnswerStream, Error> {
        let Prompt {
            model,
            call_format,
            tokens,
            reasons,
            open,
        } = self.render().await?;
        let constraint = self.constraint(&model, call_format, open).await?;
        check_prompt(&model, &tokens, 1, self.messages_field)?;
        let sequence = model.empty_sequence()?;
        let appended = sequence.append_prompt(&tokens, &self.chat.images).await;
        appended.map_err(|error| image_error(error, self.messages_field))?;
        let choices = Choices::start_after(&model, sequence, &self.settings, constraint.as_ref())?;

        let mut tags = Vec::new();
        if reasons {
            tags.extend([OPENING_TAG, CLOSING_TAG]);
        }
        if let Some(format) = call_format {
            tags.push(format.opening());
            tags.extend(format.closing());
        }
        let control_tags = ControlTags::new(&tags, &model)?;
        let names: Vec<_> = self
            .tools
            .list
            .iter()
            .map(|tool| tool.name.clone())
            .collect();
        let parsers = (0..choices.count()).map(|_| OutputParser {
            control_tags: control_tags.clone(),
            reasoning: match reasons {
                true => ReasoningParser::new(open),
                false => ReasoningParser::disabled(),
            },
            calls: match call_format {
                Some(format) => CallParser::new(format, names.clone(), self.tools.parallel),
                None => CallParser::disabled(),
            },
        });
        Ok(AnswerStream::new(choices, parsers.collect(), call_format))
    }

    /// Renames OpenAI's role `developer` for templates that do not know it.
    fn rename_developer_role(&mut self, model: &Model) {
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
        call_format: Option<CallFormat>,
        open: bool,
    ) -> Result<Option<Constraint>, Error> {
        // The host's errors about a grammar alone give the position of a mistake.
        if call_format.is_none() && !open {
            return self.format.constraint(model, self.format_field).await;
        }
        let format = self.format.part(self.format_field)?;
        let calls = match call_format {
            Some(call_format) if self.tools.are_required() || format.is_some() => {
                Some(LarkGrammar::calls(&self.tools, call_format, model)?)
            }
            Some(call_format) if self.tools.are_strict() => Some(
                LarkGrammar::calls(&self.tools, call_format, model)?
                    .optional(call_format, model)?,
            ),
            _ => None,
        };
        let (lark, field) = match (calls, format) {
            (None, None) => return Ok(None),
            (Some(calls), Some(format)) if !self.tools.are_required() => {
                (format.or(calls), self.format_field)
            }
            (Some(calls), _) => (calls, "tools"),
            (None, Some(format)) => (format, self.format_field),
        };
        let grammar = Grammar::Lark(lark.text(model, open)?);
        let compiled = Constraint::compile(model, grammar).await;
        let constraint = compiled.map_err(|error| match error {
            Error::Invalid(text) => {
                let (rule, text) = LarkGrammar::schema_error(&text);
                let field = rule.map_or(field.to_owned(), |rule| self.field_of(rule));
                invalid_constraint(text, &field)
            }
            other => other,
        })?;
        name_ignored_keywords(&constraint, |rule| self.field_of(rule));
        Ok(Some(constraint))
    }

    /// The field of the request whose schema is in a rule of [`LarkGrammar`].
    fn field_of(&self, rule: &str) -> String {
        match LarkGrammar::tool_of_rule(rule) {
            Some(tool) => format!("tools[{tool}]"),
            None => self.format_field.to_owned(),
        }
    }
}

/// The host's errors about an image or audio tell what is wrong with it.
fn image_error(error: Error, field: &str) -> Error {
    match error.code() {
        "invalid-image" | "invalid-audio" => error.with_field(field),
        _ => error,
    }
}

/// Whether the model reasons, and whether the prompt ends inside reasoning.
fn reasoning(model: &Model, tokens: &[Token]) -> Result<(bool, bool), Error> {
    let template = model.info().chat_template.as_deref().unwrap_or_default();
    let open = prompt::ends_in_reasoning(tokens, model)?;
    Ok((open || template.contains(CLOSING_TAG), open))
}
