//! Listening sockets that a service manager opened for this process (`LISTEN_FDS` of systemd).

use listenfd::ListenFd;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

/// Sockets to listen on instead of addresses. The default has none.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    pub(crate) public: Option<TcpListener>,
    pub(crate) admin: Option<InheritedAdmin>,
}

#[derive(Debug)]
pub(crate) enum InheritedAdmin {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Why inherited sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketsError {
    /// More sockets than listeners.
    #[error(
        "the service manager passes {0} sockets; pass the public one, and at most one more for the admin listener"
    )]
    TooMany(usize),
    /// Two sockets with one name.
    #[error("the service manager passes two sockets for the {0} listener; remove one of them")]
    Twice(&'static str),
    /// A file of another kind.
    #[error(
        "the socket that the service manager passes for the {listener} listener cannot be used: {cause}; the public \
         listener needs a TCP socket, the admin listener a TCP or Unix stream socket"
    )]
    Kind {
        /// `public` or `admin`.
        listener: &'static str,
        /// What is wrong with it.
        cause: std::io::Error,
    },
}

const PUBLIC: &str = "public";
const ADMIN: &str = "admin";

impl InheritedSockets {
    /// Takes the sockets that `LISTEN_FDS` announces. In `LISTEN_FDNAMES` they are named `public` and `admin`; sockets
    /// with other names are the public one, then the admin one. Removes `LISTEN_FDS` from the environment: call it
    /// before the process starts threads.
    ///
    /// # Errors
    /// If there are too many sockets, or one is of the wrong kind.
    pub fn from_env() -> Result<Self, InheritedSocketsError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut files = ListenFd::from_env();
        let names = names.split(':').chain(std::iter::repeat(""));
        let names: Vec<_> = names.take(files.len()).collect();
        let mut sockets = InheritedSockets::default();
        for (index, listener) in assign(&names)?.into_iter().enumerate() {
            let kind = |cause| InheritedSocketsError::Kind { listener, cause };
            if listener == PUBLIC {
                let socket = files.take_tcp_listener(index).map_err(kind)?;
                // Runtimes require it.
                socket
                    .iter()
                    .try_for_each(|socket| socket.set_nonblocking(true))
                    .map_err(kind)?;
                sockets.public = socket;
                continue;
            }
            let socket = match files.take_unix_listener(index) {
                Ok(socket) => socket.map(InheritedAdmin::Unix),
                Err(_) => files
                    .take_tcp_listener(index)
                    .map_err(kind)?
                    .map(InheritedAdmin::Tcp),
            };
            match &socket {
                Some(InheritedAdmin::Unix(socket)) => socket.set_nonblocking(true).map_err(kind)?,
                Some(InheritedAdmin::Tcp(socket)) => socket.set_nonblocking(true).map_err(kind)?,
                None => {}
            }
            sockets.admin = socket;
        }
        Ok(sockets)
    }

    /// Whether the admin listener is an inherited Unix domain socket. The service manager sets its permissions.
    pub fn admin_is_unix(&self) -> Option<bool> {
        let admin = self.admin.as_ref()?;
        Some(matches!(admin, InheritedAdmin::Unix(_)))
    }
}

/// The listener of each socket, by the names of the sockets.
fn assign(names: &[&str]) -> Result<Vec<&'static str>, InheritedSocketsError> {
    if names.len() > 2 {
        return Err(InheritedSocketsError::TooMany(names.len()));
    }
    for listener in [PUBLIC, ADMIN] {
        if names.iter().filter(|name| **name == listener).count() > 1 {
            return Err(InheritedSocketsError::Twice(listener));
        }
    }
    let mut unnamed = [PUBLIC, ADMIN].into_iter().filter(|l| !names.contains(l));
    let listener = |name: &&str| match *name {
        PUBLIC => PUBLIC,
        ADMIN => ADMIN,
        // There are at most as many sockets as listeners.
        _ => unnamed.next().unwrap_or(ADMIN),
    };
    Ok(names.iter().map(listener).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_assigned_by_name_then_order() {
        for (names, expected) in [
            (&[][..], &[][..]),
            (&[""], &["public"]),
            (&["corral.socket"], &["public"]),
            (&["admin"], &["admin"]),
            (&["", ""], &["public", "admin"]),
            (&["admin", "public"], &["admin", "public"]),
            (&["admin", "corral.socket"], &["admin", "public"]),
            (&["x", "public"], &["admin", "public"]),
        ] {
            assert_eq!(assign(names).expect("assigned"), expected, "{names:?}");
        }
        assert!(assign(&["public", "public"]).is_err());
        assert!(assign(&["", "", ""]).is_err());
    }
}
