//! Moves a job's input and output through the child's pipes until the child closes them or a deadline passes.

use crate::cancel::Cancel;
use crate::error::ChildError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::Child;
use std::time::Instant;

/// Largest output of a child beside what its job may write: text of libraries, and errors.
const SPARE_OUTPUT: usize = 1 << 20;
/// Bytes of standard error that are kept: its end has the reason.
const ERROR_TAIL: usize = 4096;
/// What a child writes when it reports progress.
const PROGRESS: &[u8; 10] = b"\ncorral.p\n";
/// Ends an output, after its status byte and its length.
const TRAILER: &[u8; 8] = b"corral.1";

/// What a child wrote.
#[derive(Debug, Default)]
pub(crate) struct ChildOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The output of a handler, with its trailer.
pub(crate) fn frame(output: &Result<Vec<u8>, String>) -> Vec<u8> {
    let (status, mut frame) = match output {
        Ok(bytes) => (0, bytes.clone()),
        // A text that quotes a file reports no progress.
        Err(text) => (1, text.replace("corral.p\n", "corral.p ").into_bytes()),
    };
    let length = frame.len() as u64;
    frame.push(status);
    frame.extend(length.to_le_bytes());
    frame.extend(TRAILER);
    frame
}

/// Writes a report of progress to the parent.
pub(crate) fn write_progress(mut stdout: impl Write) -> io::Result<()> {
    stdout.write_all(PROGRESS)?;
    stdout.flush()
}

/// Counts the reports of progress in a standard output that grows.
#[derive(Debug, Default)]
struct ProgressReports {
    /// Bytes that were searched.
    searched: usize,
}

impl ProgressReports {
    /// The reports that are complete since the last call.
    fn new_in(&mut self, stdout: &[u8]) -> usize {
        let mut reports = 0;
        while let Some(rest) = stdout.get(self.searched..)
            && let Some(at) = rest
                .windows(PROGRESS.len())
                .position(|some| some == PROGRESS)
        {
            reports += 1;
            self.searched += at + PROGRESS.len();
        }
        // A report may be incomplete.
        self.searched = self
            .searched
            .max((stdout.len() + 1).saturating_sub(PROGRESS.len()));
        reports
    }
}

/// The output in a child's standard output, if it is complete.
pub(crate) fn unframe(stdout: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let rest = stdout.strip_suffix(TRAILER)?;
    let (rest, length) = rest.split_last_chunk::<8>()?;
    let (status, rest) = rest.split_last()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let bytes = rest.get(rest.len().checked_sub(length)?..)?;
    Some(match status {
        0 => Ok(bytes.to_vec()),
        _ => Err(String::from_utf8_lossy(bytes).into_owned()),
    })
}

/// Writes the input and reads both outputs, the first up to some `most` bytes, until the child has closed them. Calls
/// `on_progress` for each report. Returns nothing at the deadline.
pub(crate) fn exchange(
    child: &mut Child,
    input: &[u8],
    most: usize,
    on_progress: &dyn Fn(),
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Option<ChildOutput>, ChildError> {
    let mut stdin = child.stdin.take();
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    for fd in [
        stdin.as_ref().map(AsFd::as_fd),
        stdout.as_ref().map(AsFd::as_fd),
        stderr.as_ref().map(AsFd::as_fd),
    ]
    .into_iter()
    .flatten()
    {
        let flags = fcntl_getfl(fd).map_err(io::Error::from)?;
        fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    }
    let mut output = ChildOutput::default();
    let mut input = input;
    let mut progress = ProgressReports::default();
    while stdout.is_some() || stderr.is_some() {
        if input.is_empty() {
            stdin = None;
        }
        let Some(left) = cancel.wait(deadline)? else {
            return Ok(None);
        };
        let mut fds = Vec::new();
        fds.extend(stdin.iter().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        fds.extend(stdout.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        fds.extend(stderr.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if let Some(pipe) = &mut stdin {
            match pipe.write(input) {
                Ok(count) => input = &input[count..],
                Err(error) if is_retry(&error) => {}
                // The child has enough, or has ended.
                Err(_) => input = &[],
            }
        }
        if read_available(&mut stdout, &mut output.stdout)? {
            stdout = None;
        }
        (0..progress.new_in(&output.stdout)).for_each(|_| on_progress());
        if output.stdout.len() > most.saturating_add(SPARE_OUTPUT) {
            return Err(ChildError::Crashed {
                how: format!("more than {most} bytes of output"),
            });
        }
        if read_available(&mut stderr, &mut output.stderr)? {
            stderr = None;
        }
        let surplus = output.stderr.len().saturating_sub(ERROR_TAIL);
        output.stderr.drain(..surplus);
    }
    Ok(Some(output))
}

/// Reads what is there, at most one buffer. Returns whether the pipe is at its end.
fn read_available(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<bool> {
    let Some(pipe) = pipe else {
        return Ok(false);
    };
    let mut buffer = [0; 64 << 10];
    match pipe.read(&mut buffer) {
        Ok(0) => Ok(true),
        Ok(count) => {
            into.extend_from_slice(&buffer[..count]);
            Ok(false)
        }
        Err(error) if is_retry(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_found_after_other_text() {
        for output in [Ok(b"x".to_vec()), Ok(Vec::new()), Err("no".to_owned())] {
            let mut stdout = b"a library says hello\n".to_vec();
            stdout.extend(frame(&output));
            assert_eq!(unframe(&stdout), Some(output));
            stdout.pop();
            assert_eq!(unframe(&stdout), None, "incomplete");
        }
        assert_eq!(unframe(b""), None);
    }

    #[test]
    fn each_report_of_progress_counts_once() {
        let mut written = b"text".to_vec();
        write_progress(&mut written).unwrap();
        written.extend(b"more\n");
        write_progress(&mut written).unwrap();
        for size in 1..written.len() {
            let mut reports = ProgressReports::default();
            let ends = (size..written.len()).step_by(size).chain([written.len()]);
            let counted: usize = ends.map(|end| reports.new_in(&written[..end])).sum();
            assert_eq!(counted, 2, "in pieces of {size}");
        }
    }
}
