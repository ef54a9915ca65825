use super::*;
use crate::triggers::job::{JobMessage, JobResponse, JobSender, record};
use crate::triggers::redb_store;
use std::path::Path;

fn open(directory: &Path) -> JobQueue {
    redb_store::open(directory, QueueLimits::default(), 100).expect("opens")
}

fn job(id: &str, body: &'static [u8]) -> NewJob {
    NewJob {
        record: record("a", id, body, 1),
        body: Bytes::from_static(body),
        queued: 0,
    }
}

/// Submits one job.
fn submit(queue: &JobQueue, job: NewJob, queued: usize) -> Result<(JobRecord, bool), QueueError> {
    let mut submitted = queue.submit(&[NewJob { queued, ..job }])?;
    Ok(submitted.pop().expect("one"))
}

fn with_key(mut job: NewJob, key: &str, tenant: Option<&str>) -> NewJob {
    job.record.idempotency_key = Some(key.to_owned());
    job.record.sender = tenant.map(|tenant| JobSender {
        tenant: tenant.to_owned(),
        key: "k".to_owned(),
    });
    job
}

fn done(body: &'static [u8]) -> Outcome {
    Outcome::Response(JobResponse {
        status: 200,
        content_type: None,
        body: Bytes::from_static(body),
    })
}

/// The first attempt of a job.
fn first(id: &str) -> JobClaim {
    JobClaim {
        key: key(id),
        number: 1,
    }
}

fn key(id: &str) -> JobKey {
    JobKey {
        deployment: "a".to_owned(),
        id: id.to_owned(),
    }
}

#[test]
fn jobs_survive_reopening_and_run_again() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    for id in ["1", "2", "3"] {
        submit(&queue, job(id, b"body"), 9).expect("there is room");
    }
    let claimed = queue.claim("a", 2, 5).expect("two");
    assert_eq!(
        claimed
            .iter()
            .map(|job| &*job.record.id)
            .collect::<Vec<_>>(),
        ["1", "2"]
    );
    assert_eq!(claimed[0].body, "body");
    queue
        .finish(&first("1"), &done(b"result"), 6)
        .expect("stored");
    drop(queue);
    let queue = open(dir.path());
    assert_eq!(queue.result(&key("1")).expect("stored"), "result");
    assert_eq!(
        queue.job(&key("1")).expect("it is there").state,
        JobState::Succeeded
    );
    let interrupted = queue.job(&key("2")).expect("it is there");
    assert_eq!(
        (interrupted.state, interrupted.interruptions),
        (JobState::Waiting, 1)
    );
    let again = queue.claim("a", 9, 200).expect("the others");
    assert_eq!(
        again.iter().map(|job| &*job.record.id).collect::<Vec<_>>(),
        ["3", "2"]
    );
    let late = queue
        .finish(&first("1"), &done(b"other"), 7)
        .expect("no failure");
    assert!(late.is_none(), "a finished job stays finished");
}

#[test]
fn repeated_idempotency_key_returns_the_same_job() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    let send = |id, body, tenant| submit(&queue, with_key(job(id, body), "k", tenant), 9);
    let first = send("1", b"x", Some("alice")).expect("new");
    assert!(first.1);
    let again = send("2", b"x", Some("alice")).expect("the same");
    assert_eq!((again.0.id.as_str(), again.1), ("1", false));
    let other_body = send("2", b"y", Some("alice"));
    assert!(matches!(other_body, Err(QueueError::KeyReused)));
    let other_tenant = send("2", b"x", Some("bob")).expect("new");
    assert!(other_tenant.1);
}

#[test]
fn jobs_of_several_deployments_are_added_together() {
    let dir = tempfile::tempdir().expect("there is room");
    let limits = QueueLimits {
        jobs: 4,
        ..QueueLimits::default()
    };
    let queue = redb_store::open(dir.path(), limits, 1).expect("opens");
    let jobs = |id: &str, queued: [usize; 2]| {
        let deployments = ["a", "b"].into_iter().zip(queued);
        let jobs = deployments.map(move |(deployment, queued)| NewJob {
            record: record(deployment, id, b"x", 1),
            body: Bytes::from_static(b"x"),
            queued,
        });
        Vec::from_iter(jobs)
    };
    queue.submit(&jobs("1", [9, 9])).expect("there is room");
    let full = queue.submit(&jobs("2", [9, 1])).expect_err("b is full");
    assert!(matches!(full, QueueError::Full { deployment, .. } if deployment == "b"));
    assert_eq!(queue.counts()["a"].waiting, 1, "neither has it");
    queue.submit(&jobs("2", [9, 9])).expect("there is room");
    let full = queue.submit(&jobs("3", [9, 9])).expect_err("no entry");
    assert!(full.to_string().contains("all 4 entries"), "{full}");
    // Two finished jobs make room for two.
    for deployment in ["a", "b"] {
        queue.claim(deployment, 1, 2).expect("one");
        let key = JobKey {
            deployment: deployment.to_owned(),
            id: "1".to_owned(),
        };
        let claim = JobClaim { key, number: 1 };
        queue.finish(&claim, &Outcome::Handled, 3).expect("stored");
    }
    queue.submit(&jobs("3", [9, 9])).expect("there is room");
    let counts = queue.counts();
    assert_eq!((counts["a"].waiting, counts["a"].finished), (2, 0));
    assert_eq!((counts["b"].waiting, counts["b"].finished), (2, 0));
}

#[test]
fn only_finished_jobs_are_evicted() {
    let dir = tempfile::tempdir().expect("there is room");
    let limits = QueueLimits {
        jobs_per_deployment: 3,
        bytes_per_deployment: 10,
        ..QueueLimits::default()
    };
    let queue = redb_store::open(dir.path(), limits, 1).expect("opens");
    submit(&queue, job("1", b"12345"), 9).expect("there is room");
    queue.claim("a", 1, 2).expect("one");
    queue.finish(&first("1"), &done(b"1"), 3).expect("stored");
    submit(&queue, job("2", b"12345"), 9).expect("in place of the first");
    assert!(queue.job(&key("1")).is_none());
    submit(&queue, job("3", b"12345"), 9).expect("there is room");
    let full = submit(&queue, job("4", b"1"), 9).expect_err("no bytes");
    assert!(full.to_string().contains("all 10 bytes"), "{full}");
    submit(&queue, job("5", b""), 9).expect("there is room");
    let full = submit(&queue, job("6", b""), 9).expect_err("no entry");
    assert!(full.to_string().contains("all 3 entries"), "{full}");
    let full = submit(&queue, job("6", b""), 3).expect_err("the queue is full");
    assert!(matches!(full, QueueError::Full { limit: 3, .. }));
    let counts = queue.counts()["a"];
    assert_eq!((counts.waiting, counts.bytes), (3, 10));
}

#[test]
fn canceled_dead_and_expired_jobs_end() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    for id in ["1", "2"] {
        submit(&queue, job(id, b"x"), 9).expect("there is room");
    }
    queue.claim("a", 1, 2).expect("one");
    queue.cancel(&key("1"), 3).expect("it runs");
    assert!(
        queue
            .finish(&first("1"), &done(b""), 4)
            .expect("no failure")
            .is_none()
    );
    let twice = queue.cancel(&key("1"), 3).expect_err("it has ended");
    assert!(matches!(twice, QueueError::WrongState(JobState::Canceled)));
    queue.retry(&key("1"), 5).expect("it was canceled");
    queue.claim("a", 2, 9).expect("both");
    let stale = [first("1")];
    queue.release(&stale, 9).expect("no failure");
    queue.interrupt(&stale, 9).expect("no failure");
    let ended = queue.finish(&stale[0], &done(b""), 9).expect("no failure");
    assert!(ended.is_none(), "the first attempt was canceled");
    queue.release(&[first("2")], 9).expect("it runs");
    let second = queue.running_here_or_lost();
    assert_eq!(second, [queue.job(&key("1")).expect("it is there").claim()]);
    assert_eq!(queue.job(&key("2")).expect("it is there").attempts, 0);
    let ended = queue.finish(&second[0], &done(b""), 10).expect("it runs");
    assert_eq!(ended.expect("it runs").state, JobState::Succeeded);
    let day = 24 * 3600 * 1000;
    queue.expire(day).expect("no failure");
    assert!(queue.job(&key("1")).is_some());
    queue.expire(day + 10).expect("no failure");
    assert!(queue.job(&key("1")).is_none());
    let (dead, _) = queue.expire(8 * day).expect("no failure");
    assert_eq!((dead.len(), dead[0].state), (1, JobState::Dead));
    assert_eq!(
        queue
            .purge("a", Some(JobState::Succeeded))
            .expect("no failure"),
        0
    );
    assert_eq!(
        queue.purge("a", Some(JobState::Dead)).expect("no failure"),
        1
    );
    assert!(queue.counts().is_empty(), "an empty entry is dropped");
}

#[test]
fn change_removes_few_of_many_expired_jobs() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    let jobs = (0..=MAX_CHANGED).map(|number| NewJob {
        queued: usize::MAX,
        ..job(&format!("{number:04}"), b"")
    });
    queue
        .submit(&Vec::from_iter(jobs))
        .expect("there is room for all");
    let day = 24 * 3600 * 1000;
    let expire = |now_ms| {
        let (dead, is_done) = queue.expire(now_ms).expect("no failure");
        (dead.len(), queue.counts().len(), is_done)
    };
    assert_eq!(expire(8 * day), (MAX_CHANGED, 1, false));
    assert_eq!(expire(8 * day), (1, 1, true));
    assert_eq!(expire(10 * day), (0, 1, false));
    assert_eq!(queue.counts()["a"].finished, 1);
    assert_eq!(expire(10 * day), (0, 0, true));
}

/// A job of a tenant.
fn job_of(tenant: &str, id: &str) -> NewJob {
    with_key(job(id, b""), id, Some(tenant))
}

fn claim(queue: &JobQueue, most: usize, now_ms: u64) -> Vec<String> {
    let claimed = queue.claim("a", most, now_ms).expect("no failure");
    claimed.into_iter().map(|job| job.record.id).collect()
}

#[test]
fn tenants_share_the_queue_and_take_turns() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    for id in ["1", "2", "3"] {
        submit(&queue, job_of("alice", id), 6).expect("there is room");
    }
    let full = submit(&queue, job_of("alice", "4"), 6).expect_err("half");
    assert!(full.to_string().contains("3 jobs of 'a' from this tenant"));
    for id in ["5", "6"] {
        submit(&queue, job_of("bob", id), 6).expect("there is room");
    }
    assert_eq!(claim(&queue, 1, 9), ["1"]);
    assert_eq!(claim(&queue, 3, 9), ["5", "2", "6"]);
    assert_eq!(claim(&queue, 3, 9), ["3"]);
    // One at a time they take turns as well.
    for id in ["1", "2", "3", "5", "6"] {
        queue.finish(&first(id), &done(b""), 10).expect("it runs");
    }
    for (tenant, id) in [("alice", "7"), ("alice", "8"), ("bob", "9")] {
        submit(&queue, job_of(tenant, id), 6).expect("there is room");
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        let ids = claim(&queue, 1, 20);
        queue
            .finish(&first(&ids[0]), &done(b""), 21)
            .expect("it runs");
        order.extend(ids);
    }
    assert_eq!(order, ["9", "7", "8"], "alice was last served");
}

#[test]
fn messages_of_plugins_leave_room_for_clients() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    let published = |id| {
        let mut job = job(id, b"");
        job.record.message = Some(JobMessage {
            subject: "news".parse().expect("a subject"),
            reply_to: None,
            publisher: Some("b".to_owned()),
            depth: 1,
        });
        job
    };
    for id in ["1", "2"] {
        submit(&queue, published(id), 4).expect("there is room");
    }
    let full = submit(&queue, published("3"), 4).expect_err("half");
    let text = "2 jobs of 'a' from schedules and plugins";
    assert!(full.to_string().contains(text), "{full}");
    let room = queue.check_room("a", &JobOwner::Deployment, 4);
    assert!(matches!(room, Err(QueueError::Full { limit: 2, .. })));
    submit(&queue, job("4", b""), 4).expect("there is room for clients");
    submit(&queue, job_of("alice", "5"), 4).expect("there is room for tenants");
}

#[test]
fn deferral_lets_the_backlog_of_its_tenant_wait() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    for (tenant, id) in [("alice", "1"), ("alice", "2"), ("bob", "3")] {
        submit(&queue, job_of(tenant, id), 9).expect("there is room");
    }
    let deferred = || Outcome::Deferred {
        reason: "no quota".to_owned(),
        wait: Duration::from_secs(1),
    };
    assert_eq!(claim(&queue, 1, 9), ["1"]);
    queue.finish(&first("1"), &deferred(), 10).expect("it runs");
    assert_eq!(claim(&queue, 9, 20), ["3"], "alice waits");
    assert_eq!(queue.counts()["a"].next_ready_ms, Some(1010));
    assert_eq!(claim(&queue, 9, 1010), ["2"], "one of alice tries");
    queue
        .finish(&first("2"), &deferred(), 1010)
        .expect("it runs");
    let next = queue.counts()["a"].next_ready_ms.expect("alice waits");
    assert!((2510..=3010).contains(&next), "{next}");
    assert_eq!(claim(&queue, 9, 3010).len(), 1);
    let running = queue.running_here_or_lost();
    queue
        .finish(&running[0], &done(b""), 3011)
        .expect("it runs");
    assert_eq!(claim(&queue, 9, 3011).len(), 1, "the pause is over");
    let second = Duration::from_secs(1);
    assert_eq!(deferred_wait(second, 99, 1.0), MAX_DEFERRED_WAIT);
    assert_eq!(deferred_wait(second * 90, 9, 0.75), second * 90);
}

#[test]
fn full_store_drops_results_of_whom_stores_most() {
    let dir = tempfile::tempdir().expect("there is room");
    let limits = QueueLimits {
        bytes_per_deployment: 10,
        ..QueueLimits::default()
    };
    let queue = redb_store::open(dir.path(), limits, 1).expect("opens");
    for (tenant, id) in [("bob", "1"), ("alice", "2"), ("alice", "3")] {
        submit(&queue, job_of(tenant, id), 9).expect("there is room");
        assert_eq!(claim(&queue, 1, 2), [id]);
        queue.finish(&first(id), &done(b"abc"), 3).expect("it runs");
    }
    submit(&queue, job("4", b"1234"), 9).expect("there is room");
    assert!(queue.job(&key("2")).is_none(), "alice stored most");
    assert!(queue.job(&key("1")).is_some() && queue.job(&key("3")).is_some());
    claim(&queue, 1, 2);
    let ended = queue.finish(&first("4"), &done(b"1234567"), 3);
    let ended = ended.expect("no failure").expect("it runs");
    assert_eq!((ended.state, ended.result_bytes), (JobState::Succeeded, 0));
    assert!(ended.error.expect("why").contains("no room for its result"));
}

#[test]
fn schedule_runs_once_for_a_time() {
    let dir = tempfile::tempdir().expect("there is room");
    let at = |handled_ms| CronState {
        handled_ms,
        ..CronState::default()
    };
    let record = |queue: &JobQueue, id: &str, before: Option<u64>, handled_ms| {
        queue.record_due_run(&DueRun {
            deployment: "a".to_owned(),
            entry: "daily".to_owned(),
            before: before.map(at),
            state: at(handled_ms),
            job: Some(job(id, b"")),
        })
    };
    let queue = open(dir.path());
    assert!(record(&queue, "1", None, 50).expect("no failure"));
    drop(queue);
    let queue = open(dir.path());
    assert!(
        !record(&queue, "2", Some(50), 50).expect("no failure"),
        "after a restart"
    );
    let stale = record(&queue, "2", Some(40), 60);
    assert!(!stale.expect("no failure"), "another host was faster");
    assert!(record(&queue, "3", Some(50), 60).expect("no failure"));
    assert_eq!(queue.counts()["a"].waiting, 2);
    queue.remove_deployment("a", u64::MAX).expect("no failure");
    drop(queue);
    let queue = open(dir.path());
    assert!(queue.counts().is_empty());
    assert!(queue.cron_states("a").is_empty());
}

#[test]
fn jobs_of_a_later_deployment_stay() {
    let dir = tempfile::tempdir().expect("there is room");
    let queue = open(dir.path());
    let mut later = job("2", b"");
    later.record.created_ms = 60;
    for job in [job("1", b""), later] {
        submit(&queue, job, 9).expect("there is room");
    }
    queue.remove_deployment("a", 60).expect("no failure");
    assert!(queue.job(&key("1")).is_none());
    assert!(queue.job(&key("2")).is_some());
}

/// A store that cannot read the body of job 1.
#[derive(Debug)]
struct Damaged(Arc<dyn JobStore>);

impl JobStore for Damaged {
    fn check_ready(&self) -> Result<(), QueueError> {
        self.0.check_ready()
    }

    fn index(&self) -> MutexGuard<'_, JobIndex> {
        self.0.index()
    }

    fn commit(&self, changes: Vec<Change>) -> Result<bool, QueueError> {
        self.0.commit(changes)
    }

    fn body(&self, record: &JobRecord) -> Result<Bytes, QueueError> {
        match &*record.id {
            "1" => Err(QueueError::Storage("damaged".to_owned())),
            _ => self.0.body(record),
        }
    }

    fn result(&self, record: &JobRecord) -> Result<Bytes, QueueError> {
        self.0.result(record)
    }
}

#[test]
fn unreadable_body_leaves_other_jobs_alone() {
    let dir = tempfile::tempdir().expect("there is room");
    let mut queue = open(dir.path());
    queue.store = Arc::new(Damaged(Arc::clone(&queue.store)));
    for id in ["1", "2"] {
        submit(&queue, job(id, b"body"), 9).expect("there is room");
    }
    let claimed = queue.claim("a", 2, 5).expect("no failure");
    let ids = Vec::from_iter(claimed.iter().map(|job| &*job.record.id));
    assert_eq!(ids, ["2"]);
    let waiting = queue.job(&key("1")).expect("it is not removed");
    assert_eq!(waiting.state, JobState::Waiting);
    assert_eq!((waiting.attempts, waiting.interruptions), (0, 0));
    assert!(queue.claim("a", 2, 6).expect("no failure").is_empty());
}
