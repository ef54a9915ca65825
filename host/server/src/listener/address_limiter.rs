//! Limits the connections of each client address.
//!
//! Addresses of this machine are limited too: any local user can connect.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An address is never refused for fewer connections than this, unless a limit is given.
const MIN_SHARE: usize = 8;
/// Connections that an address may hold for each one that stays free. So one address can use three quarters of all, and
/// each further one three quarters of what the others left.
const HELD_PER_FREE: usize = 3;

/// Counts open connections by address. Holds no more addresses than there are connections.
#[derive(Debug)]
pub(super) struct AddressLimiter {
    limit: Option<usize>,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Counts as one connection of its address until dropped.
#[derive(Debug)]
pub(super) struct AddressPermit {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl AddressLimiter {
    /// Limits each address to `limit` connections, by default to [`HELD_PER_FREE`] for each one that is free.
    pub(super) fn new(limit: Option<usize>) -> Self {
        AddressLimiter {
            limit,
            open: Arc::default(),
        }
    }

    /// Counts one more connection of `address`, or refuses it. `free` is the number of free connections, this one
    /// included.
    pub(super) fn acquire(&self, address: IpAddr, free: usize) -> Option<AddressPermit> {
        let address = network(address);
        let left = free.saturating_sub(1);
        let limit = self
            .limit
            .unwrap_or_else(|| MIN_SHARE.max(left.saturating_mul(HELD_PER_FREE)));
        let mut open = lock(&self.open);
        let count = open.entry(address).or_default();
        if *count >= limit {
            if *count == 0 {
                open.remove(&address);
            }
            return None;
        }
        *count += 1;
        Some(AddressPermit {
            address,
            open: self.open.clone(),
        })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The unit that is limited: an IPv4 address, or an IPv6 /64, which usually belongs to one client.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_count_separately_and_empty_ones_are_dropped() {
        let limiter = AddressLimiter::new(Some(2));
        let acquire = |text: &str| limiter.acquire(text.parse().expect("an address"), 100);
        let (one, two) = (acquire("10.0.0.1"), acquire("::ffff:10.0.0.1"));
        assert!(one.is_some() && two.is_some());
        assert!(acquire("10.0.0.1").is_none());
        let held = [
            acquire("10.0.0.2"),
            acquire("2001:db8::1"),
            acquire("2001:db8::2"),
        ];
        assert!(held.iter().all(Option::is_some));
        assert!(acquire("2001:db8::3:4").is_none(), "the same /64");
        assert!(acquire("2001:db8:0:1::").is_some());
        drop(one);
        assert!(acquire("10.0.0.1").is_some());
        drop((two, held));
        assert!(lock(&limiter.open).is_empty());
    }

    #[test]
    fn each_address_leaves_quarter_of_the_rest() {
        for (connections, held) in [
            (1024, &[768, 192, 48, 12, 4][..]),
            (24, &[18, 6]),
            (8, &[8]),
            (1, &[1]),
        ] {
            let limiter = AddressLimiter::new(None);
            let mut permits = Vec::new();
            for (number, held) in held.iter().enumerate() {
                let address = IpAddr::from([10, 0, 0, number as u8]);
                let before = permits.len();
                while permits.len() < connections
                    && let Some(permit) = limiter.acquire(address, connections - permits.len())
                {
                    permits.push(permit);
                }
                assert_eq!(permits.len() - before, *held, "of {connections}");
            }
        }
    }

    #[test]
    fn addresses_that_grow_together_leave_some_free() {
        let limiter = AddressLimiter::new(None);
        let addresses = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut permits = Vec::new();
        while let Some(permit) = limiter.acquire(
            addresses[permits.len() % addresses.len()],
            1024 - permits.len(),
        ) {
            permits.push(permit);
        }
        let free = 1024 - permits.len();
        assert_eq!(free, 103);
        let other = IpAddr::from([10, 0, 0, 4]);
        assert!(limiter.acquire(other, free).is_some());
    }
}
