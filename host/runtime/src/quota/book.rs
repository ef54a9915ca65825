//! One quota's books, without clock or lock.

use super::window::{Place, Window};
use std::time::Duration;

/// The windows: their slots, and how many there are of them.
const MINUTE: (Duration, usize) = (Duration::from_secs(1), 60);
const DAY: (Duration, usize) = (Duration::from_secs(15 * 60), 96);
/// How long to wait for a place, of which nobody knows when it comes free.
const PLACE: Duration = Duration::from_secs(1);

/// How much somebody may use. What is left out is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Requests that may run at once.
    pub concurrent: Option<u32>,
    /// Requests in any minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens of one request: those that its plugin appends to sequences, and those that it lets
    /// generate.
    pub tokens_per_request: Option<u64>,
    /// Tokens in any minute.
    pub tokens_per_minute: Option<u64>,
    /// Tokens in any 24 hours.
    pub tokens_per_day: Option<u64>,
}

impl Allowance {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// Which limit was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`Allowance::concurrent`]
    Concurrent,
    /// [`Allowance::requests_per_minute`]
    RequestsPerMinute,
    /// [`Allowance::tokens_per_request`]
    TokensPerRequest,
    /// [`Allowance::tokens_per_minute`]
    TokensPerMinute,
    /// [`Allowance::tokens_per_day`]
    TokensPerDay,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Concurrent,
        Self::RequestsPerMinute,
        Self::TokensPerRequest,
        Self::TokensPerMinute,
        Self::TokensPerDay,
    ];

    /// Its name in files, metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Concurrent => "concurrent",
            Self::RequestsPerMinute => "requests-per-minute",
            Self::TokensPerRequest => "tokens-per-request",
            Self::TokensPerMinute => "tokens-per-minute",
            Self::TokensPerDay => "tokens-per-day",
        }
    }
}

/// Why the books say no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct No {
    pub(crate) limit: Limit,
    /// What the limit allows.
    pub(crate) allowed: u64,
    /// When to ask again; nothing if it is more than is ever allowed.
    pub(crate) wait: Option<Duration>,
}

/// Where tokens were entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenEntry {
    minute: Option<Place>,
    day: Option<Place>,
}

/// What was used. Who asks says what is allowed, since several who are held to other limits may share
/// one book.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    running: u32,
    /// A sum is kept once somebody has had a limit for it.
    requests: Option<Window>,
    tokens_minute: Option<Window>,
    tokens_day: Option<Window>,
}

impl Book {
    /// Keeps the sums that `allowance` needs, from now on. Those that are kept already stay as they
    /// are, and none ends: there are three at most.
    pub(crate) fn keep_for(&mut self, allowance: &Allowance) {
        let keep = |window: &mut Option<Window>, wanted: bool, (slot, count)| {
            if wanted {
                window.get_or_insert_with(|| Window::new(slot, count));
            }
        };
        let minute = allowance.tokens_per_minute.is_some();
        keep(
            &mut self.requests,
            allowance.requests_per_minute.is_some(),
            MINUTE,
        );
        keep(&mut self.tokens_minute, minute, MINUTE);
        keep(
            &mut self.tokens_day,
            allowance.tokens_per_day.is_some(),
            DAY,
        );
    }

    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// Whether a request may come in now: there is a place and a request left, and one token at least.
    pub(crate) fn may_enter(&mut self, allowance: &Allowance, now: Duration) -> Result<(), No> {
        let place = allowance.concurrent.and_then(|allowed| {
            (self.running >= allowed).then_some(No {
                limit: Limit::Concurrent,
                allowed: allowed.into(),
                wait: (allowed > 0).then_some(PLACE),
            })
        });
        let requests = allowance.requests_per_minute.map(u64::from);
        let requests = over(
            &mut self.requests,
            requests,
            Limit::RequestsPerMinute,
            now,
            1,
        );
        [place, requests, self.over_tokens(allowance, now, 1)]
            .into_iter()
            .flatten()
            .max_by_key(No::lasts)
            .map_or(Ok(()), Err)
    }

    /// Enters a request. Whether it may, was asked before.
    pub(crate) fn enter(&mut self, now: Duration) {
        self.running = self.running.saturating_add(1);
        if let Some(requests) = &mut self.requests {
            requests.take(now, 1);
        }
    }

    /// A request that has been entered is over.
    pub(crate) fn leave(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Whether a request that has reserved `so_far` may have so many `tokens` more, now.
    pub(crate) fn may_reserve(
        &mut self,
        allowance: &Allowance,
        now: Duration,
        so_far: u64,
        tokens: u64,
    ) -> Result<(), No> {
        if let Some(allowed) = allowance.tokens_per_request
            && so_far.saturating_add(tokens) > allowed
        {
            return Err(No {
                limit: Limit::TokensPerRequest,
                allowed,
                wait: None,
            });
        }
        self.over_tokens(allowance, now, tokens).map_or(Ok(()), Err)
    }

    /// Tokens that a request that has reserved `so_far` may have more, now; nothing if none are limited.
    pub(crate) fn left(
        &mut self,
        allowance: &Allowance,
        now: Duration,
        so_far: u64,
    ) -> Option<u64> {
        let Allowance {
            tokens_per_request: request,
            tokens_per_minute: minute,
            tokens_per_day: day,
            ..
        } = *allowance;
        let unused = |window: &mut Option<Window>, allowed: Option<u64>| {
            let used = window.as_mut()?.used(now);
            Some(allowed?.saturating_sub(used))
        };
        [
            request.map(|allowed| allowed.saturating_sub(so_far)),
            unused(&mut self.tokens_minute, minute),
            unused(&mut self.tokens_day, day),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Enters tokens. Whether it may, was asked before.
    pub(crate) fn reserve(&mut self, now: Duration, tokens: u64) -> TokenEntry {
        let take = |window: &mut Option<Window>| {
            let window = window.as_mut();
            window.map(|window| window.take(now, tokens))
        };
        TokenEntry {
            minute: take(&mut self.tokens_minute),
            day: take(&mut self.tokens_day),
        }
    }

    /// Gives back what was reserved and not used.
    pub(crate) fn give_back(&mut self, now: Duration, entry: TokenEntry, tokens: u64) {
        for (window, place) in [
            (&mut self.tokens_minute, entry.minute),
            (&mut self.tokens_day, entry.day),
        ] {
            if let (Some(window), Some(place)) = (window, place) {
                window.give_back(now, place, tokens);
            }
        }
    }

    fn over_tokens(&mut self, allowance: &Allowance, now: Duration, tokens: u64) -> Option<No> {
        let (per_minute, per_day) = (allowance.tokens_per_minute, allowance.tokens_per_day);
        let minute = over(
            &mut self.tokens_minute,
            per_minute,
            Limit::TokensPerMinute,
            now,
            tokens,
        );
        let day = over(
            &mut self.tokens_day,
            per_day,
            Limit::TokensPerDay,
            now,
            tokens,
        );
        minute.into_iter().chain(day).max_by_key(No::lasts)
    }
}

impl No {
    /// What orders refusals: the one that lasts longest is told.
    pub(crate) fn lasts(&self) -> Duration {
        self.wait.unwrap_or(Duration::MAX)
    }
}

/// Whether `amount` more would be over a limit.
fn over(
    window: &mut Option<Window>,
    allowed: Option<u64>,
    limit: Limit,
    now: Duration,
    amount: u64,
) -> Option<No> {
    let (window, allowed) = (window.as_mut()?, allowed?);
    let wait = window.wait(now, amount, allowed);
    (wait != Some(Duration::ZERO)).then_some(No {
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

    fn book_for(allowance: &Allowance) -> Book {
        let mut book = Book::default();
        book.keep_for(allowance);
        book
    }

    #[test]
    fn each_limit_says_no_by_itself() {
        let all = Allowance::default();
        for (allowance, limit, wait) in [
            (
                Allowance {
                    concurrent: Some(2),
                    ..all
                },
                Limit::Concurrent,
                PLACE,
            ),
            (
                Allowance {
                    requests_per_minute: Some(2),
                    ..all
                },
                Limit::RequestsPerMinute,
                at(61),
            ),
            (
                Allowance {
                    tokens_per_minute: Some(20),
                    ..all
                },
                Limit::TokensPerMinute,
                at(61),
            ),
            (
                Allowance {
                    tokens_per_day: Some(20),
                    ..all
                },
                Limit::TokensPerDay,
                at(24 * 3600 + 15 * 60),
            ),
        ] {
            let mut book = book_for(&allowance);
            for _ in 0..2 {
                assert_eq!(book.may_enter(&allowance, at(0)), Ok(()), "{limit:?}");
                book.enter(at(0));
                let may = book.may_reserve(&allowance, at(0), 0, 10);
                assert_eq!(may, Ok(()), "{limit:?}");
                book.reserve(at(0), 10);
            }
            let no = book
                .may_enter(&allowance, at(0))
                .expect_err("the third one");
            assert_eq!((no.limit, no.wait), (limit, Some(wait)));
        }
        let allowance = Allowance {
            tokens_per_request: Some(20),
            ..all
        };
        let mut book = book_for(&allowance);
        assert_eq!(book.may_reserve(&allowance, at(0), 10, 10), Ok(()));
        let no = book
            .may_reserve(&allowance, at(0), 11, 10)
            .expect_err("21 of 20");
        assert_eq!(
            (no.limit, no.allowed, no.wait),
            (Limit::TokensPerRequest, 20, None)
        );
    }

    #[test]
    fn what_is_never_allowed_has_no_time_to_come_again() {
        let allowance = Allowance {
            tokens_per_minute: Some(10),
            tokens_per_day: Some(1000),
            ..Allowance::default()
        };
        let mut book = book_for(&allowance);
        let no = book
            .may_reserve(&allowance, at(0), 0, 11)
            .expect_err("11 of 10");
        assert_eq!((no.limit, no.wait), (Limit::TokensPerMinute, None));
    }

    #[test]
    fn the_longest_wait_is_told() {
        let allowance = Allowance {
            tokens_per_minute: Some(10),
            tokens_per_day: Some(10),
            ..Allowance::default()
        };
        let mut book = book_for(&allowance);
        book.reserve(at(0), 10);
        let no = book
            .may_reserve(&allowance, at(0), 0, 1)
            .expect_err("used up");
        assert_eq!(no.limit, Limit::TokensPerDay);
    }

    proptest! {
        /// Whatever came before: who waits as long as was told, and meets nobody, is let in.
        #[test]
        fn a_wait_is_long_enough_and_not_too_long(
            events in prop::collection::vec((0..40_000_u64, 1..15_u64, 0..15_u64), 1..80),
            requests in 1..20_u32,
            minute in 15..60_u64,
            day in 15..400_u64,
        ) {
            let allowance = Allowance {
                requests_per_minute: Some(requests),
                tokens_per_minute: Some(minute),
                tokens_per_day: Some(day),
                ..Allowance::default()
            };
            let mut book = book_for(&allowance);
            let mut now = Duration::ZERO;
            for (after, tokens, unused) in events {
                now += Duration::from_millis(after);
                match book.may_enter(&allowance, now) {
                    Ok(()) => book.enter(now),
                    Err(no) => {
                        let wait = no.wait.expect("it comes back");
                        prop_assert_eq!(book.clone().may_enter(&allowance, now + wait), Ok(()));
                        let sooner = now + wait - Duration::from_nanos(1);
                        prop_assert!(book.clone().may_enter(&allowance, sooner).is_err());
                        continue;
                    }
                }
                match book.may_reserve(&allowance, now, 0, tokens) {
                    Ok(()) => {
                        let entry = book.reserve(now, tokens);
                        book.give_back(now, entry, unused.min(tokens));
                    }
                    Err(no) => {
                        let wait = no.wait.expect("it is less than the limits");
                        let may = book.clone().may_reserve(&allowance, now + wait, 0, tokens);
                        prop_assert_eq!(may, Ok(()));
                    }
                }
                book.leave();
            }
            prop_assert_eq!(book.running(), 0);
        }
    }

    #[test]
    fn each_is_held_to_its_own_limits_over_one_book() {
        let few = Allowance {
            requests_per_minute: Some(1),
            ..Allowance::default()
        };
        let more = Allowance {
            requests_per_minute: Some(2),
            tokens_per_day: Some(5),
            ..Allowance::default()
        };
        let mut book = book_for(&few);
        book.enter(at(0));
        book.keep_for(&more);
        assert_eq!(book.may_enter(&more, at(1)), Ok(()));
        assert!(book.may_enter(&few, at(1)).is_err());
        book.enter(at(1));
        assert!(book.may_enter(&more, at(2)).is_err());
        // A sum that nobody asks for at the time is kept all the same.
        book.keep_for(&Allowance::default());
        assert!(book.may_enter(&more, at(2)).is_err());
        assert_eq!(book.may_enter(&Allowance::default(), at(2)), Ok(()));
        book.leave();
        book.leave();
        assert_eq!(book.running(), 0);
        assert!(book.may_enter(&few, at(62)).is_ok());
    }

    #[test]
    fn a_limit_that_comes_back_counts_what_was_used_without_it() {
        let limit = Allowance {
            requests_per_minute: Some(2),
            ..Allowance::default()
        };
        let mut book = Book::default();
        book.keep_for(&limit);
        book.enter(at(0));
        let none = Allowance::default();
        book.keep_for(&none);
        assert_eq!(book.may_enter(&none, at(1)), Ok(()));
        book.enter(at(1));
        assert_eq!(book.may_enter(&none, at(1)), Ok(()), "nothing is limited");
        book.keep_for(&limit);
        assert!(book.may_enter(&limit, at(2)).is_err());
    }
}
