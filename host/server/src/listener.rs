//! A listening socket and its connections.
//!
//! Serves HTTP/1.1 and HTTP/2, distinguished by ALPN under TLS and by the first bytes otherwise. Bounds
//! what a client can occupy before hyper sees the connection: the number of connections, in total and
//! per client address, and the time of the TLS handshake and of the first bytes.

mod address_limiter;
mod byte_stream;
mod connection;
mod connection_streams;
mod header_timer;
mod http_version;
mod log_interval;
mod reserved_files;
mod response_body;
mod socket;
mod unsent_bytes;

use crate::http_counters::{HttpCounters, TerminationReason};
use crate::problem::Problem;
use crate::request_log::LoggedBody;
use crate::shutdown::{ListenerPhase, reached};
use crate::tls::Tls;
use address_limiter::AddressLimiter;
use connection::Connection;
use http::{Request, Response};
use hyper::body::Incoming;
use log_interval::LogInterval;
use socket::{AcceptedStream, Peer};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub(crate) use reserved_files::ReservedFiles;
pub(crate) use response_body::StreamEnd;
pub(crate) use socket::{Socket, UnixSocketFile, bind_unix, set_options};

/// From the end of the grace period until connections are dropped: time for event streams to send their
/// final event.
const FINAL_EVENT_TIME: Duration = Duration::from_secs(1);

/// Wait for the next client of the backlog at shutdown; it is connected already, so this only covers the
/// system call.
const BACKLOG_ACCEPT_TIMEOUT: Duration = Duration::from_millis(10);
/// Time limit for emptying the backlog at shutdown.
const BACKLOG_TOTAL_TIMEOUT: Duration = Duration::from_millis(200);

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Buffer of an in-memory connection per direction, similar to that of a socket.
const MEMORY_BUFFER: usize = 64 << 10;

/// Bounds on what clients can occupy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// Connections of the public listener; further clients wait in the socket's backlog. Default 1,024:
    /// each costs some tens of kilobytes over HTTP/1 at worst.
    pub max_connections: usize,
    /// Connections of one client address, or of one /64 for IPv6; further ones get 429 and are closed at
    /// once. By default three for each one that stays free, at least 8: one address can use three quarters of all.
    pub max_connections_per_address: Option<usize>,
    /// Connections of the admin listener: a scraper, a prober, a few people and their consoles. One address gets three
    /// quarters of them: those that follow logs and events, and others. Default 64.
    pub max_admin_connections: usize,
    /// Time limit for a TLS handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Time limit from the start of a connection, or the end of a response, to the next complete request
    /// header. Also limits idle connections. Default 30 s. A client that starts like HTTP/2 but is not
    /// gets it twice.
    pub header_timeout: Duration,
    /// Size limit for a request header. Default 32 KiB: twice what common proxies forward.
    pub max_header_bytes: usize,
    /// Time limit for a pause within a request's body that the plugin waits for. Default 30 s.
    pub body_idle_timeout: Duration,
    /// Time limit for a client to read more of its response. Default 30 s.
    pub write_timeout: Duration,
    /// How long a stream of server-sent events may be silent before it gets a comment. Default 15 s: proxies and
    /// clients give up after 30 s at the earliest. `None`: no comments.
    pub event_keep_alive: Option<Duration>,
    /// How long to read and discard the rest of a request's body after an early response. Default 2 s.
    pub discard_timeout: Duration,
    /// Concurrent requests of an HTTP/2 connection; the client holds back further ones. Default 128: the
    /// minimum that RFC 9113 recommends, rounded up.
    pub max_concurrent_streams: u32,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            max_connections: 1024,
            max_connections_per_address: None,
            max_admin_connections: 64,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            max_header_bytes: 32 << 10,
            body_idle_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            event_keep_alive: Some(Duration::from_secs(15)),
            discard_timeout: Duration::from_secs(2),
            max_concurrent_streams: 128,
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is in use.
    #[error("{0} is in use; stop what listens there or choose another address")]
    InUse(String),
    /// Without a token, other machines could change deployments.
    #[error(
        "other machines can reach the admin listener on {0}, and it has no token; give one with --admin-token-file, or keep --admin on 127.0.0.1"
    )]
    TokenRequired(String),
    /// The operating system refuses, or the address does not exist.
    #[error(
        "cannot listen on {address}: {cause}; give HOST:PORT of this machine, e.g. 127.0.0.1:8080"
    )]
    Refused {
        /// The address as given.
        address: String,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The operating system refuses a Unix domain socket.
    #[error(
        "cannot listen on unix:{}: {cause}; give a path in a writable directory, of at most 107 bytes, e.g. unix:/run/corral/admin.sock",
        path.display()
    )]
    UnixSocket {
        /// The path as given.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// A socket that the service manager opened cannot be used.
    #[error("cannot listen on a socket of the service manager: {0}; check its socket unit")]
    Inherited(io::Error),
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket; choose another path, or move it away", .0.display())]
    NotASocket(PathBuf),
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

/// Options of a listener beside its socket.
pub(crate) struct ListenerConfig {
    pub(crate) limits: HttpLimits,
    /// Without it, connections are not encrypted.
    pub(crate) tls: Option<Arc<Tls>>,
    /// `None` on the admin listener, whose connections are not counted.
    pub(crate) counters: Option<Arc<HttpCounters>>,
    /// Descriptors for the admin listener when no others are free.
    pub(crate) reserved_files: Arc<ReservedFiles>,
    /// Whether connections of this listener use the reserved descriptors. Other listeners accept only while none is
    /// missing.
    pub(crate) uses_reserved_files: bool,
    /// The socket outlives this process. So clients wait in its backlog from the end of one process until the next
    /// one is ready: the listener accepts from [`Listener::accept`] on, and leaves the backlog at shutdown.
    pub(crate) inherited: bool,
}

/// A listener that accepts connections.
pub(crate) struct Listener {
    phase: watch::Sender<ListenerPhase>,
    /// One permit per connection.
    permits: Arc<Semaphore>,
    max_connections: u32,
    accept_task: JoinHandle<()>,
    connect: Connect,
}

/// Opens an in-memory connection, if a permit is free.
type Connect = Box<dyn Fn() -> Option<DuplexStream> + Send + Sync>;

impl Listener {
    /// Starts to accept on `socket` and to answer with `answer`.
    pub(crate) fn start<H, F>(socket: Socket, config: ListenerConfig, answer: H) -> Self
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<LoggedBody>> + Send + 'static,
    {
        let limits = &config.limits;
        let max_connections = limits
            .max_connections
            .clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let permits = Arc::new(Semaphore::new(max_connections));
        let (phase, phase_receiver) = watch::channel(match config.inherited {
            true => ListenerPhase::Waiting,
            false => ListenerPhase::Serving,
        });
        let connections = Arc::new(Connections {
            permits: permits.clone(),
            addresses: AddressLimiter::new(limits.max_connections_per_address),
            address_log: LogInterval::default(),
            phase: phase_receiver,
            config: Arc::new(config),
            answer,
            tokio: Handle::current(),
        });
        Listener {
            phase,
            permits,
            // Clamped above.
            max_connections: max_connections as u32,
            accept_task: tokio::spawn(accept_loop(socket, connections.clone())),
            connect: Box::new(move || connections.connect()),
        }
    }

    /// Opens an in-memory connection and returns the client's end. `None` if no connection is free; the
    /// accept loop reserves one for the next client of the socket.
    pub(crate) fn connect(&self) -> Option<DuplexStream> {
        (self.connect)()
    }

    /// Starts to accept, if the listener waits for it.
    pub(crate) fn accept(&self) {
        self.phase.send_if_modified(|phase| {
            let waits = *phase == ListenerPhase::Waiting;
            if waits {
                *phase = ListenerPhase::Serving;
            }
            waits
        });
    }

    /// Whether the listener still accepts connections, or can.
    pub(crate) fn is_alive(&self) -> bool {
        !self.accept_task.is_finished()
    }

    /// Stops accepting, lets running requests end until `deadline` completes, and cuts off the rest.
    /// Returns whether every request ended by itself.
    pub(crate) async fn drain(self, deadline: impl Future<Output = ()>) -> bool {
        self.phase.send_replace(ListenerPhase::Draining);
        // Closes the socket.
        let _ = self.accept_task.await;
        let all_ended = || async {
            self.permits
                .acquire_many(self.max_connections)
                .await
                .is_ok()
        };
        let in_time = tokio::select! {
            ended = all_ended() => ended,
            () = deadline => false,
        };
        self.phase.send_replace(ListenerPhase::Ending);
        if !in_time {
            // Connections drop themselves after half of this time.
            let _ = tokio::time::timeout(2 * FINAL_EVENT_TIME, all_ended()).await;
        }
        in_time
    }
}

/// Serves connections until the listener drains.
async fn accept_loop<H, F>(socket: Socket, connections: Arc<Connections<H>>)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<LoggedBody>> + Send + 'static,
{
    let mut phase = connections.phase.clone();
    let config = &connections.config;
    let log = LogInterval::default();
    reached(&mut phase, ListenerPhase::Serving).await;
    loop {
        let accepted = tokio::select! {
            // Checked first, so that a flood of clients cannot delay the shutdown.
            biased;
            () = reached(&mut phase, ListenerPhase::Draining) => break,
            accepted = connections.accept_if_files_suffice(&socket) => accepted,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                connections.serve(stream, peer, permit);
                if config.uses_reserved_files {
                    config.reserved_files.refill();
                }
            }
            // The client stays in the backlog, and gets the descriptor that is free now.
            Err(error) if config.uses_reserved_files && config.reserved_files.release(&error) => {}
            Err(error) => {
                if let Some(counters) = &config.counters {
                    counters.count_accept_error();
                }
                if log.should_log() {
                    tracing::warn!(%error, "cannot accept connections; trying again every {ACCEPT_RETRY:?}");
                }
                // Usually too many open files, until connections end. The client stays in the
                // backlog, so without a pause this loop would spin.
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    if config.inherited {
        return;
    }
    // Serves the clients of the backlog: they are connected and may have sent a request. Bounded in number
    // and time, so that new clients cannot delay the shutdown.
    let until = Instant::now() + BACKLOG_TOTAL_TIMEOUT;
    for _ in 0..connections.config.limits.max_connections {
        let deadline = until.min(Instant::now() + BACKLOG_ACCEPT_TIMEOUT);
        match timeout_at(deadline, connections.accept(&socket)).await {
            Ok(Ok((stream, peer, permit))) => connections.serve(stream, peer, permit),
            _ => break,
        }
        if Instant::now() >= until {
            break;
        }
    }
}

/// Starts the connections of a listener.
struct Connections<H> {
    permits: Arc<Semaphore>,
    addresses: AddressLimiter,
    address_log: LogInterval,
    phase: watch::Receiver<ListenerPhase>,
    config: Arc<ListenerConfig>,
    answer: H,
    tokio: Handle,
}

impl<H, F> Connections<H>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<LoggedBody>> + Send + 'static,
{
    /// Accepts the next connection. A listener that may not use the reserved descriptors first waits until none is missing:
    /// otherwise its clients would take the descriptors of closed admin connections, until no reserved one is left.
    async fn accept_if_files_suffice(
        &self,
        socket: &Socket,
    ) -> io::Result<(AcceptedStream, Peer, OwnedSemaphorePermit)> {
        while !self.config.uses_reserved_files && !self.config.reserved_files.refill() {
            tokio::time::sleep(ACCEPT_RETRY).await;
        }
        self.accept(socket).await
    }

    /// Accepts the next connection, once a permit is free.
    async fn accept(
        &self,
        socket: &Socket,
    ) -> io::Result<(AcceptedStream, Peer, OwnedSemaphorePermit)> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (stream, peer) = socket.accept().await?;
        Ok((stream, peer, permit))
    }

    /// Opens an in-memory connection and returns the client's end. `None` if no permit is free.
    fn connect(&self) -> Option<DuplexStream> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let (client, stream) = duplex(MEMORY_BUFFER);
        self.serve(AcceptedStream::Memory(stream), Peer::Process, permit);
        Some(client)
    }

    /// Serves a connection in a task of its own, unless its address has too many.
    fn serve(&self, stream: AcceptedStream, peer: Peer, permit: OwnedSemaphorePermit) {
        let counters = self.config.counters.as_ref();
        let address = match peer {
            Peer::Process => None,
            // One permit is this connection's.
            Peer::Address(address) => match self
                .addresses
                .acquire(address.ip(), self.permits.available_permits() + 1)
            {
                Some(permit) => Some(permit),
                None => {
                    if self.address_log.should_log() {
                        let advice = match counters {
                            Some(_) => "; behind a proxy, raise --max-connections-per-address",
                            None => "",
                        };
                        tracing::warn!(
                            %peer,
                            "an address has too many connections, further ones are refused{advice}"
                        );
                    }
                    if let Some(counters) = counters {
                        counters.count_termination(TerminationReason::AddressFull);
                    }
                    // TLS has no alert for this.
                    if self.config.tls.is_none() {
                        stream.refuse(&Problem::address_full().http1_message());
                    }
                    return;
                }
            },
        };
        let guards = (
            counters.map(HttpCounters::count_connection),
            address,
            permit,
        );
        let connection = Connection {
            peer,
            config: self.config.clone(),
            phase: self.phase.clone(),
            answer: self.answer.clone(),
        };
        self.tokio.spawn(async move {
            connection.serve(stream).await;
            drop(guards);
        });
    }
}
