//! Requests that run beside a hostile one and must not notice it.

use crate::Corral;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Sets a flag when dropped, also by a panic, so that threads waiting for it end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Requests of each client that are timed before the attack.
const QUIET_REQUESTS: usize = 100;

impl Corral {
    /// Runs `attack` while two clients ask 1+1 in a loop and check the answer. Returns the number of their requests.
    /// Prints their times without the attack and during it; no test checks these, since they depend on the machine.
    pub fn with_neighbors(&self, attack: impl FnOnce()) -> usize {
        let quiet = std::thread::scope(|scope| {
            let clients = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut left = QUIET_REQUESTS;
                    self.time_requests(|| {
                        left -= 1;
                        left > 0
                    })
                })
            });
            clients.map(|client| client.join().expect("a client of a quiet server"))
        });
        let done = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            let clients = [(); 2]
                .map(|()| scope.spawn(|| self.time_requests(|| !done.load(Ordering::Acquire))));
            {
                let _done = SetOnDrop(&done);
                attack();
            }
            clients.map(|client| client.join().expect("a client beside an attack"))
        });
        let (quiet, beside) = (Times::of(quiet), Times::of(beside));
        println!(
            "neighbors: quiet {quiet}; beside {beside}; p99 {:.1} times quiet",
            beside.p99.as_secs_f64() / quiet.p99.as_secs_f64()
        );
        beside.count
    }

    /// Asks 1+1 at least once, and while `goes_on`.
    fn time_requests(&self, mut goes_on: impl FnMut() -> bool) -> Vec<Duration> {
        let mut times = Vec::new();
        loop {
            let began = Instant::now();
            self.check_alive();
            times.push(began.elapsed());
            if !goes_on() {
                return times;
            }
        }
    }
}

struct Times {
    count: usize,
    median: Duration,
    p99: Duration,
}

impl Times {
    fn of(clients: [Vec<Duration>; 2]) -> Self {
        let mut times = clients.concat();
        times.sort();
        let last = times.len() - 1;
        Times {
            count: times.len(),
            median: times[last / 2],
            p99: times[last * 99 / 100],
        }
    }
}

impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Times { count, median, p99 } = self;
        write!(f, "{count} requests, median {median:.1?}, p99 {p99:.1?}")
    }
}
