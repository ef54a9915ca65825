//! A session: sends commands, passes each reply to its caller, and sends empty lines so that the host does not end an idle
//! session.

use crate::connection::{ConnectOptions, Lines, Piece, Pieces, open};
use crate::error::Error;
use crate::generation::Event;
use crate::handle::LateError;
use crate::model::Model;
use crate::sequence::Cancellation;
use bytes::Bytes;
use hyper::client::conn::http1::SendRequest;
use serde::de::DeserializeOwned;
use serde_json::Value;
use session_protocol::{
    Call, Command, Content, Handle, Hello, MAX_LINE, RemainingBudget, Reply, VERSION,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Commands without a reply. A host runs as many at once.
const MAX_COMMANDS: usize = 512;
/// Bytes of commands that wait for the connection: a line of the longest, and others.
const MAX_UNSENT: usize = 2 * MAX_LINE;
/// How long the host may take to end a session that the program closes.
const CLOSING: Duration = Duration::from_secs(5);

/// A session on a host. Clones are the same session, which ends when all values of it are dropped.
#[derive(Clone)]
pub struct Session(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    replies: Arc<Replies>,
    commands: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
    last_number: AtomicU32,
    timeout: Duration,
    ended: watch::Receiver<bool>,
    // The connection lives as long as these.
    _sender: SendRequest<Pieces>,
    _tasks: JoinSet<()>,
}

/// What the reader of replies shares with the program.
pub(crate) struct Replies {
    pieces: mpsc::UnboundedSender<Piece>,
    last_id: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failure: Option<Error>,
    pending: HashMap<u64, Sent>,
}

/// A command without a reply.
struct Sent {
    pending: Pending,
    _place: Option<OwnedSemaphorePermit>,
}

/// Who gets the reply to a command.
pub(crate) enum Pending {
    Reply(oneshot::Sender<Result<Value, Error>>),
    Posted(LateError),
    Generation(mpsc::UnboundedSender<Event>),
    Cancelled(Cancellation),
    Ignored,
}

impl Session {
    /// Opens a session. `url` is the route of the host's plugin `sessions`.
    pub async fn connect(url: &str, options: &ConnectOptions) -> Result<Self, Error> {
        let (pieces, body) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let renewal = pieces.downgrade();
        let renew_every = options.renew_every;
        // Also while the host has no room for the session yet.
        tasks.spawn(async move {
            loop {
                sleep(renew_every).await;
                let line = Piece::Lines {
                    lines: Bytes::from_static(b"\n"),
                    _unsent: None,
                };
                match renewal.upgrade().map(|pieces| pieces.send(line)) {
                    Some(Ok(())) => {}
                    _ => return,
                }
            }
        });
        let (sender, mut lines) = open(url, options, Pieces(body), &mut tasks).await?;
        let hello = timeout(options.timeout, lines.next()).await;
        let hello = hello.map_err(|_| Error::TimedOut(options.timeout))??;
        let hello: Hello = parse(serde_json::from_slice(&hello))?;
        if hello.session != VERSION {
            let detail = format!(
                "the host speaks version {} of the session protocol; expected {VERSION}",
                hello.session
            );
            return Err(Error::Disconnected(detail));
        }
        let replies = Arc::new(Replies {
            pieces,
            last_id: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let (end, ended) = watch::channel(false);
        let reader = Arc::clone(&replies);
        tasks.spawn(async move {
            let error = reader.read(lines).await;
            reader.fail(&error);
            let _ = end.send(true);
        });
        Ok(Session(Arc::new(Shared {
            replies,
            commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
            unsent: Arc::new(Semaphore::new(MAX_UNSENT)),
            last_number: AtomicU32::new(0),
            timeout: options.timeout,
            ended,
            _sender: sender,
            _tasks: tasks,
        })))
    }

    /// Names of the models that the session may open. The first is the default.
    pub async fn available_models(&self) -> Result<Vec<String>, Error> {
        self.0.call(Call::Available).await
    }

    /// Opens a model by name; without a name, the default model.
    pub async fn open_model(&self, name: Option<&str>) -> Result<Model, Error> {
        Model::open(&self.0, name).await
    }

    /// The session's remaining tokens and time.
    pub async fn remaining_budget(&self) -> Result<RemainingBudget, Error> {
        self.0.call(Call::Remaining).await
    }

    /// Ends the session after its running commands. Later calls of its values fail. Dropping all values ends it at once.
    pub async fn close(self) {
        let _ = self.0.replies.pieces.send(Piece::End);
        let mut ended = self.0.ended.clone();
        let _ = timeout(CLOSING, ended.wait_for(|&ended| ended)).await;
        // What runs longer goes on until the last value is dropped, but nothing waits for it.
        self.0
            .replies
            .fail(&Error::Disconnected("the session is closed".into()));
    }
}

impl Shared {
    pub(crate) fn new_number(&self) -> Handle {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits at most as long as the host may be silent.
    pub(crate) async fn bounded<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        let result = timeout(self.timeout, future).await;
        result.map_err(|_| Error::TimedOut(self.timeout))
    }

    /// Sends a command, once fewer of them wait.
    pub(crate) async fn send(&self, call: Call, pending: Pending) -> Result<(), Error> {
        let (id, lines) = self.replies.line(call)?;
        let bytes = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        let room = async {
            let place = Arc::clone(&self.commands).acquire_owned().await;
            let unsent = Arc::clone(&self.unsent).acquire_many_owned(bytes).await;
            (place.ok(), unsent.ok())
        };
        let (_place, _unsent) = self.bounded(room).await?;
        let sent = Sent { pending, _place };
        self.replies
            .enqueue(id, Piece::Lines { lines, _unsent }, sent)
    }

    /// Sends a small command at once. The program's handles bound their number.
    pub(crate) fn send_now(&self, call: Call, pending: Pending) -> Result<(), Error> {
        self.replies.send_now(call, pending)
    }

    /// Sends a command and waits for its value.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let (sender, reply) = oneshot::channel();
        self.send(call, Pending::Reply(sender)).await?;
        match self.bounded(reply).await? {
            Ok(value) => parse(T::deserialize(value?)),
            Err(_) => Err(self.replies.failure()),
        }
    }
}

impl Replies {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> Error {
        let failure = self.state().failure.clone();
        failure.unwrap_or_else(|| Error::Disconnected("the session is closed".into()))
    }

    fn line(&self, call: Call) -> Result<(u64, Bytes), Error> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let line = serde_json::to_vec(&Command { id, call });
        let mut line = line.map_err(|error| Error::invalid(error.to_string()))?;
        if line.len() >= MAX_LINE {
            let length = line.len();
            let detail = format!("a command takes {length} bytes; a host takes {MAX_LINE}");
            return Err(Error::invalid(detail));
        }
        line.push(b'\n');
        Ok((id, line.into()))
    }

    fn enqueue(&self, id: u64, piece: Piece, sent: Sent) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.pending.insert(id, sent);
        // If the connection has ended, the reader fails all that is pending.
        let _ = self.pieces.send(piece);
        Ok(())
    }

    pub(crate) fn send_now(&self, call: Call, pending: Pending) -> Result<(), Error> {
        let (id, lines) = self.line(call)?;
        let piece = Piece::Lines {
            lines,
            _unsent: None,
        };
        let sent = Sent {
            pending,
            _place: None,
        };
        self.enqueue(id, piece, sent)
    }

    /// Sorts replies until the session ends. Returns why.
    async fn read(&self, mut lines: Lines) -> Error {
        loop {
            let line = match lines.next().await {
                Ok(line) => line,
                Err(error) => return error,
            };
            let reply = parse(serde_json::from_slice::<Reply<Value>>(&line));
            if let Err(error) = reply.and_then(|reply| self.receive(reply)) {
                return error;
            }
        }
    }

    fn receive(&self, reply: Reply<Value>) -> Result<(), Error> {
        let Reply { id, content } = reply;
        let result = match content {
            Content::Chunk(chunk) => {
                let state = self.state();
                let sent = state.pending.get(&id).map(|sent| &sent.pending);
                if let Some(Pending::Generation(events)) = sent {
                    // The program may have dropped the generation.
                    let _ = events.send(Event::Chunk(chunk));
                }
                return Ok(());
            }
            Content::Ok(value) => Ok(value),
            Content::Error(error) => Err(Error::Call(error)),
        };
        // The host ends the session, and says why.
        if id == 0 {
            let ended =
                |error| Error::Disconnected(format!("the host has ended the session: {error}"));
            return result.map(drop).map_err(ended);
        }
        let sent = self.state().pending.remove(&id);
        if let Some(sent) = sent {
            sent.pending.end(result, self);
        }
        Ok(())
    }

    fn fail(&self, error: &Error) {
        let pending = {
            let mut state = self.state();
            state.failure = Some(error.clone());
            std::mem::take(&mut state.pending)
        };
        for sent in pending.into_values() {
            sent.pending.end(Err(error.clone()), self);
        }
    }
}

impl Pending {
    fn end(self, result: Result<Value, Error>, replies: &Replies) {
        match self {
            // A receiver may have been dropped.
            Pending::Reply(sender) => drop(sender.send(result)),
            Pending::Posted(late) => {
                if let Err(error) = result {
                    late.set(error);
                }
            }
            Pending::Generation(events) => {
                let outcome = result.and_then(|value| parse(serde_json::from_value(value)));
                let _ = events.send(Event::End(outcome));
            }
            Pending::Cancelled(cancellation) => cancellation.end(result, replies),
            Pending::Ignored => {}
        }
    }
}

fn parse<T>(parsed: Result<T, serde_json::Error>) -> Result<T, Error> {
    parsed.map_err(|error| {
        Error::Disconnected(format!(
            "the host sent something unexpected: {error}; its version may not fit"
        ))
    })
}
