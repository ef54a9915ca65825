//! The child's side: limits itself, reads its job, and writes the output.

use crate::child_pipes::{frame, write_progress};
use crate::job::JobArgs;
use rustix::process::{
    Pid, Resource, Rlimit, getppid, getpriority_process, getrlimit, setpriority_process, setrlimit,
};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Open files of a child.
const OPEN_FILES: u64 = 256;
/// Seconds of CPU time between the soft limit, whose signal names the reason, and the hard limit, which kills.
const CPU_GRACE: u64 = 5;

/// A job as its handler sees it.
#[derive(Debug)]
pub struct ChildJob {
    /// The input.
    pub input: Vec<u8>,
    /// Directory that the child may write to.
    pub writable: Option<PathBuf>,
}

/// Reports to the parent that a job has come further. Reports before the output are counted, nothing else.
pub fn report_progress() {
    // If it fails, the parent has ended, and so does this process.
    let _ = write_progress(io::stdout().lock());
}

/// Does one kind of job. The error is a text for people.
pub type Handler = fn(ChildJob) -> Result<Vec<u8>, String>;

/// Runs the job of this process if it is a child, with the handler of the job's kind. Returns nothing if it is not.
pub fn run_as_child(handlers: &[(&str, Handler)]) -> Option<ExitCode> {
    let args = JobArgs::parse(std::env::args_os().skip(1))?;
    Some(match run(&args, handlers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corral: a child process cannot run its job: {error}");
            ExitCode::FAILURE
        }
    })
}

fn run(args: &JobArgs, handlers: &[(&str, Handler)]) -> io::Result<()> {
    limit(args)?;
    let handler = handlers.iter().find(|(kind, _)| *kind == args.kind);
    let (_, handler) = handler.ok_or_else(|| io::Error::other("its kind is unknown"))?;
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input)?;
    let output = handler(ChildJob {
        input,
        writable: args.writable.clone(),
    });
    let mut stdout = io::stdout().lock();
    stdout.write_all(&frame(&output))?;
    stdout.flush()
}

/// Limits this process, before it sees any input.
fn limit(args: &JobArgs) -> io::Result<()> {
    end_with_parent(args.parent)?;
    let limits = [
        (Resource::Core, 0, 0),
        (Resource::Data, args.memory, 0),
        (Resource::Cpu, args.cpu_seconds, CPU_GRACE),
        (Resource::Fsize, args.file_size, 0),
        (Resource::Nofile, OPEN_FILES, 0),
    ];
    for (resource, limit, grace) in limits {
        // A hard limit of the server itself may be lower, and cannot be raised.
        let inherited = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limits = Rlimit {
            current: Some(limit.min(inherited)),
            maximum: Some(limit.saturating_add(grace).min(inherited)),
        };
        setrlimit(resource, limits)?;
    }
    // The server's, not that of the thread that started the child. If it fails, the child competes with serving for a moment.
    let server = i32::try_from(args.parent).ok().and_then(Pid::from_raw);
    let niceness = getpriority_process(server).unwrap_or(0);
    let _ = setpriority_process(None, niceness + i32::from(args.niceness));
    #[cfg(target_os = "linux")]
    crate::sandbox::enter(&args.readable, args.writable.as_deref())?;
    Ok(())
}

/// Has the kernel kill this process when its parent ends.
fn end_with_parent(parent: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The parent may have ended before.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get());
    match now.and_then(|pid| u32::try_from(pid).ok()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(io::Error::other("its parent has ended")),
    }
}
