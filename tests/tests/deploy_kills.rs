//! kill -9 of the whole server in the midst of deploys: what was acknowledged serves after the restart.
//! (`store_kill` of corral-server kills the store alone, hundreds of times.)

use corral_tests::deployments::{manifest, upload, variant};
use corral_tests::{Corral, artefacts, scratch_folder};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KILLS: u64 = 20;

#[test]
fn a_killed_server_comes_back_with_all_that_was_acknowledged() {
    let folder = scratch_folder();
    let store = folder.to_str().expect("ours").to_owned();
    let component = std::fs::read(artefacts::plugin("misbehave")).expect("readable");
    let acknowledged = AtomicU64::new(0);
    let mut deployed = 0;
    for kill in 0..KILLS {
        let corral = Corral::start_with(&["--store", &store]);
        let least = acknowledged.load(Ordering::Acquire);
        let version = if kill == 0 {
            0
        } else {
            let answer = corral.get("/k/env");
            assert_eq!(answer.status, 200, "after kill {kill}: {answer:?}");
            let version = answer.body.trim_end().strip_prefix("VERSION=");
            version.expect("ours").parse::<u64>().expect("a number")
        };
        // The last one may have been done and not acknowledged.
        assert!(
            (least..=least + 1).contains(&version),
            "{version}, not {least}, after {kill}"
        );
        let uploaded = upload(&corral, &variant(&component, kill));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for next in version + 1.. {
                    let configuration = json!({"configuration": {"VERSION": next.to_string()}});
                    let manifest = manifest("k", &uploaded, configuration).to_string();
                    let path = "/deployments/k";
                    match corral.try_ask_admin("POST", path, manifest.as_bytes()) {
                        Ok(answer) => {
                            assert_eq!(answer.status, 201, "{answer:?}");
                            acknowledged.store(next, Ordering::Release);
                        }
                        // Killed.
                        Err(_) => break,
                    }
                }
            });
            // Wait for the first one, so that there is something to lose.
            while acknowledged.load(Ordering::Acquire) <= least.max(version) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Spread over the milliseconds that a deploy takes.
            std::thread::sleep(Duration::from_micros(kill * 3571 % 50_000));
            corral.signal("KILL");
        });
        deployed += acknowledged.load(Ordering::Acquire) - least;
    }
    println!("{KILLS} kills, {deployed} acknowledged deploys, none lost");
}
