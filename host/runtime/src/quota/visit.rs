//! Quotas under a lock and a clock, and what a request and a generation hold of them.

use super::book::{Allowance, Book, Limit, No, TokenEntry};
use corral_engine::{Kind, Metric};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much one deployment, tenant or key may use, and what it has used.
///
/// [`Quota::held_to`] makes others with the same books: what is used of one is used of all, and each
/// holds those who come by it to its own allowance.
#[derive(Debug)]
pub struct Quota {
    /// Taken after the book's lock, or alone.
    allowance: Mutex<Allowance>,
    used: Arc<Used>,
}

/// Whose it is, and what was used.
#[derive(Debug)]
struct Used {
    kind: &'static str,
    name: String,
    since: Instant,
    book: Mutex<Book>,
    requests: AtomicU64,
    tokens: AtomicU64,
    refused: [AtomicU64; Limit::ALL.len()],
}

/// Why a request can't come in now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Refusal {
    /// Which limit was met.
    pub limit: Limit,
    /// Whose it is, such as `tenant alice`.
    pub whose: String,
    /// What it allows.
    pub allowed: u64,
    /// When to ask again; nothing where a limit is 0, so that nothing is ever allowed.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    fn text(&self) -> String {
        let Self { whose, allowed, .. } = self;
        let what = match self.limit {
            Limit::Concurrent => format!("{allowed} requests run at once"),
            Limit::RequestsPerMinute => format!("{allowed} requests a minute have come"),
            Limit::TokensPerRequest => format!("{allowed} tokens are in this request"),
            Limit::TokensPerMinute => format!("{allowed} tokens a minute are used up"),
            Limit::TokensPerDay => format!("{allowed} tokens a day are used up"),
        };
        match self.retry_after {
            Some(wait) => {
                let seconds = wait.as_secs_f64().ceil().max(1.0);
                format!("{what}, which is all that the {whose} may have; try again in {seconds} s")
            }
            None => format!("{what}, and the {whose} may never have more; ask the operator"),
        }
    }
}

/// Why tokens can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreserved {
    /// Later they can.
    Later(Refusal),
    /// More is asked for than is ever allowed; the text says what to ask for.
    Never(String),
}

impl Quota {
    /// A quota that nothing was used of. It is known as a `kind` with a `name`, such as `tenant` and
    /// `alice`, in messages and metrics.
    pub fn new(kind: &'static str, name: impl Into<String>, allowance: Allowance) -> Arc<Self> {
        let used = Used {
            kind,
            name: name.into(),
            since: Instant::now(),
            book: Mutex::default(),
            requests: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            refused: Default::default(),
        };
        Self::over(Arc::new(used), allowance)
    }

    /// The same quota for those who are allowed something else: one book, another allowance. Nobody
    /// else is allowed more or less by it.
    pub fn held_to(&self, allowance: Allowance) -> Arc<Self> {
        Self::over(Arc::clone(&self.used), allowance)
    }

    fn over(used: Arc<Used>, allowance: Allowance) -> Arc<Self> {
        used.book().keep_for(&allowance);
        Arc::new(Self {
            allowance: Mutex::new(allowance),
            used,
        })
    }

    /// Whether what is used of the one is used of the other.
    pub fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.used, &other.used)
    }

    /// What it allows.
    pub fn allowance(&self) -> Allowance {
        *self
            .allowance
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows something else from now on, also to those who came by it before. What was used stays
    /// used, as far as it was limited.
    pub fn allow(&self, allowance: Allowance) {
        self.used.book().keep_for(&allowance);
        *self
            .allowance
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = allowance;
    }

    /// What was used of it, and how often it said no, each with labels for whose it is.
    pub fn metrics(&self) -> Vec<Metric> {
        let used = &*self.used;
        let labels = || vec![("kind", used.kind.to_owned()), ("name", used.name.clone())];
        let metric = |name, help, kind, labels, value: u64| Metric {
            name,
            help,
            kind,
            labels,
            value: value as f64,
        };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut list = vec![
            metric(
                "corral_quota_requests_total",
                "Requests that a quota let in.",
                Kind::Counter,
                labels(),
                read(&used.requests),
            ),
            metric(
                "corral_quota_tokens_total",
                "Tokens that were used of a quota: appended to sequences, and generated.",
                Kind::Counter,
                labels(),
                read(&used.tokens),
            ),
            metric(
                "corral_quota_requests_running",
                "Requests of a quota that run.",
                Kind::Gauge,
                labels(),
                used.book().running().into(),
            ),
        ];
        for (limit, count) in self.refusals() {
            if count > 0 {
                let mut labels = labels();
                labels.push(("limit", limit.name().to_owned()));
                list.push(metric(
                    "corral_quota_refusals_total",
                    "Requests and generations that a quota refused, by limit.",
                    Kind::Counter,
                    labels,
                    count,
                ));
            }
        }
        list
    }

    /// How often each of its limits said no, to whoever was held to one.
    pub fn refusals(&self) -> impl Iterator<Item = (Limit, u64)> {
        let counts = Limit::ALL.into_iter().zip(&self.used.refused);
        counts.map(|(limit, count)| (limit, count.load(Ordering::Relaxed)))
    }
}

impl Used {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Every method leaves the books in order, wherever it might panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    fn refuse(&self, no: No) -> Refusal {
        let at = Limit::ALL.iter().position(|limit| *limit == no.limit);
        if let Some(count) = at.and_then(|at| self.refused.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Refusal {
            limit: no.limit,
            whose: format!("{} {}", self.kind, self.name),
            allowed: no.allowed,
            retry_after: no.wait,
        }
    }
}

/// A request that all its quotas have let in. It takes a place of each until the last clone of its
/// [`Arc`] is gone.
#[derive(Debug)]
pub struct Visit {
    quotas: Vec<Arc<Quota>>,
    /// Tokens that were reserved and not given back.
    reserved: AtomicU64,
}

impl Visit {
    /// Lets a request in, if all of `quotas` do. If not, none of them counts it, and the refusal that
    /// lasts longest is returned.
    pub fn begin(quotas: Vec<Arc<Quota>>) -> Result<Arc<Self>, Refusal> {
        // All at once and in one order, so that two requests never wait for one another.
        let mut quotas = quotas;
        quotas.sort_by_key(|quota| Arc::as_ptr(&quota.used).addr());
        quotas.dedup_by(|one, other| one.shares_with(other));
        let mut books: Vec<_> = quotas
            .iter()
            .map(|quota| (quota, quota.used.book()))
            .collect();
        let refused = books
            .iter_mut()
            .filter_map(|(quota, book)| {
                let may = book.may_enter(&quota.allowance(), quota.used.now());
                Some((*quota, may.err()?))
            })
            .max_by_key(|(_, no)| no.lasts());
        if let Some((quota, no)) = refused {
            return Err(quota.used.refuse(no));
        }
        for (quota, book) in &mut books {
            book.enter(quota.used.now());
            quota.used.requests.fetch_add(1, Ordering::Relaxed);
        }
        drop(books);
        Ok(Arc::new(Self {
            quotas,
            reserved: AtomicU64::new(0),
        }))
    }

    /// Tokens that could be reserved now, all quotas considered; nothing if none of them limits it.
    pub(crate) fn left(&self) -> Option<u64> {
        let so_far = self.reserved.load(Ordering::Relaxed);
        let quotas = self.quotas.iter();
        quotas
            .filter_map(|quota| {
                let now = quota.used.now();
                quota.used.book().left(&quota.allowance(), now, so_far)
            })
            .min()
    }

    /// Reserves tokens, if all quotas have them.
    pub(crate) fn reserve(self: &Arc<Self>, tokens: u64) -> Result<Reservation, Unreserved> {
        let mut books: Vec<_> = self
            .quotas
            .iter()
            .map(|quota| (quota, quota.used.book()))
            .collect();
        let so_far = self.reserved.load(Ordering::Relaxed);
        let refused = books
            .iter_mut()
            .filter_map(|(quota, book)| {
                let now = quota.used.now();
                let may = book.may_reserve(&quota.allowance(), now, so_far, tokens);
                Some((*quota, may.err()?))
            })
            .max_by_key(|(_, no)| no.lasts());
        if let Some((quota, no)) = refused {
            let refusal = quota.used.refuse(no);
            return Err(match no.wait {
                Some(_) => Unreserved::Later(refusal),
                None => Unreserved::Never(format!(
                    "{}: up to {tokens} tokens are asked for{}, and the {} may have {}; send a \
                     shorter prompt, or let fewer be generated",
                    no.limit.name(),
                    match so_far {
                        0 => String::new(),
                        _ if no.limit == Limit::TokensPerRequest => format!(" after {so_far}"),
                        _ => String::new(),
                    },
                    refusal.whose,
                    refusal.allowed,
                )),
            });
        }
        let entries = books
            .iter_mut()
            .map(|(quota, book)| book.reserve(quota.used.now(), tokens))
            .collect();
        drop(books);
        self.reserved.fetch_add(tokens, Ordering::Relaxed);
        Ok(Reservation {
            visit: Arc::clone(self),
            entries,
            tokens,
            used: 0,
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        for quota in &self.quotas {
            quota.used.book().leave();
        }
    }
}

/// Tokens that a generation may come to. What it did not use is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    visit: Arc<Visit>,
    /// One for each of the visit's quotas.
    entries: Vec<TokenEntry>,
    tokens: u64,
    used: u64,
}

impl Reservation {
    /// So many more of them were used.
    pub(crate) fn used(&mut self, tokens: u64) {
        self.used = self.used.saturating_add(tokens);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let unused = self.tokens.saturating_sub(self.used);
        for (quota, entry) in self.visit.quotas.iter().zip(&self.entries) {
            let used = &*quota.used;
            used.book().give_back(used.now(), *entry, unused);
            used.tokens.fetch_add(self.used, Ordering::Relaxed);
        }
        self.visit.reserved.fetch_sub(unused, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(name: &str, allowance: Allowance) -> Arc<Quota> {
        Quota::new("tenant", name, allowance)
    }

    #[test]
    fn places_come_free_with_the_last_clone() {
        let one = quota(
            "one",
            Allowance {
                concurrent: Some(1),
                ..Allowance::default()
            },
        );
        let visit = Visit::begin(vec![one.clone()]).expect("the first");
        let refusal = Visit::begin(vec![one.clone()]).expect_err("the second");
        assert_eq!(refusal.limit, Limit::Concurrent);
        assert_eq!(
            refusal.to_string(),
            "1 requests run at once, which is all that the tenant one may have; try again in 1 s"
        );
        let clone = visit.clone();
        drop(visit);
        assert!(Visit::begin(vec![one.clone()]).is_err());
        drop(clone);
        Visit::begin(vec![one]).expect("it is free");
    }

    #[test]
    fn one_refusal_leaves_the_other_quotas_as_they_were() {
        let wide = quota(
            "wide",
            Allowance {
                requests_per_minute: Some(2),
                ..Allowance::default()
            },
        );
        let shut = quota(
            "shut",
            Allowance {
                concurrent: Some(0),
                ..Allowance::default()
            },
        );
        for _ in 0..5 {
            let refusal = Visit::begin(vec![wide.clone(), shut.clone()]).expect_err("shut");
            assert_eq!(refusal.whose, "tenant shut");
            assert_eq!(refusal.retry_after, None);
            assert!(
                refusal.to_string().contains("ask the operator"),
                "{refusal}"
            );
        }
        Visit::begin(vec![wide.clone()]).expect("none was counted");
        // One that is named twice counts once.
        Visit::begin(vec![wide.clone(), wide.clone()]).expect("one is left");
        assert!(Visit::begin(vec![wide]).is_err());
    }

    #[test]
    fn one_book_serves_several_allowances() {
        let allowing = |requests| Allowance {
            requests_per_minute: Some(requests),
            ..Allowance::default()
        };
        let old = quota("one", allowing(2));
        let new = old.held_to(allowing(4));
        assert!(old.shares_with(&new) && !Arc::ptr_eq(&old, &new));
        let visits = [&old, &new].map(|quota| Visit::begin(vec![quota.clone()]));
        assert!(visits.iter().all(Result::is_ok));
        let refusal = Visit::begin(vec![old.clone()]).expect_err("two have come");
        assert_eq!(refusal.allowed, 2);
        // Named with its like, it waits for no lock twice, and counts once.
        Visit::begin(vec![new.clone(), new.held_to(Allowance::default())]).expect("the third");
        Visit::begin(vec![new.clone()]).expect("the fourth");
        assert_eq!(Visit::begin(vec![new]).expect_err("all four").allowed, 4);
        Visit::begin(vec![old.held_to(Allowance::default())]).expect("no limit");
        let counted = &old.metrics()[0];
        assert_eq!(
            (counted.name, counted.value),
            ("corral_quota_requests_total", 5.0)
        );
    }

    #[test]
    fn what_a_generation_does_not_need_is_given_back() {
        let limits = Allowance {
            tokens_per_request: Some(60),
            tokens_per_minute: Some(100),
            ..Allowance::default()
        };
        let (one, other) = (quota("one", limits), quota("other", Allowance::default()));
        let begin = || Visit::begin(vec![one.clone(), other.clone()]).expect("there is room");
        let (visit, late) = (begin(), begin());
        let mut first = visit.reserve(50).expect("50 of 100");
        let second = begin().reserve(50).expect("100 of 100");
        assert!(matches!(late.reserve(1), Err(Unreserved::Later(refusal))
            if refusal.limit == Limit::TokensPerMinute && refusal.retry_after.is_some()));
        let at_the_door = Visit::begin(vec![one.clone()]).expect_err("not a token is left");
        assert_eq!(at_the_door.limit, Limit::TokensPerMinute);
        first.used(20);
        drop((first, second));
        let text = match visit.reserve(41) {
            Err(Unreserved::Never(text)) => text,
            other => panic!("20 are used of 60: {other:?}"),
        };
        assert!(text.starts_with("tokens-per-request: up to 41 tokens are asked for after 20"));
        assert_eq!(visit.left(), Some(40), "of 60 and of 80");
        let mut third = visit.reserve(40).expect("60 of 60");
        third.used(40);
        drop((third, visit));
        let tokens = |quota: &Quota| {
            let metrics = quota.metrics();
            let found = metrics
                .iter()
                .find(|m| m.name == "corral_quota_tokens_total");
            found.expect("it is there").value
        };
        assert_eq!((tokens(&one), tokens(&other)), (60.0, 60.0));
        assert_eq!(begin().left(), Some(40), "of 100 a minute");
        assert_eq!(
            Visit::begin(vec![other.clone()]).expect("no limit").left(),
            None
        );
        assert!(begin().reserve(40).is_ok());
        assert!(begin().reserve(41).is_err());
    }

    #[test]
    fn many_threads_never_pass_a_limit_together() {
        let shared = quota(
            "shared",
            Allowance {
                requests_per_minute: Some(100),
                tokens_per_minute: Some(1000),
                ..Allowance::default()
            },
        );
        let own = quota("own", Allowance::default());
        let (entered, reserved) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for turn in 0..8 {
                let quotas = match turn % 2 {
                    0 => vec![shared.clone(), own.clone()],
                    _ => vec![own.clone(), shared.clone()],
                };
                let (entered, reserved) = (&entered, &reserved);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let Ok(visit) = Visit::begin(quotas.clone()) else {
                            continue;
                        };
                        entered.fetch_add(1, Ordering::Relaxed);
                        if let Ok(mut reservation) = visit.reserve(30) {
                            reservation.used(30);
                            reserved.fetch_add(30, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let (entered, reserved) = (entered.into_inner(), reserved.into_inner());
        assert!(entered <= 100, "{entered}");
        // 33 reservations of 30, and the door stays open while a token is left.
        assert_eq!(reserved, 990);
        assert_eq!(own.used.book().running(), 0);
    }
}
