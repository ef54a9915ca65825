//! Images in sequences.

use super::counted_sequence::lock;
use super::store_access::StoreAccess;
use super::{GuestSequence, HostError, HostResult, MAX_IMAGES, wit};
use crate::counters::ResourceKind;
use crate::state::State;
use std::sync::Arc;
use wasmtime::component::Resource;

/// Encodes an image and appends it. The sequence is in use meanwhile.
pub(super) async fn append(
    mut store: impl StoreAccess,
    sequence: Resource<GuestSequence>,
    file: Vec<u8>,
) -> HostResult<u32> {
    let (shared, in_use, (engine, caller), counters) = store.with(|state| {
        let held = state.table.get(&sequence)?;
        let (shared, in_use) = held.begin()?;
        let engine = held.engine().clone();
        state.take_images(1)?;
        let counters = Arc::clone(&state.counters);
        Ok::<_, HostError>((shared, in_use, (engine, state.caller), counters))
    })?;
    // It hashes the file.
    let encoding = tokio::task::spawn_blocking(move || engine.encode_image(file, caller));
    let image = counters.count_queue_timeout(encoding.await??.await)?;
    drop(in_use);
    store.with(|state| {
        // The guest may have dropped the sequence, or begun to use it.
        state.table.get(&sequence)?.check_unused()?;
        let positions = image.tokens().len();
        state.hold_tokens(positions)?;
        let appended = lock(&shared).sequence.append_image(image);
        if let Err(error) = appended {
            state.handles.counts.remove(ResourceKind::Tokens, positions);
            return Err(error.into());
        }
        state.table.get_mut(&sequence)?.held_tokens += positions;
        Ok(u32::try_from(positions).unwrap_or(u32::MAX))
    })
}

impl State {
    /// Counts images that are appended or restored, up to [`MAX_IMAGES`].
    pub(super) fn take_images(&mut self, count: usize) -> Result<(), wit::Error> {
        let images = self.handles.images.saturating_add(count);
        if images > MAX_IMAGES {
            return Err(wit::Error::Invalid(format!(
                "the plugin would have appended {images} images in this request, of at most {MAX_IMAGES}; send fewer"
            )));
        }
        self.handles.images = images;
        Ok(())
    }
}
