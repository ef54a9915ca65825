//! A client of `/completion`, which llama.cpp's server and the plugin `openai` have. Unlike `/v1/completions` it takes and
//! returns tokens, so a client that continues a text is not served worse because its tokens split differently.

use crate::requests;
use crate::workload::count;
use bytes::Bytes;
use corral_cli::Error;
use corral_cli::bench::connection::Connection;
use corral_cli::bench::url::Url;
use corral_engine::Token;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// The metric of calls of llama_decode of llama.cpp's server.
const PEER_STEPS: &str = "llamacpp:n_decode_total ";
/// A bias that no logit exceeds: these tokens only are chosen.
const FORCED: f32 = 100.0;

/// Whether independent requests are sent at once or one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    AtOnce,
    InTurn,
}

/// Posts to a server over keep-alive connections, as many as there are requests at once.
pub(super) struct Endpoint {
    url: Url,
    connections: Mutex<Vec<Connection>>,
}

impl Endpoint {
    pub(super) fn new(url: &Url) -> Self {
        Self {
            url: url.clone(),
            connections: Mutex::default(),
        }
    }

    /// Posts a JSON object; returns the body of the response, which must be a success.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Bytes, Error> {
        let url = &self.url;
        let unused = self.lock().pop();
        let mut connection = unused.unwrap_or_else(|| Connection::new(url));
        let response = requests::post(&mut connection, url, &url.join(path), body).await?;
        let body = requests::read(url, response).await?;
        self.lock().push(connection);
        Ok(body)
    }

    /// Steps that llama.cpp's server has computed; `None` without its option `--metrics`, and for other servers.
    pub(super) async fn steps(&self) -> Option<u64> {
        let url = &self.url;
        let mut connection = Connection::new(url);
        let metrics = requests::get(&mut connection, url, &url.join("/metrics")).await;
        peer_steps(&String::from_utf8_lossy(&metrics.ok()?))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

/// The steps in the metrics of llama.cpp's server.
fn peer_steps(metrics: &str) -> Option<u64> {
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(PEER_STEPS))?;
    Some(count(value.parse().ok()?))
}

/// Tokens of clients.
#[derive(Default)]
pub(super) struct TokenCounts {
    /// Those that the server computed, as it reports them.
    pub(super) computed: u64,
    /// Hashes of all texts that were computed, from the first token to any other: as many tokens are computed if none
    /// is computed twice.
    texts: HashSet<u64>,
}

impl TokenCounts {
    /// Tokens to compute if none is computed twice.
    pub(super) fn fewest(&self) -> u64 {
        self.texts.len() as u64
    }

    fn add_text(&mut self, prompt: &[Token], generated: &[Token]) {
        // The last token is not computed: nothing follows it.
        let computed = generated.split_last().map_or(&[][..], |(_, rest)| rest);
        let mut hasher = DefaultHasher::new();
        for token in prompt.iter().chain(computed) {
            token.hash(&mut hasher);
            self.texts.insert(hasher.finish());
        }
    }
}

/// A program as a client.
#[derive(Clone)]
pub(super) struct ProgramClient {
    endpoint: Arc<Endpoint>,
    order: Order,
    counts: Arc<Mutex<TokenCounts>>,
}

/// One of the answers to a request.
#[derive(Debug, Deserialize)]
pub(super) struct Completion {
    pub(super) content: String,
    pub(super) tokens: Vec<Token>,
    /// One for each token, if the request asks for them.
    #[serde(default, rename = "completion_probabilities")]
    pub(super) logprobs: Vec<TokenLogprob>,
    timings: Timings,
}

#[derive(Debug, Deserialize)]
pub(super) struct TokenLogprob {
    pub(super) id: Token,
    pub(super) logprob: f32,
    #[serde(default, rename = "top_logprobs")]
    pub(super) top: Vec<TokenLogprob>,
}

#[derive(Debug, Deserialize)]
struct Timings {
    prompt_n: u64,
    predicted_n: u64,
}

/// What to generate.
#[derive(Clone, Debug)]
pub(super) struct Settings(Value);

impl Settings {
    /// Exactly so many tokens, the most likely ones.
    pub(super) fn new(tokens: u64) -> Self {
        Self(json!({
            "n_predict": tokens,
            "ignore_eos": true,
            "temperature": 0,
            "cache_prompt": true,
            "return_tokens": true,
            // The whole response repeats the prompt.
            "response_fields": ["content", "tokens", "completion_probabilities", "timings"],
        }))
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0[name] = value.into();
        self
    }

    /// Samples with a temperature of 1, from all tokens, as the plugins do. By default `/completion` samples from the 40
    /// likeliest, which is less work.
    pub(super) fn sampled(self, seed: u64) -> Self {
        let all = self.with("top_k", 0).with("top_p", 1).with("min_p", 0);
        all.with("temperature", 1).with("seed", seed)
    }

    /// Several answers to one prompt.
    pub(super) fn answers(self, count: u64) -> Self {
        self.with("n", count)
    }

    /// Returns the log probabilities of the chosen tokens, and of so many of the likeliest.
    pub(super) fn logprobs(self, top: u64) -> Self {
        self.with("n_probs", top)
    }

    /// Chooses from these tokens only. The log probabilities stay those of the model.
    pub(super) fn only(self, tokens: &[Token]) -> Self {
        let biases: Vec<_> = tokens.iter().map(|token| json!([token, FORCED])).collect();
        self.with("logit_bias", biases)
    }
}

impl ProgramClient {
    pub(super) fn new(endpoint: &Arc<Endpoint>, order: Order) -> Self {
        Self {
            endpoint: Arc::clone(endpoint),
            order,
            counts: Arc::default(),
        }
    }

    /// Takes the counts of this client and its clones.
    pub(super) fn take_counts(&self) -> TokenCounts {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TokenCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Continues a prompt; returns all answers.
    pub(super) async fn complete_all(
        &self,
        prompt: &[Token],
        settings: &Settings,
    ) -> Result<Vec<Completion>, Error> {
        let body = settings.clone().with("prompt", prompt).0;
        let response = self.endpoint.post("/completion", &body).await?;
        let value: Value = serde_json::from_slice(&response)?;
        let list = match value {
            Value::Array(list) => list,
            one => vec![one],
        };
        let answers = list.into_iter().map(serde_json::from_value);
        let answers: Vec<Completion> = answers.collect::<Result<_, _>>()?;
        let mut counts = self.lock();
        // Answers to one prompt repeat its count.
        counts.computed += answers.first().map_or(0, |first| first.timings.prompt_n);
        for answer in &answers {
            counts.computed += answer.timings.predicted_n.saturating_sub(1);
            counts.add_text(prompt, &answer.tokens);
        }
        drop(counts);
        Ok(answers)
    }

    /// Continues a prompt; returns the only answer.
    pub(super) async fn complete(
        &self,
        prompt: &[Token],
        settings: &Settings,
    ) -> Result<Completion, Error> {
        let answer = self.complete_all(prompt, settings).await?.pop();
        answer.ok_or_else(|| Error::failed("the server returned no answer"))
    }

    /// Continues several prompts in the client's order; returns the answers in the order of the prompts.
    pub(super) async fn complete_each(
        &self,
        requests: Vec<(Vec<Token>, Settings)>,
    ) -> Result<Vec<Completion>, Error> {
        let mut answers = Vec::new();
        if self.order == Order::InTurn {
            for (prompt, settings) in requests {
                answers.push(self.complete(&prompt, &settings).await?);
            }
            return Ok(answers);
        }
        let mut tasks = JoinSet::new();
        for (index, (prompt, settings)) in requests.into_iter().enumerate() {
            let client = self.clone();
            tasks.spawn(async move {
                let answer = client.complete(&prompt, &settings).await;
                answer.map(|answer| (index, answer))
            });
        }
        let mut numbered = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            numbered.push(ended.map_err(Error::context("a client crashed"))??);
        }
        numbered.sort_by_key(|(index, _)| *index);
        answers.extend(numbered.into_iter().map(|(_, answer)| answer));
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_peer_are_read() {
        let metrics = "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 25\n";
        assert_eq!(peer_steps(metrics), Some(25));
        assert_eq!(peer_steps("corral_engine_steps_total 25\n"), None);
    }

    #[test]
    fn common_prefixes_count_once() {
        let mut counts = TokenCounts::default();
        counts.add_text(&[1, 2, 3], &[4, 5]);
        assert_eq!(counts.fewest(), 4);
        counts.add_text(&[1, 2, 3], &[4, 6, 7]);
        assert_eq!(counts.fewest(), 5);
        counts.add_text(&[2, 3], &[]);
        assert_eq!(counts.fewest(), 7);
    }
}
