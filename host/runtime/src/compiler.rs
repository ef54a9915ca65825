//! Turns components into code: in child processes if the configuration says so, else on low-priority threads, one per
//! core, so that compilation only uses CPU time that serving leaves over.
//!
//! Wasmtime compiles a component's functions on all threads of the rayon pool that calls it. While developing, a fast
//! code generator compiles what it can, and another one the rest.

use crate::initialization::isolated::initialize_in_child;
use crate::initialization::{InitializationLimits, Snapshot, initialize};
use crate::isolated_compiler::IsolatedCompiler;
use crate::linker::linker;
use crate::plugin_error::PluginError;
use crate::runtime_config::RuntimeConfig;
use crate::state::State;
use crate::truncate::cause;
use crate::wasm_engine::{CodeGenerator, SetupError, wasm_engine};
use corral_isolation::{ChildCounters, ChildError};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::io;
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

/// Added niceness of the threads: about a tenth of the weight of serving threads. Only on Linux; elsewhere niceness belongs to
/// the process.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// The compiler of the process.
pub(crate) struct Compiler {
    main: WasmEngine,
    /// Compiles what the code generator of `main` cannot.
    fallback: Option<WasmEngine>,
    threads: ThreadPool,
    isolated: Option<IsolatedCompiler>,
}

/// A wasmtime engine with its code generator and the host functions that are linked for it.
pub(crate) struct WasmEngine {
    generator: CodeGenerator,
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<State>,
}

impl WasmEngine {
    fn new(config: &RuntimeConfig, generator: CodeGenerator) -> Result<Self, SetupError> {
        let engine = wasm_engine(config, generator)?;
        let linker = linker(&engine)?;
        Ok(Self {
            generator,
            engine,
            linker,
        })
    }
}

impl Compiler {
    /// Starts the threads. They sleep while there is nothing to compile.
    pub(crate) fn start(
        config: &RuntimeConfig,
        isolated: Option<IsolatedCompiler>,
    ) -> Result<Self, SetupError> {
        let mut generators = CodeGenerator::of(config).iter();
        let first = generators.next().unwrap_or(&CodeGenerator::Optimizing);
        let threads = ThreadPoolBuilder::new()
            .thread_name(|number| format!("corral-compiler-{number}"))
            .start_handler(|_| {
                // If it fails, the thread keeps its priority.
                #[cfg(target_os = "linux")]
                let _ = rustix::process::nice(NICENESS);
            })
            .build()
            .map_err(io::Error::other)?;
        Ok(Self {
            main: WasmEngine::new(config, *first)?,
            fallback: generators
                .next()
                .map(|other| WasmEngine::new(config, *other))
                .transpose()?,
            threads,
            isolated,
        })
    }

    /// The engine that has the instance pool.
    pub(crate) fn main_engine(&self) -> &Engine {
        &self.main.engine
    }

    /// All engines.
    pub(crate) fn engines(&self) -> impl Iterator<Item = &Engine> {
        let engines = std::iter::once(&self.main).chain(&self.fallback);
        engines.map(|wasm| &wasm.engine)
    }

    /// Compiles a component, or reads its code from the cache. Returns what can link and run it, too. Blocks.
    pub(crate) fn compile(
        &self,
        plugin: &str,
        bytes: &[u8],
    ) -> Result<(Component, &WasmEngine), PluginError> {
        let error = match self.compile_by(&self.main, plugin, bytes) {
            Ok(component) => return Ok((component, &self.main)),
            Err(error) => error,
        };
        match &self.fallback {
            Some(fallback) if may_depend_on_generator(&error) => {
                tracing::debug!(plugin, %error, "compiling with the slower compiler");
                let component = self.compile_by(fallback, plugin, bytes)?;
                Ok((component, fallback))
            }
            _ => Err(error),
        }
    }

    fn compile_by(
        &self,
        wasm: &WasmEngine,
        plugin: &str,
        bytes: &[u8],
    ) -> Result<Component, PluginError> {
        if let Some(isolated) = &self.isolated {
            isolated.prepare(&wasm.engine, wasm.generator, plugin, bytes)?;
        }
        let compile = || Component::from_binary(&wasm.engine, bytes);
        self.threads
            .install(compile)
            .map_err(|error| PluginError::Compile {
                plugin: plugin.to_owned(),
                cause: cause(&error),
            })
    }

    /// Initializes a component: see [`crate::initialization`]. Blocks.
    pub(crate) fn initialize(
        &self,
        plugin: &str,
        bytes: &[u8],
        limits: InitializationLimits,
    ) -> Result<Snapshot, PluginError> {
        let snapshot = match &self.isolated {
            Some(isolated) => {
                let (children, cache) = (isolated.children(), isolated.cache());
                initialize_in_child(children, cache, plugin, bytes, limits)
            }
            None => {
                let snapshot = self.threads.install(|| initialize(bytes, limits));
                snapshot.map_err(ChildError::Failed)
            }
        };
        let plugin = plugin.to_owned();
        snapshot.map_err(|cause| match cause {
            ChildError::Failed(cause) => PluginError::Initialize { plugin, cause },
            cause => PluginError::InitializeStopped { plugin, cause },
        })
    }

    /// Counts of child processes, those of other jobs included.
    pub(crate) fn children(&self) -> Option<ChildCounters> {
        let isolated = self.isolated.as_ref()?;
        Some(isolated.children().counters())
    }
}

/// Whether another code generator may compile the component.
fn may_depend_on_generator(error: &PluginError) -> bool {
    match error {
        PluginError::Compile { .. } => true,
        PluginError::CompileStopped { cause, .. } => matches!(cause, ChildError::Crashed { .. }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code generator that compiles a component with this function while developing.
    fn generator(function: &str) -> CodeGenerator {
        let config = RuntimeConfig {
            instances: 1,
            develop: true,
            ..RuntimeConfig::default()
        };
        let compiler = Compiler::start(&config, None).unwrap();
        let text = format!("(component (core module (func $f {function})))");
        let bytes = wat::parse_str(text).unwrap();
        let (component, wasm) = compiler.compile("x", &bytes).unwrap();
        assert!(Engine::same(component.engine(), &wasm.engine));
        wasm.generator
    }

    #[test]
    fn other_generator_compiles_what_the_fast_one_cannot() {
        let fast = match cfg!(target_arch = "x86_64") {
            true => CodeGenerator::Baseline,
            false => CodeGenerator::Unoptimized,
        };
        assert_eq!(generator("(call $f)"), fast);
        assert_eq!(generator("(return_call $f)"), CodeGenerator::Unoptimized);
    }
}
