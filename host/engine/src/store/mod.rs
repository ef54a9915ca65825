//! Where the state of a sequence goes when it does not stay in the KV cells.
//!
//! A state is what llama.cpp writes out for one sequence: opaque bytes, megabytes of them. Nothing
//! here looks into it, and nothing here knows llama.cpp.
//!
//! - [`spill`] keeps the states of idle sequences in memory and, past a budget, in files that end
//!   with the process. What it loses is computed again: the tokens are kept elsewhere. It is used by
//!   the engine's thread and never makes that thread wait for a disk.
//! - [`snapshot`] keeps named states that outlive the process. Its functions block, so they are
//!   called from other threads. What it took is there after a crash, whole or not at all, and what
//!   was damaged since is found out before anything is made of it.

pub mod snapshot;
pub mod spill;
