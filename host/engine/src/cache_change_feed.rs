//! Carries the changes of the models' caches from the engine threads to a publisher.
//!
//! An engine thread never waits for the publisher: what is not taken yet is bounded, and replaced by the cache's contents
//! once it exceeds the bound. So the publisher is never wrong for longer than it is behind. Prefixes of callers without a
//! [`PrefixOwner`] are left out, and what follows an image in a prompt, since its tokens name nothing outside of the engine.

use crate::caller::PrefixOwner;
use corral_llama::IMAGE_TOKENS;
use corral_scheduler::{CacheChange, PrefixScope, Token};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tokens of a block: the number that other servers and their routers use by default.
pub const CACHE_BLOCK: u32 = 16;
/// Most tokens in the changes of a model that wait for the publisher. The contents of a reset do not count.
const MAX_PENDING_TOKENS: usize = 1 << 20;
/// Tokens that a change counts as beside its own, for its other fields.
const CHANGE_TOKENS: usize = 32;

/// Changes of the caches of all models, until a publisher takes them.
pub struct CacheFeed {
    models: Mutex<BTreeMap<Arc<str>, CacheUpdate>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Changes of the cache of a model.
#[derive(Debug, Default)]
pub struct CacheUpdate {
    /// Whether the cache is to be taken as empty before the changes.
    pub is_reset: bool,
    /// In order.
    pub changes: Vec<OwnedChange>,
    /// Of the changes since the reset.
    tokens: usize,
}

/// A change, with what names its scope outside of the process.
#[derive(Clone, Debug)]
pub struct OwnedChange {
    /// The change, in blocks of [`CACHE_BLOCK`].
    pub change: CacheChange,
    /// Whose prefix it is.
    pub owner: PrefixOwner,
    /// Name of the adapter that it was computed with.
    pub adapter: Option<Arc<str>>,
}

impl CacheFeed {
    /// An empty feed. `wake` tells the publisher that there are changes; it must not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            models: Mutex::default(),
            wake: Box::new(wake),
        }
    }

    /// Takes all changes, by model.
    pub fn take(&self) -> BTreeMap<Arc<str>, CacheUpdate> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, CacheUpdate>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a model, whose cache is empty.
    pub(crate) fn writer(self: &Arc<Self>, model: &str, adapters: &[String]) -> CacheFeedWriter {
        let writer = CacheFeedWriter {
            feed: self.clone(),
            model: model.into(),
            adapters: adapters.iter().map(|name| name.as_str().into()).collect(),
            owners: HashMap::new(),
        };
        writer.replace(Vec::new());
        writer
    }
}

impl fmt::Debug for CacheFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheFeed").finish_non_exhaustive()
    }
}

/// The engine's end of a feed. When it is dropped, the cache counts as empty.
pub(crate) struct CacheFeedWriter {
    feed: Arc<CacheFeed>,
    model: Arc<str>,
    adapters: Vec<Arc<str>>,
    owners: HashMap<PrefixScope, PrefixOwner>,
}

impl CacheFeedWriter {
    /// Tells the owner of a scope. A scope always has the same owner.
    pub(crate) fn set_owner(&mut self, scope: PrefixScope, owner: Option<PrefixOwner>) {
        if let Some(owner) = owner {
            self.owners.insert(scope, owner);
        }
    }

    /// Adds changes. False if too many are pending: then the contents must replace them.
    pub(crate) fn push(&self, changes: Vec<CacheChange>) -> bool {
        let changes = self.owned(changes);
        if changes.is_empty() {
            return true;
        }
        let mut models = self.feed.lock();
        let update = models.entry(self.model.clone()).or_default();
        update.tokens += tokens(&changes);
        let has_room = update.tokens <= MAX_PENDING_TOKENS;
        if has_room {
            update.changes.extend(changes);
        }
        drop(models);
        (self.feed.wake)();
        has_room
    }

    /// Replaces all pending changes by the contents of the cache.
    pub(crate) fn replace(&self, contents: Vec<CacheChange>) {
        let update = CacheUpdate {
            is_reset: true,
            changes: self.owned(contents),
            tokens: 0,
        };
        self.feed.lock().insert(self.model.clone(), update);
        (self.feed.wake)();
    }

    fn owned(&self, changes: Vec<CacheChange>) -> Vec<OwnedChange> {
        let owned = changes.into_iter().filter_map(|mut change| {
            let image = |token: &Token| IMAGE_TOKENS.contains(token);
            if let Some(text) = change.tokens.iter().position(image) {
                change.tokens.truncate(text - text % CACHE_BLOCK as usize);
            }
            let adapter = usize::from(change.scope.adapter().0).checked_sub(1);
            Some(OwnedChange {
                owner: *self.owners.get(&change.scope)?,
                adapter: adapter.and_then(|index| self.adapters.get(index).cloned()),
                change,
            })
        });
        owned.collect()
    }
}

impl Drop for CacheFeedWriter {
    fn drop(&mut self) {
        self.replace(Vec::new());
    }
}

fn tokens(changes: &[OwnedChange]) -> usize {
    let of_change = |owned: &OwnedChange| CHANGE_TOKENS + owned.change.tokens.len();
    changes.iter().map(of_change).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_scheduler::{EntryLocation, PrefixHolder, RequestId};

    const SCOPE: PrefixScope = PrefixScope(7);

    fn change(request: u64, tokens: Vec<Token>) -> CacheChange {
        CacheChange {
            holder: PrefixHolder::Running(RequestId(request)),
            scope: SCOPE,
            location: EntryLocation::Cells,
            kept: 0,
            tokens,
        }
    }

    #[test]
    fn changes_that_nobody_takes_are_bounded() {
        let feed = Arc::new(CacheFeed::new(|| {}));
        let mut writer = feed.writer("tiny", &[]);
        writer.set_owner(SCOPE, Some(PrefixOwner::new("tenant", "a")));
        let long = MAX_PENDING_TOKENS / 2;
        assert!(writer.push(vec![change(1, vec![5; long])]));
        assert!(!writer.push(vec![change(2, vec![5; long])]));
        writer.replace(vec![change(3, vec![6; 2 * long])]);
        assert!(writer.push(vec![change(4, vec![5; 16])]));
        let update = feed.take().remove("tiny").unwrap();
        assert!(update.is_reset);
        let holders = update.changes.iter().map(|owned| owned.change.holder);
        let expected = [3, 4].map(|id| PrefixHolder::Running(RequestId(id)));
        assert_eq!(Vec::from_iter(holders), expected);
        assert!(feed.take().is_empty());
        drop(writer);
        let update = feed.take().remove("tiny").unwrap();
        assert!(update.is_reset && update.changes.is_empty());
    }

    #[test]
    fn strangers_and_images_are_left_out() {
        let feed = Arc::new(CacheFeed::new(|| {}));
        let mut writer = feed.writer("tiny", &[]);
        assert!(writer.push(vec![change(1, vec![5; 16])]));
        writer.set_owner(SCOPE, Some(PrefixOwner::new("tenant", "a")));
        let mut tokens = vec![5; 48];
        tokens[40] = *IMAGE_TOKENS.start();
        assert!(writer.push(vec![change(2, tokens)]));
        let update = feed.take().remove("tiny").unwrap();
        assert_eq!(update.changes.len(), 1);
        assert_eq!(update.changes[0].change.tokens, [5; 32]);
    }
}
