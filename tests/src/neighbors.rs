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
    /// Prints their times.
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
        let (quiet, beside) = (Times::of(quiet.concat()), Times::of(beside.concat()));
        beside.print(&quiet);
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

/// Times of a neighbor's requests.
pub struct Times {
    count: usize,
    median: Duration,
    p99: Duration,
}

impl Times {
    /// Times `ask` for each item.
    pub fn of_each<T>(items: &[T], mut ask: impl FnMut(&T)) -> Self {
        let time = |item| {
            let began = Instant::now();
            ask(item);
            began.elapsed()
        };
        Self::of(items.iter().map(time).collect())
    }

    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let last = times.len() - 1;
        Times {
            count: times.len(),
            median: times[last / 2],
            p99: times[last * 99 / 100],
        }
    }

    /// Prints these times, of requests beside an attack, and those without it. No test checks them, since they depend on
    /// the machine.
    pub fn print(&self, quiet: &Times) {
        println!(
            "neighbors: quiet {quiet}; beside {self}; p99 {:.1} times quiet",
            self.p99.as_secs_f64() / quiet.p99.as_secs_f64()
        );
    }
}

impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Times { count, median, p99 } = self;
        write!(f, "{count} requests, median {median:.1?}, p99 {p99:.1?}")
    }
}
