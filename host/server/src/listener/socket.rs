//! The socket of a listener: TCP, or a Unix domain socket.
//!
//! The file of a Unix domain socket has mode 0600 before a client can connect. A file that a killed server
//! left behind is removed if nothing listens on it.

use super::BindError;
use rustix::net::sockopt;
use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::time::timeout;

/// Backlog of a Unix domain socket; the default of tokio and the standard library.
const BACKLOG: u32 = 1024;
/// Silence after which the kernel probes a client.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Probes without an answer that end the connection.
const KEEPALIVE_PROBES: u32 = 4;
/// Time limit for a listener at the path to accept a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection.
pub(super) enum AcceptedStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// From within this process.
    Memory(DuplexStream),
}

impl AcceptedStream {
    /// Sends `message` as far as the socket takes it at once, and closes the connection. A TCP client may get a
    /// reset instead, if more of its bytes arrive meanwhile.
    pub(super) fn refuse(self, message: &[u8]) {
        if let AcceptedStream::Tcp(stream) = self
            && let Ok(mut stream) = stream.into_std()
        {
            // Closing a socket with unread bytes resets the connection.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write(message);
        }
    }
}

/// The client of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Address(SocketAddr),
    /// A process of this machine.
    Process,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::Process => f.write_str("a process"),
        }
    }
}

impl Socket {
    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> io::Result<(AcceptedStream, Peer)> {
        Ok(match self {
            Socket::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                if let Err(error) = set_options(&stream) {
                    tracing::debug!(%error, "cannot set the options of a connection");
                }
                (AcceptedStream::Tcp(stream), Peer::Address(address))
            }
            Socket::Unix(socket) => (
                AcceptedStream::Unix(socket.accept().await?.0),
                Peer::Process,
            ),
        })
    }
}

/// Sets the options of a connection.
pub(crate) fn set_options(stream: &TcpStream) -> io::Result<()> {
    // Nagle's algorithm would delay small chunks of a stream by 40 ms.
    stream.set_nodelay(true)?;
    // A client that vanishes without closing its connection would hold its request until the time limit.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// The file of a Unix domain socket. Dropping it removes the file, unless another file has replaced it.
/// Dropped before the socket is closed, so that no other server mistakes the file for a stale one, and no
/// other file can have its inode.
#[derive(Debug)]
pub(crate) struct UnixSocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        if file_id(&self.path).is_ok_and(|id| id == self.id)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket's file");
        }
    }
}

/// Listens on a Unix domain socket that only its owner can connect to.
pub(crate) async fn bind_unix(path: &Path) -> Result<(UnixSocketFile, Socket), BindError> {
    let refused = |cause| BindError::UnixSocket {
        path: path.to_owned(),
        cause,
    };
    remove_stale_file(path).await?;
    let socket = UnixSocket::new_stream().map_err(refused)?;
    socket.bind(path).map_err(|cause| match cause.kind() {
        // Another process was faster.
        io::ErrorKind::AddrInUse => in_use(path),
        _ => refused(cause),
    })?;
    let file = UnixSocketFile {
        path: path.to_owned(),
        id: file_id(path).map_err(refused)?,
    };
    // No client can connect before `listen`.
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(refused)?;
    let listener = socket.listen(BACKLOG).map_err(refused)?;
    Ok((file, Socket::Unix(listener)))
}

/// Removes the file of a server that no longer runs.
async fn remove_stale_file(path: &Path) -> Result<(), BindError> {
    let refused = |cause| BindError::UnixSocket {
        path: path.to_owned(),
        cause,
    };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::NotASocket(path.to_owned())),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(refused(cause)),
    }
    match timeout(PROBE_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(cause)) if cause.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(refused)
        }
        Ok(Err(cause)) if cause.kind() == io::ErrorKind::PermissionDenied => Err(refused(cause)),
        // A timeout means a busy listener.
        _ => Err(in_use(path)),
    }
}

fn in_use(path: &Path) -> BindError {
    BindError::InUse(format!("unix:{}", path.display()))
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_file_is_private_and_removed_on_drop() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let (file, socket) = bind_unix(&path).await.expect("the path is free");
        let mode = fs::metadata(&path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (accepted, connected) = tokio::join!(socket.accept(), UnixStream::connect(&path));
        assert!(matches!(accepted.expect("a client").1, Peer::Process));
        connected.expect("it listens");
        let error = bind_unix(&path).await.expect_err("in use");
        assert!(matches!(&error, BindError::InUse(_)), "{error}");
        assert!(path.exists(), "the file stays");
        drop(file);
        assert!(!path.exists(), "removed before the socket is closed");
    }

    #[tokio::test]
    async fn accepted_connection_is_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let socket = Socket::Tcp(listener);
        let (accepted, client) = tokio::join!(socket.accept(), TcpStream::connect(address));
        let _client = client.expect("it listens");
        let (AcceptedStream::Tcp(stream), _) = accepted.expect("a client") else {
            panic!("not TCP");
        };
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(&stream), Ok(KEEPALIVE_IDLE));
    }

    #[tokio::test]
    async fn only_stale_socket_files_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "as after a kill");
        let (old, _socket) = bind_unix(&path).await.expect("nothing listens");
        fs::remove_file(&path).expect("there");
        let (file, _new) = bind_unix(&path).await.expect("the path is free");
        drop(old);
        assert!(path.exists(), "another socket owns the path");
        drop(file);
        fs::write(&path, "no socket").expect("written");
        let error = bind_unix(&path).await.expect_err("a regular file");
        assert!(error.to_string().contains("is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("there"), "no socket");
        let nowhere = dir.path().join("nowhere/socket");
        let error = bind_unix(&nowhere).await.expect_err("no directory");
        assert!(error.to_string().contains("give a path"), "{error}");
        let long = dir.path().join("x".repeat(200));
        let error = bind_unix(&long).await.expect_err("too long a path");
        assert!(error.to_string().contains("give a path"), "{error}");
    }
}
