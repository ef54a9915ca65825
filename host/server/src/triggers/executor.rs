//! Runs jobs: claims those that may run, calls the handlers of their deployments, and stores the outcomes.
//!
//! One task looks for work when something changed, when a job or a schedule is due, and at least every
//! [`MAX_POLL_INTERVAL`] while there is anything. Each attempt is a task of its own. At shutdown attempts get the time of running
//! requests; then they are stopped, and their jobs return to the queue without counting the attempt.

use super::attempt::Attempt;
use super::job::{JobClaim, JobState, millis};
use super::queue::{CronState, JobCounts, JobQueue};
use super::{TriggerSettings, Triggers, cron};
use crate::clock::now_ms;
use crate::deployments::{Deployments, ServingDeployment};
use crate::shutdown::{ListenerPhase, reached};
use crate::state::ServerState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Longest wait while jobs or schedules exist: the clock may be set, and deployments recover by themselves.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The same if there are none.
const IDLE_WAIT: Duration = Duration::from_secs(3600);
/// Pause between searches for expired jobs.
const EXPIRE_INTERVAL_MS: u64 = 10_000;

/// The task that runs jobs. Dropping it stops all.
pub(crate) struct Executor {
    phase: watch::Sender<ListenerPhase>,
    task: JoinHandle<bool>,
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Executor {
    /// Starts to run jobs, if the server has triggers.
    pub(crate) fn start(state: &Arc<ServerState>, deployments: &Deployments) -> Option<Self> {
        let worker = Worker {
            state: Arc::clone(state),
            deployments: deployments.clone(),
            triggers: Arc::clone(deployments.triggers()?),
            max_running: (deployments.max_calls() / 2).max(1),
            passes: 0,
            expired_ms: 0,
            checks: BTreeMap::new(),
        };
        let (phase, receiver) = watch::channel(ListenerPhase::Serving);
        let task = tokio::spawn(worker.run(receiver));
        Some(Executor { phase, task })
    }

    /// Begins no more attempts, lets running ones end until `deadline`, and returns the rest to the queue. Returns whether
    /// all ended.
    pub(crate) async fn drain(mut self, deadline: impl Future<Output = ()>) -> bool {
        self.phase.send_replace(ListenerPhase::Draining);
        tokio::select! {
            ended = &mut self.task => return ended.unwrap_or(false),
            () = deadline => {}
        }
        self.phase.send_replace(ListenerPhase::Ending);
        (&mut self.task).await.unwrap_or(false)
    }
}

struct Worker {
    state: Arc<ServerState>,
    deployments: Deployments,
    triggers: Arc<Triggers>,
    /// Attempts at once, of all deployments: requests get the other instances.
    max_running: usize,
    passes: usize,
    expired_ms: u64,
    /// The last one of each deployment.
    checks: BTreeMap<Arc<str>, ScheduleCheck>,
}

/// The last check of a deployment's schedules.
struct ScheduleCheck {
    settings: Arc<TriggerSettings>,
    checked_ms: u64,
    /// When the next one is due.
    next_ms: Option<u64>,
    /// Errors by schedule, each logged once.
    no_room: BTreeMap<String, String>,
    /// What is known of the schedules.
    states: BTreeMap<String, CronState>,
}

impl ScheduleCheck {
    /// Whether nothing changed since and no time has come. The clock may have been set back.
    fn holds(&self, settings: &Arc<TriggerSettings>, now: u64) -> bool {
        let is_early = now >= self.checked_ms && self.next_ms.is_none_or(|next| now < next);
        is_early && Arc::ptr_eq(&self.settings, settings)
    }
}

impl Worker {
    async fn run(mut self, mut phase: watch::Receiver<ListenerPhase>) -> bool {
        let mut attempts = JoinSet::new();
        loop {
            let wait = self.pass(&mut attempts).await;
            tokio::select! {
                () = reached(&mut phase, ListenerPhase::Draining) => break,
                () = self.triggers.changed.notified() => {}
                Some(_) = attempts.join_next() => {}
                () = tokio::time::sleep(wait) => {}
            }
            while attempts.try_join_next().is_some() {}
        }
        let all_ended = tokio::select! {
            () = async { while attempts.join_next().await.is_some() {} } => true,
            () = reached(&mut phase, ListenerPhase::Ending) => false,
        };
        attempts.shutdown().await;
        let left = Vec::from_iter(std::mem::take(&mut *self.triggers.running()).into_keys());
        let release = self
            .triggers
            .operate(move |queue| queue.release(&left, now_ms()));
        if let Err(error) = release.await {
            // They return to the queue at the next start.
            tracing::error!(%error, "running jobs could not be returned to the queue");
        }
        all_ended
    }

    /// Begins what may begin. Returns how long nothing else is due.
    async fn pass(&mut self, attempts: &mut JoinSet<()>) -> Duration {
        let ready = self.triggers.operate(|queue| queue.check_ready());
        if ready.await.is_err() {
            return MAX_POLL_INTERVAL;
        }
        let now = now_ms();
        if now.abs_diff(self.expired_ms) >= EXPIRE_INTERVAL_MS {
            self.expired_ms = now;
            self.expire(now).await;
        }
        self.recover(now).await;
        let mut all = self.deployments.all();
        // Also of those that are paused, or whose newest record is not applied, the states of the schedules are
        // remembered.
        let names = BTreeSet::from_iter(all.iter().map(|deployment| &*deployment.name));
        self.checks.retain(|name, _| names.contains(&**name));
        all.retain(|deployment| {
            deployment.stored && !deployment.paused && self.deployments.is_newest(&deployment.name)
        });
        // Another deployment comes first in each pass, so that none waits for the others.
        let first = self.passes.checked_rem(all.len()).unwrap_or(0);
        all.rotate_left(first);
        self.passes = self.passes.wrapping_add(1);
        let mut next_ms = None;
        for deployment in &all {
            let next = self.fire_schedules(deployment, now).await;
            next_ms = next_ms.into_iter().chain(next).min();
        }
        let mut counts = self.triggers.queue.counts();
        let mut has_claimed = false;
        for deployment in &all {
            if let Some(counts) = counts.get(&*deployment.name) {
                has_claimed |= self.claim(deployment, counts, attempts, now).await;
            }
        }
        if has_claimed {
            counts = self.triggers.queue.counts();
        }
        if counts.is_empty() && next_ms.is_none() {
            return IDLE_WAIT;
        }
        let ready = counts.values().filter_map(|counts| counts.next_ready_ms);
        // What may run already waits for a free place or for its deployment.
        let ready = ready.filter(|ready| *ready > now).min();
        let next_ms = next_ms.into_iter().chain(ready).min();
        let wait = next_ms.map(|next| Duration::from_millis(next.saturating_sub(now_ms())));
        wait.map_or(MAX_POLL_INTERVAL, |wait| wait.min(MAX_POLL_INTERVAL))
    }

    async fn expire(&self, now: u64) {
        loop {
            match self.triggers.operate(move |queue| queue.expire(now)).await {
                Ok((dead, is_done)) => {
                    for job in &dead {
                        self.triggers.counters.count(job, "dead");
                    }
                    if is_done {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "finished jobs could not be removed");
                    return;
                }
            }
        }
    }

    /// Returns running jobs to the queue that no attempt has: it panicked, the store reported a failed claim that it
    /// made, or the host of the attempt is lost. Stops attempts whose job another host has canceled, removed or taken over.
    async fn recover(&self, now: u64) {
        let running = self.triggers.queue.running_here_or_lost();
        let lost = {
            let mut attempts = self.triggers.running();
            attempts.retain(|claim, task| {
                let job = self.triggers.queue.job(&claim.key);
                let is_current = job.is_some_and(|job| {
                    job.claims == claim.number && job.state != JobState::Canceled
                });
                if !is_current {
                    task.abort();
                }
                is_current && !task.is_finished()
            });
            let is_lost = |claim: &JobClaim| !attempts.contains_key(claim);
            Vec::from_iter(running.into_iter().filter(is_lost))
        };
        if lost.is_empty() {
            return;
        }
        let operation = move |queue: &JobQueue| queue.interrupt(&lost, now);
        if let Err(error) = self.triggers.operate(operation).await {
            tracing::warn!(%error, "jobs without an attempt could not be returned to the queue");
        }
    }

    /// Makes jobs of schedules whose time has come. Returns when to check again.
    async fn fire_schedules(&mut self, deployment: &ServingDeployment, now: u64) -> Option<u64> {
        let settings = deployment.triggers()?;
        let name = Arc::clone(&deployment.name);
        let last = self.checks.get(&name);
        if let Some(last) = last.filter(|last| last.holds(&settings, now)) {
            return last.next_ms;
        }
        let again = now.saturating_add(millis(MAX_POLL_INTERVAL));
        let mut check = ScheduleCheck {
            settings: Arc::clone(&settings),
            checked_ms: now,
            next_ms: None,
            no_room: BTreeMap::new(),
            states: last.map(|last| last.states.clone()).unwrap_or_default(),
        };
        // Also without schedules: the deployment may have had some, which are forgotten.
        let remembered = check.states.clone();
        let operation =
            move |queue: &JobQueue| cron::pass(queue, &name, &settings, remembered, now);
        match self.triggers.operate(operation).await {
            Ok(pass) => {
                for (job, event) in &pass.runs {
                    self.triggers.counters.count(job, event);
                }
                for (schedule, error) in &pass.no_room {
                    let logged = last.and_then(|last| last.no_room.get(schedule));
                    if logged != Some(error) {
                        tracing::warn!(
                            error,
                            schedule,
                            deployment = &*deployment.name,
                            "a scheduled run could not be stored"
                        );
                    }
                }
                let retry = (!pass.no_room.is_empty()).then_some(again);
                check.next_ms = pass.next_ms.into_iter().chain(retry).min();
                (check.no_room, check.states) = (pass.no_room, pass.states);
            }
            Err(error) => {
                tracing::warn!(%error, deployment = &*deployment.name, "schedules could not be checked");
                check.next_ms = Some(again);
            }
        }
        let next_ms = check.next_ms;
        self.checks.insert(Arc::clone(&deployment.name), check);
        next_ms
    }

    /// Begins the attempts of a deployment's jobs that may run. Returns whether there were any.
    async fn claim(
        &self,
        deployment: &ServingDeployment,
        counts: &JobCounts,
        attempts: &mut JoinSet<()>,
        now: u64,
    ) -> bool {
        let Some(settings) = deployment.triggers().filter(|_| deployment.is_loaded()) else {
            return false;
        };
        let name = Arc::clone(&deployment.name);
        let concurrency = settings.job_settings().concurrency();
        // Of this host.
        let running = |claims: &BTreeMap<JobClaim, AbortHandle>| {
            let own = claims.keys().filter(|claim| *claim.key.deployment == *name);
            own.count()
        };
        let free = concurrency.saturating_sub(running(&self.triggers.running()));
        let most = free.min(self.max_running.saturating_sub(attempts.len()));
        if most == 0 || counts.next_ready_ms.is_none_or(|ready| ready > now) {
            return false;
        }
        let claimed = self
            .triggers
            .operate(move |queue| queue.claim(&name, most, now));
        let claimed = claimed.await.unwrap_or_else(|error| {
            tracing::warn!(%error, deployment = &*deployment.name, "jobs could not be claimed");
            Vec::new()
        });
        let has_claimed = !claimed.is_empty();
        for job in claimed {
            let claim = job.record.claim();
            let attempt = Attempt {
                claim: claim.clone(),
                state: Arc::clone(&self.state),
                deployments: self.deployments.clone(),
                triggers: Arc::clone(&self.triggers),
            };
            // The lock is held until the task is known: it removes itself at its end.
            let mut running = self.triggers.running();
            let task = attempts.spawn(attempt.run(job));
            let record = self.triggers.queue.job(&claim.key);
            if record.is_some_and(|record| record.runs_as(&claim)) {
                running.insert(claim, task);
            } else {
                // It was canceled before its task could be found.
                task.abort();
            }
        }
        has_claimed
    }
}
