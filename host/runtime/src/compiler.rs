//! Where components are compiled: on threads of their own that give way to everything else.
//!
//! Wasmtime compiles the functions of a component on all threads of the pool that it is called in. These
//! are as many as there are cores, at a low priority, so that a deployment takes what serving leaves.

use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::setpriority_process;
use std::io;

/// How nice the threads are: 10 of 19, about a tenth of the weight of those that serve.
const NICENESS: i32 = 10;

/// The threads.
#[derive(Debug)]
pub(crate) struct Compiler(ThreadPool);

impl Compiler {
    /// Starts them. They sleep when there is nothing to compile.
    pub(crate) fn start() -> io::Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .thread_name(|number| format!("corral-compiler-{number}"))
            .start_handler(|_| {
                // On Linux this is the thread's own; where it isn't allowed, it compiles at full speed.
                let _ = setpriority_process(None, NICENESS);
            })
            .build()
            .map_err(io::Error::other)?;
        Ok(Self(pool))
    }

    /// Runs `work` there and waits for it.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.install(work)
    }
}
