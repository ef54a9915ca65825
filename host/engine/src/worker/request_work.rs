//! The two kinds of requests that the worker computes.

use super::external_sampling::ExternalSamplerState;
use crate::generation::Sender;
use crate::next_token::{Distribution, NextTokenRequest};
use crate::{Error, GenerateOptions, Token, reply};

/// What a request computes.
pub enum RequestWork {
    /// Tokens.
    Generate {
        options: GenerateOptions,
        sender: Sender,
    },
    /// The distribution of the next token.
    NextToken {
        request: NextTokenRequest,
        sender: reply::ReplySender<Distribution>,
    },
}

impl RequestWork {
    /// Most tokens that the request generates.
    pub(super) fn max_tokens(&self) -> u32 {
        match self {
            Self::Generate { options, .. } => options.max_tokens,
            Self::NextToken { .. } => 0,
        }
    }

    /// The external sampler of the request after this prompt, if it has one.
    pub(super) fn external_sampling(&self, prompt: &[Token]) -> Option<ExternalSamplerState> {
        let Self::Generate { options, .. } = self else {
            return None;
        };
        let factory = options.external_sampler.clone()?;
        let seed = options.seed.unwrap_or_else(rand::random);
        Some(ExternalSamplerState::new(factory, seed, prompt))
    }

    /// Ends the request with an error.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::Generate { sender, options } => {
                let observer = options.observer.as_ref();
                if let Some(trace) = observer.and_then(|observer| observer.trace.as_ref()) {
                    trace.failed(&error);
                }
                if let Some(reader) = sender.finish("", Err(error)) {
                    reader.wake();
                }
            }
            Self::NextToken { sender, .. } => sender.finish(Err(error)),
        }
    }
}
