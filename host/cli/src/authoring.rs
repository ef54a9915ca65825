//! Commands for authors of plugins: `corral new`, `build`, `watch` and `wit`.
//!
//! A project is a cargo project, an `app.py`, an `app.js`, a `plugin.c` or a `go.mod`, with a `corral.toml`. `build` puts each
//! component beside that file, where `corral deploy` finds it. These commands run the author's cargo, componentize-py, Node.js,
//! C compiler or Go; nothing else of Corral needs them.

mod bindings;
mod build;
mod c;
mod component_encoding;
mod embedded;
mod file_changes;
mod go;
mod javascript;
mod new;
mod process;
mod project;
mod python;
mod toolchain;
mod watch;
mod wit;

pub(crate) use build::{BuildArgs, build};
pub(crate) use new::{NewArgs, new};
pub(crate) use toolchain::{Tool, tools};
pub(crate) use watch::{WatchArgs, watch};
pub(crate) use wit::{WitArgs, wit};
