//! How a host function that waits gets at the data of its instance's store.
//!
//! There are two forms of each: one for guests that await it, whose store others use meanwhile, so that
//! it is only lent for moments; and one for guests that block (`blocking.rs`), to which it belongs until
//! they return. What they do is written once, over this.

use crate::state::State;
use wasmtime::component::{Accessor, HasSelf};

/// A way to the data of a store.
pub(super) trait Reach {
    /// Does something with it, without waiting.
    fn with<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> R;
}

impl Reach for &Accessor<State, HasSelf<State>> {
    fn with<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> R {
        Accessor::with(self, |mut access| work(access.get()))
    }
}

impl Reach for &mut State {
    fn with<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> R {
        work(self)
    }
}
