//! One call of a plugin: a store, an instance, fresh unless an earlier call left it, and their limits.
//!
//! A call of an HTTP handler runs in a task of its own. The plugin may continue after its response's
//! headers, and must stop at its end even if nobody reads the body. The task owns the store: aborting
//! the task drops the store and all sequences of this call.
//!
//! The time limit has two stages. At the deadline, the engine ends the call's generations with an error, which the
//! plugin reports in its own format. At the end, a while later, the host stops a plugin that still runs.

use crate::admission::CallPermit;
use crate::call_context::CallContext;
use crate::call_error::CallError;
use crate::call_outcome::CallOutcome;
use crate::call_trace::CallTrace;
use crate::compute_turns::TurnQueue;
use crate::counters::CallLimit;
use crate::cpu_meter::Meter;
use crate::epoch_ticker::TickGuard;
use crate::idle_instances::{IdleInstances, InstanceOwner, ReusedInstance};
use crate::poll_again::poll_again;
use crate::runtime_config::Limits;
use crate::state::State;
use crate::time_limits::{TimeExceeded, run_within};
use futures_channel::oneshot;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::Duration;
use tokio::time::Instant;
use wasmtime::{AsContextMut, Store};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::handler::{Prepared, ProxyPre, Request, Response};

/// A running call. It outlives its store.
pub(crate) struct Call {
    pub(crate) limits: Arc<Limits>,
    pub(crate) meter: Arc<Meter>,
    /// Where its guest waits for turns to compute.
    pub(crate) turns: TurnQueue,
    pub(crate) outcome: Arc<CallOutcome>,
    pub(crate) time: CallTime,
    began: Instant,
    _tick: TickGuard,
    _permit: CallPermit,
    /// Keeps a replaced plugin loaded until its last call ends.
    _plugin: Arc<dyn Send + Sync>,
    /// The sampled trace of the call.
    trace: Option<Arc<dyn CallTrace>>,
}

/// Most time between a call's deadline and its end: a plugin needs far less, but an engine's step may have to end first.
const MAX_GRACE: Duration = Duration::from_secs(10);

/// Wall time of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    pub(crate) limit: Duration,
    /// When its generations end.
    pub(crate) deadline: Instant,
    /// When the call itself ends.
    pub(crate) end: Instant,
}

impl CallTime {
    /// The time of a call that begins now. After its deadline it has half its limit again, at most [`MAX_GRACE`].
    pub(crate) fn start(limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self {
            limit,
            deadline,
            end: deadline + (limit / 2).min(MAX_GRACE),
        }
    }
}

impl Call {
    pub(crate) fn new(
        limits: Arc<Limits>,
        outcome: Arc<CallOutcome>,
        time: CallTime,
        tick: TickGuard,
        turns: TurnQueue,
        permit: CallPermit,
        plugin: Arc<dyn Send + Sync>,
    ) -> Self {
        outcome.process.instance_began();
        Self {
            limits,
            meter: Arc::default(),
            turns,
            outcome,
            time,
            began: Instant::now(),
            _tick: tick,
            _permit: permit,
            _plugin: plugin,
            trace: None,
        }
    }

    /// The call with its sampled trace.
    pub(crate) fn with_trace(mut self, trace: Option<Arc<dyn CallTrace>>) -> Self {
        self.trace = trace;
        self
    }

    /// Runs `work` until it ends or exceeds a limit. Records an error while `work`, and so the store, still
    /// exists.
    pub(crate) async fn run<R>(
        &self,
        work: impl Future<Output = wasmtime::Result<R>>,
    ) -> Result<R, CallError> {
        let work = pin!(work);
        let mut work = pin!(poll_again(work));
        let counted = pin!(poll_fn(|cx| {
            self.outcome.deployment.guest_polls.increment();
            work.as_mut().poll(cx)
        }));
        let _panic_guard = PanicGuard(&self.outcome);
        let cpu = self.limits.cpu;
        let mut exhausted = pin!(self.meter.exhausted());
        // A sampling plugin may use up the CPU time while the handler sleeps.
        let is_exhausted = |cx: &mut Context<'_>| {
            self.meter.used() > cpu || exhausted.as_mut().poll(cx).is_ready()
        };
        let result = match run_within(
            &self.meter,
            Some(&self.turns),
            is_exhausted,
            self.time.end,
            counted,
        )
        .await
        {
            Ok(done) => done
                .map_err(|error| CallError::from_wasmtime(&error, &self.meter, self.limits.memory)),
            Err(TimeExceeded::Cpu) => Err(CallError::CpuTime { cpu }),
            Err(TimeExceeded::Wall) => Err(CallError::Deadline {
                time: self.time.limit,
            }),
        };
        match result {
            Ok(value) => {
                // The plugin reported the end of its time itself.
                if Instant::now() >= self.time.deadline {
                    self.outcome.deployment.limit_hit(CallLimit::Time);
                }
                self.outcome.completed.store(true, Ordering::Relaxed);
                Ok(value)
            }
            Err(error) => Err(self.outcome.fail(error)),
        }
    }

    /// Whether it has time and CPU time left.
    fn is_within_limits(&self) -> bool {
        Instant::now() < self.time.deadline && self.meter.used() <= self.limits.cpu
    }

    /// Counts the start of the instance, which began at `began`.
    pub(crate) fn instance_started(&self, began: Instant) {
        self.outcome.process.instance_started(began.elapsed());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.outcome
            .process
            .instance_ended(self.began.elapsed(), self.meter.used());
        if let Some(trace) = &self.trace {
            trace.call_ended(self.outcome.error().as_ref());
        }
    }
}

/// Records an error if the host panics, so that the client sees that its response is incomplete.
struct PanicGuard<'a>(&'a CallOutcome);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(CallError::Internal);
        }
    }
}

/// The instance of a call.
pub(crate) enum CallInstance {
    /// It is yet to be created, in this store.
    Fresh(Arc<ProxyPre<State>>, Store<State>),
    /// An earlier call has used it.
    Reused(Box<ReusedInstance>),
}

/// Lets an instance handle `request`, and runs it until all its tasks have ended. Sends the response to `reply` as soon as
/// its headers are known. Afterwards the instance waits in `idle` for another call of its owner, if it can.
pub(crate) async fn serve(
    call: Call,
    instance: CallInstance,
    context: CallContext,
    idle: Option<(Arc<IdleInstances>, InstanceOwner)>,
    request: Request,
    reply: oneshot::Sender<wasmtime::Result<Response>>,
) {
    let began = Instant::now();
    let (mut store, source, calls, started) = match instance {
        CallInstance::Fresh(pre, store) => (store, Err(pre), 0, began),
        CallInstance::Reused(used) => (used.store, Ok(used.proxy), used.calls, used.started),
    };
    store.data_mut().begin_call(context);
    let work = async {
        let proxy = match source {
            Ok(proxy) => proxy,
            Err(pre) => {
                let proxy = pre.instantiate_async(&mut store).await?;
                call.instance_started(began);
                proxy
            }
        };
        store
            .run_concurrent(async |accessor| {
                let prepared = accessor.with(|mut access| {
                    Prepared::new(access.as_context_mut(), &proxy, request, State::http, reply)
                })?;
                prepared.run(accessor, pending()).await?;
                poll_fn(|cx| accessor.poll_no_interesting_tasks(cx)).await;
                let bodies =
                    accessor.with(|mut access| std::mem::take(&mut access.data_mut().bodies));
                // A framed body that is still open after the whole response was read is not part of it.
                tokio::select! {
                    () = bodies.ended() => {}
                    () = call.outcome.response_read.notified() => {}
                }
                Ok(())
            })
            .await
            .flatten()?;
        Ok(proxy)
    };
    // The outcome holds the error for the response and its body.
    let Ok(proxy) = call.run(work).await else {
        return;
    };
    if let Some((idle, owner)) = idle
        && call.is_within_limits()
        && store.data_mut().end_call()
    {
        drop(call);
        let calls = calls + 1;
        idle.put(
            owner,
            ReusedInstance {
                store,
                proxy,
                started,
                calls,
            },
        );
    }
}

/// Converts a guest's exit into its code: for a command, an exit is no error.
pub(crate) fn exit_code(error: wasmtime::Error) -> wasmtime::Result<i32> {
    match error.downcast_ref::<I32Exit>() {
        Some(exit) => Ok(exit.0),
        None => Err(error),
    }
}
