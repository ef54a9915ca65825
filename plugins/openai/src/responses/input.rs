//! The items of a conversation, as messages for a template.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, wrong_type};
use serde_json::{Map, Value, json};

use crate::chat::messages::{arguments_of, call, text};
use crate::error::unsupported;

/// A text alone is said by the user.
pub fn read(input: Value) -> Result<Vec<Value>, Error> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => {
            let text = "`input` is empty; expected at least one item";
            return Err(Error::bad_request("empty-prompt", text).about("input"));
        }
        other => return Err(wrong_type("input", "a string or a list of items", &other)),
    };
    let mut conversation = Conversation::default();
    for (index, item) in items.into_iter().enumerate() {
        conversation.add(Fields::of(format!("input[{index}]"), item)?)?;
    }
    conversation.nothing_is_only_thought()?;
    let messages = conversation.messages.into_iter();
    Ok(messages.map(Value::Object).collect())
}

#[derive(Default)]
struct Conversation {
    messages: Vec<Map<String, Value>>,
    /// What the assistant thought before what it says next, and where that stands.
    thought: Option<(String, String)>,
    /// Whether the last message is the assistant's, and goes on with what it says next.
    goes_on: bool,
}

impl Conversation {
    fn add(&mut self, mut item: Fields) -> Result<(), Error> {
        // Of answers that are sent back.
        for harmless in ["id", "status", "phase"] {
            item.take(harmless);
        }
        let kind = item.text("type")?;
        match kind.as_deref() {
            None | Some("message") => self.message(item),
            Some("function_call") => self.called(item),
            Some("function_call_output") => self.result(item),
            Some("reasoning") => self.thought(item),
            Some(other) => {
                let why = format!(
                    "items of the type {other:?} are not known; known are message, function_call, \
                     function_call_output and reasoning"
                );
                Err(unsupported(&item.path("type"), &why))
            }
        }
    }

    fn message(&mut self, mut item: Fields) -> Result<(), Error> {
        let expected = "system, developer, user or assistant";
        let role = item.text("role")?;
        let role = role.ok_or_else(|| item.missing("role", expected))?;
        let kinds: &[&str] = match role.as_str() {
            "system" | "developer" | "user" => &["input_text"],
            "assistant" => &["output_text", "refusal"],
            _ => {
                let path = item.path("role");
                return Err(corral_sdk::fields::out_of_range(
                    &path,
                    &role.into(),
                    expected,
                ));
            }
        };
        let content = item.take("content");
        let content = content.ok_or_else(|| item.missing("content", "a string or a list"))?;
        let content = text(&item.path("content"), content, kinds)?;
        item.refuse_unknown(&["type", "role", "content"])?;
        match role.as_str() {
            "assistant" => {
                self.goes_on = false;
                self.assistant()
                    .insert("content".to_owned(), content.into());
            }
            _ => {
                self.nothing_is_only_thought()?;
                self.other([("role", role), ("content", content)]);
            }
        }
        Ok(())
    }

    fn called(&mut self, mut item: Fields) -> Result<(), Error> {
        let mut needed = |name: &str| {
            let text = item.text(name)?;
            text.ok_or_else(|| item.missing(name, "a string"))
        };
        let (id, name, arguments) = (needed("call_id")?, needed("name")?, needed("arguments")?);
        item.refuse_unknown(&["type", "call_id", "name", "arguments"])?;
        let call = call(Some(id), &name, arguments_of(&arguments));
        let calls = self
            .assistant()
            .entry("tool_calls")
            .or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
        Ok(())
    }

    fn result(&mut self, mut item: Fields) -> Result<(), Error> {
        let id = item.text("call_id")?;
        let id = id.ok_or_else(|| item.missing("call_id", "a string"))?;
        let output = item.take("output");
        let output = output.ok_or_else(|| item.missing("output", "a string or a list"))?;
        let output = text(&item.path("output"), output, &["input_text"])?;
        item.refuse_unknown(&["type", "call_id", "output"])?;
        self.nothing_is_only_thought()?;
        let message = self.other([("role", "tool".to_owned()), ("content", output)]);
        message.insert("tool_call_id".to_owned(), id.into());
        Ok(())
    }

    fn thought(&mut self, mut item: Fields) -> Result<(), Error> {
        if item.take("encrypted_content").is_some() {
            let why = "nobody here can read it";
            return Err(unsupported(&item.path("encrypted_content"), why));
        }
        let path = item.path("content");
        let earlier = self.thought.take().map(|(_, thought)| thought);
        let mut thoughts: Vec<_> = earlier.into_iter().collect();
        for (member, kind) in [("summary", "summary_text"), ("content", "reasoning_text")] {
            if let Some(thought) = item.take(member) {
                thoughts.push(text(&item.path(member), thought, &[kind])?);
            }
        }
        item.refuse_unknown(&["type", "summary", "content"])?;
        thoughts.retain(|thought| !thought.is_empty());
        self.goes_on = false;
        self.thought = (!thoughts.is_empty()).then(|| (path, thoughts.join("\n\n")));
        Ok(())
    }

    /// An error, where the assistant thought and then said nothing: no message has that thought.
    fn nothing_is_only_thought(&self) -> Result<(), Error> {
        match &self.thought {
            None => Ok(()),
            Some((path, _)) => {
                let why = "without an answer or a call of the assistant after it";
                Err(unsupported(path, why))
            }
        }
    }

    fn other(&mut self, members: [(&str, String); 2]) -> &mut Map<String, Value> {
        self.goes_on = false;
        self.push(members.map(|(name, text)| (name, text.into())))
    }

    fn push(&mut self, members: [(&str, Value); 2]) -> &mut Map<String, Value> {
        let members = members.map(|(name, value)| (name.to_owned(), value));
        let index = self.messages.len();
        self.messages.push(members.into_iter().collect());
        &mut self.messages[index]
    }

    /// The message that the assistant is saying: a thought, a text and calls are one.
    fn assistant(&mut self) -> &mut Map<String, Value> {
        if self.goes_on
            && let Some(index) = self.messages.len().checked_sub(1)
        {
            return &mut self.messages[index];
        }
        self.goes_on = true;
        let thought = self.thought.take();
        let message = self.push([("role", "assistant".into()), ("content", Value::Null)]);
        if let Some((_, thought)) = thought {
            message.insert("reasoning_content".to_owned(), thought.into());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn summaries_are_thoughts() {
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
    fn what_is_wrong_is_named() {
        for (input, member) in [
            (json!(1), "input"),
            (json!([]), "input"),
            (json!([1]), "input[0]"),
            (
                json!([{"type": "item_reference", "id": "x"}]),
                "input[0].type",
            ),
            (json!([{"role": "tool", "content": "x"}]), "input[0].role"),
            (
                json!([{"role": "user", "content": [{"type": "input_image"}]}]),
                "input[0].content[0].type",
            ),
            (
                json!([{"type": "function_call", "call_id": "x", "name": "f"}]),
                "input[0].arguments",
            ),
            (
                json!([{"type": "reasoning", "content": "hm"}, {"role": "user", "content": "Hi"}]),
                "input[0].content",
            ),
            (
                json!([{"type": "reasoning", "content": "hm"}, {"type": "function_call_output", "call_id": "x", "output": "2"}]),
                "input[0].content",
            ),
            (
                json!([{"role": "user", "content": "Hi"}, {"type": "reasoning", "content": "hm"}]),
                "input[1].content",
            ),
            (
                json!([{"type": "reasoning", "encrypted_content": "x"}]),
                "input[0].encrypted_content",
            ),
        ] {
            let error = read(input.clone()).unwrap_err();
            assert_eq!(
                (error.status(), error.member()),
                (400, Some(member)),
                "{input}"
            );
        }
    }
}
