//! A job, and how the parent describes it on the child's command line.

use crate::error::ChildError;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The hidden command that makes a process a child.
pub(crate) const COMMAND: &str = "isolated-job";

/// Limits of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// Bytes of private writable memory. Mapped files and reserved address space are free.
    pub memory: u64,
    /// Wall time.
    pub time: Duration,
    /// CPU time of all threads together.
    pub cpu: Duration,
    /// Bytes of a file that the child writes.
    pub file_size: u64,
    /// Bytes of the handler's output.
    pub output: usize,
    /// Added to the server's niceness: with 0 the child competes with serving, with 10 it has a tenth of its weight.
    pub niceness: u8,
}

/// A job for a child.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Name of the handler.
    pub kind: &'static str,
    /// Passed to the handler.
    pub input: &'a [u8],
    /// Files and directories that the child may read. Absolute.
    pub readable: &'a [PathBuf],
    /// Directory that the child may write to. Absolute.
    pub writable: Option<&'a Path>,
    /// Limits of the child.
    pub limits: JobLimits,
}

/// What the child knows of its job before it reads the input.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JobArgs {
    pub kind: String,
    pub parent: u32,
    pub memory: u64,
    pub cpu_seconds: u64,
    pub file_size: u64,
    pub niceness: u8,
    pub readable: Vec<PathBuf>,
    pub writable: Option<PathBuf>,
}

impl JobArgs {
    /// The arguments of a job. Fails if a path is not absolute: the child has another working directory.
    pub fn of(job: &Job<'_>) -> Result<Self, ChildError> {
        let mut paths = job
            .writable
            .into_iter()
            .chain(job.readable.iter().map(PathBuf::as_path));
        if let Some(path) = paths.find(|path| !path.is_absolute()) {
            return Err(ChildError::RelativePath(path.to_owned()));
        }
        Ok(Self {
            kind: job.kind.to_owned(),
            parent: std::process::id(),
            memory: job.limits.memory,
            cpu_seconds: job.limits.cpu.as_secs().max(1),
            file_size: job.limits.file_size,
            niceness: job.limits.niceness,
            readable: job.readable.to_vec(),
            writable: job.writable.map(Path::to_owned),
        })
    }

    /// The arguments in the order that [`JobArgs::parse`] expects.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = vec![COMMAND.into(), self.kind.clone().into()];
        for number in [
            self.parent.into(),
            self.memory,
            self.cpu_seconds,
            self.file_size,
            self.niceness.into(),
        ] {
            args.push(number.to_string().into());
        }
        args.push(self.writable.clone().unwrap_or_default().into());
        args.extend(self.readable.iter().map(|path| path.clone().into()));
        args
    }

    /// Parses the arguments after the program's name. Returns nothing if the process is no child.
    pub fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        if args.next()? != OsStr::new(COMMAND) {
            return None;
        }
        let kind = args.next()?.into_string().ok()?;
        let mut number = || args.next()?.to_str()?.parse::<u64>().ok();
        let parent = u32::try_from(number()?).ok()?;
        let (memory, cpu_seconds, file_size) = (number()?, number()?, number()?);
        let niceness = u8::try_from(number()?).ok()?;
        let writable = args.next().filter(|path| !path.is_empty());
        Some(Self {
            kind,
            parent,
            memory,
            cpu_seconds,
            file_size,
            niceness,
            writable: writable.map(PathBuf::from),
            readable: args.map(PathBuf::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_path_is_refused() {
        let is_accepted = |path: &str| {
            let job = Job {
                kind: "compile",
                input: &[],
                readable: &[path.into()],
                writable: None,
                limits: JobLimits {
                    memory: 0,
                    time: Duration::ZERO,
                    cpu: Duration::ZERO,
                    file_size: 0,
                    output: 0,
                    niceness: 0,
                },
            };
            JobArgs::of(&job).is_ok()
        };
        assert!(is_accepted("/a"));
        assert!(!is_accepted("a"));
    }

    #[test]
    fn arguments_survive_the_command_line() {
        let args = JobArgs {
            kind: "compile".to_owned(),
            parent: 7,
            memory: 1 << 40,
            cpu_seconds: 3,
            file_size: 5,
            niceness: 10,
            readable: vec!["/a b".into(), "c".into()],
            writable: None,
        };
        assert_eq!(JobArgs::parse(args.to_args().into_iter()), Some(args));
        let serve = ["serve", "--model", "x"].map(OsString::from);
        assert_eq!(JobArgs::parse(serve.into_iter()), None);
    }
}
