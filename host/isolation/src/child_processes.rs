//! Starts children and classifies their ends.
//!
//! *Invariant*: at most a fixed number of children run, and a call returns after twice its job's time limit at the latest. A
//! child that exceeds a limit is killed with its process group. Texts of a child are shortened, and lose control characters.

use crate::cancel::Cancel;
use crate::child_permits::ChildPermits;
use crate::child_pipes::{ChildOutput, exchange, unframe};
use crate::error::ChildError;
use crate::job::{Job, JobArgs};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Children at once. The server compiles two components at a time, and loads models one by one.
const MAX_CHILDREN: usize = 4;
/// How long a child may take to exit after it has closed its output, or after it is killed.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Most characters of a text from a child.
const MAX_TEXT: usize = 2_000;

/// What a Rust program prints when an allocation fails, and what a C++ program prints.
const OUT_OF_MEMORY: [&str; 3] = [
    "memory allocation of",
    "bad_alloc",
    "Cannot allocate memory",
];

/// Variables that a child keeps: where its shared libraries are.
const KEPT_VARIABLES: [&str; 2] = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"];

/// Variables that a child gets: no debugger when ggml aborts, and no GPUs.
const VARIABLES: [(&str, &str); 5] = [
    ("GGML_NO_BACKTRACE", "1"),
    ("CUDA_VISIBLE_DEVICES", ""),
    ("HIP_VISIBLE_DEVICES", "-1"),
    ("ROCR_VISIBLE_DEVICES", "-1"),
    ("GGML_VK_VISIBLE_DEVICES", ""),
];

/// Starts child processes for jobs, a bounded number at once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ChildProcesses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    program: PathBuf,
    permits: ChildPermits,
    running: AtomicU64,
    started: AtomicU64,
    failed: AtomicU64,
    killed: AtomicU64,
}

/// Counts of children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildCounters {
    /// Children that run now.
    pub running: u64,
    /// Children started.
    pub started: u64,
    /// Children that crashed, or whose job failed.
    pub failed: u64,
    /// Children that exceeded a limit.
    pub killed: u64,
}

impl ChildProcesses {
    /// Children of this binary, whose `main` must call [`run_as_child`](crate::run_as_child) first.
    ///
    /// # Errors
    /// If the path of the binary is unknown.
    pub fn new() -> std::io::Result<Self> {
        // On Linux the running file even if another one has replaced it.
        let program = match cfg!(target_os = "linux") {
            true => PathBuf::from("/proc/self/exe"),
            false => std::env::current_exe()?,
        };
        Ok(Self(Arc::new(Shared {
            program,
            permits: ChildPermits::new(MAX_CHILDREN),
            running: AtomicU64::new(0),
            started: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            killed: AtomicU64::new(0),
        })))
    }

    /// Runs a job and returns its handler's output. Blocks, at most twice as long as the job's time limit.
    ///
    /// # Errors
    /// If the job fails, crashes or exceeds a limit, or if no child can be started.
    pub fn run(&self, job: &Job<'_>) -> Result<Vec<u8>, ChildError> {
        self.run_until(job, &Cancel::default())
    }

    /// [`Self::run`] that calls `on_progress` each time the child reports progress, and can be canceled.
    ///
    /// # Errors
    /// As [`Self::run_until`].
    pub fn run_with_progress(
        &self,
        job: &Job<'_>,
        on_progress: &dyn Fn(),
        cancel: &Cancel,
    ) -> Result<Vec<u8>, ChildError> {
        self.start(job, on_progress, cancel)
    }

    /// [`Self::run`] that another thread can cancel.
    ///
    /// # Errors
    /// As [`Self::run`], and [`ChildError::Canceled`].
    pub fn run_until(&self, job: &Job<'_>, cancel: &Cancel) -> Result<Vec<u8>, ChildError> {
        self.start(job, &|| {}, cancel)
    }

    fn start(
        &self,
        job: &Job<'_>,
        on_progress: &dyn Fn(),
        cancel: &Cancel,
    ) -> Result<Vec<u8>, ChildError> {
        let shared = &*self.0;
        let deadline = Instant::now() + job.limits.time;
        let _permit = shared.permits.acquire(deadline, cancel)?;
        shared.running.fetch_add(1, Ordering::Relaxed);
        let result = shared.run(job, on_progress, cancel);
        shared.running.fetch_sub(1, Ordering::Relaxed);
        match &result {
            Err(ChildError::Memory { .. } | ChildError::Time { .. }) => {
                shared.killed.fetch_add(1, Ordering::Relaxed);
            }
            Err(
                ChildError::Failed(_) | ChildError::Crashed { .. } | ChildError::KilledBySystem,
            ) => {
                shared.failed.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        result
    }

    /// Counts of children.
    pub fn counters(&self) -> ChildCounters {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ChildCounters {
            running: count(&self.0.running),
            started: count(&self.0.started),
            failed: count(&self.0.failed),
            killed: count(&self.0.killed),
        }
    }
}

impl Shared {
    fn run(
        &self,
        job: &Job<'_>,
        on_progress: &dyn Fn(),
        cancel: &Cancel,
    ) -> Result<Vec<u8>, ChildError> {
        let deadline = Instant::now() + job.limits.time;
        let kept = KEPT_VARIABLES
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut child = Command::new(&self.program)
            .args(JobArgs::of(job)?.to_args())
            .env_clear()
            .envs(VARIABLES)
            .envs(kept)
            .current_dir("/")
            // A group of its own, to be killed as a whole.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(ChildError::Start)?;
        self.started.fetch_add(1, Ordering::Relaxed);
        let result = converse(&mut child, job, on_progress, deadline, cancel);
        end(child);
        result
    }
}

/// Gives a child its job and waits for the output.
fn converse(
    child: &mut Child,
    job: &Job<'_>,
    on_progress: &dyn Fn(),
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Vec<u8>, ChildError> {
    let late = || ChildError::Time {
        limit: job.limits.time,
    };
    let output = exchange(
        child,
        job.input,
        job.limits.output,
        on_progress,
        deadline,
        cancel,
    )?;
    let output = output.ok_or_else(late)?;
    let status = wait(child)?.ok_or_else(late)?;
    match unframe(&output.stdout).filter(|_| status.success()) {
        Some(Ok(output)) => Ok(output),
        Some(Err(cause)) if is_out_of_memory(&cause) => Err(memory(job)),
        Some(Err(cause)) => Err(ChildError::Failed(for_logs(&cause))),
        None => Err(classify(job, status, &output)),
    }
}

/// Waits a moment for a child that has closed its pipes or is killed.
fn wait(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + EXIT_TIME;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills and reaps a child, unless it has been reaped.
fn end(mut child: Child) {
    if let Ok(Some(_)) = child.try_wait() {
        return;
    }
    // Both fail only if the child has ended.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.kill();
    if let Ok(None) = wait(&mut child) {
        // It hangs in the kernel, for example on a network's disk. If no thread starts, it stays a zombie.
        let reap = move || child.wait();
        let _ = std::thread::Builder::new().spawn(reap);
    }
}

fn memory(job: &Job<'_>) -> ChildError {
    ChildError::Memory {
        limit: job.limits.memory,
    }
}

fn is_out_of_memory(text: &str) -> bool {
    OUT_OF_MEMORY.iter().any(|sign| text.contains(sign))
}

/// Why a child without a complete output ended.
fn classify(job: &Job<'_>, status: ExitStatus, output: &ChildOutput) -> ChildError {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if is_out_of_memory(&stderr) {
        return memory(job);
    }
    let signal = status.signal();
    if signal == Some(Signal::XCPU.as_raw()) {
        return ChildError::Time {
            limit: job.limits.cpu,
        };
    }
    // Not by this process: a child that it kills is not classified.
    if signal == Some(Signal::KILL.as_raw()) {
        return ChildError::KilledBySystem;
    }
    let end = match (signal, status.code()) {
        (Some(signal), _) => match signal_name(signal) {
            Some(name) => name.to_owned(),
            None => format!("signal {signal}"),
        },
        (None, code) => format!("exit code {}", code.unwrap_or_default()),
    };
    let last_line = stderr.lines().rev().find(|line| !line.trim().is_empty());
    ChildError::Crashed {
        how: match last_line {
            Some(line) => for_logs(&format!("{end}: {}", without_dir(line.trim()))),
            None => end,
        },
    }
}

/// A text from a child, shortened and without control characters.
fn for_logs(text: &str) -> String {
    let mut safe = String::new();
    for (index, char) in text.chars().enumerate() {
        if index == MAX_TEXT {
            safe.push('…');
            break;
        }
        if char.is_control() {
            safe.extend(char.escape_default());
        } else {
            safe.push(char);
        }
    }
    safe
}

/// A line without the directory of the source file that it begins with.
fn without_dir(line: &str) -> &str {
    let first_word = line.split(' ').next().unwrap_or_default();
    let name = first_word.rsplit('/').next().unwrap_or_default();
    &line[first_word.len() - name.len()..]
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::ILL, "SIGILL"),
        (Signal::SEGV, "SIGSEGV"),
    ];
    let name = names.iter().find(|(known, _)| known.as_raw() == signal);
    name.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::{for_logs, without_dir};

    #[test]
    fn text_of_child_is_made_safe() {
        assert_eq!(for_logs("ä\n\u{1b}[2J"), "ä\\n\\u{1b}[2J");
        assert_eq!(for_logs(&"ä".repeat(3_000)), "ä".repeat(2_000) + "…");
    }

    #[test]
    fn source_directory_is_not_shown() {
        for (line, shown) in [
            (
                "/a/b.cpp:3: ASSERT(x / y) failed",
                "b.cpp:3: ASSERT(x / y) failed",
            ),
            ("what():  at", "what():  at"),
            ("", ""),
        ] {
            assert_eq!(without_dir(line), shown);
        }
    }
}
