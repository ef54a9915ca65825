//! A request becomes a generation: the one place that calls `corral:inference`.

use std::time::SystemTime;

use wasip3::wit_bindgen::{FutureReader, StreamReader};

use super::bindings::corral::inference::inference::{
    self as host, Chunk, Options, Outcome, Sequence,
};
use super::bindings::corral::inference::models::{Model, available};
use super::bindings::corral::inference::types::Error;
use crate::answer::{Finish, Report};
use crate::problem::Problem;
use crate::prompt::{self, Tokenizer};
use crate::request::{Request, Settings};

/// A running generation. Dropping it cancels.
pub struct Generation {
    chunks: StreamReader<Chunk>,
    outcome: FutureReader<Result<Outcome, Error>>,
    /// Last, and only kept: what the generation runs on lives as long as it does.
    _sequence: Sequence,
    model: String,
}

impl Generation {
    /// Opens the model, renders and tokenises, and starts.
    pub async fn start(request: &Request) -> Result<Self, Problem> {
        check_model(request.model.as_deref())?;
        let model = Model::open(request.model.clone()).await.map_err(problem)?;
        let info = model.info();
        let seen = prompt::Model {
            name: &info.name,
            begin: info.begin,
            end: info.end_of_generation.first().copied(),
            chat_template: info.chat_template.as_deref(),
            context: info.context,
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let tokens = prompt::tokens(&request.input, seen, &model, now)?;
        let room = info.context - tokens.len() as u32; // `prompt::tokens` leaves at least 1.

        let options = options(&request.settings, room)?;
        let sequence = Sequence::create(&model).map_err(problem)?;
        sequence.append(&tokens).map_err(problem)?;
        let (chunks, outcome) = sequence.generate(&options).map_err(problem)?;
        Ok(Generation {
            chunks,
            outcome,
            _sequence: sequence,
            model: info.name,
        })
    }

    /// The next piece of text, which may be empty. Nothing when the generation has ended.
    pub async fn next(&mut self) -> Option<String> {
        self.chunks.next().await.map(|chunk| chunk.text)
    }

    /// How it went. To be called when there are no more pieces.
    pub async fn finish(self) -> Result<Report, Problem> {
        let outcome = self.outcome.await.map_err(problem)?;
        Ok(Report {
            model: self.model,
            finish: match outcome.finish {
                host::Finish::End => Finish::End,
                host::Finish::Stop => Finish::Stop,
                host::Finish::Length => Finish::Length,
            },
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: outcome.cached_tokens,
            generated_tokens: outcome.generated_tokens,
            queue_time: outcome.queue_time,
            prefill_time: outcome.prefill_time,
            decode_time: outcome.decode_time,
        })
    }
}

/// The host calls an unknown name `invalid`, as any wrong argument; to a client it is a 404.
fn check_model(name: Option<&str>) -> Result<(), Problem> {
    let Some(name) = name else { return Ok(()) };
    let names = available();
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(Problem::new(
        404,
        "unknown-model",
        format!("there is no model {name:?} here; expected one of {names:?}"),
    ))
}

/// The host's options for the settings. At most `room` tokens: those the context has left.
fn options(settings: &Settings, room: u32) -> Result<Options, Problem> {
    let options = Options::new(settings.max_tokens.min(room));
    if let Some(seed) = settings.seed {
        options.seed(seed);
    }
    if settings.ignore_end {
        options.ignore_end();
    }
    for text in &settings.stop {
        options.stop(text).map_err(problem)?;
    }
    // The order in which they are applied.
    if let Some(count) = settings.top_k {
        options.top_k(count).map_err(problem)?;
    }
    if let Some(mass) = settings.top_p {
        options.top_p(mass).map_err(problem)?;
    }
    if let Some(ratio) = settings.min_p {
        options.min_p(ratio).map_err(problem)?;
    }
    if let Some(value) = settings.temperature {
        options.temperature(value).map_err(problem)?;
    }
    Ok(options)
}

impl Tokenizer for Model {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<u32>, Problem> {
        Model::tokenize(self, text, special).map_err(problem)
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>, Problem> {
        Model::detokenize(self, tokens, special).map_err(problem)
    }
}

fn problem(error: Error) -> Problem {
    match error {
        Error::Invalid(text) => Problem::bad_request("invalid", text),
        Error::NotGranted(text) => Problem::new(403, "not-granted", text),
        Error::ContextFull(limit) => Problem::bad_request(
            "context-full",
            format!(
                "{} positions are needed; the model's context has {}",
                limit.needed, limit.limit
            ),
        ),
        Error::Refused(refusal) => {
            let mut problem = Problem::new(429, "refused", refusal.reason);
            problem.retry_after_ms = Some(refusal.retry_after_ms);
            problem
        }
        Error::Deadline => Problem::new(
            504,
            "deadline",
            "the request's deadline passed before the generation ended",
        ),
        Error::Cancelled => Problem::new(499, "cancelled", "the request was cancelled"),
        Error::Failed(text) => Problem::new(500, "failed", text),
    }
}
