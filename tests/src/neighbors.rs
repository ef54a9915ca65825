//! Requests that run beside a hostile one and must not notice it.

use crate::Corral;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Sets a flag when dropped, also by a panic, so that threads waiting for it end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Corral {
    /// Runs `attack` while two clients ask 1+1 in a loop and check the answer. Returns the number of their
    /// requests, and prints their times, which depend on the machine.
    pub fn with_neighbors(&self, attack: impl FnOnce()) -> usize {
        let (done, times) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        let began = Instant::now();
                        self.check_alive();
                        times.lock().expect("no panic").push(began.elapsed());
                    }
                });
            }
            let _done = SetOnDrop(&done);
            attack();
        });
        let mut times = times.into_inner().expect("no panic");
        times.sort();
        if let Some(last) = times.len().checked_sub(1) {
            let (median, p99) = (times[last / 2], times[last * 99 / 100]);
            println!(
                "neighbors: {} requests, median {median:.1?}, p99 {p99:.1?}",
                times.len()
            );
        }
        times.len()
    }
}
