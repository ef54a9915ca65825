//! Between the engine's thread and the task of an instance.
//!
//! The engine's thread never waits: it starts a task and hands questions over to it, one at a time, by a
//! channel with room for one. The task answers on the engine's desk, from where it is. When the engine
//! drops its end the task is aborted, also in the midst of a call, and the instance is gone.

use super::Ordered;
use super::instance::{Aim, Instance};
use corral_engine::{Choice, Chooser, Choosers, Error, Shown, Wanted};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

/// Makes an instance for each text.
pub(super) struct Samplers {
    pub(super) ordered: Arc<Ordered>,
    pub(super) wanted: Wanted,
    pub(super) runtime: Handle,
    /// Number of tokens of the model.
    pub(super) vocabulary: u32,
}

impl std::fmt::Debug for Samplers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samplers")
            .field("name", &self.ordered.name)
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl Choosers for Samplers {
    fn wanted(&self) -> Wanted {
        self.wanted
    }

    fn start(&self, seed: u64) -> Box<dyn Chooser> {
        let (questions, asked) = mpsc::channel(1);
        let ordered = Arc::clone(&self.ordered);
        let instance = Instance::start(ordered, Aim::Text { seed }, self.vocabulary);
        let answering = answer(Arc::clone(&self.ordered), self.wanted, instance, asked);
        let span = self.ordered.span.clone();
        let mut task = JoinSet::new();
        task.spawn_on(answering.instrument(span), &self.runtime);
        Box::new(Asks {
            questions,
            _task: task,
        })
    }
}

/// What the engine wants to know.
struct Question {
    shown: Shown,
    choice: Choice,
    asked: Instant,
}

/// The engine's end. Dropping it aborts the task.
struct Asks {
    questions: mpsc::Sender<Question>,
    _task: JoinSet<()>,
}

impl Chooser for Asks {
    fn choose(&mut self, shown: Shown, choice: Choice) {
        // One that can't be handed over, since the host is shutting down, is answered by being dropped.
        let _ = self.questions.try_send(Question {
            shown,
            choice,
            asked: Instant::now(),
        });
    }
}

/// Answers one question after the other; all of them with the error, once there is one.
async fn answer(
    ordered: Arc<Ordered>,
    wanted: Wanted,
    instance: impl Future<Output = Result<Instance, Error>>,
    mut questions: mpsc::Receiver<Question>,
) {
    let mut instance = match instance.await {
        Ok(instance) if instance.wanted() == wanted => Ok(instance),
        Ok(_) => Err(ordered.failed("needs something else than when its settings were checked")),
        // The settings were in order, so it is not the caller's mistake.
        Err(Error::Invalid(words)) => Err(Error::Failed(words)),
        Err(error) => Err(error),
    };
    while let Some(question) = questions.recv().await {
        let answer = match &mut instance {
            Ok(instance) => instance.sample(question.shown).await,
            Err(error) => Err(error.clone()),
        };
        let time = question.asked.elapsed();
        ordered.sampling.counters.sampled(time, answer.is_err());
        if let Err(error) = &answer {
            // Its place is free before anybody hears of it.
            instance = Err(error.clone());
        }
        question.choice.make(answer);
    }
}
