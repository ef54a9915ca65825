//! Projects in Python: `app.py`, made a component by componentize-py.
//!
//! The component has the interpreter, the SDK's copy in the project, and the interface, which is written to the user's
//! cache. The world is `corral:inference/handler`.

mod develop;

use super::build::BuiltComponent;
use super::process::{find_in_path, query, run_to_file};
use super::project::component_file;
use super::toolchain::Tool;
use super::wit::interface_dir;
use crate::Error;
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
    pub(super) dir: PathBuf,
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

    pub(super) async fn build(&self) -> Result<Vec<BuiltComponent>, Error> {
        let file = component_file(&self.dir)?;
        let mut command = Command::new(&self.tool);
        command
            .current_dir(&self.dir)
            .args(["-d".as_ref(), interface_dir()?.as_os_str()])
            .args(["-w", WORLD, "componentize", MODULE, "-o"]);
        let failure = format!("the build failed; {TOOL} shows why above");
        let built = run_to_file(&mut command, &file, failure).await?;
        Ok(vec![BuiltComponent::write(file, &built)?])
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
    own.is_file().then_some(own).or_else(|| find_in_path(TOOL))
}
