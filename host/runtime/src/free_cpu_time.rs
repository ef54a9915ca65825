//! CPU time that guests may use without a [turn](crate::compute_turns).
//!
//! It belongs to a tenant, not to a call: many short calls get no more of it than one long call. What is used refills with
//! time, and the tenants that compute share the refill equally, so in the long run all of them together use at most half a
//! thread. Nothing refills for a tenant whose guests wait for turns or have them, unless it is the only tenant. Otherwise a
//! tenant that always computes would use its turn and its free time together, which can occupy every thread of a small
//! machine.
//!
//! A call that begins creates its tenant's free time; it is removed when it is full and the tenant has no calls.

use corral_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Free time of a tenant that used none for a while.
pub(crate) const FREE_TIME: Duration = Duration::from_millis(100);
/// Most that counts as used, so that long polls of many threads do not count for ever.
const MAX_USED: Duration = Duration::from_millis(200);
/// The tenants that share the refill get one part in this many of the time that passes as new free time.
const REFILL_DIVISOR: u32 = 2;
/// How often free time that is not needed is removed.
const REMOVAL_INTERVAL: Duration = Duration::from_millis(100);
/// Tenants above which even free time that is not full is removed if the tenant has no calls. A proxy may name a tenant for
/// each client.
const MAX_TENANTS: usize = 4096;

/// The free time of all tenants.
#[derive(Debug, Default)]
pub(crate) struct FreeTimes(Mutex<Tenants>);

#[derive(Debug, Default)]
struct Tenants {
    free: BTreeMap<Tenant, Arc<FreeTime>>,
    counts: Arc<TenantCounts>,
    next_removal: Option<Instant>,
}

#[derive(Debug, Default)]
struct TenantCounts {
    /// Tenants with free time.
    all: AtomicU32,
    /// Those of them that wait for turns or have them.
    paused: AtomicU32,
}

/// The free time of a tenant.
#[derive(Debug)]
pub(crate) struct FreeTime {
    used: Mutex<UsedTime>,
    tenants: Arc<TenantCounts>,
}

#[derive(Debug)]
struct UsedTime {
    used: Duration,
    /// When `used` was right.
    at: Instant,
    /// Guests of the tenant that wait for a turn or have one.
    in_turns: u32,
}

/// A guest of a tenant waits for a turn or has one. Until this is dropped, the tenant's free time does not refill, unless it
/// is the only tenant.
#[derive(Debug)]
pub(crate) struct RefillPause(Arc<FreeTime>);

impl FreeTimes {
    /// The free time of `tenant`, for a call that begins `now`.
    pub(crate) fn of(&self, tenant: Tenant, now: Instant) -> Arc<FreeTime> {
        let mut tenants = self.lock();
        tenants.remove_unneeded(now);
        if let Some(free) = tenants.free.get(&tenant) {
            return Arc::clone(free);
        }
        let free = Arc::new(FreeTime {
            used: Mutex::new(UsedTime {
                used: Duration::ZERO,
                at: now,
                in_turns: 0,
            }),
            tenants: Arc::clone(&tenants.counts),
        });
        tenants.free.insert(tenant, Arc::clone(&free));
        tenants.update_count();
        free
    }

    /// Pauses the refill of `free` from `now` on, for a guest that waits for a turn. No call may begin for long, so this,
    /// too, notices that the other tenants have none left.
    pub(crate) fn pause_refill(&self, free: &Arc<FreeTime>, now: Instant) -> RefillPause {
        self.lock().remove_unneeded(now);
        free.pause_refill(now)
    }

    fn lock(&self) -> MutexGuard<'_, Tenants> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenants {
    fn remove_unneeded(&mut self, now: Instant) {
        if self.next_removal.is_some_and(|next| now < next) {
            return;
        }
        self.next_removal = Some(now + REMOVAL_INTERVAL);
        let too_many = self.free.len() > MAX_TENANTS;
        self.free.retain(|_, free| {
            let has_calls = Arc::strong_count(free) > 1;
            has_calls || (!too_many && !free.is_full(now))
        });
        self.update_count();
    }

    fn update_count(&self) {
        let count = u32::try_from(self.free.len()).unwrap_or(u32::MAX);
        self.counts.all.store(count, Ordering::Relaxed);
    }
}

impl FreeTime {
    /// Whether nothing is left `now`. Reads the clock only if much was used.
    pub(crate) fn is_used_up(&self, now: impl FnOnce() -> Instant) -> bool {
        let mut used = self.lock();
        if used.used < FREE_TIME {
            return false;
        }
        self.refill(&mut used, now());
        used.used >= FREE_TIME
    }

    /// Whether other tenants have calls, or free time that is not full.
    pub(crate) fn has_other_tenants(&self) -> bool {
        self.tenants.all.load(Ordering::Relaxed) > 1
    }

    /// Uses up `time`, which ended `now`.
    pub(crate) fn use_up(&self, time: Duration, now: Instant) {
        let mut used = self.lock();
        self.refill(&mut used, now);
        used.used = used.used.saturating_add(time).min(MAX_USED);
    }

    /// See [`FreeTimes::pause_refill`].
    fn pause_refill(self: &Arc<Self>, now: Instant) -> RefillPause {
        let mut used = self.lock();
        self.refill(&mut used, now);
        used.in_turns += 1;
        if used.in_turns == 1 {
            self.tenants.paused.fetch_add(1, Ordering::Relaxed);
        }
        RefillPause(Arc::clone(self))
    }

    fn is_full(&self, now: Instant) -> bool {
        let mut used = self.lock();
        self.refill(&mut used, now);
        used.used.is_zero()
    }

    fn refill(&self, used: &mut UsedTime, now: Instant) {
        // Another thread may have looked at the clock later.
        let passed = now.saturating_duration_since(used.at);
        used.at += passed;
        let all = self.tenants.all.load(Ordering::Relaxed);
        if used.in_turns > 0 && all > 1 {
            return;
        }
        let paused = self.tenants.paused.load(Ordering::Relaxed);
        let sharing = all.saturating_sub(paused).max(1);
        let refill = passed / sharing.saturating_mul(REFILL_DIVISOR);
        used.used = used.used.saturating_sub(refill);
    }

    fn lock(&self) -> MutexGuard<'_, UsedTime> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RefillPause {
    fn drop(&mut self) {
        let free = &self.0;
        let mut used = free.lock();
        free.refill(&mut used, Instant::now());
        used.in_turns -= 1;
        if used.in_turns == 0 {
            free.tenants.paused.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const LIGHT: Tenant = Tenant(0);
    const BUSY: Tenant = Tenant(1);

    fn kept(times: &FreeTimes) -> usize {
        times.lock().free.len()
    }

    #[test]
    fn free_time_refills_at_half_of_time() {
        let (times, now) = (FreeTimes::default(), Instant::now());
        let free = times.of(BUSY, now);
        free.use_up(FREE_TIME - MILLISECOND, now);
        assert!(!free.is_used_up(|| now));
        free.use_up(MILLISECOND, now);
        assert!(free.is_used_up(|| now));
        assert!(!free.is_used_up(|| now + MILLISECOND));
        assert!(!free.is_full(now + FREE_TIME * 2 - MILLISECOND));
        assert!(free.is_full(now + FREE_TIME * 2));
    }

    #[test]
    fn used_time_is_bounded() {
        let (times, now) = (FreeTimes::default(), Instant::now());
        let free = times.of(BUSY, now);
        free.use_up(Duration::MAX / 2, now);
        free.use_up(Duration::MAX / 2, now);
        assert!(free.is_used_up(|| now + (MAX_USED - FREE_TIME) * 2));
        assert!(free.is_full(now + MAX_USED * 2));
    }

    #[test]
    fn clock_of_another_thread_may_lag() {
        let (times, now) = (FreeTimes::default(), Instant::now());
        let free = times.of(BUSY, now);
        free.use_up(FREE_TIME, now + MILLISECOND);
        free.use_up(Duration::ZERO, now);
        assert!(free.is_used_up(|| now + MILLISECOND));
    }

    #[test]
    fn short_calls_of_tenant_leave_others_free_time() {
        let (times, begin) = (FreeTimes::default(), Instant::now());
        let mut now = begin;
        let mut without_turn = Duration::ZERO;
        // A second, of which each call takes a millisecond.
        for number in 0..1000 {
            let busy = times.of(BUSY, now);
            now += MILLISECOND;
            if !busy.is_used_up(|| now) {
                busy.use_up(MILLISECOND, now);
                without_turn += MILLISECOND;
            }
            if number % 100 == 0 {
                let light = times.of(LIGHT, now);
                assert!(!light.is_used_up(|| now), "{number}");
                light.use_up(MILLISECOND, now);
            }
        }
        assert!(without_turn <= FREE_TIME + (now - begin) / REFILL_DIVISOR);
        assert!(without_turn >= (now - begin) / REFILL_DIVISOR / 2);
    }

    #[test]
    fn computing_tenants_share_the_refill() {
        let (times, begin) = (FreeTimes::default(), Instant::now());
        let tenants: Vec<_> = (0..10).map(|id| times.of(Tenant(id), begin)).collect();
        let mut without_turn = Duration::ZERO;
        for passed in 0..1000 {
            let now = begin + MILLISECOND * passed;
            for free in &tenants {
                if !free.is_used_up(|| now) {
                    free.use_up(MILLISECOND, now);
                    without_turn += MILLISECOND;
                }
            }
        }
        let refilled = MILLISECOND * 1000 / REFILL_DIVISOR;
        assert!(without_turn <= (FREE_TIME + MILLISECOND) * 10 + refilled);
    }

    #[test]
    fn tenant_in_turns_gets_no_refill() {
        // Later than the clock that a dropped pause reads.
        let (times, mut now) = (FreeTimes::default(), Instant::now() + FREE_TIME * 100);
        let (busy, light) = (times.of(BUSY, now), times.of(LIGHT, now));
        busy.use_up(FREE_TIME, now);
        light.use_up(FREE_TIME, now);
        let waits = busy.pause_refill(now);
        let has_turn = busy.pause_refill(now);
        now += FREE_TIME * REFILL_DIVISOR;
        // The other tenant gets the whole refill.
        assert!(light.is_full(now));
        for pause in [waits, has_turn] {
            assert!(busy.is_used_up(|| now));
            drop(pause);
        }
        assert!(busy.is_used_up(|| now));
        now += MILLISECOND;
        assert!(!busy.is_used_up(|| now));
        assert!(!busy.is_full(now + FREE_TIME * REFILL_DIVISOR));
        assert!(busy.is_full(now + FREE_TIME * REFILL_DIVISOR * 2));
    }

    #[test]
    fn only_tenant_gets_refill_during_turns() {
        let (times, now) = (FreeTimes::default(), Instant::now());
        let free = times.of(BUSY, now);
        free.use_up(FREE_TIME, now);
        let _turn = free.pause_refill(now);
        assert!(free.is_full(now + FREE_TIME * REFILL_DIVISOR));
    }

    #[test]
    fn tenant_left_alone_gets_refill_during_turns() {
        let (times, mut now) = (FreeTimes::default(), Instant::now() + FREE_TIME * 100);
        let busy = times.of(BUSY, now);
        drop(times.of(LIGHT, now));
        busy.use_up(FREE_TIME, now);
        let _turn = times.pause_refill(&busy, now);
        now += REMOVAL_INTERVAL;
        assert!(busy.is_used_up(|| now));
        // The next turn of the same call.
        let _next = times.pause_refill(&busy, now);
        assert!(busy.is_full(now + FREE_TIME * REFILL_DIVISOR));
    }

    #[test]
    fn full_free_time_without_calls_is_removed() {
        let (times, mut now) = (FreeTimes::default(), Instant::now());
        let held = times.of(LIGHT, now);
        times.of(BUSY, now).use_up(FREE_TIME, now);
        now += FREE_TIME;
        times.of(LIGHT, now);
        assert_eq!(kept(&times), 2);
        now += MAX_USED * REFILL_DIVISOR * 2;
        times.of(LIGHT, now);
        assert_eq!(kept(&times), 1);
        drop(held);
        times.of(BUSY, now + REMOVAL_INTERVAL);
        assert_eq!(kept(&times), 1);
    }

    #[test]
    fn tenants_without_calls_are_bounded() {
        let (times, now) = (FreeTimes::default(), Instant::now());
        for id in 0..=u32::try_from(MAX_TENANTS).unwrap() {
            times.of(Tenant(id), now).use_up(FREE_TIME, now);
        }
        times.of(Tenant(0), now + REMOVAL_INTERVAL);
        assert_eq!(kept(&times), 1);
    }
}
