//! Hundreds of swaps under load: no request is lost, new ones go to the new revision at once, running
//! ones end on the old.

use corral_tests::deployments::{deploy, manifest, upload, variant};
use corral_tests::{Corral, artefacts, scratch_folder};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SWAPS: u64 = 240;
const CLIENTS: usize = 6;

fn version_of(body: &str) -> u64 {
    let version = body.trim_end().strip_prefix("VERSION=");
    let version = version.unwrap_or_else(|| panic!("{body:?}"));
    version.parse().expect("a number")
}

#[test]
fn hundreds_of_swaps_under_load_lose_no_request() {
    let folder = scratch_folder();
    let corral = Corral::start_with(&["--store", folder.to_str().expect("ours")]);
    let component = std::fs::read(artefacts::plugin("misbehave")).expect("readable");
    let digest = upload(&corral, &component);
    let other = upload(&corral, &variant(&component, 1));
    let versioned = |version: u64| {
        let configuration = json!({"configuration": {"VERSION": version.to_string()}});
        // Two components in turn, so that it is not only the configuration that changes.
        let digest = if version.is_multiple_of(2) {
            &other
        } else {
            &digest
        };
        manifest("swap", digest, configuration)
    };
    deploy(&corral, &versioned(0));
    // These run on while everything is swapped under them.
    let mut old = corral.post_stream("/swap/drip", "");
    assert_eq!(old.line().expect("drips").as_deref(), Some("drip"));

    let done = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let done = Done(&done);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut seen = 0;
                while !done.0.load(Ordering::Acquire) {
                    let at_least = acknowledged.load(Ordering::Acquire);
                    let answer = corral.get("/swap/env");
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let version = version_of(&answer.body);
                    assert!(
                        version >= at_least,
                        "{version} after {at_least} was acknowledged"
                    );
                    assert!(version >= seen, "{version} after {seen} was seen");
                    seen = version;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Generations beside it: another deployment is not touched.
        scope.spawn(|| {
            while !done.0.load(Ordering::Acquire) {
                corral.check_alive();
            }
        });
        for version in 1..=SWAPS {
            let number = deploy(&corral, &versioned(version));
            assert_eq!(number, version + 1);
            acknowledged.store(version, Ordering::Release);
        }
        drop(done);
    });
    let answered = answered.into_inner();
    println!("{SWAPS} swaps, {answered} requests answered meanwhile, none failed");
    assert!(answered > SWAPS, "it was under load: {answered}");
    assert_eq!(old.line().expect("drips on").as_deref(), Some("drip"));
    // Of the replaced ones only that is there whose request still runs.
    corral.wait_until("the replaced ones are freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0 + 1.0 + 1.0
    });
    drop(old);
    corral.wait_until("the last one is freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0 + 1.0
    });
    let metrics = corral.settled();
    assert_eq!(metrics.get("corral_plugin_failures_total"), 0.0);
}
