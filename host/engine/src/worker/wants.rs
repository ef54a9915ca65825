//! What the engine's thread is asked of a sequence.

use super::choose::Asking;
use crate::delivery::Sender;
use crate::look::{Distribution, Look};
use crate::{Error, Options, Token, reply};
use corral_scheduler::LogitsKind;

/// What a sequence is computed for.
pub enum Wants {
    /// Tokens.
    Tokens { options: Options, delivery: Sender },
    /// What may come next.
    Distribution {
        look: Look,
        reply: reply::Sender<Distribution>,
    },
}

impl Wants {
    /// Most tokens that are generated for it.
    pub(super) fn max_tokens(&self) -> u32 {
        match self {
            Self::Tokens { options, .. } => options.max_tokens,
            Self::Distribution { .. } => 0,
        }
    }

    /// What has to be seen of logits, where for some ids there are the `top_k` highest alone.
    pub(super) fn rows(&self, top_k: Option<u32>) -> LogitsKind {
        let suffice = top_k.is_some_and(|k| match self {
            Self::Tokens { options, .. } => options.follows_from_top(k),
            Self::Distribution { look, .. } => look.follows_from_top(k),
        });
        match suffice {
            true => LogitsKind::TopK,
            false => LogitsKind::All,
        }
    }

    /// Who chooses the tokens after a prompt, if somebody does.
    pub(super) fn asking(&self, prompt: &[Token]) -> Option<Asking> {
        let Self::Tokens { options, .. } = self else {
            return None;
        };
        let seed = options.seed.unwrap_or_else(rand::random);
        let choosers = options.chooser.clone()?;
        Some(Asking::new(choosers, seed, prompt))
    }

    /// Says why it is not computed.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::Tokens { delivery, .. } => {
                if let Some(reader) = delivery.finish("", Err(error)) {
                    reader.wake();
                }
            }
            Self::Distribution { reply, .. } => reply.finish(Err(error)),
        }
    }
}
