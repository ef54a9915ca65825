//! `corral watch` beside a server, until a saved change is served.

use crate::{Corral, wait_for};
use std::io::Read;
use std::process::{Command, Stdio};

/// Runs `watch`, a command without the server's address, until `path` answers `body` with `expected`. Returns what it
/// printed.
pub fn watch_until(
    mut watch: Command,
    server: &Corral,
    path: &str,
    body: &str,
    expected: &str,
) -> String {
    watch
        .args(["--admin", server.admin()])
        .env("CORRAL_ADMIN_TOKEN", server.token().expect("a store"))
        .stdout(Stdio::piped());
    let mut child = watch.spawn().expect("the binary starts");
    wait_for("the changed answer", || {
        (server.post(path, body).body == expected).then_some(())
    });
    child.kill().expect("a child process");
    child.wait().expect("a child process");
    let mut printed = String::new();
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_to_string(&mut printed).expect("UTF-8");
    printed
}
