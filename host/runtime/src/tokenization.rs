//! Permits for tokenizing long texts.
//!
//! llama.cpp's tokenizers take up to about a hundred bytes of memory for each byte of text, so the texts that
//! they work on are bounded in bytes, for each tenant and in all. Further texts wait in order of arrival: first
//! for their tenant's permits, then for those of the process. The tenant's permits also bound its texts in the
//! second queue, so another tenant delays a text by at most 4 MiB, however many texts it has.

use crate::counters::Counter;
use corral_engine::{Metric, Tenant};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest text of one tokenization, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 20;
/// Bytes of one tenant that are tokenized at once: one text of the greatest length.
const TENANT_BYTES: usize = MAX_TEXT_BYTES;
/// Bytes of all tenants that are tokenized at once.
const TOTAL_BYTES: usize = 2 * TENANT_BYTES;
/// A shorter text counts as this many bytes, since each text occupies a thread as well.
const MIN_TEXT_BYTES: usize = 256 << 10;

/// One permit for each byte that may be tokenized.
#[derive(Debug)]
pub(crate) struct TokenizationPermits {
    total: Arc<Semaphore>,
    /// Permits of the tenants whose texts are tokenized or wait.
    tenants: Mutex<HashMap<Tenant, Weak<Semaphore>>>,
    waiting: Counter,
}

/// Permits for the bytes of one text.
#[derive(Debug)]
pub(crate) struct TokenizationPermit {
    _total: OwnedSemaphorePermit,
    _tenant: OwnedSemaphorePermit,
}

impl Default for TokenizationPermits {
    fn default() -> Self {
        Self {
            total: Arc::new(Semaphore::new(TOTAL_BYTES)),
            tenants: Mutex::default(),
            waiting: Counter::default(),
        }
    }
}

impl TokenizationPermits {
    /// Waits for the permits of a text of `bytes`, at most [`MAX_TEXT_BYTES`]. Never None, since nothing
    /// closes the semaphores.
    pub(crate) async fn acquire(&self, tenant: Tenant, bytes: usize) -> Option<TokenizationPermit> {
        let bytes = u32::try_from(bytes.clamp(MIN_TEXT_BYTES, MAX_TEXT_BYTES)).ok()?;
        let _waiting = WaitingText::begin(&self.waiting);
        let tenant = self.tenant(tenant).acquire_many_owned(bytes).await.ok()?;
        let total = Arc::clone(&self.total)
            .acquire_many_owned(bytes)
            .await
            .ok()?;
        Some(TokenizationPermit {
            _total: total,
            _tenant: tenant,
        })
    }

    /// The permits of a tenant.
    fn tenant(&self, tenant: Tenant) -> Arc<Semaphore> {
        // No method leaves the map inconsistent if it panics.
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return permits;
        }
        tenants.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(TENANT_BYTES));
        tenants.insert(tenant, Arc::downgrade(&permits));
        permits
    }

    /// Gauges of the texts that are tokenized and that wait.
    pub(crate) fn metrics(&self) -> [Metric; 2] {
        [
            Metric::gauge(
                "corral_tokenization_bytes",
                "Bytes for which long texts have permits to be tokenized, at least 262144 for each text.",
                (TOTAL_BYTES - self.total.available_permits()) as f64,
            ),
            Metric::gauge(
                "corral_tokenizations_waiting",
                "Long texts that wait to be tokenized.",
                self.waiting.get() as f64,
            ),
        ]
    }
}

/// Counts a text as waiting until this is dropped.
struct WaitingText<'a>(&'a Counter);

impl<'a> WaitingText<'a> {
    fn begin(waiting: &'a Counter) -> Self {
        waiting.increment();
        Self(waiting)
    }
}

impl Drop for WaitingText<'_> {
    fn drop(&mut self) {
        self.0.decrement();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    const MIB: usize = 1 << 20;
    const ONE: Tenant = Tenant(1);
    const OTHER: Tenant = Tenant(2);
    const THIRD: Tenant = Tenant(3);

    fn poll<P>(future: Pin<&mut impl Future<Output = Option<P>>>) -> Option<P> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => None,
        }
    }

    fn gauges(permits: &TokenizationPermits) -> (f64, f64) {
        let [bytes, texts] = permits.metrics().map(|metric| metric.value);
        (bytes, texts)
    }

    #[test]
    fn texts_of_tenant_wait_in_order() {
        let permits = TokenizationPermits::default();
        let first = poll(pin!(permits.acquire(ONE, 3 * MIB))).unwrap();
        let mut second = pin!(permits.acquire(ONE, 2 * MIB));
        assert!(poll(second.as_mut()).is_none());
        // A shorter text does not pass one of its own tenant.
        let mut short = pin!(permits.acquire(ONE, MIB));
        assert!(poll(short.as_mut()).is_none());
        assert_eq!(gauges(&permits), ((3 * MIB) as f64, 2.0));
        drop(first);
        let second = poll(second.as_mut()).unwrap();
        let short = poll(short.as_mut()).unwrap();
        assert_eq!(gauges(&permits), ((3 * MIB) as f64, 0.0));
        drop((second, short));
        assert_eq!(gauges(&permits), (0.0, 0.0));
    }

    #[test]
    fn backlogs_of_two_tenants_block_no_other() {
        let permits = TokenizationPermits::default();
        let first = poll(pin!(permits.acquire(ONE, 4 * MIB))).unwrap();
        let _other = poll(pin!(permits.acquire(OTHER, 4 * MIB))).unwrap();
        // Both tenants have further texts, which came before the third tenant's.
        let mut further = pin!(permits.acquire(ONE, 4 * MIB));
        assert!(poll(further.as_mut()).is_none());
        let mut others = pin!(permits.acquire(OTHER, 4 * MIB));
        assert!(poll(others.as_mut()).is_none());
        let mut third = pin!(permits.acquire(THIRD, MIB));
        assert!(poll(third.as_mut()).is_none());
        drop(first);
        assert!(poll(further.as_mut()).is_none());
        let third = poll(third.as_mut()).unwrap();
        drop(third);
        assert!(poll(further.as_mut()).is_some());
    }

    #[test]
    fn short_texts_are_bounded_in_number() {
        let permits = TokenizationPermits::default();
        let number = TENANT_BYTES / MIN_TEXT_BYTES;
        let held: Vec<_> = (0..number)
            .map(|_| poll(pin!(permits.acquire(ONE, 1))).unwrap())
            .collect();
        assert!(poll(pin!(permits.acquire(ONE, 1))).is_none());
        drop(held);
        assert!(poll(pin!(permits.acquire(ONE, 1))).is_some());
    }

    #[test]
    fn canceled_waiters_block_no_other() {
        let permits = TokenizationPermits::default();
        let first = poll(pin!(permits.acquire(ONE, 4 * MIB))).unwrap();
        let mut canceled = [
            Box::pin(permits.acquire(ONE, MIB)),
            Box::pin(permits.acquire(ONE, MIB)),
        ];
        assert!(
            canceled
                .iter_mut()
                .all(|text| poll(text.as_mut()).is_none())
        );
        let [waiting, admitted] = canceled;
        drop(waiting);
        drop(first);
        // It has its tenant's permits, but was not polled since.
        drop(admitted);
        assert!(poll(pin!(permits.acquire(ONE, 4 * MIB))).is_some());
        assert_eq!(gauges(&permits), (0.0, 0.0));
    }

    #[test]
    fn idle_tenants_are_forgotten() {
        let permits = TokenizationPermits::default();
        for tenant in 0..100 {
            assert!(poll(pin!(permits.acquire(Tenant(tenant), MIB))).is_some());
        }
        assert_eq!(permits.tenants.lock().unwrap().len(), 1);
    }
}
