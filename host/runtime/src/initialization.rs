//! Pre-initialization: calls a component's export `corral:plugin/initialization` once, and writes a component whose
//! memories and globals begin as that call left them.
//!
//! The call has nothing of the host: each import refuses to be called. So its result depends on the component alone, and
//! holds no secret, random number or time. The written component has the same code, imports and exports.
//!
//! Handles live outside of memory, so the call can make none.

mod imports;
pub(crate) mod isolated;
mod state_access;
#[cfg(test)]
mod tests;

use crate::composition::program::validate;
use crate::runtime_config::TABLE_ELEMENTS;
use crate::truncate::{cause, reason};
use crate::wasm_engine::initialization_engine;
use imports::{HostCall, refuse_imports};
use state_access::StateAccess;
use wasmtime::component::{Component, Linker};
use wasmtime::{Error, ResourceLimiter, Result, Store, Trap};
use wasmtime_wizer::Wizer;

/// The interface, and its function.
const INTERFACE: &str = "corral:plugin/initialization@0.1.0";
const FUNCTION: &str = "initialize";

/// Most instructions of an initialization: some ten seconds.
const MAX_INSTRUCTIONS: u64 = 10_000_000_000;

/// What an initialization did, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initialized {
    /// Instructions that it took. Instances no longer take them.
    pub instructions: u64,
    /// Bytes by which the component grew, with the memory that it wrote.
    pub added_bytes: u64,
}

/// What an initialization may use, and the size of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitializationLimits {
    /// Bytes of all memories together.
    pub(crate) memory: usize,
    /// Bytes of the written component.
    pub(crate) component: usize,
}

/// An initialized component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Instructions that its initialization took.
    pub(crate) instructions: u64,
    /// The component that begins as the initialization left it.
    pub(crate) component: Vec<u8>,
}

impl Snapshot {
    /// The snapshot as bytes.
    pub(crate) fn encode(mut self) -> Vec<u8> {
        self.component.extend(self.instructions.to_le_bytes());
        self.component
    }

    /// The snapshot in these bytes, unless they are too short to be one.
    pub(crate) fn decode(mut bytes: Vec<u8>) -> Option<Self> {
        let (rest, instructions) = bytes.split_last_chunk()?;
        let (length, instructions) = (rest.len(), u64::from_le_bytes(*instructions));
        bytes.truncate(length);
        Some(Self {
            instructions,
            component: bytes,
        })
    }
}

/// Why a component cannot be initialized. The text is a clause for the end of a sentence.
#[derive(Debug, thiserror::Error)]
enum InitializationError {
    #[error("it exports no {INTERFACE}; export it, or deploy it without `initialize`")]
    NotExported,
    #[error("it is not a valid component: {0}; build it anew")]
    Invalid(String),
    #[error("its memory cannot be kept: {0}; deploy it without `initialize`")]
    Unsupported(String),
    #[error(
        "its initialization needs more than the {} MiB of memory that its instances may have; keep less, or raise `memory-mib`",
        .0 >> 20
    )]
    Memory(usize),
    #[error("its initialization failed: {0}")]
    Returned(String),
    #[error(
        "with its memory it has {bytes} bytes, but this host accepts {limit}; keep less, or raise the limit"
    )]
    TooLarge { bytes: usize, limit: usize },
}

/// Initializes a component. Blocks. The error is a text for the component's author.
pub(crate) fn initialize(
    component: &[u8],
    limits: InitializationLimits,
) -> std::result::Result<Snapshot, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| format!("a runtime cannot be started: {error}"))?;
    let snapshot = runtime.block_on(run(component, limits, MAX_INSTRUCTIONS));
    snapshot.map_err(|error| describe(&error))
}

async fn run(
    bytes: &[u8],
    limits: InitializationLimits,
    max_instructions: u64,
) -> Result<Snapshot> {
    let mut wizer = Wizer::new();
    wizer.keep_init_func(true);
    // The same component, with exports that show its memories and globals.
    let (context, instrumented) = wizer.instrument_component(bytes).map_err(|error| {
        Error::new(match validate(bytes) {
            Err(error) => InitializationError::Invalid(error.to_string()),
            Ok(()) => InitializationError::Unsupported(cause(&error)),
        })
    })?;
    let engine = initialization_engine()?;
    let component = Component::from_binary(&engine, &instrumented)?;
    let interface = component.get_export_index(None, INTERFACE);
    let function = interface.and_then(|of| component.get_export_index(Some(&of), FUNCTION));
    let function = function.ok_or_else(|| Error::new(InitializationError::NotExported))?;
    let mut linker = Linker::new(&engine);
    refuse_imports(&mut linker, &component)?;
    let mut store = Store::new(&engine, Memory::at_most(limits.memory));
    store.limiter(|memory| memory);
    store.set_fuel(max_instructions)?;
    // A call is a handle, too.
    store.set_max_component_handles(1);
    let instance = linker.instantiate_async(&mut store, &component).await?;
    let initialize =
        instance.get_typed_func::<(), (std::result::Result<(), String>,)>(&mut store, &function)?;
    let (result,) = initialize.call_async(&mut store, ()).await?;
    result.map_err(|error| Error::new(InitializationError::Returned(error)))?;
    let instructions = max_instructions.saturating_sub(store.get_fuel()?);
    // Reading the state adds a page to each memory.
    *store.data_mut() = Memory::at_most(usize::MAX);
    store.set_fuel(u64::MAX)?;
    store.set_hostcall_fuel(usize::MAX);
    let mut state = StateAccess::new(store, instance);
    let component = wizer.snapshot_component(&context, &mut state).await?;
    state.finish()?;
    if component.len() > limits.component {
        return Err(Error::new(InitializationError::TooLarge {
            bytes: component.len(),
            limit: limits.component,
        }));
    }
    Ok(Snapshot {
        instructions,
        component,
    })
}

/// The error as a clause for the end of a sentence.
fn describe(error: &Error) -> String {
    // Both quote texts of the component.
    if let Some(error) = error.downcast_ref::<InitializationError>() {
        return reason(&error.to_string());
    }
    if let Some(error) = error.downcast_ref::<HostCall>() {
        return reason(&error.to_string());
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => format!(
            "its initialization takes more than {} billion instructions; do less in it",
            MAX_INSTRUCTIONS / 1_000_000_000
        ),
        Some(trap) => format!("its initialization ended with a trap: {trap}"),
        None => format!("its initialization failed: {}", cause(error)),
    }
}

/// Bounds the memories of the instance together.
struct Memory {
    limit: usize,
    used: usize,
}

impl Memory {
    fn at_most(limit: usize) -> Self {
        Self { limit, used: 0 }
    }
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        let used = self.used.saturating_add(desired.saturating_sub(current));
        if used > self.limit {
            // Else a guest would see a failed allocation, and its trap would not say why.
            return Err(Error::new(InitializationError::Memory(self.limit)));
        }
        self.used = used;
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }
}
