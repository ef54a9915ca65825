//! The instance's session: sends commands and sorts the replies.
//!
//! Replies come in any order. [`call`] waits for its own; [`post`] does not wait, and an error that comes later is the
//! result of the next call on the same handle, which [`call_about`] makes. Chunks of a generation wait in its inbox until
//! the plugin reads them; a generation's length bounds them.
//!
//! A session that has ended is opened anew once the program holds nothing of it: a runtime may use an instance for several
//! requests, with pauses between them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

use serde::de::DeserializeOwned;
use serde_json::Value;
use session_protocol::{
    Call, Chunk, Command, Content, Error, Handle, Hello, Kind, MAX_LINE, Outcome, Reply, VERSION,
};

use crate::bindings::exports::corral::inference::types;
use crate::connection::Connection;
use crate::convert;

/// Sequences that a program may hold at once: the limit of the host, which replies too late for a program that makes one
/// after another.
const MAX_SEQUENCES: u32 = 256;
/// Commands whose replies may be missing. A host with more of them does not read.
const MAX_POSTED: usize = 256;

thread_local! {
    static SESSION: RefCell<Option<Result<Session, Error>>> = const { RefCell::new(None) };
    /// Handles and generations that the program holds.
    static OPEN_HANDLES: Cell<u32> = const { Cell::new(0) };
    /// The sequences among them.
    static SEQUENCES: Cell<u32> = const { Cell::new(0) };
    static LAST_NUMBER: Cell<Handle> = const { Cell::new(0) };
}

struct Session {
    connection: Connection,
    has_ended: bool,
    last_id: u64,
    /// The command whose result is waited for, and the result.
    awaited: u64,
    result: Option<Result<Value, Error>>,
    /// Commands whose replies nobody waits for, and their handles.
    posted: HashMap<u64, (Kind, Handle)>,
    /// Late errors.
    errors: HashMap<(Kind, Handle), Error>,
    generations: HashMap<u64, Inbox>,
}

/// What has arrived of a generation.
#[derive(Default)]
struct Inbox {
    chunks: VecDeque<Chunk>,
    end: Option<Result<Outcome, Error>>,
}

/// Calls a function with the session; opens it first. Errors have the type of the exports.
fn with_session<T>(
    function: impl FnOnce(&mut Session) -> Result<T, Error>,
) -> Result<T, types::Error> {
    discard_ended_session();
    let result =
        SESSION.with_borrow_mut(|session| match session.get_or_insert_with(Session::open) {
            Ok(session) => function(session),
            Err(error) => Err(error.clone()),
        });
    result.map_err(convert::error)
}

/// Discards a session that has ended, if the program holds nothing of it. The next call then opens another one.
fn discard_ended_session() {
    if OPEN_HANDLES.get() > 0 {
        return;
    }
    SESSION.with_borrow_mut(|session| {
        let has_ended = match session {
            Some(Ok(session)) => session.has_ended,
            Some(Err(_)) => true,
            None => false,
        };
        if has_ended {
            *session = None;
        }
    });
}

/// A number that the program has not used yet.
pub(crate) fn new_number() -> Handle {
    let number = LAST_NUMBER.get() + 1;
    LAST_NUMBER.set(number);
    number
}

/// Counts a handle or generation of the session. While one is there, no other session takes the place of this one.
pub(crate) struct HandleGuard(());

impl HandleGuard {
    pub(crate) fn new() -> Self {
        discard_ended_session();
        OPEN_HANDLES.set(OPEN_HANDLES.get() + 1);
        HandleGuard(())
    }
}

impl Drop for HandleGuard {
    fn drop(&mut self) {
        OPEN_HANDLES.set(OPEN_HANDLES.get() - 1);
    }
}

/// A handle of the session. Dropping it drops the host's.
pub(crate) struct OwnedHandle {
    kind: Kind,
    pub(crate) number: Handle,
    _guard: HandleGuard,
}

impl OwnedHandle {
    pub(crate) fn new(kind: Kind) -> Self {
        let guard = HandleGuard::new();
        if kind == Kind::Sequence {
            SEQUENCES.set(SEQUENCES.get() + 1);
        }
        OwnedHandle {
            kind,
            number: new_number(),
            _guard: guard,
        }
    }

    /// A handle of a sequence, if the program may hold one more.
    pub(crate) fn new_sequence() -> Result<Self, types::Error> {
        if SEQUENCES.get() == MAX_SEQUENCES {
            return Err(types::Error::Invalid(format!(
                "the plugin holds the maximum of {MAX_SEQUENCES} sequences; drop some"
            )));
        }
        Ok(Self::new(Kind::Sequence))
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        let (kind, handle) = (self.kind, self.number);
        SESSION.with_borrow_mut(|session| {
            if let Some(Ok(session)) = session
                && !session.has_ended
            {
                session.errors.remove(&(kind, handle));
                // An error ends the session, which the next call reports.
                if let Ok(id) = session.send(Call::Drop { kind, handle }) {
                    session.posted.insert(id, (kind, handle));
                }
            }
        });
        if kind == Kind::Sequence {
            SEQUENCES.set(SEQUENCES.get() - 1);
        }
    }
}

/// Sends a command and waits for its value.
pub(crate) fn call<T: DeserializeOwned>(call: Call) -> Result<T, types::Error> {
    with_session(|session| {
        session.awaited = session.send(call)?;
        let value = loop {
            match session.result.take() {
                Some(result) => break result?,
                None => session.receive()?,
            }
        };
        parse(value)
    })
}

/// Like [`call`], for a command about a handle. The error of an earlier one takes the place of the result.
pub(crate) fn call_about<T: DeserializeOwned>(
    kind: Kind,
    handle: Handle,
    call: Call,
) -> Result<T, types::Error> {
    let result = self::call(call);
    settle(kind, handle)?;
    result
}

/// Waits for the replies to all commands about a handle. Returns an error among them.
pub(crate) fn settle(kind: Kind, handle: Handle) -> Result<(), types::Error> {
    with_session(|session| {
        let about = (kind, handle);
        while session.posted.values().any(|other| *other == about) {
            session.receive()?;
        }
        session.check(kind, handle)
    })
}

/// Sends a command about a handle without waiting. Returns an earlier one's error.
pub(crate) fn post(kind: Kind, handle: Handle, call: Call) -> Result<(), types::Error> {
    with_session(|session| {
        while session.posted.len() >= MAX_POSTED {
            session.receive()?;
        }
        session.check(kind, handle)?;
        let id = session.send(call)?;
        session.posted.insert(id, (kind, handle));
        Ok(())
    })
}

/// Returns the error of an earlier command about the handle.
pub(crate) fn check(kind: Kind, handle: Handle) -> Result<(), types::Error> {
    with_session(|session| session.check(kind, handle))
}

/// Starts a generation and returns its number.
pub(crate) fn generate(call: Call) -> Result<u64, types::Error> {
    with_session(|session| {
        let id = session.send(call)?;
        session.generations.insert(id, Inbox::default());
        // The first chunk is empty.
        match session.next_chunk(id)? {
            Some(_) => Ok(id),
            None => session.take_outcome(id).and_then(|_| {
                Err(Error::Failed {
                    detail: "the host ended a generation that it had not started".into(),
                })
            }),
        }
    })
}

/// Waits for the next chunk of a generation. `None` at the end.
pub(crate) fn next_chunk(id: u64) -> Result<Option<Chunk>, types::Error> {
    with_session(|session| session.next_chunk(id))
}

/// Removes a generation and returns its outcome, once `next_chunk` has returned `None`.
pub(crate) fn take_outcome(id: u64) -> Result<Outcome, types::Error> {
    with_session(|session| session.take_outcome(id))
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(value).map_err(unexpected)
}

fn unexpected(error: serde_json::Error) -> Error {
    Error::Failed {
        detail: format!(
            "the Corral host sent an unexpected line: {error}; its version may not fit"
        ),
    }
}

impl Session {
    fn open() -> Result<Self, Error> {
        let mut connection = Connection::open()?;
        let line = connection.receive()?;
        let hello: Hello = serde_json::from_slice(&line).map_err(unexpected)?;
        if hello.session != VERSION {
            return Err(Error::Failed {
                detail: format!(
                    "the Corral host speaks version {} of the session protocol; this component expects {VERSION}",
                    hello.session
                ),
            });
        }
        Ok(Session {
            connection,
            has_ended: false,
            last_id: 0,
            awaited: 0,
            result: None,
            posted: HashMap::new(),
            errors: HashMap::new(),
            generations: HashMap::new(),
        })
    }

    fn send(&mut self, call: Call) -> Result<u64, Error> {
        self.last_id += 1;
        let id = self.last_id;
        let mut line = serde_json::to_vec(&Command { id, call }).map_err(unexpected)?;
        if line.len() > MAX_LINE {
            let length = line.len();
            return Err(Error::Invalid {
                detail: format!(
                    "the call's arguments take {length} bytes on the way to the Corral host; the limit is {MAX_LINE}"
                ),
            });
        }
        line.push(b'\n');
        let sent = self.connection.send(&line);
        self.has_ended |= sent.is_err();
        sent.map(|()| id)
    }

    /// Waits for a line and sorts it.
    fn receive(&mut self) -> Result<(), Error> {
        let line = self.connection.receive();
        let reply = line.and_then(|line| serde_json::from_slice(&line).map_err(unexpected));
        self.has_ended |= reply.is_err();
        let Reply { id, content }: Reply<Value> = reply?;
        if let Some(inbox) = self.generations.get_mut(&id) {
            match content {
                Content::Chunk(chunk) => inbox.chunks.push_back(chunk),
                Content::Ok(outcome) => inbox.end = Some(parse(outcome)),
                Content::Error(error) => inbox.end = Some(Err(error)),
            }
            return Ok(());
        }
        let result = match content {
            Content::Ok(value) => Ok(value),
            // About the session: the host knows all commands of this version.
            Content::Error(error) if id == 0 => {
                self.has_ended = true;
                return Err(error);
            }
            Content::Error(error) => Err(error),
            // Of a generation that was cancelled.
            Content::Chunk(_) => return Ok(()),
        };
        match (self.posted.remove(&id), result) {
            (Some(about), Err(error)) => {
                self.errors.entry(about).or_insert(error);
            }
            (None, result) if id == self.awaited => self.result = Some(result),
            // A generation's that was cancelled may come after that of the cancellation.
            (_, _) => {}
        }
        Ok(())
    }

    fn check(&mut self, kind: Kind, handle: Handle) -> Result<(), Error> {
        match self.errors.get(&(kind, handle)) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn next_chunk(&mut self, id: u64) -> Result<Option<Chunk>, Error> {
        loop {
            let Some(inbox) = self.generations.get_mut(&id) else {
                return Ok(None);
            };
            match inbox.chunks.pop_front() {
                Some(chunk) => return Ok(Some(chunk)),
                None if inbox.end.is_some() => return Ok(None),
                None => self.receive()?,
            }
        }
    }

    fn take_outcome(&mut self, id: u64) -> Result<Outcome, Error> {
        let end = self.generations.remove(&id).and_then(|inbox| inbox.end);
        end.unwrap_or(Err(Error::Cancelled))
    }
}
