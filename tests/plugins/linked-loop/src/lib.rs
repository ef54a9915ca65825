//! A handler that leaves the choice to a linked sampler: it hands over one distribution, and answers with
//! the token that was chosen.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::plugin::sampling::{Beginning, Candidate, Distribution, Sampler};

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
        let told = |told| ErrorCode::InternalError(Some(told));
        let sampler = Sampler::start(&Beginning {
            settings: String::new(),
            seed: 1,
            vocabulary: 100,
        })
        .map_err(told)?;
        let wanted = sampler.needs().candidates;
        let candidates = (0..wanted).map(|place| Candidate {
            token: 10 + place,
            logit: -(place as f32),
        });
        let distribution = Distribution {
            candidates: candidates.collect(),
            statistics: None,
            since: Vec::new(),
            position: 0,
        };
        let token = sampler.sample(&distribution).map_err(told)?;
        let text = format!("{wanted} candidates, token {token}\n");
        let (mut writer, reader) = wit_stream::new();
        spawn_local(async move { writer.write_all(text.into_bytes()).await });
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(Fields::new(), Some(reader), trailers).0)
    }
}
