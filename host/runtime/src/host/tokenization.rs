//! Permits for tokenizing long texts.
//!
//! llama.cpp's tokenizers take up to about a hundred bytes of memory for each byte of text, so the texts that
//! they work on are bounded in bytes, for each tenant and in all. Texts beyond that wait: in order of
//! arrival, except that a tenant at its own bound lets other tenants pass.

use crate::counters::metric;
use corral_engine::{Metric, MetricKind, Tenant};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Longest text of one tokenization, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 4 << 20;
/// Bytes of one tenant that are tokenized at once: one text of the greatest length.
const TENANT_BYTES: usize = MAX_TEXT_BYTES;
/// Bytes of all tenants that are tokenized at once.
const TOTAL_BYTES: usize = 2 * TENANT_BYTES;

/// The bytes that are tokenized, and the texts that wait.
#[derive(Debug, Default)]
pub(crate) struct TokenizationPermits(Mutex<Tokenizations>);

#[derive(Debug, Default)]
struct Tokenizations {
    total: usize,
    by_tenant: HashMap<Tenant, usize>,
    /// Waiting texts in order of arrival, no more than there are calls.
    line: VecDeque<WaitingText>,
}

#[derive(Debug)]
struct WaitingText {
    tenant: Tenant,
    bytes: usize,
    admitted: oneshot::Sender<TokenizationPermit>,
}

/// Permit for the bytes of one text. Dropping it admits the next texts.
#[derive(Debug)]
pub(super) struct TokenizationPermit {
    permits: Arc<TokenizationPermits>,
    tenant: Tenant,
    bytes: usize,
}

impl TokenizationPermits {
    /// Waits for a permit for a text of `bytes`, at most [`MAX_TEXT_BYTES`]. None only if the host stops.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        tenant: Tenant,
        bytes: usize,
    ) -> Option<TokenizationPermit> {
        let permit = self.enqueue(tenant, bytes.min(TENANT_BYTES));
        permit.await.ok()
    }

    /// Puts a text at the end of the line. The receiver gets its permit.
    fn enqueue(
        self: &Arc<Self>,
        tenant: Tenant,
        bytes: usize,
    ) -> oneshot::Receiver<TokenizationPermit> {
        let (admitted, permit) = oneshot::channel();
        let mut tokenizations = self.lock();
        // A caller that stopped waiting has closed its channel.
        tokenizations.line.retain(|text| !text.admitted.is_closed());
        tokenizations.line.push_back(WaitingText {
            tenant,
            bytes,
            admitted,
        });
        self.admit(tokenizations);
        permit
    }

    /// Gives permits to the texts whose turn it is.
    fn admit(self: &Arc<Self>, mut tokenizations: MutexGuard<'_, Tokenizations>) {
        let admitted = tokenizations.admit();
        drop(tokenizations);
        for text in admitted {
            // If the caller is gone, the permit is dropped here and admits others.
            let _ = text.admitted.send(TokenizationPermit {
                permits: Arc::clone(self),
                tenant: text.tenant,
                bytes: text.bytes,
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tokenizations> {
        // No method leaves the counts inconsistent if it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gauges of the texts that are tokenized and that wait.
    pub(crate) fn metrics(&self) -> [Metric; 2] {
        let tokenizations = self.lock();
        let gauge = |name, help, value: usize| metric(name, help, MetricKind::Gauge, value as f64);
        [
            gauge(
                "corral_tokenization_bytes",
                "Bytes of long texts that are being tokenized.",
                tokenizations.total,
            ),
            gauge(
                "corral_tokenizations_waiting",
                "Long texts that wait to be tokenized.",
                tokenizations.line.len(),
            ),
        ]
    }
}

impl Tokenizations {
    /// Removes the texts whose turn it is from the line and counts their bytes.
    fn admit(&mut self) -> Vec<WaitingText> {
        let (mut admitted, mut full) = (Vec::new(), HashSet::new());
        let mut next = 0;
        while let Some(text) = self.line.get(next) {
            let held = self.by_tenant.get(&text.tenant).copied().unwrap_or(0);
            if full.contains(&text.tenant) || held + text.bytes > TENANT_BYTES {
                full.insert(text.tenant);
                next += 1;
                continue;
            }
            // Nobody passes a text that waits for the total, so that a long one gets its turn.
            if self.total + text.bytes > TOTAL_BYTES {
                break;
            }
            if let Some(text) = self.line.remove(next) {
                self.total += text.bytes;
                *self.by_tenant.entry(text.tenant).or_default() += text.bytes;
                admitted.push(text);
            }
        }
        admitted
    }
}

impl Drop for TokenizationPermit {
    fn drop(&mut self) {
        let mut tokenizations = self.permits.lock();
        tokenizations.total -= self.bytes;
        if let Some(held) = tokenizations.by_tenant.get_mut(&self.tenant) {
            *held -= self.bytes;
            if *held == 0 {
                tokenizations.by_tenant.remove(&self.tenant);
            }
        }
        self.permits.admit(tokenizations);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    const MIB: usize = 1 << 20;

    fn poll<P>(future: Pin<&mut impl Future<Output = Option<P>>>) -> Option<P> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => None,
        }
    }

    #[test]
    fn tenant_at_its_bound_lets_others_pass() {
        let permits = Arc::<TokenizationPermits>::default();
        let (one, other, third) = (Tenant(1), Tenant(2), Tenant(3));
        let first = poll(pin!(permits.acquire(one, 3 * MIB))).unwrap();
        let mut second = pin!(permits.acquire(one, 2 * MIB));
        assert!(poll(second.as_mut()).is_none());
        // A shorter text does not pass one of its own tenant.
        let mut short = pin!(permits.acquire(one, MIB));
        assert!(poll(short.as_mut()).is_none());
        let long = poll(pin!(permits.acquire(other, 4 * MIB))).unwrap();
        // 7 of 8 MiB are used.
        let mut waiting = pin!(permits.acquire(third, 2 * MIB));
        assert!(poll(waiting.as_mut()).is_none());
        let [bytes, texts] = permits.metrics().map(|metric| metric.value);
        assert_eq!((bytes, texts), ((7 * MIB) as f64, 3.0));
        drop(first);
        let second = poll(second.as_mut()).unwrap();
        let short = poll(short.as_mut()).unwrap();
        // 7 of 8 MiB again: those that came first went first.
        assert!(poll(waiting.as_mut()).is_none());
        drop(second);
        let waiting = poll(waiting.as_mut()).unwrap();
        drop((short, long, waiting));
        let [bytes, texts] = permits.metrics().map(|metric| metric.value);
        assert_eq!((bytes, texts), (0.0, 0.0));
        assert!(permits.lock().by_tenant.is_empty());
    }

    #[test]
    fn callers_that_stopped_waiting_block_nobody() {
        let permits = Arc::<TokenizationPermits>::default();
        let first = poll(pin!(permits.acquire(Tenant(1), 4 * MIB))).unwrap();
        {
            // Both leave: one in line, one with an unread permit.
            let mut gone = [
                Box::pin(permits.acquire(Tenant(1), MIB)),
                Box::pin(permits.acquire(Tenant(1), MIB)),
            ];
            assert!(gone.iter_mut().all(|one| poll(one.as_mut()).is_none()));
            let [one, _in_line] = gone;
            drop(one);
            drop(first);
        }
        let all = poll(pin!(permits.acquire(Tenant(1), 4 * MIB)));
        assert!(all.is_some());
    }
}
