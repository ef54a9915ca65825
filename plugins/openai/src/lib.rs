//! `openai`: OpenAI's API over `corral:inference`, and what clients ask for beside it.
//!
//! `routes` says who answers what. `asking` is what all generations have in common: settings, several
//! texts at a time, probabilities. `talk` makes of a chat what a model says in answer to it: content,
//! reasoning, calls of tools. `chat`, `responses` and `messages` are three ways to write that down; `written`
//! is for what is long.

mod asking;
mod chat;
mod completions;
mod embeddings;
mod error;
mod identity;
mod messages;
mod models;
mod responses;
mod routes;
mod sse;
mod talk;
mod tokenize;
mod written;

#[cfg(test)]
mod tests;

corral_sdk::handler!(routes::handle);
