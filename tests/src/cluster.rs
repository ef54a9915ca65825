//! Hosts of a cluster, and a deployment that tells its version.

use crate::deployments::manifest;
use crate::{Corral, Nats, artifacts, scratch_dir, wait_for, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A host of the cluster with this store. It has no model loaded, so it is ready soon.
pub fn host_in(store: &Path, nats: &Nats, more: &[&str]) -> Corral {
    let url = nats.url();
    let cluster = ["--preload", "none", "--cluster", &url];
    Corral::start_in(store, &[&cluster, more].concat())
}

/// A host of the cluster with an empty store.
pub fn host(nats: &Nats) -> Corral {
    host_in(&scratch_dir(), nats, &[])
}

/// A directory with a `corral.toml` that deploys `misbehave` as `NAME` at `/NAME`, whose `/env` returns `version`.
pub fn project(name: &str, version: u64, more: &str) -> PathBuf {
    project_of(&artifacts::component("misbehave"), name, version, more)
}

/// The same of a [variant](crate::deployments::variant) of `misbehave`.
pub fn project_of(component: &[u8], name: &str, version: u64, more: &str) -> PathBuf {
    let dir = scratch_dir();
    std::fs::write(dir.join("plugin.wasm"), component).expect("written");
    let text = format!(
        "name = '{name}'\ncomponent = 'plugin.wasm'\nroutes = ['/{name}']\n{more}\n\
         [configuration]\nVERSION = '{version}'\n"
    );
    std::fs::write(dir.join("corral.toml"), text).expect("written");
    dir
}

/// Deploys a project, and waits until all hosts serve it. Returns what the command prints.
pub fn deploy_and_wait(corral: &Corral, project: &Path) -> String {
    let project = project.to_str().expect("a path in UTF-8");
    corral.cli_output(&["deploy", project, "--wait"])
}

/// A manifest of `misbehave` whose `/env` returns `version`.
pub fn versioned(name: &str, component: &str, version: u64) -> Value {
    let configuration = json!({"configuration": {"VERSION": version.to_string()}});
    manifest(name, component, configuration)
}

/// The version that answers at `/NAME`, if one does.
pub fn try_version(corral: &Corral, name: &str) -> Option<u64> {
    let answer = corral.get(&format!("/{name}/env"));
    let version = answer.body.trim().strip_prefix("VERSION=");
    version.filter(|_| answer.status == 200)?.parse().ok()
}

/// The version that answers at `/NAME`. Panics if none does.
pub fn version(corral: &Corral, name: &str) -> u64 {
    let answer = try_version(corral, name);
    answer.unwrap_or_else(|| panic!("{name} does not serve: {}", corral.stderr()))
}

/// Waits until this version answers at `/NAME`.
pub fn wait_for_version(corral: &Corral, name: &str, version: u64) {
    wait_until(&format!("version {version} of {name}"), || {
        try_version(corral, name) == Some(version)
    });
}

/// What `GET /cluster` of this host says.
fn cluster(corral: &Corral) -> Value {
    corral.request_admin("GET", "/cluster", "").ok_json()
}

/// The status of the host at this address, as another host reports it.
pub fn status_of(of: &Corral, by: &Corral) -> Option<Value> {
    let cluster = cluster(by);
    let mut hosts = cluster["hosts"].as_array().expect("hosts").iter();
    hosts.find(|host| host["address"] == of.public()).cloned()
}

/// Waits until a host reports an error of a deployment with this text. Returns its status of the deployment.
pub fn wait_for_error(of: &Corral, by: &Corral, name: &str, expected: &str) -> Value {
    wait_for(expected, || {
        let status = status_of(of, by)?["deployments"][name].clone();
        let error = status["error"].as_str()?;
        error.contains(expected).then(|| status.clone())
    })
}
