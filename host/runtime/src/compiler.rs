//! Compiles components on low-priority threads, one per core, so that compilation only uses CPU time that
//! serving leaves over.
//!
//! Wasmtime compiles a component's functions on all threads of the rayon pool that calls it.

use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::setpriority_process;
use std::io;

/// Niceness of the threads: about a tenth of the weight of serving threads.
const NICENESS: i32 = 10;

/// The compiler threads.
#[derive(Debug)]
pub(crate) struct Compiler(ThreadPool);

impl Compiler {
    /// Starts the threads. They sleep while there is nothing to compile.
    pub(crate) fn start() -> io::Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .thread_name(|number| format!("corral-compiler-{number}"))
            .start_handler(|_| {
                // On Linux this sets the thread's own priority. If it fails, the thread keeps its priority.
                let _ = setpriority_process(None, NICENESS);
            })
            .build()
            .map_err(io::Error::other)?;
        Ok(Self(pool))
    }

    /// Runs `work` on the threads and waits for it.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.install(work)
    }
}
