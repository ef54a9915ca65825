//! The usage of one quota, without clock or lock.

use super::limits::{QuotaLimit, QuotaLimits};
use super::window::{SlidingWindow, SlotNumber};
use std::time::Duration;

/// Slots of a window of one minute.
const MINUTE_SLOT: Duration = Duration::from_secs(1);
const MINUTE_SLOTS: usize = 60;
/// Slots of a window of one day.
const DAY_SLOT: Duration = Duration::from_secs(15 * 60);
const DAY_SLOTS: usize = 96;
/// Wait for a running request to end, a guess.
const CONCURRENT_WAIT: Duration = Duration::from_secs(1);

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    pub(crate) limit: QuotaLimit,
    pub(crate) allowed: u64,
    /// Time until a retry can succeed. None if the request exceeds the limit alone.
    pub(crate) wait: Option<Duration>,
}

/// Slots in which reserved tokens were counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenSlots {
    minute: Option<SlotNumber>,
    day: Option<SlotNumber>,
}

/// What was used. The caller passes the limits, since callers with different limits may share one usage.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaUsage {
    running: u32,
    /// Windows exist once a caller had a limit for them.
    requests: Option<SlidingWindow>,
    tokens_minute: Option<SlidingWindow>,
    tokens_day: Option<SlidingWindow>,
}

impl QuotaUsage {
    /// Starts the windows that `limits` needs. Existing windows stay.
    pub(crate) fn track(&mut self, limits: &QuotaLimits) {
        let minute_window = || SlidingWindow::new(MINUTE_SLOT, MINUTE_SLOTS);
        if limits.requests_per_minute.is_some() {
            self.requests.get_or_insert_with(minute_window);
        }
        if limits.tokens_per_minute.is_some() {
            self.tokens_minute.get_or_insert_with(minute_window);
        }
        if limits.tokens_per_day.is_some() {
            self.tokens_day
                .get_or_insert_with(|| SlidingWindow::new(DAY_SLOT, DAY_SLOTS));
        }
    }

    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// Checks that a request fits now, with at least one token. Returns the refusal with the longest wait.
    pub(crate) fn check_request(
        &mut self,
        limits: &QuotaLimits,
        now: Duration,
    ) -> Result<(), LimitExceeded> {
        let concurrent = limits.concurrent.and_then(|allowed| {
            (self.running >= allowed).then_some(LimitExceeded {
                limit: QuotaLimit::Concurrent,
                allowed: allowed.into(),
                wait: (allowed > 0).then_some(CONCURRENT_WAIT),
            })
        });
        let requests = exceeded(
            &mut self.requests,
            limits.requests_per_minute.map(u64::from),
            QuotaLimit::RequestsPerMinute,
            now,
            1,
        );
        [concurrent, requests, self.exceeded_tokens(limits, now, 1)]
            .into_iter()
            .flatten()
            .max_by_key(LimitExceeded::wait_order)
            .map_or(Ok(()), Err)
    }

    /// Counts a request that [`Self::check_request`] allowed.
    pub(crate) fn begin_request(&mut self, now: Duration) {
        self.running = self.running.saturating_add(1);
        if let Some(requests) = &mut self.requests {
            requests.add(now, 1);
        }
    }

    /// Ends a request.
    pub(crate) fn end_request(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Checks that a request that holds `reserved` tokens may reserve `tokens` more.
    pub(crate) fn check_tokens(
        &mut self,
        limits: &QuotaLimits,
        now: Duration,
        reserved: u64,
        tokens: u64,
    ) -> Result<(), LimitExceeded> {
        if let Some(allowed) = limits.tokens_per_request
            && reserved.saturating_add(tokens) > allowed
        {
            return Err(LimitExceeded {
                limit: QuotaLimit::TokensPerRequest,
                allowed,
                wait: None,
            });
        }
        self.exceeded_tokens(limits, now, tokens)
            .map_or(Ok(()), Err)
    }

    /// Tokens that a request that holds `reserved` tokens could reserve now. None if tokens are unlimited.
    pub(crate) fn tokens_left(
        &mut self,
        limits: &QuotaLimits,
        now: Duration,
        reserved: u64,
    ) -> Option<u64> {
        let left = |window: &mut Option<SlidingWindow>, allowed: Option<u64>| {
            let used = window.as_mut()?.used(now);
            Some(allowed?.saturating_sub(used))
        };
        [
            limits
                .tokens_per_request
                .map(|allowed| allowed.saturating_sub(reserved)),
            left(&mut self.tokens_minute, limits.tokens_per_minute),
            left(&mut self.tokens_day, limits.tokens_per_day),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Counts tokens that [`Self::check_tokens`] allowed.
    pub(crate) fn reserve(&mut self, now: Duration, tokens: u64) -> TokenSlots {
        let add = |window: &mut Option<SlidingWindow>| {
            let window = window.as_mut();
            window.map(|window| window.add(now, tokens))
        };
        TokenSlots {
            minute: add(&mut self.tokens_minute),
            day: add(&mut self.tokens_day),
        }
    }

    /// Returns `tokens` of a reservation.
    pub(crate) fn release(&mut self, now: Duration, slots: TokenSlots, tokens: u64) {
        for (window, slot) in [
            (&mut self.tokens_minute, slots.minute),
            (&mut self.tokens_day, slots.day),
        ] {
            if let (Some(window), Some(slot)) = (window, slot) {
                window.release(now, slot, tokens);
            }
        }
    }

    fn exceeded_tokens(
        &mut self,
        limits: &QuotaLimits,
        now: Duration,
        tokens: u64,
    ) -> Option<LimitExceeded> {
        let (per_minute, per_day) = (limits.tokens_per_minute, limits.tokens_per_day);
        let minute = exceeded(
            &mut self.tokens_minute,
            per_minute,
            QuotaLimit::TokensPerMinute,
            now,
            tokens,
        );
        let day = exceeded(
            &mut self.tokens_day,
            per_day,
            QuotaLimit::TokensPerDay,
            now,
            tokens,
        );
        minute
            .into_iter()
            .chain(day)
            .max_by_key(LimitExceeded::wait_order)
    }
}

impl LimitExceeded {
    /// Key for sorting refusals; one without a wait sorts last.
    pub(crate) fn wait_order(&self) -> Duration {
        self.wait.unwrap_or(Duration::MAX)
    }
}

/// The limit, if `amount` more would exceed it.
fn exceeded(
    window: &mut Option<SlidingWindow>,
    allowed: Option<u64>,
    limit: QuotaLimit,
    now: Duration,
    amount: u64,
) -> Option<LimitExceeded> {
    let (window, allowed) = (window.as_mut()?, allowed?);
    let wait = window.wait(now, amount, allowed);
    (wait != Some(Duration::ZERO)).then_some(LimitExceeded {
        limit,
        allowed,
        wait,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn tracking(limits: &QuotaLimits) -> QuotaUsage {
        let mut usage = QuotaUsage::default();
        usage.track(limits);
        usage
    }

    #[test]
    fn request_above_limit_has_no_wait() {
        let limits = QuotaLimits {
            tokens_per_minute: Some(10),
            tokens_per_day: Some(1000),
            ..QuotaLimits::default()
        };
        let mut usage = tracking(&limits);
        let exceeded = usage.check_tokens(&limits, at(0), 0, 11).unwrap_err();
        assert_eq!(
            (exceeded.limit, exceeded.wait),
            (QuotaLimit::TokensPerMinute, None)
        );
    }

    #[test]
    fn refusal_has_the_longest_wait() {
        let limits = QuotaLimits {
            tokens_per_minute: Some(10),
            tokens_per_day: Some(10),
            ..QuotaLimits::default()
        };
        let mut usage = tracking(&limits);
        usage.reserve(at(0), 10);
        let exceeded = usage.check_tokens(&limits, at(0), 0, 1).unwrap_err();
        assert_eq!(exceeded.limit, QuotaLimit::TokensPerDay);
    }

    proptest! {
        /// After the wait of a refusal, and not earlier, the request is allowed if no other came.
        #[test]
        fn wait_is_exact(
            events in prop::collection::vec((0..40_000_u64, 1..15_u64, 0..15_u64), 1..80),
            requests in 1..20_u32,
            minute in 15..60_u64,
            day in 15..400_u64,
        ) {
            let limits = QuotaLimits {
                requests_per_minute: Some(requests),
                tokens_per_minute: Some(minute),
                tokens_per_day: Some(day),
                ..QuotaLimits::default()
            };
            let mut usage = tracking(&limits);
            let mut now = Duration::ZERO;
            for (after, tokens, unused) in events {
                now += Duration::from_millis(after);
                match usage.check_request(&limits, now) {
                    Ok(()) => usage.begin_request(now),
                    Err(exceeded) => {
                        let wait = exceeded.wait.unwrap();
                        prop_assert_eq!(usage.clone().check_request(&limits, now + wait), Ok(()));
                        let sooner = now + wait - Duration::from_nanos(1);
                        prop_assert!(usage.clone().check_request(&limits, sooner).is_err());
                        continue;
                    }
                }
                match usage.check_tokens(&limits, now, 0, tokens) {
                    Ok(()) => {
                        let slots = usage.reserve(now, tokens);
                        usage.release(now, slots, unused.min(tokens));
                    }
                    Err(exceeded) => {
                        let later = now + exceeded.wait.unwrap();
                        let checked = usage.clone().check_tokens(&limits, later, 0, tokens);
                        prop_assert_eq!(checked, Ok(()));
                    }
                }
                usage.end_request();
            }
            prop_assert_eq!(usage.running(), 0);
        }
    }

    #[test]
    fn different_limits_apply_to_one_usage() {
        let few = QuotaLimits {
            requests_per_minute: Some(1),
            ..QuotaLimits::default()
        };
        let more = QuotaLimits {
            requests_per_minute: Some(2),
            tokens_per_day: Some(5),
            ..QuotaLimits::default()
        };
        let mut usage = tracking(&few);
        usage.begin_request(at(0));
        usage.track(&more);
        assert_eq!(usage.check_request(&more, at(1)), Ok(()));
        assert!(usage.check_request(&few, at(1)).is_err());
        usage.begin_request(at(1));
        assert!(usage.check_request(&more, at(2)).is_err());
        // Windows without a current limit keep counting.
        let unlimited = QuotaLimits::default();
        usage.track(&unlimited);
        assert!(usage.check_request(&more, at(2)).is_err());
        assert_eq!(usage.check_request(&unlimited, at(2)), Ok(()));
        usage.end_request();
        usage.end_request();
        assert_eq!(usage.running(), 0);
        assert!(usage.check_request(&few, at(62)).is_ok());
    }
}
