//! A generation in progress.

use crate::backend;
use crate::{Chunk, Error, Outcome};

/// A generation in progress. Dropping it cancels the generation.
///
/// ```
/// use corral_sdk::{GenerateOptions, Model, testing::Script};
///
/// let script = Script::new().answers("12+7=", "19");
/// script.run(async {
///     let sequence = Model::open_default().await?.sequence()?;
///     sequence.append("12+7=")?;
///     let mut generation = sequence.generate(&GenerateOptions::new(8))?;
///     let mut text = String::new();
///     while let Some(chunk) = generation.next().await {
///         text += &chunk.text;
///     }
///     // Whether all went well is known at the end.
///     let outcome = generation.outcome().await?;
///     assert_eq!((text.as_str(), outcome.generated_tokens), ("19", 3));
///     Ok::<_, corral_sdk::Error>(())
/// })
/// .unwrap();
/// ```
pub struct Generation {
    /// `None` after the last chunk was taken.
    chunks: Option<backend::ChunkStream>,
    outcome: OutcomeState,
    /// The chunk that [`wait_for_start`](Generation::wait_for_start) read.
    buffered: Option<Chunk>,
    /// Whether the stream has ended. The host traps reads after the end.
    ended: bool,
}

enum OutcomeState {
    Pending(backend::OutcomeFuture),
    Known(Outcome),
}

impl Generation {
    pub(crate) fn new(chunks: backend::ChunkStream, outcome: backend::OutcomeFuture) -> Self {
        Generation {
            chunks: Some(chunks),
            outcome: OutcomeState::Pending(outcome),
            buffered: None,
            ended: false,
        }
    }

    /// Returns the next chunk: everything that became ready since the previous one. `None` at the
    /// end; then [`outcome`](Generation::outcome) says whether the generation succeeded.
    pub async fn next(&mut self) -> Option<Chunk> {
        if self.buffered.is_some() {
            return self.buffered.take();
        }
        if self.ended {
            return None;
        }
        let chunk = match &mut self.chunks {
            Some(chunks) => chunks.next().await,
            None => None,
        };
        self.ended = chunk.is_none();
        chunk
    }

    /// Waits for the first chunk. An error before it (a full queue, a deadline) can then still set
    /// the response's status, which is too late once a stream of events has started.
    pub async fn wait_for_start(mut self) -> Result<Self, Error> {
        self.buffered = self.next().await;
        if let (None, OutcomeState::Pending(_)) = (&self.buffered, &self.outcome) {
            self.outcome = OutcomeState::Known(self.outcome.outcome().await?);
        }
        Ok(self)
    }

    /// Waits for the end and returns the remaining output as one chunk. The host does not wake the
    /// plugin before that, so this costs a fraction of reading chunk by chunk.
    /// [`outcome`](Generation::outcome) says whether the generation succeeded. Dropping the call
    /// cancels the generation.
    pub async fn rest(&mut self) -> Result<Chunk, Error> {
        let mut all = self.buffered.take().unwrap_or_else(|| Chunk {
            tokens: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
        });
        if let Some(chunks) = self.chunks.take().filter(|_| !self.ended) {
            self.ended = true;
            let rest = backend::collect(chunks).await?;
            all.tokens.extend(rest.tokens);
            all.text += &rest.text;
            all.logprobs.extend(rest.logprobs);
        }
        Ok(all)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The text of the chunk that was read but not returned.
    pub(crate) fn buffered_text(&self) -> &str {
        self.buffered.as_ref().map_or("", |chunk| &chunk.text)
    }

    /// Splits into the remaining chunks and the outcome.
    pub(crate) fn into_parts(
        self,
    ) -> (
        Option<backend::ChunkStream>,
        impl Future<Output = Result<Outcome, Error>>,
    ) {
        (self.chunks, self.outcome.outcome())
    }

    /// Waits for the end and returns the remaining text.
    pub async fn text(self) -> Result<String, Error> {
        Ok(self.text_and_outcome().await?.0)
    }

    /// Waits for the end and returns the remaining text and the outcome.
    pub async fn text_and_outcome(mut self) -> Result<(String, Outcome), Error> {
        let text = self.rest().await?.text;
        Ok((text, self.outcome.outcome().await?))
    }

    /// Waits for the end and returns the outcome. Unread chunks are discarded.
    pub async fn outcome(self) -> Result<Outcome, Error> {
        Ok(self.text_and_outcome().await?.1)
    }
}

impl OutcomeState {
    async fn outcome(self) -> Result<Outcome, Error> {
        match self {
            OutcomeState::Pending(future) => Ok(future.await?),
            OutcomeState::Known(outcome) => Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;
    use crate::{GenerateOptions, Model};

    async fn generation(prompt: &str) -> Result<Generation, Error> {
        let sequence = Model::open_default().await?.sequence()?;
        sequence.append(prompt)?;
        // Drops the sequence; the generation continues.
        sequence.generate(&GenerateOptions::new(8))
    }

    #[test]
    fn wait_for_start_works_after_the_end() {
        let script = Script::new().answers("a", "b");
        let (nothing, outcome) = script.run(async {
            let generation = generation("a").await.unwrap().wait_for_start().await;
            let mut generation = generation.unwrap();
            while generation.next().await.is_some() {}
            let generation = generation.wait_for_start().await.unwrap();
            let mut generation = generation.wait_for_start().await.unwrap();
            (generation.next().await, generation.outcome().await)
        });
        assert_eq!(nothing, None);
        assert_eq!(outcome.unwrap().generated_tokens, 2);
    }

    #[test]
    fn errors_occur_before_start_or_at_end() {
        let script = Script::new()
            .fails_after("a", "b", Error::Deadline)
            .fails_after("c", "", Error::Deadline);
        script.run(async {
            let started = generation("a").await.unwrap().wait_for_start().await;
            let mut started = started.unwrap();
            assert_eq!(started.next().await.unwrap().text, "b");
            assert_eq!(started.next().await, None);
            assert_eq!(started.outcome().await, Err(Error::Deadline));
            let expected = Err(Error::Deadline);
            assert_eq!(generation("a").await.unwrap().text().await, expected);
            let none = generation("c").await.unwrap().wait_for_start().await;
            assert_eq!(none.err(), Some(Error::Deadline));
        });
    }
}
