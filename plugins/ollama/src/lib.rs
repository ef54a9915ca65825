//! `ollama`: Ollama's HTTP API over `corral:inference`.
//!
//! `routes` dispatches requests to `chat`, `generate`, `embed` and `models`. `options` reads what chat
//! and generate share, `answer` writes their answers: whole, or as lines of JSON. Prompts, tools and
//! reasoning are those of the crate `conversation`.

mod answer;
mod chat;
mod embed;
mod error;
mod generate;
mod messages;
mod models;
mod options;
mod routes;

#[cfg(test)]
mod tests;

corral_sdk::handler!(routes::handle);
