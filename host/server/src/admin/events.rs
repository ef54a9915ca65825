//! `GET /events`: what the server does, once a second, as server-sent events.
//!
//! All clients read the same snapshots, which one task makes. It runs only while there are clients, and asks no engine
//! thread. A client that reads too slowly gets the newest snapshot next; it holds two at most.

use super::console_snapshot::snapshot;
use crate::json_response::no_store;
use crate::listener::StreamEnd;
use crate::problem::{ErrorFormat, Problem, StreamFormat};
use crate::prometheus::MetricFamilies;
use crate::state::ServerState;
use bytes::Bytes;
use corral_engine::MetricKind;
use corral_runtime::Body;
use http::{Response, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

/// Clients at once. With those that follow logs and those that call routes, they leave connections for the rest of the API.
const MAX_CLIENTS: usize = 16;
/// Time between two snapshots.
const INTERVAL: Duration = Duration::from_secs(1);
/// `Retry-After` of a client too many.
const RETRY: Duration = Duration::from_secs(5);

/// The snapshots, and who reads them.
#[derive(Debug)]
pub(super) struct EventFeed {
    permits: Arc<Semaphore>,
    /// The last snapshot, while there are clients.
    current: Mutex<Option<Arc<watch::Sender<Bytes>>>>,
    snapshots: AtomicU64,
    interval: Duration,
}

impl Default for EventFeed {
    fn default() -> Self {
        EventFeed {
            permits: Arc::new(Semaphore::new(MAX_CLIENTS)),
            current: Mutex::default(),
            snapshots: AtomicU64::new(0),
            interval: INTERVAL,
        }
    }
}

impl EventFeed {
    /// A stream of snapshots of `server`, the first at once. Must be called in a tokio runtime.
    pub(super) fn answer(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
    ) -> Result<Response<Body>, Problem> {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let detail = format!("{MAX_CLIENTS} clients read events already; close one of them");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-clients", detail)
                .retry_after(RETRY)
        })?;
        let server = Arc::clone(server);
        let snapshots = self.subscribe(move || snapshot(&server));
        let (sender, events) = mpsc::channel(1);
        tokio::spawn(forward(snapshots, sender, permit));
        let mut response = no_store(Body::from_channel(events), "text/event-stream");
        response.extensions_mut().insert(StreamEnd {
            format: StreamFormat::Events(ErrorFormat::Problem),
            last_error_line: None,
        });
        Ok(response)
    }

    /// Writes the metrics of the feed.
    pub(super) fn write_metrics(&self, families: &mut MetricFamilies) {
        families.sample(
            "corral_event_clients",
            "Clients that read the events of the admin listener.",
            MetricKind::Gauge,
            &[],
            (MAX_CLIENTS - self.permits.available_permits()) as f64,
        );
        families.sample(
            "corral_event_snapshots_total",
            "Snapshots made for clients that read the events of the admin listener, one for all of them.",
            MetricKind::Counter,
            &[],
            self.snapshots.load(Ordering::Relaxed) as f64,
        );
    }

    /// Future snapshots, and the last one if there are clients. Starts the task that makes them for the first client.
    fn subscribe(
        self: &Arc<Self>,
        make: impl Fn() -> String + Send + 'static,
    ) -> watch::Receiver<Bytes> {
        let mut current = self.current();
        if let Some(sender) = &*current {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(Bytes::new());
        let sender = Arc::new(sender);
        *current = Some(Arc::clone(&sender));
        tokio::spawn(Arc::clone(self).run(sender, make));
        receiver
    }

    /// Makes snapshots until nobody reads them.
    async fn run(self: Arc<Self>, sender: Arc<watch::Sender<Bytes>>, make: impl Fn() -> String) {
        // A panic must not leave a sender that sends nothing.
        let _cleared = ClearOnDrop(&self);
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => {}
            }
            if self.ends(&sender) {
                return;
            }
            self.snapshots.fetch_add(1, Ordering::Relaxed);
            let event = format!("event: snapshot\ndata: {}\n\n", make());
            sender.send_replace(event.into());
        }
    }

    /// Whether the task that makes snapshots ends. The lock keeps a client from joining at that moment.
    fn ends(&self, sender: &watch::Sender<Bytes>) -> bool {
        let mut current = self.current();
        let unused = sender.receiver_count() == 0;
        if unused {
            *current = None;
        }
        unused
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<watch::Sender<Bytes>>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the last snapshot when the task that makes them panics.
struct ClearOnDrop<'a>(&'a EventFeed);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.current() = None;
        }
    }
}

/// Sends snapshots to one client until it is gone.
async fn forward(
    mut snapshots: watch::Receiver<Bytes>,
    sender: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
) {
    loop {
        let event = snapshots.borrow_and_update().clone();
        // Empty before the first.
        if !event.is_empty() && sender.send(event).await.is_err() {
            return;
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() {
                return;
            },
            () = sender.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(receiver: &mut watch::Receiver<Bytes>) -> Bytes {
        receiver.changed().await.expect("the task runs");
        receiver.borrow_and_update().clone()
    }

    /// Lets other tasks of the test's thread run until they wait.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn snapshots_are_shared_and_need_a_client() {
        let feed = Arc::new(EventFeed {
            interval: Duration::from_millis(5),
            ..EventFeed::default()
        });
        let made = || feed.snapshots.load(Ordering::Relaxed);
        let mut first = feed.subscribe(|| "x".to_owned());
        let event = next(&mut first).await;
        assert_eq!(event, "event: snapshot\ndata: x\n\n");
        let mut second = feed.subscribe(|| unreachable!("there is a task"));
        assert_eq!(*second.borrow(), event, "the last one at once");
        next(&mut second).await;
        drop(first);
        next(&mut second).await;
        assert!(made() >= 3, "each was another snapshot");
        drop(second);
        while feed.current().is_some() {
            tokio::time::sleep(feed.interval).await;
        }
        let before = made();
        tokio::time::sleep(10 * feed.interval).await;
        assert_eq!(made(), before, "nobody reads");
        let mut third = feed.subscribe(|| "y".to_owned());
        assert_eq!(next(&mut third).await, "event: snapshot\ndata: y\n\n");
    }

    #[tokio::test]
    async fn slow_client_gets_the_newest_snapshot() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().expect("free");
        let (snapshots, receiver) = watch::channel(Bytes::new());
        let (sender, mut events) = mpsc::channel(1);
        tokio::spawn(forward(receiver, sender, permit));
        for number in 0..100 {
            snapshots.send_replace(number.to_string().into());
            settle().await;
        }
        let mut got = Vec::new();
        for _ in 0..3 {
            got.push(events.recv().await.expect("an event"));
        }
        assert_eq!(got, ["0", "1", "99"]);
        drop(events);
        settle().await;
        assert_eq!(permits.available_permits(), 1, "the client is gone");
    }

    #[tokio::test]
    async fn clients_are_counted() {
        let feed = Arc::new(EventFeed::default());
        let one = feed.permits.acquire().await;
        let mut families = MetricFamilies::default();
        feed.write_metrics(&mut families);
        assert!(families.text().contains("\ncorral_event_clients 1\n"));
        drop(one);
    }
}
