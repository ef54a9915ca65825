//! The manager thread, which acts on the policy's plans, and the threads that load and unload.

use super::estimate::{FileStamp, estimate_host_bytes};
use super::policy::{Action, WaitResult, WaiterId};
use super::{PoolShared, PoolState};
use crate::LoadError;
use crate::engine::Engine;
use crate::machine_memory::free_memory;
use corral_llama::LoadProgress;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Plans after each event until the pool is closed and empty. Sleeps without a timer if no time matters.
pub(super) fn run(shared: &Arc<PoolShared>) {
    let mut pool = shared.lock();
    loop {
        if let Some(model) = pool.policy.model_of_unknown_size() {
            pool = find_size(shared, pool, model);
            continue;
        }
        let free = pool.policy.has_waiters().then(free_memory).flatten();
        let now = shared.now();
        let actions = pool.policy.plan(now, free);
        if !actions.is_empty() {
            let wakers = store_answers(&mut pool, &actions);
            drop(pool);
            wakers.into_iter().for_each(Waker::wake);
            for action in actions {
                act(shared, action);
            }
            pool = shared.lock();
            continue;
        }
        if pool.policy.is_closed_and_empty() {
            shared.emptied.notify_all();
            return;
        }
        pool.timer = pool.policy.next_timer(now);
        pool = match pool.timer {
            None => {
                let waited = shared.work.wait(pool);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Some(time) => {
                let left = time.saturating_sub(shared.now());
                let waited = shared.work.wait_timeout(pool, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// Reports the size of a model to the policy: the real one of the last load if the file is the same, else
/// an estimate. Reads the file without the lock.
fn find_size<'a>(
    shared: &'a PoolShared,
    pool: MutexGuard<'a, PoolState>,
    model: usize,
) -> MutexGuard<'a, PoolState> {
    let slot = &pool.slots[model];
    let (config, measured) = (slot.config.clone(), slot.measured);
    drop(pool);
    let config = config.ok_or_else(|| LoadError::Config("the model has no file".into()));
    let stamp = config.as_ref().ok().and_then(FileStamp::of);
    let bytes = match measured.filter(|(before, _)| Some(*before) == stamp) {
        Some((_, bytes)) => Ok(bytes),
        None => config.and_then(|config| estimate_host_bytes(&config)),
    };
    let mut pool = shared.lock();
    pool.slots[model].stamp = stamp;
    match bytes {
        Ok(bytes) => pool.policy.set_size(model, bytes),
        Err(error) => fail(shared, &mut pool, model, error),
    }
    pool
}

/// Stores the answers for their waiters; returns the wakers to wake without the lock.
fn store_answers(pool: &mut PoolState, actions: &[Action]) -> Vec<Waker> {
    let answers = actions.iter().filter_map(|action| match action {
        Action::Answer(id, answer) => Some((*id, *answer)),
        _ => None,
    });
    let mut store = |(id, answer): (WaiterId, WaitResult)| {
        let waiting = pool.waiting.get_mut(&id)?;
        waiting.answer = Some(answer);
        waiting.waker.take()
    };
    answers.filter_map(&mut store).collect()
}

fn act(shared: &Arc<PoolShared>, action: Action) {
    let (verb, model) = match action {
        Action::Load(model) => ("load", model),
        Action::Unload(model) => ("unload", model),
        Action::Answer(..) => return,
    };
    let thread_shared = shared.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("{verb} {}", shared.names[model]))
        .spawn(move || match action {
            Action::Load(_) => load(&thread_shared, model),
            _ => unload(&thread_shared, model),
        });
    if let Err(error) = spawned {
        if let Action::Unload(_) = action {
            // Unloading here only delays the manager.
            unload(shared, model);
            return;
        }
        let error = LoadError::Config(format!(
            "the thread that loads could not be started: {error}"
        ));
        fail(shared, &mut shared.lock(), model, error);
    }
}

fn load(shared: &PoolShared, model: usize) {
    let mut pool = shared.lock();
    let progress = Arc::new(LoadProgress::default());
    let slot = &mut pool.slots[model];
    slot.progress = progress.clone();
    let config = slot.config.clone();
    if pool.policy.is_closed() {
        progress.cancel();
    }
    drop(pool);
    let started = Instant::now();
    let crashed = || LoadError::Config("the loader panicked; see the log".into());
    let load = || match config {
        Some(config) => Engine::load_with_progress(config, &progress),
        None => Err(crashed()),
    };
    let loaded = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| Err(crashed()));
    let load_time = started.elapsed();
    let mut pool = shared.lock();
    match loaded {
        Ok(engine) => succeed(shared, &mut pool, model, engine, load_time),
        Err(error) => fail(shared, &mut pool, model, error),
    }
    shared.work.notify_one();
}

fn succeed(
    shared: &PoolShared,
    pool: &mut PoolState,
    model: usize,
    engine: Engine,
    load_time: Duration,
) {
    let bytes = engine.memory();
    let info = engine.info();
    tracing::info!(
        memory_mib = bytes >> 20,
        vocabulary = info.vocabulary,
        context = info.context,
        "loaded model {} in {:.1} s",
        shared.names[model],
        load_time.as_secs_f64()
    );
    let slot = &mut pool.slots[model];
    slot.progress = Arc::default();
    slot.engine = Some(engine);
    slot.error = None;
    slot.measured = slot.stamp.map(|stamp| (stamp, bytes));
    slot.totals.loads += 1;
    slot.totals.load_time += load_time;
    pool.policy.loaded(shared.now(), model, bytes, load_time);
}

fn fail(shared: &PoolShared, pool: &mut PoolState, model: usize, error: LoadError) {
    let name = &shared.names[model];
    // The callers get the error too, and decide how serious it is.
    tracing::info!(model = name, %error, "a model could not be loaded");
    let slot = &mut pool.slots[model];
    slot.progress = Arc::default();
    slot.error = Some(Arc::new(error));
    slot.totals.failures += 1;
    pool.policy.failed(shared.now(), model);
}

fn unload(shared: &PoolShared, model: usize) {
    let engine = shared.lock().slots[model].engine.clone();
    if let Some(engine) = &engine {
        // Cancels requests without readers, and waits for the current step.
        engine.shutdown();
    }
    let mut pool = shared.lock();
    let slot = &mut pool.slots[model];
    if let Some(engine) = slot.engine.take() {
        slot.totals.add(&engine.metrics());
    }
    slot.totals.unloads += 1;
    drop(pool);
    if let Some(engine) = engine {
        if engine.is_shared() {
            tracing::debug!(
                model = shared.names[model],
                "the unloaded model is still being inspected"
            );
        }
        // Freeing the weights can take a moment, so not under the lock.
        drop(engine);
    }
    tracing::info!(model = shared.names[model], "unloaded a model");
    shared.lock().policy.unloaded(model);
    shared.work.notify_one();
}
