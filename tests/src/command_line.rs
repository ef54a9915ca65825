//! Runs the binary once, to its end.

use crate::artifacts;
use crate::server::PATIENCE;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs `corral` with these arguments. Panics if it takes longer than [`PATIENCE`].
pub fn run<I, S>(arguments: I) -> Ended
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    run_within(PATIENCE, arguments)
}

/// [`run`] with another time limit.
pub fn run_within<I, S>(patience: Duration, arguments: I) -> Ended
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    run_program(&artifacts::binary(), patience, arguments)
}

/// [`run_within`] for another program than `corral`.
pub(crate) fn run_program<I, S>(program: &Path, patience: Duration, arguments: I) -> Ended
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let mut child = Command::new(program)
        .args(arguments)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipes = (
        child.stdout.take().expect("piped"),
        child.stderr.take().expect("piped"),
    );
    std::thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(&mut pipes.0));
        let stderr = scope.spawn(|| read_all(&mut pipes.1));
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("own child") {
                break Some(status);
            }
            if started.elapsed() > patience {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if status.is_none() {
            child.kill().expect("own child");
            child.wait().expect("own child");
        }
        let ended = Ended {
            code: status.and_then(|status| status.code()),
            stdout: stdout.join().expect("no panic"),
            stderr: stderr.join().expect("no panic"),
        };
        assert!(
            status.is_some(),
            "still running after {patience:?}: {ended:?}"
        );
        ended
    })
}

fn read_all(pipe: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A new, empty directory that no other test uses.
pub fn scratch_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = artifacts::scratch().join(format!("{}-{number}", std::process::id()));
    // May be left over from an earlier process with this id.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}
