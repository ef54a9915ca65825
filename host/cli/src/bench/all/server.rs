//! A server of our own: `corral serve` as a child process, for as long as a bench asks it.

use crate::admin_token;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long it is waited until a server answers: it loads a model and compiles a plugin.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// How long it is waited for the last words of one that was stopped.
const LAST: Duration = Duration::from_secs(5);

/// So many bytes are kept of what it says on standard error, the last ones.
const KEPT: usize = 4096;

/// Within so many bytes of standard output it says where it listens.
const HEAD: u64 = 1 << 16;

/// `corral serve` with these words, which leaves nothing outside `folder`.
pub(super) fn command(corral: &Path, words: &[String], folder: &Path) -> Command {
    let mut command = Command::new(corral);
    command.arg("serve").args(words);
    command.arg("--cache").arg(folder.join("compiled"));
    command.env("TMPDIR", folder);
    // The token is the user's, for servers of theirs.
    command.env_remove(admin_token::VARIABLE);
    command
}

/// A running server; it is stopped when this is dropped. Where this process is killed by a signal it is not.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts one, and waits until it says where it listens, which it does when it answers.
    pub(super) fn start(command: &mut Command, patience: Duration) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the server could not be started: {error}"))?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        // From here on it is stopped, whatever happens.
        let mut server = Self {
            child,
            url: String::new(),
        };
        // Somebody has to read both as long as it runs, or it would wait for room in a pipe.
        let (tell, told) = mpsc::sync_channel(1);
        if let Some(output) = output {
            std::thread::spawn(move || tell_address(output, &tell));
        }
        let said = Arc::new(Mutex::new(Vec::<u8>::new()));
        // Nothing is sent: that the other end is gone tells that all was read.
        let (reading, read) = mpsc::sync_channel::<()>(1);
        if let Some(errors) = errors {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                keep_last(errors, &said);
                drop(reading);
            });
        }
        let problem = match told.recv_timeout(patience) {
            Ok(url) => {
                server.url = url;
                return Ok(server);
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = patience.as_secs();
                format!("the server did not answer within {seconds} s")
            }
            Err(RecvTimeoutError::Disconnected) => "the server ended before it answered".to_owned(),
        };
        server.stop();
        read.recv_timeout(LAST).ok();
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        match said.trim() {
            "" => Err(format!("{problem}, and said nothing")),
            said => Err(format!("{problem}; it said: {said}")),
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

/// Tells the address that stands in what it writes first, and lets go of all that follows.
fn tell_address(mut output: impl Read, tell: &SyncSender<String>) {
    let head = BufReader::new(output.by_ref().take(HEAD));
    let mut lines = head.lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    drop(lines);
    if let Some(address) = address {
        // Fails only if nobody waits any more.
        tell.send(address).ok();
    }
    io::copy(&mut output, &mut io::sink()).ok();
}

/// Reads to the end, and keeps what came last.
fn keep_last(mut errors: impl Read, said: &Mutex<Vec<u8>>) {
    let mut part = [0; 1024];
    loop {
        let count = match errors.read(&mut part) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&part[..count]);
        let surplus = said.len().saturating_sub(KEPT);
        said.drain(..surplus);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Starts what is no server.
    fn start(script: &str, patience: Duration) -> Result<Server, String> {
        Server::start(Command::new("/bin/sh").args(["-c", script]), patience)
    }

    fn runs(process: &str) -> bool {
        let script = format!("kill -0 {process} 2>/dev/null");
        let status = Command::new("/bin/sh").args(["-c", &script]).status();
        status.expect("a shell").success()
    }

    #[test]
    fn a_server_is_stopped_when_nobody_needs_it() {
        let script = "echo route; echo listening on http://127.0.0.1:1; exec sleep 600";
        let server = start(script, PATIENCE).expect("it says where it listens");
        assert_eq!(server.url(), "http://127.0.0.1:1");
        let process = server.child.id().to_string();
        assert!(runs(&process));
        drop(server);
        assert!(!runs(&process));
    }

    #[test]
    fn one_that_never_answers_is_stopped() {
        let problem = start("exec sleep 600", Duration::ZERO).unwrap_err();
        assert!(problem.contains("did not answer within 0 s"), "{problem}");
    }

    #[test]
    fn what_it_said_is_told_and_no_more_than_that() {
        // It closes its output and goes on.
        let script = "head -c 9000 /dev/zero | tr '\\0' x >&2; echo process $$ >&2; \
                      exec >&-; exec sleep 600";
        let problem = start(script, PATIENCE).unwrap_err();
        assert!(problem.starts_with("the server ended before"), "{problem}");
        assert!(problem.len() < 2 * KEPT, "{problem}");
        let (_, process) = problem.rsplit_once("process ").expect("its last words");
        assert!(!runs(process), "{problem}");
    }
}
