//! Runs cargo and other programs for the authoring commands. No program outlives its command.

use crate::Error;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Longest run of a query, and longest wait for the output of a program that has ended.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Most bytes of a query's output.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Most lines of a build's output that are kept.
const MAX_LINES: usize = 4096;

/// A running program; dropping it kills the program.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Both fail only if the program has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a build, whose standard error is the terminal's. Returns its status and those lines of its standard output that
/// contain `text`.
pub(super) async fn run(
    command: &mut Command,
    text: &'static str,
) -> Result<(ExitStatus, Vec<String>), Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = start(command)?;
    let stdout = child.0.stdout.take();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let lines = stdout
            .into_iter()
            .flat_map(|pipe| BufReader::new(pipe).lines());
        let lines = lines.map_while(Result::ok);
        let mut kept = Vec::new();
        // Reads to the end even if no line is kept: a full pipe would block the program.
        for line in lines.filter(|line| line.contains(text)) {
            if kept.len() < MAX_LINES {
                kept.push(line);
            }
        }
        // Fails if nobody waits any more.
        let _ = sender.send(kept);
    });
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    match tokio::time::timeout(QUERY_TIMEOUT, receiver).await {
        Ok(Ok(lines)) => Ok((status, lines)),
        // The program has shown why it failed.
        _ if !status.success() => Ok((status, Vec::new())),
        _ => Err(Error::failed(format!(
            "{program} has ended, but a program that it started keeps its output open, so the output is incomplete; \
             end that program, and build again"
        ))),
    }
}

/// Runs a build whose last argument is the file that it writes, beside `file` for a moment. Returns what it wrote.
pub(super) async fn run_to_file(
    command: &mut Command,
    file: &Path,
    failure: impl Into<String>,
) -> Result<Vec<u8>, Error> {
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    let (status, _) = run(command.arg(&partial), "\0").await?;
    let written = match status.success() {
        true => fs::read(&partial).map_err(Error::context("cannot read what the build wrote")),
        false => Err(Error::failed(failure)),
    };
    let _ = fs::remove_file(&partial);
    written
}

/// Standard output of a short query such as `rustc --version`, if it succeeds in time.
pub(super) fn query(command: &mut Command) -> Option<String> {
    let mut child = start(command.stderr(Stdio::null())).ok()?;
    let stdout = child.0.stdout.take()?;
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.take(MAX_ANSWER_BYTES).read_to_string(&mut text);
        // Fails if nobody waits any more.
        let _ = sender.send(read.map(|_| text));
    });
    let text = receiver.recv_timeout(QUERY_TIMEOUT).ok()?.ok()?;
    // The program has closed its output, so it is about to end.
    child.0.wait().ok()?.success().then_some(text)
}

/// A program of `PATH`.
pub(super) fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|dir| dir.join(program));
    files.find(|file| file.is_file())
}

fn start(command: &mut Command) -> Result<RunningProgram, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::failed(format!(
                "cannot find {program}; install Rust: https://rustup.rs"
            )),
            _ => Error::context(format!("cannot start {program}: {error}"))(error),
        })?;
    Ok(RunningProgram(child))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_successful_answers_count() {
        let shell = |script: &str| query(Command::new("sh").args(["-c", script]));
        assert_eq!(shell("echo a; echo b >&2"), Some("a\n".to_owned()));
        assert_eq!(shell("echo a; exit 1"), None);
        assert_eq!(query(&mut Command::new("/no/such/program")), None);
    }

    #[test]
    fn chosen_lines_are_returned() {
        let runtime = crate::startup::tokio_runtime(1).map_err(|error| error.message(true));
        let mut command = Command::new("sh");
        command.args(["-c", "echo a1; echo b; echo a2; exit 3"]);
        let result = runtime.expect("threads").block_on(run(&mut command, "a"));
        let (status, lines) = result.map_err(|error| error.message(true)).expect("it ran");
        assert_eq!(status.code(), Some(3));
        assert_eq!(lines, ["a1", "a2"]);
    }
}
