//! The records and variants of the WIT as they stand on a line.

use serde::{Deserialize, Serialize};

pub use crate::bytes::{Floats, Words};
use crate::{Handle, Token};

/// See `model-info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct ModelInfo {
    pub name: String,
    pub vocabulary: u32,
    pub context: u32,
    pub embedding_length: u32,
    pub bos: Option<Token>,
    pub eos: Option<Token>,
    pub end_of_generation: Vec<Token>,
    pub chat_template: Option<String>,
    pub can_fork: bool,
    pub adapters: Vec<String>,
    /// See `accepts-images`. An older host leaves it out.
    #[serde(default)]
    pub accepts_images: bool,
    /// See `accepts-audio`. An older host leaves it out.
    #[serde(default)]
    pub accepts_audio: bool,
    /// See `rerank-template`. An older host leaves it out.
    #[serde(default)]
    pub rerank_template: Option<String>,
}

/// See `request-counts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct RequestCounts {
    pub running: u32,
    pub waiting: u32,
    pub max_running: u32,
}

/// See `pooling`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the WIT")]
pub enum Pooling {
    Mean,
    Cls,
    Last,
    Tokens,
    Rank,
}

/// See `grammar`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the WIT")]
pub enum Grammar {
    JsonSchema(String),
    JsonObject,
    Regex(String),
    Lark(String),
    Gbnf(String),
    LenientJsonSchema(String),
}

/// A function of `options` and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the function of the same name in the WIT")]
pub enum Setting {
    Seed(u64),
    Stop(String),
    IgnoreEos,
    Temperature(f32),
    TopK(u32),
    TopP(f32),
    MinP(f32),
    DynamicTemperature(f32, f32, f32),
    TypicalP(f32),
    TopNSigma(f32),
    Xtc(f32, f32),
    Dry(Dry),
    Penalties(Penalties),
    OutputPenalties(Penalties),
    /// Null stands for minus infinity.
    LogitBias(Vec<(Token, Option<f32>)>),
    Mirostat(f32, f32),
    Logprobs(u8),
    Speculate(u8),
    Adapter(String),
}

/// See `dry`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct Dry {
    pub multiplier: f32,
    pub base: f32,
    pub allowed_length: u32,
    pub last_n: u32,
    pub breakers: Vec<String>,
}

/// See `penalties`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct Penalties {
    pub last_n: u32,
    pub repeat: f32,
    pub frequency: f32,
    pub presence: f32,
}

/// See `distribution-part`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the WIT")]
pub enum Part {
    Top(u32),
    Only(Vec<Token>),
    Logits,
}

/// See `next-token-request`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NextTokenRequest {
    /// The part to return.
    pub part: Part,
    /// Whether to return the statistics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub statistics: bool,
    /// Return only tokens that this matcher allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matcher: Option<Handle>,
}

/// A token and its logit; null stands for minus infinity.
pub type Candidate = (Token, Option<f32>);

/// See `distribution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct Distribution {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits: Option<Floats>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
    pub position: u32,
}

/// See `statistics`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct Statistics {
    pub log_normalizer: f32,
    pub entropy: f32,
}

/// See `token-logprobs`. Null stands for minus infinity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct TokenLogprobs {
    pub logprob: Option<f32>,
    pub top: Vec<Candidate>,
}

/// See `chunk`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct Chunk {
    pub tokens: Vec<Token>,
    pub text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprobs>,
}

/// See `finish`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the WIT")]
pub enum Finish {
    End,
    Stop,
    Length,
}

/// See `outcome`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the WIT")]
pub struct Outcome {
    pub finish: Finish,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub generated_tokens: u32,
    pub queue_time: u64,
    pub prefill_time: u64,
    pub decode_time: u64,
}
