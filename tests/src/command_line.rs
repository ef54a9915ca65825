//! Runs the binary once, to its end.

use crate::artifacts;
use crate::server::{TIMEOUT, argument};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunOutput {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl RunOutput {
    /// Asserts the exit code 0.
    #[track_caller]
    pub fn check_success(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts this exit code, no output, and one line with an error that contains these texts. Progress may precede
    /// the error.
    pub fn check_error(&self, code: i32, expected: &[&str]) {
        assert_eq!((self.code, &*self.stdout), (Some(code), ""), "{self:?}");
        let error = self.stderr.lines().last().unwrap_or_default();
        let is_error = error.starts_with("corral: ") || error.starts_with("corral-bench: ");
        assert!(is_error, "the last line is no error: {self:?}");
        for text in expected {
            assert!(error.contains(text), "{text:?} is not in {self:?}");
        }
    }
}

/// Runs `corral serve` on free ports with the demo model, unless `arguments` say otherwise.
pub fn serve(arguments: &[&str]) -> RunOutput {
    let model = artifacts::model();
    let model = model.to_str().expect("a path in UTF-8");
    let mut line = vec!["serve"];
    for (option, value) in [
        ("--model", model),
        ("--listen", "127.0.0.1:0"),
        ("--admin", "127.0.0.1:0"),
    ] {
        if !arguments.contains(&option) {
            line.extend([option, value]);
        }
    }
    run([&line, arguments].concat())
}

/// Runs `corral run` with a plugin, the demo model as `tiny`, these options, and these arguments of the plugin.
pub fn run_plugin(plugin: &Path, options: &[&str], arguments: &[&str]) -> RunOutput {
    let mut line: Vec<OsString> = vec!["run".into(), plugin.into(), "--model".into()];
    line.push(argument("tiny", &artifacts::model()));
    // One thread: see `Corral::start`.
    line.extend(["--threads".into(), "1".into(), "--cache-dir".into()]);
    line.push(artifacts::scratch().join("compiled").into());
    line.extend(
        options
            .iter()
            .chain(&["--"])
            .chain(arguments)
            .map(OsString::from),
    );
    run(line)
}

/// Runs `corral` with these arguments. Panics if it takes longer than [`TIMEOUT`].
pub fn run(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> RunOutput {
    run_with(&[], arguments)
}

/// [`run`] with environment variables.
pub fn run_with(
    variables: &[(&str, &str)],
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> RunOutput {
    run_command(
        Command::new(artifacts::binary())
            .args(arguments)
            .envs(variables.iter().copied()),
        TIMEOUT,
    )
}

/// Runs a program with another time limit.
pub(crate) fn run_program(
    program: &Path,
    limit: Duration,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> RunOutput {
    run_command(Command::new(program).args(arguments), limit)
}

/// Runs a command to its end. Kills it with its children and panics if it takes longer than `limit`, or if a child keeps
/// its output open that long.
pub fn run_command(command: &mut Command, limit: Duration) -> RunOutput {
    let mut child = command
        .env_remove("RUST_LOG")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipes = (
        child.stdout.take().expect("piped"),
        child.stderr.take().expect("piped"),
    );
    std::thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(&mut pipes.0));
        let stderr = scope.spawn(|| read_all(&mut pipes.1));
        let started = Instant::now();
        let is_in_time = loop {
            let has_ended = child.try_wait().expect("own child").is_some();
            if has_ended && stdout.is_finished() && stderr.is_finished() {
                break true;
            }
            if started.elapsed() > limit {
                break false;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !is_in_time {
            let group = format!("-{}", child.id());
            let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
            assert!(killed.is_ok_and(|status| status.success()), "kill {group}");
        }
        let ended = RunOutput {
            code: child.wait().expect("own child").code(),
            stdout: stdout.join().expect("no panic"),
            stderr: stderr.join().expect("no panic"),
        };
        assert!(is_in_time, "still running after {limit:?}: {ended:?}");
        ended
    })
}

fn read_all(pipe: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The words of a command line, which are separated by blanks.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A path as text.
pub fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A new, empty directory that no other test uses. A later process of tests removes it.
pub fn scratch_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let scratch = artifacts::scratch();
    if number == 0 {
        remove_leftovers(&scratch);
    }
    let dir = scratch.join(format!("{}-{number}", std::process::id()));
    // May be left over from an earlier process with this id.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

/// Removes the directories of processes that have ended.
fn remove_leftovers(scratch: &Path) {
    for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name
            .split_once('-')
            .and_then(|(id, _)| id.parse::<u32>().ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            // Another process may remove it, too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
