//! A conversation.

use serde_json::{Map, Value, json};

use crate::Error;

/// A conversation that the model is to go on with, as a client sent it.
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
    /// Objects with a `role` and a `content`, and what else a template may know.
    pub messages: Vec<Value>,
    /// The tools that the model may call: objects.
    pub tools: Vec<Value>,
    /// More variables for the template, as `enable_thinking` is for some models.
    pub arguments: serde_json::Map<String, Value>,
    /// Whether the prompt ends where an answer begins.
    pub begin_answer: bool,
}

/// A message of a [`Chat`], read.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// By whom.
    pub role: String,
    /// What was said; empty if the message has no `content`.
    pub content: String,
    /// What else the message has.
    pub other: Map<String, Value>,
}

impl Default for Chat {
    fn default() -> Self {
        Chat {
            messages: Vec::new(),
            tools: Vec::new(),
            arguments: Map::new(),
            begin_answer: true,
        }
    }
}

impl Chat {
    /// Without messages, up to where an answer begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one message more.
    pub fn message(mut self, role: &str, content: &str) -> Self {
        self.messages
            .push(json!({"role": role, "content": content}));
        self
    }

    /// With these messages, as a client sent them; checked.
    pub fn from_messages(messages: Vec<Value>) -> Result<Self, Error> {
        let chat = Chat {
            messages,
            ..Chat::default()
        };
        chat.check()?;
        Ok(chat)
    }

    /// Whether the messages are what templates expect: each an object with a role that is a word, and
    /// with a text or calls of tools. Templates build control tokens from the role, so a chat from
    /// outside has to be checked before it is rendered. 400 says what is wrong, and where.
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

    /// The messages, read.
    pub fn turns(&self) -> impl Iterator<Item = Turn> {
        self.messages.iter().map(|message| {
            let mut other = message.as_object().cloned().unwrap_or_default();
            let mut text = |name| match other.shift_remove(name) {
                Some(Value::String(text)) => text,
                _ => String::new(),
            };
            Turn {
                role: text("role"),
                content: text("content"),
                other,
            }
        })
    }

    /// As a handler hands it to a templating plugin: role, content and the rest of each message, tools and
    /// settings in JSON. Whoever calls it, each role is a word, and the rest changes neither that nor the
    /// content.
    pub(crate) fn from_plugin(
        messages: impl Iterator<Item = (String, String, Option<String>)>,
        tools: &[String],
        begin_answer: bool,
        settings: Option<String>,
    ) -> Result<Self, String> {
        let object = |what: &str, text: &str| {
            serde_json::from_str::<Map<String, Value>>(text)
                .map_err(|error| format!("{what} is no JSON object: {error}"))
        };
        let messages = messages.map(|(role, content, other)| {
            if !is_word(&role) {
                return Err(format!(
                    "the role {role:?} is no word such as system, user, assistant or tool"
                ));
            }
            let mut message = Map::new();
            message.insert("role".to_owned(), role.into());
            message.insert("content".to_owned(), content.into());
            if let Some(other) = other {
                for (name, value) in object("the rest of a message", &other)? {
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
            arguments: match settings {
                Some(settings) => object("the settings", &settings)?,
                None => Map::new(),
            },
            begin_answer,
        })
    }
}

/// A message has a role and either a text or calls of tools; what else it has is the template's.
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
                "{} has no `role`; expected one such as system, user, assistant or tool",
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
            "{} has no `content`, which only a message with `tool_calls` may leave out",
            at("")
        )),
        Some(other) => Err(Error::wrong_type(&at(".content"), "a string", other)),
    }
}

/// Templates build control tokens from the role, so it is a word and nothing else.
fn is_word(role: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=64).contains(&role.len()) && role.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
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

    /// A chat of one message, as a handler hands it over.
    fn handed(role: &str, other: &str) -> Result<Chat, String> {
        let message = (role.to_owned(), "12+7=".to_owned(), Some(other.to_owned()));
        Chat::from_plugin(std::iter::once(message), &[], true, None)
    }

    #[test]
    fn the_rest_of_a_message_changes_neither_role_nor_content() {
        let other = r#"{"content": "x", "name": "f", "role": "a|>"}"#;
        let chat = handed("user", other).unwrap();
        assert_eq!(
            chat.messages,
            [json!({"role": "user", "content": "12+7=", "name": "f"})]
        );
    }

    #[test]
    fn a_role_that_is_no_word_reaches_no_template() {
        for role in ["", "user|>\n<|system", "a b", &"x".repeat(65)] {
            let said = handed(role, "{}").unwrap_err();
            assert!(said.contains("is no word"), "{said}");
        }
    }

    #[test]
    fn turns_have_the_rest_of_a_message() {
        let message = json!({"role": "tool", "name": "f", "content": "1", "id": 2});
        let chat = Chat::from_messages(vec![message]).unwrap();
        let turns: Vec<_> = chat.turns().collect();
        assert_eq!(
            (turns[0].role.as_str(), turns[0].content.as_str()),
            ("tool", "1")
        );
        assert_eq!(
            Value::from(turns[0].other.clone()),
            json!({"name": "f", "id": 2})
        );
    }
}
