//! One listening socket and the connections it accepted.
//!
//! HTTP/1.1 and HTTP/2, told apart by ALPN under TLS and by the connection's first bytes without it.
//! What a client can make the server keep is bounded before hyper sees the connection: the number of
//! connections by a semaphore, and by a count for each address where that is asked for; the handshake
//! and the first bytes by time.

mod addresses;
mod connection;
mod outgoing;
mod preface;
mod socket;
mod streams;
mod wire;

use crate::access::Observed;
use crate::shutdown::{Phase, reached};
use crate::tls::Tls;
use crate::traffic::{End, Traffic};
use addresses::{Address, Addresses};
use connection::Connection;
use http::{Request, Response};
use hyper::body::Incoming;
use socket::{Accepted, Peer};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

pub(crate) use connection::Arrival;
pub(crate) use outgoing::Farewell;
pub(crate) use socket::{Socket, SocketFile, bind_file};

/// From the end of the grace time until connections are dropped: streams that can be ended whole are
/// told to.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How long the next client of the backlog is waited for at the end: it is there already, so this is
/// only for the system to say so.
const BACKLOG: Duration = Duration::from_millis(10);
/// How long the backlog is emptied at most.
const EMPTYING: Duration = Duration::from_millis(200);

/// Bytes that may be under way in each direction of a connection through memory: as many as the system
/// has for a socket, or so.
const MEMORY: usize = 64 << 10;

/// What clients may make the server hold on to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Connections of the public listener; beyond them, clients wait in the socket's backlog.
    /// 1,024: each costs some tens of kilobytes at worst over HTTP/1, and stays below common limits of
    /// open files.
    pub connections: usize,
    /// Connections of one client address (of one /64 for IPv6); further ones are closed at once. Not
    /// limited unless said: behind a proxy all clients have one address.
    pub connections_per_address: Option<usize>,
    /// How long a TLS handshake may take. 10 s.
    pub handshake_time: Duration,
    /// From a connection's first moment, or the end of an answer, until the next request's head is
    /// there. 30 s: also how long an idle connection is kept. A client that begins like HTTP/2 and then
    /// is something else has it twice.
    pub head_time: Duration,
    /// Size of a request's head. 32 KiB: twice what common proxies pass on.
    pub head_bytes: usize,
    /// How long a client may send nothing of a request's body that is waited for. 30 s.
    pub body_time: Duration,
    /// How long a client may leave an answer unread. 30 s.
    pub stall_time: Duration,
    /// How long the rest of a request's body is read and thrown away, when the answer is there before
    /// it. 2 s.
    pub discard_time: Duration,
    /// Requests of one HTTP/2 connection at once; further ones wait at the client. 128: the least that
    /// RFC 9113 recommends, rounded up.
    pub streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 1024,
            connections_per_address: None,
            handshake_time: Duration::from_secs(10),
            head_time: Duration::from_secs(30),
            head_bytes: 32 << 10,
            body_time: Duration::from_secs(30),
            stall_time: Duration::from_secs(30),
            discard_time: Duration::from_secs(2),
            streams: 128,
        }
    }
}

/// Why an address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else listens there.
    #[error("{0} is in use; stop what listens there or choose another address")]
    InUse(String),
    /// Anybody could change what is deployed.
    #[error(
        "the admin listener on {0} can be reached from other machines and has no token; give one with --admin-token-file, or keep --admin on 127.0.0.1"
    )]
    Unguarded(String),
    /// The operating system says no, or there is no such address.
    #[error(
        "cannot listen on {address}: {cause}; give HOST:PORT of this machine, e.g. 127.0.0.1:8080"
    )]
    Refused {
        /// The address as it was given.
        address: String,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The operating system says no to a socket in the file system.
    #[error(
        "cannot listen on unix:{}: {cause}; give a path in a folder that this user can write, of at most 107 bytes, e.g. unix:/run/corral/admin.sock",
        path.display()
    )]
    File {
        /// The path as it was given.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// Something else has the name.
    #[error("{} is there and is no socket; choose another path, or move it away", .0.display())]
    NoSocket(PathBuf),
}

/// Binds `address`, `HOST:PORT`.
pub(crate) async fn bind(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|cause| {
        let address = address.to_owned();
        match cause.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(address),
            _ => BindError::Refused { address, cause },
        }
    })
}

/// What a listener needs beside its socket.
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    /// Without it connections are not encrypted.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Where connections are counted; not everyone's are.
    pub(crate) traffic: Option<Arc<Traffic>>,
}

/// A listener that accepts.
pub(crate) struct Listener {
    phase: watch::Sender<Phase>,
    places: Arc<Semaphore>,
    connections: u32,
    accepting: JoinHandle<()>,
    connect: Connect,
}

/// Serves a connection that comes through memory, if there is a place for it.
type Connect = Box<dyn Fn() -> Option<DuplexStream> + Send + Sync>;

impl Listener {
    /// Starts to accept on `socket` and to answer with `answer`.
    pub(crate) fn start<H, F>(socket: Socket, setup: Setup, answer: H) -> Self
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Observed>> + Send + 'static,
    {
        let limits = &setup.limits;
        let connections = limits
            .connections
            .clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let places = Arc::new(Semaphore::new(connections));
        let (phase, seen) = watch::channel(Phase::Serving);
        let addresses = limits.connections_per_address.map(Addresses::new);
        let setup = Arc::new(setup);
        let connect = connect(&places, &seen, &setup, &answer);
        let accept = Accept {
            socket,
            places: places.clone(),
            addresses,
            phase: seen,
            setup,
            answer,
        };
        Listener {
            phase,
            places,
            // Clamped above.
            connections: connections as u32,
            accepting: tokio::spawn(accept.run()),
            connect,
        }
    }

    /// The other end of a new connection of this process, which no socket is in the way of. `None` if the
    /// listener has as many connections as it may, the place that it holds for who comes next among them.
    pub(crate) fn connect(&self) -> Option<DuplexStream> {
        (self.connect)()
    }

    /// Stops accepting, lets what runs end while `until` has not come, and cuts off the rest.
    /// Returns whether everything ended by itself.
    pub(crate) async fn drain(self, until: impl Future<Output = ()>) -> bool {
        self.phase.send_replace(Phase::Draining);
        // It ends soon, and with it the socket is closed.
        let _ = self.accepting.await;
        let all_ended = || async { self.places.acquire_many(self.connections).await.is_ok() };
        let in_time = tokio::select! {
            ended = all_ended() => ended,
            () = until => false,
        };
        self.phase.send_replace(Phase::Ending);
        if !in_time {
            // What can be ended whole is on its way; a bit more than connections give it.
            let _ = tokio::time::timeout(2 * LAST_MOMENT, all_ended()).await;
        }
        in_time
    }
}

struct Accept<H> {
    socket: Socket,
    places: Arc<Semaphore>,
    addresses: Option<Addresses>,
    phase: watch::Receiver<Phase>,
    setup: Arc<Setup>,
    answer: H,
}

impl<H, F> Accept<H>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Observed>> + Send + 'static,
{
    async fn run(mut self) {
        loop {
            let accepted = tokio::select! {
                // First, so that a flood of clients can't hold up the end.
                biased;
                () = reached(&mut self.phase, Phase::Draining) => break,
                accepted = accept(&self.socket, &self.places) => accepted,
            };
            match accepted {
                Ok((stream, peer, place)) => self.serve(stream, peer, place),
                Err(error) => {
                    // Most often too many open files: connections have to end first. The waiting
                    // client stays in the backlog, so without a pause this would spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        // Who is in the backlog was told that it is connected, and may have sent its request. At most
        // as many as there are places, and not those who keep coming.
        let until = tokio::time::Instant::now() + EMPTYING;
        for _ in 0..self.setup.limits.connections {
            let next = accept(&self.socket, &self.places);
            let patience = until.min(tokio::time::Instant::now() + BACKLOG);
            match tokio::time::timeout_at(patience, next).await {
                Ok(Ok((stream, peer, place))) => self.serve(stream, peer, place),
                _ => break,
            }
            if tokio::time::Instant::now() >= until {
                break;
            }
        }
    }

    fn serve(&self, stream: Accepted, peer: Peer, place: OwnedSemaphorePermit) {
        let address = match (&self.addresses, peer) {
            (None, _) | (_, Peer::Process) => None,
            (Some(addresses), Peer::Address(address)) => match addresses.enter(address.ip()) {
                Some(address) => Some(address),
                None => {
                    tracing::debug!(%peer, "too many connections of one address");
                    if let Some(traffic) = &self.setup.traffic {
                        traffic.ended(End::AddressFull);
                    }
                    return;
                }
            },
        };
        // Without it, Nagle's algorithm holds small chunks of a stream back for 40 ms.
        if let Accepted::Tcp(stream) = &stream
            && let Err(error) = stream.set_nodelay(true)
        {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let counted = self.setup.traffic.as_ref().map(Traffic::connection);
        let connection = Connection {
            peer,
            setup: self.setup.clone(),
            phase: self.phase.clone(),
            answer: self.answer.clone(),
        };
        tokio::spawn(async move {
            connection.serve(stream).await;
            drop::<(_, Option<Address>, _)>((counted, address, place));
        });
    }
}

/// What [`Listener::connect`] does, on the tokio runtime that this is called in.
fn connect<H, F>(
    places: &Arc<Semaphore>,
    phase: &watch::Receiver<Phase>,
    setup: &Arc<Setup>,
    answer: &H,
) -> Connect
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Observed>> + Send + 'static,
{
    let (places, phase) = (places.clone(), phase.clone());
    let (setup, answer) = (setup.clone(), answer.clone());
    let tokio = Handle::current();
    Box::new(move || {
        let place = places.clone().try_acquire_owned().ok()?;
        let (client, stream) = duplex(MEMORY);
        let counted = setup.traffic.as_ref().map(Traffic::connection);
        let connection = Connection {
            peer: Peer::Process,
            setup: setup.clone(),
            phase: phase.clone(),
            answer: answer.clone(),
        };
        tokio.spawn(async move {
            connection.serve(Accepted::Memory(stream)).await;
            drop((counted, place));
        });
        Some(client)
    })
}

/// The next connection, once there is a place for it.
async fn accept(
    socket: &Socket,
    places: &Arc<Semaphore>,
) -> io::Result<(Accepted, Peer, OwnedSemaphorePermit)> {
    let place = places
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, peer) = socket.accept().await?;
    Ok((stream, peer, place))
}
