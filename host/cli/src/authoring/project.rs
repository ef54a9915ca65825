//! A project of an author: its directory, and the tools that build it.

use super::build::{BuiltComponent, Profile, build_project};
use super::c::CProject;
use super::go::GoProject;
use super::javascript::JavaScriptProject;
use super::python::PythonProject;
use super::toolchain::Toolchain;
use crate::Error;
use crate::deploy::Replacement;
use std::fs;
use std::path::{Path, PathBuf};

/// A project in one of the languages. Directories are absolute.
pub(super) enum Project {
    Rust { dir: PathBuf, toolchain: Toolchain },
    Python(PythonProject),
    JavaScript(JavaScriptProject),
    C(CProject),
    Go(GoProject),
}

impl Project {
    /// Finds out the language of the project in `dir`, and its tools.
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        match dir.canonicalize() {
            Ok(dir) if dir.join("Cargo.toml").is_file() => {
                let toolchain = Toolchain::find(&dir)?;
                Ok(Project::Rust { dir, toolchain })
            }
            Ok(dir) if PythonProject::is_in(&dir) => Ok(Project::Python(PythonProject::open(dir)?)),
            Ok(dir) if JavaScriptProject::is_in(&dir) => {
                Ok(Project::JavaScript(JavaScriptProject::open(dir)?))
            }
            Ok(dir) if CProject::is_in(&dir) => Ok(Project::C(CProject::open(dir)?)),
            Ok(dir) if GoProject::is_in(&dir) => Ok(Project::Go(GoProject::open(dir)?)),
            _ => Err(Error::failed(format!(
                "there is no Cargo.toml, app.py, app.js, plugin.c or go.mod in {}; name the directory of a project, or create \
                 one: corral new NAME",
                dir.display()
            ))),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        match self {
            Project::Rust { dir, .. } => dir,
            Project::Python(project) => &project.dir,
            Project::JavaScript(project) => &project.dir,
            Project::C(project) => &project.dir,
            Project::Go(project) => &project.dir,
        }
    }

    /// The component of a language with a build of its own for a developing server.
    pub(super) async fn develop(&self) -> Result<Option<Replacement>, Error> {
        match self {
            Project::Rust { .. } | Project::JavaScript(_) | Project::C(_) | Project::Go(_) => {
                Ok(None)
            }
            Project::Python(project) => project.develop().await,
        }
    }

    /// Writes the project's components beside its `corral.toml`.
    pub(super) async fn build(&self, profile: Profile) -> Result<Vec<BuiltComponent>, Error> {
        match self {
            Project::Rust { dir, toolchain } => build_project(dir, toolchain, profile).await,
            Project::Python(project) => project.build().await,
            Project::JavaScript(project) => project.build().await,
            Project::C(project) => project.build().await,
            Project::Go(project) => project.build().await,
        }
    }
}

/// The file that the `corral.toml` of the project in `dir` deploys.
pub(super) fn component_file(dir: &Path) -> Result<PathBuf, Error> {
    let manifest = dir.join("corral.toml");
    let text = fs::read_to_string(&manifest).map_err(Error::context(format!(
        "cannot read {}",
        manifest.display()
    )))?;
    let table: toml::Table = text
        .parse()
        .map_err(|error| Error::failed(format!("{} is not TOML: {error}", manifest.display())))?;
    match table.get("component").and_then(toml::Value::as_str) {
        Some(name) if Path::new(name).components().count() == 1 => Ok(dir.join(name)),
        _ => Err(Error::failed(format!(
            "{} names no component in its own directory; expected such as: component = \"NAME.wasm\"",
            manifest.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_without_project_is_refused() {
        let error = Project::open(Path::new("/no/such"))
            .err()
            .expect("no project");
        assert!(error.message(false).contains("corral new"));
    }
}
