//! One listening socket and the connections it accepted.
//!
//! HTTP/1.1 only. Telling HTTP/2 apart means reading a connection's first bytes before hyper's
//! header timeout runs, so that a client which sends three bytes would stay for ever; those who
//! want HTTP/2 have a proxy in front for TLS anyway.

use crate::access::Observed;
use crate::shutdown::{Phase, reached};
use crate::stall::StallLimit;
use crate::traffic::Traffic;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

/// What clients may make the server hold on to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Connections of the public listener; beyond them, clients wait in the socket's backlog.
    /// 1,024: each costs some tens of kilobytes at worst, and stays below common limits of open
    /// files.
    pub connections: usize,
    /// From a connection's first moment, or the end of an answer, until the next request's head is
    /// there. 30 s: also how long an idle connection is kept.
    pub head_time: Duration,
    /// Size of a request's head. 32 KiB: twice what common proxies pass on.
    pub head_bytes: usize,
    /// How long a client may leave an answer unread. 30 s.
    pub stall_time: Duration,
    /// How long the rest of a request's body is read and thrown away, when the answer is there before
    /// it. 2 s.
    pub discard_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 1024,
            head_time: Duration::from_secs(30),
            head_bytes: 32 << 10,
            stall_time: Duration::from_secs(30),
            discard_time: Duration::from_secs(2),
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

/// A listener that accepts.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    places: Arc<Semaphore>,
    connections: u32,
    accepting: JoinHandle<()>,
}

impl Listener {
    /// Starts to accept on `socket` and to answer with `answer`. Connections are counted in
    /// `traffic` if it is given.
    pub(crate) fn start<H, F>(
        socket: TcpListener,
        limits: Limits,
        traffic: Option<Arc<Traffic>>,
        answer: H,
    ) -> io::Result<Self>
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Observed>> + Send + 'static,
    {
        let address = socket.local_addr()?;
        let connections = limits
            .connections
            .clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let places = Arc::new(Semaphore::new(connections));
        let (phase, seen) = watch::channel(Phase::Serving);
        let accept = Accept {
            socket,
            places: places.clone(),
            phase: seen,
            limits,
            traffic,
            answer,
        };
        Ok(Listener {
            address,
            phase,
            places,
            // Clamped above.
            connections: connections as u32,
            accepting: tokio::spawn(accept.run()),
        })
    }

    /// Where it listens; the port is the real one when 0 was asked for.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, lets what runs end while `until` has not come, and cuts off the rest.
    /// Returns whether everything ended by itself.
    pub(crate) async fn drain(self, until: impl Future<Output = ()>) -> bool {
        self.phase.send_replace(Phase::Draining);
        // It ends at once, and with it the socket is closed.
        let _ = self.accepting.await;
        let all_ended = async { self.places.acquire_many(self.connections).await.is_ok() };
        let in_time = tokio::select! {
            ended = all_ended => ended,
            () = until => false,
        };
        self.phase.send_replace(Phase::Ending);
        in_time
    }
}

struct Accept<H> {
    socket: TcpListener,
    places: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    limits: Limits,
    traffic: Option<Arc<Traffic>>,
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
                () = reached(&mut self.phase, Phase::Draining) => return,
                accepted = accept(&self.socket, &self.places) => accepted,
            };
            match accepted {
                Ok((stream, place)) => self.serve(stream, place),
                Err(error) => {
                    // Most often too many open files: connections have to end first. The waiting
                    // client stays in the backlog, so without a pause this would spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Without it, Nagle's algorithm holds small chunks of a stream back for 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_time)
            .max_header_size(self.limits.head_bytes)
            .max_buf_size(self.limits.head_bytes.saturating_mul(2).max(8192));
        let stream = TokioIo::new(StallLimit::new(stream, self.limits.stall_time));
        let answer = self.answer.clone();
        let service = service_fn(move |request| {
            let answering = answer(request);
            async move { Ok::<_, Infallible>(answering.await) }
        });
        let counted = self.traffic.as_ref().map(Traffic::connection);
        let mut phase = self.phase.clone();
        tokio::spawn(async move {
            let connection = builder.serve_connection(stream, service);
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = reached(&mut phase, Phase::Draining) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection => ended,
                        () = reached(&mut phase, Phase::Ending) => Ok(()),
                    }
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
            drop((place, counted));
        });
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    socket: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = places
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = socket.accept().await?;
    Ok((stream, place))
}
