//! A first plugin: the body of the request is the prompt, the body of the answer its continuation.
wit_bindgen::generate!({ world: "imports", path: "../../wit" });

use crate::corral::inference::{
    inference::{Options, Sequence},
    models::Model,
};
use wasip3::http::types::{ErrorCode, Fields, Request, Response};

struct Hello;
wasip3::http::service::export!(Hello);

impl wasip3::exports::http::handler::Guest for Hello {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let (_, processed) = wasip3::wit_future::new(|| Ok(()));
        let (body, _) = Request::consume_body(request, processed);
        let prompt = String::from_utf8_lossy(&body.collect().await).into_owned();
        let text = complete(&prompt)
            .await
            .unwrap_or_else(|error| format!("{error}\n"));

        let (mut writer, reader) = wasip3::wit_stream::new();
        let (_, trailers) = wasip3::wit_future::new(|| Ok(None));
        wasip3::spawn_local(async move { writer.write_all(text.into_bytes()).await });
        Ok(Response::new(Fields::new(), Some(reader), trailers).0)
    }
}

async fn complete(prompt: &str) -> Result<String, corral::inference::types::Error> {
    let model = Model::open(None).await?;
    let sequence = Sequence::create(&model)?;
    sequence.append(&model.tokenize(prompt, false)?)?;
    let (mut chunks, outcome) = sequence.generate(&Options::new(64))?;
    let mut text = String::new();
    while let Some(chunk) = chunks.next().await {
        text += &chunk.text;
    }
    outcome.await?;
    Ok(text)
}
