//! Hundreds of revision switches under load: no request is lost, new requests go to the new revision at once,
//! running ones finish on the old one. Over HTTP/1.1 and HTTP/2.

use corral_tests::deployments::{deploy, manifest, upload, variant};
use corral_tests::{
    BodySender, Connection, Corral, HttpVersion, Response, SetOnDrop, artifacts, block_on,
    scratch_dir,
};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SWAPS: u64 = 300;
/// Clients that ask in a loop, each on its own connection; four more share one HTTP/2 connection.
const CLIENTS: usize = 4;

fn version_of(body: &str) -> u64 {
    let version = body.trim_end().strip_prefix("VERSION=");
    let version = version.unwrap_or_else(|| panic!("{body:?}"));
    version.parse().expect("a number")
}

/// What one client saw of the switches.
struct Seen<'a> {
    acknowledged: &'a AtomicU64,
    /// The revision acknowledged when the current request was sent, and the newest that answered.
    at_least: u64,
    latest: u64,
}

impl<'a> Seen<'a> {
    fn new(acknowledged: &'a AtomicU64) -> Self {
        Seen {
            acknowledged,
            at_least: 0,
            latest: 0,
        }
    }

    fn asks(&mut self) {
        self.at_least = self.acknowledged.load(Ordering::Acquire);
    }

    fn answered(&mut self, answer: &Response) {
        assert_eq!(answer.status, 200, "{answer:?}");
        let version = version_of(&answer.body);
        let at_least = self.at_least.max(self.latest);
        assert!(version >= at_least, "{version} after {at_least}");
        self.latest = version;
    }
}

/// Four clients ask over one HTTP/2 connection until the test is done. Returns the number of requests.
async fn ask_over_http_2(address: &str, acknowledged: &AtomicU64, done: &AtomicBool) -> u64 {
    let client = Connection::connect(address, HttpVersion::Http2, None).await;
    let client = client.expect("HTTP/2 without TLS");
    let ask = || async {
        let (mut seen, mut answers) = (Seen::new(acknowledged), 0);
        while !done.load(Ordering::Acquire) {
            seen.asks();
            let answer = client.request("/swap/env", &[], "").await;
            seen.answered(&answer.expect("no stream is lost"));
            answers += 1;
        }
        answers
    };
    let (one, two, three, four) = tokio::join!(ask(), ask(), ask(), ask());
    one + two + three + four
}

/// A request that runs while its revision is replaced.
struct Held {
    version: u64,
    reply: corral_tests::PendingResponse,
    rest: BodySender,
}

impl Held {
    /// Starts the request; its response has begun when this returns.
    async fn begin(client: &Connection, version: u64) -> Self {
        let begun = client.begin("/swap/hold").await;
        let (mut reply, rest) = begun.expect("it is answered");
        assert_eq!(reply.status(), 200);
        let piece = reply.chunk().await.expect("a piece").expect("it goes on");
        assert_eq!(version_of(&String::from_utf8_lossy(&piece)), version);
        Held {
            version,
            reply,
            rest,
        }
    }

    /// Finishes the request and checks that one revision answered all of it.
    async fn end(self) {
        self.rest.send("and on\n");
        drop(self.rest);
        let answer = self.reply.whole().await.expect("it ends whole");
        let version = answer.body.strip_prefix("and on\n");
        let version = version.unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(version_of(version), self.version);
    }
}

#[test]
fn revision_switches_under_load_lose_no_request() {
    let dir = scratch_dir();
    let corral = Corral::start_with(&["--store", dir.to_str().expect("ours")]);
    let component = std::fs::read(artifacts::plugin("misbehave")).expect("readable");
    // Two components alternate, so that more than the configuration changes.
    let digests = [&component, &variant(&component, 1)].map(|bytes| upload(&corral, bytes));
    let swap = |version: u64| {
        let digest = &digests[usize::from(version % 2 == 1)];
        let configuration = json!({"configuration": {"VERSION": version.to_string()}});
        let number = deploy(&corral, &manifest("swap", digest, configuration));
        assert_eq!(number, version + 1);
    };
    swap(0);
    // This request runs through all switches.
    let mut old = corral.post_stream("/swap/drip", "");
    assert_eq!(old.line().expect("drips").as_deref(), Some("drip"));

    let done = AtomicBool::new(false);
    let (acknowledged, over_1, over_2) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ending = SetOnDrop(&done);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut seen = Seen::new(&acknowledged);
                while !done.load(Ordering::Acquire) {
                    seen.asks();
                    seen.answered(&corral.get("/swap/env"));
                    over_1.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let answers = block_on(ask_over_http_2(corral.public(), &acknowledged, &done));
            over_2.store(answers, Ordering::Relaxed);
        });
        // Generations of another deployment run beside it.
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                corral.check_alive();
            }
        });
        // A request of either HTTP version runs through each switch.
        block_on(async {
            let mut clients = Vec::new();
            for version in [HttpVersion::Http1, HttpVersion::Http2] {
                let client = Connection::connect(corral.public(), version, None).await;
                clients.push(client.expect("it accepts"));
            }
            for version in 1..=SWAPS {
                let mut held = Vec::new();
                for client in &clients {
                    held.push(Held::begin(client, version - 1).await);
                }
                tokio::task::block_in_place(|| swap(version));
                acknowledged.store(version, Ordering::Release);
                for held in held {
                    held.end().await;
                }
            }
        });
        drop(ending);
    });
    let (over_1, over_2) = (over_1.into_inner(), over_2.into_inner());
    println!(
        "{SWAPS} swaps, {over_1} requests over HTTP/1.1 and {over_2} over HTTP/2, none failed"
    );
    assert!(over_1 > SWAPS && over_2 > SWAPS, "it was under load");
    assert_eq!(old.line().expect("drips on").as_deref(), Some("drip"));
    // Of the replaced revisions, only the one with a running request is left.
    corral.wait_until("the replaced ones are freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0 + 1.0 + 1.0
    });
    drop(old);
    corral.wait_until("the last one is freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0 + 1.0
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_plugin_calls_failed_total"), 0.0);
}
