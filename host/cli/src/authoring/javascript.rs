//! Projects in JavaScript: `app.js`, made a component by componentize-qjs, with QuickJS and the SDK's copy in the project.
//!
//! The SDK's own `build.js` runs it, since componentize-qjs needs a changed copy of the interface.

use super::build::BuiltComponent;
use super::process::{find_in_path, query, run_to_file};
use super::project::component_file;
use super::toolchain::Tool;
use crate::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The module of a project whose default export is the handler.
const MODULE: &str = "app.js";
/// In the project's directory.
const BUILD: &str = "corral-sdk/build.js";
const HINT: &str =
    "install Node.js 18 or later: https://nodejs.org, or on Debian 'apt-get install nodejs npm'";

/// A project with an `app.js`.
#[derive(Debug)]
pub(super) struct JavaScriptProject {
    /// Absolute.
    pub(super) dir: PathBuf,
    node: PathBuf,
}

impl JavaScriptProject {
    /// Whether the directory has such a project.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(MODULE).is_file()
    }

    pub(super) fn open(dir: PathBuf) -> Result<Self, Error> {
        let node = find_in_path("node")
            .ok_or_else(|| Error::failed(format!("cannot find node; {HINT}")))?;
        match dir.join(BUILD).is_file() {
            true => Ok(Self { dir, node }),
            false => Err(Error::failed(format!(
                "there is no {BUILD} in {}; copy the SDK there, as 'corral new NAME --lang javascript' does",
                dir.display()
            ))),
        }
    }

    pub(super) async fn build(&self) -> Result<Vec<BuiltComponent>, Error> {
        let file = component_file(&self.dir)?;
        let mut command = Command::new(&self.node);
        command
            .current_dir(&self.dir)
            // It calls `corral wit`.
            .env("CORRAL_BIN", std::env::current_exe()?)
            .args([BUILD, MODULE, "-o"]);
        let failure = "the build failed; the message above says why";
        let built = run_to_file(&mut command, &file, failure).await?;
        Ok(vec![BuiltComponent::write(file, &built)?])
    }
}

/// Node.js, for `corral doctor`.
pub(super) fn tool() -> Tool {
    let version = query(Command::new("node").arg("--version"));
    Tool {
        name: "JavaScript",
        found: version.map(|version| format!("Node.js {}", version.trim())),
        hint: HINT.to_owned(),
    }
}
