//! Components whose compilation ran over its time: refused at once for a while, so that trying again
//! does not cost one of the few places where components are compiled.

use super::Digest;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long one is refused.
const FOR: Duration = Duration::from_secs(3600);
/// How many are remembered; the oldest go first.
const MOST: usize = 64;

/// Those that ran over lately.
#[derive(Debug, Default)]
pub(super) struct Slow(VecDeque<(Digest, Instant)>);

impl Slow {
    /// One ran over its time, and may run on.
    pub(super) fn ran_over(&mut self, digest: Digest, now: Instant) {
        self.forget(digest);
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((digest, now));
    }

    /// One was compiled after all: the cache may have it now.
    pub(super) fn forget(&mut self, digest: Digest) {
        self.0.retain(|(slow, _)| *slow != digest);
    }

    /// For how long it is refused still, if it is.
    pub(super) fn refused(&self, digest: Digest, now: Instant) -> Option<Duration> {
        let (_, since) = self.0.iter().find(|(slow, _)| *slow == digest)?;
        FOR.checked_sub(now.saturating_duration_since(*since))
            .filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_refused_for_a_while_and_not_for_ever() {
        let began = Instant::now();
        let digest = |number: usize| Digest::of(&number.to_le_bytes());
        let mut slow = Slow::default();
        slow.ran_over(digest(0), began);
        let later = began + FOR / 4;
        assert_eq!(slow.refused(digest(0), later), Some(FOR / 4 * 3));
        assert_eq!(slow.refused(digest(1), later), None);
        assert_eq!(slow.refused(digest(0), began + FOR), None);
        slow.ran_over(digest(0), later);
        assert_eq!(slow.refused(digest(0), later), Some(FOR), "once more");
        slow.forget(digest(0));
        assert_eq!(slow.refused(digest(0), later), None);
        for number in 0..=MOST {
            slow.ran_over(digest(number), later);
        }
        assert_eq!(slow.0.len(), MOST);
        assert_eq!(slow.refused(digest(0), later), None, "the oldest one");
        assert!(slow.refused(digest(1), later).is_some());
    }
}
