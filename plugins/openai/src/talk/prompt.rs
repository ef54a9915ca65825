//! From a chat to the tokens of its prompt.

use corral_sdk::template::Chat;
use corral_sdk::{Error, Model, Token};
use serde_json::Value;

use super::reasoning::OPEN;
use crate::error::unsupported;

/// So many tokens at the end of a prompt may have the tag that begins a thought, with what follows it.
const TAIL: usize = 16;

/// The tokens of a chat's prompt.
///
/// The arguments of calls in earlier messages are objects, as most templates expect them; where a template
/// takes no objects, they are the text that the client sent.
pub fn tokens(chat: &Chat, model: &Model) -> Result<Vec<Token>, Error> {
    let written = chat.tokens(model).or_else(|error| {
        let mut other = chat.clone();
        if error.code() != "template-error" || !arguments_as_text(&mut other.messages) {
            return Err(error);
        }
        // What fails both ways is told about the first.
        other.tokens(model).map_err(|_| error)
    });
    written.map_err(|error| match error.member() {
        None if error.status() == 400 => error.about("messages"),
        _ => error,
    })
}

/// An error, where a message has the name of who speaks and the template shows none: what it makes of the
/// chat, which are these tokens, is the same without. A tool needs none, as its call has it.
pub fn check_names(chat: &Chat, tokens: &[Token], model: &Model) -> Result<(), Error> {
    for role in ["system", "developer", "user", "assistant"] {
        let named = |message: &Value| message["role"] == role && message.get("name").is_some();
        let Some(index) = chat.messages.iter().position(named) else {
            continue;
        };
        let mut other = chat.clone();
        for message in other.messages.iter_mut().filter(|message| named(message)) {
            if let Some(members) = message.as_object_mut() {
                members.remove("name");
            }
        }
        // Where it can't be written without, names are asked for.
        if self::tokens(&other, model).is_ok_and(|other| other == tokens) {
            let why = format!(
                "the chat template of the model {} shows none of the {role}; leave it out, or say it in \
                 `content`",
                model.name()
            );
            return Err(unsupported(&format!("messages[{index}].name"), &why));
        }
    }
    Ok(())
}

/// Whether there were any.
fn arguments_as_text(messages: &mut [Value]) -> bool {
    let mut any = false;
    let calls = messages
        .iter_mut()
        .filter_map(|message| message.get_mut("tool_calls"));
    for call in calls.filter_map(Value::as_array_mut).flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && arguments.is_object()
        {
            *arguments = arguments.to_string().into();
            any = true;
        }
    }
    any
}

/// Whether the prompt ends within a thought.
pub fn is_open(tokens: &[Token], model: &Model) -> Result<bool, Error> {
    let tail = &tokens[tokens.len().saturating_sub(TAIL)..];
    Ok(model
        .detokenize_with_control(tail)?
        .trim_end()
        .ends_with(OPEN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::json;

    #[test]
    fn arguments_are_what_the_template_takes() {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let chat = Chat {
            messages: vec![json!({"role": "assistant", "content": null, "tool_calls": [call]})],
            ..Chat::default()
        };
        for (wanted, expected) in [
            ("{{ call.arguments.a }}", "1"),
            ("{{ call.arguments | tojson }}", "{\"a\": 1}"),
            ("{{ '(' + call.arguments + ')' }}", "({\"a\":1})"),
        ] {
            let template = format!("{{% set call = messages[0].tool_calls[0].function %}}{wanted}");
            let script = Script::new().chat_template(&template);
            let text = script.run(async {
                let model = Model::first().await?;
                model.detokenize(&tokens(&chat, &model)?)
            });
            assert_eq!(text.as_deref(), Ok(expected), "{wanted}");
        }
        let script = Script::new().chat_template("{{ raise_exception('no') }}");
        let error = script.run(async { tokens(&chat, &Model::first().await?) });
        assert_eq!(error.unwrap_err().member(), Some("messages"));
    }

    #[test]
    fn names_that_are_not_shown_are_refused() {
        let message = |role: &str, name: &str| json!({"role": role, "name": name, "content": "x"});
        let chat = Chat {
            messages: vec![
                message("tool", "add"),
                json!({"role": "user", "content": "x"}),
                message("user", "Ada"),
                message("assistant", "Bob"),
            ],
            ..Chat::default()
        };
        let name = "{% if m.name is defined %}{{ m.name }}{% endif %}";
        for (shown, member) in [
            (String::new(), Some("messages[2].name")),
            (name.to_owned(), None),
            (
                format!("{{% if m.role == 'user' %}}{name}{{% endif %}}"),
                Some("messages[3].name"),
            ),
        ] {
            let template =
                format!("{{% for m in messages %}}{{{{ m.content }}}}{shown}{{% endfor %}}");
            let checked = Script::new().chat_template(&template).run(async {
                let model = Model::first().await?;
                check_names(&chat, &tokens(&chat, &model)?, &model)
            });
            let error = checked.err();
            assert_eq!(error.as_ref().and_then(Error::member), member, "{shown}");
        }
    }

    #[test]
    fn a_prompt_may_end_within_a_thought() {
        for (text, open) in [
            ("a<think>\n", true),
            ("<think></think>", false),
            ("", false),
        ] {
            let is = Script::new().run(async {
                let model = Model::first().await?;
                is_open(&model.tokenize(text)?, &model)
            });
            assert_eq!(is, Ok(open), "{text}");
        }
    }
}
