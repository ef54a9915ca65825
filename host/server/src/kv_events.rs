//! Publishes which blocks of tokens are cached, for routers that send a request to the server that has its prefix. The format
//! is that of vLLM: sockets of ZeroMQ, batches of events in MessagePack.
//!
//! The engines put changes into a [`CacheFeed`]; one task turns them into [events](blocks), and adds [batches](encoding) to a
//! [log](batch_log), from which each [subscriber](subscribers) reads. Nothing waits for a subscriber, and the memory is
//! bounded by the cache (a hash for each block of each holder) and the log. Nobody reads what was published before its
//! connection, except by a replay.
//!
//! ZMTP is spoken [here](zmtp) and not by a crate: this side of it is small, and a subscriber must have no queue.

mod batch_log;
mod blocks;
mod encoding;
mod subscribers;
mod zmtp;

use crate::listener::{BindError, bind};
use crate::process_metrics::unix_milliseconds;
use crate::prometheus::MetricFamilies;
use batch_log::BatchLog;
use blocks::{Event, PublishedBlocks};
use corral_engine::{CacheFeed, CacheUpdate, MetricKind};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use subscribers::{Role, Source};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// Least time between two rounds of publishing.
const INTERVAL: Duration = Duration::from_millis(10);
/// Tokens or hashes after which a batch ends. Its last event may exceed it.
const BATCH_NUMBERS: usize = 1 << 16;

/// Address of a socket of ZeroMQ that listens: `tcp://HOST:PORT`, with `*` for all addresses of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZmqAddress(String);

impl ZmqAddress {
    /// `HOST:PORT`.
    pub fn authority(&self) -> &str {
        &self.0
    }
}

impl FromStr for ZmqAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.strip_prefix("tcp://").and_then(|rest| {
            let (host, port) = rest.rsplit_once(':')?;
            port.parse::<u16>().ok()?;
            let host = if host == "*" { "0.0.0.0" } else { host };
            (!host.is_empty()).then(|| format!("{host}:{port}"))
        });
        let address = address.ok_or("write tcp://HOST:PORT, e.g. tcp://127.0.0.1:5557")?;
        Ok(Self(address))
    }
}

impl fmt::Display for ZmqAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.0)
    }
}

/// Publishes the changes of a [`CacheFeed`].
#[derive(Debug)]
pub struct KvEvents {
    feed: Arc<CacheFeed>,
    changed: Arc<Notify>,
    log: Arc<BatchLog>,
    addresses: Vec<SocketAddr>,
    /// Taken by [`KvEvents::start`].
    listeners: Mutex<Vec<(TcpListener, Role)>>,
}

impl KvEvents {
    /// Binds the socket of subscribers, and that of replays. Must be called inside a tokio runtime.
    pub async fn bind(
        address: &ZmqAddress,
        replay: Option<&ZmqAddress>,
    ) -> Result<Self, BindError> {
        let mut listeners = vec![(bind(&address.0).await?, Role::Publish)];
        if let Some(replay) = replay {
            listeners.push((bind(&replay.0).await?, Role::Replay));
        }
        let changed = Arc::new(Notify::new());
        let wake = changed.clone();
        Ok(Self {
            feed: Arc::new(CacheFeed::new(move || wake.notify_one())),
            changed,
            log: Arc::default(),
            addresses: listeners
                .iter()
                .filter_map(|(listener, _)| listener.local_addr().ok())
                .collect(),
            listeners: Mutex::new(listeners),
        })
    }

    /// Where the models put their changes.
    pub fn feed(&self) -> Arc<CacheFeed> {
        self.feed.clone()
    }

    /// The addresses of the sockets, with their actual ports: of subscribers, then of replays.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts to publish. `public` is the address of the public listener, which names this server.
    pub(crate) fn start(&self, public: SocketAddr) {
        let source = Arc::new(Source {
            log: self.log.clone(),
            public,
        });
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (listener, role) in listeners.drain(..) {
            tokio::spawn(subscribers::accept(listener, role, source.clone()));
        }
        let (feed, changed) = (self.feed.clone(), self.changed.clone());
        tokio::spawn(publish(feed, changed, self.log.clone()));
    }

    pub(crate) fn write_metrics(&self, families: &mut MetricFamilies) {
        for (name, help, value) in [
            (
                "corral_kv_events_batches_total",
                "Batches of KV events that were published.",
                self.log.published(),
            ),
            (
                "corral_kv_events_missed_batches_total",
                "Batches of KV events that a subscriber missed because it was too slow; counted for each subscriber.",
                self.log.missed(),
            ),
        ] {
            families.sample(name, help, MetricKind::Counter, &[], value as f64);
        }
    }
}

/// Publishes changes for ever.
async fn publish(feed: Arc<CacheFeed>, changed: Arc<Notify>, log: Arc<BatchLog>) {
    let mut models: HashMap<Arc<str>, PublishedBlocks> = HashMap::new();
    loop {
        changed.notified().await;
        for (model, update) in feed.take() {
            let is_new = !models.contains_key(&model);
            let blocks = models.entry(model.clone()).or_default();
            publish_update(&model, update, blocks, is_new, &log).await;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Publishes the changes of a model. A `new` one is cleared, because an earlier process may have had its name.
async fn publish_update(
    model: &Arc<str>,
    update: CacheUpdate,
    blocks: &mut PublishedBlocks,
    is_new: bool,
    log: &BatchLog,
) {
    let mut events = Vec::new();
    if update.is_reset {
        if is_new || !blocks.is_empty() {
            events.push(Event::Cleared);
        }
        *blocks = PublishedBlocks::default();
    }
    let mut numbers = 0;
    for change in update.changes {
        let before = events.len();
        blocks.apply(change, &mut events);
        numbers += events[before..].iter().map(Event::numbers).sum::<usize>();
        if numbers >= BATCH_NUMBERS {
            numbers = 0;
            push(log, model, &std::mem::take(&mut events));
            tokio::task::yield_now().await;
        }
    }
    push(log, model, &events);
}

fn push(log: &BatchLog, model: &Arc<str>, events: &[Event]) {
    if !events.is_empty() {
        let seconds = unix_milliseconds() as f64 / 1000.0;
        log.push(model, encoding::encode(seconds, events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_tcp() {
        let parse = |text: &str| text.parse::<ZmqAddress>().map(|it| it.0);
        assert_eq!(parse("tcp://*:5557"), Ok("0.0.0.0:5557".to_owned()));
        assert_eq!(parse("tcp://[::1]:0"), Ok("[::1]:0".to_owned()));
        for wrong in [
            "127.0.0.1:5557",
            "tcp://:1",
            "tcp://a",
            "ipc://a",
            "tcp://a:b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
