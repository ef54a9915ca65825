//! Limits the connections of each client address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts open connections by address. Holds no more addresses than there are connections.
#[derive(Clone, Debug)]
pub(super) struct AddressLimiter {
    limit: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Counts as one connection of its address until dropped.
#[derive(Debug)]
pub(super) struct AddressPermit {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl AddressLimiter {
    /// Allows `limit` connections per address.
    pub(super) fn new(limit: usize) -> Self {
        AddressLimiter {
            limit,
            open: Arc::default(),
        }
    }

    /// Counts one more connection of `address`, unless that exceeds the limit.
    pub(super) fn acquire(&self, address: IpAddr) -> Option<AddressPermit> {
        let address = network(address);
        let mut open = lock(&self.open);
        let count = open.entry(address).or_default();
        if *count >= self.limit {
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
        let limiter = AddressLimiter::new(2);
        let acquire = |text: &str| limiter.acquire(text.parse().expect("an address"));
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
}
