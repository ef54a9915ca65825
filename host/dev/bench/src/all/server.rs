//! `corral serve` as a child process, for the time of a bench.

use corral_cli::admin_token;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a server may take to start: it loads a model and compiles a plugin.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How long to wait for the output of a stopped server.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes to keep of the end of stderr.
const STDERR_BYTES: usize = 4096;

/// Bytes at the start of stdout that contain the address.
const ADDRESS_BYTES: u64 = 1 << 16;

/// `corral serve` with these arguments, and its files in `dir`.
pub(super) fn command(corral: &Path, arguments: &[String], dir: &Path) -> Command {
    let mut command = Command::new(corral);
    command.arg("serve").args(arguments);
    command.arg("--cache-dir").arg(dir.join("compiled"));
    command.env("TMPDIR", dir);
    // The variable is meant for the user's own servers.
    command.env_remove(admin_token::VARIABLE);
    command
}

/// A running server, stopped on drop, but not when a signal kills this process.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts a server and waits for its address, which it prints when it is ready.
    pub(super) fn start(command: &mut Command, timeout: Duration) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        // From here on drop stops the child.
        let mut server = Self {
            child,
            url: String::new(),
        };
        // Threads read both pipes while it runs, or it would block on a full one.
        let (address_sender, address) = mpsc::sync_channel(1);
        if let Some(stdout) = stdout {
            std::thread::spawn(move || send_address(stdout, &address_sender));
        }
        let output = Arc::new(Mutex::new(Vec::<u8>::new()));
        // Nothing is sent: the sender is dropped after all output was read.
        let (reading, read) = mpsc::sync_channel::<()>(1);
        if let Some(stderr) = stderr {
            let output = Arc::clone(&output);
            std::thread::spawn(move || {
                keep_last(stderr, &output);
                drop(reading);
            });
        }
        let problem = match address.recv_timeout(timeout) {
            Ok(url) => {
                server.url = url;
                return Ok(server);
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = timeout.as_secs();
                format!("the server was not ready within {seconds} s")
            }
            Err(RecvTimeoutError::Disconnected) => {
                "the server ended before it was ready".to_owned()
            }
        };
        server.stop();
        read.recv_timeout(OUTPUT_TIMEOUT).ok();
        let output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let output = String::from_utf8_lossy(&output);
        match output.trim() {
            "" => Err(format!("{problem}, without output")),
            output => Err(format!("{problem}; its output: {output}")),
        }
    }

    /// `http://HOST:PORT`.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn stop(&mut self) {
        // Both fail only if it has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends the address from the first lines of stdout; discards the rest.
fn send_address(mut stdout: impl Read, sender: &SyncSender<String>) {
    let head = BufReader::new(stdout.by_ref().take(ADDRESS_BYTES));
    let mut lines = head.lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    drop(lines);
    if let Some(address) = address {
        // Fails only after the timeout.
        sender.send(address).ok();
    }
    io::copy(&mut stdout, &mut io::sink()).ok();
}

/// Reads stderr to its end and keeps the last bytes.
fn keep_last(mut stderr: impl Read, output: &Mutex<Vec<u8>>) {
    let mut part = [0; 1024];
    loop {
        let count = match stderr.read(&mut part) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.extend_from_slice(&part[..count]);
        let surplus = output.len().saturating_sub(STDERR_BYTES);
        output.drain(..surplus);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Starts a shell script as a server.
    fn start(script: &str, timeout: Duration) -> Result<Server, String> {
        Server::start(Command::new("/bin/sh").args(["-c", script]), timeout)
    }

    fn is_running(process: &str) -> bool {
        let script = format!("kill -0 {process} 2>/dev/null");
        let status = Command::new("/bin/sh").args(["-c", &script]).status();
        status.expect("a shell").success()
    }

    #[test]
    fn drop_stops_the_server() {
        let script = "echo route; echo listening on http://127.0.0.1:1; exec sleep 600";
        let server = start(script, START_TIMEOUT).expect("an address");
        assert_eq!(server.url(), "http://127.0.0.1:1");
        let process = server.child.id().to_string();
        assert!(is_running(&process));
        drop(server);
        assert!(!is_running(&process));
    }

    #[test]
    fn server_without_address_is_stopped() {
        let problem = start("exec sleep 600", Duration::ZERO).unwrap_err();
        assert!(problem.contains("was not ready within 0 s"), "{problem}");
    }

    #[test]
    fn error_contains_end_of_output() {
        // It closes its pipes and keeps running.
        let script = "head -c 9000 /dev/zero | tr '\\0' x >&2; echo process $$ >&2; \
                      exec >&-; exec sleep 600";
        let problem = start(script, START_TIMEOUT).unwrap_err();
        assert!(problem.starts_with("the server ended before"), "{problem}");
        assert!(problem.len() < 2 * STDERR_BYTES, "{problem}");
        let (_, process) = problem.rsplit_once("process ").expect("a process id");
        assert!(!is_running(process), "{problem}");
    }
}
