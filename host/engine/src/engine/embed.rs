//! The engine's part in embeddings: its tokens are checked here, the rest in [`embedding`](crate::embedding).

use super::Engine;
use crate::embedding::{EmbedOptions, Embedding, EmbeddingInfo};
use crate::{Caller, Error, Token};

impl Engine {
    /// The properties of the model's embeddings.
    pub fn embedding_info(&self) -> EmbeddingInfo {
        self.embedder().info
    }

    /// Computes a vector for each input. Returns at once a future of the vectors; dropping it cancels
    /// the request.
    ///
    /// Fails with [`Error::Invalid`] if there are no inputs, too many inputs, tokens or numbers in the
    /// result, an empty input, or a token outside the vocabulary; [`Error::ContextFull`] if an input is
    /// longer than [`EmbeddingInfo::longest`]; [`Error::Unsupported`] if the model does not support the
    /// pooling; [`Error::Overloaded`] if too many requests are open. The future fails with [`Error::DeadlineExceeded`],
    /// [`Error::QueueTimeout`] after the caller's queue time, [`Error::ShuttingDown`] at a shutdown, or
    /// [`Error::Failed`].
    pub fn embed(
        &self,
        inputs: Vec<Vec<Token>>,
        options: EmbedOptions,
        caller: Caller,
    ) -> Result<Embedding, Error> {
        inputs
            .iter()
            .try_for_each(|input| self.check_tokens(input))?;
        self.embedder().embed(inputs, options, caller)
    }
}
