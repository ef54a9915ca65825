//! Deployments in redb: one transaction per change, synced on commit.
//!
//! A new database is created under another name and then renamed, so that a kill leaves no partial one.
//! After a failed write, such as on a full disk, redb refuses everything until it is opened again.

use super::component_files::ComponentFiles;
use super::private_files::{file_options, restrict_to_owner, sync_directory};
use super::{Removed, StoreError};
use crate::deployments::name::DeploymentName;
use crate::deployments::revision::{DeploymentRecord, Revision};
use crate::deployments::stored_deployment::StoredDeployment;
use redb::{Builder, ReadableDatabase, TableDefinition, WriteTransaction};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// Version of the format. Databases of other versions are refused.
const FORMAT: u64 = 3;
/// Page cache; the whole database has some hundred kilobytes.
const CACHE_BYTES: usize = 4 << 20;
const FILE: &str = "deployments.redb";

const METADATA: TableDefinition<&str, u64> = TableDefinition::new("metadata");
/// Name → [`DeploymentRecord`] as JSON.
const DEPLOYMENTS: TableDefinition<&str, &[u8]> = TableDefinition::new("deployments");
/// Name and number → [`Revision`] as JSON.
const REVISIONS: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("revisions");
/// Name of a removed deployment → the fields of [`Removed`], in order.
const REMOVED: TableDefinition<&str, (u64, u64)> = TableDefinition::new("removed");

/// The content of a database.
#[derive(Debug, Default)]
pub(super) struct DatabaseContent {
    pub(super) deployments: BTreeMap<DeploymentName, StoredDeployment>,
    /// Removed deployments, as far as they are remembered.
    pub(super) removed: BTreeMap<DeploymentName, Removed>,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    /// `None` after a failed write, until [`Database::reopen`].
    redb: Option<redb::Database>,
}

/// An error while reading: of redb, or of the content.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Redb(#[from] redb::Error),
    #[error("it contains {0}")]
    Invalid(String),
    #[error("format {0}")]
    Format(u64),
}

impl Database {
    /// Opens or creates the database in `directory` and reads its content. Creates none beside existing
    /// components: they would be unreferenced and removed.
    pub(super) fn open(directory: &Path) -> Result<(Self, DatabaseContent), StoreError> {
        let path = directory.join(FILE);
        let io = |cause| failed(&path, &redb::Error::Io(cause));
        if !path.try_exists().map_err(io)? {
            let components = ComponentFiles::count(directory).map_err(io)?;
            if components > 0 {
                return Err(StoreError::NoDatabase {
                    directory: directory.to_owned(),
                    file: FILE,
                    components,
                });
            }
            create(directory, &path).map_err(|cause| failed(&path, &cause))?;
        }
        restrict_to_owner(&path).map_err(io)?;
        let mut database = Database { path, redb: None };
        let content = database.open_file()?;
        Ok((database, content))
    }

    /// Opens the database again if a write has failed, and reads its content: a change whose commit failed may be in
    /// it or not.
    pub(super) fn reopen(&mut self) -> Result<Option<DatabaseContent>, StoreError> {
        match self.redb {
            Some(_) => Ok(None),
            None => self.open_file().map(Some),
        }
    }

    fn open_file(&mut self) -> Result<DatabaseContent, StoreError> {
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        let redb = builder.open(&self.path);
        let redb = redb.map_err(|error| failed(&self.path, &redb::Error::from(error)))?;
        let content = read(&redb).map_err(|error| match error {
            ReadError::Format(found) => StoreError::Format {
                path: self.path.parent().unwrap_or(&self.path).to_owned(),
                found,
                known: FORMAT,
            },
            error => failed(&self.path, &error),
        })?;
        self.redb = Some(redb);
        Ok(content)
    }

    /// Writes, in one transaction, a deployment's record, new revisions, and the removal of `dropped`
    /// ones. Durable when this returns.
    pub(super) fn write(
        &mut self,
        name: &DeploymentName,
        record: &DeploymentRecord,
        new: &[&Revision],
        dropped: &[u64],
    ) -> Result<(), StoreError> {
        let name = name.as_str();
        let json = |value: Result<Vec<u8>, serde_json::Error>| {
            value.map_err(|error| failed(&self.path, &error))
        };
        let record = json(serde_json::to_vec(record))?;
        let mut written = Vec::new();
        for revision in new {
            written.push((revision.number, json(serde_json::to_vec(revision))?));
        }
        self.transact(|writing| {
            writing
                .open_table(DEPLOYMENTS)?
                .insert(name, record.as_slice())?;
            let mut revisions = writing.open_table(REVISIONS)?;
            for number in dropped {
                revisions.remove((name, *number))?;
            }
            for (number, json) in &written {
                revisions.insert((name, *number), json.as_slice())?;
            }
            if !written.is_empty() {
                writing.open_table(REMOVED)?.remove(name)?;
            }
            Ok(())
        })
    }

    /// Removes, in one transaction, a deployment with these revisions, remembers it as removed, and forgets
    /// `forgotten`.
    pub(super) fn remove(
        &mut self,
        name: &DeploymentName,
        revisions: &[u64],
        removal: Removed,
        forgotten: Option<&DeploymentName>,
    ) -> Result<(), StoreError> {
        let name = name.as_str();
        self.transact(|writing| {
            let mut removed = writing.open_table(REMOVED)?;
            if let Some(forgotten) = forgotten {
                removed.remove(forgotten.as_str())?;
            }
            removed.insert(name, (removal.latest_revision, removal.removed_ms))?;
            writing.open_table(DEPLOYMENTS)?.remove(name)?;
            let mut table = writing.open_table(REVISIONS)?;
            for number in revisions {
                table.remove((name, *number))?;
            }
            Ok(())
        })
    }

    fn transact(
        &mut self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let transact = |redb: &redb::Database| -> Result<(), redb::Error> {
            let writing = redb.begin_write()?;
            change(&writing)?;
            writing.commit()?;
            Ok(())
        };
        let redb = self.redb.as_ref();
        let written = redb.map_or(Err(redb::Error::PreviousIo), transact);
        written.map_err(|cause| {
            self.redb = None;
            failed(&self.path, &cause)
        })
    }
}

/// The content of a database.
fn read(redb: &redb::Database) -> Result<DatabaseContent, ReadError> {
    let reading = redb.begin_read().map_err(redb::Error::from)?;
    let metadata = match reading.open_table(METADATA) {
        Ok(metadata) => metadata,
        // Formats before 2 have no such table.
        Err(redb::TableError::TableDoesNotExist(_)) => return Err(ReadError::Format(1)),
        Err(error) => return Err(redb::Error::from(error).into()),
    };
    let format = metadata.get("format").map_err(redb::Error::from)?;
    let format = format.map_or(0, |format| format.value());
    if format != FORMAT {
        return Err(ReadError::Format(format));
    }
    let mut content = DatabaseContent::default();
    for row in rows(&reading, DEPLOYMENTS)? {
        let (name, record) = row.map_err(redb::Error::from)?;
        let (name, record) = parse(name.value(), record.value())?;
        let deployment = StoredDeployment {
            record,
            revisions: BTreeMap::new(),
        };
        content.deployments.insert(name, deployment);
    }
    for row in rows(&reading, REVISIONS)? {
        let (key, revision) = row.map_err(redb::Error::from)?;
        let (name, number) = key.value();
        let (name, revision) = parse::<Revision>(name, revision.value())?;
        let Some(deployment) = content.deployments.get_mut(&name) else {
            return Err(ReadError::Invalid(format!(
                "revision {number} of '{name}', which does not exist"
            )));
        };
        deployment.revisions.insert(number, revision);
    }
    for (name, deployment) in &content.deployments {
        let mut shares = deployment.record.traffic.iter();
        if let Some(share) =
            shares.find(|share| !deployment.revisions.contains_key(&share.revision))
        {
            let revision = share.revision;
            return Err(ReadError::Invalid(format!(
                "'{name}' without its revision {revision}"
            )));
        }
    }
    for row in rows(&reading, REMOVED)? {
        let (name, removed) = row.map_err(redb::Error::from)?;
        let (latest_revision, removed_ms) = removed.value();
        let removed = Removed {
            latest_revision,
            removed_ms,
        };
        content.removed.insert(parse_name(name.value())?, removed);
    }
    Ok(content)
}

fn failed(path: &Path, cause: &dyn Display) -> StoreError {
    StoreError::Database {
        path: path.to_owned(),
        cause: cause.to_string(),
    }
}

/// All rows of a table.
fn rows<K: redb::Key + 'static, V: redb::Value + 'static>(
    reading: &redb::ReadTransaction,
    table: TableDefinition<K, V>,
) -> Result<redb::Range<'static, K, V>, redb::Error> {
    Ok(reading.open_table(table)?.range::<K::SelfType<'_>>(..)?)
}

fn parse<T: serde::de::DeserializeOwned>(
    name: &str,
    json: &[u8],
) -> Result<(DeploymentName, T), ReadError> {
    let name = parse_name(name)?;
    let value = serde_json::from_slice(json)
        .map_err(|error| ReadError::Invalid(format!("'{name}': {error}")))?;
    Ok((name, value))
}

fn parse_name(name: &str) -> Result<DeploymentName, ReadError> {
    name.parse::<DeploymentName>()
        .map_err(|error| ReadError::Invalid(error.to_string()))
}

/// Creates an empty database, complete before it has its final name.
fn create(directory: &Path, path: &Path) -> Result<(), redb::Error> {
    let new = directory.join("being-made.redb");
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
    let database = Builder::new().create(&new)?;
    let writing = database.begin_write()?;
    writing.open_table(METADATA)?.insert("format", FORMAT)?;
    writing.open_table(DEPLOYMENTS)?;
    writing.open_table(REVISIONS)?;
    writing.open_table(REMOVED)?;
    writing.commit()?;
    drop(database);
    fs::rename(&new, path).map_err(redb::Error::Io)?;
    sync_directory(directory).map_err(redb::Error::Io)
}
