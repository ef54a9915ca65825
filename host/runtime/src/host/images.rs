//! Images in sequences.

use super::counted_sequence::lock;
use super::store_access::StoreAccess;
use super::{GuestSequence, HostError, HostResult, MAX_IMAGES, wit};
use crate::state::State;
use std::sync::Arc;
use wasmtime::component::Resource;

/// Encodes an image and appends it. The sequence is in use meanwhile.
pub(super) async fn append(
    mut store: impl StoreAccess,
    sequence: Resource<GuestSequence>,
    file: Vec<u8>,
) -> HostResult<u32> {
    let (shared, in_use, encoding, counters) = store.with(|state| {
        let held = state.table.get(&sequence)?;
        let (shared, in_use) = held.begin()?;
        let engine = held.engine().clone();
        state.take_image()?;
        let encoding = engine.encode_image(file, state.caller)?;
        Ok::<_, HostError>((shared, in_use, encoding, Arc::clone(&state.counters)))
    })?;
    let image = counters.count_queue_timeout(encoding.await)?;
    drop(in_use);
    store.with(|state| {
        // The guest may have dropped the sequence, or begun to use it.
        state.table.get(&sequence)?.check_unused()?;
        let positions = image.tokens().len();
        state.hold_tokens(positions)?;
        let appended = lock(&shared).sequence.append_image(image);
        if let Err(error) = appended {
            state.handles.tokens.remove(positions);
            return Err(error.into());
        }
        state.table.get_mut(&sequence)?.held_tokens += positions;
        Ok(u32::try_from(positions).unwrap_or(u32::MAX))
    })
}

impl State {
    /// Counts an image, up to [`MAX_IMAGES`].
    fn take_image(&mut self) -> Result<(), wit::Error> {
        if self.handles.images >= MAX_IMAGES {
            return Err(wit::Error::Invalid(format!(
                "the plugin appended {MAX_IMAGES} images in this request, the most that it may; send fewer"
            )));
        }
        self.handles.images += 1;
        Ok(())
    }
}
