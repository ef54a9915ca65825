//! Requests that run beside a hostile one and must not notice it.

use crate::Corral;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Sets a flag when dropped, also by a panic, so that threads waiting for it end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Corral {
    /// Runs `attack` while two clients ask 1+1 in a loop and check the answer. Returns the number of their
    /// requests.
    pub fn with_neighbors(&self, attack: impl FnOnce()) -> u32 {
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
            let _done = SetOnDrop(&done);
            attack();
        });
        asked.into_inner()
    }
}
