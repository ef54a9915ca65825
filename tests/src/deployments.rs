//! Deploying through the admin API, and by `corral deploy`.

use crate::http::Answer;
use crate::{Corral, Ended, artifacts, run, scratch_folder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// `sha256:` and the digits.
pub fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{digits}")
}

/// The same component with another digest: a custom section at its end means nothing.
pub fn variant(component: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = component.to_vec();
    // Section 0 of 10 bytes: a name of one byte, and eight more.
    bytes.extend([0, 10, 1, b'v']);
    bytes.extend(number.to_le_bytes());
    bytes
}

/// Uploads a component, which has to be taken; returns its digest.
pub fn upload(corral: &Corral, component: &[u8]) -> String {
    let digest = digest(component);
    let answer = corral.ask_admin("PUT", &format!("/components/{digest}"), component);
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    digest
}

/// Posts a manifest and returns the answer, whatever it is.
pub fn try_deploy(corral: &Corral, manifest: &Value) -> Answer {
    let name = manifest["name"].as_str().expect("a manifest has a name");
    let path = format!("/deployments/{name}");
    corral.ask_admin("POST", &path, manifest.to_string())
}

/// Posts a manifest, which has to be taken; returns the revision's number.
pub fn deploy(corral: &Corral, manifest: &Value) -> u64 {
    let answer = try_deploy(corral, manifest);
    assert_eq!(answer.status, 201, "{manifest}: {answer:?}");
    let number = answer.json()["revision"]["number"].as_u64();
    number.expect("a revision has a number")
}

/// Deploys by `corral deploy`, as an author does: with this `corral.toml` and these components of ours in
/// one folder.
pub fn deploy_folder(corral: &Corral, manifest: &str, components: &[&str]) -> Ended {
    let folder = scratch_folder();
    for name in components {
        let file = folder.join(format!("{name}.wasm"));
        std::fs::copy(artifacts::plugin(name), file).expect("copied");
    }
    let token = folder.join("token");
    std::fs::write(&token, corral.token()).expect("ours");
    std::fs::write(folder.join("corral.toml"), manifest).expect("ours");
    let admin = format!("http://{}", corral.admin());
    let [folder, token] = [&folder, &token].map(|path| path.to_str().expect("ours"));
    run(["deploy", folder, "--admin", &admin, "--token-file", token])
}

/// A manifest for `/NAME`, with `more` of its fields.
pub fn manifest(name: &str, digest: &str, more: Value) -> Value {
    let mut manifest = json!({
        "name": name,
        "component": digest,
        "routes": [format!("/{name}")],
    });
    if let (Some(manifest), Value::Object(more)) = (manifest.as_object_mut(), more) {
        manifest.extend(more);
    }
    manifest
}

/// The deployment as `GET /deployments/NAME` shows it.
pub fn show(corral: &Corral, name: &str) -> Value {
    let answer = corral.ask_admin("GET", &format!("/deployments/{name}"), "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}
