//! The session protocol: `corral:inference` over one HTTP request.
//!
//! A client sends a POST and keeps the request and response bodies open; the session lasts as long as both. Each line of
//! the request's body is a [`Command`] in JSON; each line of the response's body is a [`Reply`]. When either body ends, the
//! host drops the instance that serves the session, and with it every sequence and generation. A client that has no
//! command to send sends an empty line before the host's idle timeout (`--io-timeout`) ends the session.
//!
//! The functions, arguments and errors are those of `wit/corral-inference.wit`. The client numbers its handles: it
//! chooses an unused number when it creates a model, sequence, constraint, matcher, options or generation, and need not
//! wait for the reply before it uses it. Commands run in the order of their lines; those that wait for the model
//! run concurrently with later ones, and reply when they end.
//!
//! docs/remote.md shows a session by `curl`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
mod error;
#[cfg(test)]
mod tests;
mod wit_types;

pub use bytes::Bytes;
pub use error::Error;
pub use wit_types::{
    Candidate, Chunk, Distribution, Dry, Finish, Floats, Grammar, ModelInfo, NextTokenRequest,
    Outcome, Part, Penalties, Pooling, RequestCounts, Setting, Statistics, TokenLogprobs, Words,
};

use serde::{Deserialize, Serialize};

/// Version of the protocol, in the host's first line. Members are only added; a client ignores those it does not know.
pub const VERSION: u32 = 1;
/// Longest line of a client, in bytes. A host may send longer ones.
pub const MAX_LINE: usize = 16 << 20;

/// A token.
pub type Token = u32;
/// A client's number for one of its handles. Each kind has numbers of its own.
pub type Handle = u32;

/// The first line of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol's [`VERSION`].
    pub session: u32,
}

/// A line of the request's body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The client's number for the reply.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub call: Call,
}

/// A function of the interface, and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the function of the same name in the WIT")]
pub enum Call {
    /// Returns names.
    Available,
    /// Returns the [`ModelInfo`].
    OpenModel {
        model: Handle,
        name: Option<String>,
    },
    /// Returns the [`RequestCounts`].
    RequestCounts {
        model: Handle,
    },
    /// Returns tokens.
    Tokenize {
        model: Handle,
        text: String,
        special: bool,
    },
    /// Returns [`Bytes`].
    Detokenize {
        model: Handle,
        tokens: Vec<Token>,
        special: bool,
    },
    /// Returns vectors.
    Embed {
        model: Handle,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    },
    /// Returns the ignored keywords.
    CompileConstraint {
        constraint: Handle,
        model: Handle,
        grammar: Grammar,
    },
    StartMatcher {
        matcher: Handle,
        constraint: Handle,
    },
    ForkMatcher {
        matcher: Handle,
        from: Handle,
    },
    /// Returns [`Words`].
    Mask {
        matcher: Handle,
    },
    /// Returns tokens, or null.
    Allowed {
        matcher: Handle,
        max_tokens: u32,
    },
    /// Returns a boolean.
    Allows {
        matcher: Handle,
        token: Token,
    },
    Accept {
        matcher: Handle,
        token: Token,
    },
    /// Returns tokens.
    Forced {
        matcher: Handle,
        max_tokens: u32,
    },
    /// Returns a boolean.
    IsComplete {
        matcher: Handle,
    },
    /// Returns a [`RemainingBudget`].
    Remaining,
    CreateOptions {
        options: Handle,
        max_tokens: u32,
    },
    Set {
        options: Handle,
        setting: Setting,
    },
    Constrain {
        options: Handle,
        constraint: Handle,
    },
    SampleWith {
        options: Handle,
        name: String,
        settings: String,
    },
    CreateSequence {
        sequence: Handle,
        model: Handle,
    },
    Append {
        sequence: Handle,
        tokens: Vec<Token>,
    },
    Truncate {
        sequence: Handle,
        length: u32,
    },
    ForkSequence {
        sequence: Handle,
        from: Handle,
    },
    SetAdapter {
        sequence: Handle,
        adapter: Option<String>,
    },
    /// Replies with an empty [`Chunk`] once it has started, with each further one as it is ready, and at the end with the
    /// [`Outcome`].
    Generate {
        generation: Handle,
        sequence: Handle,
        options: Handle,
    },
    /// Cancels a generation, which ends with the error `cancelled`. Returns the tokens of the sequence from position
    /// `start` on.
    Cancel {
        generation: Handle,
        sequence: Handle,
        start: u32,
    },
    /// Returns a [`Distribution`].
    Next {
        sequence: Handle,
        request: NextTokenRequest,
    },
    /// Returns a list with a result for each request: `{"ok": DISTRIBUTION}` or `{"error": ERROR}`.
    NextMany {
        requests: Vec<(Handle, NextTokenRequest)>,
    },
    /// Returns the tokens that stand for the image.
    AppendImage {
        sequence: Handle,
        file: Bytes,
    },
    SaveSnapshot {
        sequence: Handle,
        name: String,
    },
    /// Returns the sequence's tokens.
    RestoreSnapshot {
        sequence: Handle,
        model: Handle,
        name: String,
    },
    DeleteSnapshot {
        model: Handle,
        name: String,
    },
    Drop {
        kind: Kind,
        handle: Handle,
    },
}

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the resources of the WIT")]
pub enum Kind {
    Model,
    Constraint,
    Matcher,
    Options,
    Sequence,
}

/// A line of the response's body after the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply<T> {
    /// The command's number.
    pub id: u64,
    /// Its content.
    #[serde(flatten)]
    pub content: Content<T>,
}

/// The content of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content<T> {
    /// The command succeeded; its value, or null.
    Ok(T),
    /// The command failed.
    Error(Error),
    /// A part of a generation. More replies follow.
    Chunk(Chunk),
}

/// One result of `next-many`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in a reply")]
pub enum NextResult {
    Ok(Distribution),
    Error(Error),
}

/// The result of `remaining`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemainingBudget {
    /// Tokens, if a quota applies.
    pub tokens: Option<u64>,
    /// Nanoseconds until the session's deadline.
    pub time: u64,
}
