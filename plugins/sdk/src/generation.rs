//! A running generation.

use std::rc::Rc;

use crate::backend;
use crate::{Chunk, Error, Outcome};

/// What is being generated. Dropping it cancels.
///
/// ```
/// use corral_sdk::{Generate, Model, testing::Script};
///
/// let script = Script::new().answers("12+7=", "19");
/// script.run(async {
///     let sequence = Model::first().await?.sequence()?;
///     sequence.append("12+7=")?;
///     let mut generation = sequence.generate(&Generate::new(8))?;
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
    /// None once all of it was taken.
    chunks: Option<backend::Chunks>,
    ending: Ending,
    /// A chunk that was read already.
    first: Option<Chunk>,
    /// Whether the stream has ended: the host does not let it be read again.
    ended: bool,
    /// Last, and only kept: what the generation runs on lives as long as it does.
    _sequence: Rc<backend::Sequence>,
}

enum Ending {
    Ahead(backend::Ending),
    Known(Outcome),
}

impl Generation {
    pub(crate) fn new(
        chunks: backend::Chunks,
        ending: backend::Ending,
        sequence: Rc<backend::Sequence>,
    ) -> Self {
        Generation {
            chunks: Some(chunks),
            ending: Ending::Ahead(ending),
            first: None,
            ended: false,
            _sequence: sequence,
        }
    }

    /// The next piece: everything that became ready since the last one. Nothing at the end; then
    /// [`outcome`](Generation::outcome) says whether that was a good one.
    pub async fn next(&mut self) -> Option<Chunk> {
        if self.first.is_some() {
            return self.first.take();
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

    /// Waits for the first piece. What fails before it (a full queue, a deadline) can so be told with its
    /// own status, which is too late once a stream of events has begun.
    pub async fn begun(mut self) -> Result<Self, Error> {
        self.first = self.next().await;
        if let (None, Ending::Ahead(_)) = (&self.first, &self.ending) {
            self.ending = Ending::Known(self.ending.outcome().await?);
        }
        Ok(self)
    }

    /// Waits for the end: all that is left, as one piece. The plugin is not woken before, so this costs a fraction of
    /// what reading piece by piece does. [`outcome`](Generation::outcome) says whether it was a good end. Giving up waiting
    /// cancels the generation.
    pub async fn rest(&mut self) -> Result<Chunk, Error> {
        let mut all = self.first.take().unwrap_or_else(|| Chunk {
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

    /// Whether its last piece was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The text that was read already, and that nobody has taken.
    pub(crate) fn read(&self) -> &str {
        self.first.as_ref().map_or("", |chunk| &chunk.text)
    }

    /// What is to come, and how it goes.
    pub(crate) fn apart(self) -> (Option<backend::Chunks>, Ahead) {
        let ahead = Ahead {
            ending: self.ending,
            _sequence: self._sequence,
        };
        (self.chunks, ahead)
    }

    /// All that is left of the text.
    pub async fn text(self) -> Result<String, Error> {
        Ok(self.whole().await?.0)
    }

    /// All that is left of the text, and how it went.
    pub async fn whole(mut self) -> Result<(String, Outcome), Error> {
        let text = self.rest().await?.text;
        Ok((text, self.ending.outcome().await?))
    }

    /// How it went. Chunks that were not read are read, and lost.
    pub async fn outcome(self) -> Result<Outcome, Error> {
        Ok(self.whole().await?.1)
    }
}

/// How a generation goes that is passed on elsewhere.
pub(crate) struct Ahead {
    ending: Ending,
    /// Only kept, as in [`Generation`].
    _sequence: Rc<backend::Sequence>,
}

impl Ahead {
    /// Waits for its end.
    pub(crate) async fn outcome(self) -> Result<Outcome, Error> {
        self.ending.outcome().await
    }
}

impl Ending {
    async fn outcome(self) -> Result<Outcome, Error> {
        match self {
            Ending::Ahead(ending) => Ok(ending.await?),
            Ending::Known(outcome) => Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;
    use crate::{Generate, Model};

    async fn generation(prompt: &str) -> Result<Generation, Error> {
        let sequence = Model::first().await?.sequence()?;
        sequence.append(prompt)?;
        // The sequence may go; what runs on it stays.
        sequence.generate(&Generate::new(8))
    }

    #[test]
    fn the_end_may_be_asked_for_again() {
        let script = Script::new().answers("a", "b");
        let (nothing, outcome) = script.run(async {
            let mut generation = generation("a").await.unwrap().begun().await.unwrap();
            while generation.next().await.is_some() {}
            let generation = generation.begun().await.unwrap();
            let mut generation = generation.begun().await.unwrap();
            (generation.next().await, generation.outcome().await)
        });
        assert_eq!(nothing, None);
        assert_eq!(outcome.unwrap().generated_tokens, 2);
    }

    #[test]
    fn what_fails_is_told_at_the_end_and_before_the_beginning() {
        let script = Script::new()
            .breaks_off("a", "b", Error::Deadline)
            .breaks_off("c", "", Error::Deadline);
        script.run(async {
            let mut begun = generation("a").await.unwrap().begun().await.unwrap();
            assert_eq!(begun.next().await.unwrap().text, "b");
            assert_eq!(begun.next().await, None);
            assert_eq!(begun.outcome().await, Err(Error::Deadline));
            assert_eq!(
                generation("a").await.unwrap().text().await,
                Err(Error::Deadline)
            );
            let none = generation("c").await.unwrap().begun().await;
            assert_eq!(none.err(), Some(Error::Deadline));
        });
    }
}
