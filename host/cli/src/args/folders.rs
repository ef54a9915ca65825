//! `--folder`: directories that deployments can be granted to read.

use super::parsers::check_names;
use crate::Error;
use clap::Args;
use corral_runtime::{Folder, MAX_FOLDERS, check_folder_name};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// Open folders by name.
pub(crate) type OpenFolders = BTreeMap<String, Folder>;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Security")]
pub struct FolderArgs {
    /// Folder that deployments can be granted to read, with all below it, as /NAME; repeatable
    #[arg(long = "folder", value_name = "NAME=DIR")]
    folders: Vec<FolderArg>,
}

/// `NAME=DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FolderArg {
    name: String,
    pub(crate) dir: PathBuf,
}

impl FromStr for FolderArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(_, dir)| !dir.is_empty());
        let (name, dir) = parts.ok_or("expected NAME=DIR, e.g. docs=/srv/docs")?;
        check_folder_name(name).map_err(|problem| format!("'{name}' {problem}"))?;
        Ok(FolderArg {
            name: name.to_owned(),
            dir: dir.into(),
        })
    }
}

impl FolderArg {
    /// The line of `corral serve --check`.
    pub(crate) fn plan(&self) -> String {
        format!("folder {} is {}", self.name, self.dir.display())
    }

    /// Opens it.
    pub(crate) fn open(&self) -> Result<Folder, Error> {
        Folder::open(&self.dir).map_err(|error| {
            Error::failed(format!(
                "cannot open the folder '{}' at {}: {error}; expected a directory that the server may read",
                self.name,
                self.dir.display()
            ))
        })
    }
}

impl FolderArgs {
    pub(crate) fn all(&self) -> &[FolderArg] {
        &self.folders
    }

    /// Finds errors that need no file access.
    pub(super) fn check(&self) -> Result<(), Error> {
        let names = self.folders.iter().map(|folder| &folder.name);
        check_names("--folder", names, MAX_FOLDERS)
    }

    /// Opens all of them.
    pub(crate) fn open(&self) -> Result<OpenFolders, Error> {
        let open = |arg: &FolderArg| Ok((arg.name.clone(), arg.open()?));
        self.folders.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&str]) -> Result<(), String> {
        let folders = texts.iter().map(|text| text.parse::<FolderArg>());
        let folders = folders.collect::<Result<_, String>>()?;
        let checked = FolderArgs { folders }.check();
        checked.map_err(|error| error.message(true))
    }

    #[test]
    fn wrong_folders_are_refused() {
        assert_eq!(check(&["docs=/srv/docs", "a.b=relative=path"]), Ok(()));
        for (texts, expected) in [
            (&["docs"][..], "expected NAME=DIR"),
            (&["docs="][..], "expected NAME=DIR"),
            (
                &["../docs=/srv"][..],
                "'../docs' is not a valid name of a folder",
            ),
            (&["=/srv"][..], "'' is not a valid name of a folder"),
            (&["a=/a", "a=/b"][..], "names 'a' twice"),
            (&["a=/a"; 65][..], "65 times"),
        ] {
            let error = check(texts).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn missing_folder_is_named_with_its_place() {
        let arg: FolderArg = "docs=/no/such/folder".parse().expect("valid");
        let error = arg.open().expect_err("missing").message(true);
        assert!(
            error.contains("'docs'") && error.contains("/no/such/folder"),
            "{error}"
        );
    }
}
