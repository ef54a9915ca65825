//! Tools: their definitions, call formats, grammars and parsers.

mod call_format;
mod call_parser;
mod call_scanner;
mod grammar;

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use serde_json::{Map, Value, json};

pub use call_format::CallFormat;
pub use call_parser::CallParser;
pub use grammar::LarkGrammar;

use crate::{silently_ignored, unsupported};

/// The most tools of a request. Agents with several MCP servers offer more than the 128 of OpenAI's API.
const TOOL_LIMIT: usize = 512;
/// The longest name of a tool; that of Anthropic's API.
const NAME_BYTES: usize = 128;

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    pub list: Vec<Tool>,
    pub choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    /// The JSON schema of the arguments; `None` for any object.
    pub parameters: Option<Value>,
    /// Whether the arguments must satisfy the schema even if the model decides whether to call.
    pub strict: bool,
    /// The definition for the template.
    pub definition: Value,
    /// Whether the definition is left out of the list of tools, because a message has it.
    pub deferred: bool,
}

/// Whether the model calls tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// Never.
    None,
    /// At least one.
    Required,
    /// This function.
    Named(String),
}

impl Tools {
    /// Reads the tools of a chat completion.
    pub fn read(fields: &mut Fields) -> Result<Self, Error> {
        let list = Self::list(fields, |mut tool| {
            let kind = tool.text("type")?;
            let path = tool.path("type");
            if kind.as_deref() != Some("function") {
                return Err(out_of_range(&path, &kind.into(), "\"function\""));
            }
            let function = tool.required_object("function")?;
            silently_ignored::drop(&mut tool, &silently_ignored::OF_TOOL);
            tool.ignore_unknown(&["type", "function"])?;
            Tool::read(function, "parameters")
        })?;
        let choice = read_choice(fields.take("tool_choice"), true)?;
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        Self::new(list, choice, parallel)
    }

    /// Reads the entries of `tools` with `read`.
    pub fn list(
        fields: &mut Fields,
        read: impl Fn(Fields) -> Result<Tool, Error>,
    ) -> Result<Vec<Tool>, Error> {
        let list = fields.list("tools")?.unwrap_or_default();
        let list = list.into_iter().enumerate();
        list.map(|(index, tool)| read(Fields::at(format!("tools[{index}]"), tool)?))
            .collect()
    }

    /// Creates the tools; an error if the choice does not match them.
    pub fn new(list: Vec<Tool>, choice: Option<ToolChoice>, parallel: bool) -> Result<Self, Error> {
        check_count(list.len())?;
        let valid = match &choice {
            None | Some(ToolChoice::None | ToolChoice::Auto) => true,
            Some(ToolChoice::Required) => !list.is_empty(),
            Some(ToolChoice::Named(name)) => list.iter().any(|tool| tool.name == *name),
        };
        if !valid {
            let names: Vec<_> = list.iter().map(|tool| &tool.name).collect();
            let text = format!(
                "`tool_choice` names a tool that is not in `tools`; expected one of {names:?}"
            );
            return Err(Error::bad_request("out-of-range", text).with_field("tool_choice"));
        }
        Ok(Tools {
            list,
            choice: choice.unwrap_or_default(),
            parallel,
        })
    }

    /// Adds a tool that a message defines, unless there is one of its name.
    pub fn add(&mut self, tool: Tool) -> Result<(), Error> {
        if self.list.iter().all(|known| known.name != tool.name) {
            check_count(self.list.len() + 1)?;
            self.list.push(Tool {
                deferred: true,
                ..tool
            });
        }
        Ok(())
    }

    /// Whether the model may call tools.
    pub fn are_offered(&self) -> bool {
        !self.list.is_empty() && self.choice != ToolChoice::None
    }

    /// Whether the model must call a tool.
    pub fn are_required(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// Whether a tool is strict.
    pub fn are_strict(&self) -> bool {
        self.list.iter().any(|tool| tool.strict)
    }

    /// The tools that a required call may name, with their numbers in the list.
    pub fn callable(&self) -> impl Iterator<Item = (usize, &Tool)> {
        let tools = self.list.iter().enumerate();
        tools.filter(|(_, tool)| match &self.choice {
            ToolChoice::Named(name) => tool.name == *name,
            _ => true,
        })
    }
}

fn check_count(count: usize) -> Result<(), Error> {
    if count <= TOOL_LIMIT {
        return Ok(());
    }
    let text = format!("`tools` has {count} entries; expected at most {TOOL_LIMIT}");
    Err(Error::bad_request("out-of-range", text).with_field("tools"))
}

impl Tool {
    /// Reads a function's name, description and the schema of its arguments.
    pub fn read(mut fields: Fields, parameters: &str) -> Result<Self, Error> {
        let name = fields.required_text("name")?;
        let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=NAME_BYTES).contains(&name.len()) || !name.bytes().all(word) {
            let expected = "1 to 128 letters, digits, _ or -";
            return Err(out_of_range(&fields.path("name"), &name.into(), expected));
        }
        let description = fields.text("description")?;
        let schema = fields.object(parameters)?;
        let schema = schema.map(|schema| Value::from(schema.into_map()));
        let strict = fields.flag("strict")?;
        silently_ignored::drop(&mut fields, &silently_ignored::OF_TOOL);
        fields.ignore_unknown(&["name", "description", parameters, "strict"])?;
        let mut function = Map::new();
        function.insert("name".to_owned(), name.clone().into());
        if let Some(description) = description {
            function.insert("description".to_owned(), description.into());
        }
        if let Some(schema) = &schema {
            function.insert("parameters".to_owned(), schema.clone());
        }
        Ok(Tool {
            name,
            parameters: schema,
            strict,
            definition: json!({"type": "function", "function": function}),
            deferred: false,
        })
    }
}

/// Reads `tool_choice`: a word, or an object that names a function; with `nested`, inside the field
/// `function`.
pub fn read_choice(value: Option<Value>, nested: bool) -> Result<Option<ToolChoice>, Error> {
    const EXPECTED: &str = "\"none\", \"auto\", \"required\", or an object that names a function";
    let Some(value) = value else { return Ok(None) };
    match value.as_str() {
        Some("none") => return Ok(Some(ToolChoice::None)),
        Some("auto") => return Ok(Some(ToolChoice::Auto)),
        Some("required") => return Ok(Some(ToolChoice::Required)),
        Some(_) => return Err(out_of_range("tool_choice", &value, EXPECTED)),
        None => {}
    }
    let mut fields = Fields::at("tool_choice".to_owned(), value)?;
    match fields.text("type")?.as_deref() {
        Some("function") => {}
        Some(other) => {
            return Err(unsupported(
                "tool_choice",
                &format!("the type {other:?} is unknown; expected function"),
            ));
        }
        None => return Err(fields.missing("type", "\"function\"")),
    }
    let name = match nested {
        true => {
            let mut function = fields.required_object("function")?;
            let name = function.text("name")?;
            function.ignore_unknown(&["name"])?;
            name
        }
        false => fields.text("name")?,
    };
    fields.ignore_unknown(&["type", if nested { "function" } else { "name" }])?;
    let name = name.ok_or_else(|| fields.missing("name", "the name of a function"))?;
    Ok(Some(ToolChoice::Named(name)))
}
