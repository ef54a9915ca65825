//! The hasher of `llguidance` and of `derivre`, its engine for regular expressions, with a limit on work.
//!
//! Both limit the work of a grammar, but check it between expressions. One intersection of n patterns takes up to
//! 2^n steps, and n `patternProperties` are compared in n² pairs; nothing cancels that. Every such step hashes, and
//! `derivre` lets its build choose `ahash` as the hasher. This crate stands in for it (`[patch.crates-io]` in the
//! manifest of the workspace), hashes with `foldhash`, and counts. `corral-constraint` calls it `work_limit`.
//!
//! Above the limit of [`with_limit`], the next hash unwinds with [`EXCEEDED`]. Threads without a limit are not
//! affected. What was built so far must not be used again.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use foldhash::fast::{FoldHasher, RandomState as Seed};
use std::cell::Cell;
use std::hash::BuildHasher;
use std::time::Instant;

/// The payload of the unwinding, a `&'static str`.
pub const EXCEEDED: &str = "the work limit is exceeded";

/// Hashes between two looks at the clock.
const CLOCK_INTERVAL: u64 = 256;

/// What a thread may still do.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Hashes.
    pub hashes: u64,
    /// When to stop, if ever.
    pub deadline: Option<Instant>,
}

thread_local! {
    static LEFT: Cell<Limit> = const {
        Cell::new(Limit {
            hashes: u64::MAX,
            deadline: None,
        })
    };
}

/// Calls a function whose thread may do this much work.
pub fn with_limit<T>(limit: Limit, call: impl FnOnce() -> T) -> T {
    struct Restore(Limit);
    impl Drop for Restore {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _restore = Restore(LEFT.replace(limit));
    call()
}

/// Counts one hash.
fn count() {
    let mut left = LEFT.get();
    let check_clock = left.hashes.is_multiple_of(CLOCK_INTERVAL);
    let late = || left.deadline.is_some_and(|at| at <= Instant::now());
    if left.hashes == 0 || check_clock && late() {
        left.hashes = 0;
        LEFT.set(left);
        // A destructor that hashes during an unwinding must not start another: that would end the process.
        if std::thread::panicking() {
            return;
        }
        // Unlike a panic, this prints nothing.
        std::panic::resume_unwind(Box::new(EXCEEDED));
    }
    left.hashes -= 1;
    LEFT.set(left);
}

/// Stands in for `ahash::RandomState`.
#[derive(Clone, Debug, Default)]
pub struct RandomState(Seed);

impl RandomState {
    /// A hasher with a seed of its own.
    pub fn new() -> Self {
        Self::default()
    }
}

impl BuildHasher for RandomState {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        count();
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    /// Inserts up to `count` keys; `Err` if the limit stopped it.
    fn insert(limit: Limit, count: u64) -> Result<(), &'static str> {
        let call = || {
            let mut map: HashMap<u64, (), RandomState> = HashMap::default();
            map.reserve(count as usize);
            for key in 0..count {
                map.insert(key, ());
            }
        };
        catch_unwind(AssertUnwindSafe(|| with_limit(limit, call)))
            .map_err(|payload| *payload.downcast::<&'static str>().unwrap())
    }

    #[test]
    fn limit_stops_work_and_ends_with_its_call() {
        let hashes = |hashes| Limit {
            hashes,
            deadline: None,
        };
        assert_eq!(insert(hashes(100), 100), Ok(()));
        assert_eq!(insert(hashes(99), 100), Err(EXCEEDED));
        let outside = LEFT.get();
        assert_eq!((outside.hashes, outside.deadline), (u64::MAX, None));
        let nested = with_limit(hashes(10), || insert(hashes(1_000), 1_000));
        assert_eq!(nested, Ok(()));
    }

    #[test]
    fn deadline_stops_work() {
        let late = Limit {
            hashes: 1_000_000,
            deadline: Some(Instant::now()),
        };
        assert_eq!(insert(late, 1_000), Err(EXCEEDED));
        let early = Limit {
            deadline: Some(Instant::now() + Duration::from_secs(600)),
            ..late
        };
        assert_eq!(insert(early, 1_000), Ok(()));
    }
}
