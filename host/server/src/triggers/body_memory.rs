//! Memory for bodies on their way into the queue: those that clients send, and those of messages that plugins publish.
//!
//! No sender has more than half of it, so that none keeps the others out. Each body counts as at least [`MIN_BYTES`], so the
//! memory also bounds the operations of a sender that wait for the queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of all bodies.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of the bodies of one sender.
const MAX_SENDER_BYTES: u64 = MAX_BYTES / 2;
/// What a smaller body counts as.
const MIN_BYTES: u64 = 64 << 10;

/// Who sends a body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BodySender {
    /// Every client without an API key.
    Anyone,
    /// A tenant of API keys.
    Tenant(String),
    /// The plugins of a deployment.
    Plugin(String),
}

impl BodySender {
    /// A client, of this tenant if it has an API key.
    pub(super) fn client(tenant: Option<&str>) -> Self {
        tenant.map_or(Self::Anyone, |tenant| Self::Tenant(tenant.to_owned()))
    }
}

/// The memory.
#[derive(Debug, Default)]
pub(super) struct BodyMemory(Mutex<ReservedBytes>);

#[derive(Debug, Default)]
struct ReservedBytes {
    all: u64,
    by_sender: BTreeMap<BodySender, u64>,
}

impl BodyMemory {
    /// Reserves memory for a body. None if there is too little.
    pub(super) fn reserve(self: &Arc<Self>, sender: BodySender, bytes: u64) -> Option<BodyPermit> {
        let bytes = bytes.max(MIN_BYTES);
        let mut reserved = self.lock();
        let own = reserved.by_sender.get(&sender).copied().unwrap_or(0);
        let fits = |used: u64, most: u64| used.saturating_add(bytes) <= most;
        if !fits(own, MAX_SENDER_BYTES) || !fits(reserved.all, MAX_BYTES) {
            return None;
        }
        reserved.all += bytes;
        reserved.by_sender.insert(sender.clone(), own + bytes);
        drop(reserved);
        Some(BodyPermit {
            memory: Arc::clone(self),
            sender,
            bytes,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ReservedBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a body. Dropping it frees the memory.
#[derive(Debug)]
pub(super) struct BodyPermit {
    memory: Arc<BodyMemory>,
    sender: BodySender,
    bytes: u64,
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        let mut reserved = self.memory.lock();
        reserved.all -= self.bytes;
        if let Some(own) = reserved.by_sender.get_mut(&self.sender) {
            *own -= self.bytes;
            if *own == 0 {
                reserved.by_sender.remove(&self.sender);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sender_leaves_half_to_others() {
        let memory = Arc::<BodyMemory>::default();
        let alice = || BodySender::Tenant("alice".to_owned());
        let plugin = || BodySender::Plugin("alice".to_owned());
        let first = memory.reserve(alice(), MAX_SENDER_BYTES - MIN_BYTES);
        let second = memory.reserve(alice(), 0);
        assert!(first.is_some() && second.is_some());
        assert!(memory.reserve(alice(), 0).is_none());
        let other = memory.reserve(plugin(), MAX_SENDER_BYTES);
        assert!(other.is_some());
        assert!(memory.reserve(BodySender::Anyone, 1).is_none());
        drop(second);
        assert!(memory.reserve(BodySender::Anyone, 1).is_some());
        drop((first, other));
        let reserved = memory.lock();
        assert_eq!((reserved.all, reserved.by_sender.len()), (0, 0));
    }

    #[test]
    fn small_bodies_are_bounded_in_number() {
        let memory = Arc::<BodyMemory>::default();
        let most = (MAX_SENDER_BYTES / MIN_BYTES) as usize;
        let permits = std::iter::from_fn(|| memory.reserve(BodySender::Anyone, 0));
        assert_eq!(permits.collect::<Vec<_>>().len(), most);
    }

    #[test]
    fn impossible_size_is_refused() {
        let memory = Arc::<BodyMemory>::default();
        assert!(memory.reserve(BodySender::Anyone, u64::MAX).is_none());
    }
}
