//! The script that answers the host functions called on this thread.
//!
//! *Invariant*: a thread has at most one. Dropping [`InstalledScript`] restores the script before it. A host function that is
//! called without a script panics, which fails the test. This file only finds the script; [`ScriptState`] answers.

use std::cell::RefCell;
use std::rc::Rc;

use super::script_state::ScriptState;

thread_local! {
    static SCRIPT: RefCell<Option<Rc<ScriptState>>> = const { RefCell::new(None) };
}

/// Uninstalls the script when dropped.
pub(super) struct InstalledScript(Option<Rc<ScriptState>>);

pub(super) fn install(state: &Rc<ScriptState>) -> InstalledScript {
    InstalledScript(SCRIPT.replace(Some(Rc::clone(state))))
}

impl Drop for InstalledScript {
    fn drop(&mut self) {
        SCRIPT.set(self.0.take());
    }
}

pub(super) fn script() -> Rc<ScriptState> {
    match SCRIPT.with_borrow(Clone::clone) {
        Some(script) => script,
        None => panic!("no host: run this within `testing::Script::run`"),
    }
}
