//! Tools: what the model may call, how it writes a call, and how that is read.

mod calls;
mod family;
mod grammar;
mod scanner;

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use serde_json::{Map, Value, json};

pub use calls::Calls;
pub use family::Family;
pub use grammar::Lark;

use crate::error::unsupported;

/// As many tools as OpenAI's API takes.
const TOOL_LIMIT: usize = 128;

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    pub list: Vec<Tool>,
    pub choice: Choice,
    /// Whether there may be several calls in an answer.
    pub parallel: bool,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    /// A JSON schema of the arguments; nothing if they may be any object.
    pub parameters: Option<Value>,
    /// Whether the arguments have to fit it, also where the model decides.
    pub strict: bool,
    /// As the template is shown it.
    pub shown: Value,
}

/// Whether tools are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Choice {
    /// The model decides.
    #[default]
    Auto,
    /// No.
    None,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

impl Tools {
    /// Those of a request to `/v1/chat/completions`.
    pub fn read(fields: &mut Fields) -> Result<Self, Error> {
        let list = Self::list(fields, |mut tool| {
            let kind = tool.text("type")?;
            let path = tool.path("type");
            if kind.as_deref() != Some("function") {
                return Err(out_of_range(&path, &kind.into(), "\"function\""));
            }
            let function = tool.object("function")?;
            let function = function.ok_or_else(|| tool.missing("function", "an object"))?;
            tool.refuse_unknown(&["type", "function"])?;
            Tool::read(function, "parameters")
        })?;
        let choice = read_choice(fields.take("tool_choice"), true)?;
        let parallel = fields.choice("parallel_tool_calls")?.unwrap_or(true);
        Self::of(list, choice, parallel)
    }

    /// The entries of `tools`, each read so.
    pub fn list(
        fields: &mut Fields,
        read: impl Fn(Fields) -> Result<Tool, Error>,
    ) -> Result<Vec<Tool>, Error> {
        let list = fields.list("tools")?.unwrap_or_default();
        let list = list.into_iter().enumerate();
        list.map(|(index, tool)| read(Fields::of(format!("tools[{index}]"), tool)?))
            .collect()
    }

    /// These; an error if the choice does not fit.
    pub fn of(list: Vec<Tool>, choice: Option<Choice>, parallel: bool) -> Result<Self, Error> {
        if list.len() > TOOL_LIMIT {
            let text = format!(
                "`tools` has {} entries; expected at most {TOOL_LIMIT}",
                list.len()
            );
            return Err(Error::bad_request("out-of-range", text).about("tools"));
        }
        let fits = match &choice {
            None | Some(Choice::None | Choice::Auto) => true,
            Some(Choice::Required) => !list.is_empty(),
            Some(Choice::Named(name)) => list.iter().any(|tool| tool.name == *name),
        };
        if !fits {
            let names: Vec<_> = list.iter().map(|tool| &tool.name).collect();
            let text = format!(
                "`tool_choice` asks for a tool that is not in `tools`, which has {names:?}"
            );
            return Err(Error::bad_request("out-of-range", text).about("tool_choice"));
        }
        Ok(Tools {
            list,
            choice: choice.unwrap_or_default(),
            parallel,
        })
    }

    /// Whether the model may call any.
    pub fn are_offered(&self) -> bool {
        !self.list.is_empty() && self.choice != Choice::None
    }

    /// Whether it must.
    pub fn are_needed(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// Whether a call of theirs has to fit, where the model decides.
    pub fn are_strict(&self) -> bool {
        self.list.iter().any(|tool| tool.strict)
    }

    /// Those that an answer has to be a call of, if it has to be one.
    pub fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.list.iter().filter(|tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            _ => true,
        })
    }
}

impl Tool {
    /// A function with a name, a description and the schema of its arguments.
    pub fn read(mut fields: Fields, parameters: &str) -> Result<Self, Error> {
        let name = fields.text("name")?;
        let name = name.ok_or_else(|| fields.missing("name", "a string"))?;
        let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(word) {
            let expected = "1 to 64 letters, digits, _ and -";
            return Err(out_of_range(&fields.path("name"), &name.into(), expected));
        }
        let description = fields.text("description")?;
        let schema = fields.object(parameters)?.map(Fields::into_value);
        let strict = fields.flag("strict")?;
        fields.refuse_unknown(&["name", "description", parameters, "strict"])?;
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
            shown: json!({"type": "function", "function": function}),
        })
    }
}

/// What `tool_choice` says: a word, or an object that names a function, `nested` in a member or not.
pub fn read_choice(value: Option<Value>, nested: bool) -> Result<Option<Choice>, Error> {
    const EXPECTED: &str = "\"none\", \"auto\", \"required\", or an object that names a function";
    let value = match value {
        None => return Ok(None),
        Some(value) => value,
    };
    match value.as_str() {
        Some("none") => return Ok(Some(Choice::None)),
        Some("auto") => return Ok(Some(Choice::Auto)),
        Some("required") => return Ok(Some(Choice::Required)),
        Some(_) => return Err(out_of_range("tool_choice", &value, EXPECTED)),
        None => {}
    }
    let mut fields = Fields::of("tool_choice".to_owned(), value)?;
    match fields.text("type")?.as_deref() {
        Some("function") => {}
        Some(other) => {
            return Err(unsupported(
                "tool_choice",
                &format!("of the type {other:?} it is not known"),
            ));
        }
        None => return Err(fields.missing("type", "\"function\"")),
    }
    let name = match nested {
        true => {
            let mut function = fields
                .object("function")?
                .ok_or_else(|| fields.missing("function", "an object"))?;
            let name = function.text("name")?;
            function.refuse_unknown(&["name"])?;
            name
        }
        false => fields.text("name")?,
    };
    fields.refuse_unknown(&["type", if nested { "function" } else { "name" }])?;
    let name = name.ok_or_else(|| fields.missing("name", "the name of a function"))?;
    Ok(Some(Choice::Named(name)))
}
