//! Many hosts, on paper: how unevenly requests fall on them.
//!
//! Hosts share nothing, so one of many is the one that was simulated, with its part of all requests. How large
//! the largest part is, is drawn: each request goes to a host by chance, or to that of its tenant, as a hash
//! of the tenant's name would say.

use super::chance::{Random, Zipf, mix};

/// Requests that come to a host in the mean, and most that are drawn.
const EACH: u64 = 200;
const MOST: u64 = 10_000_000;

/// How much comes to hosts, as multiples of the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub most: f64,
    pub p99: f64,
    /// Which part of the hosts gets nothing.
    pub idle: f64,
}

/// What was drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fleet {
    pub hosts: u64,
    pub tenants: u64,
    pub requests: u64,
    /// By chance.
    pub random: Load,
    /// By tenant.
    pub hashed: Load,
}

impl Fleet {
    /// So many hosts, for each of which there are so many tenants.
    pub fn draw(seed: u64, hosts: u64, tenants_each: u64) -> Self {
        let hosts = hosts.max(1);
        let tenants = hosts.saturating_mul(tenants_each);
        let requests = hosts.saturating_mul(EACH).min(MOST);
        let zipf = Zipf::new(tenants);
        let mut random = Random::new(seed);
        let (mut by_chance, mut by_tenant) = (nothing(hosts), nothing(hosts));
        for _ in 0..requests {
            let tenant = zipf.draw(&mut random);
            add(&mut by_chance, random.below(hosts));
            add(&mut by_tenant, mix(tenant) % hosts);
        }
        Self {
            hosts,
            tenants,
            requests,
            random: load(by_chance),
            hashed: load(by_tenant),
        }
    }
}

fn nothing(hosts: u64) -> Vec<u32> {
    vec![0; usize::try_from(hosts).unwrap_or(usize::MAX)]
}

fn add(loads: &mut [u32], host: u64) {
    let host = usize::try_from(host).ok();
    if let Some(load) = host.and_then(|host| loads.get_mut(host)) {
        *load += 1;
    }
}

#[allow(clippy::cast_precision_loss)]
fn load(mut loads: Vec<u32>) -> Load {
    loads.sort_unstable();
    let hosts = loads.len();
    let sum: u64 = loads.iter().copied().map(u64::from).sum();
    let mean = sum as f64 / hosts.max(1) as f64;
    let times = |place: usize| {
        let load = loads.get(place).copied().unwrap_or(0);
        f64::from(load) / mean.max(f64::MIN_POSITIVE)
    };
    let idle = loads.iter().filter(|&&load| load == 0).count();
    Load {
        most: times(hosts.saturating_sub(1)),
        p99: times(hosts.saturating_sub(1) * 99 / 100),
        idle: idle as f64 / hosts.max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_multiples_of_the_mean() {
        let mut loads = vec![1; 98];
        loads.extend([0, 102]);
        let expected = Load {
            most: 51.0,
            p99: 0.5,
            idle: 0.01,
        };
        assert_eq!(load(loads), expected);
        assert_eq!(load(vec![0, 0]).most, 0.0);
    }

    #[test]
    fn chance_splits_evenly_and_tenants_do_not() {
        let fleet = Fleet::draw(1, 100, 50);
        assert_eq!(fleet, Fleet::draw(1, 100, 50));
        assert_eq!((fleet.tenants, fleet.requests), (5_000, 20_000));
        // Two hundred each, give or take four times the root.
        assert!(fleet.random.most < 1.35, "{fleet:?}");
        // The most popular tenant alone asks a seventh of all.
        assert!(fleet.hashed.most > 10.0, "{fleet:?}");
        assert_eq!(Fleet::draw(1, 1, 10).hashed.most, 1.0);
    }
}
