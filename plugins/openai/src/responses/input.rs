//! Converts the input items to messages for a template.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Map, Value, json};

use super::encoded_reasoning;
use super::tool_names::{TOOL_SEARCH, ToolNames, custom_arguments, joined};
use crate::offered_tools::result_text;
use conversation::message::{call, parse_arguments, text};
use conversation::tools::Tools;
use conversation::{unsupported, without_effect};

/// Items of another server's tools and of compacted conversations.
const KNOWN_KINDS: [&str; 20] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "computer_call",
    "computer_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "compaction",
    "compaction_summary",
    "context_compaction",
    "compaction_trigger",
];

/// Reads the input. A string is a user message.
///
/// Tools that a search of the client found become callable. The first `earlier` items are those of the stored
/// conversation: errors name the others by their place in the request.
pub fn read(
    input: Value,
    earlier: usize,
    tools: &mut Tools,
    names: &mut ToolNames,
) -> Result<Vec<Value>, Error> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => {
            let text = "`input` is empty; expected at least one item";
            return Err(Error::bad_request("empty-prompt", text).with_field("input"));
        }
        other => return Err(wrong_type("input", "a string or a list of items", &other)),
    };
    let mut conversation = Conversation {
        messages: Vec::new(),
        reasoning: None,
        continues: false,
        tools,
        names,
    };
    for (index, item) in items.into_iter().enumerate() {
        let path = match index.checked_sub(earlier) {
            Some(index) => format!("input[{index}]"),
            None => format!("previous_response_id[{index}]"),
        };
        conversation.add(Fields::at(path, item)?)?;
    }
    conversation.drop_dangling_reasoning()?;
    let messages = conversation.messages.into_iter();
    Ok(messages.map(Value::Object).collect())
}

struct Conversation<'a> {
    messages: Vec<Map<String, Value>>,
    /// Reasoning that precedes the assistant's next message, and its path.
    reasoning: Option<(String, String)>,
    /// Whether the assistant's next item continues the last message.
    continues: bool,
    tools: &'a mut Tools,
    names: &'a mut ToolNames,
}

impl Conversation<'_> {
    fn add(&mut self, mut item: Fields) -> Result<(), Error> {
        // Fields of earlier answers.
        for ignored in ["id", "status", "phase", "created_by", "caller"] {
            item.take(ignored);
        }
        let kind = item.text("type")?;
        match kind.as_deref() {
            None | Some("message") => self.add_message(item),
            Some("function_call") => self.add_call(item),
            Some("function_call_output" | "custom_tool_call_output") => self.add_result(item),
            Some("reasoning") => self.add_reasoning(item),
            Some("custom_tool_call") => self.add_custom_call(item),
            Some("tool_search_call") => self.add_search(item),
            Some("tool_search_output") => self.add_found_tools(item),
            Some(kind) if KNOWN_KINDS.contains(&kind) => {
                without_effect(&item.path(kind), "it can't be shown to the model")
            }
            Some(other) => {
                let why = format!(
                    "items of the type {other:?} are unknown; expected message, function_call, \
                     function_call_output, custom_tool_call, custom_tool_call_output or reasoning"
                );
                Err(unsupported(&item.path("type"), &why))
            }
        }
    }

    fn add_message(&mut self, mut item: Fields) -> Result<(), Error> {
        let expected = "system, developer, user or assistant";
        let role = item.text("role")?;
        let role = role.ok_or_else(|| item.missing("role", expected))?;
        let kinds: &[&str] = match role.as_str() {
            "user" => &["input_text", "input_image", "input_audio"],
            "system" | "developer" => &["input_text"],
            "assistant" => &["output_text", "refusal"],
            _ => {
                return Err(out_of_range(&item.path("role"), &role.into(), expected));
            }
        };
        let content = item.required("content", "a string or a list")?;
        let content = text(&item.path("content"), content, kinds)?;
        item.ignore_unknown(&["type", "role", "content"])?;
        match role.as_str() {
            "assistant" => {
                self.continues = false;
                self.assistant()
                    .insert("content".to_owned(), content.into());
            }
            _ => {
                self.drop_dangling_reasoning()?;
                self.push_other([("role", role), ("content", content)]);
            }
        }
        Ok(())
    }

    fn add_call(&mut self, mut item: Fields) -> Result<(), Error> {
        let id = item.required_text("call_id")?;
        let mut name = item.required_text("name")?;
        if let Some(namespace) = item.text("namespace")? {
            name = joined(&namespace, &name);
        }
        let arguments = item.required_text("arguments")?;
        item.ignore_unknown(&["type", "call_id", "name", "arguments"])?;
        self.push_call(call(Some(id), &name, parse_arguments(&arguments)));
        Ok(())
    }

    fn add_custom_call(&mut self, mut item: Fields) -> Result<(), Error> {
        let id = item.required_text("call_id")?;
        let name = item.required_text("name")?;
        let input = item.required_text("input")?;
        item.ignore_unknown(&["type", "call_id", "name", "input"])?;
        self.push_call(call(Some(id), &name, custom_arguments(&input)));
        Ok(())
    }

    fn add_search(&mut self, mut item: Fields) -> Result<(), Error> {
        let id = item.text("call_id")?;
        let arguments = item.object("arguments")?.map(Fields::into_map);
        item.ignore_unknown(&["type", "call_id", "arguments", "execution"])?;
        self.push_call(call(id, TOOL_SEARCH, arguments.unwrap_or_default().into()));
        Ok(())
    }

    /// Adds the definitions of found tools as the result of the search.
    fn add_found_tools(&mut self, mut item: Fields) -> Result<(), Error> {
        let id = item.text("call_id")?;
        let path = item.path("tools");
        let mut found = Vec::new();
        for (index, tool) in item
            .list("tools")?
            .unwrap_or_default()
            .into_iter()
            .enumerate()
        {
            let tool = Fields::at(format!("{path}[{index}]"), tool)?;
            self.names.read(tool, &mut found)?;
        }
        item.ignore_unknown(&["type", "call_id", "tools", "execution"])?;
        let texts: Vec<_> = found
            .iter()
            .map(|tool| tool.definition.to_string())
            .collect();
        self.drop_dangling_reasoning()?;
        let message = self.push_other([("role", "tool".to_owned()), ("content", texts.join("\n"))]);
        if let Some(id) = id {
            message.insert("tool_call_id".to_owned(), id.into());
        }
        for tool in found {
            self.tools.add(tool)?;
        }
        Ok(())
    }

    fn push_call(&mut self, call: Value) {
        let calls = self
            .assistant()
            .entry("tool_calls")
            .or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
    }

    fn add_result(&mut self, mut item: Fields) -> Result<(), Error> {
        let id = item.required_text("call_id")?;
        let output = item.required("output", "a string or a list")?;
        let output = result_text(&item.path("output"), output, &["input_text", "output_text"])?;
        item.ignore_unknown(&["type", "call_id", "output", "name"])?;
        self.drop_dangling_reasoning()?;
        let message = self.push_other([("role", "tool".to_owned()), ("content", output)]);
        message.insert("tool_call_id".to_owned(), id.into());
        Ok(())
    }

    fn add_reasoning(&mut self, mut item: Fields) -> Result<(), Error> {
        // Clients may send an empty list for reasoning that they do not keep.
        let content = item.peek("content");
        let is_readable = content.is_some_and(|content| *content != json!([]));
        let encoded = item.take("encrypted_content").filter(|_| !is_readable);
        let decoded = encoded.as_ref().and_then(Value::as_str);
        let decoded = decoded.and_then(encoded_reasoning::decode);
        if encoded.is_some() && decoded.is_none() {
            without_effect(&item.path("encrypted_content"), "it can't be decrypted")?;
        }
        let path = item.path("content");
        let earlier = self.reasoning.take().map(|(_, text)| text);
        let mut texts: Vec<_> = earlier.into_iter().chain(decoded).collect();
        for (name, kind) in [("summary", "summary_text"), ("content", "reasoning_text")] {
            if let Some(value) = item.take(name) {
                texts.push(text(&item.path(name), value, &[kind])?);
            }
        }
        item.ignore_unknown(&["type", "summary", "content"])?;
        texts.retain(|text| !text.is_empty());
        self.continues = false;
        self.reasoning = (!texts.is_empty()).then(|| (path, texts.join("\n\n")));
        Ok(())
    }

    /// Drops reasoning that no message or call of the assistant follows, such as after an interruption.
    fn drop_dangling_reasoning(&mut self) -> Result<(), Error> {
        match self.reasoning.take() {
            None => Ok(()),
            Some((path, _)) => {
                without_effect(&path, "no answer or call of the assistant follows it")
            }
        }
    }

    fn push_other(&mut self, fields: [(&str, String); 2]) -> &mut Map<String, Value> {
        self.continues = false;
        self.push(fields.map(|(name, text)| (name, text.into())))
    }

    fn push(&mut self, fields: [(&str, Value); 2]) -> &mut Map<String, Value> {
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        let index = self.messages.len();
        self.messages.push(fields.into_iter().collect());
        &mut self.messages[index]
    }

    /// The assistant's current message: reasoning, content and calls form one.
    fn assistant(&mut self) -> &mut Map<String, Value> {
        if self.continues
            && let Some(index) = self.messages.len().checked_sub(1)
        {
            return &mut self.messages[index];
        }
        self.continues = true;
        let reasoning = self.reasoning.take();
        let message = self.push([("role", "assistant".into()), ("content", Value::Null)]);
        if let Some((_, text)) = reasoning {
            message.insert("reasoning_content".to_owned(), text.into());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::check_field_errors;

    fn read(input: Value) -> Result<Vec<Value>, Error> {
        super::read(input, 0, &mut Tools::default(), &mut ToolNames::default())
    }

    #[test]
    fn items_become_messages() {
        let items = json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "So.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"role": "assistant", "content": "2"},
        ]);
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            Value::from(read(items).unwrap()),
            json!([
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "1+1?"},
                {"role": "assistant", "content": "So.", "reasoning_content": "hm",
                 "tool_calls": [call("c1", "f", json!({"a": 1})), call("c2", "g", json!({}))]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "assistant", "content": "2"},
            ])
        );
        let alone = json!([{"role": "user", "content": "Hi"}]);
        assert_eq!(Value::from(read("Hi".into()).unwrap()), alone);
    }

    #[test]
    fn summaries_are_reasoning() {
        let summary = json!([{"type": "summary_text", "text": "In short."}]);
        let content = json!([{"type": "reasoning_text", "text": "At length."}]);
        for (thoughts, expected) in [
            (json!([{"summary": summary}]), "In short."),
            (
                json!([{"summary": summary, "content": content}]),
                "In short.\n\nAt length.",
            ),
            (
                json!([{"content": content}, {"summary": []}, {"summary": summary}]),
                "At length.\n\nIn short.",
            ),
        ] {
            let mut items = thoughts.as_array().cloned().unwrap();
            for item in &mut items {
                item["type"] = "reasoning".into();
            }
            items.push(json!({"role": "assistant", "content": "2"}));
            let expected =
                json!([{"role": "assistant", "content": "2", "reasoning_content": expected}]);
            assert_eq!(Value::from(read(items.into()).unwrap()), expected);
        }
    }

    #[test]
    fn encoded_reasoning_replaces_missing_content() {
        let readable = json!([{"type": "reasoning_text", "text": "At length."}]);
        for (content, expected) in [
            (Value::Null, "hm"),
            (json!([]), "hm"),
            (readable, "At length."),
        ] {
            let items = json!([
                {"type": "reasoning", "summary": [], "content": content,
                 "encrypted_content": encoded_reasoning::encode("hm")},
                {"role": "assistant", "content": "2"},
            ]);
            let messages = read(items).unwrap();
            assert_eq!(messages[0]["reasoning_content"], expected);
        }
    }

    /// An input, and the field and text of its error.
    const ERRORS: &str = r#"
1 => input: a number
[] => input: is empty
[1] => input[0]: a number
[{"type": "item_reference", "id": "x"}] => input[0].type: item_reference
[{"role": "tool", "content": "x"}] => input[0].role: user or assistant
[{"role": "user", "content": [{"type": "input_image"}]}] => input[0].content[0].image_url: is missing
[{"role": "user", "content": [{"type": "input_audio"}]}] => input[0].content[0].input_audio: is missing
[{"role": "system", "content": [{"type": "input_image"}]}] => input[0].content[0].type: input_image
[{"type": "function_call", "call_id": "x", "name": "f"}] => input[0].arguments: is missing
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, read);
    }
}
