//! Schedules of a manifest, over a restart. The clock itself is moved in the unit tests of `triggers`.

use corral_tests::deployments::{deploy_plugin, show};
use corral_tests::{Corral, scratch_dir, wait_for};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn runs(corral: &Corral) -> Vec<Value> {
    let shown = show(corral, "tick");
    shown["schedules"][0]["runs"]
        .as_array()
        .expect("a list")
        .clone()
}

fn scheduled(run: &Value) -> u64 {
    run["scheduled_ms"].as_u64().expect("a time")
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("after 1970");
    u64::try_from(since.as_millis()).expect("in range")
}

#[test]
fn schedule_runs_each_minute_and_once_after_restart() {
    const MINUTE: u64 = 60_000;
    let store = scratch_dir();
    let corral = Corral::start_in(&store, &[]);
    let entry = json!({
        "schedule": "* * * * *", "time-zone": "Europe/Berlin", "path": "/tick/headers", "body": "{}",
    });
    // No minute begins while it is deployed.
    let left = MINUTE - now_ms() % MINUTE;
    if left < MINUTE / 3 {
        std::thread::sleep(Duration::from_millis(left));
    }
    deploy_plugin(&corral, "tick", "misbehave", json!({ "cron": [entry] }));
    let deployed = now_ms();
    assert!(runs(&corral).is_empty(), "it has missed nothing");
    let first = wait_for("the first run", || {
        runs(&corral)
            .into_iter()
            .find(|run| run["state"] == "succeeded")
    });
    let time = scheduled(&first);
    assert_eq!(time % MINUTE, 0);
    assert!(time > deployed, "{time} after {deployed}");
    assert!(time - deployed <= MINUTE, "{time} after {deployed}");
    assert_eq!(first["trigger"], "cron");
    assert_eq!(first["attempts"], 1);
    let text = corral.cli_output(&["show", "tick"]);
    let line = "schedule '* * * * *' (Europe/Berlin) of /tick/headers: last ";
    assert!(text.contains(line), "{text}");
    assert!(corral.cli_output(&["jobs", "tick"]).contains("cron"));
    corral.signal("KILL");
    drop(corral);
    // At once again: the same minute does not run twice.
    let corral = Corral::start_in(&store, &[]);
    std::thread::sleep(Duration::from_secs(1));
    let times = Vec::from_iter(runs(&corral).iter().map(scheduled));
    let this_minute = times.iter().filter(|run| **run == time).count();
    assert_eq!(this_minute, 1, "{times:?}");
    corral.signal("KILL");
    drop(corral);
    // Down while a minute begins: it runs once, late.
    let begins = (now_ms() / MINUTE + 1) * MINUTE;
    std::thread::sleep(Duration::from_millis(begins + 1000 - now_ms()));
    let corral = Corral::start_in(&store, &[]);
    let late = wait_for("the run that was missed", || {
        let late = runs(&corral)
            .into_iter()
            .find(|run| scheduled(run) == begins);
        late.filter(|run| run["state"] == "succeeded")
    });
    assert!(late["started_ms"].as_u64() >= Some(begins + 1000), "{late}");
    let mut times = Vec::from_iter(runs(&corral).iter().map(scheduled));
    let count = times.len();
    times.dedup();
    assert_eq!(times.len(), count, "a time ran twice: {times:?}");
    corral.wait_until_idle();
}
