//! A TCP proxy whose network can be cut.

use crate::upstream::listen;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// Bytes that are forwarded at once.
const PIECE: usize = 16 << 10;

/// Forwards the connections to a free port of 127.0.0.1. While it is cut, nothing arrives on either side, not even the end of
/// a connection; new connections are not answered. Afterwards all that was sent arrives, as TCP sends it again.
///
/// Its thread ends with the process.
pub struct Proxy {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Proxy {
    /// Starts a proxy of the server at this port of 127.0.0.1.
    pub fn start(port: u16) -> Self {
        let (is_cut, state) = watch::channel(false);
        let address = listen(move |client| forward(client, port, state.clone()));
        Proxy { address, is_cut }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Cuts the network.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Repairs the network.
    pub fn repair(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn forward(client: TcpStream, port: u16, mut is_cut: watch::Receiver<bool>) {
    if !repaired(&mut is_cut).await {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    for stream in [&client, &server] {
        // Without it, small messages are late.
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        copy(from_client, to_server, is_cut.clone()),
        copy(from_server, to_client, is_cut)
    );
}

/// Copies to the end. Dropping `to` ends that direction.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut is_cut: watch::Receiver<bool>) {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece).await;
        let is_repaired = repaired(&mut is_cut).await;
        let Ok(count @ 1..) = read else {
            return;
        };
        if !is_repaired || to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits while the network is cut. False if the proxy is gone.
async fn repaired(is_cut: &mut watch::Receiver<bool>) -> bool {
    is_cut.wait_for(|is_cut| !is_cut).await.is_ok()
}
