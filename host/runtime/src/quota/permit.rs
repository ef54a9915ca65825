//! What requests and generations hold of quotas: a place among the running requests, and reserved tokens.
//!
//! *Invariant*: a request counts in all of its quotas or in none, and a drop returns what was not used. The limits and their
//! windows are in `usage.rs`.

use super::limits::QuotaLimit;
use super::usage::{QuotaUsage, TokenSlots};
use super::{Quota, QuotaExceeded};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

/// Why tokens cannot be reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReserveError {
    /// A retry can succeed.
    Temporary(QuotaExceeded),
    /// The request exceeds a limit alone. The text says what to ask for instead.
    Permanent(String),
}

/// Permission of all quotas for one request. It counts as running until the last clone of its [`Arc`] is
/// dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    quotas: Vec<Arc<Quota>>,
    /// The permits that this one joins, which count the request. This one counts it if there are none.
    joined: Vec<Arc<QuotaPermit>>,
    /// Tokens that are reserved or used, also by permits that join this one.
    reserved: AtomicU64,
}

impl QuotaPermit {
    /// Counts a request in all of `quotas`, or in none of them.
    ///
    /// # Errors
    /// The refusal with the longest wait.
    pub fn acquire(quotas: Vec<Arc<Quota>>) -> Result<Arc<Self>, QuotaExceeded> {
        // Lock all usages in one order, so that two requests cannot deadlock.
        let mut quotas = quotas;
        quotas.sort_by_key(|quota| Arc::as_ptr(&quota.shared).addr());
        quotas.dedup_by(|one, other| one.shares_usage_with(other));
        let mut usages = lock_all(&quotas);
        let exceeded = usages
            .iter_mut()
            .filter_map(|(quota, usage)| {
                let checked = usage.check_request(&quota.limits(), quota.shared.now());
                Some((*quota, checked.err()?))
            })
            .max_by_key(|(_, exceeded)| exceeded.wait_order());
        if let Some((quota, exceeded)) = exceeded {
            return Err(quota.shared.refuse(exceeded));
        }
        for (quota, usage) in &mut usages {
            usage.begin_request(quota.shared.now());
            quota.shared.requests.fetch_add(1, Ordering::Relaxed);
        }
        drop(usages);
        Ok(Arc::new(Self {
            quotas,
            joined: Vec::new(),
            reserved: AtomicU64::new(0),
        }))
    }

    /// The permit of a request within another one, which holds `outer`: counts a request in `quota`, and tokens in the
    /// quotas of both. `None` without any.
    ///
    /// # Errors
    /// If `quota` refuses the request.
    pub fn acquire_within(
        outer: Option<Arc<Self>>,
        quota: Option<Arc<Quota>>,
    ) -> Result<Option<Arc<Self>>, QuotaExceeded> {
        let Some(quota) = quota else {
            return Ok(outer);
        };
        let own = Self::acquire(vec![quota])?;
        let Some(outer) = outer else {
            return Ok(Some(own));
        };
        let mut quotas = [&outer.quotas[..], &own.quotas].concat();
        quotas.sort_by_key(|quota| Arc::as_ptr(&quota.shared).addr());
        quotas.dedup_by(|one, other| one.shares_usage_with(other));
        Ok(Some(Arc::new(Self {
            quotas,
            joined: vec![outer, own],
            reserved: AtomicU64::new(0),
        })))
    }

    /// Tokens that the request of this quota holds.
    fn reserved(&self, quota: &Quota) -> u64 {
        let mut joined = self.joined.iter();
        let counting = joined.find(|permit| {
            let mut quotas = permit.quotas.iter();
            quotas.any(|other| other.shares_usage_with(quota))
        });
        match counting {
            Some(permit) => permit.reserved(quota),
            None => self.reserved.load(Ordering::Relaxed),
        }
    }

    /// Changes the tokens that the request holds, and those that it is within.
    fn change_reserved(&self, change: &impl Fn(&AtomicU64)) {
        change(&self.reserved);
        for permit in &self.joined {
            permit.change_reserved(change);
        }
    }

    /// Tokens that could be reserved now. None if no quota limits them.
    pub(crate) fn tokens_left(&self) -> Option<u64> {
        self.quotas
            .iter()
            .filter_map(|quota| {
                let reserved = self.reserved(quota);
                let now = quota.shared.now();
                let mut usage = quota.shared.usage();
                usage.tokens_left(&quota.limits(), now, reserved)
            })
            .min()
    }

    /// Reserves tokens in all quotas, or in none.
    pub(crate) fn reserve(self: &Arc<Self>, tokens: u64) -> Result<TokenReservation, ReserveError> {
        let mut usages = lock_all(&self.quotas);
        let exceeded = usages
            .iter_mut()
            .filter_map(|(quota, usage)| {
                let reserved = self.reserved(quota);
                let now = quota.shared.now();
                let checked = usage.check_tokens(&quota.limits(), now, reserved, tokens);
                Some((*quota, checked.err()?))
            })
            .max_by_key(|(_, exceeded)| exceeded.wait_order());
        if let Some((quota, exceeded)) = exceeded {
            let refusal = quota.shared.refuse(exceeded);
            return Err(match exceeded.wait {
                Some(_) => ReserveError::Temporary(refusal),
                None => {
                    let reserved = self.reserved(quota);
                    let after = match exceeded.limit {
                        QuotaLimit::TokensPerRequest if reserved > 0 => {
                            format!(" after {reserved}")
                        }
                        _ => String::new(),
                    };
                    ReserveError::Permanent(format!(
                        "{}: this needs up to {tokens} tokens{after}, but the {} may use {}; send a \
                         shorter prompt, or generate fewer tokens",
                        exceeded.limit.name(),
                        refusal.owner,
                        refusal.allowed,
                    ))
                }
            });
        }
        let slots = usages
            .iter_mut()
            .map(|(quota, usage)| usage.reserve(quota.shared.now(), tokens))
            .collect();
        drop(usages);
        self.change_reserved(&|reserved| {
            reserved.fetch_add(tokens, Ordering::Relaxed);
        });
        Ok(TokenReservation {
            permit: Arc::clone(self),
            slots,
            tokens,
            used: 0,
        })
    }
}

fn lock_all(quotas: &[Arc<Quota>]) -> Vec<(&Arc<Quota>, MutexGuard<'_, QuotaUsage>)> {
    quotas
        .iter()
        .map(|quota| (quota, quota.shared.usage()))
        .collect()
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        if !self.joined.is_empty() {
            return;
        }
        for quota in &self.quotas {
            quota.shared.usage().end_request();
        }
    }
}

/// Tokens that a generation may use. Dropping it returns the unused ones.
#[derive(Debug)]
pub(crate) struct TokenReservation {
    permit: Arc<QuotaPermit>,
    /// One for each of the permit's quotas.
    slots: Vec<TokenSlots>,
    tokens: u64,
    used: u64,
}

impl TokenReservation {
    /// Marks tokens as used.
    pub(crate) fn mark_used(&mut self, tokens: u64) {
        self.used = self.used.saturating_add(tokens);
    }
}

impl Drop for TokenReservation {
    fn drop(&mut self) {
        let unused = self.tokens.saturating_sub(self.used);
        for (quota, slots) in self.permit.quotas.iter().zip(&self.slots) {
            let shared = &*quota.shared;
            shared.usage().release(shared.now(), *slots, unused);
            shared.tokens.fetch_add(self.used, Ordering::Relaxed);
        }
        self.permit.change_reserved(&|reserved| {
            reserved.fetch_sub(unused, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::QuotaLimits;
    use super::*;

    fn quota(name: &str, limits: QuotaLimits) -> Arc<Quota> {
        Quota::new("tenant", name, limits)
    }

    fn concurrent(requests: u32) -> QuotaLimits {
        QuotaLimits {
            concurrent: Some(requests),
            ..QuotaLimits::default()
        }
    }

    fn per_minute(requests: u32) -> QuotaLimits {
        QuotaLimits {
            requests_per_minute: Some(requests),
            ..QuotaLimits::default()
        }
    }

    fn acquire(quotas: &[&Arc<Quota>]) -> Result<Arc<QuotaPermit>, QuotaExceeded> {
        QuotaPermit::acquire(quotas.iter().map(|quota| Arc::clone(quota)).collect())
    }

    #[test]
    fn last_clone_releases_the_permit() {
        let one = quota("one", concurrent(1));
        let permit = acquire(&[&one]).unwrap();
        let refusal = acquire(&[&one]).unwrap_err();
        assert_eq!(refusal.limit, QuotaLimit::Concurrent);
        assert_eq!(
            refusal.to_string(),
            "the tenant one has reached its limit of 1 concurrent requests; try again in 1 s"
        );
        let clone = permit.clone();
        drop(permit);
        assert!(acquire(&[&one]).is_err());
        drop(clone);
        acquire(&[&one]).unwrap();
    }

    #[test]
    fn refused_request_counts_in_no_quota() {
        let open = quota("open", per_minute(2));
        let closed = quota("closed", concurrent(0));
        for _ in 0..5 {
            let refusal = acquire(&[&open, &closed]).unwrap_err();
            assert_eq!(refusal.owner, "tenant closed");
            assert_eq!(refusal.retry_after, None);
            let text = refusal.to_string();
            assert!(text.contains("ask the operator"), "{text}");
        }
        acquire(&[&open]).unwrap();
        // A quota that is named twice counts once.
        acquire(&[&open, &open]).unwrap();
        assert!(acquire(&[&open]).is_err());
    }

    #[test]
    fn request_within_another_shares_tokens_only() {
        let tokens = |count| QuotaLimits {
            requests_per_minute: Some(1),
            tokens_per_minute: Some(count),
            ..QuotaLimits::default()
        };
        let (tenant, inner) = (quota("alice", tokens(100)), quota("inner", tokens(60)));
        let outer = acquire(&[&tenant]).unwrap();
        let within = |quota| QuotaPermit::acquire_within(Some(Arc::clone(&outer)), quota);
        assert!(Arc::ptr_eq(&within(None).unwrap().unwrap(), &outer));
        let joined = within(Some(Arc::clone(&inner))).unwrap().unwrap();
        assert_eq!(joined.tokens_left(), Some(60));
        let mut used = joined.reserve(50).unwrap();
        used.mark_used(50);
        assert!(joined.reserve(20).is_err());
        assert_eq!(outer.tokens_left(), Some(50));
        // The tenant made one request, and so did the inner deployment.
        assert!(acquire(&[&tenant]).is_err());
        let refused = within(Some(Arc::clone(&inner))).unwrap_err();
        assert_eq!(refused.limit, QuotaLimit::RequestsPerMinute);
        drop((used, joined));
        assert_eq!(inner.shared.usage().running(), 0);
        assert_eq!(tenant.shared.usage().running(), 1);
    }

    /// Each limit counts the tokens of its own request: the outer one's with those of all requests within it.
    #[test]
    fn requests_within_another_count_for_its_token_limit() {
        let per_request = |tokens| QuotaLimits {
            tokens_per_request: Some(tokens),
            ..QuotaLimits::default()
        };
        let (tenant, inner) = (
            quota("alice", per_request(100)),
            quota("inner", per_request(60)),
        );
        let outer = acquire(&[&tenant]).unwrap();
        let mut held = vec![outer.reserve(10).unwrap()];
        for tokens in [60, 30] {
            let within =
                QuotaPermit::acquire_within(Some(Arc::clone(&outer)), Some(Arc::clone(&inner)));
            let within = within.unwrap().unwrap();
            assert_eq!(within.tokens_left(), Some(tokens));
            held.push(within.reserve(tokens).unwrap());
            assert!(within.reserve(1).is_err());
        }
        assert_eq!(outer.tokens_left(), Some(0));
        drop(held);
        assert_eq!(outer.tokens_left(), Some(100));
    }

    #[test]
    fn quotas_with_different_limits_share_usage() {
        let old = quota("one", per_minute(2));
        let new = old.with_limits(per_minute(4));
        assert!(old.shares_usage_with(&new) && !Arc::ptr_eq(&old, &new));
        acquire(&[&old]).unwrap();
        acquire(&[&new]).unwrap();
        assert_eq!(acquire(&[&old]).unwrap_err().allowed, 2);
        // Shared usage is locked and counted once.
        acquire(&[&new, &new.with_limits(QuotaLimits::default())]).unwrap();
        acquire(&[&new]).unwrap();
        assert_eq!(acquire(&[&new]).unwrap_err().allowed, 4);
        acquire(&[&old.with_limits(QuotaLimits::default())]).unwrap();
        let counted = &old.metrics()[0];
        assert_eq!(
            (counted.name, counted.value),
            ("corral_quota_requests_total", 5.0)
        );
    }

    #[test]
    fn unused_reservation_is_returned() {
        let limits = QuotaLimits {
            tokens_per_request: Some(60),
            tokens_per_minute: Some(100),
            ..QuotaLimits::default()
        };
        let (one, other) = (quota("one", limits), quota("other", QuotaLimits::default()));
        let begin = || acquire(&[&one, &other]).unwrap();
        let (permit, late) = (begin(), begin());
        let mut first = permit.reserve(50).unwrap();
        let second = begin().reserve(50).unwrap();
        assert!(
            matches!(late.reserve(1), Err(ReserveError::Temporary(refusal))
            if refusal.limit == QuotaLimit::TokensPerMinute && refusal.retry_after.is_some())
        );
        let refusal = acquire(&[&one]).unwrap_err();
        assert_eq!(refusal.limit, QuotaLimit::TokensPerMinute);
        first.mark_used(20);
        drop((first, second));
        let text = match permit.reserve(41) {
            Err(ReserveError::Permanent(text)) => text,
            other => panic!("20 of 60 are used: {other:?}"),
        };
        let expected = "tokens-per-request: this needs up to 41 tokens after 20, but the tenant one may use 60";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(permit.tokens_left(), Some(40), "of 60 and of 80");
        let mut third = permit.reserve(40).unwrap();
        third.mark_used(40);
        drop((third, permit));
        let tokens = |quota: &Quota| {
            let metrics = quota.metrics();
            let tokens = metrics
                .iter()
                .find(|metric| metric.name == "corral_quota_tokens_total");
            tokens.unwrap().value
        };
        assert_eq!((tokens(&one), tokens(&other)), (60.0, 60.0));
        assert_eq!(begin().tokens_left(), Some(40), "of 100 a minute");
        assert_eq!(acquire(&[&other]).unwrap().tokens_left(), None);
        assert!(begin().reserve(40).is_ok());
        assert!(begin().reserve(41).is_err());
    }

    #[test]
    fn threads_together_stay_within_limits() {
        let shared = quota(
            "shared",
            QuotaLimits {
                tokens_per_minute: Some(1000),
                ..per_minute(100)
            },
        );
        let own = quota("own", QuotaLimits::default());
        let (admitted, reserved) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..8 {
                let quotas = match number % 2 {
                    0 => [&shared, &own],
                    _ => [&own, &shared],
                };
                let (admitted, reserved) = (&admitted, &reserved);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let Ok(permit) = acquire(&quotas) else {
                            continue;
                        };
                        admitted.fetch_add(1, Ordering::Relaxed);
                        if let Ok(mut reservation) = permit.reserve(30) {
                            reservation.mark_used(30);
                            reserved.fetch_add(30, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let (admitted, reserved) = (admitted.into_inner(), reserved.into_inner());
        assert!(admitted <= 100, "{admitted}");
        // 33 reservations of 30 tokens. Requests are admitted while a token is left.
        assert_eq!(reserved, 990);
        assert_eq!(own.shared.usage().running(), 0);
    }
}
