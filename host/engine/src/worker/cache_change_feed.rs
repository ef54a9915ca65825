//! Reports the changes of the cache after each step, if a [feed](crate::cache_change_feed) takes them.

use super::Worker;
use crate::backend::Backend;
use crate::cache_change_feed::{CACHE_BLOCK, CacheFeed};
use std::sync::Arc;

impl<B: Backend> Worker<B> {
    /// From now on, reports the changes of the cache under this model's name.
    pub fn enable_cache_feed(&mut self, feed: &Arc<CacheFeed>, model: &str, adapters: &[String]) {
        match self.scheduler.follow_cache(CACHE_BLOCK) {
            true => self.cache_feed = Some(feed.writer(model, adapters)),
            false => tracing::warn!(
                model,
                "KV events tell nothing of this model: its sequences share no prefixes in part"
            ),
        }
    }

    pub(super) fn report_cache_changes(&mut self) {
        let Some(feed) = &self.cache_feed else {
            return;
        };
        let changes = self.scheduler.cache_changes();
        if !feed.push(changes) {
            feed.replace(self.scheduler.cache_contents());
        }
    }
}
