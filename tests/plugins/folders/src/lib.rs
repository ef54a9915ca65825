//! Reads folders, through Rust's standard library, which uses WASI 0.2, and through WASI 0.3. Responds with JSON: a value, or a
//! text that begins with `error: `. The body is JSON:
//!
//! | field | value |
//! |---|---|
//! | `preopens` | `{}`: the paths of the preopened directories |
//! | `read`, `read-3` | the text of the file at this path |
//! | `list`, `list-3` | the sorted names in the directory at this path |
//! | `change` | tries to change the directory at this path in every way; the ways that succeed |
//! | `open` | opens the file at `path` up to `count` times, and holds all; how many times it was open |
//! | `open-3` | the same for WASI 0.3 |
//! | `listings-3` | begins up to `count` listings of the directory at `path`; how many began |
//! | `streams` | begins up to `count` streams of WASI 0.2 of the file `path` of the folder; how many began |
//! | `hold` | reads the first byte of the file at this path, and holds it for later calls |
//! | `held` | `{}`: how many files are held, and the rest of the last one |

use corral_sdk::bindings::wasip3::filesystem::preopens::get_directories;
use corral_sdk::bindings::wasip3::filesystem::types::{
    Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags,
};
use corral_sdk::{Error, Request, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::sync::Mutex;
use std::time::SystemTime;
use wasip2::filesystem::types as wasi_2;

corral_sdk::handler!(handle);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Call {
    Preopens {},
    Read(String),
    #[serde(rename = "read-3")]
    Read3(String),
    List(String),
    #[serde(rename = "list-3")]
    List3(String),
    Change(String),
    Open(Many),
    #[serde(rename = "open-3")]
    Open3(Many),
    #[serde(rename = "listings-3")]
    Listings3(Many),
    Streams(Many),
    Hold(String),
    Held {},
}

#[derive(Deserialize)]
struct Many {
    path: String,
    count: usize,
}

static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

async fn handle(mut request: Request) -> Result<Response, Error> {
    let call = serde_json::from_str(&request.text().await?);
    let call = call.map_err(|error| Error::Invalid(error.to_string()))?;
    let value = match call {
        Call::Preopens {} => {
            let paths = get_directories().into_iter().map(|(_, path)| path);
            json!(paths.collect::<Vec<_>>())
        }
        Call::Read(path) => text(fs::read_to_string(path)),
        Call::Read3(path) => text_3(read_3(&path).await),
        Call::List(path) => text(list(&path)),
        Call::List3(path) => text_3(list_3(&path).await),
        Call::Change(path) => json!(changes(&path)),
        Call::Open(Many { path, count }) => {
            let open = (0..count).map_while(|_| File::open(&path).ok());
            json!(open.collect::<Vec<_>>().len())
        }
        Call::Open3(Many { path, count }) => {
            let mut open = Vec::new();
            while open.len() < count
                && let Ok(file) = open_3(&path).await
            {
                open.push(file);
            }
            json!(open.len())
        }
        Call::Listings3(Many { path, count }) => text_3(listings_3(&path, count).await),
        Call::Streams(Many { path, count }) => json!(streams(&path, count).ok()),
        Call::Hold(path) => text(hold(&path)),
        Call::Held {} => text(held()),
    };
    Ok(Response::json(&value))
}

fn text(result: io::Result<impl Into<Value>>) -> Value {
    result.map_or_else(|error| json!(format!("error: {error}")), Into::into)
}

fn text_3(result: Result<impl Into<Value>, ErrorCode>) -> Value {
    result.map_or_else(|error| json!(format!("error: {error:?}")), Into::into)
}

fn list(path: &str) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(path)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Opens a path below a preopened directory.
async fn open_3(path: &str) -> Result<Descriptor, ErrorCode> {
    for (folder, prefix) in get_directories() {
        let Some(rest) = path.strip_prefix(&prefix) else {
            continue;
        };
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let rest = if rest.is_empty() { "." } else { rest }.to_owned();
        let (follow, read) = (PathFlags::SYMLINK_FOLLOW, DescriptorFlags::READ);
        return folder.open_at(follow, rest, OpenFlags::empty(), read).await;
    }
    Err(ErrorCode::NoEntry)
}

async fn read_3(path: &str) -> Result<String, ErrorCode> {
    let file = open_3(path).await?;
    let (bytes, result) = file.read_via_stream(0);
    let bytes = bytes.collect().await;
    result.await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn list_3(path: &str) -> Result<Vec<String>, ErrorCode> {
    let dir = open_3(path).await?;
    let (entries, result) = dir.read_directory();
    let entries = entries.collect().await;
    result.await?;
    let mut names = Vec::from_iter(entries.into_iter().map(|entry| entry.name));
    names.sort();
    Ok(names)
}

/// How many listings begin that are not read to their end.
async fn listings_3(path: &str, count: usize) -> Result<usize, ErrorCode> {
    let dir = open_3(path).await?;
    let mut held = Vec::new();
    while held.len() < count {
        let (mut entries, result) = dir.read_directory();
        if entries.next().await.is_none() {
            break;
        }
        held.push((entries, result));
    }
    Ok(held.len())
}

/// How many streams of one file of a folder begin.
fn streams(name: &str, count: usize) -> Result<usize, wasi_2::ErrorCode> {
    let (folder, _) = wasip2::filesystem::preopens::get_directories()
        .pop()
        .ok_or(wasi_2::ErrorCode::NoEntry)?;
    let (follow, read) = (wasi_2::PathFlags::empty(), wasi_2::DescriptorFlags::READ);
    let file = folder.open_at(follow, name, wasi_2::OpenFlags::empty(), read)?;
    let streams = (0..count).map_while(|_| file.read_via_stream(0).ok());
    Ok(streams.collect::<Vec<_>>().len())
}

/// The changes that succeed.
fn changes(path: &str) -> Vec<&'static str> {
    let file = format!("{path}/file");
    let new = format!("{path}/new");
    let write = |options: &mut OpenOptions| options.open(&file).map(drop);
    let attempts = [
        ("create", fs::write(&new, "x")),
        ("write", write(OpenOptions::new().write(true))),
        ("append", write(OpenOptions::new().append(true))),
        (
            "truncate",
            write(OpenOptions::new().write(true).truncate(true)),
        ),
        (
            "read and write",
            write(OpenOptions::new().read(true).write(true)),
        ),
        (
            "set a length",
            File::open(&file).and_then(|file| file.set_len(0)),
        ),
        (
            "set a time",
            File::open(&file).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)),
        ),
        ("create a directory", fs::create_dir(&new)),
        ("remove a file", fs::remove_file(&file)),
        (
            "remove a directory",
            fs::remove_dir(format!("{path}/empty")),
        ),
        ("rename", fs::rename(&file, &new)),
        ("link", fs::hard_link(&file, &new)),
    ];
    let succeeded = attempts.into_iter().filter(|(_, result)| result.is_ok());
    succeeded.map(|(name, _)| name).collect()
}

fn hold(path: &str) -> io::Result<&'static str> {
    let mut file = File::open(path)?;
    file.read_exact(&mut [0])?;
    HELD.lock().expect("one call at a time").push(file);
    Ok("held")
}

fn held() -> io::Result<Value> {
    let mut held = HELD.lock().expect("one call at a time");
    let count = held.len();
    let mut rest = String::new();
    if let Some(file) = held.last_mut() {
        file.read_to_string(&mut rest)?;
    }
    Ok(json!([count, rest]))
}
