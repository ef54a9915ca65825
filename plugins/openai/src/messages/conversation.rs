//! Converts messages and their blocks to messages for a template.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Map, Value, json};

use crate::offered_tools::result_text;
use conversation::message::call;
use conversation::{Tools, images, silently_ignored, unsupported, without_effect};

/// The most bytes of definitions that take the place of references to tools: as many as a body may have.
const DEFINITION_BYTES: usize = 8 << 20;

/// The messages so far.
pub struct Conversation<'a> {
    messages: Vec<Value>,
    tools: &'a Tools,
    /// Bytes of definitions so far.
    definition_bytes: usize,
}

/// The parts of a message.
#[derive(Default)]
struct Parts {
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    /// Number of tool results, which are messages of their own.
    results: usize,
}

/// Whether a block is a call of a tool that another server ran, or its result.
fn is_of_server_tool(kind: &str) -> bool {
    kind == "server_tool_use" || kind == "mcp_tool_use" || kind.ends_with("_tool_result")
}

impl<'a> Conversation<'a> {
    pub fn new(tools: &'a Tools) -> Self {
        Conversation {
            messages: Vec::new(),
            tools,
            definition_bytes: 0,
        }
    }

    pub fn push(&mut self, role: &str, text: String) {
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// The messages, and the start of the answer: the text of a last message that is the assistant's.
    pub fn end(mut self) -> (Vec<Value>, Option<String>) {
        let last = self.messages.last();
        let prefill = last
            .filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_none())
            .and_then(|last| last["content"].as_str().map(str::to_owned));
        if prefill.is_some() {
            self.messages.pop();
        }
        (self.messages, prefill)
    }

    /// Adds a message, preceded by the tool results that it contains.
    pub fn add(&mut self, mut fields: Fields) -> Result<(), Error> {
        let role = fields.text("role")?;
        let content = fields.take("content").unwrap_or(Value::Null);
        silently_ignored::drop(&mut fields, &silently_ignored::OF_MESSAGE);
        fields.ignore_unknown(&["role", "content"])?;
        let role = match role.as_deref() {
            Some("user") => "user",
            Some("assistant") => "assistant",
            Some("system") => "system",
            _ => {
                let expected = "user, assistant or system";
                return Err(out_of_range(&fields.path("role"), &role.into(), expected));
            }
        };
        let path = fields.path("content");
        let mut parts = Parts::default();
        match content {
            Value::Null => {}
            Value::String(text) => parts.text = text,
            Value::Array(blocks) => {
                for (index, block) in blocks.into_iter().enumerate() {
                    let block = Fields::at(format!("{path}[{index}]"), block)?;
                    self.add_block(role, block, &mut parts)?;
                }
            }
            other => return Err(wrong_type(&path, "a string or a list of blocks", &other)),
        }
        if parts.text.is_empty() && parts.calls.is_empty() {
            return match (role, parts.results) {
                // Answers that ended before their text, such as interrupted ones.
                ("assistant", _) => without_effect(&path, "it has neither text nor calls"),
                (_, 0) => {
                    let text = format!("`{path}` has no content; expected text or tool results");
                    Err(Error::bad_request("empty-message", text).with_field(&path))
                }
                _ => Ok(()),
            };
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), role.into());
        let text = Some(parts.text).filter(|text| !text.is_empty());
        message.insert("content".to_owned(), text.into());
        if !parts.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), parts.reasoning.into());
        }
        if !parts.calls.is_empty() {
            message.insert("tool_calls".to_owned(), parts.calls.into());
        }
        self.messages.push(message.into());
        Ok(())
    }

    fn add_block(&mut self, role: &str, mut block: Fields, parts: &mut Parts) -> Result<(), Error> {
        silently_ignored::drop(&mut block, &silently_ignored::OF_PART);
        let kind = block.text("type")?;
        let known: &[&str] = match (role, kind.as_deref()) {
            (_, Some("text")) => {
                parts.text += &block.required_text("text")?;
                &["type", "text"]
            }
            ("user", Some("image")) => {
                parts.text += &images::read_part(&mut block, "image")?;
                &["type", "source"]
            }
            ("user", Some("tool_result")) => {
                let result = self.tool_result(&mut block)?;
                self.messages.push(result);
                parts.results += 1;
                &["type", "tool_use_id", "content", "is_error"]
            }
            ("assistant", Some("tool_use")) => {
                let id = block.required_text("id")?;
                let name = block.required_text("name")?;
                let input = block.object("input")?.map(Fields::into_map);
                let call = call(Some(id), &name, input.unwrap_or_default().into());
                parts.calls.push(call);
                &["type", "id", "name", "input", "caller"]
            }
            ("assistant", Some("thinking")) => {
                parts.reasoning += &block.required_text("thinking")?;
                // Reasoning is not signed here, and the signature of another server does not matter.
                &["type", "thinking", "signature"]
            }
            ("assistant", Some("redacted_thinking")) => {
                return without_effect(&block.path("data"), "it can't be decrypted");
            }
            ("assistant", Some(kind)) if is_of_server_tool(kind) => {
                return without_effect(&block.path(kind), "it can't be shown to the model");
            }
            ("system", Some("tool_addition" | "tool_removal")) => {
                let mut tool = block.required_object("tool")?;
                let definition = tool.object("definition")?.map(Fields::into_map);
                let name = tool.text("name")?.or(tool.text("tool_name")?);
                let name = name.unwrap_or_default();
                parts.text += &match (kind.as_deref(), definition) {
                    (Some("tool_removal"), _) => {
                        format!("The tool {name} is no longer available.\n")
                    }
                    (_, Some(definition)) => {
                        format!("This tool is now available:\n{}\n", Value::from(definition))
                    }
                    _ => {
                        let definition = self.definition(&name, &block.path("tool"))?;
                        format!("This tool is now available:\n{definition}\n")
                    }
                };
                &["type", "tool"]
            }
            _ => {
                let kinds = match role {
                    "assistant" => "text, thinking and tool_use",
                    "user" => "text, image and tool_result",
                    _ => "text",
                };
                let why = format!(
                    "blocks of the type {} are unknown; expected {kinds}",
                    Value::from(kind)
                );
                return Err(unsupported(&block.path("type"), &why));
            }
        };
        block.ignore_unknown(known)
    }

    /// Reads a tool result. Templates have no field for a failure, so it becomes a prefix of the
    /// content. References to tools become their definitions.
    fn tool_result(&mut self, block: &mut Fields) -> Result<Value, Error> {
        let id = block.required_text("tool_use_id")?;
        let failed = block.flag("is_error")?;
        let path = block.path("content");
        let mut content = match block.take("content") {
            None => String::new(),
            Some(mut content) => {
                for part in content.as_array_mut().into_iter().flatten() {
                    if part["type"] == "tool_reference" {
                        let name = part["tool_name"].as_str().unwrap_or_default();
                        *part = format!("{}\n", self.definition(name, &path)?).into();
                    }
                }
                result_text(&path, content, &["text"])?
            }
        };
        if failed {
            content = format!("Error: {content}").trim_end().to_owned();
        }
        Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
    }

    /// The definition of a tool, as a template shows it; the name of an unknown one. `path`: where it is
    /// referred to.
    fn definition(&mut self, name: &str, path: &str) -> Result<String, Error> {
        let tool = self.tools.list.iter().find(|tool| tool.name == name);
        let text = tool.map_or_else(|| name.to_owned(), |tool| tool.definition.to_string());
        self.definition_bytes += text.len();
        if self.definition_bytes > DEFINITION_BYTES {
            let text = format!(
                "the tools that messages refer to have definitions of more than {DEFINITION_BYTES} bytes; \
                 refer to each tool once"
            );
            return Err(Error::bad_request("out-of-range", text).with_field(path));
        }
        Ok(text)
    }
}
