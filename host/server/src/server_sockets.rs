//! The sockets of the server: bound to addresses, or inherited from a service manager.

use crate::admin::AdminToken;
use crate::inherited_sockets::{InheritedAdmin, InheritedSockets};
use crate::listener::{BindError, Socket, UnixSocketFile, bind, bind_unix};
use std::io;
use std::path::Path;
use tokio::net::{TcpListener, UnixListener};

/// Start of the address of a Unix domain socket.
pub(crate) const UNIX: &str = "unix:";

/// The two sockets, bound but not yet accepting. Binding first reports a port in use before gigabytes
/// of model are read.
#[derive(Debug)]
pub struct ServerSockets {
    pub(crate) public: TcpListener,
    pub(crate) public_inherited: bool,
    pub(crate) admin: AdminSocket,
    pub(crate) token: Option<AdminToken>,
}

#[derive(Debug)]
pub(crate) enum AdminSocket {
    Tcp {
        listener: TcpListener,
        /// Host as the operator wrote it.
        host: String,
    },
    Unix {
        socket: Socket,
        path: String,
        /// `None` if the file is the service manager's.
        file: Option<UnixSocketFile>,
    },
}

impl ServerSockets {
    /// Binds both addresses, each `HOST:PORT`; port 0 picks a free one. The admin address can be
    /// `unix:PATH` instead, a socket that only its owner can connect to. Must be called inside a tokio
    /// runtime.
    pub async fn bind(public: &str, admin: &str) -> Result<Self, BindError> {
        Self::bind_missing(InheritedSockets::default(), public, admin).await
    }

    /// Like [`ServerSockets::bind`], but uses inherited sockets instead of the addresses. With an inherited public
    /// socket, clients wait in its backlog until [`Server::serve`](crate::Server::serve), and after
    /// [`Server::stop`](crate::Server::stop) until the next process accepts.
    pub async fn bind_missing(
        inherited: InheritedSockets,
        public: &str,
        admin: &str,
    ) -> Result<Self, BindError> {
        let public_inherited = inherited.public.is_some();
        let public = match inherited.public {
            Some(listener) => TcpListener::from_std(listener).map_err(BindError::Inherited)?,
            None => bind(public).await?,
        };
        let admin = match inherited.admin {
            Some(socket) => AdminSocket::inherit(socket).map_err(BindError::Inherited)?,
            None => AdminSocket::bind(admin).await?,
        };
        Ok(ServerSockets {
            public,
            public_inherited,
            admin,
            token: None,
        })
    }

    /// Requires `token` for every change, and for everything but the probes if other machines can reach
    /// the admin listener. A Unix domain socket requires no token: its file permissions protect it.
    ///
    /// # Errors
    /// If other machines can reach the admin listener and `token` is `None`.
    pub fn with_admin_token(mut self, token: Option<AdminToken>) -> Result<Self, BindError> {
        if let (None, AdminSocket::Tcp { listener, .. }) = (&token, &self.admin)
            && !on_loopback(listener)
        {
            let address = listener.local_addr();
            let address = address.map_or_else(|_| "?".to_owned(), |address| address.to_string());
            return Err(BindError::TokenRequired(address));
        }
        self.token = token;
        Ok(self)
    }
}

impl AdminSocket {
    async fn bind(address: &str) -> Result<Self, BindError> {
        let Some(path) = address.strip_prefix(UNIX) else {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            return Ok(AdminSocket::Tcp {
                listener: bind(address).await?,
                host: host.to_owned(),
            });
        };
        let (file, socket) = bind_unix(Path::new(path)).await?;
        Ok(AdminSocket::Unix {
            socket,
            path: path.to_owned(),
            file: Some(file),
        })
    }

    fn inherit(socket: InheritedAdmin) -> io::Result<Self> {
        Ok(match socket {
            InheritedAdmin::Tcp(listener) => {
                let listener = TcpListener::from_std(listener)?;
                let host = listener.local_addr()?.ip().to_string();
                AdminSocket::Tcp { listener, host }
            }
            InheritedAdmin::Unix(listener) => {
                let listener = UnixListener::from_std(listener)?;
                let address = listener.local_addr()?;
                let path = address.as_pathname().map(|path| path.display().to_string());
                AdminSocket::Unix {
                    path: path.unwrap_or_default(),
                    socket: Socket::Unix(listener),
                    file: None,
                }
            }
        })
    }
}

pub(crate) fn on_loopback(listener: &TcpListener) -> bool {
    listener
        .local_addr()
        .is_ok_and(|address| address.ip().is_loopback())
}
