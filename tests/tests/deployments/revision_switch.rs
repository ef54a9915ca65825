//! Hundreds of revision switches under load: no request is lost, new requests go to the new revision at once,
//! running ones finish on the old one. Over HTTP/1.1 and HTTP/2.

use corral_tests::deployments::{deploy, manifest, upload, variant};
use corral_tests::{
    BodySender, Connection, Corral, HttpVersion, Response, SetOnDrop, artifacts, block_on,
};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SWITCHES: u64 = 300;
/// Clients that ask in a loop, each on its own connection; four more share one HTTP/2 connection.
const CLIENTS: usize = 4;

fn version_of(body: &str) -> u64 {
    let version = body.trim_end().strip_prefix("VERSION=");
    let version = version.unwrap_or_else(|| panic!("{body:?}"));
    version.parse().expect("a number")
}

/// What one client saw of the switches.
struct SeenVersions<'a> {
    acknowledged: &'a AtomicU64,
    /// The revision acknowledged when the current request was sent, and the newest that answered.
    at_least: u64,
    latest: u64,
}

impl<'a> SeenVersions<'a> {
    fn new(acknowledged: &'a AtomicU64) -> Self {
        SeenVersions {
            acknowledged,
            at_least: 0,
            latest: 0,
        }
    }

    fn before_request(&mut self) {
        self.at_least = self.acknowledged.load(Ordering::Acquire);
    }

    fn check(&mut self, answer: &Response) {
        assert_eq!(answer.status, 200, "{answer:?}");
        let version = version_of(&answer.body);
        let at_least = self.at_least.max(self.latest);
        assert!(version >= at_least, "{version} after {at_least}");
        self.latest = version;
    }
}

/// Four clients ask over one HTTP/2 connection until the test is done. Returns the number of requests.
async fn request_over_http_2(address: &str, acknowledged: &AtomicU64, done: &AtomicBool) -> u64 {
    let client = Connection::connect(address, HttpVersion::Http2, None).await;
    let client = client.expect("HTTP/2 without TLS");
    let ask = || async {
        let (mut seen, mut answers) = (SeenVersions::new(acknowledged), 0);
        while !done.load(Ordering::Acquire) {
            seen.before_request();
            let answer = client.request("/swap/env", &[], "").await;
            seen.check(&answer.expect("no stream is lost"));
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
    async fn start(client: &Connection, version: u64) -> Self {
        let begun = client.begin("/swap/hold").await;
        let (mut reply, rest) = begun.expect("a response");
        assert_eq!(reply.status(), 200);
        let piece = reply.chunk().await.expect("a piece").expect("not cut off");
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
        let answer = self.reply.whole().await.expect("a whole body");
        let version = answer.body.strip_prefix("and on\n");
        let version = version.unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(version_of(version), self.version);
    }
}

#[test]
fn revision_switches_under_load_lose_no_request() {
    let corral = Corral::start_with_store(&[]);
    let component = artifacts::component("misbehave");
    // Two components alternate, so that more than the configuration changes.
    let digests = [&component, &variant(&component, 1)].map(|bytes| upload(&corral, bytes));
    let switch = |version: u64| {
        let digest = &digests[usize::from(version % 2 == 1)];
        let configuration = json!({"configuration": {"VERSION": version.to_string()}});
        let number = deploy(&corral, &manifest("swap", digest, configuration));
        assert_eq!(number, version + 1);
    };
    switch(0);
    // This request runs through all switches.
    let mut old = corral.drip("/swap");

    let done = AtomicBool::new(false);
    let (acknowledged, http1_answers, http2_answers) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ending = SetOnDrop(&done);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut seen = SeenVersions::new(&acknowledged);
                while !done.load(Ordering::Acquire) {
                    seen.before_request();
                    seen.check(&corral.get("/swap/env"));
                    http1_answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let answers = block_on(request_over_http_2(corral.public(), &acknowledged, &done));
            http2_answers.store(answers, Ordering::Relaxed);
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
                clients.push(client.expect("connected"));
            }
            for version in 1..=SWITCHES {
                let mut held = Vec::new();
                for client in &clients {
                    held.push(Held::start(client, version - 1).await);
                }
                tokio::task::block_in_place(|| switch(version));
                acknowledged.store(version, Ordering::Release);
                for held in held {
                    held.end().await;
                }
            }
        });
        drop(ending);
    });
    let (http1_answers, http2_answers) = (http1_answers.into_inner(), http2_answers.into_inner());
    assert!(http1_answers > SWITCHES, "there were too few requests");
    assert!(http2_answers > SWITCHES, "there were too few requests");
    old.next_drip();
    // Of the replaced revisions, only the one with a running request is left.
    corral.wait_until("the replaced revisions are freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0 + 1.0 + 1.0
    });
    drop(old);
    corral.wait_until("the last replaced revision is freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0 + 1.0
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_plugin_calls_failed_total"), 0.0);
}
