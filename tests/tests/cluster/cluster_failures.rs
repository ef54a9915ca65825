//! Hosts of a cluster while NATS is away, stalls, is full, has lost or damaged data, or wants credentials; and afterwards.

use corral_tests::cluster::{
    deploy_and_wait, host, host_in, project, version, versioned, wait_for_error, wait_for_version,
};
use corral_tests::deployments::{deploy, digest, show, try_deploy, upload, variant};
use corral_tests::{Corral, Identity, Nats, artifacts, scratch_dir, wait_for, wait_until};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait of a change for a NATS that does not answer: 5 s, and what a busy machine takes.
const STALL_TIME: Duration = Duration::from_secs(20);

#[test]
fn hosts_serve_without_nats_and_converge() {
    let mut nats = Nats::start();
    let a = host(&nats);
    let store = scratch_dir();
    let b = host_in(&store, &nats, &[]);
    deploy_and_wait(&a, &project("x", 1, ""));
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let component = upload(&a, &artifacts::component("misbehave"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                version(&a, "x");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let end = corral_tests::SetOnDrop(&is_over);
        nats.stop();
        a.wait_until("the loss of the connection", |metrics| {
            metrics.get("corral_cluster_connected") == 0.0
        });
        let refused = try_deploy(&a, &versioned("x", &component, 2));
        let detail = refused.problem(503, "cluster-unreachable");
        assert!(detail.contains(&nats.url()), "{detail}");
        for change in [&["pause", "x"][..], &["remove", "x"], &["rollback", "x"]] {
            let refused = a.cli(change);
            refused.check_error(1, &["it serves what it has, and takes no changes"]);
        }
        let list = a.cli_output(&["list"]);
        assert!(list.contains("other hosts are unknown: "), "{list}");
        assert!(list.contains(a.public()), "{list}");
        // A restart without NATS serves the local copy.
        drop(b);
        let b = host_in(&store, &nats, &[]);
        assert_eq!(version(&b, "x"), 1);
        b.cli(&["pause", "x"]).check_error(1, &["takes no changes"]);
        drop(b);

        nats.start_again();
        a.wait_until("the connection", |metrics| {
            metrics.get("corral_cluster_connected") == 1.0
        });
        wait_for("a change", || {
            let answer = try_deploy(&a, &versioned("x", &component, 2));
            match answer.status {
                201 => Some(()),
                // The buckets are opened soon after the connection.
                503 | 504 => None,
                _ => panic!("{answer:?}"),
            }
        });
        // It was away while the change was made.
        let b = host_in(&store, &nats, &[]);
        assert_eq!(version(&b, "x"), 2);
        let before = answered.load(Ordering::Relaxed);
        wait_until("another request", || {
            answered.load(Ordering::Relaxed) > before
        });
        drop(end);
    });
    let refused = "corral_cluster_changes_refused_total{reason=\"nats\"}";
    assert!(a.metrics().get(refused) >= 4.0);
}

#[test]
fn stalled_nats_does_not_stop_serving() {
    let nats = Nats::start();
    let store = scratch_dir();
    let [a, b] = [host(&nats), host_in(&store, &nats, &[])];
    deploy_and_wait(&a, &project("x", 1, ""));
    let component = upload(&a, &artifacts::component("misbehave"));
    let try_change = || {
        let began = Instant::now();
        let answer = try_deploy(&a, &versioned("x", &component, 2));
        assert!(began.elapsed() < STALL_TIME, "{:?}", began.elapsed());
        answer
    };
    nats.signal("STOP");
    let mut tries = 0;
    // Until the host gives the connection up, after 15 s.
    while a.metrics().get("corral_cluster_connected") == 1.0 {
        let refused = try_change();
        assert!(matches!(refused.status, 503 | 504), "{refused:?}");
        assert_eq!([version(&a, "x"), version(&b, "x")], [1, 1]);
        tries += 1;
    }
    assert!(tries > 0, "the connection was lost at once");
    try_change().problem(503, "cluster-unreachable");
    let list = a.cli_output(&["list"]);
    assert!(list.contains("other hosts are unknown: "), "{list}");
    drop(b);
    let b = host_in(&store, &nats, &[]);
    assert_eq!(version(&b, "x"), 1, "it serves its copy");

    nats.signal("CONT");
    wait_for("a change", || {
        let answer = try_deploy(&a, &versioned("x", &component, 2));
        match answer.status {
            201 => Some(()),
            503 | 504 => None,
            _ => panic!("{answer:?}"),
        }
    });
    wait_for_version(&b, "x", 2);
    deploy_and_wait(&b, &project("x", 3, ""));
    assert_eq!([version(&a, "x"), version(&b, "x")], [3, 3]);
}

/// A NATS server with room for this many bytes.
fn small_nats(bytes: usize) -> Nats {
    let config = scratch_dir().join("nats.conf");
    let text = format!("jetstream {{ max_memory_store: 64MB, max_file_store: {bytes} }}\n");
    std::fs::write(&config, text).expect("written");
    Nats::start_with(&["--config", config.to_str().expect("a path in UTF-8")])
}

#[test]
fn full_jetstream_refuses_upload_alone() {
    let component = artifacts::component("misbehave");
    let nats = small_nats(component.len() * 7 / 2);
    let a = host(&nats);
    let mut made = 0;
    let refused = (1..20).find_map(|number| {
        let digest = upload(&a, &variant(&component, number));
        let answer = try_deploy(&a, &versioned("x", &digest, number));
        if answer.status == 201 {
            made = number;
            return None;
        }
        Some(answer)
    });
    let refused = refused.expect("there is room for three");
    let detail = refused.problem(503, "cluster-unreachable");
    assert!(detail.contains("insufficient resources"), "{detail}");
    assert!(made > 0, "there is room for three");
    assert_eq!(version(&a, "x"), made);
    let revisions = show(&a, "x")["revisions"].as_array().map(Vec::len);
    assert_eq!(revisions, Some(made as usize));
    // The part of the component that was uploaded is gone, so that there is room for small changes.
    a.cli_output(&["pause", "x"]);
    a.cli_output(&["resume", "x"]);
    assert_eq!(version(&a, "x"), made);
}

#[test]
fn host_that_joins_full_jetstream_follows_it() {
    let component = artifacts::component("misbehave");
    let store = scratch_dir();
    let alone = Corral::start_bare(&store);
    for number in 1..=4 {
        let name = format!("own{number}");
        let digest = upload(&alone, &variant(&component, number));
        deploy(&alone, &versioned(&name, &digest, number));
    }
    drop(alone);
    let nats = small_nats(component.len() * 5 / 2);
    let a = host(&nats);
    deploy_and_wait(&a, &project("x", 1, ""));
    let b = host_in(&store, &nats, &[]);
    wait_for_version(&b, "x", 1);
    assert_eq!(version(&b, "own4"), 4);
    b.wait_for_stderr("cannot add all local deployments to the cluster");
    // Its uploads may fill NATS for a moment.
    wait_until("a change", || a.cli(&["pause", "x"]).code == Some(0));
    wait_until("the pause", || b.get("/x/env").status == 503);
}

/// Damages the component of version 2 before a host that was away gets it. The host serves version 1 on and reports `error`,
/// until another deploy of the file repairs the store. Returns the whole error, which names the component.
fn refuse_and_repair(damage: impl FnOnce(&Nats, &str), error: &str) -> String {
    let nats = Nats::start();
    let a = host(&nats);
    let store = scratch_dir();
    let b = host_in(&store, &nats, &[]);
    deploy_and_wait(&a, &project("x", 1, ""));
    drop(b);
    let new_digest = upload(&a, &variant(&artifacts::component("misbehave"), 1));
    deploy(&a, &versioned("x", &new_digest, 2));
    damage(&nats, &new_digest);
    let b = host_in(&store, &nats, &[]);
    assert_eq!(version(&b, "x"), 1, "the local copy serves on");
    let status = wait_for_error(&b, &a, "x", error);
    deploy(&a, &versioned("x", &new_digest, 3));
    wait_for_version(&b, "x", 3);
    let error = status["error"].as_str().expect("a text");
    assert!(error.contains(&new_digest), "{error}");
    error.to_owned()
}

#[test]
fn changed_component_is_refused_and_repaired() {
    let other = variant(&artifacts::component("misbehave"), 2);
    let change = |nats: &Nats, digest: &str| nats.replace_component(digest, &other);
    let error = refuse_and_repair(change, "has another digest");
    assert!(error.contains(&digest(&other)), "{error}");
}

#[test]
fn incomplete_component_is_named_and_repaired() {
    refuse_and_repair(Nats::remove_parts, "ended after 0 of ");
}

#[test]
fn newest_copy_wins_after_loss() {
    let mut nats = Nats::start();
    let file = scratch_dir().join("key");
    std::fs::write(&file, "value").expect("written");
    let secret = format!("key=file:{}", file.display());
    let a = host_in(&scratch_dir(), &nats, &["--secret", &secret]);
    let b = host(&nats);
    deploy_and_wait(&a, &project("x", 1, ""));
    let needs_secret = project("x", 2, "[grants]\nsecrets = ['key']");
    a.cli_output(&["deploy", needs_secret.to_str().expect("UTF-8")]);
    wait_for_error(&b, &a, "x", "key");
    // The host that could not apply the last change is the first to write.
    nats.stop();
    a.stop();
    nats.lose_data();
    nats.start_again();
    b.wait_for_stderr("the cluster did not have 'x'; this host has added it");
    a.signal("CONT");
    a.wait_for_stderr("the cluster had an earlier revision of 'x'");
    let c = host_in(&scratch_dir(), &nats, &["--secret", &secret]);
    wait_for_version(&c, "x", 2);
    assert_eq!([version(&a, "x"), version(&b, "x")], [2, 1]);
}

#[test]
fn hosts_restore_what_nats_lost() {
    let mut nats = Nats::start();
    let a = host(&nats);
    deploy_and_wait(&a, &project("x", 1, ""));
    deploy_and_wait(&a, &project("x", 2, ""));
    nats.stop();
    nats.lose_data();
    nats.start_again();
    a.wait_for_stderr("the cluster did not have 'x'; this host has added it");
    let b = host(&nats);
    wait_for_version(&b, "x", 2);
    // Versions have started over.
    deploy_and_wait(&b, &project("x", 3, ""));
    assert_eq!([version(&a, "x"), version(&b, "x")], [3, 3]);
    b.cli_output(&["rollback", "x"]);
    wait_for_version(&a, "x", 2);
}

#[test]
fn hosts_follow_restored_backup() {
    let mut nats = Nats::start();
    let [a, b] = [host(&nats), host(&nats)];
    deploy_and_wait(&a, &project("x", 1, ""));
    nats.stop();
    let backup = nats.back_up();
    nats.start_again();
    for number in 2..=5 {
        wait_until("a change", || {
            let project = project("x", number, "");
            let project = project.to_str().expect("a path in UTF-8");
            a.cli(&["deploy", project]).code == Some(0)
        });
    }
    for host in [&a, &b] {
        wait_for_version(host, "x", 5);
    }
    nats.stop();
    nats.lose_data();
    nats.restore(&backup);
    nats.start_again();
    for host in [&a, &b] {
        wait_for_version(host, "x", 1);
    }
    deploy_and_wait(&b, &project("x", 6, ""));
    assert_eq!([version(&a, "x"), version(&b, "x")], [6, 6]);
}

/// A JSON Web Token of NATS about `subject`, which `issuer` signs.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: Value) -> String {
    let part = |value: Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let subject = subject.public_key();
    let claims = json!({"jti": subject, "iat": 1, "iss": issuer.public_key(), "sub": subject, "name": subject,
                        "nats": nats});
    let head = part(json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let signed = format!("{head}.{}", part(claims));
    let signature = issuer.sign(signed.as_bytes()).expect("a private key");
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// Writes a configuration of NATS that wants credentials, and a user's credentials. Returns their files.
fn write_credentials(dir: &Path) -> [String; 2] {
    let operator = KeyPair::new_operator();
    let [account, system] = [KeyPair::new_account(), KeyPair::new_account()];
    let user = KeyPair::new_user();
    let mut limits = json!({"wildcards": true});
    for limit in [
        "subs", "data", "payload", "imports", "exports", "conn", "leaf",
    ] {
        limits[limit] = json!(-1);
    }
    let without_jetstream = limits.clone();
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        limits[limit] = json!(-1);
    }
    let of_account = |key: &KeyPair, limits: &Value| {
        token(
            &operator,
            key,
            json!({"type": "account", "version": 2, "limits": limits}),
        )
    };
    let config = format!(
        "operator: {}\nresolver: MEMORY\nsystem_account: {}\nresolver_preload: {{\n{}: {}\n{}: {}\n}}\n",
        token(
            &operator,
            &operator,
            json!({"type": "operator", "version": 2})
        ),
        system.public_key(),
        account.public_key(),
        of_account(&account, &limits),
        system.public_key(),
        of_account(&system, &without_jetstream),
    );
    let of_user = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        token(&account, &user, of_user),
        user.seed().expect("a private key"),
    );
    [("nats.conf", config), ("user.creds", credentials)].map(|(name, text)| {
        let file = dir.join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("a path in UTF-8").to_owned()
    })
}

#[test]
fn nats_with_credentials_is_used() {
    let [config, credentials] = write_credentials(&scratch_dir());
    let nats = Nats::start_with(&["--config", &config]);
    let a = host_in(&scratch_dir(), &nats, &["--cluster-creds", &credentials]);
    let printed = deploy_and_wait(&a, &project("x", 1, ""));
    assert!(printed.ends_with("the only host serves it\n"), "{printed}");
    let without = host(&nats);
    let refused = without.cli(&["remove", "x"]);
    refused.check_error(1, &["takes no changes"]);
    assert!(refused.stderr.contains("uthorization"), "{refused:?}");
}

#[test]
fn nats_with_small_messages_is_refused() {
    let config = scratch_dir().join("nats.conf");
    let set_largest = |bytes: usize| {
        std::fs::write(&config, format!("max_payload: {bytes}\n")).expect("written");
    };
    set_largest(256 << 10);
    let mut nats = Nats::start_with(&["--config", config.to_str().expect("a path in UTF-8")]);
    let store = scratch_dir();
    let alone = Corral::start_bare(&store);
    deploy_and_wait(&alone, &project("x", 1, ""));
    drop(alone);
    let a = host_in(&store, &nats, &[]);
    assert_eq!(version(&a, "x"), 1, "it serves its copy");
    a.wait_for_stderr("NATS takes messages of at most 262144 bytes, and Corral needs 528384");
    let refused = a.cli(&["pause", "x"]);
    refused.check_error(1, &["set 'max_payload: 1MB'", "takes no changes"]);
    nats.stop();
    set_largest(1 << 20);
    nats.start_again();
    wait_until("a change", || a.cli(&["pause", "x"]).code == Some(0));
}

#[test]
fn nats_with_tls_and_password_is_used() {
    let dir = scratch_dir();
    let [certificate, key] = Identity::new()
        .write(&dir)
        .map(|path| path.to_str().expect("UTF-8").to_owned());
    let nats = Nats::start_with(&[
        "--tls",
        "--tlscert",
        &certificate,
        "--tlskey",
        &key,
        "--user",
        "corral",
        "--pass",
        "secret",
    ]);
    let url = |password: &str| format!("tls://corral:{password}@localhost:{}", nats.port());
    let start = |url: &str| {
        let options = [
            "--preload",
            "none",
            "--cluster",
            url,
            "--cluster-ca",
            &certificate,
        ];
        Corral::start_in(&scratch_dir(), &options)
    };
    let a = start(&url("secret"));
    let printed = deploy_and_wait(&a, &project("x", 1, ""));
    assert!(printed.ends_with("the only host serves it\n"), "{printed}");
    let wrong = start(&url("wrong"));
    let problem = wrong.cli(&["remove", "x"]);
    problem.check_error(1, &["uthorization"]);
    assert!(!problem.stderr.contains("wrong@"), "{problem:?}");
    assert!(!wrong.stderr().contains("secret"), "{}", wrong.stderr());
}
