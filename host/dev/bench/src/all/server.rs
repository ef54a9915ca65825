//! `corral serve` as a child process, for the time of a bench.

use corral_cli::admin_token;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long a server may take to start: it loads a model and compiles a plugin.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(120);

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

/// A running server, stopped on drop, but not when a signal kills this process. Its log goes to stderr.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts a server and waits for its address, which it prints when it is ready.
    pub(super) fn start(command: &mut Command, timeout: Duration) -> Result<Self, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("cannot start the server: {error}"))?;
        let stdout = child.stdout.take();
        // From here on drop stops the child.
        let mut server = Self {
            child,
            url: String::new(),
        };
        let (sender, address) = mpsc::channel();
        // A thread reads all output, or the server would block on a full pipe.
        std::thread::spawn(move || {
            let lines = stdout
                .into_iter()
                .flat_map(|stdout| BufReader::new(stdout).lines());
            for line in lines.map_while(Result::ok) {
                if let Some(url) = line.strip_prefix("listening on ") {
                    // Fails only after the timeout.
                    sender.send(url.to_owned()).ok();
                }
            }
        });
        server.url = address.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                format!("the server was not ready within {} s", timeout.as_secs())
            }
            RecvTimeoutError::Disconnected => "the server ended before it was ready".to_owned(),
        })?;
        Ok(server)
    }

    /// `http://HOST:PORT`.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Starts a shell script as a server.
    fn start(script: &str, timeout: Duration) -> Result<Server, String> {
        Server::start(Command::new("/bin/sh").args(["-c", script]), timeout)
    }

    #[test]
    fn drop_stops_the_server() {
        let script = "echo route; echo listening on http://127.0.0.1:1; exec sleep 600";
        let server = start(script, START_TIMEOUT).expect("an address");
        assert_eq!(server.url(), "http://127.0.0.1:1");
        let is_running = format!("kill -0 {} 2>/dev/null", server.child.id());
        let is_running = || {
            let status = Command::new("/bin/sh").args(["-c", &is_running]).status();
            status.expect("a shell").success()
        };
        assert!(is_running());
        drop(server);
        assert!(!is_running());
    }

    #[test]
    fn server_without_address_is_an_error() {
        let problem = start("exec sleep 600", Duration::ZERO).unwrap_err();
        assert!(problem.contains("was not ready within 0 s"), "{problem}");
        let problem = start("exit 1", START_TIMEOUT).unwrap_err();
        assert!(problem.contains("ended before it was ready"), "{problem}");
    }
}
