//! Deploys through the admin API and with `corral deploy`.

use crate::otlp_collector::hex;
use crate::{Corral, Response, artifacts, scratch_dir};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The digest of a component: `sha256:` and hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// The same component with another digest, by a custom section at its end.
pub fn variant(component: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = component.to_vec();
    // Section id 0, 10 bytes: name length, name, and the number.
    bytes.extend([0, 10, 1, b'v']);
    bytes.extend(number.to_le_bytes());
    bytes
}

/// Uploads a component and returns its digest. Panics if the server refuses it.
pub fn upload(corral: &Corral, component: &[u8]) -> String {
    let digest = digest(component);
    let answer = corral.request_admin("PUT", &format!("/components/{digest}"), component);
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    digest
}

/// Posts a manifest and returns the response.
pub fn try_deploy(corral: &Corral, manifest: &Value) -> Response {
    let name = manifest["name"].as_str().expect("a manifest has a name");
    let path = format!("/deployments/{name}");
    corral.request_admin("POST", &path, manifest.to_string())
}

/// Posts a manifest and returns the revision number. Panics if the server refuses it.
pub fn deploy(corral: &Corral, manifest: &Value) -> u64 {
    let answer = try_deploy(corral, manifest);
    assert_eq!(answer.status, 201, "{manifest}: {answer:?}");
    let number = answer.json()["revision"]["number"].as_u64();
    number.expect("a revision has a number")
}

/// Uploads a plugin and deploys it at `/NAME`; `more` is added to the manifest. Returns the revision number.
pub fn deploy_plugin(corral: &Corral, name: &str, plugin: &str, more: Value) -> u64 {
    let digest = upload(corral, &artifacts::component(plugin));
    deploy(corral, &manifest(name, &digest, more))
}

/// Runs `corral deploy` in a directory with this `corral.toml` and these components. The command must succeed.
pub fn deploy_dir(corral: &Corral, manifest: &str, components: &[&str]) {
    let dir = scratch_dir();
    for name in components {
        let file = dir.join(format!("{name}.wasm"));
        std::fs::copy(artifacts::plugin(name), file).expect("copied");
    }
    std::fs::write(dir.join("corral.toml"), manifest).expect("written");
    corral.cli_output(&["deploy", dir.to_str().expect("a path in UTF-8")]);
}

/// A manifest with the route `/NAME`; `more` is added to it.
pub fn manifest(name: &str, digest: &str, more: Value) -> Value {
    let mut manifest = json!({
        "name": name,
        "component": digest,
        "routes": [format!("/{name}")],
    });
    let more = more.as_object().expect("an object").clone();
    manifest.as_object_mut().expect("an object").extend(more);
    manifest
}

/// The deployment as `GET /deployments/NAME` shows it.
pub fn show(corral: &Corral, name: &str) -> Value {
    let answer = corral.request_admin("GET", &format!("/deployments/{name}"), "");
    answer.ok_json()
}
