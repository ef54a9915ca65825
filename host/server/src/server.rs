//! The server as the binary drives it: bind, start, serve, stop.

use crate::admin::{self, AdminExposure, AdminGuard, AdminState};
use crate::api_keys::ApiKeys;
use crate::deployment_lookup::ServerDeploymentLookup;
use crate::deployments::artifact::VerifyKey;
use crate::file_watcher::watch;
use crate::kv_events::KvEvents;
use crate::listener::{
    HttpLimits, Listener, ListenerConfig, ReservedFiles, Socket, UnixSocketFile,
};
use crate::liveness;
use crate::memory_guard::{MemoryGuard, MemoryGuardConfig};
use crate::process_metrics;
use crate::proxy_headers::TrustedProxies;
use crate::public_requests;
use crate::request_id::RequestIdGenerator;
use crate::response_policy::StartingRoutes;
use crate::server_sockets::{AdminSocket, ServerSockets, UNIX, on_loopback};
use crate::services::Services;
use crate::state::ServerState;
use crate::telemetry::Telemetry;
use crate::tls::Tls;
use crate::triggers::executor::Executor;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::sync::watch;

/// Descriptors that the admin listener keeps for its connections: it answers when the process has no others left.
const RESERVED_ADMIN_FILES: usize = 4;
/// Time for a running scrape to end at shutdown.
const ADMIN_DRAIN: Duration = Duration::from_millis(200);

/// Options of the server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Bounds on what clients can occupy.
    pub limits: HttpLimits,
    /// Certificate of the public listener, and of the admin listener where other machines can reach it.
    /// Without it, connections are not encrypted.
    pub tls: Option<Arc<Tls>>,
    /// API keys that deployments can require.
    pub api_keys: Option<Arc<ApiKeys>>,
    /// When requests wait and are refused for lack of memory.
    pub memory: MemoryGuardConfig,
    /// How to answer until there are services. Other routes get problem documents.
    pub starting: StartingRoutes,
    /// Whether the admin listener serves the console.
    pub console: bool,
    /// Whether the public listener has `/metrics` and `/v1/loads`, for routers.
    pub metrics_public: bool,
    /// Proxies whose headers say whose turn a request takes and when its first token is due.
    pub trusted_proxies: TrustedProxies,
    /// The key that must have signed all that is deployed. Without it, nothing needs a signature.
    pub verify_key: Option<Arc<VerifyKey>>,
    /// For authors: errors say what plugins wrote to standard error.
    pub develop: bool,
    /// Lines that the log lost. The writer of the log counts them; the server exports the count.
    pub lost_log_lines: Arc<AtomicU64>,
    /// Traces, metrics and logs for collectors.
    pub telemetry: Option<Arc<Telemetry>>,
    /// Publishes what the models' caches hold.
    pub kv_events: Option<Arc<KvEvents>>,
}

impl From<HttpLimits> for ServerOptions {
    fn from(limits: HttpLimits) -> Self {
        ServerOptions {
            limits,
            ..ServerOptions::default()
        }
    }
}

/// A running server. Dropping it closes its sockets and cuts off running requests; [`Server::stop`]
/// lets them end.
pub struct Server {
    state: Arc<ServerState>,
    public: Listener,
    /// Dropped before the listener, see [`UnixSocketFile`].
    admin_socket_file: Option<UnixSocketFile>,
    admin: Listener,
    admin_address: String,
    /// The admin token crosses a network without encryption.
    token_in_clear: bool,
    memory: MemoryGuardConfig,
    /// Runs jobs, once there are services and a store.
    executor: OnceLock<Executor>,
}

impl Server {
    /// Starts to accept on both sockets. Until [`Server::serve`], routes answer 503. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// If the operating system does not report the addresses of the sockets.
    pub fn start(sockets: ServerSockets, options: impl Into<ServerOptions>) -> io::Result<Self> {
        process_metrics::record_start();
        let options = options.into();
        let mut admin_tls = None;
        let (admin, admin_address, admin_socket_file, exposure) = match sockets.admin {
            AdminSocket::Unix { socket, path, file } => {
                (socket, format!("{UNIX}{path}"), file, AdminExposure::Owner)
            }
            AdminSocket::Tcp { listener, host } => {
                let exposure = match on_loopback(&listener) {
                    true => AdminExposure::Machine(host),
                    false => AdminExposure::Network,
                };
                if exposure == AdminExposure::Network {
                    admin_tls.clone_from(&options.tls);
                }
                let scheme = if admin_tls.is_some() { "https" } else { "http" };
                let address = format!("{scheme}://{}", listener.local_addr()?);
                (Socket::Tcp(listener), address, None, exposure)
            }
        };
        let token_in_clear = exposure == AdminExposure::Network && admin_tls.is_none();
        options.tls.iter().for_each(watch);
        options.api_keys.iter().for_each(watch);
        let telemetry = options.telemetry.as_deref();
        let state = Arc::new(ServerState {
            limits: options.limits.clone(),
            counters: Arc::default(),
            request_ids: RequestIdGenerator::default(),
            running: Arc::default(),
            starting: options.starting,
            services: OnceLock::new(),
            memory: OnceLock::new(),
            api_keys: options.api_keys,
            tls: options.tls.clone(),
            public_address: sockets.public.local_addr()?,
            metrics_public: options.metrics_public,
            trusted_proxies: options.trusted_proxies,
            develop: options.develop,
            stopping: AtomicBool::new(false),
            lost_log_lines: options.lost_log_lines,
            telemetry_counters: telemetry
                .map(Telemetry::counters)
                .cloned()
                .unwrap_or_default(),
            telemetry: options.telemetry.clone(),
            kv_events: options.kv_events,
        });
        if let Some(kv_events) = &state.kv_events {
            kv_events.start(state.public_address);
        }
        let reserved_files = Arc::new(ReservedFiles::new(RESERVED_ADMIN_FILES));
        let public_state = state.clone();
        let public = Listener::start(
            Socket::Tcp(sockets.public),
            ListenerConfig {
                limits: options.limits.clone(),
                tls: options.tls,
                counters: Some(state.counters.clone()),
                reserved_files: reserved_files.clone(),
                uses_reserved_files: false,
                inherited: sockets.public_inherited,
            },
            move |request| public_requests::answer(public_state.clone(), request),
        );
        let guard = AdminGuard::new(sockets.token, exposure);
        let admin_state = Arc::new(AdminState::new(
            state.clone(),
            guard,
            options.console,
            options.verify_key,
        ));
        if let Some(telemetry) = &options.telemetry {
            let admin_state = admin_state.clone();
            telemetry.start(move || admin::metric_families(&admin_state));
        }
        let admin = Listener::start(
            admin,
            ListenerConfig {
                limits: HttpLimits {
                    max_connections: options.limits.max_admin_connections,
                    max_connections_per_address: Some(
                        options.limits.max_admin_connections
                            - options.limits.max_admin_connections / 4,
                    ),
                    ..options.limits
                },
                tls: admin_tls,
                counters: None,
                reserved_files,
                uses_reserved_files: true,
                inherited: false,
            },
            move |request| admin::answer(admin_state.clone(), request),
        );
        Ok(Server {
            state,
            public,
            admin_socket_file,
            admin,
            admin_address,
            token_in_clear,
            memory: options.memory,
            executor: OnceLock::new(),
        })
    }

    /// Starts to serve requests. Only the first call has an effect.
    pub fn serve(&self, services: Services) {
        let lookup = ServerDeploymentLookup(services.deployments.downgrade());
        services.runtime.set_deployment_lookup(Arc::new(lookup));
        let guard = MemoryGuard::start(self.memory.clone(), services.models.clone());
        match guard {
            // Set already only if the services are.
            Ok(Some(guard)) => drop(self.state.memory.set(guard)),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "cannot start the thread that watches memory; nothing does");
            }
        }
        let deployments = services.deployments.clone();
        match self.state.services.set(services) {
            Ok(()) => {
                let executor = Executor::start(&self.state, &deployments);
                executor.map(|executor| self.executor.set(executor));
            }
            Err(_) => {
                tracing::error!("the server has its services already; the second ones are ignored");
            }
        }
        self.public.accept();
    }

    /// Checks that the server can still serve: its listeners accept, and the engine of each loaded model ends its steps,
    /// which it shows by answering within `patience`. A full queue or a slow request is no failure; a failure repeats.
    ///
    /// # Errors
    /// What does not work, for the log.
    pub async fn check_liveness(&self, patience: Duration) -> Result<(), String> {
        for (name, listener) in [("public", &self.public), ("admin", &self.admin)] {
            if !listener.is_alive() {
                return Err(format!("the {name} listener accepts no connections"));
            }
        }
        match self.state.services.get() {
            Some(services) => liveness::check_engines(&services.models, patience).await,
            None => Ok(()),
        }
    }

    /// Address of the public listener, with its actual port.
    pub fn public_address(&self) -> SocketAddr {
        self.state.public_address
    }

    /// Opens an unencrypted in-memory connection to the public listener and returns the client's end.
    /// `None` if the listener has as many connections as it may; one of them is reserved for the next
    /// client of the socket.
    pub fn connect(&self) -> Option<DuplexStream> {
        self.public.connect()
    }

    /// Address of the admin listener for clients: `http://HOST:PORT` with its actual port,
    /// `https://HOST:PORT` if other machines can reach it and there is a certificate, or `unix:PATH`.
    pub fn admin_address(&self) -> &str {
        &self.admin_address
    }

    /// The TCP address of the admin listener, if it has one.
    pub fn admin_socket_address(&self) -> Option<SocketAddr> {
        let (_, address) = self.admin_address.split_once("://")?;
        address.parse().ok()
    }

    /// A warning for the operator about the admin listener.
    pub fn admin_warning(&self) -> Option<String> {
        self.token_in_clear.then(|| {
            format!(
                "other machines can reach the admin listener at {} without encryption, so \
                 the network can read the admin token; give --tls-cert and --tls-key, or an address \
                 of this machine only",
                self.admin_address
            )
        })
    }

    /// Reports the server as not ready but keeps serving, so that load balancers stop sending requests
    /// before [`Server::stop`].
    pub fn mark_not_ready(&self) {
        self.state.stopping.store(true, Ordering::Release);
    }

    /// Stops accepting, lets running requests and jobs end until `deadline` completes, and cuts off the rest. The
    /// admin listener stops last. Returns whether every request and job ended by itself.
    pub async fn stop(mut self, deadline: impl Future<Output = ()>) -> bool {
        self.mark_not_ready();
        let (over, is_over) = watch::channel(false);
        let ended = |mut is_over: watch::Receiver<bool>| async move {
            // An error means that nothing waits any more.
            let _ = is_over.wait_for(|over| *over).await;
        };
        let executor = self.executor.take();
        let jobs = async {
            match executor {
                Some(executor) => executor.drain(ended(is_over.clone())).await,
                None => true,
            }
        };
        let requests = self.public.drain(ended(is_over.clone()));
        let drains = async { tokio::join!(requests, jobs) };
        let timer = async {
            deadline.await;
            over.send_replace(true);
            std::future::pending::<()>().await;
        };
        let (requests_ended, jobs_ended) = tokio::select! {
            ended = drains => ended,
            () = timer => (false, false),
        };
        let all_ended = requests_ended && jobs_ended;
        drop(self.admin_socket_file);
        self.admin.drain(tokio::time::sleep(ADMIN_DRAIN)).await;
        all_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cors::Cors;
    use crate::problem::ErrorFormat;
    use crate::request_policy::RequestPolicy;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn start(limits: HttpLimits) -> Server {
        let sockets = ServerSockets::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("a free port");
        Server::start(sockets, limits).expect("started")
    }

    /// Sends `request` unchanged and reads until the server closes the connection.
    async fn exchange(address: SocketAddr, request: &str) -> String {
        let stream = TcpStream::connect(address).await.expect("connected");
        exchange_over(stream, request).await
    }

    async fn exchange_over(
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        request: &str,
    ) -> String {
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(60), reading)
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
    async fn in_memory_connection_is_served() {
        let server = start(HttpLimits {
            max_connections: 2,
            ..HttpLimits::default()
        })
        .await;
        // The listener reserves a connection as soon as it runs.
        tokio::task::yield_now().await;
        let stream = server.connect().expect("a free connection");
        assert!(server.connect().is_none(), "the other is reserved");
        let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = exchange_over(stream, request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn probes_answer_before_services_are_loaded() {
        let server = start(HttpLimits::default()).await;
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
        let requests = get(admin_of(&server), "/requests").await;
        assert!(requests.starts_with("HTTP/1.1 503 "), "{requests}");
        assert!(requests.contains("being loaded"), "{requests}");
        assert!(server.stop(std::future::pending()).await);
    }

    #[tokio::test]
    async fn starting_server_uses_format_of_route() {
        let mut starting = StartingRoutes::default();
        let policy = RequestPolicy {
            error_format: ErrorFormat::OpenAi,
            cors: Cors::new(vec!["https://app.example".parse().expect("an origin")]),
            ..RequestPolicy::default()
        };
        starting.add("/v1".parse().expect("a route"), policy);
        let sockets = ServerSockets::bind("127.0.0.1:0", "127.0.0.1:0").await;
        let options = ServerOptions {
            starting,
            ..ServerOptions::default()
        };
        let server = Server::start(sockets.expect("free ports"), options).expect("started");
        let ask = async |method: &str, path: &str| {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\n\
                 Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
            );
            exchange(server.public_address(), &request).await
        };
        let allowed = "\r\naccess-control-allow-origin: https://app.example\r\n";
        for (path, expected) in [
            ("/v1/chat/completions", "\"code\":\"not-ready\""),
            ("/v1/messages", "\"type\":\"overloaded_error\""),
        ] {
            let answer = ask("POST", path).await;
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("\r\ncontent-type: application/json\r\n"));
            assert!(answer.contains(expected), "{answer}");
            assert!(answer.contains(allowed), "{answer}");
            let answer = ask("OPTIONS", path).await;
            assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
            assert!(answer.contains(allowed), "{answer}");
        }
        let answer = ask("POST", "/other").await;
        assert!(answer.contains("application/problem+json"), "{answer}");
        assert!(!answer.contains("access-control"), "{answer}");
        server.stop(std::future::pending()).await;
    }

    #[tokio::test]
    async fn wrong_methods_and_paths_are_problems() {
        let server = start(HttpLimits::default()).await;
        let post = "POST /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = exchange(server.public_address(), post).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.contains("\r\nallow: GET, HEAD\r\n"), "{answer}");
        for (path, allow) in [
            ("/requests", "GET, HEAD"),
            ("/prefix-cache", "GET, HEAD, DELETE"),
        ] {
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
    const INDEX_END: &str = "all of /deployments, /components and /cluster.\n";

    #[tokio::test]
    async fn oversized_header_answers_431() {
        let server = start(HttpLimits::default()).await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n",
            "a".repeat(33_000)
        );
        let answer = exchange(server.public_address(), &request).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        server.stop(std::future::pending()).await;
    }
}
