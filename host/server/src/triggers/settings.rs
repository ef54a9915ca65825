//! The triggers of a manifest: which deployments take jobs and messages, and their schedules.

use super::job::MAX_BACKOFF;
use super::schedule::Schedule;
use crate::deployments::{BoundedInteger, BoundedSeconds, ManifestError};
use crate::routes::{Route, is_below};
use corral_runtime::{Subject, SubjectPattern};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most schedules of a deployment.
const MAX_SCHEDULES: usize = 32;
/// Longest body of a schedule, in bytes.
const MAX_CRON_BODY: usize = 64 << 10;
/// Most subscriptions of a deployment, and most subjects of its grant.
const MAX_SUBJECTS: usize = 32;
/// Longest path of a job, in bytes.
const MAX_PATH: usize = 1024;

/// How a deployment takes jobs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct JobSettings {
    /// Path of the request that a job becomes, at or below a route of the deployment. If omitted, its first route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Jobs of the deployment that run at once, those of schedules included. If omitted, 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<BoundedInteger<1, 64>>,
    /// Attempts until a job becomes a dead letter. If omitted, 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<BoundedInteger<1, 100>>,
    /// Wait before the second attempt, at most 3600; it doubles for each further one, up to an hour. If omitted, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_seconds: Option<BoundedSeconds>,
    /// How long a finished job stays, with its result. If omitted, a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<BoundedSeconds>,
    /// Jobs that wait or run; further ones are refused. If omitted, 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<BoundedInteger<1, 10_000>>,
    /// Largest body of a job, in KiB. If omitted, 1024. At most the limit 'request-kib'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_kib: Option<BoundedInteger<1, 8192>>,
    /// Largest result of a job, in KiB. If omitted, 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_kib: Option<BoundedInteger<1, 8192>>,
}

/// A request that the host sends on a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CronEntry {
    /// When: minute, hour, day of the month, month and day of the week, such as '0 3 * * *'.
    pub schedule: String,
    /// Time zone of the schedule, by its name in the IANA database, such as 'Europe/Berlin'. If omitted, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Path of the request, at or below a route of the deployment.
    pub path: String,
    /// Body of the request. If omitted, empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Content type of the body. If omitted, 'application/json'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Whether a run may begin while the last one of this schedule waits or runs. If not, it is skipped.
    #[serde(default)]
    pub overlap: bool,
    /// Attempts of a run. If omitted, 1: it is not repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<BoundedInteger<1, 100>>,
}

/// The messages that a deployment gets. Each becomes a job, with the settings of 'jobs' or their defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MessageSettings {
    /// Subjects of the messages, such as 'orders.new', 'orders.*' or 'audit.>': '*' stands for one token, and '>' at the end
    /// for one or more.
    #[cfg_attr(test, schemars(with = "Vec<String>", length(min = 1, max = 32)))]
    pub subscriptions: Vec<SubjectPattern>,
    /// Path of the request that a message becomes if the plugin does not export 'wasmcloud:messaging/handler', at or below a
    /// route of the deployment. If omitted, its first route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Attempts until a message becomes a dead letter. If omitted, those of 'jobs'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<BoundedInteger<1, 100>>,
}

/// The triggers of a revision, ready for use.
#[derive(Clone, Debug, Default)]
pub(crate) struct TriggerSettings {
    /// How it takes jobs, if it does.
    pub(crate) jobs: Option<JobSettings>,
    pub(crate) cron: Vec<(CronEntry, Schedule)>,
    /// The messages that it gets, if any.
    pub(crate) messages: Option<MessageSettings>,
}

impl TriggerSettings {
    /// Those of a manifest. A schedule that a newer database of time zones no longer knows is left out.
    pub(crate) fn of(
        jobs: Option<&JobSettings>,
        cron: &[CronEntry],
        messages: Option<&MessageSettings>,
    ) -> Self {
        let parsed = cron.iter().filter_map(|entry| match Schedule::of(entry) {
            Ok(schedule) => Some((entry.clone(), schedule)),
            Err(error) => {
                tracing::error!(%error, "a schedule cannot run; deploy it again");
                None
            }
        });
        TriggerSettings {
            jobs: jobs.cloned(),
            cron: parsed.collect(),
            messages: messages.cloned(),
        }
    }

    /// How it gets messages with this subject, if it subscribes to it.
    pub(crate) fn subscription(&self, subject: &Subject) -> Option<&MessageSettings> {
        let mut messages = self.messages.iter();
        messages.find(|messages| {
            messages
                .subscriptions
                .iter()
                .any(|one| one.matches(subject))
        })
    }

    /// How jobs run, those of schedules and messages included.
    pub(crate) fn job_settings(&self) -> JobSettings {
        self.jobs.clone().unwrap_or_default()
    }
}

impl JobSettings {
    /// Jobs that run at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency.map_or(4, |number| number.times(1))
    }

    /// Attempts of a job.
    pub(crate) fn attempts(&self) -> u32 {
        // The range fits.
        let attempts = self.attempts.map_or(5, BoundedInteger::get);
        u32::try_from(attempts).unwrap_or(u32::MAX)
    }

    /// The first wait.
    pub(crate) fn backoff(&self) -> Duration {
        let wait = self.backoff_seconds.map(BoundedSeconds::duration);
        wait.unwrap_or(Duration::from_secs(1))
    }

    /// How long finished jobs stay.
    pub(crate) fn ttl(&self) -> Duration {
        let ttl = self.ttl_seconds.map(BoundedSeconds::duration);
        ttl.unwrap_or(Duration::from_secs(24 * 3600))
    }

    /// Unfinished jobs.
    pub(crate) fn queued(&self) -> usize {
        self.queued.map_or(1000, |number| number.times(1))
    }

    /// Bytes of a body.
    pub(crate) fn max_body_bytes(&self) -> u64 {
        self.body_kib.map_or(1024, BoundedInteger::get) << 10
    }

    /// Bytes of a result.
    pub(crate) fn max_result_bytes(&self) -> u64 {
        self.result_kib.map_or(1024, BoundedInteger::get) << 10
    }
}

impl MessageSettings {
    /// Checks the settings of a manifest with these routes.
    pub(crate) fn check(&self, routes: &[Route]) -> Result<(), ManifestError> {
        if self.subscriptions.is_empty() {
            let problem = "is empty; name a subject, such as \"orders.*\"";
            return Err(ManifestError::field("messages.subscriptions", problem));
        }
        check_subjects("messages.subscriptions", &self.subscriptions)?;
        match &self.path {
            Some(path) => check_path(routes, path)
                .map_err(|error| ManifestError::field("messages.path", error)),
            None => Ok(()),
        }
    }

    /// Attempts of a message.
    pub(crate) fn attempts(&self) -> Option<u32> {
        // The range fits.
        let attempts = self.attempts.map(BoundedInteger::get);
        attempts.map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX))
    }
}

impl CronEntry {
    /// Its identity, which stays if its body changes.
    pub(crate) fn identity(&self) -> String {
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        format!("{} {zone} {}", self.schedule, self.path)
    }
}

/// Checks the triggers of a manifest with these routes.
pub(crate) fn check(
    routes: &[Route],
    jobs: Option<&JobSettings>,
    cron: &[CronEntry],
) -> Result<(), ManifestError> {
    for (reserved, what) in [("/jobs", "jobs"), ("/messages", "messages")] {
        let is_reserved = |route: &&Route| is_below(route.as_str(), reserved);
        if let Some(route) = routes.iter().find(is_reserved) {
            let problem = format!("names '{route}', which is reserved for {what}; choose another");
            return Err(ManifestError::field("routes", problem));
        }
    }
    if jobs.is_some_and(|jobs| jobs.backoff() > MAX_BACKOFF) {
        let problem = format!("is too long; give at most {}", MAX_BACKOFF.as_secs());
        return Err(ManifestError::field("jobs.backoff-seconds", problem));
    }
    if let Some(path) = jobs.and_then(|jobs| jobs.path.as_deref()) {
        check_path(routes, path).map_err(|error| ManifestError::field("jobs.path", error))?;
    }
    ManifestError::check_count("cron", cron.len(), MAX_SCHEDULES)?;
    let mut seen = BTreeSet::new();
    for (number, entry) in cron.iter().enumerate() {
        let refuse = |field: &str, problem: String| {
            Err(ManifestError::field(
                format!("cron.{number}.{field}"),
                problem,
            ))
        };
        if let Err(error) = Schedule::of(entry) {
            return refuse("schedule", error);
        }
        if let Err(error) = check_path(routes, &entry.path) {
            return refuse("path", error);
        }
        if entry.body.len() > MAX_CRON_BODY {
            return refuse("body", format!("is longer than {MAX_CRON_BODY} bytes"));
        }
        let content_type = entry.content_type.as_deref().unwrap_or("application/json");
        if http::HeaderValue::from_str(content_type).is_err() {
            return refuse("content-type", "is not the value of a header".to_owned());
        }
        if !seen.insert(entry.identity()) {
            let problem = "is there twice with the same path and time zone; remove one".to_owned();
            return refuse("schedule", problem);
        }
    }
    Ok(())
}

/// Checks the subjects that a field of a manifest lists.
pub(crate) fn check_subjects(
    field: &str,
    subjects: &[SubjectPattern],
) -> Result<(), ManifestError> {
    ManifestError::check_count(field, subjects.len(), MAX_SUBJECTS)?;
    let mut seen = BTreeSet::new();
    match subjects.iter().find(|one| !seen.insert(*one)) {
        Some(twice) => {
            let problem = format!("names '{}' twice; remove one", twice.as_str());
            Err(ManifestError::field(field, problem))
        }
        None => Ok(()),
    }
}

fn check_path(routes: &[Route], path: &str) -> Result<(), String> {
    let is_valid = path.starts_with('/')
        && path.len() <= MAX_PATH
        && path.parse::<http::uri::PathAndQuery>().is_ok();
    if !is_valid {
        return Err(format!(
            "is not a path; give one of at most {MAX_PATH} bytes that begins with '/'"
        ));
    }
    let bare = path.split('?').next().unwrap_or(path);
    match routes.iter().any(|route| route.matches(bare)) {
        true => Ok(()),
        false => Err("is not at or below a route of the deployment".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use crate::deployments::Manifest;

    #[test]
    fn mistakes_in_triggers_are_named() {
        let head = "name = 'a'\ncomponent = 'a.wasm'\n";
        let good = format!(
            "{head}routes = ['/a']\njobs = {{ path = '/a/b?c=1' }}\n\
             cron = [{{ schedule = '0 3 * * *', time-zone = 'Europe/Berlin', path = '/a' }}]\n\
             messages = {{ subscriptions = ['a.*', '>'], path = '/a', attempts = 2 }}\n\
             grants = {{ messages = ['a.>'] }}"
        );
        Manifest::from_toml(&good).expect("good");
        let messages = |table: &str| format!("{head}routes = ['/a']\nmessages = {{ {table} }}");
        let cron = |entry: &str| format!("{head}routes = ['/a']\ncron = [{{ {entry} }}]");
        for (text, expected) in [
            (format!("{head}routes = ['/jobs/a']"), "reserved for jobs"),
            (format!("{head}routes = ['/jobs']"), "reserved for jobs"),
            (
                format!("{head}routes = ['/messages/a']"),
                "reserved for messages",
            ),
            (
                messages("subscriptions = []"),
                "'messages.subscriptions' is empty",
            ),
            (
                messages("subscriptions = ['a..b']"),
                "'a..b' does not select subjects",
            ),
            (messages("subscriptions = ['a', 'a']"), "names 'a' twice"),
            (messages("path = '/a'"), "missing field `subscriptions`"),
            (
                messages("subscriptions = ['a'], path = '/b'"),
                "not at or below a route",
            ),
            (
                format!("{head}routes = ['/a']\n[grants]\nmessages = ['a b']"),
                "'a b' does not select subjects",
            ),
            (
                format!(
                    "{head}routes = ['/a']\n[grants]\nmessages = [{}]",
                    (0..33).map(|n| format!("'a{n}', ")).collect::<String>()
                ),
                "'grants.messages' has 33 entries",
            ),
            (
                format!("{head}routes = ['/a']\njobs = {{ path = '/b' }}"),
                "not at or below a route",
            ),
            (
                format!("{head}routes = ['/a']\njobs = {{ attempts = 0 }}"),
                "out of range",
            ),
            (
                format!("{head}routes = ['/a']\njobs = {{ backoff-seconds = 3601 }}"),
                "give at most 3600",
            ),
            (
                cron("schedule = '0 3 * *', path = '/a'"),
                "'0 3 * *' is not a schedule",
            ),
            (
                cron("schedule = '0 3 * * *', path = '/a', time-zone = 'Mars/Base'"),
                "'Mars/Base' is not a time zone",
            ),
            (
                cron("schedule = '0 0 31 2 *', path = '/a'"),
                "names no time",
            ),
            (cron("schedule = '0 3 * * *', path = '/b'"), "cron.0.path"),
            (
                cron(
                    "schedule = '0 3 * * *', path = '/a' }, { schedule = '0 3 * * *', path = '/a'",
                ),
                "there twice",
            ),
        ] {
            let error = Manifest::from_toml(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text}\n{error}");
        }
        Manifest::from_toml(&format!("{head}routes = ['/jobsearch']")).expect("another segment");
    }
}
