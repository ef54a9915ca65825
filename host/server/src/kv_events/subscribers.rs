//! The connections of subscribers and of those that ask for a replay.
//!
//! A subscriber is a socket SUB. It gets the batches after its connection, of the topics `kv@HOST@MODEL` that it subscribes to.
//! A DEALER asks for a replay with a sequence number, and perhaps a topic: it gets the topic, number and payload of each
//! batch from there on, then the number -1 with an empty topic and payload.

use super::batch_log::{BatchLog, EventBatch};
use super::zmtp::{self, ZmtpInput};
use crate::listener::set_options;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// Connections of each of the two sockets; further ones wait in its backlog.
const MAX_CONNECTIONS: usize = 64;
/// Time limits for a handshake, for a message to be taken, and for the next request for a replay.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
const WRITE_TIME: Duration = Duration::from_secs(30);
const REPLAY_IDLE_TIME: Duration = Duration::from_secs(300);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Topics of a subscriber.
const MAX_TOPICS: usize = 64;
/// What a subscriber sent that is not handled yet.
const MAX_UNHANDLED: usize = 16;
/// Ends a replay.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// What the connections share.
pub(super) struct Source {
    pub(super) log: Arc<BatchLog>,
    /// The address of the public listener.
    pub(super) public: SocketAddr,
}

/// What a socket does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Publish,
    Replay,
}

/// Accepts connections for ever.
pub(super) async fn accept(listener: TcpListener, role: Role, source: Arc<Source>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                tokio::spawn(async move {
                    let result = serve(stream, role, &source).await;
                    tracing::debug!(?role, ?result, "a connection for KV events ended");
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a subscriber of KV events");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(mut stream: TcpStream, role: Role, source: &Source) -> io::Result<()> {
    set_options(&stream)?;
    let host = host(source.public, stream.local_addr()?.ip());
    let socket_type = match role {
        Role::Publish => "PUB",
        Role::Replay => "ROUTER",
    };
    in_time(HANDSHAKE_TIME, zmtp::handshake(&mut stream, socket_type)).await?;
    match role {
        Role::Publish => publish(stream, &source.log, host).await,
        Role::Replay => replay(stream, &source.log, host).await,
    }
}

/// The public address as the peer sees it: a listener on all addresses is at the one that the peer connected to.
fn host(public: SocketAddr, connected: IpAddr) -> SocketAddr {
    match public.ip().is_unspecified() {
        true => SocketAddr::new(connected.to_canonical(), public.port()),
        false => public,
    }
}

fn topic(host: SocketAddr, batch: &EventBatch) -> Vec<u8> {
    format!("kv@{host}@{}", batch.model).into_bytes()
}

/// Sends what a peer subscribes to.
async fn publish(mut stream: TcpStream, log: &BatchLog, host: SocketAddr) -> io::Result<()> {
    let mut published = log.follow();
    let mut next = *published.borrow_and_update();
    let (mut reader, mut writer) = stream.split();
    let (sender, mut received) = mpsc::channel(MAX_UNHANDLED);
    let read = async {
        loop {
            let received = zmtp::receive(&mut reader).await?;
            if sender.send(received).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        let mut subscribed: Vec<Vec<u8>> = Vec::new();
        loop {
            tokio::select! {
                received = received.recv() => match received {
                    Some(ZmtpInput::Ping(context)) => {
                        in_time(WRITE_TIME, writer.write_all(&zmtp::pong(&context))).await?;
                    }
                    Some(received) => subscribe(&mut subscribed, received)?,
                    None => return Ok(()),
                },
                changed = published.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
            published.mark_unchanged();
            while let Some(batch) = log.first_from(next) {
                log.count_missed(batch.sequence - next);
                next = batch.sequence + 1;
                let topic = topic(host, &batch);
                if subscribed.iter().any(|start| topic.starts_with(start)) {
                    let sequence = batch.sequence.to_be_bytes();
                    let message = zmtp::message(&[&topic, &sequence, &batch.payload]);
                    in_time(WRITE_TIME, writer.write_all(&message)).await?;
                }
            }
        }
    };
    tokio::select! {
        result = read => result,
        result = write => result,
    }
}

/// Begins or ends a subscription. In a message, the first byte tells which.
fn subscribe(subscribed: &mut Vec<Vec<u8>>, received: ZmtpInput) -> io::Result<()> {
    let (topic, ends) = match received {
        ZmtpInput::Subscription { topic, ends } => (topic, ends),
        ZmtpInput::Message(frames) => match frames.first().and_then(|frame| frame.split_first()) {
            Some((&first, topic)) if first <= 1 => (topic.to_vec(), first == 0),
            _ => return Ok(()),
        },
        ZmtpInput::Ping(_) => return Ok(()),
    };
    if ends {
        let found = subscribed.iter().position(|other| *other == topic);
        found.map(|index| subscribed.swap_remove(index));
    } else if subscribed.len() < MAX_TOPICS {
        subscribed.push(topic);
    } else {
        return Err(io::Error::other("too many topics"));
    }
    Ok(())
}

/// Answers requests for replays.
async fn replay(mut stream: TcpStream, log: &BatchLog, host: SocketAddr) -> io::Result<()> {
    loop {
        let received = in_time(REPLAY_IDLE_TIME, zmtp::receive(&mut stream)).await?;
        let frames = match received {
            ZmtpInput::Message(frames) => frames,
            ZmtpInput::Ping(context) => {
                in_time(WRITE_TIME, stream.write_all(&zmtp::pong(&context))).await?;
                continue;
            }
            ZmtpInput::Subscription { .. } => continue,
        };
        let Some((start, wanted)) = request(&frames) else {
            return Err(io::Error::other("no sequence number of 8 bytes"));
        };
        let mut next = start;
        while let Some(batch) = log.first_from(next) {
            next = batch.sequence + 1;
            let topic = topic(host, &batch);
            if wanted.is_none_or(|wanted| topic == wanted) {
                let sequence = batch.sequence.to_be_bytes();
                let message = zmtp::message(&[b"", &topic, &sequence, &batch.payload]);
                in_time(WRITE_TIME, stream.write_all(&message)).await?;
            }
        }
        let end = zmtp::message(&[b"", b"", &END, b""]);
        in_time(WRITE_TIME, stream.write_all(&end)).await?;
    }
}

/// The number and the topic of a request, which stand after an empty frame.
fn request(frames: &[Vec<u8>]) -> Option<(u64, Option<&[u8]>)> {
    let [delimiter, start, topic @ ..] = frames else {
        return None;
    };
    let start: [u8; 8] = start.as_slice().try_into().ok()?;
    let is_valid = delimiter.is_empty() && topic.len() <= 1;
    is_valid.then(|| (u64::from_be_bytes(start), topic.first().map(Vec::as_slice)))
}

async fn in_time<T>(time: Duration, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(time, future)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn message(stream: &mut TcpStream) -> Vec<Vec<u8>> {
        match zmtp::receive(stream).await {
            Ok(ZmtpInput::Message(frames)) => frames,
            other => panic!("{other:?}"),
        }
    }

    async fn start(role: Role) -> (Arc<BatchLog>, SocketAddr) {
        let log = Arc::<BatchLog>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let source = Source {
            log: log.clone(),
            public: "0.0.0.0:80".parse().unwrap(),
        };
        tokio::spawn(accept(listener, role, Arc::new(source)));
        (log, address)
    }

    #[tokio::test]
    async fn subscriber_gets_its_topics() {
        let (log, address) = start(Role::Publish).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        zmtp::handshake(&mut stream, "SUB").await.unwrap();
        let topic = b"\x01kv@127.0.0.1:80@b";
        stream.write_all(&zmtp::message(&[topic])).await.unwrap();
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        // Until the subscription is known.
        tokio::spawn(async move {
            for _ in 0..10_000 {
                log.push(&a, vec![1]);
                log.push(&b, vec![2; 300]);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let frames = message(&mut stream).await;
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0], b"kv@127.0.0.1:80@b");
        assert_eq!((frames[1].len(), frames[1][7] % 2), (8, 1));
        assert_eq!(frames[2], [2; 300]);
    }

    /// The sequence number of the next message, whatever its size.
    async fn next_sequence(stream: &mut TcpStream) -> u64 {
        let mut frames = Vec::new();
        loop {
            let flags = stream.read_u8().await.unwrap();
            let length = match flags & 2 {
                0 => u64::from(stream.read_u8().await.unwrap()),
                _ => stream.read_u64().await.unwrap(),
            };
            let mut body = vec![0; usize::try_from(length).unwrap()];
            stream.read_exact(&mut body).await.unwrap();
            frames.push(body);
            if flags & 1 == 0 {
                return u64::from_be_bytes(frames[1][..].try_into().unwrap());
            }
        }
    }

    #[tokio::test]
    async fn slow_subscriber_sees_a_gap() {
        let (log, address) = start(Role::Publish).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        zmtp::handshake(&mut stream, "SUB").await.unwrap();
        stream.write_all(&zmtp::message(&[b"\x01"])).await.unwrap();
        let model = Arc::<str>::from("a");
        let moment = Duration::from_millis(50);
        while timeout(moment, stream.peek(&mut [0])).await.is_err() {
            log.push(&model, vec![1]);
        }
        // The connection has no time to send these.
        for _ in 0..40 {
            log.push(&model, vec![2; 1 << 20]);
        }
        let mut last = next_sequence(&mut stream).await;
        let mut missed = 0;
        while last + 1 < log.published() {
            let next = next_sequence(&mut stream).await;
            missed += next - last - 1;
            last = next;
        }
        assert!((20..40).contains(&missed), "{missed}");
        assert_eq!(log.missed(), missed);
    }

    #[tokio::test]
    async fn replay_ends_with_minus_one() {
        let (log, address) = start(Role::Replay).await;
        for model in ["a", "b", "a", "b"] {
            log.push(&Arc::from(model), model.into());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        zmtp::handshake(&mut stream, "DEALER").await.unwrap();
        let start = 1_u64.to_be_bytes();
        for (request, expected) in [
            (vec![&b""[..], &start], vec![1, 2, 3]),
            (vec![&b""[..], &start, b"kv@127.0.0.1:80@b"], vec![1, 3]),
        ] {
            stream.write_all(&zmtp::message(&request)).await.unwrap();
            for number in expected {
                let frames = message(&mut stream).await;
                let model = if number % 2 == 0 { "a" } else { "b" };
                let topic = format!("kv@127.0.0.1:80@{model}").into_bytes();
                let number = u64::to_be_bytes(number).to_vec();
                assert_eq!(frames, [Vec::new(), topic, number, model.into()]);
            }
            let frames = message(&mut stream).await;
            let end = [Vec::new(), Vec::new(), vec![0xff; 8], Vec::new()];
            assert_eq!(frames, end);
        }
        stream.write_all(&zmtp::message(&[b"?"])).await.unwrap();
        assert!(stream.read_u8().await.is_err(), "the connection is closed");
    }
}
