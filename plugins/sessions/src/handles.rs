//! A client's handles of one kind.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use session_protocol::{Error, Handle};

/// Values by the client's number. The host limits how many of them exist.
pub(crate) struct Handles<T> {
    kind: &'static str,
    values: RefCell<HashMap<Handle, Rc<T>>>,
}

impl<T> Handles<T> {
    pub(crate) fn new(kind: &'static str) -> Self {
        Handles {
            kind,
            values: RefCell::default(),
        }
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<Rc<T>, Error> {
        let values = self.values.borrow();
        values.get(&handle).cloned().ok_or_else(|| Error::Invalid {
            detail: format!("the session has no {} {handle}", self.kind),
        })
    }

    /// Checks that the number is free, before its value is made.
    pub(crate) fn check_free(&self, handle: Handle) -> Result<(), Error> {
        match self.values.borrow().contains_key(&handle) {
            true => Err(Error::Invalid {
                detail: format!(
                    "the session has a {} {handle}; choose another number",
                    self.kind
                ),
            }),
            false => Ok(()),
        }
    }

    pub(crate) fn insert(&self, handle: Handle, value: T) {
        self.values.borrow_mut().insert(handle, Rc::new(value));
    }

    /// Drops a value, once its running calls have ended.
    pub(crate) fn remove(&self, handle: Handle) {
        self.values.borrow_mut().remove(&handle);
    }
}
