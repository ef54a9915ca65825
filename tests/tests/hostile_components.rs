//! Components that need too much memory or time to compile, or too many stacks to run. Only their own deployment
//! fails, or waits.

#[path = "../../host/runtime/tests/support/components.rs"]
mod components;

use components::blocked_handler;
use corral_tests::deployments::{deploy, manifest, try_deploy, upload, variant};
use corral_tests::{Corral, SetOnDrop, artifacts, peak_bytes, scratch_dir, wait_until};
use serde_json::json;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Compilations at once.
const COMPILATIONS: usize = 2;
/// Most resident memory of a child, the binary included.
const CHILD_MEMORY: u64 = 1 << 30;
/// Growth of the server after an attack that counts as "given back".
const LEFT_OVER: u64 = 128 << 20;

/// A server with a store, and the store's directory.
fn start() -> (Corral, PathBuf) {
    let dir = scratch_dir();
    let corral = Corral::start_with(&["--store", dir.to_str().expect("UTF-8")]);
    (corral, dir)
}

/// A component of 131 KB whose one function has many locals and loops: each local lives through all loops, so that the
/// compiler's memory grows with the product. `number` makes it unknown to the cache.
fn costly_component(number: usize) -> Vec<u8> {
    let count = 5000 + number;
    let loops: String = (0..count)
        .map(|local| {
            format!(
                "(loop (local.set {local} (i32.add (local.get {local}) (i32.const 1))) \
                 (br_if 0 (local.get {local})))"
            )
        })
        .collect();
    let locals = "i32 ".repeat(count);
    let text = format!("(component (core module (func (export \"f\") (local {locals}) {loops})))");
    wat::parse_str(text).expect("a component")
}

/// Process ids of a server's children.
fn children_of(server: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("there is one").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
        arguments.next() == Some(b"isolated-job")
            && arguments.nth(1) == Some(server.to_string().as_bytes())
    };
    pids.filter(is_child).collect()
}

/// Checks the number and the memory of a server's children until `done` is set.
fn watch_children(server: u32, done: &AtomicBool) {
    let mut peak = 0;
    while !done.load(Ordering::Acquire) {
        let children = children_of(server);
        assert!(children.len() <= COMPILATIONS, "{children:?}");
        peak = children
            .into_iter()
            .filter_map(peak_bytes)
            .fold(peak, u64::max);
        assert!(peak <= CHILD_MEMORY, "{peak} bytes");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("a child took up to {} MiB", peak >> 20);
}

#[test]
fn costly_components_are_refused_others_deploy() {
    let (corral, _dir) = start();
    let before = corral.resident_bytes();
    let done = AtomicBool::new(false);
    let asked = corral.with_neighbors(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| watch_children(corral.pid(), &done));
            let _done = SetOnDrop(&done);
            // Both at once, so that others wait until the first of them ends.
            let uploaded =
                [0, 2].map(|number| (number, upload(&corral, &costly_component(number))));
            let costly = uploaded.map(|(number, digest)| {
                let corral = &corral;
                scope.spawn(move || {
                    let manifest = manifest(&format!("costly-{number}"), &digest, json!({}));
                    // Memory, or on a slow machine the time.
                    let detail = try_deploy(corral, &manifest).problem(422, "compile-limit");
                    assert!(
                        detail.contains("it needs more than")
                            || detail.contains("it takes more than"),
                        "{detail}"
                    );
                    let detail = try_deploy(corral, &manifest).problem(422, "compile-refused");
                    assert!(detail.contains("exceeded its limits"), "{detail}");
                })
            });
            let good = std::fs::read(artifacts::plugin("misbehave")).expect("it is built");
            // The cache has the components of earlier runs.
            let first: u64 = rand::random();
            for number in 0.. {
                let digest = upload(&corral, &variant(&good, first.wrapping_add(number)));
                let name = format!("good-{number}");
                assert_eq!(deploy(&corral, &manifest(&name, &digest, json!({}))), 1);
                assert!(corral.resident_bytes() < before + LEFT_OVER);
                if costly.iter().all(|attack| attack.is_finished()) {
                    break;
                }
            }
        });
    });
    assert!(asked >= 10, "1+1 was answered {asked} times meanwhile");
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_child_processes"), 0.0);
    assert_eq!(metrics.get("corral_child_processes_killed_total"), 2.0);
    assert!(children_of(corral.pid()).is_empty());
    assert!(corral.resident_bytes() < before + LEFT_OVER);
}

#[test]
fn blocked_composition_leaves_stacks_for_neighbors() {
    const STACKS: &str = "corral_plugin_stacks";
    const FINISHED: &str = "corral_engine_requests_finished_total";
    // Each call has a stack for each of its parts and for their caller. They take 11 permits of the instance pool, of
    // which a deployment may hold 224.
    const STACKS_OF_CALLS: f64 = 20.0 * 41.0;
    let (corral, _dir) = start();
    let digest = upload(&corral, &blocked_handler(40));
    deploy(&corral, &manifest("blocked", &digest, json!({})));
    corral.with_neighbors(|| {
        let held = (0..64).map(|_| corral.begin_post("/blocked", ""));
        let held: Vec<TcpStream> = held.collect();
        let before = corral.wait_until("all parts block", |metrics| {
            metrics.get(STACKS) >= STACKS_OF_CALLS
        });
        let after = corral.wait_until("200 requests of neighbors", |metrics| {
            metrics.growth(FINISHED, &before) >= 200.0
        });
        // Those of neighbors count, too.
        let stacks = after.get(STACKS);
        assert!(stacks <= STACKS_OF_CALLS + 64.0, "{stacks} stacks");
        drop(held);
    });
    let metrics = corral.wait_until_idle();
    for (code, count) in metrics.samples("corral_plugin_calls_failed_total") {
        assert_eq!(count, 0.0, "{code}");
    }
}

#[test]
fn known_component_starts_no_child() {
    let (corral, _dir) = start();
    let started = || corral.metrics().get("corral_child_processes_started_total");
    let plugin = std::fs::read(artifacts::plugin("misbehave")).expect("it is built");
    let plugin = variant(&plugin, rand::random());
    let before = started();
    let digest = upload(&corral, &plugin);
    deploy(&corral, &manifest("first", &digest, json!({})));
    assert_eq!(started(), before + 1.0);
    deploy(&corral, &manifest("second", &digest, json!({})));
    assert_eq!(started(), before + 1.0);
    assert_eq!(corral.get("/second/ok").status, 200);
}

#[test]
fn child_ends_with_killed_server() {
    let (mut corral, _dir) = start();
    let server = corral.pid();
    let digest = upload(&corral, &costly_component(1));
    let manifest = manifest("costly", &digest, json!({}));
    let manifest = manifest.to_string().into_bytes();
    std::thread::scope(|scope| {
        let deploying =
            scope.spawn(|| corral.try_request_admin("POST", "/deployments/costly", &manifest));
        corral.wait_until("a child runs", |metrics| {
            metrics.get("corral_child_processes") == 1.0
        });
        // It is counted before its program starts.
        wait_until("the child's program", || children_of(server).len() == 1);
        corral.signal("KILL");
        let response = deploying.join().expect("no panic");
        response.expect_err("the server is killed");
    });
    corral.wait();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !children_of(server).is_empty() {
        assert!(Instant::now() < deadline, "the child outlived its server");
        std::thread::sleep(Duration::from_millis(5));
    }
}
