//! Downloads a model into the cache: continues incomplete files, retries, and checks lengths and checksums.

use super::cache::{self, LockedRepository, ModelCache, part_file, part_files, with_cause};
use super::hub::{FileResponse, Hub, Repository, RepositoryFile, sha256_of};
use super::reference::HubReference;
use crate::Error;
use crate::http_client::{self, RequestError, Transient};
use crate::progress::Progress;
use crate::terminal::mebibytes;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two messages where no bar is shown.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of a read.
const BUFFER_BYTES: usize = 1 << 18;

/// Downloads the files that a reference means, unless they are cached. Returns the one to load.
pub fn download(
    reference: &HubReference,
    cache: &ModelCache,
    note: &dyn Fn(String),
) -> Result<PathBuf, Error> {
    let hub = Hub::from_env()?;
    let locked = cache.lock(&reference.repo, note)?;
    // Another process may have held the lock to download it.
    if let Some(model) = cache.find(reference) {
        return Ok(model.file().to_owned());
    }
    let wait = |failure: &Transient, failures| wait_after(&hub, failure, failures, note);
    let repository = http_client::retried(wait, || hub.repository(reference))?;
    let names: Vec<_> = repository
        .files
        .iter()
        .map(|file| file.name.clone())
        .collect();
    let chosen = reference.choose(&names);
    let chosen = chosen.ok_or_else(|| no_such_file(reference, &names))?;
    let files = chosen.iter().filter_map(|name| {
        let mut files = repository.files.iter();
        files.find(|file| file.name == *name)
    });
    let files: Vec<_> = files.collect();
    // Before any download, since a model counts as complete once all its files exist under their final names.
    for file in &files {
        remove_unless_same(&locked.path(&file.name)?, file, note)?;
    }
    check_room(&locked, &files)?;
    for file in &files {
        let path = locked.path(&file.name)?;
        if !path.is_file() {
            let download = Download {
                hub: &hub,
                repository: &repository,
                file,
                path: &path,
                note,
            };
            download.run()?;
        }
    }
    locked.path(&chosen[0])
}

/// The SHA-256 of a file.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

/// Waits before another attempt; fails after too many.
fn wait_after(
    hub: &Hub,
    failure: &Transient,
    failures: u32,
    note: &dyn Fn(String),
) -> Result<(), Error> {
    let what = format!("cannot download from {}", hub.endpoint());
    let advice =
        "check the network, or HF_ENDPOINT, and try again: a download continues where it stopped";
    http_client::wait_after(failure, failures, note, &what, advice)
}

/// Removes a file of an incomplete model unless it is the one that the hub has now.
fn remove_unless_same(
    path: &Path,
    file: &RepositoryFile,
    note: &dyn Fn(String),
) -> Result<(), Error> {
    if !path.is_file() {
        return Ok(());
    }
    let is_same = match &file.sha256 {
        Some(expected) => {
            let recorded = cache::read_checksum(path);
            let found = recorded.map_or_else(|| sha256(path), Ok);
            found.map_err(with_cause(path))? == *expected
        }
        None => file.bytes == fs::metadata(path).ok().map(|found| found.len()),
    };
    if !is_same {
        note(format!(
            "{} differs from that of the hub; downloading it again",
            path.display()
        ));
        cache::remove_file(path)?;
    }
    Ok(())
}

/// Fails if the disk has no room for what is missing of the files.
fn check_room(locked: &LockedRepository, files: &[&RepositoryFile]) -> Result<(), Error> {
    let mut missing: u64 = 0;
    for file in files {
        let path = locked.path(&file.name)?;
        let parts = part_files(&path).into_iter().chain([path]);
        let present = parts.filter_map(|part| fs::metadata(part).ok());
        let present = present.map(|part| part.len()).max().unwrap_or(0);
        missing = missing.saturating_add(file.bytes.unwrap_or(0).saturating_sub(present));
    }
    match locked.free_bytes() {
        Some(free) if free < missing => Err(Error::failed(format!(
            "the download needs {}, and the disk of the cache has {} free; make room, or set XDG_CACHE_HOME to a \
             directory on a larger disk",
            mebibytes(missing),
            mebibytes(free)
        ))),
        _ => Ok(()),
    }
}

fn no_such_file(reference: &HubReference, names: &[String]) -> Error {
    let repo = &reference.repo;
    let models = super::reference::models(names);
    let models: Vec<_> = models.iter().map(|files| files[0].as_str()).collect();
    Error::failed(match models.is_empty() {
        true => format!(
            "{repo} has no GGUF files; look for a repository of the same model whose name ends with -GGUF"
        ),
        false => format!(
            "{reference} means none of the models in {repo}: write hf:{repo}:QUANT or hf:{repo}/FILE for one of {}",
            models.join(", ")
        ),
    })
}

/// A download of one file.
struct Download<'a> {
    hub: &'a Hub,
    repository: &'a Repository,
    file: &'a RepositoryFile,
    /// The complete file.
    path: &'a Path,
    note: &'a dyn Fn(String),
}

/// An incomplete file, and the hash of its bytes.
struct Part {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Sha256,
}

impl Part {
    /// Continues or creates an incomplete file.
    fn open(path: PathBuf) -> Result<Self, Error> {
        let mut options = File::options();
        let file = options.read(true).append(true).create(true).open(&path);
        let mut file = file.map_err(with_cause(&path))?;
        let mut hash = Sha256::new();
        let bytes = std::io::copy(&mut file, &mut hash).map_err(with_cause(&path))?;
        Ok(Self {
            path,
            file,
            bytes,
            hash,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|error| {
            let message = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!(
                    "the disk is full after {} of {}; make room, or set XDG_CACHE_HOME to a directory on a larger \
                     disk, and try again: the download continues there",
                    mebibytes(self.bytes),
                    self.path.display()
                ),
                _ => format!("cannot write {}: {error}", self.path.display()),
            };
            Error::context(message)(error)
        })?;
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        Ok(())
    }
}

impl Download<'_> {
    /// Downloads the file until it is complete.
    fn run(&self) -> Result<(), Error> {
        let name = &self.file.name;
        let size = self
            .file
            .bytes
            .map_or_else(|| "unknown size".to_owned(), mebibytes);
        let Repository { repo, .. } = self.repository;
        (self.note)(format!(
            "downloading {name} ({size}) of {repo} from {}",
            self.hub.endpoint()
        ));
        let short = Path::new(name)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let progress = Progress::download(&short, self.file.bytes.unwrap_or(0));
        let note = |message| progress.suspend(|| (self.note)(message));
        let mut part = None;
        let mut failures = 0;
        let sha256 = loop {
            let before = part.as_ref().map_or(0, |part: &Part| part.bytes);
            match self.attempt(&mut part, &progress) {
                Ok(sha256) => break sha256,
                Err(RequestError::Final(error)) => return Err(error),
                Err(RequestError::Transient(failure)) => {
                    // Failures count in a row: a download that moves on may be cut often.
                    let after = part.as_ref().map_or(0, |part| part.bytes);
                    failures = if after > before { 1 } else { failures + 1 };
                    wait_after(self.hub, &failure, failures, &note)?;
                }
            }
        };
        progress.finish();
        let Some(part) = part else {
            return Err(Error::failed(format!("{name} has no content")));
        };
        self.complete(part, sha256)
    }

    /// Downloads from where the incomplete file ends. Returns the checksum that the file must have.
    fn attempt(
        &self,
        part: &mut Option<Part>,
        progress: &Progress,
    ) -> Result<Option<String>, RequestError> {
        // What an earlier process left.
        if part.is_none()
            && let Some(left) = part_files(self.path).into_iter().next()
        {
            *part = Some(Part::open(left).map_err(RequestError::Final)?);
        }
        let offset = part.as_ref().map_or(0, |part| part.bytes);
        let mut response = self.hub.open(self.repository, &self.file.name, offset)?;
        let etag = response.etag.as_ref().or(self.file.sha256.as_ref());
        let path = part_file(self.path, etag.map_or("unknown", String::as_str));
        let is_same = match part {
            Some(part) => etag.is_some() && part.path == path,
            None => true,
        };
        let is_complete = offset > 0 && self.file.bytes == Some(offset);
        if is_same && is_complete && response.offset.is_none() {
            return Ok(self.expected(&response));
        }
        // The incomplete file is of another version, or the server sends other bytes than those that it lacks.
        if !is_same || response.offset != Some(offset) {
            *part = None;
            discard_parts(self.path).map_err(RequestError::Final)?;
            if response.offset != Some(0) {
                response = self.hub.open(self.repository, &self.file.name, 0)?;
            }
            if response.offset != Some(0) {
                let cause = format!("{} sends only a part of the file", self.hub.endpoint());
                return Err(RequestError::Transient(Transient::new(cause)));
            }
        }
        let part = match part {
            Some(part) => part,
            none => none.insert(Part::open(path).map_err(RequestError::Final)?),
        };
        progress.start_at(part.bytes);
        let expected = self.expected(&response);
        self.receive(part, response, progress)?;
        Ok(expected)
    }

    /// Appends a response's body to the incomplete file.
    fn receive(
        &self,
        part: &mut Part,
        response: FileResponse,
        progress: &Progress,
    ) -> Result<(), RequestError> {
        let mut body = response.body.into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut noted = Instant::now();
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let cause = format!("the connection was cut ({error})");
                    return Err(RequestError::Transient(Transient::new(cause)));
                }
            };
            part.append(&buffer[..count]).map_err(RequestError::Final)?;
            progress.add(count);
            if self.file.bytes.is_some_and(|size| part.bytes > size) {
                break;
            }
            if !progress.is_visible() && noted.elapsed() >= NOTE_INTERVAL {
                noted = Instant::now();
                let size = self
                    .file
                    .bytes
                    .map_or_else(String::new, |all| format!(" of {}", mebibytes(all)));
                (self.note)(format!(
                    "downloading {}: {}{size}",
                    self.file.name,
                    mebibytes(part.bytes)
                ));
            }
        }
        match self.file.bytes {
            Some(size) if part.bytes < size => Err(RequestError::Transient(Transient::new(
                "the connection was cut",
            ))),
            _ => Ok(()),
        }
    }

    /// The checksum that the hub states for the file.
    fn expected(&self, response: &FileResponse) -> Option<String> {
        let etag = response.etag.as_deref().and_then(sha256_of);
        self.file.sha256.clone().or(etag)
    }

    /// Checks the bytes and gives the file its name.
    fn complete(&self, part: Part, expected: Option<String>) -> Result<(), Error> {
        let Part {
            path, file, bytes, ..
        } = part;
        let found = format!("{:x}", part.hash.finalize());
        let name = &self.file.name;
        let wrong = match (&expected, self.file.bytes) {
            (_, Some(size)) if size != bytes => Some(format!("{bytes} bytes instead of {size}")),
            (Some(expected), _) if *expected != found => {
                Some(format!("the SHA-256 {found} instead of {expected}"))
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            fs::remove_file(&path).map_err(with_cause(&path))?;
            return Err(Error::failed(format!(
                "{name} arrived with {wrong}, so it was removed; try again, and check proxies and HF_ENDPOINT if it \
                 happens again"
            )));
        }
        file.sync_all().map_err(with_cause(&path))?;
        cache::write_checksum(self.path, &found).map_err(with_cause(self.path))?;
        fs::rename(&path, self.path).map_err(with_cause(self.path))?;
        if expected.is_none() {
            (self.note)(format!(
                "{} states no checksum of {name}; only its length was checked",
                self.hub.endpoint()
            ));
        }
        Ok(())
    }
}

/// Removes the incomplete files of `path`.
fn discard_parts(path: &Path) -> Result<(), Error> {
    for part in part_files(path) {
        fs::remove_file(&part).map_err(with_cause(&part))?;
    }
    Ok(())
}
