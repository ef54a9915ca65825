//! The server as the binary drives it: bind, start, open, stop.

use crate::access::RequestIds;
use crate::admin::{FOLLOWERS, Guard, Reach, Token, UPLOADS};
use crate::house::House;
use crate::keys::Keys;
use crate::listener::{BindError, Limits, Listener, Setup, Socket, SocketFile, bind, bind_file};
use crate::sequences::LOOKS;
use crate::tls::Tls;
use crate::traffic::Traffic;
use crate::{admin, public};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections of the admin listener: a scraper, a prober, a few people.
const ADMIN_CONNECTIONS: usize = 32;

/// What the address of a socket in the file system begins with.
const UNIX: &str = "unix:";

/// The two sockets, bound and not yet accepting. Bound first, so that a port in use is known
/// before gigabytes of model are read.
#[derive(Debug)]
pub struct Listeners {
    public: TcpListener,
    admin: Admin,
    token: Option<Token>,
}

#[derive(Debug)]
enum Admin {
    /// With its host as the operator has written it.
    Address(TcpListener, String),
    File(SocketFile, Socket),
}

impl Listeners {
    /// Binds both, each `HOST:PORT`; port 0 picks a free one. The admin listener can be `unix:PATH`
    /// instead: a socket in the file system that only its owner can connect to. Must be called inside a
    /// tokio runtime.
    pub async fn bind(public: &str, admin: &str) -> Result<Self, BindError> {
        let public = bind(public).await?;
        let admin = match admin.strip_prefix(UNIX) {
            Some(path) => {
                let (file, socket) = bind_file(Path::new(path)).await?;
                Admin::File(file, socket)
            }
            None => {
                let host = admin.rsplit_once(':').map_or(admin, |(host, _)| host);
                Admin::Address(bind(admin).await?, host.to_owned())
            }
        };
        Ok(Listeners {
            public,
            admin,
            token: None,
        })
    }

    /// Has the admin listener ask for `token` before anything is changed; and before anything at all
    /// but the probes, if it can be reached from other machines. On a socket in the file system nobody
    /// is asked for it: who may connect there may read the server's files too.
    ///
    /// # Errors
    /// If it can be reached from other machines and there is no token.
    pub fn guarded_by(mut self, token: Option<Token>) -> Result<Self, BindError> {
        if let (None, Admin::Address(socket, _)) = (&token, &self.admin)
            && !on_loopback(socket)
        {
            let address = socket.local_addr();
            let address = address.map_or_else(|_| "?".to_owned(), |address| address.to_string());
            return Err(BindError::Unguarded(address));
        }
        self.token = token;
        Ok(self)
    }
}

fn on_loopback(socket: &TcpListener) -> bool {
    socket
        .local_addr()
        .is_ok_and(|address| address.ip().is_loopback())
}

/// How the public listener meets its clients.
#[derive(Clone, Debug, Default)]
pub struct Front {
    /// What clients may make the server hold on to.
    pub limits: Limits,
    /// Without it connections are not encrypted. The admin listener has it too where other machines can
    /// reach it.
    pub tls: Option<Arc<Tls>>,
    /// The keys that deployments may ask for.
    pub keys: Option<Arc<Keys>>,
}

impl From<Limits> for Front {
    fn from(limits: Limits) -> Self {
        Front {
            limits,
            ..Front::default()
        }
    }
}

/// What every request can see.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) request_ids: RequestIds,
    pub(crate) house: OnceLock<House>,
    pub(crate) keys: Option<Arc<Keys>>,
    pub(crate) tls: Option<Arc<Tls>>,
    /// Places for those that look into the models.
    pub(crate) looks: Arc<Semaphore>,
    /// Places for components that arrive.
    pub(crate) uploads: Semaphore,
    /// Places for those who follow logs.
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) guard: Guard,
    /// The address of the public listener.
    pub(crate) public: SocketAddr,
    stopping: AtomicBool,
}

impl Shared {
    fn new(front: Front, guard: Guard, public: SocketAddr) -> Self {
        Shared {
            limits: front.limits,
            keys: front.keys,
            tls: front.tls,
            traffic: Arc::default(),
            request_ids: RequestIds::default(),
            house: OnceLock::new(),
            looks: Arc::new(Semaphore::new(LOOKS)),
            uploads: Semaphore::new(UPLOADS),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            guard,
            public,
            stopping: AtomicBool::new(false),
        }
    }

    /// Why requests can't be served now; empty when they can.
    pub(crate) fn missing(&self) -> Vec<String> {
        if self.stopping.load(Ordering::Acquire) {
            return vec!["the server is shutting down".to_owned()];
        }
        match self.house.get() {
            None => vec!["models and plugins are being loaded".to_owned()],
            Some(house) => house.missing(),
        }
    }
}

/// A running server. Dropping it closes its sockets and cuts off what runs: [`Server::stop`] lets that
/// end.
pub struct Server {
    shared: Arc<Shared>,
    public: Listener,
    /// Goes before the listener, see there.
    admin_file: Option<SocketFile>,
    admin: Listener,
    admin_at: String,
    /// Whether the admin token crosses a network as it is.
    in_clear: bool,
}

impl Server {
    /// Starts to accept on both sockets. Until [`Server::open`], routes are answered by 503. Must
    /// be called inside a tokio runtime. The error is the operating system's.
    pub fn start(listeners: Listeners, front: impl Into<Front>) -> io::Result<Self> {
        let front = front.into();
        let mut admin_tls = None;
        let (admin, admin_at, admin_file, reach) = match listeners.admin {
            Admin::File(file, socket) => {
                let at = format!("{UNIX}{}", file.path().display());
                (socket, at, Some(file), Reach::Owner)
            }
            Admin::Address(socket, host) => {
                let reach = match on_loopback(&socket) {
                    true => Reach::Machine(host),
                    false => Reach::Network,
                };
                if reach == Reach::Network {
                    admin_tls.clone_from(&front.tls);
                }
                let scheme = if admin_tls.is_some() { "https" } else { "http" };
                let at = format!("{scheme}://{}", socket.local_addr()?);
                (Socket::Tcp(socket), at, None, reach)
            }
        };
        let in_clear = reach == Reach::Network && admin_tls.is_none();
        let guard = Guard::new(listeners.token, reach);
        let address = listeners.public.local_addr()?;
        let shared = Arc::new(Shared::new(front.clone(), guard, address));
        let for_public = shared.clone();
        let public = Listener::start(
            Socket::Tcp(listeners.public),
            Setup {
                limits: front.limits.clone(),
                tls: front.tls,
                traffic: Some(shared.traffic.clone()),
            },
            move |request| public::answer(for_public.clone(), request),
        );
        let for_admin = shared.clone();
        let admin = Listener::start(
            admin,
            Setup {
                limits: Limits {
                    connections: ADMIN_CONNECTIONS,
                    connections_per_address: None,
                    ..front.limits
                },
                tls: admin_tls,
                traffic: None,
            },
            move |request| admin::answer(for_admin.clone(), request),
        );
        Ok(Server {
            shared,
            public,
            admin_file,
            admin,
            admin_at,
            in_clear,
        })
    }

    /// Opens the house: from here on requests reach the plugins. Only the first call counts.
    pub fn open(&self, house: House) {
        if self.shared.house.set(house).is_err() {
            tracing::error!("the house was opened twice; the second one is ignored");
        }
    }

    /// Where the public listener is, with its real port.
    pub fn public_address(&self) -> SocketAddr {
        self.shared.public
    }

    /// The other end of a new connection to the public listener through memory: as over a socket, but that
    /// the system is not in its way, and nothing is encrypted. `None` if there are as many connections as there
    /// may be, of which one place is the listener's own, for who comes next.
    pub fn connect(&self) -> Option<DuplexStream> {
        self.public.connect()
    }

    /// Where the admin listener is, as clients of it are told: `http://HOST:PORT` with its real port,
    /// `https://HOST:PORT` if other machines can reach it and there is a certificate, or `unix:PATH`.
    pub fn admin_address(&self) -> &str {
        &self.admin_at
    }

    /// What an operator should know of the admin listener.
    pub fn admin_warning(&self) -> Option<String> {
        self.in_clear.then(|| {
            format!(
                "WARNING: other machines can reach the admin listener at {}, and nothing is encrypted \
                 there: whoever sees the traffic has the admin token; give --tls-cert and --tls-key, or \
                 an address that only this machine has",
                self.admin_at
            )
        })
    }

    /// Turns readiness off and goes on serving: so that whoever sends requests here can learn of it
    /// before [`Server::stop`].
    pub fn announce_stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Turns readiness off, stops accepting, lets running requests end while `until` has not
    /// come, and cuts off those that are left. The admin listener goes last. Returns whether every
    /// request ended by itself.
    pub async fn stop(self, until: impl Future<Output = ()>) -> bool {
        self.announce_stop();
        let all_ended = self.public.drain(until).await;
        drop(self.admin_file);
        // A scrape that runs now may end, but nobody waits long for one.
        let moment = tokio::time::sleep(std::time::Duration::from_millis(200));
        self.admin.drain(moment).await;
        all_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn start(limits: Limits) -> Server {
        let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("a free port");
        Server::start(listeners, limits).expect("started")
    }

    /// Sends `request` as it stands and reads until the server closes.
    async fn exchange(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("closed in time")
            .expect("read");
        answer
    }

    fn admin_of(server: &Server) -> SocketAddr {
        let address = server.admin_address().strip_prefix("http://");
        address
            .and_then(|address| address.parse().ok())
            .expect("an address")
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(address, &request).await
    }

    #[tokio::test]
    async fn a_connection_through_memory_is_served_like_any_other() {
        let server = start(Limits {
            connections: 2,
            ..Limits::default()
        })
        .await;
        // The listener takes its place as soon as it runs.
        tokio::task::yield_now().await;
        let mut stream = server.connect().expect("there is a place");
        assert!(server.connect().is_none(), "for one");
        let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("closed in time")
            .expect("read");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn before_the_house_is_open_probes_tell_loading_from_dead() {
        let server = start(Limits::default()).await;
        for address in [server.public_address(), admin_of(&server)] {
            let alive = get(address, "/healthz").await;
            assert!(alive.starts_with("HTTP/1.1 200 OK\r\n"), "{alive}");
            assert!(alive.ends_with("\r\n\r\nok\n"), "{alive}");
            let ready = get(address, "/readyz").await;
            assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
            assert!(ready.contains("being loaded"), "{ready}");
        }
        let answer = get(server.public_address(), "/generate").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        assert!(answer.contains("\r\nx-request-id: "), "{answer}");
        let metrics = get(admin_of(&server), "/metrics").await;
        assert!(metrics.contains("\ncorral_ready 0\n"), "{metrics}");
        let sequences = get(admin_of(&server), "/sequences").await;
        assert!(sequences.starts_with("HTTP/1.1 503 "), "{sequences}");
        assert!(sequences.contains("being loaded"), "{sequences}");
        assert!(server.stop(std::future::pending()).await);
    }

    #[tokio::test]
    async fn wrong_methods_and_paths_are_problems() {
        let server = start(Limits::default()).await;
        let post = "POST /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = exchange(server.public_address(), post).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.contains("\r\nallow: GET, HEAD\r\n"), "{answer}");
        for (path, allow) in [("/sequences", "GET, HEAD"), ("/cache", "DELETE")] {
            let post =
                format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let answer = exchange(admin_of(&server), &post).await;
            assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
            assert!(
                answer.contains(&format!("\r\nallow: {allow}\r\n")),
                "{answer}"
            );
        }
        let answer = get(admin_of(&server), "/nothing").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        assert!(answer.contains("\"code\":\"no-route\""), "{answer}");
        let answer = get(admin_of(&server), "/").await;
        assert!(answer.ends_with(INDEX_END), "{answer}");
        server.stop(std::future::pending()).await;
    }
    const INDEX_END: &str = "the same, described for programs\n";

    #[tokio::test]
    async fn a_client_that_sends_no_head_is_dropped() {
        let limits = Limits {
            head_time: Duration::from_millis(200),
            ..Limits::default()
        };
        let server = start(limits).await;
        for part in ["", "G", "GET / HTTP/1.1\r\nHost: localhost\r\n"] {
            let started = std::time::Instant::now();
            let answer = exchange(server.public_address(), part).await;
            assert_eq!(answer, "", "{part:?}");
            let took = started.elapsed();
            assert!(took >= Duration::from_millis(150), "{part:?}: {took:?}");
        }
        server.stop(std::future::pending()).await;
    }

    #[tokio::test]
    async fn a_head_beyond_its_size_is_refused() {
        let server = start(Limits::default()).await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n",
            "a".repeat(33_000)
        );
        let answer = exchange(server.public_address(), &request).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        server.stop(std::future::pending()).await;
    }

    #[tokio::test]
    async fn beyond_the_connections_clients_wait_their_turn() {
        let limits = Limits {
            connections: 1,
            ..Limits::default()
        };
        let server = start(limits).await;
        let address = server.public_address();
        let mut first = TcpStream::connect(address).await.expect("connected");
        first.write_all(b"GET ").await.expect("sent");
        let second = tokio::spawn(get(address, "/healthz"));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!second.is_finished(), "the only place is taken");
        drop(first);
        let answer = second.await.expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        server.stop(std::future::pending()).await;
    }

    #[tokio::test]
    async fn stopping_closes_idle_connections_and_the_port() {
        let server = start(Limits::default()).await;
        let address = server.public_address();
        let mut idle = TcpStream::connect(address).await.expect("connected");
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .expect("sent");
        let mut some = [0; 512];
        assert!(idle.read(&mut some).await.expect("answered") > 0);
        assert!(server.stop(std::future::pending()).await, "nothing runs");
        assert_eq!(idle.read(&mut some).await.expect("closed"), 0);
        TcpStream::connect(address)
            .await
            .expect_err("nobody listens any more");
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let taken = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("free ports");
        let address = taken.public.local_addr().expect("bound").to_string();
        let error = Listeners::bind(&address, "127.0.0.1:0")
            .await
            .expect_err("taken");
        assert!(matches!(&error, BindError::InUse(at) if *at == address));
        let error = Listeners::bind("nonsense", "127.0.0.1:0")
            .await
            .expect_err("no address");
        assert!(error.to_string().contains("give HOST:PORT"), "{error}");
    }
}
