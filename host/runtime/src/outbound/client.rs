//! Connections to other servers: permits, resolution of names, TCP and TLS.
//!
//! A name is resolved once for each connection, and only addresses of that answer that the deployment may connect to are
//! tried: a name that later means something else changes nothing. Names are resolved by the system in blocking threads, a
//! few at once for each deployment.

use super::address::carried_to;
use super::exchange::{CONNECT_TIME, shorter};
use super::grant::{Host, LOCALHOST, LOOPBACK, Scheme, Target};
use super::{Failure, OutboundAccess};
use crate::counters::{DeploymentCounters, OutboundRefusal, ProcessCounters};
use crate::deployment_share::deployment_share;
use crate::runtime_config::{OutboundConfig, TlsSource};
use http::Method;
use rustix::io::Errno;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::{Error, RequestOptions};

/// Names that are resolved at once, in blocking threads.
const LOOKUPS: usize = 16;
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

/// Resolves a name. Blocks.
type Resolve = fn(&str) -> io::Result<Vec<IpAddr>>;

/// The HTTP client of the process.
pub(crate) struct OutboundClient {
    connections: Arc<Semaphore>,
    max_connections: usize,
    lookups: Arc<Semaphore>,
    resolve: Resolve,
    tls: Option<TlsSource>,
    /// Loaded for the first request that needs it.
    tls_config: OnceCell<Arc<ClientConfig>>,
    admin_listener: Option<SocketAddr>,
    has_address: fn(IpAddr) -> bool,
    counters: Arc<ProcessCounters>,
}

/// Permits that all revisions of a deployment share.
#[derive(Clone, Debug)]
pub(crate) struct OutboundPermits {
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// A connection counts until this is dropped.
pub(super) struct ConnectionPermit {
    _deployment: OwnedSemaphorePermit,
    _process: OwnedSemaphorePermit,
    deployment_counters: Arc<DeploymentCounters>,
    counters: Arc<ProcessCounters>,
}

/// An open connection.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl OutboundClient {
    pub(crate) fn new(config: &OutboundConfig, counters: Arc<ProcessCounters>) -> Self {
        let max_connections = config.connections.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            connections: Arc::new(Semaphore::new(max_connections)),
            max_connections,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            resolve: resolve_by_system,
            tls: config.tls,
            tls_config: OnceCell::new(),
            admin_listener: config.admin_listener,
            has_address,
            counters,
        }
    }

    /// Permits of a new deployment.
    pub(crate) fn deployment_permits(&self) -> OutboundPermits {
        OutboundPermits {
            connections: deployment_share(self.max_connections),
            lookups: deployment_share(LOOKUPS),
        }
    }

    /// Whether this machine has the address, so that a connection reaches its own listeners.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        (self.has_address)(carried_to(address))
    }

    /// Whether the admin listener of this server is at this address.
    pub(super) fn is_admin_listener(&self, address: IpAddr, port: u16) -> bool {
        let address = carried_to(address);
        self.admin_listener.is_some_and(|admin| {
            let ip = admin.ip().to_canonical();
            admin.port() == port
                && (ip == address
                    || address.is_unspecified()
                    || (ip.is_unspecified() && self.is_own(address)))
        })
    }

    /// Connects to the target of a request that has a grant, within `options` and [`CONNECT_TIME`].
    pub(super) async fn connect(
        &self,
        access: &OutboundAccess,
        target: &Target,
        method: &Method,
        options: &RequestOptions,
        counters: &Arc<DeploymentCounters>,
    ) -> Result<(Box<dyn Connection>, ConnectionPermit), Failure> {
        let deadline = Instant::now() + shorter(options.connect_timeout, CONNECT_TIME);
        let permit = timeout_at(deadline, self.permit(&access.permits, counters)).await;
        let permit = permit.ok().flatten().ok_or_else(|| {
            Failure::refused(Error::ConnectionLimitReached, OutboundRefusal::Connections)
        })?;
        let connected = timeout_at(deadline, self.open(access, target, method, deadline));
        let connected = connected
            .await
            .map_err(|_| Failure::refused(Error::ConnectionTimeout, OutboundRefusal::Time))?;
        Ok((connected?, permit))
    }

    async fn permit(
        &self,
        deployment: &OutboundPermits,
        counters: &Arc<DeploymentCounters>,
    ) -> Option<ConnectionPermit> {
        // First its own: a deployment never waits for more of the others than it may have itself.
        let own = Arc::clone(&deployment.connections).acquire_owned().await;
        let process = Arc::clone(&self.connections).acquire_owned().await;
        let (own, process) = own.ok().zip(process.ok())?;
        counters.outbound_connections.increment();
        self.counters.outbound_connections.increment();
        Some(ConnectionPermit {
            _deployment: own,
            _process: process,
            deployment_counters: Arc::clone(counters),
            counters: Arc::clone(&self.counters),
        })
    }

    async fn open(
        &self,
        access: &OutboundAccess,
        target: &Target,
        method: &Method,
        deadline: Instant,
    ) -> Result<Box<dyn Connection>, Failure> {
        let addresses = self.addresses(access, target, method).await?;
        let stream = connect_first(&addresses, target.port, deadline).await?;
        let _ = stream.set_nodelay(true);
        match target.scheme {
            Scheme::Http => Ok(Box::new(stream)),
            Scheme::Https => self.start_tls(stream, target).await,
        }
    }

    /// The addresses of the target that a request may connect to.
    async fn addresses(
        &self,
        access: &OutboundAccess,
        target: &Target,
        method: &Method,
    ) -> Result<Vec<IpAddr>, Failure> {
        let all = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) if name == LOCALHOST => LOOPBACK.to_vec(),
            Host::Name(name) => self.lookup(&access.permits, name).await?,
        };
        let allowed = all.iter().copied();
        let allowed = allowed.filter(|address| access.may_connect(*address, target, method));
        let allowed = Vec::from_iter(allowed.take(MAX_ADDRESSES));
        match all.first() {
            None => Err(dns_error("the name has no address").into()),
            Some(_) if !allowed.is_empty() => Ok(allowed),
            Some(&refused) => {
                let (host, url) = (&target.host, target.at(refused));
                let error = Error::DestinationIpProhibited;
                let failure = Failure::refused(error, OutboundRefusal::Address);
                Err(failure.with_warning(format!(
                    "refused an outbound request: {host} is at {refused}, which is this server's admin listener, another \
                     address of this machine, or not a public address; add \"{url}\" to 'grants.outbound' in the \
                     manifest if the deployment may call it"
                )))
            }
        }
    }

    async fn lookup(
        &self,
        deployment: &OutboundPermits,
        name: &str,
    ) -> Result<Vec<IpAddr>, Failure> {
        let own = Arc::clone(&deployment.lookups).acquire_owned().await;
        let process = Arc::clone(&self.lookups).acquire_owned().await;
        let (resolve, name) = (self.resolve, name.to_owned());
        let resolving = tokio::task::spawn_blocking(move || {
            // A lookup can't be interrupted: it keeps its permits although nobody may wait for it any more.
            let _permits = (own, process);
            resolve(&name)
        });
        let resolved = resolving.await.map_err(io::Error::other);
        let resolved = resolved.and_then(|resolved| resolved);
        resolved.map_err(|error| dns_error(&error.to_string()).into())
    }

    async fn start_tls(
        &self,
        stream: TcpStream,
        target: &Target,
    ) -> Result<Box<dyn Connection>, Failure> {
        let name = match &target.host {
            Host::Address(address) => ServerName::from(*address),
            Host::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|_| Error::HttpRequestUriInvalid)?
            }
        };
        let failed = |error, why: io::Error| {
            Failure::from(error).with_warning(format!(
                "an outbound request to {} failed: no TLS connection: {why}; a file that SSL_CERT_FILE names can \
                 hold the certificates of other authorities",
                target.url()
            ))
        };
        let config = self.tls_config.get_or_try_init(|| self.load_tls());
        let config = config
            .await
            .map_err(|why| failed(Error::ConfigurationError, why))?;
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name, stream).await;
        let stream = stream.map_err(|why| failed(tls_error(&why), why))?;
        Ok(Box::new(stream))
    }

    /// Reads the trusted certificates.
    async fn load_tls(&self) -> io::Result<Arc<ClientConfig>> {
        let tls = self.tls;
        let tls = tls.ok_or_else(|| io::Error::other("this host has no trusted certificates"))?;
        let loading = tokio::task::spawn_blocking(tls);
        loading.await.map_err(io::Error::other)?.map(Arc::new)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.deployment_counters.outbound_connections.decrement();
        self.counters.outbound_connections.decrement();
    }
}

/// Whether this machine has the address. Sends nothing. An address that a router translates to one of this machine is not
/// known here. Without file descriptors to find out, it may have it.
fn has_address(address: IpAddr) -> bool {
    let source = |from: IpAddr| -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((from, 0))?;
        // Any port.
        socket.connect((address, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    let source = match address {
        _ if address.is_loopback() => return true,
        // Linux refuses a source that the machine lacks: here or, with `ip_nonlocal_bind`, in `connect`.
        IpAddr::V4(_) => source(address),
        // Linux connects to an own address from the same address.
        IpAddr::V6(_) => source(Ipv6Addr::UNSPECIFIED.into()),
    };
    match source {
        Ok(source) => source == address,
        Err(error) => matches!(
            Errno::from_io_error(&error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
        ),
    }
}

fn resolve_by_system(name: &str) -> io::Result<Vec<IpAddr>> {
    let addresses = (name, 0).to_socket_addrs()?;
    Ok(addresses.map(|address| address.ip()).collect())
}

/// Connects to the first address that accepts. Each gets its share of the time until `deadline`.
async fn connect_first(
    addresses: &[IpAddr],
    port: u16,
    deadline: Instant,
) -> Result<TcpStream, Error> {
    let mut error = Error::DestinationNotFound;
    for (tried, &address) in (0..).zip(addresses) {
        let left = deadline.saturating_duration_since(Instant::now());
        let others = u32::try_from(addresses.len()).unwrap_or(u32::MAX) - tried;
        let share: Duration = left / others.max(1);
        error = match timeout(share, TcpStream::connect((address, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(why)) => match why.kind() {
                ErrorKind::ConnectionRefused => Error::ConnectionRefused,
                ErrorKind::TimedOut => Error::ConnectionTimeout,
                ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                    Error::DestinationIpUnroutable
                }
                _ => Error::DestinationUnavailable,
            },
            Err(_) => Error::ConnectionTimeout,
        };
    }
    Err(error)
}

fn dns_error(why: &str) -> Error {
    Error::DnsError {
        rcode: Some(why.to_owned()),
        info_code: None,
    }
}

fn tls_error(why: &io::Error) -> Error {
    let tls = why.get_ref().and_then(|why| why.downcast_ref());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => Error::TlsCertificateError,
        Some(rustls::Error::AlertReceived(alert)) => Error::TlsAlertReceived {
            alert_id: Some((*alert).into()),
            alert_message: Some(format!("{alert:?}")),
        },
        Some(_) => Error::TlsProtocolError,
        None => Error::ConnectionTerminated,
    }
}

#[cfg(test)]
mod tests {
    use super::super::OutboundGrant;
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::atomic::{AtomicUsize, Ordering};

    const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8));
    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// A public address of this machine.
    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(8, 8, 4, 4));

    /// A client with this resolver, and access to it with these grants.
    fn access(resolve: Resolve, urls: &[&str]) -> OutboundAccess {
        let admin_listener = Some(SocketAddr::from(([0, 0, 0, 0], 8081)));
        let config = OutboundConfig {
            admin_listener,
            ..OutboundConfig::default()
        };
        let mut client = OutboundClient::new(&config, Arc::default());
        client.resolve = resolve;
        client.has_address = |address| address.is_loopback() || address == OWN;
        let permits = client.deployment_permits();
        let grant = |url: &&str| OutboundGrant {
            url: url.parse().expect("valid"),
            methods: Vec::new(),
        };
        OutboundAccess::new(urls.iter().map(grant).collect(), permits, Arc::new(client))
    }

    fn target(url: &str) -> Target {
        Target::of(&url.parse().expect("a URI")).expect("a target")
    }

    async fn addresses(access: &OutboundAccess, url: &str) -> Option<Vec<IpAddr>> {
        let target = target(url);
        let addresses = access.client.addresses(access, &target, &Method::GET);
        match addresses.await {
            Ok(addresses) => Some(addresses),
            Err(failure) => {
                assert!(matches!(failure.error, Error::DestinationIpProhibited));
                assert_eq!(failure.refusal, Some(OutboundRefusal::Address));
                None
            }
        }
    }

    #[tokio::test]
    async fn name_that_becomes_local_is_refused() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        fn rebound(_: &str) -> io::Result<Vec<IpAddr>> {
            Ok(vec![match LOOKUPS.fetch_add(1, Ordering::Relaxed) {
                0 => PUBLIC,
                _ => LOCAL,
            }])
        }
        let access = access(rebound, &["http://*.example:*"]);
        let url = "http://a.example/";
        assert_eq!(addresses(&access, url).await, Some(vec![PUBLIC]));
        assert_eq!(addresses(&access, url).await, None);
    }

    #[tokio::test]
    async fn connection_goes_to_the_address_that_was_checked() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        // The second answer would be another address of the same listener.
        fn rebound(_: &str) -> io::Result<Vec<IpAddr>> {
            let lookup = LOOKUPS.fetch_add(1, Ordering::Relaxed);
            let last = 1 + u8::try_from(lookup).expect("few");
            Ok(vec![Ipv4Addr::new(127, 0, 0, last).into()])
        }
        let listener = TcpListener::bind("0.0.0.0:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let grants = [
            format!("http://127.0.0.1:{port}"),
            "http://a.example:*".to_owned(),
        ];
        let access = access(rebound, &grants.each_ref().map(String::as_str));
        let target = target(&format!("http://a.example:{port}/"));
        let (options, counters) = (RequestOptions::default(), Arc::default());
        let connect = || {
            let client = &access.client;
            client.connect(&access, &target, &Method::GET, &options, &counters)
        };
        let (_stream, permit) = connect().await.ok().expect("granted");
        assert_eq!(
            LOOKUPS.load(Ordering::Relaxed),
            1,
            "it is not resolved again"
        );
        let (accepted, _) = listener.accept().expect("a connection");
        assert_eq!(accepted.local_addr().expect("connected").ip(), LOCAL);
        assert_eq!(counters.outbound_connections.get(), 1);
        drop(permit);
        assert_eq!(counters.outbound_connections.get(), 0);
        let refused = connect().await.err().expect("127.0.0.2 has no grant");
        assert_eq!(refused.refusal, Some(OutboundRefusal::Address));
        listener.set_nonblocking(true).expect("a socket");
        assert!(listener.accept().is_err(), "nothing connected");
    }

    #[tokio::test]
    async fn local_addresses_among_others_are_left_out() {
        fn mixed(_: &str) -> io::Result<Vec<IpAddr>> {
            Ok(vec![LOCAL, PUBLIC, Ipv6Addr::LOCALHOST.into()])
        }
        let any = access(mixed, &["http://*:*"]);
        assert_eq!(
            addresses(&any, "http://a.example/").await,
            Some(vec![PUBLIC])
        );
        let named = access(mixed, &["http://*:*", "http://127.0.0.1"]);
        let both = Some(vec![LOCAL, PUBLIC]);
        assert_eq!(addresses(&named, "http://a.example/").await, both);
        // The grant of the address is for another port.
        assert_eq!(
            addresses(&named, "http://a.example:81/").await,
            Some(vec![PUBLIC])
        );
    }

    #[tokio::test]
    async fn own_public_address_must_be_named() {
        fn own(_: &str) -> io::Result<Vec<IpAddr>> {
            // The second is carried to the first.
            Ok(vec![OWN, "64:ff9b::8.8.4.4".parse().expect("an address")])
        }
        let any = access(own, &["http://*:*"]);
        assert_eq!(addresses(&any, "http://a.example/").await, None);
        assert_eq!(addresses(&any, "http://8.8.4.4/").await, None);
        let named = access(own, &["http://*:*", "http://8.8.4.4"]);
        let found = addresses(&named, "http://a.example/").await;
        assert_eq!(found, Some(vec![OWN]));
    }

    #[test]
    fn machine_has_its_own_addresses_only() {
        assert!(has_address(LOCAL) && has_address(Ipv6Addr::LOCALHOST.into()));
        // For documentation: no machine has them.
        for address in ["192.0.2.1", "2001:db8::1"] {
            assert!(
                !has_address(address.parse().expect("an address")),
                "{address}"
            );
        }
        let routed = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
        if routed.connect((PUBLIC, 9)).is_ok() {
            assert!(has_address(routed.local_addr().expect("connected").ip()));
        }
    }

    #[tokio::test]
    async fn admin_listener_needs_its_port_in_a_grant() {
        fn local(_: &str) -> io::Result<Vec<IpAddr>> {
            Ok(vec![LOCAL])
        }
        for (grant, allowed) in [
            ("http://127.0.0.1:*", None),
            ("http://127.0.0.1:8081", Some(vec![LOCAL])),
        ] {
            let access = access(local, &["http://*:*", grant]);
            assert_eq!(
                addresses(&access, "http://a.example:8081/").await,
                allowed,
                "{grant}"
            );
            let other = addresses(&access, "http://a.example:8082/").await;
            assert_eq!(
                other,
                Some(vec![LOCAL]).filter(|_| allowed.is_none()),
                "{grant}"
            );
        }
        // A listener on all addresses is on public ones of this machine, too.
        let access = access(local, &["http://*:*"]);
        assert!(!access.client.is_admin_listener(PUBLIC, 8081));
        assert!(
            access
                .client
                .is_admin_listener(Ipv6Addr::LOCALHOST.into(), 8081)
        );
    }
}
