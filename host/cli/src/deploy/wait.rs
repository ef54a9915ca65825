//! Waits until all live hosts of a cluster serve a deploy.

use crate::Error;
use crate::admin::{AdminClient, RequestBody};
use crate::progress::Progress;
use crate::terminal::printable;
use http::Method;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Longest wait: a compilation takes up to five minutes, and may wait for another one.
const WAIT_TIME: Duration = Duration::from_secs(650);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until all live hosts serve what `deployed`, the response to a deploy, says. Returns their number; nothing if
/// the server is in no cluster.
///
/// # Errors
/// If a host cannot serve it, or the hosts are unknown, or after [`WAIT_TIME`].
pub(super) async fn wait_for_hosts(
    client: &AdminClient,
    deployed: &Value,
) -> Result<Option<usize>, Error> {
    let Some(version) = deployed["cluster_version"].as_u64() else {
        return Ok(None);
    };
    let name = deployed["deployment"]["name"].as_str().unwrap_or_default();
    let progress = Progress::spinner("waiting for the other hosts");
    let waited = poll(client, name, version).await;
    progress.finish();
    let deployed = format!("'{name}' is deployed, but");
    waited
        .map(Some)
        .map_err(|problem| Error::failed(format!("{deployed} {problem}")))
}

async fn poll(client: &AdminClient, name: &str, version: u64) -> Result<usize, String> {
    let deadline = Instant::now() + WAIT_TIME;
    loop {
        let asked = client.request(Method::GET, "/cluster", RequestBody::Empty);
        let cluster = asked.await.map_err(|error| error.message(false))?;
        let waiting = hosts_behind(&cluster, name, version)?;
        if waiting.is_empty() {
            return Ok(hosts(&cluster).count());
        }
        if Instant::now() >= deadline {
            return Err(format!(
                "after {} s these hosts do not serve it yet: {}; 'corral list' shows them",
                WAIT_TIME.as_secs(),
                waiting.join(", ")
            ));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The hosts that do not serve this version of a deployment yet.
///
/// # Errors
/// If a host cannot serve it, or the hosts are unknown.
fn hosts_behind(cluster: &Value, name: &str, version: u64) -> Result<Vec<String>, String> {
    if cluster["connected"] != true {
        let error = printable(cluster["error"].as_str().unwrap_or_default());
        return Err(format!("the hosts of the cluster are unknown: {error}"));
    }
    let mut behind = Vec::new();
    for host in hosts(cluster) {
        let deployment = &host["deployments"][name];
        let shown = host_name(host);
        let number = |field: &str| deployment[field].as_u64().unwrap_or(0);
        if number("version") >= version {
            // It may have failed at a later change.
            continue;
        }
        if number("failed_version") >= version {
            let error = printable(deployment["error"].as_str().unwrap_or_default());
            return Err(format!("the host {shown} cannot serve it: {error}"));
        }
        behind.push(shown);
    }
    Ok(behind)
}

fn hosts(cluster: &Value) -> impl Iterator<Item = &Value> {
    cluster["hosts"].as_array().into_iter().flatten()
}

/// A host's name and address.
pub(super) fn host_name(host: &Value) -> String {
    let text = |field: &str| printable(host[field].as_str().unwrap_or_default());
    format!("{} ({})", text("name"), text("address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hosts_are_behind_until_they_serve() {
        let host = |name: &str, deployment: Value| json!({"name": name, "address": "h:1", "deployments": {"a": deployment}});
        let cluster = |hosts: &[Value]| json!({"connected": true, "hosts": hosts});
        let serving = host(
            "one",
            json!({"version": 8, "failed_version": 9, "error": "later"}),
        );
        let old = host(
            "two",
            json!({"version": 6, "failed_version": 6, "error": "old"}),
        );
        let without = json!({"name": "three", "address": "h:1", "deployments": {}});
        let all = cluster(&[serving.clone(), old, without]);
        let behind = hosts_behind(&all, "a", 7).expect("no failure");
        assert_eq!(behind, ["two (h:1)", "three (h:1)"]);
        assert!(
            hosts_behind(&cluster(&[serving]), "a", 8)
                .expect("none")
                .is_empty()
        );
        let failed = host(
            "four",
            json!({"version": 6, "failed_version": 7, "error": "no secret"}),
        );
        let error = hosts_behind(&cluster(&[failed]), "a", 7).expect_err("it failed");
        assert_eq!(error, "the host four (h:1) cannot serve it: no secret");
        let error = hosts_behind(&json!({"connected": false, "error": "x"}), "a", 7);
        assert!(error.expect_err("unknown").ends_with("unknown: x"));
    }
}
