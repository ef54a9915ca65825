//! The admin listener on a unix socket.

use corral_tests::{Corral, Ended, PATIENCE, artifacts, run, scratch_dir};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// `unix:PATH` of a socket in the directory.
fn socket(dir: &Path) -> String {
    format!("unix:{}/admin.sock", dir.display())
}

fn start(dir: &Path) -> Corral {
    let store = dir.join("store");
    let store = store.to_str().expect("ours");
    Corral::start_with(&["--store", store, "--admin", &socket(dir)])
}

/// Runs a command against the socket in the directory.
fn ask(dir: &Path, arguments: &[&str]) -> Ended {
    run([arguments, &["--admin", &socket(dir)]].concat())
}

/// The same; the command must succeed. Returns its output.
fn run_ok(dir: &Path, arguments: &[&str]) -> String {
    let ended = ask(dir, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.stdout
}

#[test]
fn unix_socket_needs_no_token() {
    let dir = scratch_dir();
    let mut corral = start(&dir);
    assert_eq!(corral.admin(), socket(&dir));
    let file = dir.join("admin.sock");
    let there = std::fs::symlink_metadata(&file).expect("a file");
    assert!(there.file_type().is_socket());
    assert_eq!(there.permissions().mode() & 0o777, 0o600);
    assert!(!dir.join("store/admin-token").exists(), "nobody needs one");

    let plugin = artifacts::plugin("misbehave");
    let plugin = plugin.to_str().expect("ours");
    let deploy = ["deploy", plugin, "--name", "a", "--route", "/a"];
    let printed = run_ok(&dir, &deploy);
    assert!(printed.starts_with("deployed revision 1"), "{printed}");
    assert_eq!(run_ok(&dir, &["invoke", "a", "--path", "/a/ok"]), "ok");
    let seen = run_ok(&dir, &["top", "--once", "--json"]);
    let seen: Value = serde_json::from_str(&seen).expect("JSON");
    assert_eq!(seen["models"][0]["model"], "tiny");
    // As metrics scrapers ask, with any host name.
    let mut stream = UnixStream::connect(&file).expect("it listens");
    let request = b"GET /metrics HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\ncorral_ready 1\n"), "{answer}");

    // A second server does not take over the socket.
    let model = artifacts::model();
    let model = model.to_str().expect("ours");
    let another = ["serve", "--model", model, "--listen", "127.0.0.1:0"];
    let refused = ask(&dir, &another);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is in use"), "{refused:?}");
    assert_eq!(run_ok(&dir, &["remove", "a"]), "removed a\n");

    corral.signal("TERM");
    let status = corral.wait(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", corral.stderr());
    assert!(!file.exists(), "it goes with the server");
    let nobody = ask(&dir, &["list"]);
    assert!(
        nobody.stderr.contains("nothing answers at unix:/"),
        "{nobody:?}"
    );
}

#[test]
fn stale_socket_file_is_replaced() {
    let dir = scratch_dir();
    let mut corral = start(&dir);
    corral.signal("KILL");
    corral.wait(PATIENCE);
    let file = dir.join("admin.sock");
    assert!(file.exists(), "nobody could remove it");
    let corral = start(&dir);
    let seen = run_ok(&dir, &["list", "--json"]);
    assert!(seen.contains("/generate"), "{seen}");
    drop(corral);
    // A file that is not a socket is not replaced either.
    std::fs::remove_file(&file).expect("left by a kill");
    std::fs::write(&file, "mine").expect("written");
    let model = artifacts::model();
    let model = model.to_str().expect("ours");
    let another = ["serve", "--model", model, "--listen", "127.0.0.1:0"];
    let refused = ask(&dir, &another);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is not a socket"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "mine");
}
