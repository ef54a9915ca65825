//! A handler of the world `handler-sync` without the SDK: continues the request's body.

wit_bindgen::generate!({ world: "corral:inference/handler-sync", path: "wit", generate_all });

use corral::inference::inference::{Options, Sequence};
use corral::inference::inference_sync::{generate, open_model};
use corral::inference::types::Error;
use exports::wasi::http::incoming_handler::Guest;
use wasi::http::types::{
    Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};

struct Handler;

export!(Handler);

impl Guest for Handler {
    fn handle(request: IncomingRequest, answer: ResponseOutparam) {
        let (status, text) = match text(&read(&request)) {
            Ok(text) => (200, text),
            Err(error) => (500, error.to_string()),
        };
        let response = OutgoingResponse::new(Fields::new());
        response.set_status_code(status).expect("a valid status");
        let body = response.body().expect("the first call");
        ResponseOutparam::set(answer, Ok(response));
        let out = body.write().expect("the first call");
        out.blocking_write_and_flush(text.as_bytes()).expect("a short text");
        drop(out);
        OutgoingBody::finish(body, None).expect("all is written");
    }
}

fn read(request: &IncomingRequest) -> String {
    let body = request.consume().expect("the first call");
    let stream = body.stream().expect("the first call");
    let mut bytes = Vec::new();
    while let Ok(more) = stream.blocking_read(4096) {
        bytes.extend(more);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text(prompt: &str) -> Result<String, Error> {
    let model = open_model(None)?;
    let sequence = Sequence::create(&model)?;
    sequence.append(&model.tokenize(prompt, false)?)?;
    let generation = generate(&sequence, &Options::new(24))?;
    let text = generation.collect().text;
    generation.outcome()?;
    Ok(text)
}
