//! How many connections each client address has.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts connections by address. It holds no more addresses than there are connections.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    limit: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection of an address, as long as it lasts.
#[derive(Debug)]
pub(super) struct Address {
    of: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Addresses {
    /// At most `limit` connections for each.
    pub(super) fn new(limit: usize) -> Self {
        Addresses {
            limit,
            open: Arc::default(),
        }
    }

    /// One more of `address`, if it may.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Address> {
        let of = network(address);
        let mut open = lock(&self.open);
        let count = open.entry(of).or_default();
        if *count >= self.limit {
            if *count == 0 {
                open.remove(&of);
            }
            return None;
        }
        *count += 1;
        Some(Address {
            of,
            open: self.open.clone(),
        })
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.of);
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has one address of an IPv6 network of 64 bits has them all.
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
    fn each_network_has_its_own_count_and_nothing_stays() {
        let addresses = Addresses::new(2);
        let enter = |text: &str| addresses.enter(text.parse().expect("an address"));
        let (one, two) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(one.is_some() && two.is_some());
        assert!(enter("10.0.0.1").is_none());
        let held = [
            enter("10.0.0.2"),
            enter("2001:db8::1"),
            enter("2001:db8::2"),
        ];
        assert!(held.iter().all(Option::is_some));
        assert!(enter("2001:db8::3:4").is_none(), "the same /64");
        assert!(enter("2001:db8:0:1::").is_some());
        drop(one);
        assert!(enter("10.0.0.1").is_some());
        drop((two, held));
        assert!(lock(&addresses.open).is_empty());
    }
}
