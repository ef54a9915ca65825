//! Components whose compilation exceeded a limit or crashed the compiler. They are refused for a while, so that
//! retries do not occupy the few compile permits.

use super::digest::Digest;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a component is refused.
const REFUSAL_TIME: Duration = Duration::from_secs(3600);
/// Components remembered; the oldest are forgotten first.
const CAPACITY: usize = 64;

/// Components refused now.
#[derive(Debug, Default)]
pub(super) struct RefusedCompilations(VecDeque<(Digest, Instant)>);

impl RefusedCompilations {
    /// Refuses a component from now on. Its compilation may continue.
    pub(super) fn record(&mut self, component: Digest, now: Instant) {
        self.remove(component);
        if self.0.len() >= CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back((component, now));
    }

    /// Removes a component whose compilation has finished after all; it may be in the compilation cache now.
    pub(super) fn remove(&mut self, component: Digest) {
        self.0.retain(|(other, _)| *other != component);
    }

    /// How long the component is still refused, if at all.
    pub(super) fn remaining(&self, component: Digest, now: Instant) -> Option<Duration> {
        let (_, since) = self.0.iter().find(|(other, _)| *other == component)?;
        REFUSAL_TIME
            .checked_sub(now.saturating_duration_since(*since))
            .filter(|remaining| !remaining.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_is_refused_for_an_hour() {
        let start = Instant::now();
        let digest = |number: usize| Digest::of(&number.to_le_bytes());
        let mut refused = RefusedCompilations::default();
        refused.record(digest(0), start);
        let later = start + REFUSAL_TIME / 4;
        assert_eq!(
            refused.remaining(digest(0), later),
            Some(REFUSAL_TIME / 4 * 3)
        );
        assert_eq!(refused.remaining(digest(1), later), None);
        assert_eq!(refused.remaining(digest(0), start + REFUSAL_TIME), None);
        refused.record(digest(0), later);
        assert_eq!(
            refused.remaining(digest(0), later),
            Some(REFUSAL_TIME),
            "anew"
        );
        refused.remove(digest(0));
        assert_eq!(refused.remaining(digest(0), later), None);
        for number in 0..=CAPACITY {
            refused.record(digest(number), later);
        }
        assert_eq!(refused.0.len(), CAPACITY);
        assert_eq!(
            refused.remaining(digest(0), later),
            None,
            "the oldest is forgotten"
        );
        assert!(refused.remaining(digest(1), later).is_some());
    }
}
