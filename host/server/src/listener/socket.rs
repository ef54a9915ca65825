//! What a listener listens on: an address, or a socket in the file system.
//!
//! The socket's file is its owner's alone (0600), from before anybody can connect until the server ends.
//! A file that a killed server has left is taken away if nobody listens there any more.

use super::BindError;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::time::timeout;

/// Clients that may wait to be accepted; as many as tokio and the standard library have it.
const BACKLOG: u32 = 1024;
/// How long whoever listens at a path has to take a connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a listener listens on.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A client's connection.
pub(super) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Of this process.
    Memory(DuplexStream),
}

/// Who is at its other end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Address(SocketAddr),
    /// A process of this machine, or this one.
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
    /// The next client.
    pub(super) async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        Ok(match self {
            Socket::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                (Accepted::Tcp(stream), Peer::Address(address))
            }
            Socket::Unix(socket) => (Accepted::Unix(socket.accept().await?.0), Peer::Process),
        })
    }
}

/// The file of a socket. It is removed when this is dropped, unless another one has taken its place. Goes
/// before the socket, so that nobody takes the file for one that was left, and so that no other file has
/// its number.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    number: (u64, u64),
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if number_of(&self.path).is_ok_and(|number| number == self.number)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "the socket's file stays behind");
        }
    }
}

/// Listens at a path, for its owner alone.
pub(crate) async fn bind_file(path: &Path) -> Result<(SocketFile, Socket), BindError> {
    let refused = |cause| BindError::File {
        path: path.to_owned(),
        cause,
    };
    make_way(path).await?;
    let socket = UnixSocket::new_stream().map_err(refused)?;
    socket.bind(path).map_err(|cause| match cause.kind() {
        // Somebody was quicker.
        io::ErrorKind::AddrInUse => in_use(path),
        _ => refused(cause),
    })?;
    let file = SocketFile {
        path: path.to_owned(),
        number: number_of(path).map_err(refused)?,
    };
    // Nobody can connect before it listens.
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(refused)?;
    let listener = socket.listen(BACKLOG).map_err(refused)?;
    Ok((file, Socket::Unix(listener)))
}

/// Takes away what a server that is no more has left at the path.
async fn make_way(path: &Path) -> Result<(), BindError> {
    let refused = |cause| BindError::File {
        path: path.to_owned(),
        cause,
    };
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::NoSocket(path.to_owned())),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(refused(cause)),
    }
    match timeout(PATIENCE, UnixStream::connect(path)).await {
        Ok(Err(cause)) if cause.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(refused)
        }
        Ok(Err(cause)) if cause.kind() == io::ErrorKind::PermissionDenied => Err(refused(cause)),
        // One that is too busy to answer listens too.
        _ => Err(in_use(path)),
    }
}

fn in_use(path: &Path) -> BindError {
    BindError::InUse(format!("unix:{}", path.display()))
}

fn number_of(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_is_its_owners_alone_and_goes_with_the_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (file, socket) = bind_file(&path).await.expect("nobody is there");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (accepted, connected) = tokio::join!(socket.accept(), UnixStream::connect(&path));
        assert!(matches!(accepted.expect("a client").1, Peer::Process));
        connected.expect("it listens");
        let error = bind_file(&path).await.expect_err("somebody listens");
        assert!(matches!(&error, BindError::InUse(_)), "{error}");
        assert!(path.exists(), "it was left alone");
        drop(file);
        assert!(!path.exists(), "before the socket is closed");
    }

    #[tokio::test]
    async fn what_a_killed_server_left_is_taken_away_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "as after a kill");
        let (old, _socket) = bind_file(&path).await.expect("nobody listens there");
        fs::remove_file(&path).expect("there");
        let (file, _new) = bind_file(&path).await.expect("nobody is there");
        drop(old);
        assert!(path.exists(), "it is another one's now");
        drop(file);
        fs::write(&path, "no socket").expect("written");
        let error = bind_file(&path).await.expect_err("a file of somebody");
        assert!(error.to_string().contains("is no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("there"), "no socket");
        let nowhere = folder.path().join("nowhere/socket");
        let error = bind_file(&nowhere).await.expect_err("no folder");
        assert!(error.to_string().contains("give a path"), "{error}");
        let long = folder.path().join("x".repeat(200));
        let error = bind_file(&long).await.expect_err("too long a path");
        assert!(error.to_string().contains("give a path"), "{error}");
    }
}
