//! Access of a waiting host function to the data of its instance's store.
//!
//! Each such function exists in two forms. For guests that await it, other tasks use the store meanwhile, so
//! it borrows the store only for moments. For guests that block (`inference_sync.rs`), it owns the store until it
//! returns. Both forms share one implementation over this trait.

use crate::state::State;
use wasmtime::component::{Accessor, HasSelf};

/// Access to the data of a store.
pub(super) trait StoreAccess {
    /// Runs `work`, which does not wait.
    fn with<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> R;
}

impl StoreAccess for &Accessor<State, HasSelf<State>> {
    fn with<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> R {
        Accessor::with(self, |mut access| work(access.get()))
    }
}

impl StoreAccess for &mut State {
    fn with<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> R {
        work(self)
    }
}
