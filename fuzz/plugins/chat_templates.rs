//! Chat templates of model files, with chats of clients: the template, a zero byte, and the chat as JSON. A template that
//! does not fit is an error of the request.

#![no_main]

use corral_sdk::Model;
use corral_sdk::template::Chat;
use corral_sdk::testing::Script;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Some(at) = data.iter().position(|byte| *byte == 0) else {
        return;
    };
    let (Ok(template), Ok(chat)) = (
        std::str::from_utf8(&data[..at]),
        serde_json::from_slice::<Value>(&data[at + 1..]),
    ) else {
        return;
    };
    // Nested loops over long ranges take long, as they may: the call's limit on CPU time ends them.
    if template.matches("range").count() > 1 {
        return;
    }
    let list = |name: &str| chat[name].as_array().cloned().unwrap_or_default();
    let chat = Chat {
        messages: list("messages"),
        tools: list("tools"),
        variables: chat["variables"].as_object().cloned().unwrap_or_default(),
        add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap_or(true),
        images: Vec::new(),
    };
    let script = Script::new()
        .control_token("<s>")
        .begin_token("<s>")
        .chat_template(template);
    let tokens = script.run(async {
        let model = Model::open_default().await.expect("the script has one");
        chat.tokens(&model)
    });
    if let Err(error) = tokens {
        assert_eq!(error.status(), 400, "{error}");
    }
});
