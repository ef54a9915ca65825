//! Requests to the plugin `openai`: the first byte chooses the route, the second the model's answer, the rest is the body.
//! Every response is JSON or events, and none has a status of 500 or more.

#![no_main]

use corral_sdk::testing::Script;
use corral_sdk::{Request, Response};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v1/messages/count_tokens",
];

const ANSWERS: [&str; 5] = [
    "Hello!",
    "<think>\nHm.\n</think>\nYes.",
    "So.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>",
    "{\"a\": [1, \"é\"]}",
    "",
];

const TEMPLATE: &str = "{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# </think> #}";

fuzz_target!(|data: &[u8]| {
    let [route, answer, body @ ..] = data else {
        return;
    };
    let path = PATHS[usize::from(*route) % PATHS.len()];
    let script = Script::new()
        .chat_template(TEMPLATE)
        .embedding("12+7=", &[1.0, 0.0, 0.0, 0.0])
        .answers("", ANSWERS[usize::from(*answer) % ANSWERS.len()]);
    let (status, content_type, text) = script.run(async {
        let request = Request::post(path).with_body(body);
        let response = openai::handle(request).await.unwrap_or_else(Response::from);
        let content_type = response.header("content-type").map(str::to_owned);
        (response.status(), content_type, response.read().await)
    });
    let text = String::from_utf8(text).expect("responses are text");
    // The script knows the embedding of one text.
    if text.contains("the script has no embedding of") {
        return;
    }
    assert!(status < 500, "{status}: {text}");
    match content_type.as_deref() {
        Some("text/event-stream") => {
            for event in text.split_terminator("\n\n") {
                let (_, data) = event.rsplit_once("data: ").expect("an event has data");
                assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok());
            }
        }
        _ => assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}"),
    }
});
