//! Which hosts of the cluster are alive, by the order of their heartbeats in the stream.
//!
//! A host follows only its own heartbeats. It reads the last heartbeat of another host when it must know about that host, so
//! the number of messages grows with the number of hosts, not with its square. A heartbeat of this host that arrived
//! [`HOST_LIFETIME`] ago, without a gap since, is *settled*. A host whose last heartbeat is older than a settled one is lost:
//! it has sent none for that long. Clocks are not compared. A job whose record is newer than the settled heartbeat is not
//! taken over, since the record shows that its host was alive.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// How often a host sends a heartbeat.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// After so long without a heartbeat of a host, its jobs are taken over. A host may take 25 s to send the next one if a
/// machine of NATS loses power: it must find another server, and the servers elect a leader of the stream.
const HOST_LIFETIME: Duration = Duration::from_secs(30);
/// Hosts that are checked at once.
const MAX_CHECKED: usize = 4;

/// The heartbeats of this host, and the other hosts that are lost by them.
pub(super) struct HostHeartbeats {
    /// Sequences of this host's heartbeats since the last gap, and when they arrived. Of the settled ones only the newest is
    /// needed.
    own: VecDeque<(u64, Instant)>,
    /// Hosts that the last check found lost, with the sequence of the settled heartbeat.
    lost: HashMap<String, u64>,
    /// The last host that was checked.
    checked: String,
}

impl HostHeartbeats {
    /// `own` is the id of this host. The first host that it checks is the next one, so that hosts check different ones.
    pub(super) fn new(own: &str) -> Self {
        HostHeartbeats {
            own: VecDeque::new(),
            lost: HashMap::new(),
            checked: own.to_owned(),
        }
    }

    /// A heartbeat of this host has arrived.
    pub(super) fn arrive(&mut self, sequence: u64, now: Instant) {
        if self.has_gap(now) {
            // Heartbeats of the other hosts may be on their way.
            self.own.clear();
            self.lost.clear();
        }
        self.own.push_back((sequence, now));
        while self
            .own
            .get(1)
            .is_some_and(|heartbeat| is_settled(heartbeat, now))
        {
            self.own.pop_front();
        }
    }

    /// Whether not even the heartbeats of this host arrive.
    fn has_gap(&self, now: Instant) -> bool {
        let last = self.own.back();
        last.is_none_or(|(_, at)| now.duration_since(*at) > 2 * HEARTBEAT_INTERVAL)
    }

    /// The sequence of the newest settled heartbeat.
    pub(super) fn settled(&self, now: Instant) -> Option<u64> {
        let settled = self
            .own
            .iter()
            .rfind(|heartbeat| is_settled(heartbeat, now));
        settled
            .filter(|_| !self.has_gap(now))
            .map(|(sequence, _)| *sequence)
    }

    /// The next hosts to check, in turn.
    pub(super) fn next_checked(&mut self, hosts: &BTreeSet<String>) -> Vec<String> {
        let after: (Bound<&str>, Bound<&str>) = (Bound::Excluded(&self.checked), Bound::Unbounded);
        let next = hosts.range::<str, _>(after).chain(hosts);
        let next = Vec::from_iter(next.take(MAX_CHECKED.min(hosts.len())).cloned());
        if let Some(last) = next.last() {
            self.checked.clone_from(last);
        }
        next
    }

    /// Replaces the hosts that are lost, each with the sequence of the settled heartbeat before which it sent its last one.
    pub(super) fn set_lost(&mut self, lost: HashMap<String, u64>) {
        self.lost = lost;
    }

    /// Whether the host of a running job is lost. `version` is that of the job's record.
    pub(super) fn has_lost(&self, host: &str, version: u64, now: Instant) -> bool {
        let settled = self.lost.get(host);
        !self.has_gap(now) && settled.is_some_and(|settled| version < *settled)
    }
}

fn is_settled((_, at): &(u64, Instant), now: Instant) -> bool {
    now.duration_since(*at) >= HOST_LIFETIME
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn heartbeat_is_settled_after_lifetime_without_gap() {
        let (mut heartbeats, start) = (HostHeartbeats::new("own"), Instant::now());
        for number in 0..=7 {
            let now = start + number * HEARTBEAT_INTERVAL;
            // The newest that arrived 30 s ago.
            let settled = number.checked_sub(6).map(u64::from);
            assert_eq!(heartbeats.settled(now), settled, "{number}");
            heartbeats.arrive(u64::from(number), now);
        }
        assert!(heartbeats.own.len() <= 7, "older ones are forgotten");
        // This host stood still, or NATS stored nothing.
        let late = start + 60 * SECOND;
        assert_eq!(heartbeats.settled(late), None);
        heartbeats.arrive(8, late);
        assert_eq!(
            heartbeats.settled(late),
            None,
            "other heartbeats may be on their way"
        );
        for number in 1..=6 {
            heartbeats.arrive(8 + u64::from(number), late + number * HEARTBEAT_INTERVAL);
        }
        assert_eq!(heartbeats.settled(late + 6 * HEARTBEAT_INTERVAL), Some(8));
    }

    #[test]
    fn host_is_lost_while_own_heartbeats_arrive() {
        let (mut heartbeats, start) = (HostHeartbeats::new("own"), Instant::now());
        heartbeats.arrive(10, start);
        heartbeats.set_lost(HashMap::from([("other".to_owned(), 10)]));
        assert!(heartbeats.has_lost("other", 9, start));
        assert!(
            !heartbeats.has_lost("other", 11, start),
            "it claimed a job later"
        );
        assert!(!heartbeats.has_lost("third", 9, start));
        let gap = start + 11 * SECOND;
        assert!(!heartbeats.has_lost("other", 9, gap));
        heartbeats.arrive(12, gap);
        assert!(!heartbeats.has_lost("other", 9, gap), "it is checked again");
    }

    #[test]
    fn all_hosts_are_checked_in_turn() {
        let hosts = BTreeSet::from_iter(["a", "c", "d", "e", "f", "g"].map(str::to_owned));
        let mut heartbeats = HostHeartbeats::new("b");
        assert_eq!(heartbeats.next_checked(&hosts), ["c", "d", "e", "f"]);
        assert_eq!(heartbeats.next_checked(&hosts), ["g", "a", "c", "d"]);
        let two = BTreeSet::from(["a", "c"].map(str::to_owned));
        assert_eq!(heartbeats.next_checked(&two), ["a", "c"]);
        assert!(heartbeats.next_checked(&BTreeSet::new()).is_empty());
    }
}
