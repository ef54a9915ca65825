//! Tools of the Responses API that are not plain functions, and their names in the prompt.
//!
//! Models call functions. A function of a namespace has both names, joined; a custom tool, whose input is
//! text, is a function with the argument `input`.

use std::collections::HashMap;

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use serde_json::{Value, json};

use conversation::silently_ignored;
use conversation::tools::Tool;

/// The argument of a custom tool.
const INPUT: &str = "input";
/// The search for further tools that the client runs.
pub const TOOL_SEARCH: &str = "tool_search";

/// The longest name of a namespace, in bytes: each of its functions has it in the prompt.
const NAMESPACE_BYTES: usize = 128;

/// What a name in the prompt stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolKind {
    #[default]
    Function,
    Namespaced {
        namespace: String,
        name: String,
    },
    Custom,
    Search,
}

/// The tools by their name in the prompt. Those that are missing are plain functions.
#[derive(Debug, Clone, Default)]
pub struct ToolNames(HashMap<String, ToolKind>);

impl ToolNames {
    pub fn kind(&self, name: &str) -> ToolKind {
        self.0.get(name).cloned().unwrap_or_default()
    }

    /// Reads a tool of the request. Returns the type of one that the client does not run.
    pub fn read(&mut self, mut tool: Fields, own: &mut Vec<Tool>) -> Result<Option<String>, Error> {
        let kind = tool.text("type")?.unwrap_or_default();
        match kind.as_str() {
            "function" => own.push(Tool::read(tool, "parameters")?),
            "namespace" => self.read_namespace(tool, own)?,
            "custom" => {
                let custom = custom(tool)?;
                self.0.insert(custom.name.clone(), ToolKind::Custom);
                own.push(custom);
            }
            TOOL_SEARCH if tool.peek("execution") == Some(&"client".into()) => {
                let mut tool_fields = tool.into_map();
                tool_fields.remove("execution");
                tool_fields.insert("name".to_owned(), TOOL_SEARCH.into());
                tool_fields.remove("type");
                let fields = Fields::at("tools".to_owned(), tool_fields.into())?;
                own.push(Tool::read(fields, "parameters")?);
                self.0.insert(TOOL_SEARCH.to_owned(), ToolKind::Search);
            }
            _ => return Ok(Some(kind)),
        }
        Ok(None)
    }

    fn read_namespace(&mut self, mut tool: Fields, own: &mut Vec<Tool>) -> Result<(), Error> {
        let namespace = tool.required_text("name")?;
        if namespace.len() > NAMESPACE_BYTES {
            let expected = format!("at most {NAMESPACE_BYTES} bytes");
            return Err(out_of_range(
                &tool.path("name"),
                &namespace.into(),
                &expected,
            ));
        }
        // The functions have descriptions of their own.
        tool.text("description")?;
        let path = tool.path("tools");
        let functions = tool.required_list("tools", "a list of functions")?;
        silently_ignored::drop(&mut tool, &silently_ignored::OF_TOOL);
        tool.ignore_unknown(&["type", "name", "description", "tools"])?;
        for (index, function) in functions.into_iter().enumerate() {
            let mut function = Fields::at(format!("{path}[{index}]"), function)?;
            let kind = function.text("type")?;
            let mut function = match kind.as_deref() {
                Some("custom") => custom(function)?,
                _ => Tool::read(function, "parameters")?,
            };
            let name = joined(&namespace, &function.name);
            let kind = ToolKind::Namespaced {
                namespace: namespace.clone(),
                name: std::mem::replace(&mut function.name, name.clone()),
            };
            function.definition["function"]["name"] = name.as_str().into();
            self.0.insert(name, kind);
            own.push(function);
        }
        Ok(())
    }
}

/// The name of a namespace's function in the prompt, in the form of MCP clients.
pub fn joined(namespace: &str, name: &str) -> String {
    match namespace.ends_with("__") {
        true => format!("{namespace}{name}"),
        false => format!("{namespace}__{name}"),
    }
}

/// The arguments of a custom tool with this input.
pub fn custom_arguments(input: &str) -> Value {
    json!({INPUT: input})
}

/// The input of a custom tool, from the arguments that the model wrote.
pub fn custom_input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.and_then(|value| value[INPUT].as_str().map(str::to_owned));
    input.unwrap_or_else(|| arguments.to_owned())
}

/// Reads a custom tool as a function. A grammar becomes a part of the description: the input is inside
/// JSON, where a grammar for plain text can't constrain it.
fn custom(mut tool: Fields) -> Result<Tool, Error> {
    let mut description = tool.text("description")?.unwrap_or_default();
    if let Some(mut format) = tool.object("format")? {
        format.text("type")?;
        let syntax = format.text("syntax")?;
        if let Some(definition) = format.text("definition")? {
            let syntax = syntax.unwrap_or_default();
            description += &format!("\n\nThe input follows this {syntax} grammar:\n{definition}");
        }
    }
    let mut tool_fields = tool.into_map();
    tool_fields.remove("type");
    tool_fields.insert("description".to_owned(), description.trim().into());
    tool_fields.insert(
        "parameters".to_owned(),
        json!({"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}),
    );
    Tool::read(
        Fields::at("tools".to_owned(), tool_fields.into())?,
        "parameters",
    )
}
