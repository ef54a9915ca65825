//! Runs jobs on untrusted input in child processes of the same binary, with limits.
//!
//! A parent calls [`ChildProcesses::run`]. The child is the same binary with the hidden command
//! `isolated-job`; its `main` calls [`run_as_child`] before anything else. The input arrives on the child's
//! standard input, and the output leaves on its standard output with a trailer, so that other text there does no
//! harm.
//!
//! A child has an empty environment, limits on memory, CPU time, wall time, files and descriptors, and writes no core
//! dump. On Linux it ends with its parent, opens no sockets, starts no programs or processes (seccomp), and sees only
//! the files of its job (landlock, if the kernel has it). A child over a limit is killed and its permit is free at once.
//!
//! The crate knows neither models nor components.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cancel;
mod child;
mod child_permits;
mod child_pipes;
mod child_processes;
mod error;
mod job;
#[cfg(target_os = "linux")]
mod sandbox;

pub use cancel::Cancel;
pub use child::{ChildJob, Handler, report_progress, run_as_child};
pub use child_processes::{ChildCounters, ChildProcesses};
pub use error::ChildError;
pub use job::{Job, JobLimits};
