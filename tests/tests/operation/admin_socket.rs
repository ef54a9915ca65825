//! The admin listener on a unix socket.

use corral_tests::{Corral, artifacts, run, scratch_dir, serve};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// `unix:PATH` of a socket in the directory.
fn socket(dir: &Path) -> String {
    format!("unix:{}/admin.sock", dir.display())
}

fn start(dir: &Path) -> Corral {
    Corral::start_in(&dir.join("store"), &["--admin", &socket(dir)])
}

#[test]
fn unix_socket_needs_no_token() {
    let dir = scratch_dir();
    let mut corral = start(&dir);
    assert_eq!(corral.admin(), socket(&dir));
    let file = dir.join("admin.sock");
    let metadata = std::fs::symlink_metadata(&file).expect("a file");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(!dir.join("store/admin-token").exists(), "there is a token");

    let plugin = artifacts::plugin("misbehave");
    let plugin = plugin.to_str().expect("a path in UTF-8");
    let deploy = ["deploy", plugin, "--name", "a", "--route", "/a"];
    let printed = corral.cli_output(&deploy);
    assert!(printed.starts_with("deployed revision 1"), "{printed}");
    assert_eq!(corral.cli_output(&["invoke", "a", "--path", "/a/ok"]), "ok");
    let seen = corral.cli_json(&["top", "--once"]);
    assert_eq!(seen["models"][0]["model"], "tiny");
    // As metrics scrapers ask, with any host name.
    let mut stream = UnixStream::connect(&file).expect("connected");
    let request = b"GET /metrics HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a response");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\ncorral_ready 1\n"), "{answer}");
    // A web page that a browser reaches the socket with names its own host.
    let mut stream = UnixStream::connect(&file).expect("connected");
    let request =
        b"DELETE /deployments/a HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a response");
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");

    // A second server does not take over the socket.
    serve(&["--admin", &socket(&dir)]).check_error(1, &["is in use"]);
    assert_eq!(corral.cli_output(&["remove", "a"]), "removed a\n");

    corral.shut_down();
    assert!(!file.exists(), "the socket is left");
    let ended = run(["list", "--admin", &socket(&dir)]);
    ended.check_error(1, &["nothing answers at unix:/"]);
}

#[test]
fn stale_socket_file_is_replaced() {
    let dir = scratch_dir();
    let mut corral = start(&dir);
    corral.signal("KILL");
    corral.wait();
    let file = dir.join("admin.sock");
    assert!(file.exists());
    let corral = start(&dir);
    let deployments = corral.cli_output(&["list", "--json"]);
    assert!(deployments.contains("/generate"), "{deployments}");
    drop(corral);
    // A file that is not a socket is not replaced.
    std::fs::remove_file(&file).expect("left by the kill");
    std::fs::write(&file, "mine").expect("written");
    serve(&["--admin", &socket(&dir)]).check_error(1, &["is not a socket"]);
    assert_eq!(std::fs::read_to_string(&file).expect("readable"), "mine");
}
