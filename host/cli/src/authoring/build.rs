//! `corral build`: compiles a project and puts its components beside its `corral.toml`.
//!
//! Every crate of a cargo project with the type `cdylib` is a component, written as `NAME.wasm`, with `-` for `_`.
//! Unchanged files are not written again.

use super::component_encoding;
use super::process::run;
use super::project::Project;
use super::toolchain::Toolchain;
use crate::terminal::print;
use crate::{Error, startup};
use clap::Args;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args, Debug)]
pub struct BuildArgs {
    /// Directory of the project, with a Cargo.toml, an app.py, an app.js, a plugin.c or a go.mod
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// How to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    /// As the project's profile `release` says: small and fast components.
    Release,
    /// Without link-time optimization, and incrementally: fast builds. Prints nothing but errors and warnings if `quiet`.
    Watch { quiet: bool },
}

/// A component of a build, written or unchanged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BuiltComponent {
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
}

/// Builds the project and prints its components.
pub(crate) fn build(args: &BuildArgs) -> Result<ExitCode, Error> {
    let project = Project::open(&args.dir)?;
    let components = startup::block_on(1, project.build(Profile::Release))??;
    let lines = components.iter().map(|component| {
        let file = component.file.file_name().unwrap_or_default();
        let shown = args.dir.join(file);
        let kib = component.bytes.div_ceil(1024);
        format!(
            "{} ({kib} KiB)\n",
            shown.strip_prefix(".").unwrap_or(&shown).display()
        )
    });
    print(&lines.collect::<String>())
}

/// Builds the cargo project in `dir`, an absolute path.
pub(super) async fn build_project(
    dir: &Path,
    toolchain: &Toolchain,
    profile: Profile,
) -> Result<Vec<BuiltComponent>, Error> {
    let mut cargo = toolchain.cargo_build();
    cargo
        .current_dir(dir)
        .args(["--message-format", "json-render-diagnostics"])
        .args(profile.arguments());
    let (status, messages) = run(&mut cargo, "\"compiler-artifact\"").await?;
    if !status.success() {
        return Err(Error::failed("the build failed; cargo shows why above"));
    }
    let modules: Vec<_> = messages
        .iter()
        .filter_map(|message| component_module(message, dir))
        .collect();
    if modules.is_empty() {
        return Err(Error::failed(format!(
            "the project in {} has no component; add to its Cargo.toml: [lib] crate-type = [\"cdylib\"]",
            dir.display()
        )));
    }
    let components = modules.iter().map(|module| {
        let built = fs::read(module).map_err(Error::context("cannot read what cargo built"))?;
        let component = match toolchain.builds_core_modules() {
            true => component_encoding::from_core_module(&built)?,
            false => built,
        };
        BuiltComponent::write(dir.join(component_name(module)), &component)
    });
    components.collect()
}

impl BuiltComponent {
    /// Writes a component, unless the file has it.
    pub(super) fn write(file: PathBuf, component: &[u8]) -> Result<Self, Error> {
        write_if_changed(&file, component)
            .map_err(Error::context(format!("cannot write {}", file.display())))?;
        let bytes = component.len() as u64;
        Ok(Self { file, bytes })
    }
}

impl Profile {
    fn arguments(self) -> Vec<&'static str> {
        match self {
            Profile::Release => vec!["--release"],
            Profile::Watch { quiet } => {
                let mut arguments = vec!["--profile", "watch"];
                for setting in [
                    "profile.watch.inherits='release'",
                    "profile.watch.lto='off'",
                    "profile.watch.codegen-units=16",
                    "profile.watch.incremental=true",
                ] {
                    arguments.extend(["--config", setting]);
                }
                if quiet {
                    arguments.push("--quiet");
                }
                arguments
            }
        }
    }
}

/// The file of a component or core module that cargo's message reports, if it belongs to the project in `dir`.
fn component_module(message: &str, dir: &Path) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let types = message["target"]["crate_types"].as_array()?;
    if !manifest.starts_with(dir) || !types.iter().any(|name| name == "cdylib") {
        return None;
    }
    let files = message["filenames"].as_array()?;
    let mut files = files
        .iter()
        .filter_map(|file| Some(Path::new(file.as_str()?)));
    let wasm = files.find(|file| file.extension().is_some_and(|ending| ending == "wasm"))?;
    Some(wasm.to_owned())
}

/// `a-b.wasm` for `…/a_b.wasm`.
fn component_name(module: &Path) -> String {
    let stem = module.file_stem().unwrap_or_default().to_string_lossy();
    format!("{}.wasm", stem.replace('_', "-"))
}

pub(super) fn write_if_changed(file: &Path, bytes: &[u8]) -> Result<(), std::io::Error> {
    if fs::read(file).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    // Renamed, so that no reader sees a partial file.
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, bytes)?;
    fs::rename(&partial, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn components_are_the_projects_own() {
        let module = |manifest: &str, types: &[&str], file: &str| {
            let message = json!({
                "reason": "compiler-artifact",
                "manifest_path": manifest,
                "target": {"crate_types": types},
                "filenames": ["/t/a.d", file],
            });
            component_module(&message.to_string(), Path::new("/p"))
        };
        let own = module("/p/Cargo.toml", &["cdylib"], "/t/a_b.wasm");
        assert_eq!(own.as_deref(), Some(Path::new("/t/a_b.wasm")));
        assert_eq!(component_name(Path::new("/t/a_b.wasm")), "a-b.wasm");
        let member = module("/p/handler/Cargo.toml", &["cdylib", "rlib"], "/t/c.wasm");
        assert!(member.is_some());
        for (manifest, types, file) in [
            ("/other/Cargo.toml", ["cdylib"], "/t/a.wasm"),
            ("/p/Cargo.toml", ["lib"], "/t/a.wasm"),
            ("/p/Cargo.toml", ["cdylib"], "/t/a.so"),
        ] {
            assert_eq!(module(manifest, &types, file), None, "{manifest} {file}");
        }
        assert_eq!(component_module("no JSON", Path::new("/p")), None);
    }
}
