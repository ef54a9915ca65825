//! `openai`: the HTTP APIs of OpenAI, Anthropic and llama.cpp's server over `corral:inference`.
//!
//! `routes` dispatches requests to `chat`, `completions`, `embeddings`, `responses`, `messages`,
//! `models`, `rerank` and `tokenize`, to `llama_server` (completions in llama.cpp's format) and `server_info`.
//! The crate `conversation` turns a chat into a prompt and the model's output into content, reasoning and
//! tool calls; `chat`, `responses` and `messages` are three formats for its result.
//!
//! `field_types` rewrites fields that clients write differently. `shared_fields` reads fields that several
//! APIs have, `constraint_fields` those that constrain an answer, `configuration` those of the deployment.
//! `completion_chunks` and `sse` write streams, `timings` and `serialize` parts of responses.

mod chat;
mod completion_chunks;
mod completions;
mod configuration;
mod constraint_fields;
mod embeddings;
mod error;
mod field_types;
mod llama_server;
mod messages;
mod models;
mod offered_tools;
mod prompt_input;
mod rerank;
mod responses;
mod routes;
mod serialize;
mod server_info;
mod shared_fields;
mod sse;
mod timings;
mod tokenize;

#[cfg(test)]
mod tests;

// For the fuzz targets in fuzz/plugins.
pub use routes::handle;

corral_sdk::handler!(routes::handle);
