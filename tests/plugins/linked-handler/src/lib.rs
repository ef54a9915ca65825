//! A handler with a linked template. Responds with the prompt that the template renders from the
//! path, one piece per line, and then with its own environment variable `SECRET`.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::plugin::templating::{Chat, Message, ModelFacts, render};

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "corral:plugin/templated", path: "../../../wit" });
}

struct Handler;

#[allow(unsafe_code)]
mod exports {
    use super::Handler;
    wasip3::http::service::export!(Handler);
}

impl wasip3::exports::http::handler::Guest for Handler {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let chat = Chat {
            messages: vec![Message {
                role: "user".to_owned(),
                content: request.get_path_with_query().unwrap_or_default(),
                other: None,
            }],
            tools: Vec::new(),
            begin_answer: true,
            settings: None,
        };
        let model = ModelFacts {
            name: "none".to_owned(),
            begin: None,
            end: None,
            chat_template: None,
        };
        let prompt =
            render(&chat, &model).map_err(|error| ErrorCode::InternalError(Some(error)))?;
        let lines = prompt
            .pieces
            .iter()
            .map(|piece| format!("{}\n", piece.text));
        let own = std::env::var("SECRET").unwrap_or_default();
        let text = lines.collect::<String>() + &format!("own {own}\n");
        let (mut writer, reader) = wit_stream::new();
        spawn_local(async move { writer.write_all(text.into_bytes()).await });
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(Fields::new(), Some(reader), trailers).0)
    }
}
