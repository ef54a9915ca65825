//! What requests know of their connection.

use std::net::SocketAddr;

/// Properties of the connection: an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) is_tls: bool,
    /// Address of the client; none for a process at the other end of a Unix domain socket.
    pub(crate) address: Option<SocketAddr>,
}
