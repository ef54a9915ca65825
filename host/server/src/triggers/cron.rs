//! Schedules: turns the times of manifests into jobs.
//!
//! A time is handled in the change that adds its job, so a restart neither repeats nor loses a run. All hosts of a cluster
//! find the time due, and the first one adds the job. While a deployment is paused no run begins; once it resumes, what it
//! missed is caught up as after a restart (see [`schedule`]).
//!
//! Each host remembers the states of the schedules that it checks. If the store loses its data, or gets those of a backup, the
//! first host that checks a schedule again stores its state again, so that no time is missed or repeated.
//!
//! [`schedule`]: super::schedule

use super::job::{BodyDigest, JobKey, JobRecord, ScheduledRun, Trigger};
use super::queue::{CronState, DueRun, JobQueue, NewJob};
use super::queue_error::QueueError;
use super::schedule::{Due, Schedule};
use super::settings::{CronEntry, TriggerSettings};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Outcome of checking a deployment's schedules.
#[derive(Debug, Default)]
pub(super) struct CronPass {
    /// When the next time comes.
    pub(super) next_ms: Option<u64>,
    /// Runs that became jobs, and whether they did or were skipped.
    pub(super) runs: Vec<(JobRecord, &'static str)>,
    /// Schedules whose run found no room, with the error. They are due still.
    pub(super) no_room: BTreeMap<String, String>,
    /// The states of all schedules, to remember until the next check.
    pub(super) states: BTreeMap<String, CronState>,
}

/// Handles the times of a deployment's schedules that have come. `remembered` are the states of the last check. Blocks on the
/// queue.
pub(super) fn pass(
    queue: &JobQueue,
    deployment: &str,
    settings: &TriggerSettings,
    mut remembered: BTreeMap<String, CronState>,
    now_ms: u64,
) -> Result<CronPass, QueueError> {
    let mut pass = CronPass::default();
    let mut states = queue.cron_states(deployment);
    let entries = Vec::from_iter(settings.cron.iter().map(|(entry, _)| entry.identity()));
    if states.keys().any(|known| !entries.contains(known)) {
        queue.keep_schedules(deployment, &entries)?;
    }
    remembered.retain(|entry, _| entries.contains(entry));
    for (entry, state) in &remembered {
        let stored = states.get(entry).cloned();
        // A remembered time that has not come is of a clock that was wrong.
        let is_older =
            |stored: &CronState| stored.handled_ms < state.handled_ms && state.handled_ms <= now_ms;
        if stored.as_ref().is_none_or(is_older) {
            restore(queue, deployment, entry, stored, state)?;
            states = queue.cron_states(deployment);
        }
    }
    for ((entry, schedule), identity) in settings.cron.iter().zip(entries) {
        let state = states.get(&identity);
        let handled = handle(
            queue,
            deployment,
            (entry, schedule),
            identity.clone(),
            state,
            settings,
            now_ms,
        );
        match handled {
            Ok(handled) => pass.runs.extend(handled),
            Err(error @ QueueError::NoRoom { .. }) => {
                pass.no_room.insert(identity, error.to_string());
            }
            Err(error) => return Err(error),
        }
        if let Some(next) = schedule.next_after(now_ms) {
            pass.next_ms = Some(pass.next_ms.map_or(next, |first| first.min(next)));
        }
    }
    pass.states = remembered;
    pass.states.extend(queue.cron_states(deployment));
    Ok(pass)
}

/// Stores the state of a schedule of which the store has none or an older one, unless another host was faster.
fn restore(
    queue: &JobQueue,
    deployment: &str,
    entry: &str,
    stored: Option<CronState>,
    state: &CronState,
) -> Result<(), QueueError> {
    let lost = DueRun {
        deployment: deployment.to_owned(),
        entry: entry.to_owned(),
        before: stored,
        state: state.clone(),
        job: None,
    };
    queue.record_due_run(&lost).map(drop)
}

fn handle(
    queue: &JobQueue,
    deployment: &str,
    (entry, schedule): (&CronEntry, &Schedule),
    identity: String,
    state: Option<&CronState>,
    settings: &TriggerSettings,
    now_ms: u64,
) -> Result<Option<(JobRecord, &'static str)>, QueueError> {
    let due = match state {
        Some(state) => schedule.due(state.handled_ms, now_ms),
        // A new schedule has missed nothing.
        None => Due::Reset,
    };
    let before = state.cloned();
    let mut state = before.clone().unwrap_or_default();
    let due_run = |state, job| DueRun {
        deployment: deployment.to_owned(),
        entry: identity.clone(),
        before: before.clone(),
        state,
        job,
    };
    match due {
        Due::At(_) => Ok(None),
        Due::Reset => {
            state.handled_ms = now_ms;
            queue.record_due_run(&due_run(state, None))?;
            Ok(None)
        }
        Due::Now {
            scheduled_ms,
            missed,
        } => {
            state.handled_ms = scheduled_ms;
            state.missed = state.missed.saturating_add(missed);
            let job = new_run(
                deployment,
                entry,
                identity.clone(),
                settings,
                scheduled_ms,
                now_ms,
            );
            let record = job.record.clone();
            let is_unfinished = |job: &JobRecord| {
                let run = job.scheduled.as_ref();
                !job.state.is_finished() && run.is_some_and(|run| run.entry == identity)
            };
            if !entry.overlap && !queue.list(deployment, 1, &is_unfinished).is_empty() {
                state.overlaps = state.overlaps.saturating_add(1);
                let is_new = queue.record_due_run(&due_run(state, None))?;
                return Ok(is_new.then_some((record, "skipped")));
            }
            let is_new = queue.record_due_run(&due_run(state, Some(job)))?;
            Ok(is_new.then_some((record, "submitted")))
        }
    }
}

/// The job of a run.
fn new_run(
    deployment: &str,
    entry: &CronEntry,
    identity: String,
    settings: &TriggerSettings,
    scheduled_ms: u64,
    now_ms: u64,
) -> NewJob {
    let key = JobKey {
        deployment: deployment.to_owned(),
        id: super::new_id(now_ms),
    };
    let content_type = entry.content_type.as_deref().unwrap_or("application/json");
    let body = Bytes::from(entry.body.clone());
    let settings = settings.job_settings();
    let mut record = JobRecord::new(
        key,
        entry.path.clone(),
        Some(content_type.to_owned()),
        BodyDigest::of(&body),
        &settings,
        now_ms,
    );
    let attempts = entry.attempts.map_or(1, |attempts| attempts.get());
    record.max_attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    record.scheduled = Some(ScheduledRun {
        entry: identity,
        scheduled_ms,
    });
    debug_assert_eq!(record.trigger(), Trigger::Cron);
    NewJob {
        record,
        body,
        queued: usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::triggers::job::JobState;
    use crate::triggers::queue::QueueLimits;
    use crate::triggers::redb_store;
    use std::path::Path;

    const MINUTE: u64 = 60_000;
    const START: u64 = 1_772_323_200_000; // 2026-03-01T00:00:00Z

    fn settings(text: &str) -> TriggerSettings {
        let entry: CronEntry = toml::from_str(text).expect("an entry");
        TriggerSettings::of(None, &[entry], None)
    }

    fn open(directory: &Path) -> JobQueue {
        redb_store::open(directory, QueueLimits::default(), START).expect("opens")
    }

    fn look(queue: &JobQueue, settings: &TriggerSettings, now_ms: u64) -> Vec<&'static str> {
        look_with(queue, settings, &BTreeMap::new(), now_ms)
    }

    /// The same on a host that remembers these states.
    fn look_with(
        queue: &JobQueue,
        settings: &TriggerSettings,
        remembered: &BTreeMap<String, CronState>,
        now_ms: u64,
    ) -> Vec<&'static str> {
        let pass = pass(queue, "a", settings, remembered.clone(), now_ms);
        let runs = pass.expect("no failure").runs;
        runs.into_iter().map(|(_, event)| event).collect()
    }

    fn finish_all(queue: &JobQueue, now_ms: u64) {
        for job in queue.claim("a", 99, now_ms).expect("no failure") {
            queue.cancel(&job.record.key(), now_ms).expect("it runs");
        }
    }

    #[test]
    fn restart_neither_repeats_nor_loses_a_run() {
        let dir = tempfile::tempdir().expect("there is room");
        let hourly = settings("schedule = '0 * * * *'\npath = '/a'");
        let queue = open(dir.path());
        assert!(
            look(&queue, &hourly, START + MINUTE).is_empty(),
            "it is new"
        );
        assert!(look(&queue, &hourly, START + 59 * MINUTE).is_empty());
        assert_eq!(look(&queue, &hourly, START + 60 * MINUTE), ["submitted"]);
        drop(queue);
        let queue = open(dir.path());
        assert!(
            look(&queue, &hourly, START + 61 * MINUTE).is_empty(),
            "not twice"
        );
        finish_all(&queue, START + 61 * MINUTE);
        drop(queue);
        // Down from 01:01 to 05:30: one run, for 05:00.
        let queue = open(dir.path());
        assert_eq!(look(&queue, &hourly, START + 330 * MINUTE), ["submitted"]);
        assert!(look(&queue, &hourly, START + 331 * MINUTE).is_empty());
        let all = queue.list("a", 99, &|_| true);
        let times = Vec::from_iter(all.iter().map(|job| {
            let run = job.scheduled.as_ref().expect("a run");
            (run.scheduled_ms - START) / MINUTE
        }));
        assert_eq!(times, [300, 60]);
        let states = queue.cron_states("a");
        assert_eq!(states.values().next().expect("one").missed, 3);
        // The clock is set back by two hours, and reaches 05:00 again.
        finish_all(&queue, START + 331 * MINUTE);
        for minute in [200, 240, 300, 330] {
            assert!(
                look(&queue, &hourly, START + minute * MINUTE).is_empty(),
                "{minute}"
            );
        }
        assert_eq!(look(&queue, &hourly, START + 360 * MINUTE), ["submitted"]);
    }

    #[test]
    fn lost_store_misses_no_time() {
        let dir = tempfile::tempdir().expect("there is room");
        let hourly = settings("schedule = '0 * * * *'\npath = '/a'");
        let queue = open(dir.path());
        let checked = pass(&queue, "a", &hourly, BTreeMap::new(), START + MINUTE);
        let remembered = checked.expect("no failure").states;
        assert_eq!(remembered.len(), 1);
        // The store loses its data at 00:30, and is there again at 01:10.
        let lost_dir = tempfile::tempdir().expect("there is room");
        let lost = open(lost_dir.path());
        let now = START + 70 * MINUTE;
        assert_eq!(look_with(&lost, &hourly, &remembered, now), ["submitted"]);
        let other = look_with(&lost, &hourly, &remembered, now);
        assert!(other.is_empty(), "another host was faster");
        let last = lost.list("a", 1, &|_| true);
        let run = last[0].scheduled.as_ref().expect("a run");
        assert_eq!(run.scheduled_ms, START + 60 * MINUTE);
        // Without a time meanwhile, only the state is stored.
        let early_dir = tempfile::tempdir().expect("there is room");
        let early = open(early_dir.path());
        let now = START + 40 * MINUTE;
        assert!(look_with(&early, &hourly, &remembered, now).is_empty());
        assert_eq!(early.cron_states("a"), remembered);
        // A revision without schedules forgets them, also if another host was faster.
        let without = TriggerSettings::of(None, &[], None);
        early.keep_schedules("a", &[]).expect("no failure");
        let forgotten = pass(&early, "a", &without, remembered, now);
        assert!(forgotten.expect("no failure").states.is_empty());
        assert!(early.cron_states("a").is_empty());
    }

    #[test]
    fn store_from_backup_repeats_no_time() {
        let hourly = settings("schedule = '0 * * * *'\npath = '/a'");
        // The backup is of 00:01; the hosts have handled 01:00, and look again at 01:10.
        let state = |minute| CronState {
            handled_ms: START + minute * MINUTE,
            ..CronState::default()
        };
        let look_at_backup = |remembered: Option<CronState>| {
            let dir = tempfile::tempdir().expect("there is room");
            let backup = open(dir.path());
            look(&backup, &hourly, START + MINUTE);
            let entry = backup.cron_states("a").into_keys().next().expect("one");
            let remembered = remembered.map(|state| (entry, state));
            let remembered = BTreeMap::from_iter(remembered);
            let runs = look_with(&backup, &hourly, &remembered, START + 70 * MINUTE);
            (runs, backup.cron_states("a").into_values().next())
        };
        let (runs, stored) = look_at_backup(Some(state(60)));
        assert!(runs.is_empty(), "{runs:?}");
        assert_eq!(stored, Some(state(60)));
        let (runs, _) = look_at_backup(None);
        assert_eq!(runs, ["submitted"], "a new host knows the backup only");
        let (_, stored) = look_at_backup(Some(state(180)));
        assert_eq!(stored, Some(state(60)), "the clock was wrong");
    }

    #[test]
    fn run_waits_unless_overlap_is_allowed() {
        let dir = tempfile::tempdir().expect("there is room");
        let queue = open(dir.path());
        let apart = settings("schedule = '* * * * *'\npath = '/a'");
        look(&queue, &apart, START);
        assert_eq!(look(&queue, &apart, START + MINUTE), ["submitted"]);
        assert_eq!(look(&queue, &apart, START + 2 * MINUTE), ["skipped"]);
        queue.claim("a", 1, START + 2 * MINUTE).expect("no failure");
        assert_eq!(
            look(&queue, &apart, START + 3 * MINUTE),
            ["skipped"],
            "it runs"
        );
        let running = queue.list("a", 1, &|job| job.state == JobState::Running);
        queue.cancel(&running[0].key(), START).expect("it runs");
        assert_eq!(look(&queue, &apart, START + 4 * MINUTE), ["submitted"]);
        assert_eq!(
            queue
                .cron_states("a")
                .values()
                .next()
                .expect("one")
                .overlaps,
            2
        );
        // One without room does not stop the others.
        let limits = QueueLimits {
            bytes_per_deployment: 3,
            ..QueueLimits::default()
        };
        let small_dir = tempfile::tempdir().expect("there is room");
        let small = redb_store::open(small_dir.path(), limits, START).expect("opens");
        let entries = ["path = '/a'\nbody = 'large'", "path = '/b'"];
        let entries = entries.map(|entry| format!("schedule = '* * * * *'\n{entry}"));
        let entries = entries.map(|entry| toml::from_str(&entry).expect("an entry"));
        let both = TriggerSettings::of(None, &entries, None);
        look(&small, &both, START);
        let looked = pass(&small, "a", &both, BTreeMap::new(), START + MINUTE);
        let looked = looked.expect("no failure");
        assert_eq!((looked.runs.len(), looked.no_room.len()), (1, 1));
        // Another schedule takes its place; the old one is forgotten.
        let together = settings("schedule = '*/1 * * * *'\npath = '/a'\noverlap = true");
        look(&queue, &together, START + 4 * MINUTE);
        assert_eq!(queue.cron_states("a").len(), 1);
        for minute in 5..8 {
            assert_eq!(
                look(&queue, &together, START + minute * MINUTE),
                ["submitted"]
            );
        }
        assert_eq!(queue.counts()["a"].waiting, 4);
    }
}
