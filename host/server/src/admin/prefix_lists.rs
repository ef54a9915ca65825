//! The prefix cache entries of each model, also of one in a long step.
//!
//! An engine thread answers between two steps, and a step may take longer than a client waits. So a query outlives its
//! client: its answer serves the clients that ask next, if theirs does not come in time. All clients that ask a model at
//! the same time share one query. A model that no client asks about is asked nothing.

use super::engine_status::{long_step, query_problem, stopped};
use crate::problem::Problem;
use corral_engine::{Engine, EngineStatus, EntryStatus, Error};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Longest wait for the list of a model that is in the middle of a step.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// An older list serves nobody.
const MAX_AGE: Duration = Duration::from_secs(60);

/// The entries of a model at one moment.
#[derive(Clone, Debug)]
pub(super) struct PrefixList {
    /// In the order of the prefix tree.
    pub(super) entries: Arc<[EntryStatus]>,
    at: Instant,
}

/// The lists of all models.
#[derive(Debug, Default)]
pub(super) struct PrefixLists {
    models: Mutex<HashMap<String, ModelLists>>,
}

/// At most two lists of a model.
#[derive(Debug, Default)]
struct ModelLists {
    /// The query in flight, or its answer.
    query: Option<Query>,
    /// The answer before.
    last: Option<PrefixList>,
}

type Query = watch::Receiver<Option<PrefixList>>;

/// A list that will come.
pub(super) struct PendingList {
    model: String,
    query: Result<Query, Error>,
    last: Option<PrefixList>,
}

impl PrefixLists {
    /// Asks all engines. It forgets the lists of other models.
    pub(super) fn ask<'a>(
        &self,
        engines: impl IntoIterator<Item = &'a Engine>,
    ) -> Vec<PendingList> {
        self.ask_each(engines.into_iter().map(|engine| {
            let send = move |receive: Receive| engine.status(receive);
            (engine.info().name.clone(), send)
        }))
    }

    fn ask_each<S>(&self, models: impl Iterator<Item = (String, S)>) -> Vec<PendingList>
    where
        S: FnOnce(Receive) -> Result<(), Error>,
    {
        let mut lists = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = std::mem::take(&mut *lists);
        let mut pending = Vec::new();
        for (model, send) in models {
            let mut of_model = known.remove(&model).unwrap_or_default();
            pending.push(of_model.ask(&model, send));
            lists.insert(model, of_model);
        }
        pending
    }
}

/// Takes the answer on the engine thread.
type Receive = Box<dyn FnOnce(EngineStatus) + Send>;

impl ModelLists {
    fn ask(&mut self, model: &str, send: impl FnOnce(Receive) -> Result<(), Error>) -> PendingList {
        if let Some(query) = &self.query {
            let answer = query.borrow().clone();
            if answer.is_some() {
                self.last = answer;
                self.query = None;
            } else if query.has_changed().is_err() {
                // The engine ended.
                self.query = None;
            }
        }
        let query = match &self.query {
            Some(query) => Ok(query.clone()),
            None => {
                let (sender, query) = watch::channel(None);
                let receive = move |status: EngineStatus| {
                    sender.send_replace(Some(PrefixList {
                        entries: status.prefix_cache.into(),
                        at: Instant::now(),
                    }));
                };
                send(Box::new(receive)).map(|()| query)
            }
        };
        self.query = query.as_ref().ok().cloned();
        self.last.take_if(|list| list.at.elapsed() > MAX_AGE);
        PendingList {
            model: model.to_owned(),
            query,
            last: self.last.clone(),
        }
    }
}

impl PendingList {
    /// The model's name.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// The list. If it does not come in time: the one before, and its age.
    pub(super) async fn wait(
        self,
        until: Instant,
    ) -> Result<(PrefixList, Option<Duration>), Problem> {
        let problem = match self.query {
            Ok(mut query) => match timeout_at(until, query.wait_for(Option::is_some)).await {
                Ok(Ok(list)) => match &*list {
                    Some(list) => return Ok((list.clone(), None)),
                    None => stopped(&self.model),
                },
                Ok(Err(_)) => return Err(stopped(&self.model)),
                Err(_) => long_step(&self.model),
            },
            Err(error) => query_problem(&self.model, error),
        };
        let last = self.last.ok_or(problem)?;
        let age = last.at.elapsed();
        Ok((last, Some(age)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{EntryId, EntryLocation, PrefixScope, SchedulerCounters};
    use std::sync::mpsc;

    /// The status of an engine with one entry.
    fn status(entry: u64) -> EngineStatus {
        EngineStatus {
            cells: 100,
            cells_running: 0,
            cells_cached: 7,
            attention_cells: 32,
            sequence_ids: 4,
            sequence_ids_running: 0,
            sequence_ids_cached: 1,
            waiting: 0,
            generated_tokens: 0,
            swap_ram_bytes: 0,
            swap_disk_bytes: 0,
            prefix_offload_bytes: 0,
            requests: Vec::new(),
            prefix_cache: vec![EntryStatus {
                id: EntryId(entry),
                scope: PrefixScope(1),
                seq: None,
                tokens: 7,
                retained: false,
                location: EntryLocation::Memory,
                shared: 0,
                hits: 0,
            }],
            counters: SchedulerCounters::default(),
        }
    }

    /// An engine in the middle of a step: what it was asked.
    struct BusyEngine(mpsc::Receiver<Receive>, mpsc::Sender<Receive>);

    impl BusyEngine {
        fn new() -> Self {
            let (sender, asked) = mpsc::channel();
            BusyEngine(asked, sender)
        }

        fn ask(&self, lists: &PrefixLists) -> PendingList {
            let sender = self.1.clone();
            let send = move |receive: Receive| {
                sender.send(receive).expect("the engine runs");
                Ok(())
            };
            let mut pending = lists.ask_each(std::iter::once(("tiny".to_owned(), send)));
            pending.pop().expect("one model")
        }

        /// Ends the step, and answers all queries. Returns their number.
        fn end_step(&self, entry: u64) -> usize {
            let asked = Vec::from_iter(self.0.try_iter());
            let number = asked.len();
            asked.into_iter().for_each(|receive| receive(status(entry)));
            number
        }
    }

    /// The entry of the list that comes in time or was there before, and whether it was.
    async fn entry(pending: PendingList) -> Result<(u64, bool), &'static str> {
        let until = Instant::now() + Duration::from_millis(5);
        let (list, age) = pending
            .wait(until)
            .await
            .map_err(|problem| problem.code())?;
        Ok((list.entries[0].id.0, age.is_some()))
    }

    #[tokio::test]
    async fn list_before_serves_during_a_long_step() {
        let lists = PrefixLists::default();
        let engine = BusyEngine::new();
        for _ in 0..10 {
            assert_eq!(entry(engine.ask(&lists)).await, Err("model-busy"));
        }
        assert_eq!(engine.end_step(1), 1, "all shared one query");

        // It came after the clients were gone, and serves the next ones.
        assert_eq!(entry(engine.ask(&lists)).await, Ok((1, true)));
        assert_eq!(entry(engine.ask(&lists)).await, Ok((1, true)));
        let (one, other) = (engine.ask(&lists), engine.ask(&lists));
        assert_eq!(engine.end_step(2), 1);
        assert_eq!(entry(one).await, Ok((2, false)));
        assert_eq!(entry(other).await, Ok((2, false)));
        assert_eq!(engine.end_step(3), 0, "nobody asks");
    }

    #[tokio::test]
    async fn old_and_unloaded_lists_serve_nobody() {
        let lists = PrefixLists::default();
        let engine = BusyEngine::new();
        for unloaded in [false, true] {
            drop(engine.ask(&lists));
            engine.end_step(1);
            assert_eq!(entry(engine.ask(&lists)).await, Ok((1, true)));
            if unloaded {
                lists.ask([]);
            } else {
                let mut models = lists.models.lock().expect("no panic");
                let last = models.get_mut("tiny").and_then(|lists| lists.last.as_mut());
                let last = last.expect("a list");
                last.at = last.at.checked_sub(2 * MAX_AGE).expect("a running clock");
            }
            assert_eq!(entry(engine.ask(&lists)).await, Err("model-busy"));
            engine.end_step(1);
        }
    }

    #[tokio::test]
    async fn engine_that_ends_has_stopped() {
        let lists = PrefixLists::default();
        let engine = BusyEngine::new();
        let pending = engine.ask(&lists);
        drop(engine.0.try_recv());
        assert_eq!(entry(pending).await, Err("model-stopped"));
        // Another engine of this name is asked anew.
        let pending = engine.ask(&lists);
        assert_eq!(engine.end_step(3), 1);
        assert_eq!(entry(pending).await, Ok((3, false)));
    }
}
