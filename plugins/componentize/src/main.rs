//! Turns core WebAssembly modules, as cargo builds them for `wasm32-wasip1`, into components.
//!
//! `wit-bindgen` stores the world in custom sections of the module. Wasmtime's reactor adapter provides
//! the WASI 0.1 functions of the standard library on top of WASI 0.2. The component is validated before
//! it is written. An unchanged file is not rewritten, so nothing downstream rebuilds.
//!
//! Usage: `corral-componentize OUT_DIR NAME=CORE_MODULE…` writes `OUT_DIR/NAME.wasm` for each.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wit_component::ComponentEncoder;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corral-componentize: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(out_dir) = arguments.next().map(PathBuf::from) else {
        bail!(
            "the output directory is missing; usage: corral-componentize OUT_DIR NAME=CORE_MODULE…"
        );
    };
    fs::create_dir_all(&out_dir)
        .with_context(|| format!("cannot create the directory {}", out_dir.display()))?;
    for argument in arguments {
        let Some((name, module)) = argument.split_once('=') else {
            bail!("the argument is `{argument}`; expected NAME=CORE_MODULE");
        };
        let target = out_dir.join(format!("{name}.wasm"));
        componentize(Path::new(module), &target)
            .with_context(|| format!("cannot turn {module} into a component"))?;
    }
    Ok(())
}

/// Encodes and validates the core module in `module` and writes the component to `target`, unless it is
/// unchanged.
fn componentize(module: &Path, target: &Path) -> Result<()> {
    let core = fs::read(module).context("cannot read it")?;
    let component = encode(&core)?;
    if fs::read(target).is_ok_and(|old| old == component) {
        return Ok(());
    }
    // Rename, so that a server that watches the directory never sees a partial component.
    let partial = target.with_extension(format!("wasm.{}", std::process::id()));
    fs::write(&partial, &component)
        .and_then(|()| fs::rename(&partial, target))
        .with_context(|| format!("cannot write {}", target.display()))?;
    println!(
        "{} ({} KB)",
        target.display(),
        component.len().div_ceil(1024)
    );
    Ok(())
}

/// Encodes a core module and the WASI 0.1 adapter as a component.
fn encode(core: &[u8]) -> Result<Vec<u8>> {
    ComponentEncoder::default()
        .validate(true)
        .module(core)
        .context("the file is not a core module with component metadata")?
        .adapter(
            WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
            WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
        )
        .context("the WASI 0.1 adapter does not fit")?
        .encode()
        .context("the imports and exports do not match the module's world")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module without imports, exports or metadata is an empty component.
    #[test]
    fn empty_module_becomes_a_component() {
        let component = encode(b"\0asm\x01\0\0\0").unwrap();
        // The layer field of the header tells a component from a core module.
        assert_eq!(&component[..8], b"\0asm\x0d\0\x01\0");
    }

    #[test]
    fn other_files_are_rejected() {
        for bytes in [&b""[..], b"\0asm", b"#!/bin/sh\n"] {
            assert!(encode(bytes).is_err());
        }
    }

    #[test]
    fn unchanged_component_is_not_rewritten() {
        let dir = std::env::temp_dir().join(format!("componentize-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (module, target) = (dir.join("core.wasm"), dir.join("out.wasm"));
        fs::write(&module, b"\0asm\x01\0\0\0").unwrap();
        componentize(&module, &target).unwrap();
        let mut permissions = fs::metadata(&target).unwrap().permissions();
        let before = fs::metadata(&target).unwrap().modified().unwrap();
        permissions.set_readonly(true);
        fs::set_permissions(&target, permissions).unwrap();
        componentize(&module, &target).unwrap();
        assert_eq!(fs::metadata(&target).unwrap().modified().unwrap(), before);
        fs::remove_dir_all(&dir).unwrap();
    }
}
