//! The engine's side of [prefixes on disk](crate::prefix_files).
//!
//! Each file is an entry of its own in the scheduler, beside the entry in the cells or in RAM that it copies: an offloaded
//! prefix is in both. Files of an earlier process become entries at the first request of their owner, since the scope of
//! an owner is not known before.

use super::{Worker, refuse};
use crate::LoadError;
use crate::Token;
use crate::backend::Backend;
use crate::caller::PrefixOwner;
use crate::engine_waker::EngineWaker;
use crate::metrics::{EngineMetrics, set};
use crate::model_config::ModelConfig;
use crate::prefix_files::{
    FoundPrefix, FoundPrefixes, PrefixDir, PrefixDirControl, PrefixHead, PrefixKey, PrefixSources,
    key,
};
use crate::snapshot::Origin;
use crate::swap_store::{SwapStore, charge};
use corral_llama::IMAGE_TOKENS;
use corral_scheduler::{EntryId, PositionOrder, PrefixScope, RequestId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Longest time that the end of the engine waits for prefixes to be written.
const SAVE_TIME: Duration = Duration::from_secs(10);
/// Poll interval once all senders of commands are gone: then no write wakes the thread.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A shorter prefix is not saved at the end: computing it again is as fast.
const MIN_SAVED_TOKENS: u32 = 32;
/// Set in the ids of files that are no entries yet.
const NO_ENTRY: u64 = 1 << 63;

/// The store of prefixes on disk, and what is known about its files.
pub struct PrefixFiles {
    store: SwapStore,
    /// Receives once what the directory holds.
    found: Receiver<FoundPrefixes>,
    /// What all files depend on, once it is known.
    origin: Option<Origin>,
    adapters: Vec<[u8; 32]>,
    owners: HashMap<PrefixScope, PrefixOwner>,
    /// Files whose owner has made no request yet.
    unseen: HashMap<PrefixKey, Vec<FoundPrefix>>,
    removed: u64,
    /// Files that the start removed because the budget has no room.
    no_room: u64,
    /// Whether files that are not known yet are to be removed.
    is_cleared: bool,
    max_state_bytes: usize,
    budget: u64,
    control: Arc<PrefixDirControl>,
    sources: PrefixSources,
}

impl PrefixFiles {
    /// Opens the directory of a configuration, if it has one. Its thread begins to read.
    pub fn open(config: &ModelConfig, waker: &EngineWaker) -> Result<Option<Self>, LoadError> {
        let Some((base, bytes)) = &config.prefix_disk else {
            return Ok(None);
        };
        let (sender, found) = channel();
        let control = Arc::<PrefixDirControl>::default();
        // A missing file is reported by the load.
        let Ok(sources) = PrefixSources::of(config) else {
            return Ok(None);
        };
        let dir = PrefixDir::open(
            (base, *bytes),
            &config.name,
            sources.clone(),
            sender,
            waker.clone(),
            control.clone(),
        )?;
        let store = SwapStore::durable(config.prefix_offload_ram, *bytes, dir, waker.clone());
        let store = store.map_err(|error| {
            LoadError::Config(format!(
                "cannot start the thread that writes prefixes: {error}; raise the limit of threads"
            ))
        })?;
        Ok(Some(Self {
            store,
            found,
            origin: None,
            adapters: Vec::new(),
            owners: HashMap::new(),
            unseen: HashMap::new(),
            removed: 0,
            no_room: 0,
            is_cleared: false,
            max_state_bytes: usize::try_from(config.prefix_offload_ram).unwrap_or(usize::MAX),
            budget: *bytes,
            control,
            sources,
        }))
    }

    /// Whether the files that were loaded are those whose prefixes these are.
    pub fn are_of_loaded_files(&self) -> bool {
        self.sources.are_unchanged()
    }

    pub(super) fn store(&mut self) -> &mut SwapStore {
        &mut self.store
    }

    /// Takes what the directory holds, if it has just become known. Returns the scopes that may have files.
    fn take_found(&mut self) -> Vec<PrefixScope> {
        match self.found.try_recv() {
            Ok(found) => self.use_found(found),
            Err(_) => Vec::new(),
        }
    }

    fn use_found(&mut self, found: FoundPrefixes) -> Vec<PrefixScope> {
        self.origin = Some(found.origin);
        self.adapters = found.adapters;
        self.removed = found.removed;
        self.no_room = found.no_room;
        self.store.skip_files(found.unread.last);
        for prefix in found.prefixes {
            self.store
                .add_file(NO_ENTRY | prefix.file, prefix.length, prefix.file);
            let of_key = self.unseen.entry(prefix.head.key).or_default();
            of_key.push(prefix);
        }
        if self.is_cleared {
            self.clear();
        }
        self.owners.keys().copied().collect()
    }

    /// The key of a scope. `None` if its owner or what the files depend on is not known.
    fn key(&self, scope: PrefixScope) -> Option<PrefixKey> {
        self.origin?;
        let owner = self.owners.get(&scope)?;
        let adapter = match usize::from(scope.adapter().0).checked_sub(1) {
            Some(index) => Some(self.adapters.get(index)?),
            None => None,
        };
        Some(key(owner, adapter))
    }

    /// Head and origin of the file of a prefix. `None` if it can have no file.
    fn head(
        &self,
        scope: PrefixScope,
        tokens: &[Token],
        order: PositionOrder,
    ) -> Option<(PrefixHead, Origin)> {
        if tokens.iter().any(|token| IMAGE_TOKENS.contains(token)) {
            return None;
        }
        let key = self.key(scope)?;
        let tokens = tokens.to_vec();
        Some((PrefixHead { key, tokens, order }, self.origin?))
    }

    /// Removes the files that are no entries yet.
    fn clear(&mut self) {
        self.is_cleared = self.origin.is_none();
        for prefix in self.unseen.drain().flat_map(|(_, prefixes)| prefixes) {
            self.store.remove(NO_ENTRY | prefix.file);
        }
    }

    /// Sets the metrics.
    pub(super) fn report(&self, metrics: &EngineMetrics) {
        set(&metrics.prefix_disk_bytes, self.store.disk_bytes());
        set(&metrics.prefix_disk_entries, self.store.files() as u64);
        let counts = self.store.counts();
        set(&metrics.prefix_disk_written_bytes, counts.written_bytes);
        set(&metrics.prefix_disk_read_bytes, counts.read_bytes);
        let failed = counts.failed_writes + counts.failed_reads;
        let no_room = counts.lost.saturating_sub(failed) + counts.refused;
        set(&metrics.prefix_disk_no_room, no_room + self.no_room);
        set(&metrics.prefix_disk_failed_writes, counts.failed_writes);
        set(&metrics.prefix_disk_failed_reads, counts.failed_reads);
        set(&metrics.prefix_disk_unusable, self.removed);
    }
}

impl Drop for PrefixFiles {
    fn drop(&mut self) {
        self.control.stopped.store(true, Ordering::Relaxed);
    }
}

impl super::Swap {
    /// Removes the files that are no entries of the scheduler.
    pub(super) fn clear_files(&mut self) {
        if let Some(files) = &mut self.files {
            files.clear();
        }
    }
}

impl<B: Backend> Worker<B> {
    /// Handles what the disk's thread found and wrote.
    pub(super) fn poll_prefix_files(&mut self) {
        let Some(files) = &mut self.swap.files else {
            return;
        };
        let scopes = files.take_found();
        files.store.poll();
        for written in files.store.take_written() {
            self.scheduler.drop_redundant(EntryId(written));
        }
        for scope in scopes {
            self.add_prefixes(scope);
        }
    }

    /// Makes the files of an owner available to the requests of its scope.
    pub(super) fn find_prefixes(&mut self, scope: PrefixScope, owner: Option<PrefixOwner>) {
        self.poll_prefix_files();
        let (Some(files), Some(owner)) = (&mut self.swap.files, owner) else {
            return;
        };
        if files.owners.insert(scope, owner).is_none() {
            self.add_prefixes(scope);
        }
    }

    fn add_prefixes(&mut self, scope: PrefixScope) {
        let Some(files) = &mut self.swap.files else {
            return;
        };
        let key = files.key(scope);
        let found = key.and_then(|key| files.unseen.remove(&key));
        for FoundPrefix { file, head, .. } in found.into_iter().flatten() {
            let PrefixHead { tokens, order, .. } = head;
            let id = self.scheduler.import_durable(scope, tokens, order);
            // Files may have left for lack of room.
            if !files.store.rename(NO_ENTRY | file, id.0) {
                self.scheduler.drop_entry(id);
            }
            // A process that was killed may have left both files.
            self.scheduler.drop_redundant(id);
        }
    }

    /// Queues the write of a prefix with this state, unless its file would be useless. Returns the bytes of disk that it takes.
    pub(super) fn write_prefix(&mut self, entry: EntryId, state: &[u8]) -> u64 {
        let Some((scope, tokens, order)) = self.scheduler.entry_text(entry) else {
            return 0;
        };
        let Some(files) = &mut self.swap.files else {
            return 0;
        };
        let Some((head, origin)) = files.head(scope, tokens, order) else {
            return 0;
        };
        if self.scheduler.has_durable(scope, &head.tokens) {
            return 0;
        }
        let file = head.file(&origin, state);
        let bytes = charge(file.len() as u64);
        let id = self
            .scheduler
            .import_durable(scope, head.tokens, head.order);
        if let Err(error) = files.store.put(id.0, file) {
            tracing::debug!(%error, "a prefix is not written");
            self.scheduler.drop_entry(id);
            return 0;
        }
        bytes
    }

    /// Loads the state in the file of an entry for a request. A file of another prefix is lost.
    pub(super) fn load_file(&mut self, entry: EntryId, request: RequestId, file: &[u8]) {
        let text = self.scheduler.entry_text(entry);
        let files = self.swap.files.as_ref();
        let head = text.zip(files);
        let head =
            head.and_then(|((scope, tokens, order), files)| files.head(scope, tokens, order));
        match head.and_then(|(head, origin)| head.state(&origin, file)) {
            Some(state) => {
                self.load_state(entry, request, state);
            }
            None => {
                tracing::warn!("a file holds another prefix than before; it is removed");
                self.scheduler.entry_lost(entry);
            }
        }
    }

    /// Writes the prefixes in the cells to disk, the most recently used first, for [`SAVE_TIME`] at most. No request runs.
    pub(super) fn save_prefixes(&mut self) {
        let deadline = Instant::now() + SAVE_TIME;
        self.poll_prefix_files();
        let Some(files) = &mut self.swap.files else {
            return;
        };
        if files.origin.is_none() && self.scheduler.entry_seq_ids().next().is_some() {
            // Fails at once if the directory cannot be used.
            if let Ok(found) = files.found.recv_timeout(SAVE_TIME) {
                files.use_found(found);
            }
        }
        if files.origin.is_none() {
            return;
        }
        let (most, mut left, control) =
            (files.max_state_bytes, files.budget, files.control.clone());
        #[expect(clippy::disallowed_methods, reason = "files have dates")]
        let mut last_use = SystemTime::now();
        while Instant::now() < deadline
            && let Some((entry, seq)) = self.scheduler.next_to_save(MIN_SAVED_TOKENS)
        {
            // One was used before the other, and must not displace it.
            last_use -= Duration::from_millis(1);
            *control
                .last_use
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(last_use);
            if let Ok(state) = self.backend.save(seq, most) {
                if charge(state.len() as u64) > left {
                    break;
                }
                left = left.saturating_sub(self.write_prefix(entry, &state));
            }
            self.scheduler.drop_entry(entry);
            self.wait_for_writes(deadline);
        }
        self.wait_for_writes(deadline);
    }

    fn wait_for_writes(&mut self, deadline: Instant) {
        loop {
            self.poll_prefix_files();
            self.run_memory_ops();
            let files = self.swap.files.as_ref();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !files.is_some_and(|files| files.store.is_writing()) {
                return;
            }
            match self.commands.recv_timeout(left) {
                Ok(command) => refuse(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}
