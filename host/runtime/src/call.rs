//! One call of a plugin: a store, a fresh instance, and the bounds around both.
//!
//! A call to an HTTP handler runs in a task of its own, since the plugin may go on after its
//! response's headers, and must be stopped at its deadline even when nobody reads the body. The task
//! owns the store. Aborting the task drops the store, and with it every sequence of the plugin.

use crate::admission::Pass;
use crate::again::again;
use crate::bounds::{Over, within};
use crate::failure::Failure;
use crate::meter::Meter;
use crate::metrics::{Counters, Ending};
use crate::plugin::Plugin;
use crate::settings::Limits;
use crate::state::State;
use crate::store::store;
use crate::tally::Tally;
use crate::ticker::Ticking;
use futures_channel::oneshot;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wasmtime::{AsContextMut, Engine};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::handler::{Prepared, ProxyPre, Request, Response};

/// What became of a call. The task and the response share it, and when both are gone it is counted.
#[derive(Debug)]
pub(crate) struct Verdict {
    failure: OnceLock<Failure>,
    finished: AtomicBool,
    /// Told when the whole answer was read.
    answered: Notify,
    counters: Arc<Counters>,
    tally: Arc<Tally>,
}

impl Verdict {
    pub(crate) fn new(counters: Arc<Counters>, tally: Arc<Tally>) -> Self {
        Self {
            failure: OnceLock::new(),
            finished: AtomicBool::new(false),
            answered: Notify::new(),
            counters,
            tally,
        }
    }

    /// Notes why the call failed, and returns that; only the first reason is kept. If it is a bound,
    /// that is counted before anybody can see it.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        let first = || {
            if let Some(bound) = failure.bound() {
                self.tally.trip(bound);
            }
            failure
        };
        self.failure.get_or_init(first).clone()
    }

    /// Why the call failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.counters.ended(match self.failure.get() {
            Some(failure) => Ending::Failed(failure.index()),
            None if *self.finished.get_mut() => Ending::Done,
            None => Ending::Cancelled,
        });
    }
}

/// The caller's hold on a running call. Dropping it stops the call.
#[derive(Debug)]
pub(crate) struct Handle {
    task: AbortHandle,
    verdict: Arc<Verdict>,
    stop: bool,
}

impl Handle {
    pub(crate) fn new(task: AbortHandle, verdict: Arc<Verdict>) -> Self {
        Self {
            task,
            verdict,
            stop: true,
        }
    }

    /// Why the call failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.verdict.failure()
    }

    /// Stops the call for this reason, and returns it; the first reason counts.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        self.task.abort();
        self.verdict.fail(failure)
    }

    /// A frame of the answer, of so many bytes, is on its way.
    pub(crate) fn sent(&self, bytes: u64) {
        self.verdict.tally.sent(bytes);
    }

    /// Lets the call go on, for the rest of its time, when this is dropped.
    pub(crate) fn let_finish(&mut self) {
        self.stop = false;
        self.verdict.answered.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.stop {
            self.task.abort();
        }
    }
}

/// What a call holds as long as it lives; dropped after its store.
pub(crate) struct Live {
    pub(crate) limits: Arc<Limits>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) verdict: Arc<Verdict>,
    /// The time that the call has, and when that is over.
    pub(crate) time: (Duration, Instant),
    began: Instant,
    counters: Arc<Counters>,
    _ticking: Ticking,
    _pass: Pass,
    /// A plugin that was replaced is there until its last call has ended.
    _plugin: Plugin,
}

impl Live {
    pub(crate) fn new(
        limits: Arc<Limits>,
        verdict: Arc<Verdict>,
        time: (Duration, Instant),
        ticking: Ticking,
        pass: Pass,
        plugin: Plugin,
    ) -> Self {
        let counters = Arc::clone(&verdict.counters);
        counters.instance_began();
        Self {
            limits,
            meter: Arc::default(),
            verdict,
            time,
            began: Instant::now(),
            counters,
            _ticking: ticking,
            _pass: pass,
            _plugin: plugin,
        }
    }

    /// Runs `work` until it ends or a bound is reached. A failure is noted in the verdict while
    /// `work`, and so the store, are still there.
    pub(crate) async fn bounded<R>(
        &self,
        work: impl Future<Output = wasmtime::Result<R>>,
    ) -> Result<R, Failure> {
        let work = pin!(work);
        let mut work = pin!(again(work));
        let counted = pin!(poll_fn(|cx| {
            self.verdict.tally.polled();
            work.as_mut().poll(cx)
        }));
        let _panics = Panics(&self.verdict);
        let (time, deadline) = self.time;
        let cpu = self.limits.cpu;
        let mut found = pin!(self.meter.spent());
        // A sampling plugin may use it up while the handler sleeps.
        let spent =
            |cx: &mut Context<'_>| self.meter.used() > cpu || found.as_mut().poll(cx).is_ready();
        let result = match within(&self.meter, spent, deadline, counted).await {
            Ok(done) => {
                done.map_err(|error| Failure::from_wasmtime(&error, &self.meter, &self.limits))
            }
            Err(Over::Cpu) => Err(Failure::CpuTime { cpu }),
            Err(Over::Wall) => Err(Failure::Deadline { time }),
        };
        match result {
            Ok(value) => {
                self.verdict.finish();
                Ok(value)
            }
            Err(failure) => Err(self.verdict.fail(failure)),
        }
    }

    /// Notes how long an instance took to start.
    pub(crate) fn started(&self, began: Instant) {
        self.counters.instance_started(began.elapsed());
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.counters
            .instance_ended(self.began.elapsed(), self.meter.used());
    }
}

/// If the host panics, which is a mistake in the host, then the client still learns that its body is
/// not whole.
struct Panics<'a>(&'a Verdict);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Failure::Internal);
        }
    }
}

/// Lets a fresh instance of `pre` handle `request`, and go on until all that it started has ended.
/// The response goes to `reply` as soon as its headers are known.
pub(crate) async fn serve(
    live: Live,
    pre: Arc<ProxyPre<State>>,
    engine: Engine,
    state: State,
    request: Request,
    reply: oneshot::Sender<wasmtime::Result<Response>>,
) {
    let began = Instant::now();
    let mut store = store(&engine, state);
    let work = async {
        let proxy = pre.instantiate_async(&mut store).await?;
        live.started(began);
        store
            .run_concurrent(async |accessor| {
                let prepared = accessor.with(|mut access| {
                    Prepared::new(access.as_context_mut(), &proxy, request, State::http, reply)
                })?;
                prepared.run(accessor, pending()).await?;
                poll_fn(|cx| accessor.poll_no_interesting_tasks(cx)).await;
                let bodies =
                    accessor.with(|mut access| std::mem::take(&mut access.data_mut().bodies));
                // Whatever of them is left when the answer is whole is no part of it.
                tokio::select! {
                    () = bodies.ended() => {}
                    () = live.verdict.answered.notified() => {}
                }
                Ok(())
            })
            .await?
    };
    // Whoever waits for the response or its body finds the failure in the verdict.
    let _ = live.bounded(work).await;
}

/// An exit asked for by the guest is no failure of a command.
pub(crate) fn exit_code(error: wasmtime::Error) -> wasmtime::Result<i32> {
    match error.downcast_ref::<I32Exit>() {
        Some(exit) => Ok(exit.0),
        None => Err(error),
    }
}
