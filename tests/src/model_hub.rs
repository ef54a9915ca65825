//! A hub of models on this machine: its API, its redirects to a storage of another origin, and its failures.

use crate::{StubRequest, serve_stub};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// The repository of a [`Hub`], unless a test names another.
pub const HUB_REPO: &str = "org/tiny-GGUF";

/// A server that answers as the hub does, with one repository. Its threads end with the process.
pub struct Hub {
    /// For `HF_ENDPOINT`.
    pub endpoint: String,
    state: Arc<Mutex<HubState>>,
}

/// What a [`Hub`] has and does, and the requests it got.
#[derive(Default)]
pub struct HubState {
    /// The repository.
    pub repo: String,
    /// Files of the repository.
    pub files: Vec<HubFile>,
    /// The only token with access; none is needed without it.
    pub token: Option<String>,
    /// How the storage behaves.
    pub storage: Storage,
    /// Requests so far.
    pub requests: Vec<HubRequest>,
    storage_address: String,
}

/// A file of the repository.
#[derive(Clone)]
pub struct HubFile {
    /// Its path in the repository.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
    /// The size that the hub states.
    pub size: u64,
    /// The checksum that the hub states.
    pub sha256: String,
}

/// How the storage answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// With the content.
    #[default]
    Healthy,
    /// With half of the content; the next request finds it [broken](Self::Broken).
    CutThenBroken,
    /// With half of the content; the next request finds it healthy.
    CutOnce,
    /// With 503.
    Broken,
}

/// A request as the server read it.
#[derive(Clone, Debug)]
pub struct HubRequest {
    /// Whether it went to the storage, not to the hub itself.
    pub is_storage: bool,
    /// Its path.
    pub path: String,
    /// Its headers by lower-case name.
    pub headers: HashMap<String, String>,
}

impl HubFile {
    /// A file with the right size and checksum.
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            bytes: bytes.to_owned(),
            size: bytes.len() as u64,
            sha256: format!("{:x}", Sha256::digest(bytes)),
        }
    }
}

impl Hub {
    /// Starts a hub whose repository, [`HUB_REPO`], has these files.
    pub fn start(files: Vec<HubFile>) -> Self {
        Self::start_with(HUB_REPO, files)
    }

    /// [`Hub::start`] with another repository.
    pub fn start_with(repo: &str, files: Vec<HubFile>) -> Self {
        let state = Arc::new(Mutex::new(HubState {
            repo: repo.to_owned(),
            files,
            ..HubState::default()
        }));
        let storage = listen(&state, true);
        state.lock().expect("no panic while held").storage_address = storage;
        Self {
            endpoint: listen(&state, false),
            state,
        }
    }

    /// What it has and does.
    pub fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().expect("no panic while held")
    }

    /// The requests that the storage got.
    pub fn storage_requests(&self) -> Vec<HubRequest> {
        let requests = self.state().requests.clone();
        requests
            .into_iter()
            .filter(|request| request.is_storage)
            .collect()
    }
}

/// Serves on a free port; returns its address.
fn listen(state: &Arc<Mutex<HubState>>, is_storage: bool) -> String {
    let state = state.clone();
    let address = serve_stub(move |StubRequest { target, headers }| {
        let request = HubRequest {
            is_storage,
            path: target,
            headers,
        };
        let mut state = state.lock().expect("no panic while held");
        state.requests.push(request.clone());
        match is_storage {
            true => stored(&mut state, &request),
            false => answered(&state, &request),
        }
    });
    format!("http://{address}")
}

/// The hub's own answer: head and body.
fn answered(state: &HubState, request: &HubRequest) -> (String, Vec<u8>) {
    let none = |status: &str, code: &str| {
        let head = format!("{status}\r\nx-error-code: {code}\r\ncontent-length: 0");
        (head, Vec::new())
    };
    let token = request.headers.get("authorization");
    let token = token.and_then(|value| value.strip_prefix("Bearer "));
    let has_access = state.token.is_none() || state.token.as_deref() == token;
    if token.is_some() && !has_access {
        return none("401 Unauthorized", "Unauthorized");
    }
    let repo = &state.repo;
    if request.path == format!("/api/models/{repo}?blobs=true") {
        let file = |file: &HubFile| {
            json!({
                "rfilename": file.name,
                "size": file.size,
                "lfs": {"sha256": file.sha256, "size": file.size, "pointerSize": 135},
            })
        };
        let mut siblings: Vec<Value> = state.files.iter().map(file).collect();
        siblings.push(json!({"rfilename": "README.md", "size": 5}));
        let list = json!({"id": repo, "sha": "c0ffee", "siblings": siblings}).to_string();
        return (
            format!("200 OK\r\ncontent-length: {}", list.len()),
            list.into(),
        );
    }
    let file = request
        .path
        .strip_prefix(&format!("/{repo}/resolve/c0ffee/"));
    let file = file.and_then(|name| state.files.iter().find(|file| file.name == name));
    match file {
        Some(_) if !has_access => none("403 Forbidden", "GatedRepo"),
        Some(file) => {
            let location = format!("{}/{}?signature=1", state.storage_address, file.name);
            let head = format!(
                "302 Found\r\nlocation: {location}\r\nx-linked-etag: \"{}\"\r\netag: \"of the redirect\"\r\n\
                 x-linked-size: {}\r\ncontent-length: 0",
                file.sha256, file.size
            );
            (head, Vec::new())
        }
        // Without a token the hub does not tell whether a repository exists.
        None if token.is_none() => none("401 Unauthorized", "RepoNotFound"),
        None => none("404 Not Found", "RepoNotFound"),
    }
}

/// The storage's answer: head and body, which may be shorter than the head states.
fn stored(state: &mut HubState, request: &HubRequest) -> (String, Vec<u8>) {
    let storage = state.storage;
    state.storage = match storage {
        Storage::CutThenBroken => Storage::Broken,
        Storage::CutOnce => Storage::Healthy,
        other => other,
    };
    if storage == Storage::Broken {
        let head = "503 Service Unavailable\r\ncontent-length: 0";
        return (head.to_owned(), Vec::new());
    }
    let name = request.path.split(['/', '?']).nth(1).unwrap_or_default();
    let file = state.files.iter().find(|file| file.name == name);
    let bytes = &file.expect("the redirect names a file").bytes;
    let range = request.headers.get("range");
    let start = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let start: usize = start.map_or(0, |start| start.parse().expect("a number"));
    if start >= bytes.len() {
        let head = "416 Range Not Satisfiable\r\ncontent-length: 0";
        return (head.to_owned(), Vec::new());
    }
    let body = &bytes[start..];
    let status = match start {
        0 => "200 OK".to_owned(),
        _ => {
            let (last, all) = (bytes.len() - 1, bytes.len());
            format!("206 Partial Content\r\ncontent-range: bytes {start}-{last}/{all}")
        }
    };
    let head = format!("{status}\r\ncontent-length: {}", body.len());
    let sent = match storage {
        Storage::Healthy => body.len(),
        _ => body.len() / 2,
    };
    (head, body[..sent].to_owned())
}
