//! Projects in Python: `app.py`, made a component by componentize-py.
//!
//! The component has the interpreter, the SDK's copy in the project, and the interface, which is written to the user's
//! cache. The world is `corral:inference/handler`.

use super::build::{BuiltComponent, write_if_changed};
use super::embedded::files_in;
use super::process::{query, run};
use super::toolchain::Tool;
use crate::{Error, startup};
use corral_server::deployments::Digest;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The module of a project that defines the handler.
const MODULE: &str = "app";
const WORLD: &str = "corral:inference/handler";
const TOOL: &str = "componentize-py";
const HINT: &str =
    "in the project: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt";

/// A project with an `app.py`.
#[derive(Debug)]
pub(super) struct PythonProject {
    /// Absolute.
    dir: PathBuf,
    /// componentize-py: that of the project's environment, or of `PATH`.
    tool: PathBuf,
}

impl PythonProject {
    /// Whether the directory has such a project.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(format!("{MODULE}.py")).is_file()
    }

    pub(super) fn open(dir: PathBuf) -> Result<Self, Error> {
        let tool = find_tool(&dir)
            .ok_or_else(|| Error::failed(format!("cannot find {TOOL}; install it {HINT}")))?;
        Ok(Self { dir, tool })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) async fn build(&self) -> Result<Vec<BuiltComponent>, Error> {
        let file = self.component()?;
        let partial = file.with_extension(format!("{}.partial", std::process::id()));
        let mut command = Command::new(&self.tool);
        command
            .current_dir(&self.dir)
            .args(["-d".as_ref(), interface()?.as_os_str()])
            .args(["-w", WORLD, "componentize", MODULE, "-o"])
            .arg(&partial);
        let (status, _) = run(&mut command, "\0").await?;
        let built = match status.success() {
            true => fs::read(&partial).map_err(Error::context("cannot read the component")),
            false => Err(Error::failed(format!(
                "the build failed; {TOOL} shows why above"
            ))),
        };
        let _ = fs::remove_file(&partial);
        let built = built?;
        write_if_changed(&file, &built)
            .map_err(Error::context(format!("cannot write {}", file.display())))?;
        let bytes = built.len() as u64;
        Ok(vec![BuiltComponent { file, bytes }])
    }

    /// The file that the project's `corral.toml` deploys.
    fn component(&self) -> Result<PathBuf, Error> {
        let manifest = self.dir.join("corral.toml");
        let text = fs::read_to_string(&manifest).map_err(Error::context(format!(
            "cannot read {}",
            manifest.display()
        )))?;
        let table: toml::Table = text.parse().map_err(|error| {
            Error::failed(format!("{} is not TOML: {error}", manifest.display()))
        })?;
        match table.get("component").and_then(toml::Value::as_str) {
            Some(name) if Path::new(name).components().count() == 1 => Ok(self.dir.join(name)),
            _ => Err(Error::failed(format!(
                "{} names no component in its own directory; expected such as: component = \"NAME.wasm\"",
                manifest.display()
            ))),
        }
    }
}

/// componentize-py, for `corral doctor`.
pub(super) fn tool() -> Tool {
    let found = find_tool(Path::new("."));
    let version = found.and_then(|tool| query(Command::new(tool).arg("--version")));
    Tool {
        name: "Python",
        found: version.map(|version| version.trim().to_owned()),
        hint: format!("{TOOL} turns Python into components; {HINT}"),
    }
}

fn find_tool(dir: &Path) -> Option<PathBuf> {
    let own = dir.join(".venv/bin").join(TOOL);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&path).map(|dir| dir.join(TOOL));
    std::iter::once(own)
        .chain(others)
        .find(|file| file.is_file())
}

/// The directory of the interface, written at its first use.
fn interface() -> Result<PathBuf, Error> {
    let cache = startup::user_cache_dir().ok_or_else(|| {
        Error::failed(
            "there is no directory for the interface, since neither XDG_CACHE_HOME nor HOME is an absolute path; set one",
        )
    })?;
    let text: String = files_in("sdk/wit").map(|(_, text)| text).collect();
    let digest = Digest::of(text.as_bytes()).to_string();
    let version = digest.trim_start_matches("sha256:").get(..16);
    let dir = cache.join(format!("wit-{}", version.unwrap_or_default()));
    for (path, text) in files_in("sdk/wit") {
        write_if_changed(&dir.join(path), text.as_bytes())
            .map_err(Error::context(format!("cannot write to {}", dir.display())))?;
    }
    Ok(dir)
}
