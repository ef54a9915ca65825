//! Clients of several hosts, which send requests at a fixed rate and check each answer.

use crate::{Connection, Corral, HttpVersion, Response, Sum, TIMEOUT, distinct_sums};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// 200 requests a second.
const INTERVAL: Duration = Duration::from_millis(5);
/// One of so many requests asks the model for a sum.
const SUM_INTERVAL: usize = 10;
/// Requests of a host at once; further ones wait, as in a router.
const MAX_RUNNING: usize = 128;
/// Idle connections to a host: so few that each is used again long before the host closes it.
const MAX_IDLE: usize = 16;
/// Faults that are kept.
const MAX_FAULTS: usize = 5;

/// 200 requests a second, to each host in turn: most to `/x/env` of a [project](crate::cluster::project), some to `generate` at
/// `/sums`.
///
/// A version may answer if it has traffic in one of the states that the host may serve: from the last one
/// [confirmed](Load::confirm) when the request was sent, to the last one [begun](Load::begin) when the answer came.
#[derive(Clone)]
pub struct Load(Arc<Inner>);

struct Inner {
    targets: Vec<Target>,
    /// The versions that share the traffic after each change.
    states: Mutex<Vec<Vec<u64>>>,
    sums: Vec<Sum>,
    faults: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

/// Requests of a host.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// With the right answer.
    pub answered: usize,
    /// Failed while the host was down.
    pub failed: usize,
}

/// A host, as the clients know it.
struct Target {
    address: String,
    /// The first state that it may serve.
    oldest: AtomicUsize,
    /// Kills, and restarts after them: odd while it is down.
    kills: AtomicUsize,
    /// Whether it has announced that it stops.
    is_off: AtomicBool,
    running: Semaphore,
    idle: Mutex<VecDeque<Connection>>,
    answered: AtomicUsize,
    failed: AtomicUsize,
}

impl Target {
    fn new(host: &Corral) -> Self {
        Target {
            address: host.public().to_owned(),
            oldest: AtomicUsize::new(0),
            kills: AtomicUsize::new(0),
            is_off: AtomicBool::new(false),
            running: Semaphore::new(MAX_RUNNING),
            idle: Mutex::default(),
            answered: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
        }
    }

    async fn send(&self, path: &str, body: &str) -> Result<Response, String> {
        let connection = loop {
            let idle = self.idle.lock().expect("no panic").pop_front();
            let Some(idle) = idle else {
                let new = Connection::connect(&self.address, HttpVersion::Http1, None).await;
                break new.map_err(|error| error.to_string())?;
            };
            if idle.is_open().await {
                break idle;
            }
        };
        let answer = connection.request(path, &[], body).await;
        let answer = answer.map_err(|error| format!("{error:?}"))?;
        let mut idle = self.idle.lock().expect("no panic");
        if idle.len() < MAX_IDLE && answer.header("connection") != Some("close") {
            idle.push_back(connection);
        }
        Ok(answer)
    }
}

impl Load {
    /// Clients of these hosts, which keep their addresses. No version may answer yet.
    pub fn new(hosts: &[Corral]) -> Self {
        Load(Arc::new(Inner {
            targets: hosts.iter().map(Target::new).collect(),
            states: Mutex::new(vec![Vec::new()]),
            sums: distinct_sums(500),
            faults: Mutex::default(),
            is_over: AtomicBool::new(false),
        }))
    }

    /// Sends each request at its time, whether others are answered or not, until it [is over](Load::is_over). Returns their
    /// number.
    pub fn run(&self) -> usize {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut requests, mut sent) = (JoinSet::new(), 0);
            let mut times = tokio::time::interval(INTERVAL);
            while !self.0.is_over.load(SeqCst) {
                times.tick().await;
                let inner = Arc::clone(&self.0);
                requests.spawn(async move { inner.request(sent).await });
                sent += 1;
                while let Some(ended) = requests.try_join_next() {
                    ended.expect("no panic");
                }
            }
            requests.join_all().await;
            sent
        })
    }

    /// Set to end it.
    pub fn is_over(&self) -> &AtomicBool {
        &self.0.is_over
    }

    /// The number of the next state.
    pub fn next_state(&self) -> u64 {
        self.0.states().len() as u64
    }

    /// A change begins that gives the traffic to these versions.
    pub fn begin(&self, versions: &[u64]) {
        self.0.states().push(versions.to_owned());
    }

    /// From now on these hosts serve the last state.
    pub fn confirm(&self, hosts: &[usize]) {
        let last = self.0.states().len() - 1;
        for &host in hosts {
            self.0.targets[host].oldest.store(last, SeqCst);
        }
    }

    /// A host is killed now: its requests may fail until it is up.
    pub fn set_down(&self, host: usize) {
        self.0.targets[host].kills.fetch_add(1, SeqCst);
    }

    /// A host stops: it gets no more requests until it is up.
    pub fn set_off(&self, host: usize) {
        self.0.targets[host].is_off.store(true, SeqCst);
    }

    /// A host has started.
    pub fn set_up(&self, host: usize) {
        let target = &self.0.targets[host];
        let kills = target.kills.load(SeqCst);
        target.kills.store(kills.next_multiple_of(2), SeqCst);
        target.is_off.store(false, SeqCst);
    }

    /// The requests of a host so far.
    pub fn counts(&self, host: usize) -> Counts {
        let target = &self.0.targets[host];
        Counts {
            answered: target.answered.load(SeqCst),
            failed: target.failed.load(SeqCst),
        }
    }

    /// Asserts that no answer was wrong until now, and that no request failed but those to a host that was down. Prints the
    /// counts.
    pub fn check(&self, after: &str) {
        let faults = self.0.faults.lock().expect("no panic");
        assert!(faults.is_empty(), "{after}: {faults:#?}");
        let counts = (0..self.0.targets.len()).map(|host| self.counts(host));
        eprintln!("{after}: {:?}", Vec::from_iter(counts));
    }
}

impl Inner {
    fn states(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.states.lock().expect("no panic")
    }

    async fn request(&self, number: usize) {
        let mut turns = number..;
        let (target, _permit) = loop {
            let target = &self.targets[turns.next().expect("endless") % self.targets.len()];
            let permit = target.running.acquire().await.expect("never closed");
            if !target.is_off.load(SeqCst) {
                break (target, permit);
            }
        };
        let (kills, oldest) = (target.kills.load(SeqCst), target.oldest.load(SeqCst));
        let sum = self.sums[number / SUM_INTERVAL % self.sums.len()];
        let sum = number.is_multiple_of(SUM_INTERVAL).then_some(sum);
        let sent = async {
            let Some(sum) = sum else {
                return target.send("/x/env", "").await;
            };
            let body = json!({"prompt": sum.question(), "max_tokens": 20});
            target.send("/sums", &body.to_string()).await
        };
        let sent = tokio::time::timeout(TIMEOUT, sent).await;
        let was_down = || kills % 2 == 1 || target.kills.load(SeqCst) != kills;
        let fault = match sent.unwrap_or_else(|late| Err(late.to_string())) {
            Ok(answer) if self.is_right(&answer, sum, oldest) => {
                target.answered.fetch_add(1, SeqCst);
                return;
            }
            // It refuses requests until it is ready.
            Ok(answer) if answer.status == 200 || !was_down() => format!("{answer:?}"),
            Err(error) if !was_down() => error,
            _ => {
                target.failed.fetch_add(1, SeqCst);
                return;
            }
        };
        let mut faults = self.faults.lock().expect("no panic");
        if faults.len() < MAX_FAULTS {
            let address = &target.address;
            faults.push(format!(
                "{number} to {address}, since state {oldest}, {sum:?}: {fault}"
            ));
        }
    }

    fn is_right(&self, answer: &Response, sum: Option<Sum>, oldest: usize) -> bool {
        let is_version = |version: u64| {
            let states = self.states();
            states[oldest..]
                .iter()
                .any(|state| state.contains(&version))
        };
        answer.status == 200
            && match sum {
                Some(sum) => serde_json::from_str::<Value>(&answer.body)
                    .is_ok_and(|body| body["text"] == sum.answer()),
                None => {
                    let version = answer.body.trim_end().strip_prefix("VERSION=");
                    version.is_some_and(|text| text.parse().is_ok_and(is_version))
                }
            }
    }
}
