//! The tokens and embeddings of images.
//!
//! An image gets tokens when it is first seen, and the same ones when it returns. They are given to another image after 2^31
//! positions of other images, and then no cached prefix with them is left ([`ImageStore::insert`]).

use crate::open_request_limits::{OpenRequestLimits, RequestLoad, RequestPermit};
use crate::{Error, Token};
use corral_llama::{IMAGE_TOKENS, ImagePart, ImageRows, ImageTable};
use corral_scheduler::{PrefixScope, Tenant};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Bytes of embeddings that no sequence uses, for images that return.
const CACHE_BYTES: u64 = 256 << 20;
/// Bytes of all embeddings.
const MAX_BYTES: u64 = 1 << 30;
/// A tenant's images may take one part in this many of them.
const TENANT_DIVISOR: u64 = 4;
/// Images that keep their tokens.
const MAX_ENTRIES: usize = 1 << 14;

/// What identifies an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageKey {
    /// One tenant's images tell nothing about another's.
    pub scope: PrefixScope,
    /// SHA-256 of its file.
    pub digest: [u8; 32],
}

/// An encoded image.
#[derive(Debug)]
pub struct Image {
    digest: [u8; 32],
    parts: Vec<StoredPart>,
    bytes: u64,
    /// Its part of the bytes of all images and of its tenant's.
    _permit: RequestPermit,
}

#[derive(Debug)]
enum StoredPart {
    Tokens(Vec<Token>),
    Rows(Arc<ImageRows>),
}

impl Image {
    /// SHA-256 of its file.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The tokens of its positions: those that mark it, which belong to the vocabulary, and those of its embeddings.
    pub fn tokens(&self) -> Vec<Token> {
        let parts = self.parts.iter();
        let mut tokens = Vec::new();
        for part in parts {
            match part {
                StoredPart::Tokens(list) => tokens.extend_from_slice(list),
                StoredPart::Rows(rows) => tokens.extend(rows.tokens()),
            }
        }
        tokens
    }

    /// Its parts, to be [inserted](ImageStore::insert) again.
    pub(crate) fn parts(&self) -> impl Iterator<Item = ImagePart> {
        self.parts.iter().map(|part| match part {
            StoredPart::Tokens(tokens) => ImagePart::Tokens(tokens.clone()),
            StoredPart::Rows(rows) => ImagePart::Embeddings(rows.numbers().to_vec()),
        })
    }
}

/// The images of an engine.
#[derive(Debug)]
pub struct ImageStore {
    table: ImageTable,
    max_bytes: u64,
    /// Bounds the bytes of embeddings, in all and for each tenant.
    limits: OpenRequestLimits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The next free token.
    next: Token,
    entries: HashMap<ImageKey, ImageEntry>,
    /// Keys of `entries`, the oldest first.
    order: VecDeque<ImageKey>,
    /// Images that are kept, the one used last at the end.
    cache: VecDeque<(ImageKey, Arc<Image>)>,
    cached_bytes: u64,
}

#[derive(Debug)]
struct ImageEntry {
    /// The first token of each part with embeddings.
    first_tokens: Vec<Token>,
    image: Weak<Image>,
}

impl ImageStore {
    /// A store for embeddings of `length` numbers.
    pub fn new(length: usize) -> Self {
        Self::with_max_bytes(length, MAX_BYTES)
    }

    fn with_max_bytes(length: usize, max_bytes: u64) -> Self {
        let limit = RequestLoad {
            requests: u64::MAX,
            input_size: max_bytes,
            numbers: 0,
        };
        Self {
            table: ImageTable::new(u32::try_from(length).unwrap_or(u32::MAX)),
            max_bytes,
            limits: OpenRequestLimits::new(limit, limit.divided_by(TENANT_DIVISOR)),
            state: Mutex::new(State {
                next: *IMAGE_TOKENS.start(),
                entries: HashMap::new(),
                order: VecDeque::new(),
                cache: VecDeque::new(),
                cached_bytes: 0,
            }),
        }
    }

    /// The embeddings, for the backend.
    pub fn table(&self) -> &ImageTable {
        &self.table
    }

    /// An image whose embeddings are there.
    pub fn find(&self, key: &ImageKey) -> Option<Arc<Image>> {
        let mut state = self.lock();
        let image = state.entries.get(key)?.image.upgrade()?;
        if let Some(at) = state.cache.iter().position(|(other, _)| other == key) {
            let entry = state.cache.remove(at);
            state.cache.extend(entry);
        }
        Some(image)
    }

    /// Adds an encoded image of a tenant. Calls `clear_prefixes` before tokens are given again: it must drop all cached
    /// prefixes that no sequence retains. A retained one belongs to a sequence that holds its image, whose tokens stay taken.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if sequences of the tenant, or all, hold too many images, [`Error::Failed`] if a part has no
    /// whole embeddings.
    pub fn insert(
        &self,
        key: ImageKey,
        tenant: Tenant,
        parts: Vec<ImagePart>,
        clear_prefixes: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Arc<Image>, Error> {
        let bytes = parts.iter().map(part_bytes).sum::<u64>();
        let permit = self.acquire(key.scope, tenant, bytes)?;
        let mut dropped = Vec::new();
        let mut state = self.lock();
        let entry = state.entries.get(&key);
        if let Some(image) = entry.and_then(|entry| entry.image.upgrade()) {
            return Ok(image);
        }
        let rows = parts.iter().map(|part| self.rows(part)).sum::<u32>();
        if rows > Token::MAX - state.next {
            clear_prefixes()?;
            state.entries.clear();
            state.order.clear();
            dropped.extend(state.cache.drain(..));
            state.cached_bytes = 0;
            state.next = *IMAGE_TOKENS.start();
        }
        let entry = state.entries.get(&key);
        let before = entry.map(|entry| entry.first_tokens.clone());
        let mut before = before.unwrap_or_default().into_iter();
        let mut first_tokens = Vec::new();
        let mut stored = Vec::new();
        for part in parts {
            stored.push(match part {
                ImagePart::Tokens(tokens) => StoredPart::Tokens(tokens),
                ImagePart::Embeddings(numbers) => {
                    let rows = self.add_rows(&mut state.next, before.next(), numbers)?;
                    first_tokens.extend(rows.tokens().next());
                    StoredPart::Rows(rows)
                }
            });
        }
        let image = Arc::new(Image {
            digest: key.digest,
            parts: stored,
            bytes,
            _permit: permit,
        });
        let entry = ImageEntry {
            first_tokens,
            image: Arc::downgrade(&image),
        };
        if state.entries.insert(key, entry).is_none() {
            state.order.push_back(key);
        }
        if state.order.len() > MAX_ENTRIES
            && let Some(oldest) = state.order.pop_front()
        {
            state.entries.remove(&oldest);
        }
        state.cache.push_back((key, Arc::clone(&image)));
        state.cached_bytes += bytes;
        while state.cached_bytes > CACHE_BYTES
            && let Some(oldest) = state.cache.pop_front()
        {
            state.cached_bytes -= oldest.1.bytes;
            dropped.push(oldest);
        }
        drop(state);
        drop(dropped);
        Ok(image)
    }

    /// Adds embeddings under the tokens that they had before, or under free ones.
    fn add_rows(
        &self,
        next: &mut Token,
        before: Option<Token>,
        numbers: Vec<f32>,
    ) -> Result<Arc<ImageRows>, Error> {
        let count = u32::try_from(numbers.len() / self.table.length()).unwrap_or(u32::MAX);
        // Their numbers are the same as before, and so they fill as many rows.
        if let Some(first) = before
            && let Some(rows) = self.table.insert(first, numbers.clone())
        {
            return Ok(rows);
        }
        // After a wrap, sequences may hold the tokens of old images.
        while count > 0 && *next <= Token::MAX - count {
            let first = *next;
            *next += count;
            if let Some(rows) = self.table.insert(first, numbers.clone()) {
                return Ok(rows);
            }
            if !numbers.len().is_multiple_of(self.table.length()) {
                break;
            }
        }
        Err(Error::Failed(
            "the image's embeddings do not fit the model; its projector may be damaged".into(),
        ))
    }

    fn rows(&self, part: &ImagePart) -> u32 {
        match part {
            ImagePart::Tokens(_) => 0,
            ImagePart::Embeddings(numbers) => {
                u32::try_from(numbers.len() / self.table.length()).unwrap_or(u32::MAX)
            }
        }
    }

    /// A permit for `bytes` of a tenant. Drops cached images until there is room: those of its scope if the tenant has too
    /// many, else any.
    fn acquire(
        &self,
        scope: PrefixScope,
        tenant: Tenant,
        bytes: u64,
    ) -> Result<RequestPermit, Error> {
        let load = RequestLoad {
            requests: 1,
            input_size: bytes,
            numbers: 0,
        };
        loop {
            let used = match self.limits.acquire(tenant, load) {
                Ok(permit) => return Ok(permit),
                Err(used) => used.input_size,
            };
            let are_all_full = used.saturating_add(bytes) > self.max_bytes;
            let mut state = self.lock();
            let mut cached = state.cache.iter();
            let oldest = cached.position(|(key, _)| are_all_full || key.scope == scope);
            let Some((_, image)) = oldest.and_then(|oldest| state.cache.remove(oldest)) else {
                let (whose, limit) = match are_all_full {
                    true => ("all requests", self.max_bytes),
                    false => ("this caller's requests", self.max_bytes / TENANT_DIVISOR),
                };
                return Err(Error::Overloaded {
                    reason: format!(
                        "its embeddings take {} KiB, and those of {whose} may take {} MiB together",
                        bytes.div_ceil(1 << 10),
                        limit >> 20
                    ),
                    retry_after: Duration::from_secs(5),
                });
            };
            state.cached_bytes -= image.bytes;
            drop(state);
            drop(image);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No method leaves the state inconsistent if it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn part_bytes(part: &ImagePart) -> u64 {
    match part {
        ImagePart::Tokens(tokens) => size_of_val(tokens.as_slice()) as u64,
        ImagePart::Embeddings(numbers) => size_of_val(numbers.as_slice()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: u64, file: u8) -> ImageKey {
        ImageKey {
            scope: PrefixScope(scope),
            digest: [file; 32],
        }
    }

    fn parts(rows: usize, number: f32) -> Vec<ImagePart> {
        vec![
            ImagePart::Tokens(vec![3, 4]),
            ImagePart::Embeddings(vec![number; 2 * rows]),
            ImagePart::Tokens(vec![5]),
        ]
    }

    fn insert(store: &ImageStore, key: ImageKey, rows: usize) -> Arc<Image> {
        try_insert(store, key, rows).expect("there is room")
    }

    /// Inserts an image of the tenant with the number of the scope.
    fn try_insert(store: &ImageStore, key: ImageKey, rows: usize) -> Result<Arc<Image>, Error> {
        let tenant = Tenant(u32::try_from(key.scope.0).unwrap());
        let parts = parts(rows, 0.5);
        store.insert(key, tenant, parts, || panic!("tokens are left"))
    }

    #[test]
    fn images_of_one_key_have_the_same_tokens() {
        let store = ImageStore::new(2);
        let image = insert(&store, key(1, 1), 3);
        let tokens = image.tokens();
        assert_eq!((tokens.len(), &tokens[..2], tokens[5]), (6, &[3, 4][..], 5));
        assert!(
            tokens[2..5]
                .iter()
                .all(|token| IMAGE_TOKENS.contains(token))
        );
        // Its embeddings are dropped; it returns.
        drop(image);
        store.lock().cache.clear();
        assert!(store.find(&key(1, 1)).is_none());
        assert_eq!(insert(&store, key(1, 1), 3).tokens(), tokens);
        assert!(store.find(&key(1, 1)).is_some());
    }

    #[test]
    fn other_files_and_tenants_share_no_token() {
        let store = ImageStore::new(2);
        let first = insert(&store, key(1, 1), 3).tokens();
        for other in [key(1, 2), key(2, 1)] {
            assert!(store.find(&other).is_none());
            let other = insert(&store, other, 3).tokens();
            assert!(other[2..5].iter().all(|token| !first.contains(token)));
        }
    }

    #[test]
    fn tokens_of_live_images_are_never_given_again() {
        let store = ImageStore::new(2);
        let live = insert(&store, key(1, 1), 3);
        store.lock().next = Token::MAX - 2;
        let mut cleared = false;
        let next = store.insert(key(1, 2), Tenant(1), parts(3, 0.5), || {
            cleared = true;
            Ok(())
        });
        let next = next.expect("tokens are free again").tokens();
        assert!(cleared);
        let live = live.tokens();
        assert!(next[2..5].iter().all(|token| !live.contains(token)));
        // If prefixes cannot be dropped, no token is given again.
        store.lock().next = Token::MAX - 2;
        let refused = store.insert(key(1, 3), Tenant(1), parts(3, 0.5), || {
            Err(Error::ShuttingDown)
        });
        assert!(refused.is_err());
    }

    #[test]
    fn wrong_embeddings_are_an_error() {
        let store = ImageStore::new(2);
        for numbers in [vec![], vec![0.5; 3]] {
            let parts = vec![ImagePart::Embeddings(numbers)];
            let refused = store.insert(key(1, 1), Tenant(1), parts, || Ok(()));
            assert!(matches!(refused, Err(Error::Failed(_))), "{refused:?}");
        }
    }

    #[test]
    fn tenant_cannot_take_all_memory() {
        // Each image has 8 numbers and 3 tokens: 44 bytes. A tenant may have two, and all together eight.
        let store = ImageStore::with_max_bytes(2, 8 * 44);
        let mut held: Vec<_> = (0..2).map(|file| insert(&store, key(1, file), 4)).collect();
        let refused = try_insert(&store, key(1, 2), 4);
        let Err(Error::Overloaded { reason, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains("this caller's"), "{reason}");
        for tenant in 2..5 {
            held.extend((0..2).map(|file| insert(&store, key(tenant, file), 4)));
        }
        let refused = try_insert(&store, key(5, 0), 4);
        let Err(Error::Overloaded { reason, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains("all requests"), "{reason}");
        // Dropped images take no memory.
        held.clear();
        insert(&store, key(5, 0), 4);
    }

    #[test]
    fn full_share_drops_own_cached_images() {
        let store = ImageStore::with_max_bytes(2, 8 * 44);
        insert(&store, key(2, 0), 4);
        for file in 0..3 {
            insert(&store, key(1, file), 4);
        }
        assert!(store.find(&key(1, 0)).is_none(), "its oldest");
        assert!(store.find(&key(2, 0)).is_some() && store.find(&key(1, 2)).is_some());
    }
}
