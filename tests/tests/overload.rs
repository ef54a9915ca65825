//! Connections, descriptors, memory or disk run out: the server reports it, serves what it can, and recovers.

use corral_tests::deployments::{deploy, deploy_plugin, digest, manifest, show, upload, variant};
use corral_tests::{
    Corral, Sum, TIMEOUT, Times, artifacts, distinct_sums, scratch_dir, wait_until,
};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// Asks a sum over a new connection from 127.0.0.2, and checks the answer.
fn ask_from_other_address(corral: &Corral, sum: Sum) {
    let mut stream = corral.connect_from("127.0.0.2");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
    let body = json!({"prompt": sum.question(), "max_tokens": 5}).to_string();
    let length = body.len();
    let head = format!(
        "POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    let _ = stream.write_all(&[head, body].concat().into_bytes());
    let mut answer = String::new();
    // The system reports a closed connection in more than one way.
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        answer.contains(&format!("\"{}\"", sum.answer())),
        "{answer}"
    );
}

/// `GET` on the admin listener over a new connection.
fn admin(corral: &Corral, path: &str) -> String {
    let mut stream = TcpStream::connect(corral.admin()).expect("the backlog has room");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

/// Changes a limit of the running server by an option of `prlimit`.
fn set_limit(corral: &Corral, limit: &str) {
    let pid = format!("--pid={}", corral.pid());
    let status = Command::new("prlimit").args([&pid, limit]).status();
    assert!(status.expect("prlimit is there").success(), "{limit}");
}

/// Descriptors that the server has open, by number.
fn descriptors(corral: &Corral) -> Vec<u64> {
    let dir = std::fs::read_dir(format!("/proc/{}/fd", corral.pid())).expect("it runs");
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse().ok()
    };
    dir.filter_map(number).collect()
}

#[test]
fn one_client_leaves_connections_to_others() {
    let corral = Corral::start();
    let ask = |sum: &Sum| ask_from_other_address(&corral, *sum);
    let sums = distinct_sums(100);
    let quiet = Times::of_each(&sums, ask);
    corral.wait_until("none is connected", |metrics| {
        metrics.get("corral_http_connections") == 0.0
    });
    let held = (0..1024).map(|_| TcpStream::connect(corral.public()).expect("accepted"));
    let held: Vec<_> = held.collect();
    let full = "corral_http_terminations_total{reason=\"address-full\"}";
    // It is refused and counted while no more than a quarter of all connections is free.
    let metrics = corral.wait_until("all are accepted", |metrics| {
        metrics.get("corral_http_connections") + metrics.get_or_zero(full) == 1024.0
    });
    assert_eq!(metrics.get("corral_http_connections"), 768.0);
    let mut refused = held.last().expect("one");
    let mut answer = String::new();
    let _ = refused.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("\"too-many-connections\""), "{answer}");
    assert!(answer.contains("\r\nRetry-After: "), "{answer}");
    let log = corral.wait_for_stderr("an address has too many connections");
    assert!(log.contains("--max-connections-per-address"), "{log}");

    Times::of_each(&sums, ask).print(&quiet);
    assert!(admin(&corral, "/metrics").starts_with("HTTP/1.1 200 "));

    drop(held);
    corral.wait_until("all are closed", |metrics| {
        metrics.get("corral_http_connections") == 0.0
    });
    corral.check_sums(2);
}

#[test]
fn few_open_files_allow_few_connections() {
    // The soft limit is raised, so only the hard limit counts.
    let corral = Corral::start_after("ulimit -Sn 32 && ulimit -Hn 64", None, &[]);
    for text in ["the limit of open files is 64", "at most 24 clients"] {
        corral.wait_for_stderr(text);
    }
    corral.check_sums(2);
    // More clients than connections, from addresses that each stay below their limit.
    let held: Vec<_> = (2..10)
        .flat_map(|address| std::iter::repeat_n(format!("127.0.0.{address}"), 5))
        .map(|address| corral.connect_from(&address))
        .collect();
    let metrics = corral.wait_until("all connections are taken", |metrics| {
        metrics.get("corral_http_connections") >= 24.0
    });
    assert_eq!(metrics.get("corral_http_connections"), 24.0);
    assert_eq!(metrics.get("corral_http_accept_errors_total"), 0.0);
    for _ in 0..20 {
        assert!(admin(&corral, "/readyz").starts_with("HTTP/1.1 200 "));
    }
    drop(held);
    corral.check_sums(2);

    let refused = Command::new("sh")
        .args(["-c", "ulimit -n 40 && exec \"$0\" serve --model \"$1\""])
        .arg(artifacts::binary())
        .arg(artifacts::model())
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("needs at least 64"), "{error}");
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn admin_answers_without_free_descriptors() {
    let corral = Corral::start();
    // The first request opens descriptors that stay open.
    corral.check_sums(1);
    let newest = descriptors(&corral).into_iter().max().expect("some");
    // Sixteen descriptors above those that are open now, for clients and for what the server opens meanwhile.
    set_limit(&corral, &format!("--nofile={}:", newest + 17));
    let mut held = Vec::new();
    wait_until("an accept that fails", || {
        held.push(TcpStream::connect(corral.public()).expect("the backlog has room"));
        let metrics = admin(&corral, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
        let failed = metrics
            .lines()
            .find_map(|line| line.strip_prefix("corral_http_accept_errors_total "));
        failed != Some("0")
    });
    // Clients for each descriptor that becomes free.
    held.extend(
        (0..100).map(|_| TcpStream::connect(corral.public()).expect("the backlog has room")),
    );
    for _ in 0..20 {
        assert!(admin(&corral, "/readyz").starts_with("HTTP/1.1 200 "));
        // The public listener tries again in the meantime.
        std::thread::sleep(Duration::from_millis(150));
    }
    corral.wait_for_stderr("cannot accept connections");
    drop(held);
    corral.check_sums(2);
}

#[test]
fn short_memory_refuses_requests() {
    // No machine keeps this much free.
    let corral = Corral::start_with(&["--memory-reserve", "1000000000"]);
    corral.check_sums(1);
    corral.wait_until_idle();
    // A request that runs alone is served. Another one is refused until it ends.
    let running = corral.endless("/generate");
    let answer = corral.post("/generate", json!({"prompt": "1+1="}).to_string());
    answer.check_refused(503, "\"memory-pressure\"");
    assert_eq!(answer.header("retry-after"), Some("5"));
    let metrics = corral.metrics();
    assert_eq!(metrics.get("corral_memory_pressure"), 4.0);
    assert_eq!(metrics.get("corral_memory_requests_refused_total"), 1.0);
    // Probes and the admin listener are not for requests.
    assert_eq!(corral.get("/healthz").status, 200);
    corral.wait_for_stderr("memory is short");
    drop(running);
    corral.wait_until_idle();
    corral.check_sums(1);

    let corral = Corral::start_with(&["--memory-reserve", "0"]);
    corral.check_sums(2);
}

/// With this setup, a write beyond the limit of file sizes fails as on a full disk.
const SIZE_LIMIT_IS_NO_SIGNAL: &str = "trap '' XFSZ";

#[test]
fn full_disk_fails_changes_and_loses_none() {
    let store = scratch_dir();
    let corral = Corral::start_after(SIZE_LIMIT_IS_NO_SIGNAL, Some(&store), &[]);
    deploy_plugin(&corral, "first", "generate", json!({}));
    let check = |corral: &Corral, route: &str| {
        let request = json!({"prompt": "12+7=", "max_tokens": 5});
        assert_eq!(corral.generate_at(route, &request)["text"], "19");
    };
    let pause = |corral: &Corral, paused: bool| {
        let body = json!({"paused": paused}).to_string();
        corral.request_admin("PUT", "/deployments/first/paused", body)
    };
    let component = variant(&artifacts::component("generate"), 1);
    let try_upload = |corral: &Corral| {
        let path = format!("/components/{}", digest(&component));
        corral.request_admin("PUT", &path, &component)
    };
    // The first call makes an image of the plugin's memory, which the limit would count as a file.
    check(&corral, "/first");
    set_limit(&corral, "--fsize=0:");
    for _ in 0..2 {
        for answer in [try_upload(&corral), pause(&corral, true)] {
            answer.problem(500, "store-failed");
            assert!(answer.body.contains("free space"), "{answer:?}");
        }
        check(&corral, "/first");
    }
    assert_eq!(show(&corral, "first")["deployment"]["state"], "serving");

    set_limit(&corral, "--fsize=unlimited:");
    assert_eq!(pause(&corral, true).status, 200);
    corral.get("/first").problem(503, "paused");
    assert_eq!(pause(&corral, false).status, 200);
    deploy_plugin(&corral, "second", "generate", json!({}));
    drop(corral);
    let corral = Corral::start_in(&store, &[]);
    check(&corral, "/first");
    check(&corral, "/second");
}

#[test]
fn full_cache_leaves_deployments_working() {
    let dir = scratch_dir();
    let cache = dir.join("cache");
    let option = cache.to_str().expect("a path in UTF-8");
    let corral = Corral::start_in(&dir.join("store"), &["--cache-dir", option]);
    let deploy_variant = |number: u64| {
        let name = format!("variant-{number}");
        let component = variant(&artifacts::component("generate"), number);
        let manifest = manifest(&name, &upload(&corral, &component), json!({}));
        assert_eq!(deploy(&corral, &manifest), 1);
        let request = json!({"prompt": "12+7=", "max_tokens": 5});
        assert_eq!(
            corral.generate_at(&format!("/{name}"), &request)["text"],
            "19"
        );
    };
    deploy_variant(1);
    assert!(!corral.stderr().contains("compiled code cannot be stored"));
    // A file in place of the directory: nothing can be written to it, as on a full disk.
    std::fs::rename(&cache, dir.join("old")).expect("moved");
    std::fs::write(&cache, "").expect("written");
    deploy_variant(2);
    corral.wait_for_stderr("compiled code cannot be stored");
    std::fs::remove_file(&cache).expect("removed");
    std::fs::rename(dir.join("old"), &cache).expect("moved back");
    let children = || corral.metrics().get("corral_child_processes_started_total");
    let before = children();
    deploy_variant(3);
    assert_eq!(children(), before + 1.0);
    corral.check_sums(2);
}

#[test]
fn full_disk_fails_snapshots_only() {
    let dir = scratch_dir();
    let loops = format!("/loops={}", artifacts::plugin("loops").display());
    let dir = dir.to_str().expect("a path in UTF-8");
    let options = ["--plugin", &loops, "--snapshot-dir", dir];
    let corral = Corral::start_after(SIZE_LIMIT_IS_NO_SIGNAL, None, &options);
    let sum = distinct_sums(1)[0];
    let keep = |name: &str| corral.post("/loops/keep", format!("{name}\n{}", sum.question()));
    assert_eq!(keep("old").body, sum.answer());
    // The first call makes an image of the plugin's memory, which the limit would count as a file.
    corral.check_sums(1);
    set_limit(&corral, "--fsize=0:");
    for name in ["old", "new"] {
        let answer = keep(name);
        answer.check_refused(400, "cannot write");
    }
    corral.check_sums(2);
    // The failed replacement left the old one.
    assert_eq!(corral.post("/loops/kept", "old").body, sum.answer());
    assert_eq!(corral.post("/loops/kept", "new").status, 400);
    set_limit(&corral, "--fsize=unlimited:");
    assert_eq!(keep("new").body, sum.answer());
    assert_eq!(corral.post("/loops/kept", "new").body, sum.answer());
}

#[test]
fn stopped_process_continues_its_requests() {
    let corral = Corral::start_with(&["--io-timeout", "10", "--header-timeout", "10"]);
    let request = json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": 4000});
    let stream = corral.generate_stream(&request);
    let body = json!({"prompt": "12+7=", "max_tokens": 5}).to_string();
    let uploads = (0..8).map(|_| TcpStream::connect(corral.public()).expect("accepted"));
    let mut uploads: Vec<TcpStream> = uploads.collect();
    let (begin, end) = body.split_at(10);
    for upload in &mut uploads {
        upload.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        let head = format!(
            "POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{begin}",
            body.len()
        );
        upload.write_all(head.as_bytes()).expect("sent");
    }
    // The stream may have ended.
    corral.wait_until("all have begun", |metrics| {
        let finished = metrics.get("corral_engine_requests_finished_total");
        metrics.get("corral_http_requests_in_flight") + finished >= 9.0
    });
    corral.signal("STOP");
    // Longer than all time limits. The clients send in time.
    for upload in &mut uploads {
        upload.write_all(end.as_bytes()).expect("sent");
    }
    std::thread::sleep(Duration::from_secs(12));
    corral.signal("CONT");
    for mut upload in uploads {
        let mut answer = String::new();
        upload.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("\"19\""), "{answer}");
    }
    let (texts, last) = stream.texts();
    assert!(!texts.is_empty(), "{last}");
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_http_requests_aborted_total"), 0.0);
    corral.check_sums(2);
}
