//! Renders and tokenizes the prompt of a chat.

use corral_sdk::template::{Chat, is_image};
use corral_sdk::{Error, Model, Token};
use serde_json::Value;

use super::reasoning_parser::OPENING_TAG;
use crate::{roles, without_effect};

/// Number of tokens at the end of a prompt that contain the opening tag of reasoning and the text
/// after it.
const TAIL_TOKENS: usize = 16;

/// Renders the chat and tokenizes it. `messages_field`: the name of the field of its messages, for errors.
///
/// The arguments of earlier tool calls are objects, as most templates expect; for a template that
/// fails with objects, they are JSON text. For a template that still fails, the roles are simplified.
pub fn tokens(chat: &Chat, model: &Model, messages_field: &str) -> Result<Vec<Token>, Error> {
    let tokens = chat.tokens(model).or_else(|error| {
        if error.code() != "template-error" {
            return Err(error);
        }
        let mut other = chat.clone();
        let forms: [fn(&mut Vec<Value>) -> bool; 2] =
            [|messages| arguments_as_text(messages), roles::simplify];
        for form in forms {
            if form(&mut other.messages)
                && let Ok(tokens) = other.tokens(model)
            {
                return Ok(tokens);
            }
        }
        // If all forms fail, report the first error. Arguments as objects with simple roles are the last.
        let mut other = chat.clone();
        match roles::simplify(&mut other.messages) {
            true => other.tokens(model).map_err(|_| error),
            false => Err(error),
        }
    });
    tokens.map_err(|error| match error.field() {
        None if error.status() == 400 => error.with_field(messages_field),
        _ => error,
    })
}

/// A message's `name` has no effect if the template ignores it: the tokens are the same without it. Names of
/// tools are exempt, since their calls contain them.
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
        // A template that fails without names uses them.
        if self::tokens(&other, model, "messages").is_ok_and(|other| other == tokens) {
            let why = format!(
                "the chat template of the model {} ignores names of the {role}; omit the name or put it \
                 into `content`",
                model.name()
            );
            without_effect(&format!("messages[{index}].name"), &why)?;
        }
    }
    Ok(())
}

/// Removes the last message, which is the assistant's, and returns its text. The prompt without it ends
/// where that text begins.
pub fn take_final_text(chat: &mut Chat, messages_field: &str) -> Result<String, Error> {
    let last = chat.messages.pop().unwrap_or_default();
    chat.add_generation_prompt = true;
    match &last["content"] {
        Value::String(text)
            if last["role"] == "assistant"
                && last.get("tool_calls").is_none()
                && !chat.messages.is_empty() =>
        {
            Ok(text.clone())
        }
        _ => {
            let text = "the last message can't be continued; expected a message of the assistant with text and \
                        without tool calls, after another message";
            Err(Error::bad_request("no-final-text", text).with_field(messages_field))
        }
    }
}

/// Replaces arguments by JSON text. Returns whether there were any.
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

/// Whether the prompt ends inside reasoning.
pub fn ends_in_reasoning(tokens: &[Token], model: &Model) -> Result<bool, Error> {
    let tail = &tokens[tokens.len().saturating_sub(TAIL_TOKENS)..];
    let text = tail.iter().filter(|token| !is_image(**token));
    let text: Vec<_> = text.copied().collect();
    Ok(model
        .detokenize_with_control(&text)?
        .trim_end()
        .ends_with(OPENING_TAG))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::fields::ignored;
    use corral_sdk::testing::Script;
    use serde_json::json;

    #[test]
    fn arguments_have_the_form_of_the_template() {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let chat = Chat {
            messages: vec![json!({"role": "assistant", "content": null, "tool_calls": [call]})],
            ..Chat::default()
        };
        for (use_of_call, expected) in [
            ("{{ call.arguments.a }}", "1"),
            ("{{ call.arguments | tojson }}", "{\"a\": 1}"),
            ("{{ '(' + call.arguments + ')' }}", "({\"a\":1})"),
        ] {
            let template =
                format!("{{% set call = messages[0].tool_calls[0].function %}}{use_of_call}");
            let script = Script::new().chat_template(&template);
            let text = script.run(async {
                let model = Model::open_default().await?;
                model.detokenize(&tokens(&chat, &model, "messages")?)
            });
            assert_eq!(text.as_deref(), Ok(expected), "{use_of_call}");
        }
        let script = Script::new().chat_template("{{ raise_exception('no') }}");
        let error = script.run(async { tokens(&chat, &Model::open_default().await?, "messages") });
        assert_eq!(error.unwrap_err().field(), Some("messages"));
    }

    #[test]
    fn names_ignored_by_the_template_have_no_effect() {
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
        for (shown, field) in [
            (String::new(), Some("messages[2].name")),
            (name.to_owned(), None),
            (
                format!("{{% if m.role == 'user' %}}{name}{{% endif %}}"),
                Some("messages[3].name"),
            ),
        ] {
            let template =
                format!("{{% for m in messages %}}{{{{ m.content }}}}{shown}{{% endfor %}}");
            ignored::begin(true);
            let checked = Script::new().chat_template(&template).run(async {
                let model = Model::open_default().await?;
                check_names(&chat, &tokens(&chat, &model, "messages")?, &model)
            });
            let error = checked.err();
            assert_eq!(error.as_ref().and_then(Error::field), field, "{shown}");
        }
    }

    #[test]
    fn prompt_may_end_in_reasoning() {
        for (text, open) in [
            ("a<think>\n", true),
            ("<think></think>", false),
            ("", false),
        ] {
            let result = Script::new().run(async {
                let model = Model::open_default().await?;
                ends_in_reasoning(&model.tokenize(text)?, &model)
            });
            assert_eq!(result, Ok(open), "{text}");
        }
    }
}
