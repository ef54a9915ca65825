//! Jobs: sent at `/jobs/NAME`, run later in the process, and kept through kills.

use corral_tests::deployments::{deploy_plugin, manifest, try_deploy, upload};
use corral_tests::jobs::{deploy_jobs, id_of, result, send, status, wait_for_state};
use corral_tests::{
    Corral, Sum, artifacts, distinct_sums, new_key, scratch_dir, seed, wait_for, wait_until,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn jobs_answer_as_requests_do() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "sums", "generate", json!({"jobs": {}}));
    let sums = distinct_sums(20);
    let sent = sums.iter().map(|sum| {
        let body = json!({"prompt": sum.question(), "max_tokens": 20}).to_string();
        (*sum, send(&corral, "sums", &body))
    });
    let sent: Vec<(Sum, String)> = sent.collect();
    for (sum, id) in &sent {
        wait_for_state(&corral, "sums", id, "succeeded");
        let answer = result(&corral, "sums", id);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json()["text"], sum.answer(), "{sum:?}");
    }
    let list = corral.get("/jobs/sums?limit=5").json();
    assert_eq!(
        (&list["finished"], &list["waiting"]),
        (&json!(20), &json!(0))
    );
    let listed = list["jobs"].as_array().expect("a list");
    assert_eq!(listed.len(), 5);
    // The request as the plugin sees it; a client cannot forge the headers of the host.
    deploy_jobs(&corral, "headers", "headers", json!({}));
    let id = send(&corral, "headers", "x");
    wait_for_state(&corral, "headers", &id, "succeeded");
    let seen = result(&corral, "headers", &id).body;
    let lines: Vec<_> = seen.lines().collect();
    for line in [
        format!("x-corral-job-id: {id}"),
        "x-corral-job-attempt: 1".to_owned(),
        "x-corral-trigger: job".to_owned(),
        "content-type: application/json".to_owned(),
    ] {
        assert!(lines.contains(&&*line), "{line}: {seen}");
    }
    let forged = [("x-corral-job-id", "1")];
    let seen = corral.request("POST", "/headers/headers", &forged, "");
    assert_eq!(seen.status, 200, "{seen:?}");
    assert!(!seen.body.contains("x-corral-job-id"), "{seen:?}");
    let metrics = corral.wait_until_idle();
    let event = "corral_job_events_total{deployment=\"sums\",trigger=\"job\",event=\"succeeded\"}";
    assert_eq!(metrics.get(event), 20.0);
    let finished = "corral_jobs{deployment=\"sums\",state=\"finished\"}";
    assert_eq!(metrics.get(finished), 20.0);
}

#[test]
fn repeated_idempotency_key_makes_one_job() {
    let corral = Corral::start_with_store(&[]);
    deploy_jobs(&corral, "echo", "echo", json!({}));
    let send = |key: &str, body: &str| {
        corral.request("POST", "/jobs/echo", &[("idempotency-key", key)], body)
    };
    let id = id_of(&send("a", "one"));
    wait_for_state(&corral, "echo", &id, "succeeded");
    assert_eq!(id_of(&send("a", "one")), id);
    send("a", "two").problem(422, "idempotency-key-reused");
    assert_ne!(id_of(&send("b", "one")), id);
    send("", "one").problem(400, "bad-request");
    assert_eq!(result(&corral, "echo", &id).body, "one");
    wait_until("two jobs", || {
        corral.get("/jobs/echo").json()["finished"] == 2
    });
}

#[test]
fn failing_job_is_retried_then_a_dead_letter() {
    let corral = Corral::start_with_store(&[]);
    let retries = json!({"attempts": 3, "backoff-seconds": 0.3});
    deploy_jobs(&corral, "bad", "trap", retries);
    let id = send(&corral, "bad", "x");
    let dead = wait_for_state(&corral, "bad", &id, "dead");
    assert_eq!(dead["attempts"], 3);
    let error = dead["error"].as_str().expect("an error");
    assert!(error.contains("the plugin crashed"), "{error}");
    // The waits are 0.3 s and 0.6 s.
    let time = |field: &str| dead[field].as_u64().expect(field);
    let took = time("finished_ms") - time("created_ms");
    assert!(took >= 900, "{took} ms");
    let detail = result(&corral, "bad", &id).problem(409, "job-failed");
    assert!(detail.contains("after 3 attempts"), "{detail}");
    // The operator sees it and lets it run again; meanwhile the plugin was repaired.
    let listed = corral.cli_json(&["jobs", "bad", "--state", "dead"]);
    assert_eq!(listed["jobs"][0]["id"], id);
    let text = corral.cli_output(&["jobs", "bad"]);
    assert!(text.contains("0 waiting, 0 running, 1 finished"), "{text}");
    let retried = corral.cli_output(&["jobs", "bad", "--retry", &id]);
    assert_eq!(retried, format!("{id} is waiting\n"));
    wait_for_state(&corral, "bad", &id, "dead");
    assert_eq!(
        corral.cli_output(&["jobs", "bad", "--purge"]),
        "removed 1 finished jobs\n"
    );
    corral
        .get(&format!("/jobs/bad/{id}"))
        .problem(404, "no-job");
    corral
        .cli(&["jobs", "bad", "--retry", &id])
        .check_error(1, &["has no job"]);
    // A 404 of the plugin would come again.
    deploy_jobs(&corral, "none", "no-such-behavior", json!({}));
    let id = send(&corral, "none", "x");
    let dead = wait_for_state(&corral, "none", &id, "dead");
    assert_eq!(
        (&dead["attempts"], &dead["status"]),
        (&json!(1), &json!(404))
    );
    corral.wait_until_idle();
}

#[test]
fn canceled_job_stops_its_plugin() {
    let corral = Corral::start_with_store(&[]);
    deploy_jobs(&corral, "slow", "sleeper", json!({"concurrency": 1}));
    let (first, second) = (send(&corral, "slow", "1"), send(&corral, "slow", "2"));
    wait_for_state(&corral, "slow", &first, "running");
    assert_eq!(status(&corral, "slow", &second)["state"], "waiting");
    result(&corral, "slow", &first).problem(409, "job-not-finished");
    for id in [&second, &first] {
        let path = format!("/jobs/slow/{id}");
        let canceled = corral.request("DELETE", &path, &[], "");
        assert_eq!(canceled.json()["state"], "canceled", "{canceled:?}");
        corral
            .request("DELETE", &path, &[], "")
            .problem(409, "wrong-job-state");
        result(&corral, "slow", id).problem(409, "job-canceled");
    }
    // No instance is left.
    corral.wait_until_idle();
}

#[test]
fn queues_bodies_and_results_are_bounded() {
    let corral = Corral::start_with_store(&[]);
    deploy_jobs(
        &corral,
        "slow",
        "sleeper",
        json!({"concurrency": 1, "queued": 2, "body-kib": 1}),
    );
    let jobs = [send(&corral, "slow", "1"), send(&corral, "slow", "2")];
    let full = corral.post("/jobs/slow", "3");
    let detail = full.problem(429, "job-queue-full");
    assert!(detail.contains("2 jobs of 'slow'"), "{detail}");
    assert!(full.retry_after() >= 1);
    for id in jobs {
        corral.request("DELETE", &format!("/jobs/slow/{id}"), &[], "");
    }
    corral
        .post("/jobs/slow", "x".repeat(1025))
        .problem(413, "request-too-large");
    deploy_jobs(&corral, "echo", "echo", json!({"result-kib": 1}));
    let (good, large) = (
        send(&corral, "echo", &"x".repeat(1024)),
        send(&corral, "echo", &"x".repeat(1025)),
    );
    let dead = wait_for_state(&corral, "echo", &large, "dead");
    let error = dead["error"].as_str().expect("an error");
    assert!(error.contains("larger than 1024 bytes"), "{error}");
    assert_eq!(dead["attempts"], 1);
    wait_for_state(&corral, "echo", &good, "succeeded");
    assert_eq!(result(&corral, "echo", &good).body.len(), 1024);
    deploy_jobs(&corral, "brief", "echo", json!({"ttl-seconds": 1}));
    let brief = send(&corral, "brief", "x");
    wait_until("the end of the time to live", || {
        corral.get(&format!("/jobs/brief/{brief}")).status == 404
    });
    corral.wait_until_idle();
}

#[test]
fn slow_bodies_leave_room_for_other_tenants() {
    let file = scratch_dir().join("keys.toml");
    let key = |tenant: &str| format!("Bearer {}", new_key(&file, &["--tenant", tenant]));
    let (alice, bob) = (key("alice"), key("bob"));
    let corral = Corral::start_with_store(&["--keys", file.to_str().expect("a path in UTF-8")]);
    deploy_jobs(&corral, "echo", "echo", json!({}));
    let head = format!(
        "POST /jobs/echo HTTP/1.1\r\nHost: x\r\nAuthorization: {alice}\r\nContent-Length: {}\r\n\r\n",
        1 << 20
    );
    let slow = (0..40).map(|_| {
        let mut stream = TcpStream::connect(corral.public()).expect("the server accepts");
        stream.write_all(head.as_bytes()).expect("the server reads");
        stream.set_nonblocking(true).expect("a socket");
        stream
    });
    let slow = Vec::from_iter(slow);
    // Half of the memory for bodies takes 32 of them. A body of the test meanwhile could take the place of one.
    wait_until("eight refusals", || {
        let answered = slow.iter().filter(|stream| stream.peek(&mut [0]).is_ok());
        answered.count() == 8
    });
    let send = |key: &str| {
        let headers = [("authorization", key)];
        corral.request("POST", "/jobs/echo", &headers, "x")
    };
    send(&alice).problem(503, "jobs-busy");
    id_of(&send(&bob));
    drop(slow);
    wait_until("room for alice", || send(&alice).status == 202);
    corral.wait_until_idle();
}

#[test]
fn tenants_see_their_own_jobs_only() {
    let keys = scratch_dir().join("keys.toml");
    std::fs::write(&keys, "").expect("written");
    let file = keys.to_str().expect("a path in UTF-8");
    let key = |tenant: &str, deployment: &str| {
        let options = ["--tenant", tenant, "--deployment", deployment];
        format!("Bearer {}", new_key(file, &options))
    };
    let (alice, bob) = (key("alice", "echo"), key("bob", "echo"));
    let other = key("carol", "other");
    let corral = Corral::start_with_store(&["--keys", file]);
    deploy_jobs(&corral, "echo", "echo", json!({}));
    let ask = |method: &str, path: &str, key: &str| {
        let headers = [("authorization", key), ("idempotency-key", "same")];
        corral.request(method, path, &headers, "x")
    };
    corral.post("/jobs/echo", "x").problem(401, "missing-key");
    ask("POST", "/jobs/echo", &other).problem(403, "key-not-granted");
    let id = id_of(&ask("POST", "/jobs/echo", &alice));
    let own = format!("/jobs/echo/{id}");
    wait_until("the result", || {
        ask("GET", &format!("{own}/result"), &alice).status == 200
    });
    for (method, path) in [
        ("GET", own.clone()),
        ("GET", format!("{own}/result")),
        ("DELETE", own),
    ] {
        ask(method, &path, &bob).problem(404, "no-job");
    }
    assert_ne!(
        id_of(&ask("POST", "/jobs/echo", &bob)),
        id,
        "keys are the tenant's own"
    );
    assert_eq!(
        ask("GET", "/jobs/echo", &alice).json()["jobs"]
            .as_array()
            .expect("a list")
            .len(),
        1
    );
    let all = corral.cli_json(&["jobs", "echo"]);
    assert_eq!(all["jobs"].as_array().expect("a list").len(), 2);
    // A job of a key that is gone does not run.
    corral.cli_output(&["pause", "echo"]);
    let headers = [("authorization", &*alice)];
    let id = id_of(&corral.request("POST", "/jobs/echo", &headers, "x"));
    std::fs::write(&keys, "").expect("written");
    corral.signal("HUP");
    wait_until("the reload", || {
        ask("GET", "/jobs/echo", &alice).status == 401
    });
    corral.cli_output(&["resume", "echo"]);
    let dead = wait_for("a dead letter", || {
        let dead = corral.cli_json(&["jobs", "echo", "--state", "dead"]);
        dead["jobs"].as_array().expect("a list").first().cloned()
    });
    assert_eq!(dead["id"], id);
    let error = dead["error"].as_str().expect("an error");
    assert!(error.contains("no longer valid"), "{error}");
}

#[test]
fn paused_jobs_wait_and_go_with_their_deployment() {
    let corral = Corral::start_with_store(&[]);
    deploy_jobs(&corral, "echo", "echo", json!({}));
    corral.cli_output(&["pause", "echo"]);
    let id = send(&corral, "echo", "x");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(status(&corral, "echo", &id)["state"], "waiting");
    corral.cli_output(&["resume", "echo"]);
    wait_for_state(&corral, "echo", &id, "succeeded");
    corral.cli_output(&["remove", "echo"]);
    corral
        .get(&format!("/jobs/echo/{id}"))
        .problem(404, "no-route");
    deploy_jobs(&corral, "echo", "echo", json!({}));
    corral
        .get(&format!("/jobs/echo/{id}"))
        .problem(404, "no-job");
    // Without `jobs` it takes none.
    deploy_plugin(&corral, "echo", "misbehave", json!({}));
    corral.post("/jobs/echo", "x").problem(404, "no-jobs");
}

#[test]
fn paths_of_jobs_belong_to_the_host() {
    let corral = Corral::start_with_store(&[]);
    let digest = upload(&corral, &artifacts::component("misbehave"));
    for route in ["/jobs", "/jobs/echo"] {
        let refused = try_deploy(&corral, &manifest("a", &digest, json!({"routes": [route]})));
        let detail = refused.problem(422, "invalid-manifest");
        assert!(detail.contains("reserved for jobs"), "{detail}");
    }
    deploy_jobs(&corral, "echo", "echo", json!({}));
    deploy_plugin(&corral, "all", "misbehave", json!({"routes": ["/"]}));
    assert_eq!(
        corral.get("/jobs/unknown/ok").body,
        "ok",
        "a plugin at / gets the rest"
    );
    send(&corral, "echo", "x");
    corral.get("/jobs/echo/1/2").problem(404, "no-route");
    let wrong = corral.request("DELETE", "/jobs/echo", &[], "");
    wrong.problem(405, "method-not-allowed");
    corral
        .get("/jobs/echo?state=odd")
        .problem(400, "invalid-query");
}

#[test]
fn shutdown_waits_for_jobs_and_returns_the_rest() {
    let store = scratch_dir();
    let mut corral = Corral::start_in(&store, &["--grace-period", "300"]);
    deploy_plugin(&corral, "sums", "generate", json!({"jobs": {}}));
    let sum = distinct_sums(1)[0];
    let id = send(&corral, "sums", &sum.long_request(1500).to_string());
    // A delayed test may find that it has ended.
    wait_until("its start", || {
        status(&corral, "sums", &id)["state"] != "waiting"
    });
    corral.shut_down();
    let mut corral = Corral::start_in(&store, &["--grace-period", "0.2"]);
    let ended = status(&corral, "sums", &id);
    assert_eq!(
        (&ended["state"], &ended["attempts"]),
        (&json!("succeeded"), &json!(1))
    );
    let text = result(&corral, "sums", &id).json()["text"].to_string();
    assert!(text.contains(&sum.answer()), "{text}");
    // One that does not end in time runs again, and its attempt does not count.
    deploy_jobs(&corral, "slow", "sleeper", json!({"attempts": 1}));
    let id = send(&corral, "slow", "x");
    wait_for_state(&corral, "slow", &id, "running");
    corral.signal("TERM");
    corral.wait();
    let corral = Corral::start_in(&store, &[]);
    let again = wait_for_state(&corral, "slow", &id, "running");
    assert_eq!(again["attempts"], 1);
    corral.cli_output(&["jobs", "slow", "--cancel", &id]);
    corral.wait_until_idle();
}

/// Jobs as a server lists them after each start.
#[derive(Default)]
struct SeenJobs {
    /// Finished jobs by id, as they were seen first.
    finished: BTreeMap<String, Value>,
    /// Jobs that had not finished when a server was killed.
    unfinished: usize,
}

impl SeenJobs {
    /// Asserts that no finished job ran again or was lost.
    fn check(&mut self, corral: &Corral) {
        let list = corral.cli_json(&["jobs", "sums", "-n", "1000"]);
        let jobs = list["jobs"].as_array().expect("a list").iter();
        let jobs: BTreeMap<_, _> = jobs
            .map(|job| (job["id"].as_str().expect("an id"), job))
            .collect();
        for (id, first) in &self.finished {
            assert_eq!(jobs.get(&**id), Some(&first), "a finished job ran again");
        }
        for (id, job) in jobs {
            match job["state"].as_str() {
                Some("succeeded") => drop(self.finished.insert(id.to_owned(), job.clone())),
                Some("waiting" | "running") => self.unfinished += 1,
                _ => panic!("{job}"),
            }
        }
    }
}

/// Sends `count` jobs to a server that is killed `kills` times at random moments. Each job succeeds once.
fn survive_kills(count: usize, kills: usize) {
    let store = scratch_dir();
    let mut random = ChaCha8Rng::seed_from_u64(seed());
    let sums = distinct_sums(count);
    // One at a time, so that some are unfinished at most kills.
    let jobs = json!({"queued": 10_000, "concurrency": 1});
    deploy_plugin(
        &Corral::start_bare(&store),
        "sums",
        "generate",
        json!({ "jobs": jobs }),
    );
    let mut ids: Vec<String> = Vec::new();
    let mut seen = SeenJobs::default();
    for kill in 0..=kills {
        let corral = Corral::start_bare(&store);
        seen.check(&corral);
        let target = (kill + 1) * count / (kills + 1);
        let moment = Duration::from_millis(random.random_range(0..60));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                while let Some(sum) = sums[..target].get(ids.len()) {
                    let body = json!({"prompt": sum.question(), "max_tokens": 20});
                    match try_send(&corral, ids.len(), &body.to_string()) {
                        Some(id) => ids.push(id),
                        // Killed: the same key again after the restart.
                        None => break,
                    }
                }
            });
            if kill < kills {
                std::thread::sleep(moment);
                corral.signal("KILL");
            }
            client.join().expect("no panic");
        });
        if kill == kills {
            wait_until("the end of all jobs", || {
                let list = corral.cli_json(&["jobs", "sums", "-n", "1"]);
                list["waiting"] == 0 && list["running"] == 0
            });
            let interrupted = seen.unfinished;
            seen.check(&corral);
            assert_eq!(
                (ids.len(), seen.finished.len()),
                (count, count),
                "as many as keys"
            );
            for (id, sum) in ids.iter().zip(&sums) {
                let answer = result(&corral, "sums", id);
                assert_eq!(answer.json()["text"], sum.answer(), "{answer:?}");
                assert_eq!(
                    seen.finished[id]["attempts"], 1,
                    "interruptions do not count"
                );
            }
            assert!(
                interrupted > 0 || kills < 50,
                "no kill came before the end of all jobs"
            );
            println!("{count} jobs, {kills} kills, {interrupted} unfinished jobs at kills");
        }
    }
}

/// Sends a job with an idempotency key. None if the server was killed.
fn try_send(corral: &Corral, number: usize, body: &str) -> Option<String> {
    let url = format!("http://{}/jobs/sums", corral.public());
    let key = format!("job-{number}");
    let sent = ureq::post(&url).header("idempotency-key", &key).send(body);
    let mut answer = sent.ok()?;
    assert_eq!(answer.status(), 202);
    let text = answer.body_mut().read_to_string().ok()?;
    let job: Value = serde_json::from_str(&text).ok()?;
    Some(job["id"].as_str()?.to_owned())
}

#[test]
fn jobs_survive_kills() {
    survive_kills(60, 6);
}

#[test]
#[ignore = "run by make soak: 200 starts of a server"]
fn thousand_jobs_survive_two_hundred_kills() {
    survive_kills(1000, 200);
}
