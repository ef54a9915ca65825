//! What the engine's thread is asked of a sequence.

use super::choose::Asking;
use crate::generation::Sender;
use crate::next_token::{Distribution, NextTokenRequest};
use crate::{Error, GenerateOptions, Token, reply};
use corral_scheduler::LogitsKind;

/// What a sequence is computed for.
pub enum RequestKind {
    /// Tokens.
    Generate {
        options: GenerateOptions,
        sender: Sender,
    },
    /// What may come next.
    NextToken {
        request: NextTokenRequest,
        sender: reply::Sender<Distribution>,
    },
}

impl RequestKind {
    /// Most tokens that are generated for it.
    pub(super) fn max_tokens(&self) -> u32 {
        match self {
            Self::Generate { options, .. } => options.max_tokens,
            Self::NextToken { .. } => 0,
        }
    }

    /// What has to be seen of logits, where for some ids there are the `top_k` highest alone.
    pub(super) fn rows(&self, top_k: Option<u32>) -> LogitsKind {
        let suffice = top_k.is_some_and(|k| match self {
            Self::Generate { options, .. } => options.fits_top_k(k),
            Self::NextToken { request: look, .. } => look.fits_top_k(k),
        });
        match suffice {
            true => LogitsKind::TopK,
            false => LogitsKind::All,
        }
    }

    /// Who chooses the tokens after a prompt, if somebody does.
    pub(super) fn asking(&self, prompt: &[Token]) -> Option<Asking> {
        let Self::Generate { options, .. } = self else {
            return None;
        };
        let seed = options.seed.unwrap_or_else(rand::random);
        let choosers = options.external_sampler.clone()?;
        Some(Asking::new(choosers, seed, prompt))
    }

    /// Says why it is not computed.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::Generate {
                sender: delivery, ..
            } => {
                if let Some(reader) = delivery.finish("", Err(error)) {
                    reader.wake();
                }
            }
            Self::NextToken { sender: reply, .. } => reply.finish(Err(error)),
        }
    }
}
