//! `corral wit`: writes the interface, for tools of any language.
//!
//! The directory is a WIT package with its dependencies in `deps`, as all tools expect it. With `--sync` it leaves out the
//! files that tools without async functions cannot read. No file of the two forms differs: the functions that wait stand
//! in an interface of their own for each.

use super::embedded::files_in;
use super::new::write;
use crate::Error;
use crate::terminal::print;
use clap::Args;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

/// The directory of the WIT in the embedded files.
const EMBEDDED: &str = "sdk/wit";

#[derive(Args, Debug)]
pub struct WitArgs {
    /// Directory to write; files of the same names are replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Leave out WASI 0.3 and all async functions, for tools that cannot read them
    #[arg(long)]
    sync: bool,
}

/// Whether tools without async functions cannot read a file.
fn is_async(path: &str) -> bool {
    path.ends_with("-async.wit") || path.contains("-0.3.")
}

/// Names of the worlds of a file, in its order.
fn worlds(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("world ")?.strip_suffix(" {"))
}

/// Writes the files and prints the worlds.
pub(crate) fn wit(args: &WitArgs) -> Result<ExitCode, Error> {
    let mut names = Vec::new();
    for (path, text) in files_in(EMBEDDED) {
        let file = args.out.join(path);
        let failed = |error| {
            let message = format!("'{}' cannot be written: {error}", file.display());
            Error::context(message)(error)
        };
        if args.sync && is_async(path) {
            // Of an earlier run without `--sync`.
            match fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                _ => continue,
            }
        }
        write(&file, text).map_err(failed)?;
        if path.starts_with("corral-inference") {
            names.extend(worlds(text).filter(|name| !name.starts_with("imports")));
        }
    }
    print(&format!(
        "wrote corral:inference to {}, with WASI and the worlds {}\n",
        args.out.display(),
        names.join(", ")
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_and_dependencies_are_embedded() {
        let files: Vec<_> = files_in(EMBEDDED).map(|(path, _)| path).collect();
        let is_there = |name: &str| files.contains(&name);
        for name in [
            "corral-inference.wit",
            "corral-inference-sync.wit",
            "corral-plugin.wit",
            "deps/wasi-http-0.2.12.wit",
        ] {
            assert!(is_there(name) && !is_async(name), "{name} in {files:?}");
        }
        for name in ["corral-inference-async.wit", "deps/wasi-http-0.3.0.wit"] {
            assert!(is_there(name) && is_async(name), "{name} in {files:?}");
        }
    }
}
