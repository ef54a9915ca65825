//! The hidden command that runs a job on untrusted input. See `corral_isolation`.

use corral_engine::{CHECK_MODEL_JOB, check_model_job};
use corral_isolation::{ChildProcesses, Handler, run_as_child};
use corral_runtime::{COMPILE_JOB, compile_job};
use std::process::ExitCode;
use std::sync::OnceLock;

/// The jobs of children.
const HANDLERS: [(&str, Handler); 2] = [
    (CHECK_MODEL_JOB, check_model_job),
    (COMPILE_JOB, compile_job),
];

/// Runs the job of this process if it is a child. A `main` that starts a runtime calls this first.
pub fn run_job() -> Option<ExitCode> {
    run_as_child(&HANDLERS)
}

/// The child processes of this process.
pub(crate) fn children() -> Option<ChildProcesses> {
    static CHILDREN: OnceLock<Option<ChildProcesses>> = OnceLock::new();
    CHILDREN.get_or_init(|| ChildProcesses::new().ok()).clone()
}
