//! The protocol of ZeroMQ sockets, ZMTP 3.0 with the mechanism NULL: the handshake, frames and heartbeats.
//! <https://rfc.zeromq.org/spec/23/>
//!
//! What a peer sends here is short: subscriptions and requests for replays.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Most bytes of a frame that a peer sends.
const MAX_FRAME: usize = 1 << 10;
/// Most frames of a message that a peer sends.
const MAX_FRAMES: usize = 8;
/// Signature, version 3.0, the mechanism, 0 for a client, and filler. A peer of version 3.1 speaks 3.0, too.
const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    let mechanism = b"NULL";
    let mut index = 0;
    while index < mechanism.len() {
        greeting[12 + index] = mechanism[index];
        index += 1;
    }
    greeting
};
/// Flags of a frame.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Something from a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ZmtpInput {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// A heartbeat with this context, which wants a [`pong`].
    Ping(Vec<u8>),
    /// A subscription to all topics that begin so, or its end.
    Subscription { topic: Vec<u8>, ends: bool },
}

/// Opens a connection as a socket of this type.
pub(super) async fn handshake(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    socket_type: &str,
) -> io::Result<()> {
    stream.write_all(&GREETING).await?;
    let mut greeting = [0; 64];
    stream.read_exact(&mut greeting).await?;
    let is_known = greeting[0] == 0xff && greeting[9] & 1 == 1 && greeting[10] >= 3;
    if !is_known || greeting[12..32] != GREETING[12..32] {
        return Err(invalid("no greeting of ZMTP 3 with the mechanism NULL"));
    }
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend(u32::try_from(socket_type.len()).unwrap_or(0).to_be_bytes());
    ready.extend(socket_type.as_bytes());
    let mut out = Vec::new();
    push_frame(&mut out, COMMAND, &ready);
    stream.write_all(&out).await?;
    match read_frame(stream).await? {
        (flags, body) if flags & COMMAND != 0 && body.starts_with(b"\x05READY") => Ok(()),
        _ => Err(invalid("the first frame is not READY")),
    }
}

/// Reads until something arrives that matters.
pub(super) async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<ZmtpInput> {
    let mut message = Vec::new();
    loop {
        let (flags, body) = read_frame(stream).await?;
        if flags & COMMAND != 0 {
            // Peers of version 3.1 may send subscriptions as commands.
            let command = |name: &[u8]| body.strip_prefix(name).map(<[u8]>::to_vec);
            if let Some(rest) = command(b"\x04PING") {
                return Ok(ZmtpInput::Ping(rest.get(2..).unwrap_or_default().to_vec()));
            }
            if let Some(topic) = command(b"\x09SUBSCRIBE") {
                return Ok(ZmtpInput::Subscription { topic, ends: false });
            }
            if let Some(topic) = command(b"\x06CANCEL") {
                return Ok(ZmtpInput::Subscription { topic, ends: true });
            }
            continue;
        }
        message.push(body);
        if message.len() > MAX_FRAMES {
            return Err(invalid("a message has too many frames"));
        }
        if flags & MORE == 0 {
            return Ok(ZmtpInput::Message(message));
        }
    }
}

/// The answer to a heartbeat.
pub(super) fn pong(context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_frame(&mut out, COMMAND, &[b"\x04PONG", context].concat());
    out
}

/// A message of these frames.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() { MORE } else { 0 };
        push_frame(&mut out, more, frame);
    }
    out
}

fn push_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

/// The flags and the body of a frame.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Vec<u8>)> {
    let flags = stream.read_u8().await?;
    let length = match flags & LONG {
        0 => u64::from(stream.read_u8().await?),
        _ => stream.read_u64().await?,
    };
    let length = usize::try_from(length).ok().filter(|it| *it <= MAX_FRAME);
    let length = length.ok_or_else(|| invalid("a frame is too long"))?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((flags, body))
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ends_shake_hands() {
        let (mut a, mut b) = tokio::io::duplex(1024);
        let both = tokio::join!(handshake(&mut a, "PUB"), handshake(&mut b, "SUB"));
        assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
        let long = vec![7; 300];
        let bytes = [message(&[b"", &long]), pong(b"x")].concat();
        a.write_all(&bytes).await.unwrap();
        let received = receive(&mut b).await.unwrap();
        assert_eq!(received, ZmtpInput::Message(vec![Vec::new(), long]));
        let ping = [4, 8, 4, b'P', b'I', b'N', b'G', 0, 9, b'c'];
        a.write_all(&ping).await.unwrap();
        let received = receive(&mut b).await.unwrap();
        assert_eq!(received, ZmtpInput::Ping(b"c".to_vec()));
    }

    #[tokio::test]
    async fn hostile_peers_get_an_error() {
        let greeting = GREETING.to_vec();
        let mut old = greeting.clone();
        old[10] = 1;
        let frame = |bytes: &[u8]| [&greeting[..], bytes].concat();
        for bytes in [
            b"GET / HTTP/1.1\r\n".repeat(4),
            old,
            frame(&[4, 3, 1, 2, 3]),
            frame(&[2, 0xff, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let (mut a, mut b) = tokio::io::duplex(1024);
            a.write_all(&bytes).await.unwrap();
            assert!(handshake(&mut b, "PUB").await.is_err(), "{bytes:?}");
        }
        let (mut a, mut b) = tokio::io::duplex(1024);
        a.write_all(&[1, 0].repeat(MAX_FRAMES + 1)).await.unwrap();
        assert!(receive(&mut b).await.is_err());
    }
}
