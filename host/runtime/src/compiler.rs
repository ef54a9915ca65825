//! Turns components into code: in child processes if the configuration says so, else on low-priority threads, one per
//! core, so that compilation only uses CPU time that serving leaves over.
//!
//! Wasmtime compiles a component's functions on all threads of the rayon pool that calls it.

use crate::isolated_compiler::IsolatedCompiler;
use crate::plugin_error::PluginError;
use crate::truncate::cause;
use corral_isolation::ChildCounters;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::setpriority_process;
use std::io;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Niceness of the threads: about a tenth of the weight of serving threads.
const NICENESS: i32 = 10;

/// The compiler of the process.
#[derive(Debug)]
pub(crate) struct Compiler {
    engine: Engine,
    threads: ThreadPool,
    isolated: Option<IsolatedCompiler>,
}

impl Compiler {
    /// Starts the threads. They sleep while there is nothing to compile.
    pub(crate) fn start(engine: &Engine, isolated: Option<IsolatedCompiler>) -> io::Result<Self> {
        let threads = ThreadPoolBuilder::new()
            .thread_name(|number| format!("corral-compiler-{number}"))
            .start_handler(|_| {
                // On Linux this sets the thread's own priority. If it fails, the thread keeps its priority.
                let _ = setpriority_process(None, NICENESS);
            })
            .build()
            .map_err(io::Error::other)?;
        Ok(Self {
            engine: engine.clone(),
            threads,
            isolated,
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Compiles a component, or reads its code from the cache. Blocks.
    pub(crate) fn compile(&self, plugin: &str, bytes: &[u8]) -> Result<Component, PluginError> {
        if let Some(isolated) = &self.isolated {
            isolated.prepare(&self.engine, plugin, bytes)?;
        }
        let compile = || Component::from_binary(&self.engine, bytes);
        self.threads
            .install(compile)
            .map_err(|error| PluginError::Compile {
                plugin: plugin.to_owned(),
                cause: cause(&error),
            })
    }

    /// Counts of child processes, those of other jobs included.
    pub(crate) fn children(&self) -> Option<ChildCounters> {
        let isolated = self.isolated.as_ref()?;
        Some(isolated.children().counters())
    }
}
