//! Ownership of a retained sequence across requests.
//!
//! A caller holds a [`Retention`] while it may continue a sequence. The scheduler sees it through a
//! [`WeakRetention`]. A released retention never comes back.

use std::sync::{Arc, Weak};

/// Keeps a sequence for its owner after the request ended. All clones are one retention.
#[derive(Clone, Debug, Default)]
pub struct Retention(Arc<()>);

impl Retention {
    /// The scheduler's view of this retention.
    pub fn downgrade(&self) -> WeakRetention {
        WeakRetention(Arc::downgrade(&self.0))
    }
}

/// Tells whether a [`Retention`] is still held. The default is one that was never held.
#[derive(Clone, Debug, Default)]
pub struct WeakRetention(Weak<()>);

impl WeakRetention {
    /// Whether any clone of the retention exists.
    pub fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Whether both refer to one retention.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Whether this refers to `retention`.
    pub(crate) fn refers_to(&self, retention: &Retention) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&retention.0)
    }

    /// Whether any clone exists other than `own`.
    pub(crate) fn is_held_by_others(&self, own: Option<&Retention>) -> bool {
        let own = own.is_some_and(|own| self.refers_to(own));
        self.0.strong_count() > usize::from(own)
    }
}
