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

use crate::clock::now;
use crate::listener::{BindError, bind};
use crate::prometheus::MetricFamilies;
use batch_log::BatchLog;
use blocks::{Event, PublishedBlocks};
use corral_engine::{CacheFeed, CacheUpdate, MetricKind};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    let mut publisher = Publisher {
        models: HashMap::new(),
        log,
    };
    loop {
        changed.notified().await;
        for (model, update) in feed.take() {
            publisher.publish(&model, update).await;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What was published.
struct Publisher {
    models: HashMap<Arc<str>, PublishedBlocks>,
    log: Arc<BatchLog>,
}

impl Publisher {
    /// Publishes the changes of a model.
    async fn publish(&mut self, model: &Arc<str>, update: CacheUpdate) {
        let mut batch = PendingBatch {
            model,
            log: &self.log,
            events: Vec::new(),
            numbers: 0,
        };
        let nothing_is_stored = self.models.values().all(PublishedBlocks::is_empty);
        let blocks = match self.models.entry(model.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // An earlier process may have had its name. Routers take it for all models of this server.
                if nothing_is_stored {
                    batch.add(vec![Event::Cleared]).await;
                }
                new.insert(PublishedBlocks::default())
            }
        };
        if update.is_reset {
            for event in blocks.clear() {
                batch.add(vec![event]).await;
            }
        }
        for change in update.changes {
            let mut events = Vec::new();
            blocks.apply(change, &mut events);
            batch.add(events).await;
        }
        batch.push();
    }
}

/// Events of a model that are not in a batch yet.
struct PendingBatch<'a> {
    model: &'a Arc<str>,
    log: &'a BatchLog,
    events: Vec<Event>,
    /// Tokens and hashes of the events.
    numbers: usize,
}

impl PendingBatch<'_> {
    /// Adds events, and publishes the batch if it is large.
    async fn add(&mut self, events: Vec<Event>) {
        self.numbers += events.iter().map(Event::numbers).sum::<usize>();
        self.events.extend(events);
        if self.numbers >= BATCH_NUMBERS {
            self.push();
            tokio::task::yield_now().await;
        }
    }

    fn push(&mut self) {
        if !self.events.is_empty() {
            let events = encoding::encode(now().as_secs_f64(), &self.events);
            self.log.push(self.model, events);
        }
        self.events.clear();
        self.numbers = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{
        CacheChange, EntryLocation, OwnedChange, PrefixHolder, PrefixOwner, PrefixScope, RequestId,
    };

    #[tokio::test]
    async fn later_model_clears_no_other() {
        let log = Arc::<BatchLog>::default();
        let mut publisher = Publisher {
            models: HashMap::new(),
            log: log.clone(),
        };
        let reset = || {
            let mut update = CacheUpdate::default();
            update.is_reset = true;
            update
        };
        let mut stored = reset();
        stored.changes.push(OwnedChange {
            change: CacheChange {
                holder: PrefixHolder::Running(RequestId(1)),
                scope: PrefixScope(0),
                location: EntryLocation::Cells,
                kept: 0,
                tokens: vec![1; 16],
            },
            owner: PrefixOwner::new("tenant", "a"),
            adapter: None,
        });
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        for (model, update) in [
            (&a, reset()),
            (&a, stored),
            (&b, reset()),
            (&a, reset()),
            (&b, reset()),
        ] {
            publisher.publish(model, update).await;
        }
        let events = ["AllBlocksCleared", "BlockStored", "BlockRemoved"];
        assert_eq!(log.published(), events.len() as u64);
        for (number, event) in (0..).zip(events) {
            let batch = log.first_from(number).expect("published");
            let mut parts = batch.payload.windows(event.len());
            assert!(parts.any(|part| part == event.as_bytes()), "{event}");
            assert_eq!(batch.model, a);
        }
    }

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
