//! Values of a file of options, each with its line, and the command line that names the file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// A file of options, the command line that names it, and the values of the file that apply.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSource {
    /// The process's arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Index of the first argument after `serve`.
    pub(crate) position: usize,
    /// As the command line names it.
    pub(crate) path: PathBuf,
    /// Values of keys that no flag and no environment variable replaces.
    pub(crate) entries: Vec<ConfigEntry>,
}

/// A key whose value differs between two readings of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptionChange {
    pub(crate) key: String,
    /// The values before; `None` if the key was not set.
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
}

impl fmt::Display for OptionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |values: &Option<String>| match values {
            Some(values) => format!("'{}'", values.escape_debug()),
            None => "nothing".to_owned(),
        };
        let (key, from, to) = (&self.key, show(&self.from), show(&self.to));
        write!(f, "{key} changed from {from} to {to}")
    }
}

/// One value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigEntry {
    pub(crate) key: String,
    /// `None` for a flag without a value.
    pub(crate) value: Option<OsString>,
    /// Line in the file, from 1.
    pub(crate) line: usize,
}

impl ConfigEntry {
    /// The argument that says the same.
    pub(crate) fn argument(&self) -> OsString {
        let mut argument = OsString::from(format!("--{}", self.key));
        if let Some(value) = &self.value {
            argument.push("=");
            argument.push(value);
        }
        argument
    }
}

impl ConfigSource {
    /// The command line with these values of the file after `serve`.
    pub(crate) fn line<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a ConfigEntry>,
    ) -> Vec<OsString> {
        let (front, rest) = self.arguments.split_at(self.position);
        let mut line = front.to_vec();
        line.extend(entries.into_iter().map(ConfigEntry::argument));
        line.extend_from_slice(rest);
        line
    }

    pub(crate) fn place(&self, entry: &ConfigEntry) -> String {
        format!("{}:{}: {}: ", self.path.display(), entry.line, entry.key)
    }

    /// The place of a key's value in the file, as the beginning of a message. `index` picks the value of a list. Empty
    /// if the value is not from the file.
    pub(crate) fn place_of(&self, key: &str, index: usize) -> String {
        let mut entries = self.entries.iter().filter(|entry| entry.key == key);
        entries
            .nth(index)
            .map_or_else(String::new, |entry| self.place(entry))
    }

    /// The file, as the command line names it.
    pub(crate) fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// The keys whose values differ in `new`, a later reading of the file.
    pub(crate) fn changes(&self, new: &Self) -> Vec<OptionChange> {
        let (old, new) = (self.values(), new.values());
        let keys = BTreeSet::from_iter(old.keys().chain(new.keys()).copied());
        let show = |values: Option<&Vec<String>>| values.map(|values| values.join(", "));
        keys.into_iter()
            .filter(|key| old.get(key) != new.get(key))
            .map(|key| OptionChange {
                key: key.to_owned(),
                from: show(old.get(key)),
                to: show(new.get(key)),
            })
            .collect()
    }

    fn values(&self) -> BTreeMap<&str, Vec<String>> {
        let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for entry in &self.entries {
            let value = entry.value.as_deref().unwrap_or(OsStr::new("true"));
            let all = values.entry(&entry.key).or_default();
            all.push(value.to_string_lossy().into_owned());
        }
        values
    }
}
