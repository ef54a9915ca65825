//! Limits the connections of each client address.
//!
//! Addresses of this machine are limited too: any local user can connect. A proxy in front needs a higher limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two refusals that are worth a line in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Counts open connections by address. Holds no more addresses than there are connections.
#[derive(Debug)]
pub(super) struct AddressLimiter {
    limit: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    /// The last refusal that was news.
    last_news: Mutex<Option<Instant>>,
}

/// The address has as many connections as it may.
#[derive(Debug)]
pub(super) struct AddressFull {
    /// Whether the refusal is worth a line in the log.
    pub(super) is_news: bool,
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
            last_news: Mutex::default(),
        }
    }

    /// Counts one more connection of `address`, unless that exceeds the limit.
    pub(super) fn acquire(&self, address: IpAddr) -> Result<AddressPermit, AddressFull> {
        let address = network(address);
        let mut open = lock(&self.open);
        let count = open.entry(address).or_default();
        if *count >= self.limit {
            if *count == 0 {
                open.remove(&address);
            }
            let mut last = lock(&self.last_news);
            let is_news = last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
            if is_news {
                *last = Some(Instant::now());
            }
            return Err(AddressFull { is_news });
        }
        *count += 1;
        Ok(AddressPermit {
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
        assert!(one.is_ok() && two.is_ok());
        let refused = ["10.0.0.1"; 2].map(|address| acquire(address).expect_err("full").is_news);
        assert_eq!(refused, [true, false], "one line in the log");
        let held = [
            acquire("10.0.0.2"),
            acquire("2001:db8::1"),
            acquire("2001:db8::2"),
        ];
        assert!(held.iter().all(Result::is_ok));
        assert!(acquire("2001:db8::3:4").is_err(), "the same /64");
        assert!(acquire("2001:db8:0:1::").is_ok());
        drop(one);
        assert!(acquire("10.0.0.1").is_ok());
        drop((two, held));
        assert!(lock(&limiter.open).is_empty());
    }
}
