//! `corral wit`: writes the interface, for tools of any language.
//!
//! The directory is a WIT package with its dependencies in `deps`, as all tools expect it. With `--sync` it leaves out the
//! files that tools without async functions cannot read. No file of the two forms differs: the functions that wait stand
//! in an interface of their own for each.

use super::build::write_if_changed;
use super::embedded::files_in;
use super::new::write;
use crate::Error;
use crate::terminal::print;
use crate::user_cache::user_cache_dir;
use clap::Args;
use corral_server::deployments::Digest;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wit_bindgen_core::wit_parser::Resolve;

/// Namespace of the packages of Corral.
const NAMESPACE: &str = "corral";
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
    /// Write each package as a component instead, for registries of packages
    #[arg(long, conflicts_with = "sync")]
    binary: bool,
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
    if args.binary {
        return write_binary(&args.out);
    }
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

/// Writes each package in the binary form of WIT, which `wkg` and `wasm-tools` read, and prints the files.
fn write_binary(dir: &Path) -> Result<ExitCode, Error> {
    let mut page = String::new();
    for (package, bytes) in encode_packages(&interface_dir()?)? {
        let file = dir.join(format!("{}.wasm", package.replace([':', '@'], "-")));
        let failed = |error| {
            let message = format!("'{}' cannot be written: {error}", file.display());
            Error::context(message)(error)
        };
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(&file, bytes))
            .map_err(failed)?;
        page += &format!("{package} in {}\n", file.display());
    }
    print(&page)
}

/// The packages of Corral in a directory of WIT, by name.
fn encode_packages(wit: &Path) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::failed(format!("the interface cannot be encoded: {error:#}"))
    };
    let mut resolve = Resolve::default();
    resolve.push_path(wit).map_err(|error| failed(&error))?;
    let packages = resolve.package_names.iter();
    let own = packages.filter(|(name, _)| name.namespace == NAMESPACE);
    own.map(|(name, package)| {
        // Names as in WIT, which tools of all versions know.
        let bytes = wit_component::encode(&resolve, *package, false);
        Ok((name.to_string(), bytes.map_err(|error| failed(&error))?))
    })
    .collect()
}

/// The directory of the interface for tools, with all files, in the user's cache; written at its first use.
pub(super) fn interface_dir() -> Result<PathBuf, Error> {
    let text: String = files_in(EMBEDDED).map(|(_, text)| text).collect();
    cache_dir("wit", text.as_bytes(), files_in(EMBEDDED))
}

/// The same without the files that `--sync` leaves out.
pub(super) fn sync_interface_dir() -> Result<PathBuf, Error> {
    let text: String = sync_files().map(|(_, text)| text).collect();
    cache_dir("wit-sync", text.as_bytes(), sync_files())
}

/// The files for tools without async functions.
pub(super) fn sync_files() -> impl Iterator<Item = (&'static str, &'static str)> {
    files_in(EMBEDDED).filter(|(path, _)| !is_async(path))
}

/// A directory with these files in the user's cache, for each version of `source`.
pub(super) fn cache_dir<'a, Bytes: AsRef<[u8]> + ?Sized + 'a>(
    name: &str,
    source: &[u8],
    files: impl IntoIterator<Item = (&'a str, &'a Bytes)>,
) -> Result<PathBuf, Error> {
    let cache = user_cache_dir().ok_or_else(|| {
        Error::failed(
            "there is no directory for the interface, since neither XDG_CACHE_HOME nor HOME is an absolute path; set one",
        )
    })?;
    let digest = Digest::of(source).to_string();
    let version = digest.trim_start_matches("sha256:").get(..16);
    let dir = cache.join(format!("{name}-{}", version.unwrap_or_default()));
    if dir.is_dir() {
        return Ok(dir);
    }
    let failed = || format!("cannot write to {}", dir.display());
    // It gets its name when it is complete: another process may read it at once.
    let partial = dir.with_extension(format!("{}.partial", std::process::id()));
    for (path, bytes) in files {
        write_if_changed(&partial.join(path), bytes.as_ref()).map_err(Error::context(failed()))?;
    }
    if let Err(error) = fs::rename(&partial, &dir) {
        // Without loss: this process wrote it.
        let _ = fs::remove_dir_all(&partial);
        // Another process may have been faster.
        if !dir.is_dir() {
            return Err(Error::context(failed())(error));
        }
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_packages_decode_to_the_interface() {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, text) in files_in(EMBEDDED) {
            write(&dir.path().join(path), text).expect("written");
        }
        let encoded = encode_packages(dir.path())
            .map_err(|error| error.message(true))
            .expect("encoded");
        let names: Vec<_> = encoded.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        for (name, interface) in [
            ("corral:inference@0.1.0", "inference-async"),
            ("corral:plugin@0.1.0", "templating"),
        ] {
            let (_, bytes) = encoded.iter().find(|(known, _)| known == name).expect(name);
            let Ok(wit_component::DecodedWasm::WitPackage(resolve, package)) =
                wit_component::decode(bytes)
            else {
                panic!("{name} is no package");
            };
            let package = &resolve.packages[package];
            assert_eq!(package.name.to_string(), name);
            assert!(package.interfaces.contains_key(interface), "{interface}");
        }
    }

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
