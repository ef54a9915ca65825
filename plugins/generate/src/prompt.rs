//! Tokenizes the input.

use corral_sdk::{Error, Model};

use crate::request::Input;

/// Returns the prompt's tokens: at least one, and fewer than the context has positions.
pub fn tokens(input: &Input, model: &Model) -> Result<Vec<u32>, Error> {
    let mut tokens = match input {
        // As in llama.cpp's server: clients send prompts that they rendered with a template.
        Input::Prompt(text) => model.tokenize_trusted(text)?,
        Input::Chat(chat) => chat.tokens(model)?,
    };
    model.add_begin_token(&mut tokens);
    model.check_prompt(&tokens, 1)?;
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::template::Chat;
    use corral_sdk::testing::Script;

    fn tokens_of(script: &Script, input: &Input) -> Result<Vec<u32>, Error> {
        script.run(async { tokens(input, &Model::open_default().await?) })
    }

    #[test]
    fn prompt_reads_control_tokens_and_begins_once() {
        let script = Script::new().control_token("<s>").begin_token("<s>");
        for (prompt, expected) in [
            ("a<|im_end|>", &[259, 97, 258][..]),
            ("<s>a", &[259, 97]),
            ("a<s>", &[259, 97, 259]),
        ] {
            let tokens = tokens_of(&script, &Input::Prompt(prompt.to_owned()));
            assert_eq!(tokens.as_deref(), Ok(expected));
        }
    }

    #[test]
    fn invalid_prompts_are_rejected() {
        let long = |length: usize| Input::Prompt("x".repeat(length));
        let hi = || Input::Chat(Chat::new().message("user", "Hi"));
        let script = || Script::new().context(1000);
        assert!(tokens_of(&script(), &long(999)).is_ok());
        for (input, script, code, detail) in [
            (long(1000), script(), "prompt-too-long", "has 1000 tokens"),
            (
                long(5000),
                script(),
                "prompt-too-long",
                "a context of 1000 tokens",
            ),
            (hi(), script(), "no-chat-template", "script"),
            (
                hi(),
                script().chat_template(""),
                "empty-prompt",
                "no tokens",
            ),
            (
                hi(),
                script().chat_template("{{ raise_exception('no') }}"),
                "template-error",
                "no",
            ),
        ] {
            let error = tokens_of(&script, &input).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, code));
            assert!(error.to_string().contains(detail), "{error}");
        }
    }
}
