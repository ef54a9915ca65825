//! Records and revisions in redb: one transaction for each change, synced when it is committed.
//!
//! A new database is made under another name and then renamed, so that a kill in the midst of that
//! leaves none rather than half of one.

use super::components::Components;
use super::private::{file_options, sync_folder, take_away};
use super::{Kept, StoreError};
use crate::deployments::name::Name;
use crate::deployments::revision::{Record, Revision};
use redb::{
    Builder, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What the tables hold. A later format gets a later number, and a way to read this one.
const FORMAT: u64 = 1;
/// Memory for pages: the whole database is some hundred kilobytes.
const CACHE: usize = 4 << 20;
const FILE: &str = "deployments.redb";

const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");
/// Name → [`Record`] as JSON.
const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
/// Name and number → [`Revision`] as JSON.
const REVISIONS: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("revisions");

/// Name of a deployment that was removed → the number of its latest revision, and when it was removed, in
/// milliseconds since 1970. A database of before has no such table.
const REMOVED: TableDefinition<&str, (u64, u64)> = TableDefinition::new("removed");

/// What a database holds.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The deployments.
    pub(super) kept: BTreeMap<Name, Kept>,
    /// Those that were removed, as far as that is remembered: the number of the latest revision, and
    /// when, in milliseconds since 1970.
    pub(super) removed: BTreeMap<Name, (u64, u64)>,
}

/// The open database.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    redb: redb::Database,
}

impl Database {
    /// Opens or makes the database in `folder`, and reads it all. None is made beside components: they
    /// would be nobody's, and swept.
    pub(super) fn open(folder: &Path) -> Result<(Self, Contents), StoreError> {
        let path = folder.join(FILE);
        let fails = |cause: redb::Error| StoreError::Database {
            path: path.clone(),
            cause: cause.to_string(),
        };
        let io = |cause| fails(redb::Error::Io(cause));
        if !path.try_exists().map_err(io)? {
            let components = Components::count(folder).map_err(io)?;
            if components > 0 {
                return Err(StoreError::NoDatabase {
                    folder: folder.to_owned(),
                    file: FILE,
                    components,
                });
            }
            make(folder, &path).map_err(fails)?;
        }
        take_away(&path).map_err(io)?;
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE);
        let redb = builder.open(&path).map_err(|error| fails(error.into()))?;
        let database = Database {
            path: path.clone(),
            redb,
        };
        let (found, contents) = database.read().map_err(fails)?;
        if found != FORMAT {
            return Err(StoreError::Format {
                path: folder.to_owned(),
                found,
                known: FORMAT,
            });
        }
        Ok((database, contents?))
    }

    /// The format, and all there is.
    #[allow(clippy::type_complexity)]
    fn read(&self) -> Result<(u64, Result<Contents, StoreError>), redb::Error> {
        let reading = self.redb.begin_read()?;
        let about = reading.open_table(ABOUT)?;
        let format = about.get("format")?.map_or(0, |format| format.value());
        if format != FORMAT {
            return Ok((format, Ok(Contents::default())));
        }
        let mut kept = BTreeMap::new();
        for row in reading.open_table(RECORDS)?.iter()? {
            let (name, record) = row?;
            match self.parse(name.value(), record.value()) {
                Ok((name, record)) => kept.insert(
                    name,
                    Kept {
                        record,
                        revisions: BTreeMap::new(),
                    },
                ),
                Err(error) => return Ok((format, Err(error))),
            };
        }
        for row in reading.open_table(REVISIONS)?.iter()? {
            let (key, revision) = row?;
            let (name, number) = key.value();
            let (name, revision) = match self.parse::<Revision>(name, revision.value()) {
                Ok(parsed) => parsed,
                Err(error) => return Ok((format, Err(error))),
            };
            match kept.get_mut(&name) {
                Some(kept) => kept.revisions.insert(number, revision),
                None => {
                    let what = format!("revision {number} of '{name}', which isn't there");
                    return Ok((format, Err(self.nonsense(&what))));
                }
            };
        }
        for (name, kept) in &kept {
            let shares = kept.record.traffic.iter();
            if let Some(gone) = shares
                .map(|share| share.revision)
                .find(|number| !kept.revisions.contains_key(number))
            {
                let what = format!("'{name}' without its revision {gone}");
                return Ok((format, Err(self.nonsense(&what))));
            }
        }
        let mut removed = BTreeMap::new();
        match reading.open_table(REMOVED) {
            Ok(table) => {
                for row in table.iter()? {
                    let (name, row) = row?;
                    match name.value().parse::<Name>() {
                        Ok(name) => removed.insert(name, row.value()),
                        Err(error) => return Ok((format, Err(self.nonsense(&error.to_string())))),
                    };
                }
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok((format, Ok(Contents { kept, removed })))
    }

    fn parse<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        json: &[u8],
    ) -> Result<(Name, T), StoreError> {
        let parsed_name = name.parse::<Name>();
        let name = parsed_name.map_err(|error| self.nonsense(&error.to_string()))?;
        let value = serde_json::from_slice(json)
            .map_err(|error| self.nonsense(&format!("'{name}': {error}")))?;
        Ok((name, value))
    }

    fn nonsense(&self, what: &str) -> StoreError {
        StoreError::Database {
            path: self.path.clone(),
            cause: format!("it holds {what}"),
        }
    }

    /// Writes a deployment's record, a new revision, and that these revisions are gone: all or nothing.
    /// With a new revision the deployment is not one that was removed.
    /// It was synced to the disk when this returns.
    pub(super) fn write(
        &self,
        name: &Name,
        record: &Record,
        revision: Option<&Revision>,
        dropped: &[u64],
    ) -> Result<(), StoreError> {
        let name = name.as_str();
        let json = |value: Result<Vec<u8>, serde_json::Error>| {
            value.map_err(|error| self.nonsense(&error.to_string()))
        };
        let record = json(serde_json::to_vec(record))?;
        let revision = match revision {
            Some(revision) => Some((revision.number, json(serde_json::to_vec(revision))?)),
            None => None,
        };
        self.transact(|writing| {
            writing
                .open_table(RECORDS)?
                .insert(name, record.as_slice())?;
            let mut revisions = writing.open_table(REVISIONS)?;
            for number in dropped {
                revisions.remove((name, *number))?;
            }
            if let Some((number, json)) = &revision {
                revisions.insert((name, *number), json.as_slice())?;
                writing.open_table(REMOVED)?.remove(name)?;
            }
            Ok(())
        })
    }

    /// Removes a deployment with these revisions. Its latest number and the time stay, and those of
    /// `forgotten` go.
    pub(super) fn remove(
        &self,
        name: &Name,
        revisions: &[u64],
        latest: (u64, u64),
        forgotten: Option<&Name>,
    ) -> Result<(), StoreError> {
        let name = name.as_str();
        self.transact(|writing| {
            let mut removed = writing.open_table(REMOVED)?;
            if let Some(forgotten) = forgotten {
                removed.remove(forgotten.as_str())?;
            }
            removed.insert(name, latest)?;
            writing.open_table(RECORDS)?.remove(name)?;
            let mut table = writing.open_table(REVISIONS)?;
            for number in revisions {
                table.remove((name, *number))?;
            }
            Ok(())
        })
    }

    fn transact(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let transact = || {
            let writing = self.redb.begin_write()?;
            change(&writing)?;
            writing.commit()?;
            Ok(())
        };
        transact().map_err(|cause: redb::Error| StoreError::Database {
            path: self.path.clone(),
            cause: cause.to_string(),
        })
    }
}

/// Makes an empty database: whole before it has its name.
fn make(folder: &Path, path: &Path) -> Result<(), redb::Error> {
    let new = folder.join("being-made.redb");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(redb::Error::Io(error));
        }
        _ => {}
    }
    file_options()
        .create_new(true)
        .open(&new)
        .map_err(redb::Error::Io)?;
    let made = Builder::new().create(&new)?;
    let writing = made.begin_write()?;
    writing.open_table(ABOUT)?.insert("format", FORMAT)?;
    writing.open_table(RECORDS)?;
    writing.open_table(REVISIONS)?;
    writing.commit()?;
    drop(made);
    fs::rename(&new, path).map_err(redb::Error::Io)?;
    sync_folder(folder).map_err(redb::Error::Io)
}
