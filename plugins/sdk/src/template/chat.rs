//! Chats.

use serde_json::{Map, Value, json};

use super::ChatImage;
use crate::Error;

/// A chat that the model continues, as a client sent it.
///
/// ```
/// use corral_sdk::template::Chat;
///
/// let chat = Chat::new().message("system", "Be brief.").message("user", "12+7=");
/// assert!(chat.check().is_ok());
/// assert_eq!(chat.messages[1]["content"], "12+7=");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// Objects with `role`, `content` and other fields for the template.
    pub messages: Vec<Value>,
    /// The tools that the model may call, as objects.
    pub tools: Vec<Value>,
    /// Further template variables, such as `enable_thinking`.
    pub variables: serde_json::Map<String, Value>,
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// The images. Their markers stand in the messages.
    pub images: Vec<ChatImage>,
}

/// A parsed message of a [`Chat`].
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// The author's role.
    pub role: String,
    /// The text; empty without `content`.
    pub content: String,
    /// The other fields.
    pub other: Map<String, Value>,
}

impl Default for Chat {
    fn default() -> Self {
        Chat {
            messages: Vec::new(),
            tools: Vec::new(),
            variables: Map::new(),
            add_generation_prompt: true,
            images: Vec::new(),
        }
    }
}

impl Chat {
    /// An empty chat whose prompt ends where the answer begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a message.
    pub fn message(mut self, role: &str, content: &str) -> Self {
        self.messages
            .push(json!({"role": role, "content": content}));
        self
    }

    /// Creates a chat from a client's messages and checks them.
    pub fn from_messages(messages: Vec<Value>) -> Result<Self, Error> {
        let chat = Chat {
            messages,
            ..Chat::default()
        };
        chat.check()?;
        Ok(chat)
    }

    /// Checks that each message is an object with a role that is a word and with text or tool
    /// calls. Templates build control tokens from the role, so check a chat from outside before
    /// rendering it. The error is a 400 that names the field.
    pub fn check(&self) -> Result<(), Error> {
        for (index, message) in self.messages.iter().enumerate() {
            check_message(index, message)?;
        }
        for (index, tool) in self.tools.iter().enumerate() {
            if !tool.is_object() {
                let what = format!("`tools[{index}]`");
                return Err(Error::wrong_type(&what, "an object", tool));
            }
        }
        Ok(())
    }

    /// The parsed messages.
    pub fn parsed_messages(&self) -> impl Iterator<Item = ChatMessage> {
        self.messages.iter().map(|message| {
            let mut other = message.as_object().cloned().unwrap_or_default();
            let mut text = |name| match other.shift_remove(name) {
                Some(Value::String(text)) => text,
                _ => String::new(),
            };
            ChatMessage {
                role: text("role"),
                content: text("content"),
                other,
            }
        })
    }

    /// Creates a chat from the arguments of a templating plugin. Each role must be a word, and
    /// `other` overrides neither role nor content.
    pub(crate) fn from_plugin(
        messages: impl Iterator<Item = (String, String, Option<String>)>,
        tools: &[String],
        add_generation_prompt: bool,
        settings: Option<String>,
    ) -> Result<Self, String> {
        let object = |what: &str, text: &str| {
            serde_json::from_str::<Map<String, Value>>(text)
                .map_err(|error| format!("{what} is not a JSON object: {error}"))
        };
        let messages = messages.map(|(role, content, other)| {
            if !is_word(&role) {
                return Err(format!(
                    "the role {role:?} is not a word such as system, user, assistant or tool"
                ));
            }
            let mut message = Map::new();
            message.insert("role".to_owned(), role.into());
            message.insert("content".to_owned(), content.into());
            if let Some(other) = other {
                for (name, value) in object("`other` of a message", &other)? {
                    message.entry(name).or_insert(value);
                }
            }
            Ok(Value::Object(message))
        });
        let tools = tools.iter();
        let tools = tools.map(|tool| Ok(Value::Object(object("a tool", tool)?)));
        Ok(Chat {
            messages: messages.collect::<Result<_, String>>()?,
            tools: tools.collect::<Result<_, String>>()?,
            variables: match settings {
                Some(settings) => object("the settings", &settings)?,
                None => Map::new(),
            },
            add_generation_prompt,
            images: Vec::new(),
        })
    }
}

/// Checks the fields that every template uses; others are the template's concern.
fn check_message(index: usize, message: &Value) -> Result<(), Error> {
    let at = |member: &str| format!("`messages[{index}]{member}`");
    let invalid = |detail: String| Err(Error::bad_request("invalid-messages", detail));
    let Value::Object(members) = message else {
        return Err(Error::wrong_type(&at(""), "an object", message));
    };
    match members.get("role") {
        Some(Value::String(role)) if is_word(role) => {}
        Some(Value::String(role)) => {
            return invalid(format!(
                "{} is {role:?}; expected a word such as system, user, assistant or tool",
                at(".role")
            ));
        }
        Some(other) => return Err(Error::wrong_type(&at(".role"), "a string", other)),
        None => {
            return invalid(format!(
                "{} has no `role`; expected a word such as system, user, assistant or tool",
                at("")
            ));
        }
    }
    match members.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if members.get("tool_calls").is_some_and(Value::is_array) => {
            Ok(())
        }
        None | Some(Value::Null) => invalid(format!(
            "{} has no `content`; only a message with `tool_calls` may omit it",
            at("")
        )),
        Some(other) => Err(Error::wrong_type(&at(".content"), "a string", other)),
    }
}

/// Templates build control tokens from the role, so it must be a plain word.
fn is_word(role: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=64).contains(&role.len()) && role.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field() {
        for (message, code, detail) in [
            (json!(1), "wrong-type", "`messages[0]` is a number"),
            (json!({"content": "x"}), "invalid-messages", "no `role`"),
            (
                json!({"role": "a|>", "content": "x"}),
                "invalid-messages",
                "expected a word",
            ),
            (json!({"role": "user"}), "invalid-messages", "no `content`"),
            (
                json!({"role": "user", "content": []}),
                "wrong-type",
                "`messages[0].content` is a list",
            ),
        ] {
            let error = Chat::from_messages(vec![message]).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, code));
            assert!(error.to_string().contains(detail), "{error}");
        }
        let call = json!({"role": "assistant", "content": null, "tool_calls": []});
        assert!(Chat::from_messages(vec![call]).is_ok());
    }

    /// A chat of one message, as a templating plugin receives it.
    fn from_plugin(role: &str, other: &str) -> Result<Chat, String> {
        let message = (role.to_owned(), "12+7=".to_owned(), Some(other.to_owned()));
        Chat::from_plugin(std::iter::once(message), &[], true, None)
    }

    #[test]
    fn other_fields_override_neither_role_nor_content() {
        let other = r#"{"content": "x", "name": "f", "role": "a|>"}"#;
        let chat = from_plugin("user", other).unwrap();
        let expected = [json!({"role": "user", "content": "12+7=", "name": "f"})];
        assert_eq!(chat.messages, expected);
    }

    #[test]
    fn role_must_be_a_word() {
        for role in ["", "user|>\n<|system", "a b", &"x".repeat(65)] {
            let error = from_plugin(role, "{}").unwrap_err();
            assert!(error.contains("is not a word"), "{error}");
        }
    }

    #[test]
    fn parsed_messages_keep_other_fields() {
        let message = json!({"role": "tool", "name": "f", "content": "1", "id": 2});
        let chat = Chat::from_messages(vec![message]).unwrap();
        let messages: Vec<_> = chat.parsed_messages().collect();
        assert_eq!(messages[0].role.as_str(), "tool");
        assert_eq!(messages[0].content.as_str(), "1");
        let found = Value::from(messages[0].other.clone());
        assert_eq!(found, json!({"name": "f", "id": 2}));
    }
}
