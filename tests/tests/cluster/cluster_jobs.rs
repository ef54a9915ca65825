//! Jobs and schedules that the hosts of a cluster share: each job is done, and each time of a schedule runs once, although
//! hosts are killed and NATS restarts.

use corral_tests::cluster::{host, host_in};
use corral_tests::deployments::{deploy_plugin, show};
use corral_tests::jobs::{deploy_jobs, id_of, result, send, wait_for_state};
use corral_tests::{
    Corral, Nats, Sum, distinct_sums, scratch_dir, seed, serve_stub, wait_for, wait_until,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long what a job does elsewhere takes.
const EFFECT_TIME: Duration = Duration::from_millis(20);

fn hosts<const COUNT: usize>(nats: &Nats) -> [Corral; COUNT] {
    [(); COUNT].map(|()| host(nats))
}

/// Deploys a plugin through the first host, and waits until all take its jobs.
fn deploy_to_all(hosts: &[&Corral], name: &str, plugin: &str, more: Value) {
    deploy_plugin(hosts[0], name, plugin, more);
    wait_for_jobs(hosts, name);
}

fn wait_for_jobs(hosts: &[&Corral], name: &str) {
    for host in hosts {
        wait_until("the deployment", || {
            host.get(&format!("/jobs/{name}")).status == 200
        });
    }
}

/// Deploys `misbehave`, whose jobs have this behavior.
fn deploy_behavior(hosts: &[&Corral], name: &str, behavior: &str, more: Value) {
    deploy_jobs(hosts[0], name, behavior, more);
    wait_for_jobs(hosts, name);
}

/// Attempts that ended on this host with this event.
fn events(host: &Corral, name: &str, trigger: &str, event: &str) -> f64 {
    let labels = format!("deployment=\"{name}\",trigger=\"{trigger}\",event=\"{event}\"");
    let metric = format!("corral_job_events_total{{{labels}}}");
    host.metrics().get_or_zero(&metric)
}

/// Sends the jobs of these sums, each through one of the hosts.
fn send_sums(hosts: &[&Corral], sums: &[Sum]) -> Vec<(Sum, String)> {
    let sent = hosts.iter().cycle().zip(sums).map(|(host, sum)| {
        let body = json!({"prompt": sum.question(), "max_tokens": 20});
        (*sum, send(host, "sums", &body.to_string()))
    });
    sent.collect()
}

/// Asserts that each of these jobs has succeeded, and that a deployment has no others.
fn check_done(host: &Corral, name: &str, sent: &BTreeSet<&str>) {
    for id in sent {
        let job = wait_for_state(host, name, id, "succeeded");
        assert_eq!(job["attempts"], 1, "interruptions do not count: {job}");
    }
    let list = host.cli_json(&["jobs", name, "-n", "1000"]);
    let jobs = list["jobs"].as_array().expect("a list").iter();
    let ids: BTreeSet<_> = jobs.map(|job| job["id"].as_str().expect("an id")).collect();
    assert_eq!(ids, *sent, "no other jobs");
}

/// Asserts that each job of these sums has succeeded, once.
fn check_sums(host: &Corral, sent: &[(Sum, String)]) {
    let ids = sent.iter().map(|(_, id)| id.as_str());
    check_done(host, "sums", &ids.collect());
    for (sum, id) in sent {
        assert_eq!(result(host, "sums", id).json()["text"], sum.answer());
    }
}

fn deploy_sums(hosts: &[&Corral]) {
    // One at a time on each host, so that a kill interrupts some.
    let jobs = json!({"queued": 10_000, "concurrency": 1});
    deploy_to_all(hosts, "sums", "generate", json!({ "jobs": jobs }));
}

#[test]
fn hosts_share_jobs_and_their_results() {
    let nats = Nats::start();
    let [a, b, c] = hosts(&nats);
    let all = [&a, &b, &c];
    deploy_sums(&all);
    let sent = send_sums(&[&a], &distinct_sums(30));
    check_sums(&b, &sent);
    // A host counts a job after all can see its end.
    let done = wait_for("the counts of all jobs", || {
        let done = all.map(|host| events(host, "sums", "job", "succeeded"));
        (done.iter().sum::<f64>() == 30.0).then_some(done)
    });
    assert!(
        done.iter().filter(|done| **done > 0.0).count() > 1,
        "{done:?}"
    );
    // The plugin gets the id as on a single host.
    deploy_behavior(&all, "headers", "headers", json!({}));
    let id = send(&a, "headers", "x");
    wait_for_state(&c, "headers", &id, "succeeded");
    let seen = result(&c, "headers", &id).body;
    assert!(seen.contains(&format!("x-corral-job-id: {id}\n")), "{seen}");
    // A body and result of several messages.
    let large = json!({"body-kib": 4096, "result-kib": 4096});
    deploy_behavior(&all, "echo", "echo", large);
    let body = "0123456789abcdef".repeat(3 << 16);
    let id = send(&b, "echo", &body);
    wait_for_state(&a, "echo", &id, "succeeded");
    assert!(result(&a, "echo", &id).body == body, "it is another body");
    // What is removed on one host is gone on all.
    let removed = c.cli_output(&["jobs", "sums", "--purge"]);
    assert_eq!(removed, "removed 30 finished jobs\n");
    wait_until("the removal", || {
        a.get("/jobs/sums").json()["finished"] == 0
    });
    b.cli_output(&["remove", "echo"]);
    for host in all {
        wait_until("the removal", || host.get("/echo/ok").status == 404);
    }
    deploy_behavior(&all, "echo", "echo", json!({}));
    assert_eq!(a.get("/jobs/echo").json()["finished"], 0);
}

#[test]
fn key_used_on_all_hosts_makes_one_job() {
    let nats = Nats::start();
    let [a, b, c] = hosts(&nats);
    deploy_behavior(&[&a, &b, &c], "echo", "echo", json!({}));
    for round in 0..10 {
        let key = round.to_string();
        let send = |host: &Corral, body: &str| {
            host.request("POST", "/jobs/echo", &[("idempotency-key", &key)], body)
        };
        let ids = thread::scope(|scope| {
            let senders = [&a, &b, &c].map(|host| scope.spawn(move || id_of(&send(host, "x"))));
            senders.map(|sender| sender.join().expect("an answer"))
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        send(&b, "y").problem(422, "idempotency-key-reused");
    }
    wait_until("ten jobs", || c.get("/jobs/echo").json()["finished"] == 10);
    // The key of a removed job is free at once.
    c.cli_output(&["jobs", "echo", "--purge"]);
    let send = |host: &Corral| {
        let key = [("idempotency-key", "0")];
        id_of(&host.request("POST", "/jobs/echo", &key, "y"))
    };
    let id = send(&c);
    wait_for_state(&b, "echo", &id, "succeeded");
    assert_eq!(send(&b), id);
}

#[test]
fn failed_and_canceled_jobs_end_on_all_hosts() {
    let nats = Nats::start();
    let [a, b] = hosts(&nats);
    let retries = json!({"attempts": 3, "backoff-seconds": 0.1});
    deploy_behavior(&[&a, &b], "bad", "trap", retries);
    let id = send(&a, "bad", "x");
    for host in [&b, &a] {
        let dead = wait_for_state(host, "bad", &id, "dead");
        assert_eq!(dead["attempts"], 3, "{dead}");
    }
    let retried = b.cli_output(&["jobs", "bad", "--retry", &id]);
    assert_eq!(retried, format!("{id} is waiting\n"));
    // The other host may not have seen the retry yet.
    wait_for_state(&b, "bad", &id, "dead");
    let listed = b.cli_json(&["jobs", "bad", "--state", "dead"]);
    assert_eq!(listed["jobs"][0]["id"], id);

    deploy_behavior(&[&a, &b], "slow", "sleeper", json!({"concurrency": 1}));
    let ids = [(); 3].map(|()| send(&a, "slow", "x"));
    // One on each host.
    wait_until("two running jobs", || {
        let list = a.get("/jobs/slow").json();
        list["running"] == 2 && list["waiting"] == 1
    });
    for id in ids.iter().rev() {
        let path = format!("/jobs/slow/{id}");
        let canceled = b.request("DELETE", &path, &[], "");
        assert_eq!(canceled.json()["state"], "canceled", "{canceled:?}");
        wait_for_state(&a, "slow", id, "canceled");
    }
    // Their plugins have stopped.
    for host in [&a, &b] {
        host.wait_until_idle();
    }
}

#[test]
fn jobs_of_killed_host_are_taken_over() {
    let nats = Nats::start();
    let [a, b, c] = hosts(&nats);
    deploy_sums(&[&a, &b, &c]);
    deploy_behavior(&[&a, &b, &c], "slow", "sleeper", json!({"concurrency": 1}));
    // One job runs on each host.
    let slow = [(); 3].map(|()| send(&c, "slow", "x"));
    wait_until("three running jobs", || {
        b.get("/jobs/slow").json()["running"] == 3
    });
    let sums = distinct_sums(60);
    let mut sent = send_sums(&[&a, &b, &c], &sums[..30]);
    c.signal("KILL");
    let killed = Instant::now();
    sent.extend(send_sums(&[&a, &b], &sums[30..]));
    check_sums(&a, &sent);
    // The job that ran there waits for one of the others, which have one each.
    wait_until("the takeover", || {
        let list = a.get("/jobs/slow").json();
        list["running"] == 2 && list["waiting"] == 1
    });
    assert!(killed.elapsed() > Duration::from_secs(20), "too soon");
    for id in &slow {
        b.cli_output(&["jobs", "slow", "--cancel", id]);
    }
    for host in [&a, &b] {
        host.wait_until_idle();
    }
}

#[test]
fn restarted_nats_loses_no_job() {
    let mut nats = Nats::start();
    let [a, b] = hosts(&nats);
    deploy_sums(&[&a, &b]);
    let sums = distinct_sums(40);
    let mut sent = send_sums(&[&a, &b], &sums[..20]);
    nats.stop();
    // A job that is sent before may reach the next NATS although it was refused.
    a.wait_until("the loss of the connection", |metrics| {
        metrics.get("corral_cluster_connected") == 0.0
    });
    let refused = wait_for("a refusal", || {
        let answer = a.post("/jobs/sums", "{}");
        (answer.status != 202).then_some(answer)
    });
    let detail = refused.problem(503, "cluster-unreachable");
    assert!(detail.contains(&nats.url()), "{detail}");
    assert!(refused.retry_after() >= 1);
    nats.start_again();
    for host in [&a, &b] {
        wait_until("the connection", || {
            host.get("/jobs/sums/unknown").status == 404
        });
    }
    sent.extend(send_sums(&[&a, &b], &sums[20..]));
    check_sums(&b, &sent);
}

/// The times of the last runs of each schedule of `tick`, newest first.
fn times(host: &Corral) -> Vec<Vec<u64>> {
    let schedules = show(host, "tick")["schedules"].clone();
    let schedules = schedules.as_array().cloned().unwrap_or_default();
    Vec::from_iter(schedules.iter().map(|schedule| {
        let runs = schedule["runs"].as_array().expect("a list").iter();
        Vec::from_iter(runs.map(|run| run["scheduled_ms"].as_u64().expect("a time")))
    }))
}

#[test]
fn schedule_misses_no_time_after_loss() {
    let mut nats = Nats::start();
    let [a, b] = hosts(&nats);
    let cron = json!([{"schedule": "* * * * *", "path": "/tick/ok"}]);
    deploy_plugin(&a, "tick", "misbehave", json!({ "cron": cron }));
    wait_until("the deployment", || b.get("/tick/ok").status == 200);
    let first = wait_for("a run", || times(&b).concat().into_iter().max());
    nats.stop();
    nats.lose_data();
    nats.start_again();
    let next = wait_for("the next run", || {
        let later = times(&a).concat().into_iter().filter(|time| *time > first);
        later.min()
    });
    assert_eq!(next - first, 60_000);
}

#[test]
fn schedule_fires_once_in_the_cluster() {
    let nats = Nats::start();
    let [a, b, c] = hosts(&nats);
    let entry = |path: &str| json!({"schedule": "* * * * *", "path": path, "overlap": true});
    let cron = [entry("/tick/headers"), entry("/tick/ok")];
    deploy_plugin(&a, "tick", "misbehave", json!({ "cron": cron }));
    for host in [&a, &b, &c] {
        wait_until("the deployment", || host.get("/tick/ok").status == 200);
    }
    wait_until("two times", || {
        let times = times(&c);
        times.len() == 2 && times.iter().all(|times| times.len() >= 2)
    });
    for host in [&a, &b, &c] {
        for mut times in times(host) {
            let count = times.len();
            times.dedup();
            assert_eq!(times.len(), count, "a time ran twice: {times:?}");
            let apart = times.windows(2).all(|pair| pair[0] - pair[1] == 60_000);
            assert!(apart, "a time is missing: {times:?}");
        }
    }
    wait_until("the end of all runs", || {
        let ended = |host| events(host, "tick", "cron", "succeeded");
        let ended: f64 = [&a, &b, &c].map(ended).iter().sum();
        let listed: usize = times(&a).iter().map(Vec::len).sum();
        ended == listed as f64
    });
}

/// Sends a job of `effects` with an idempotency key through a host that may be killed meanwhile.
fn try_send(host: &Corral, body: &str, number: usize) -> Option<String> {
    let url = format!("http://{}/jobs/effects", host.public());
    let request = ureq::post(&url).header("idempotency-key", format!("job-{number}"));
    let mut answer = request.send(body).ok()?;
    let text = answer.body_mut().read_to_string().ok()?;
    let job: Value = serde_json::from_str(&text).ok()?;
    Some(job["id"].as_str()?.to_owned())
}

/// Sends jobs while hosts are killed at random, and start again. Each requests a path of its own elsewhere, by its id.
fn survive_kills(count: usize, kills: usize) {
    let nats = Nats::start();
    let mut random = ChaCha8Rng::seed_from_u64(seed());
    let stores: [PathBuf; 3] = [(); 3].map(|()| scratch_dir());
    let mut hosts = stores.each_ref().map(|store| host_in(store, &nats, &[]));
    let effects = Arc::<Mutex<BTreeMap<String, Vec<String>>>>::default();
    let sink = Arc::clone(&effects);
    let address = serve_stub(move |request| {
        let job = request.headers["x-job"].clone();
        let mut effects = sink.lock().expect("no panic");
        effects.entry(job).or_default().push(request.target);
        drop(effects);
        // A kill during this time repeats the request.
        thread::sleep(EFFECT_TIME);
        ("200 OK".to_owned(), Vec::new())
    });
    let url = format!("http://{address}");
    let grants = json!({"outbound": [url]});
    let jobs = json!({"queued": 10_000, "concurrency": 1});
    let more = json!({"jobs": jobs, "grants": grants});
    deploy_to_all(&hosts.each_ref(), "effects", "outbound", more);
    let mut sent: Vec<String> = Vec::new();
    for kill in 0..=kills {
        let target = (kill + 1) * count / (kills + 1);
        let victim = random.random_range(0..hosts.len());
        let moment = Duration::from_millis(random.random_range(0..500));
        let all = &hosts;
        thread::scope(|scope| {
            let killer = scope.spawn(move || {
                thread::sleep(moment);
                if kill < kills {
                    all[victim].signal("KILL");
                }
            });
            for attempt in 0.. {
                if sent.len() == target {
                    break;
                }
                // The same key through the next host if this one was killed.
                let (host, number) = (&all[attempt % all.len()], sent.len());
                let body = json!({"url": format!("{url}/{number}")}).to_string();
                sent.extend(try_send(host, &body, number));
            }
            killer.join().expect("no panic");
        });
        if kill < kills {
            hosts[victim].wait();
            hosts[victim] = host_in(&stores[victim], &nats, &[]);
        }
    }
    let ids = BTreeSet::from_iter(sent.iter().map(String::as_str));
    assert_eq!(ids.len(), count, "each key made a job of its own");
    check_done(&hosts[0], "effects", &ids);
    for id in &ids {
        assert_eq!(result(&hosts[0], "effects", id).json()["status"], 200);
    }
    let effects = effects.lock().expect("no panic");
    let by_id = BTreeSet::from_iter(effects.keys().map(String::as_str));
    assert_eq!(by_id, ids, "each has its effect, once by its id");
    for (number, id) in sent.iter().enumerate() {
        let (targets, own) = (&effects[id], format!("/{number}"));
        assert!(
            targets.iter().all(|target| *target == own),
            "{own}: {targets:?}"
        );
    }
    let repeated = effects.values().filter(|targets| targets.len() > 1).count();
    println!("{count} jobs, {kills} kills; {repeated} ran more than once");
}

#[test]
fn five_hundred_jobs_survive_kills_of_hosts() {
    survive_kills(500, 20);
}
