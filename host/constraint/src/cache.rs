//! A cache of compiled grammars, limited in entries and bytes.

use std::collections::HashMap;

/// The digest of a grammar's kind and text.
pub type Key = [u8; 32];

struct Entry<T> {
    value: T,
    bytes: usize,
    /// The number of the last use.
    last_use: u64,
}

/// A map that evicts the least recently used entry.
pub struct LruCache<T> {
    entries: HashMap<Key, Entry<T>>,
    max_entries: usize,
    max_bytes: usize,
    bytes: usize,
    uses: u64,
}

impl<T: Clone> LruCache<T> {
    pub fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max_entries,
            max_bytes,
            bytes: 0,
            uses: 0,
        }
    }

    pub fn get(&mut self, key: &Key) -> Option<T> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        entry.last_use = self.uses;
        Some(entry.value.clone())
    }

    /// Inserts a value, unless it is larger than the whole cache.
    pub fn insert(&mut self, key: Key, value: T, bytes: usize) {
        self.remove(&key);
        if bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        while self.entries.len() >= self.max_entries || self.bytes + bytes > self.max_bytes {
            // The cache has a few hundred entries and changes once per compilation: a scan is cheap.
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some((&oldest, _)) = oldest else { break };
            self.remove(&oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        let entry = Entry {
            value,
            bytes,
            last_use: self.uses,
        };
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let key = |n: u8| [n; 32];
        let mut cache = LruCache::new(3, 100);
        for n in 0..3 {
            cache.insert(key(n), n, 10);
        }
        assert_eq!(cache.get(&key(0)), Some(0));
        cache.insert(key(3), 3, 10);
        assert_eq!(cache.get(&key(1)), None, "least recently used");
        assert_eq!((cache.len(), cache.bytes()), (3, 30));

        cache.insert(key(4), 4, 85);
        assert_eq!((cache.len(), cache.bytes()), (2, 95));
        assert_eq!(cache.get(&key(3)), Some(3));

        cache.insert(key(4), 5, 20);
        assert_eq!((cache.len(), cache.bytes()), (2, 30), "replaced, not added");
        cache.insert(key(5), 6, 101);
        assert_eq!(cache.get(&key(5)), None, "larger than the cache");
        assert_eq!((cache.len(), cache.bytes()), (2, 30));
    }
}
