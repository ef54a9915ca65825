//! `corral watch` beside a server, until a saved change is served.

use crate::{Corral, wait_for};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// Runs `watch`, a command without the server's address, until `path` answers `body` with `expected` and it has printed a
/// deployment. Returns what it printed.
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
    let stdout = child.stdout.take().expect("piped");
    let lines = Arc::new(Mutex::new(String::new()));
    let printed = Arc::clone(&lines);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            *printed.lock().expect("no reader panics") += &format!("{line}\n");
        }
    });
    wait_for("the changed answer", || {
        (server.post(path, body).body == expected).then_some(())
    });
    let lines = || lines.lock().expect("no reader panics").clone();
    wait_for("the line of the deployment", || {
        lines().contains("deployed revision").then_some(())
    });
    child.kill().expect("a child process");
    child.wait().expect("a child process");
    reader.join().expect("it does not panic");
    lines()
}
