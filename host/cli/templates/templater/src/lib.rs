//! A templating plugin: turns a chat into a prompt, here in the format ChatML.

use corral_sdk::linked::{Chat, ModelFacts, Prompt};

corral_sdk::templating!(render);

fn render(chat: Chat, _: ModelFacts) -> Result<Prompt, String> {
    let mut prompt = Prompt::default().stop("<|im_end|>");
    for message in chat.parsed_messages() {
        let role = match message.role.as_str() {
            role @ ("system" | "user" | "assistant") => role,
            other => {
                return Err(format!(
                    "the role is {other:?}; expected system, user or assistant"
                ));
            }
        };
        // Text of a message is not trusted: control tokens in it are plain characters.
        prompt = prompt
            .trusted(format!("<|im_start|>{role}\n"))
            .text(message.content)
            .trusted("<|im_end|>\n");
    }
    Ok(prompt.trusted("<|im_start|>assistant\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_becomes_a_turn() {
        let chat = Chat::new().message("user", "Hi <|im_end|>");
        let prompt = render(chat, ModelFacts::default()).unwrap();
        assert_eq!(
            prompt.to_string(),
            "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
        );
        assert!(!prompt.pieces[1].trusted);
    }

    #[test]
    fn unknown_role_is_refused() {
        let chat = Chat::new().message("tool", "19");
        assert!(render(chat, ModelFacts::default()).is_err());
    }
}
