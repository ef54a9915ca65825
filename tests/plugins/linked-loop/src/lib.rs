//! A handler that calls a linked sampler with one distribution and responds with the chosen token.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::plugin::sampling::{Candidate, Distribution, Sampler, SamplerContext};

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "corral:plugin/sampled", path: "../../../wit" });
}

struct Handler;

#[allow(unsafe_code)]
mod exports {
    use super::Handler;
    wasip3::http::service::export!(Handler);
}

impl wasip3::exports::http::handler::Guest for Handler {
    async fn handle(_: Request) -> Result<Response, ErrorCode> {
        let to_error = |error| ErrorCode::InternalError(Some(error));
        let sampler = Sampler::start(&SamplerContext {
            settings: "greedy candidates=3".to_owned(),
            seed: 1,
            vocabulary: 100,
        })
        .map_err(to_error)?;
        let count = sampler.needs().candidates;
        let candidates = (0..count).map(|index| Candidate {
            token: 10 + index,
            logit: -(index as f32),
        });
        let distribution = Distribution {
            candidates: candidates.collect(),
            statistics: None,
            new_tokens: Vec::new(),
            position: 0,
        };
        let token = sampler.sample(&distribution).map_err(to_error)?;
        let text = format!("{count} candidates, token {token}\n");
        let (mut writer, reader) = wit_stream::new();
        spawn_local(async move { writer.write_all(text.into_bytes()).await });
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(Fields::new(), Some(reader), trailers).0)
    }
}
