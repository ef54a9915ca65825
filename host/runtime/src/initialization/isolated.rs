//! Initializes components in child processes, and stores the results beside the compiled code, so that a restarted server
//! initializes none of them again.
//!
//! A result that is gone or damaged is made again: it would be the same. If the disk is full, nothing is stored.

use super::{InitializationLimits, Snapshot, initialize};
use crate::isolated_compiler::TEMPORARY;
use corral_isolation::{ChildError, ChildJob, ChildProcesses, Handler, Job, JobLimits};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// The job of a child that initializes a component.
pub const INITIALIZE_JOB: (&str, Handler) = ("initialize", initialize_job);

/// Wall time of an initialization: its component is compiled without optimization first.
pub const MAX_INITIALIZE_TIME: Duration = Duration::from_secs(120);
/// Bytes of the child's memory.
const CHILD_MEMORY: u64 = 768 << 20;

/// Raise it when the same component would get another result.
const VERSION: u32 = 1;
/// Most results that are stored. The oldest ones are removed for a new one.
const MAX_STORED: usize = 64;
/// Most bytes of all that are stored.
const MAX_STORED_BYTES: u64 = 1 << 30;

/// Initializes a component in a child, unless the result is in the cache, the private directory of compiled code.
pub(crate) fn initialize_in_child(
    children: &ChildProcesses,
    cache: Option<&Path>,
    plugin: &str,
    component: &[u8],
    limits: InitializationLimits,
) -> Result<Snapshot, ChildError> {
    let key = key(component, limits.memory);
    if let Some(snapshot) = cache.and_then(|cache| stored(cache, &key, limits)) {
        return Ok(snapshot);
    }
    let input = [
        &(limits.memory as u64).to_le_bytes()[..],
        &(limits.component as u64).to_le_bytes(),
        component,
    ]
    .concat();
    let job = Job {
        kind: INITIALIZE_JOB.0,
        input: &input,
        readable: &[],
        writable: None,
        limits: JobLimits {
            memory: CHILD_MEMORY,
            time: MAX_INITIALIZE_TIME,
            cpu: 4 * MAX_INITIALIZE_TIME,
            file_size: 0,
            output: limits.component.saturating_add(size_of::<u64>()),
            niceness: 10,
        },
    };
    let snapshot = Snapshot::decode(children.run(&job)?)
        .ok_or_else(|| ChildError::Failed("its initialization has no result".to_owned()))?;
    if let Some(cache) = cache
        && let Err(error) = store(cache, &key, &snapshot)
    {
        tracing::warn!(plugin, %error, "the result of an initialization cannot be stored; making it again at the next start");
    }
    Ok(snapshot)
}

/// The child's side.
fn initialize_job(job: ChildJob) -> Result<Vec<u8>, String> {
    let (limits, component) = read_input(&job.input).ok_or("its input is incomplete")?;
    initialize(component, limits).map(Snapshot::encode)
}

fn read_input(input: &[u8]) -> Option<(InitializationLimits, &[u8])> {
    let (memory, rest) = input.split_first_chunk()?;
    let (component_bytes, component) = rest.split_first_chunk()?;
    let limits = InitializationLimits {
        memory: usize::try_from(u64::from_le_bytes(*memory)).ok()?,
        component: usize::try_from(u64::from_le_bytes(*component_bytes)).ok()?,
    };
    Some((limits, component))
}

/// Name of a result: what it depends on.
fn key(component: &[u8], memory: usize) -> String {
    let mut hasher = Sha256::new();
    hasher.update(VERSION.to_le_bytes());
    hasher.update((memory as u64).to_le_bytes());
    hasher.update(component);
    format!("{:x}", hasher.finalize())
}

/// Where results are stored, each after its digest: a file may be incomplete after a power failure.
const DIRECTORY: &str = "initialized";

fn stored(cache: &Path, key: &str, limits: InitializationLimits) -> Option<Snapshot> {
    let bytes = fs::read(cache.join(DIRECTORY).join(key)).ok()?;
    let (digest, snapshot) = bytes.split_first_chunk::<32>()?;
    if <[u8; 32]>::from(Sha256::digest(snapshot)) != *digest {
        return None;
    }
    let snapshot = Snapshot::decode(snapshot.to_vec());
    snapshot.filter(|snapshot| snapshot.component.len() <= limits.component)
}

fn store(cache: &Path, key: &str, snapshot: &Snapshot) -> io::Result<()> {
    let dir = cache.join(DIRECTORY);
    fs::create_dir_all(&dir)?;
    // Others read a result complete or not at all.
    let mut file = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .tempfile_in(cache)?;
    let bytes = snapshot.clone().encode();
    file.write_all(&Sha256::digest(&bytes))?;
    file.write_all(&bytes)?;
    file.persist(dir.join(key)).map_err(|error| error.error)?;
    remove_oldest(&dir, MAX_STORED, MAX_STORED_BYTES)
}

/// Removes files until there are at most this many with at most this many bytes together.
fn remove_oldest(dir: &Path, most: usize, most_bytes: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for file in fs::read_dir(dir)?.flatten() {
        // Another thread may have removed it.
        if let Ok(metadata) = file.metadata() {
            files.push((metadata.modified()?, metadata.len(), file.path()));
        }
    }
    files.sort();
    let mut bytes = 0_u64;
    for (number, (_, length, file)) in files.into_iter().rev().enumerate() {
        bytes = bytes.saturating_add(length);
        if number >= most || bytes > most_bytes {
            let _ = fs::remove_file(file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: InitializationLimits = InitializationLimits {
        memory: 1 << 20,
        component: 1 << 20,
    };

    #[test]
    fn stored_results_are_found_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = Snapshot {
            instructions: 7,
            component: b"component".to_vec(),
        };
        assert_eq!(stored(dir.path(), "a", LIMITS), None);
        for number in 0..=MAX_STORED {
            store(dir.path(), &number.to_string(), &snapshot).unwrap();
        }
        let newest = MAX_STORED.to_string();
        assert_eq!(stored(dir.path(), &newest, LIMITS), Some(snapshot));
        let files = fs::read_dir(dir.path().join(DIRECTORY)).unwrap();
        assert_eq!(files.count(), MAX_STORED);
        let small = InitializationLimits {
            component: 8,
            ..LIMITS
        };
        assert_eq!(stored(dir.path(), &newest, small), None);
    }

    #[test]
    fn stored_results_are_bounded_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), [0; 10]).unwrap();
        }
        remove_oldest(dir.path(), 9, 29).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn damaged_result_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = Snapshot {
            instructions: 7,
            component: b"component".to_vec(),
        };
        store(dir.path(), "a", &snapshot).unwrap();
        let file = dir.path().join(DIRECTORY).join("a");
        let whole = fs::read(&file).unwrap();
        let zeros = vec![0; whole.len()];
        for damaged in [&whole[..0], &whole[..whole.len() - 1], &zeros[..]] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(stored(dir.path(), "a", LIMITS), None);
        }
        store(dir.path(), "a", &snapshot).unwrap();
        assert_eq!(stored(dir.path(), "a", LIMITS), Some(snapshot));
    }

    #[test]
    fn results_differ_by_component_and_memory() {
        let keys = [key(b"a", 1), key(b"b", 1), key(b"a", 2)];
        assert!(keys[0] != keys[1] && keys[0] != keys[2]);
    }

    #[test]
    fn incomplete_input_is_refused() {
        let job = |input: &[u8]| {
            initialize_job(ChildJob {
                input: input.to_vec(),
                writable: None,
            })
        };
        assert_eq!(job(&[0; 15]), Err("its input is incomplete".to_owned()));
        assert!(job(&[0; 16]).is_err_and(|error| error != "its input is incomplete"));
    }
}
