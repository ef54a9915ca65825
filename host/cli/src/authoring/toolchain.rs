//! The compiler for plugins in Rust: the one in `PATH`, if it has the target `wasm32-wasip2`; otherwise Debian's, which builds
//! the standard library from source.
//!
//! The first makes components. The second makes core modules for `wasm32-wasip1`, since Debian has no linker for
//! components; `component` turns them into components.

use super::process::query;
use crate::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-wasip2";
const DEBIAN_TARGET: &str = "wasm32-wasip1";
const DEBIAN_PACKAGES: &str = "rustc-web cargo-web rust-web-src wasi-libc lld-19";
const RUST_HINT: &str = "install Rust: https://rustup.rs";
/// Minor version of the oldest Rust 1 that compiles the SDK.
const MIN_RUST: u32 = 95;
/// Versions of wasm-ld that have --initial-heap, the latest first.
const WASM_LINKERS: std::ops::RangeInclusive<u32> = 18..=40;

/// Environment variables for native code or another compiler, which would break a build for WebAssembly.
const FOREIGN_VARIABLES: [&str; 6] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS",
    "CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS",
];

/// A compiler that can build plugins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Toolchain {
    /// cargo and rustc of `PATH`.
    Path,
    /// Debian's packages, with this linker.
    Debian { linker: PathBuf },
}

/// A tool that authors of plugins need.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Its version or source; `None` if it is missing.
    pub(crate) found: Option<String>,
    /// How to get it.
    pub(crate) hint: String,
}

impl Toolchain {
    /// The compiler for the project in `dir`, in which rustup may choose another version.
    pub(super) fn find(dir: &Path) -> Result<Self, Error> {
        if path_has_target(dir) {
            return Ok(Toolchain::Path);
        }
        debian().map_err(|missing| {
            let has_cargo = query(Command::new("cargo").arg("--version")).is_some();
            Error::failed(no_compiler(has_cargo, &missing))
        })
    }

    /// `cargo build` for WebAssembly.
    pub(super) fn cargo_build(&self) -> Command {
        let program = match self {
            Toolchain::Path => "cargo",
            Toolchain::Debian { .. } => "/usr/bin/cargo",
        };
        let mut command = Command::new(program);
        remove_foreign_variables(&mut command);
        command.arg("build");
        match self {
            Toolchain::Path => command.args(["--target", TARGET]),
            Toolchain::Debian { linker } => {
                let flags = format!(
                    "-C linker={} -C link-self-contained=no -L native=/usr/lib/wasm32-wasi",
                    linker.display()
                );
                command
                    .args(["--target", DEBIAN_TARGET])
                    .args(["-Zbuild-std=std,panic_abort", "-Zbuild-std-features="])
                    .env("RUSTC", "/usr/bin/rustc")
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", flags)
            }
        };
        command
    }

    /// Whether cargo builds core modules, not components.
    pub(super) fn builds_core_modules(&self) -> bool {
        matches!(self, Toolchain::Debian { .. })
    }
}

/// The tools that authors need, for `corral doctor`.
pub(crate) fn tools() -> Vec<Tool> {
    let dir = Path::new(".");
    let cargo = query(Command::new("cargo").arg("--version"));
    let cargo = cargo.or_else(|| query(Command::new("/usr/bin/cargo").arg("--version")));
    let (compiler, hint) = match debian() {
        _ if path_has_target(dir) => (Some(format!("target {TARGET}")), String::new()),
        Ok(_) => (Some("Debian's packages".to_owned()), String::new()),
        Err(missing) => (None, target_hint(&missing)),
    };
    vec![
        Tool {
            name: "cargo",
            found: cargo.map(|version| version.trim().to_owned()),
            hint: RUST_HINT.to_owned(),
        },
        Tool {
            name: "WebAssembly",
            found: compiler,
            hint,
        },
        super::python::tool(),
        super::javascript::tool(),
        super::c::tool(),
        super::go::tool(),
    ]
}

/// The error for an author without a compiler for plugins.
fn no_compiler(has_cargo: bool, missing: &[String]) -> String {
    match has_cargo {
        true => format!(
            "the Rust compiler has no target {TARGET}; {}",
            target_hint(missing)
        ),
        false => format!("cannot find cargo; {RUST_HINT}"),
    }
}

/// How to get the target. `missing` are parts of Debian's compiler.
fn target_hint(missing: &[String]) -> String {
    format!(
        "run 'rustup target add {TARGET}' (Rust 1.{MIN_RUST} or later), or on Debian \
         'apt-get install {DEBIAN_PACKAGES}' (missing: {})",
        missing.join(", ")
    )
}

fn remove_foreign_variables(command: &mut Command) {
    for name in FOREIGN_VARIABLES {
        command.env_remove(name);
    }
}

/// Whether the compiler in `PATH` is recent and has a standard library for the target.
fn path_has_target(dir: &Path) -> bool {
    let rustc = |arguments: &[&str]| query(Command::new("rustc").args(arguments).current_dir(dir));
    let version = rustc(&["--version"]).and_then(|text| minor_version(&text));
    if version.is_none_or(|version| version < MIN_RUST) {
        return false;
    }
    let Some(libraries) = rustc(&["--print", "target-libdir", "--target", TARGET]) else {
        return false;
    };
    let entries = std::fs::read_dir(libraries.trim()).into_iter().flatten();
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("libstd-")
    })
}

/// Debian's compiler, or its missing parts.
fn debian() -> Result<Toolchain, Vec<String>> {
    let mut missing = Vec::new();
    let version = query(Command::new("/usr/bin/rustc").arg("--version"));
    let version = version.and_then(|text| minor_version(&text));
    if version.is_none_or(|version| version < MIN_RUST) {
        missing.push(format!("/usr/bin/rustc of version 1.{MIN_RUST} or later"));
    }
    for (file, what) in [
        ("/usr/bin/cargo", "/usr/bin/cargo"),
        (
            "/usr/lib/rustlib/src/rust/library/std",
            "the source of the standard library",
        ),
        ("/usr/lib/wasm32-wasi/libc.a", "wasi-libc"),
    ] {
        if !Path::new(file).exists() {
            missing.push(what.to_owned());
        }
    }
    let mut linkers = WASM_LINKERS
        .rev()
        .map(|version| PathBuf::from(format!("/usr/bin/wasm-ld-{version}")));
    match linkers.find(|file| file.exists()) {
        Some(linker) if missing.is_empty() => Ok(Toolchain::Debian { linker }),
        Some(_) => Err(missing),
        None => {
            missing.push("wasm-ld of version 18 or later".to_owned());
            Err(missing)
        }
    }
}

/// The minor version in the output of `rustc --version`: 95 of `rustc 1.95.0 (…)`.
fn minor_version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once(" 1.")?;
    rest.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_version_is_read() {
        assert_eq!(
            minor_version("rustc 1.95.0 (59807616e 2026-04-14)"),
            Some(95)
        );
        assert_eq!(minor_version("rustc 1.96.0-nightly"), Some(96));
        assert_eq!(minor_version("rustc"), None);
    }

    #[test]
    fn missing_compiler_is_explained() {
        let missing = ["wasi-libc".to_owned()];
        let error = no_compiler(true, &missing);
        assert!(error.contains("rustup target add wasm32-wasip2"), "{error}");
        assert!(error.contains("(missing: wasi-libc)"), "{error}");
        assert!(no_compiler(false, &missing).contains("cannot find cargo"));
    }

    #[test]
    fn native_flags_do_not_reach_plugins() {
        let debian = Toolchain::Debian {
            linker: "wasm-ld-19".into(),
        };
        for toolchain in [Toolchain::Path, debian] {
            let command = toolchain.cargo_build();
            let removed = |name: &str| {
                command
                    .get_envs()
                    .any(|(key, value)| key == name && value.is_none())
            };
            assert!(
                removed("RUSTFLAGS") && removed("CARGO_BUILD_TARGET"),
                "{toolchain:?}"
            );
        }
    }
}
