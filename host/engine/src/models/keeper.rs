//! The thread that does what the residency says, and those that load and unload.

use super::file::{Print, expected_bytes};
use super::machine::free_memory;
use super::residency::{Action, Answer, Ticket};
use super::{Inner, Shared};
use crate::LoadError;
use crate::engine::Engine;
use corral_llama::LoadProgress;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Plans whenever something happens, until the end. Sleeps without a timer when nothing is to come.
pub(super) fn keep(shared: &Arc<Shared>) {
    let mut inner = shared.lock();
    loop {
        if let Some(model) = inner.residency.unmeasured() {
            inner = look(shared, inner, model);
            continue;
        }
        let free = inner.residency.anyone_waits().then(free_memory).flatten();
        let now = shared.now();
        let actions = inner.residency.plan(now, free);
        if !actions.is_empty() {
            let wakers = take_note(&mut inner, &actions);
            drop(inner);
            wakers.into_iter().for_each(Waker::wake);
            for action in actions {
                act(shared, action);
            }
            inner = shared.lock();
            continue;
        }
        if inner.residency.is_over() {
            shared.over.notify_all();
            return;
        }
        inner.armed = inner.residency.next_timer(now);
        inner = match inner.armed {
            None => shared
                .work
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let left = time.saturating_sub(shared.now());
                let waited = shared.work.wait_timeout(inner, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// Looks at the file of a model that is to be loaded, without the lock.
fn look<'a>(
    shared: &'a Shared,
    inner: MutexGuard<'a, Inner>,
    model: usize,
) -> MutexGuard<'a, Inner> {
    let slot = &inner.slots[model];
    let (config, took) = (slot.config.clone(), slot.took);
    drop(inner);
    let config = config.ok_or_else(|| LoadError::Config("the model has no file".into()));
    let print = config
        .as_ref()
        .ok()
        .and_then(|config| Print::of(&config.path));
    // What it took the last time is a better guess than any.
    let known = took.filter(|(before, _)| Some(*before) == print);
    let bytes = match known {
        Some((_, bytes)) => Ok(bytes),
        None => config.and_then(|config| expected_bytes(&config)),
    };
    let mut inner = shared.lock();
    inner.slots[model].print = print;
    match bytes {
        Ok(bytes) => inner.residency.measured(model, bytes),
        Err(error) => fail(shared, &mut inner, model, error),
    }
    inner
}

/// Writes the answers down; returns who is to be woken, without the lock.
fn take_note(inner: &mut Inner, actions: &[Action]) -> Vec<Waker> {
    let answers = actions.iter().filter_map(|action| match action {
        Action::Answer(ticket, answer) => Some((*ticket, *answer)),
        _ => None,
    });
    let mut note = |(ticket, answer): (Ticket, Answer)| {
        let waiting = inner.waiting.get_mut(&ticket)?;
        waiting.answer = Some(answer);
        waiting.waker.take()
    };
    answers.filter_map(&mut note).collect()
}

fn act(shared: &Arc<Shared>, action: Action) {
    let (what, model) = match action {
        Action::Load(model) => ("load", model),
        Action::Unload(model) => ("unload", model),
        Action::Answer(..) => return,
    };
    let threads = shared.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("{what} {}", shared.names[model]))
        .spawn(move || match action {
            Action::Load(_) => load(&threads, model),
            _ => unload(&threads, model),
        });
    if let Err(error) = spawned {
        if let Action::Unload(_) = action {
            // It can be done here too, and only holds up the others.
            unload(shared, model);
            return;
        }
        let error = LoadError::Config(format!(
            "the thread that loads could not be started: {error}"
        ));
        fail(shared, &mut shared.lock(), model, error);
    }
}

fn load(shared: &Shared, model: usize) {
    let mut inner = shared.lock();
    let progress = Arc::new(LoadProgress::default());
    let slot = &mut inner.slots[model];
    slot.progress = progress.clone();
    let config = slot.config.clone();
    if inner.residency.is_closed() {
        progress.cancel();
    }
    drop(inner);
    let began = Instant::now();
    let crashed = || LoadError::Config("the loader crashed; its log says more".into());
    let load = || match config {
        Some(config) => Engine::load_watched(config, &progress),
        None => Err(crashed()),
    };
    let loaded = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| Err(crashed()));
    let took = began.elapsed();
    let mut inner = shared.lock();
    match loaded {
        Ok(engine) => arrive(shared, &mut inner, model, engine, took),
        Err(error) => fail(shared, &mut inner, model, error),
    }
    shared.work.notify_one();
}

fn arrive(shared: &Shared, inner: &mut Inner, model: usize, engine: Engine, took: Duration) {
    let bytes = engine.memory();
    tracing::info!(
        model = shared.names[model],
        mebibytes = bytes >> 20,
        seconds = took.as_secs_f64(),
        "loaded a model"
    );
    let slot = &mut inner.slots[model];
    slot.progress = Arc::default();
    slot.engine = Some(engine);
    slot.error = None;
    slot.took = slot.print.map(|print| (print, bytes));
    slot.totals.loads += 1;
    slot.totals.load_time += took;
    inner.residency.loaded(shared.now(), model, bytes, took);
}

fn fail(shared: &Shared, inner: &mut Inner, model: usize, error: LoadError) {
    let name = &shared.names[model];
    // Whoever asked for it knows best how loud to say it.
    tracing::info!(model = name, %error, "a model could not be loaded");
    let slot = &mut inner.slots[model];
    slot.progress = Arc::default();
    slot.error = Some(Arc::new(error));
    slot.totals.failures += 1;
    inner.residency.failed(shared.now(), model);
}

fn unload(shared: &Shared, model: usize) {
    let engine = shared.lock().slots[model].engine.clone();
    if let Some(engine) = &engine {
        // Cancels what runs, which nobody reads any more, and waits for the step that runs.
        engine.shutdown();
    }
    let mut inner = shared.lock();
    let slot = &mut inner.slots[model];
    if let Some(engine) = slot.engine.take() {
        slot.totals.remember(&engine.metrics());
    }
    slot.totals.unloads += 1;
    drop(inner);
    if let Some(engine) = engine {
        if engine.is_shared() {
            tracing::debug!(model = shared.names[model], "somebody still looks at it");
        }
        // Frees the weights, which may take a moment: not under the lock.
        drop(engine);
    }
    tracing::info!(model = shared.names[model], "unloaded a model");
    shared.lock().residency.unloaded(model);
    shared.work.notify_one();
}
