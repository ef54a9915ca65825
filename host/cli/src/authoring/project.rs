//! A project of an author: its directory, and the tools that build it.

use super::build::{BuiltComponent, Profile, build_project};
use super::python::PythonProject;
use super::toolchain::Toolchain;
use crate::Error;
use std::path::{Path, PathBuf};

/// A project in one of the languages. Directories are absolute.
pub(super) enum Project {
    Rust { dir: PathBuf, toolchain: Toolchain },
    Python(PythonProject),
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
            _ => Err(Error::failed(format!(
                "there is neither a Cargo.toml nor an app.py in {}; name the directory of a project, or create one: \
                 corral new NAME",
                dir.display()
            ))),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        match self {
            Project::Rust { dir, .. } => dir,
            Project::Python(project) => project.dir(),
        }
    }

    /// Writes the project's components beside its `corral.toml`.
    pub(super) async fn build(&self, profile: Profile) -> Result<Vec<BuiltComponent>, Error> {
        match self {
            Project::Rust { dir, toolchain } => build_project(dir, toolchain, profile).await,
            Project::Python(project) => project.build().await,
        }
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
