//! The memory of a model's compiled grammars and of their matchers, which grow with their texts.
//!
//! All of it together is bounded. A tenant may hold three quarters of what the others leave free, so that each finds some.

use crate::{Error, limits};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that a tenant may hold for each byte that stays free.
const HELD_PER_FREE: usize = 3;

/// Counts the bytes that a model's grammars and matchers hold.
#[derive(Default)]
pub struct GrammarMemory(Mutex<HeldBytes>);

#[derive(Default)]
struct HeldBytes {
    total: usize,
    /// Tenants that hold some.
    tenants: HashMap<u32, usize>,
}

impl HeldBytes {
    fn has_room(&self, tenant: u32) -> bool {
        let held = self.tenants.get(&tenant).copied().unwrap_or(0);
        let free = limits::MAX_HELD_BYTES.saturating_sub(self.total);
        held <= free.saturating_mul(HELD_PER_FREE) && free > 0
    }
}

impl GrammarMemory {
    fn lock(&self) -> MutexGuard<'_, HeldBytes> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of all tenants.
    pub fn total(&self) -> usize {
        self.lock().total
    }

    /// Fails with [`Error::Busy`] if the tenant holds as much as it may.
    pub fn check(&self, tenant: u32) -> Result<(), Error> {
        match self.lock().has_room(tenant) {
            true => Ok(()),
            false => Err(full()),
        }
    }
}

fn full() -> Error {
    Error::Busy {
        reason: "the grammars in use take too much memory".into(),
        retry_after: Duration::from_secs(1),
    }
}

/// The bytes of one grammar or matcher. They are free again when it is dropped.
pub struct GrammarBytes {
    memory: Arc<GrammarMemory>,
    tenant: u32,
    bytes: usize,
}

impl GrammarBytes {
    /// The bytes of a grammar or matcher that holds nothing yet.
    pub fn new(memory: &Arc<GrammarMemory>, tenant: u32) -> Self {
        Self {
            memory: Arc::clone(memory),
            tenant,
            bytes: 0,
        }
    }

    /// The bytes of another one of the same model, which holds nothing yet.
    pub fn another(&self, tenant: u32) -> Self {
        Self::new(&self.memory, tenant)
    }

    /// The same number of bytes of the same tenant. Fails with [`Error::Busy`] if the tenant then holds too much.
    pub fn duplicate(&self) -> Result<Self, Error> {
        let mut duplicate = self.another(self.tenant);
        duplicate.set(self.bytes)?;
        Ok(duplicate)
    }

    /// Sets the number of bytes. Fails with [`Error::Busy`] if it grew and the tenant now holds too much.
    pub fn set(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes == self.bytes {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.bytes, bytes);
        let mut held = self.memory.lock();
        held.total = held.total - before + bytes;
        let own = held.tenants.entry(self.tenant).or_default();
        *own = *own - before + bytes;
        if *own == 0 {
            held.tenants.remove(&self.tenant);
        }
        match bytes < before || held.has_room(self.tenant) {
            true => Ok(()),
            false => Err(full()),
        }
    }
}

impl Drop for GrammarBytes {
    fn drop(&mut self) {
        // It does not grow.
        self.set(0).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_leaves_memory_to_others() {
        const MIB: usize = 1 << 20;
        let memory = Arc::<GrammarMemory>::default();
        let fill = |tenant: u32| {
            let mut parts = Vec::new();
            loop {
                let mut part = GrammarBytes::new(&memory, tenant);
                if part.set(MIB).is_err() {
                    break parts;
                }
                parts.push(part);
            }
        };
        let all = limits::MAX_HELD_BYTES / MIB;
        let first = fill(1);
        assert_eq!(first.len(), all / 4 * 3);
        memory.check(1).unwrap();
        let second = fill(2);
        assert_eq!(second.len(), all / 16 * 3);
        // What the first tenant holds may shrink while the second leaves it no room.
        memory.check(1).unwrap_err();
        let mut one = first.into_iter().next().unwrap();
        one.set(MIB / 2).unwrap();
        assert_eq!(memory.total(), MIB / 2 + second.len() * MIB);
        one.set(MIB).unwrap();
        drop((one, second));
        assert_eq!(memory.total(), 0);
        assert!(memory.lock().tenants.is_empty());
    }

    #[test]
    fn duplicate_counts_again() {
        let memory = Arc::<GrammarMemory>::default();
        let mut one = GrammarBytes::new(&memory, 7);
        one.set(10).unwrap();
        let two = one.duplicate().unwrap();
        assert_eq!(memory.total(), 20);
        drop(one);
        assert_eq!(memory.total(), 10);
        let mut large = two.another(8);
        assert!(large.set(limits::MAX_HELD_BYTES).is_err());
        assert!(large.duplicate().is_err());
        large.set(1).unwrap();
        assert_eq!(memory.total(), 11);
    }
}
