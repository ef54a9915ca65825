//! Those whom somebody else's wrongs must not reach.

use crate::Corral;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// True from the moment when it is dropped: also when a panic does that, or those who wait for it would
/// never end.
pub struct Done<'a>(pub &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Corral {
    /// Two ask 1+1 over and over while `deeds` are done; every answer has to be 2. Returns how often it
    /// was asked.
    pub fn beside(&self, deeds: impl FnOnce()) -> u32 {
        let (done, asked) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        self.check_alive();
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _done = Done(&done);
            deeds();
        });
        asked.into_inner()
    }
}
