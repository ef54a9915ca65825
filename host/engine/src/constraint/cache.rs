//! What was compiled lately, within a number of entries and of bytes.

use std::collections::HashMap;

/// The digest of a grammar's kind and text.
pub type Key = [u8; 32];

struct Entry<T> {
    value: T,
    bytes: usize,
    /// When it was used last, in uses of the cache.
    used: u64,
}

/// A map that drops what was used least recently when it has too many entries or bytes.
pub struct Cache<T> {
    entries: HashMap<Key, Entry<T>>,
    max_entries: usize,
    max_bytes: usize,
    bytes: usize,
    uses: u64,
}

impl<T: Clone> Cache<T> {
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
        entry.used = self.uses;
        Some(entry.value.clone())
    }

    /// Takes a value in. One that is larger than the whole cache is not kept.
    pub fn insert(&mut self, key: Key, value: T, bytes: usize) {
        self.remove(&key);
        if bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        while self.entries.len() >= self.max_entries || self.bytes + bytes > self.max_bytes {
            // A few hundred entries at most, and only when one was compiled: a scan is cheap enough.
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some((&oldest, _)) = oldest else { break };
            self.remove(&oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        let used = self.uses;
        self.entries.insert(key, Entry { value, bytes, used });
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
    fn the_least_recently_used_goes_first_by_entries_and_by_bytes() {
        let key = |n: u8| [n; 32];
        let mut cache = Cache::new(3, 100);
        for n in 0..3 {
            cache.insert(key(n), n, 10);
        }
        assert_eq!(cache.get(&key(0)), Some(0));
        cache.insert(key(3), 3, 10);
        assert_eq!(cache.get(&key(1)), None, "the oldest but the one just used");
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
