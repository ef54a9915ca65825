//! Hosts of a cluster serve the same deployments.

use corral_tests::cluster::{
    deploy_and_wait, host, host_in, project, status_of, version, versioned, wait_for_error,
    wait_for_version,
};
use corral_tests::deployments::{deploy, show, try_deploy, upload};
use corral_tests::{
    Corral, Nats, RELIABLE_SUMS, Response, artifacts, linked_components, scratch_dir, wait_for,
    wait_until,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::thread;

/// Rounds of changes that race.
const RACES: usize = 20;

#[test]
fn change_on_one_host_reaches_all() {
    let nats = Nats::start();
    let [a, b] = [host(&nats), host(&nats)];
    let deployed = deploy_and_wait(&a, &project("one", 1, ""));
    assert_eq!(
        deployed,
        "deployed revision 1: one is serving at /one, traffic 1\nall 2 hosts serve it\n"
    );
    assert_eq!([version(&a, "one"), version(&b, "one")], [1, 1]);
    deploy_and_wait(&b, &project("one", 2, ""));
    assert_eq!([version(&a, "one"), version(&b, "one")], [2, 2]);
    // A new host has all deployments when it is ready.
    let c = host(&nats);
    assert_eq!(version(&c, "one"), 2);

    a.cli_output(&["rollback", "one"]);
    for host in [&b, &c] {
        wait_for_version(host, "one", 1);
    }
    c.cli_output(&["split", "one", "1=1", "2=1"]);
    for host in [&a, &b] {
        wait_for("both revisions", || {
            let traffic = &show(host, "one")["deployment"]["traffic"];
            (traffic.as_array()?.len() == 2).then_some(())
        });
        // Each request takes a revision by chance.
        let mut seen = BTreeSet::new();
        wait_until("requests of both revisions", || {
            seen.insert(version(host, "one"));
            seen.len() == 2
        });
        assert!(seen.into_iter().eq([1, 2]));
    }
    b.cli_output(&["pause", "one"]);
    wait_until("the pause", || a.get("/one/env").status == 503);
    let list = c.cli_output(&["list"]);
    for host in [&a, &b, &c] {
        let mut lines = list.lines();
        let line = lines.find(|line| line.contains(host.public()));
        let line = line.unwrap_or_else(|| panic!("{list}"));
        assert!(line.contains("one"), "{list}");
    }
    wait_until("its status", || {
        let list = c.cli_output(&["list"]);
        list.matches("1=1 2=1 (paused)").count() == 3
    });

    a.cli_output(&["remove", "one"]);
    for host in [&b, &c] {
        wait_until("the removal", || host.get("/one/env").status == 404);
    }
    let again = deploy_and_wait(&b, &project("one", 3, ""));
    assert!(again.starts_with("deployed revision 3: "), "{again}");
    assert_eq!([version(&a, "one"), version(&c, "one")], [3, 3]);
    let metrics = a.metrics();
    assert_eq!(metrics.get("corral_cluster_connected"), 1.0);
    assert_eq!(metrics.get("corral_cluster_deployments_behind"), 0.0);
}

#[test]
fn linked_components_reach_all_hosts() {
    let nats = Nats::start();
    let [a, b] = [host(&nats), host(&nats)];
    linked_components::deploy(&a, "roles", linked_components::TEMPLATE, "");
    let sum = RELIABLE_SUMS[0];
    let request = json!({"prompt": sum.question(), "max_tokens": 60, "settings": "greedy"});
    let answer = wait_for("the deployment", || {
        let answer = b.post("/roles/generate?sampler=any", request.to_string());
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(answer.json()["text"], sum.answer());
}

#[test]
fn one_of_two_racing_changes_wins() {
    let nats = Nats::start();
    let [a, b] = [host(&nats), host(&nats)];
    let component = artifacts::component("misbehave");
    let digests = [&a, &b].map(|host| upload(host, &component));
    deploy(&a, &versioned("race", &digests[0], 0));
    let mut conflicts = 0;
    for round in 1..=RACES as u64 {
        let race = |host: &Corral, number: u64| {
            try_deploy(host, &versioned("race", &digests[0], 2 * round + number))
        };
        let [one, two] = thread::scope(|scope| {
            let racers =
                [(&a, 0), (&b, 1)].map(|(host, number)| scope.spawn(move || race(host, number)));
            racers.map(|racer| racer.join().expect("an answer"))
        });
        let made = |answer: &Response| answer.status == 201;
        assert!(made(&one) || made(&two), "{one:?} {two:?}");
        let winner = if made(&two) { 1 } else { 0 };
        if let Some(lost) = [&one, &two].into_iter().find(|answer| !made(answer)) {
            conflicts += 1;
            let detail = lost.problem(409, "changed-meanwhile");
            assert!(detail.contains("it is now at revision "), "{detail}");
            for host in [&a, &b] {
                wait_for_version(host, "race", 2 * round + winner);
            }
        } else {
            // They did not overlap; the later one serves everywhere.
            wait_until("one version", || {
                let versions =
                    [&a, &b].map(|host| show(host, "race")["deployment"]["traffic"].clone());
                versions[0] == versions[1]
            });
        }
        if conflicts >= 3 {
            break;
        }
    }
    assert!(
        conflicts > 0,
        "no change overlapped another in {RACES} rounds"
    );
    let counted = |host: &Corral| {
        let metrics = host.metrics();
        metrics.get("corral_cluster_changes_refused_total{reason=\"conflict\"}")
    };
    assert_eq!(counted(&a) + counted(&b), f64::from(conflicts));
}

#[test]
fn host_that_cannot_serve_is_named() {
    let nats = Nats::start();
    let secrets = scratch_dir();
    let file = secrets.join("key");
    std::fs::write(&file, "value").expect("written");
    let secret = format!("key=file:{}", file.display());
    let a = host_in(&scratch_dir(), &nats, &["--secret", &secret]);
    let store = scratch_dir();
    let b = host_in(&store, &nats, &[]);
    deploy_and_wait(&a, &project("x", 1, ""));
    let needs_secret = project("x", 2, "[grants]\nsecrets = ['key']");
    let failed = a.cli(&["deploy", needs_secret.to_str().expect("UTF-8"), "--wait"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    for expected in [
        "'x' is deployed, but the host",
        b.public(),
        "cannot serve it",
        "key",
    ] {
        assert!(failed.stderr.contains(expected), "{failed:?}");
    }
    // Each host serves what it can.
    assert_eq!([version(&a, "x"), version(&b, "x")], [2, 1]);
    wait_for_error(&b, &a, "x", "key");
    let list = a.cli_output(&["list"]);
    let line = list.lines().find(|line| line.contains(b.public()));
    assert!(line.is_some_and(|line| line.contains("key")), "{list}");
    assert_eq!(b.metrics().get("corral_cluster_deployments_behind"), 1.0);
    // It still takes other changes.
    deploy_and_wait(&b, &project("y", 1, ""));
    drop(b);
    let b = host_in(&store, &nats, &["--secret", &secret]);
    wait_for_version(&b, "x", 2);
    assert_eq!(version(&b, "y"), 1);
}

#[test]
fn store_of_single_host_joins_cluster() {
    let store = scratch_dir();
    let alone = Corral::start_bare(&store);
    let answer = alone.request_admin("GET", "/cluster", "");
    answer.problem(404, "no-cluster");
    let project = project("x", 7, "");
    let printed = deploy_and_wait(&alone, &project);
    assert_eq!(printed.lines().count(), 1, "there are no other hosts");
    drop(alone);
    let nats = Nats::start();
    let a = host_in(&store, &nats, &[]);
    assert_eq!(version(&a, "x"), 7);
    let b = host(&nats);
    wait_for_version(&b, "x", 7);
}

#[test]
fn stopped_host_leaves_list() {
    let nats = Nats::start();
    let [a, mut b] = [host(&nats), host(&nats)];
    wait_for("both hosts", || status_of(&b, &a));
    b.shut_down();
    assert!(status_of(&b, &a).is_none());
    assert!(deploy_and_wait(&a, &project("x", 1, "")).ends_with("the only host serves it\n"));
}
