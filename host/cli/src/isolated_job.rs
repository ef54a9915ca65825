//! The hidden command that runs a job on untrusted input. See `corral_isolation`.

use crate::Error;
use corral_engine::{CHECK_MODEL_JOB, DECODE_MEDIA_JOB, check_model_job, decode_media_job};
use corral_isolation::{ChildProcesses, Handler, run_as_child};
use corral_runtime::{COMPILE_JOBS, INITIALIZE_JOB};
use std::process::ExitCode;
use std::sync::OnceLock;

/// The engine's jobs of children.
const ENGINE_JOBS: [(&str, Handler); 2] = [
    (CHECK_MODEL_JOB, check_model_job),
    (DECODE_MEDIA_JOB, decode_media_job),
];

/// Runs the job of this process if it is a child. A `main` that starts a runtime calls this first.
pub fn run_job() -> Option<ExitCode> {
    run_as_child(&[&ENGINE_JOBS[..], &COMPILE_JOBS, &[INITIALIZE_JOB]].concat())
}

/// The child processes of this process.
///
/// # Errors
/// If the path of this binary is unknown, which cannot happen on Linux.
pub fn children() -> Result<ChildProcesses, Error> {
    static CHILDREN: OnceLock<ChildProcesses> = OnceLock::new();
    if let Some(children) = CHILDREN.get() {
        return Ok(children.clone());
    }
    let created = ChildProcesses::new().map_err(Error::context(
        "cannot find this binary, which checks models and compiles plugins in child processes; \
         start corral by its full path",
    ))?;
    Ok(CHILDREN.get_or_init(|| created).clone())
}
