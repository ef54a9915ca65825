//! `corral push`, `corral pull` and `corral deploy oci://` with a registry: Debian's `docker-registry`.

use corral_tests::deployments::show;
use corral_tests::{
    Corral, Identity, RELIABLE_SUMS, Registry, RunOutput, TIMEOUT, artifacts, run, run_command,
    run_with, scratch_dir, utf8,
};
use data_encoding::BASE64;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const IMAGE_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Runs a command that must succeed and returns its output without the line break.
fn output(arguments: &[&str]) -> String {
    let ended = run(arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.stdout.trim_end().to_owned()
}

/// The digest at the end of a reference.
fn digest_of(reference: &str) -> &str {
    reference.split_once('@').expect("a pinned reference").1
}

/// A directory with the manifest of `NAME` at `/NAME`, the plugin `misbehave` with this configuration.
fn project(name: &str, version: &str) -> String {
    let dir = scratch_dir();
    let component = artifacts::plugin("misbehave");
    std::fs::copy(component, dir.join("plugin.wasm")).expect("copied");
    let manifest = format!(
        "name = '{name}'\ncomponent = 'plugin.wasm'\nroutes = ['/{name}']\n\
         [configuration]\nVERSION = '{version}'\n"
    );
    std::fs::write(dir.join("corral.toml"), manifest).expect("written");
    utf8(&dir).to_owned()
}

#[test]
fn pushed_deployment_is_deployed_and_pinned() {
    let registry = Registry::start();
    let corral = Corral::start_with_store(&[]);
    let tag = registry.reference("team/a:1");
    let first = output(&["push", &tag, &project("a", "1")]);
    assert_eq!(first, format!("{tag}@{}", digest_of(&first)));
    // The same files make the same artifact.
    assert_eq!(output(&["push", &tag, &project("a", "1")]), first);
    let printed = corral.cli_output(&["deploy", &tag]);
    let expected = "deployed revision 1: a is serving at /a, traffic 1\n";
    assert_eq!(printed, expected);
    assert_eq!(corral.get("/a/env").body, "VERSION=1\n");

    // The tag moves on; what is deployed stays.
    let second = output(&["push", &tag, &project("a", "2")]);
    assert_ne!(first, second);
    assert_eq!(corral.get("/a/env").body, "VERSION=1\n");
    assert_eq!(show(&corral, "a")["revisions"][0]["source"], json!(first));
    let list = corral.cli_output(&["list"]);
    assert!(list.contains(&format!("  {first}\n")), "{list}");
    corral.cli_output(&["deploy", &tag]);
    assert_eq!(corral.get("/a/env").body, "VERSION=2\n");
    // The digest counts, not the tag beside it.
    corral.cli_output(&["deploy", &first]);
    assert_eq!(corral.get("/a/env").body, "VERSION=1\n");
    let shown = corral.cli_output(&["show", "a"]);
    for (number, source) in [(1, &first), (2, &second), (3, &first)] {
        let line = format!("revision {number} is {source}\n");
        assert!(shown.contains(&line), "{shown}");
    }
    let status = corral.cli_json(&["list"]);
    let deployments = status["deployments"].as_array().expect("deployments");
    let a = deployments.iter().find(|one| one["name"] == "a");
    let expected = json!(first);
    assert_eq!(a.expect("it is listed")["traffic"][0]["source"], expected);

    let missing = registry.reference("team/a:none");
    let ended = corral.cli(&["deploy", &missing]);
    ended.check_error(1, &["has no team/a:none; check the name and the tag"]);
    let ended = corral.cli(&["deploy", &first, "--route", "/b"]);
    ended.check_error(2, &["has a manifest with a name and routes"]);
    let ended = corral.cli(&["deploy", &project("a", "1"), "--registry-http"]);
    ended.check_error(2, &["--registry-http is for an artifact"]);
    run(["push", &first]).check_error(2, &["without a digest"]);
}

#[test]
fn linked_components_travel_in_one_artifact() {
    let registry = Registry::start();
    let corral = Corral::start_with_store(&[]);
    let dir = scratch_dir();
    for name in ["linked-handler", "samplers", "templates"] {
        let file = dir.join(format!("{name}.wasm"));
        std::fs::copy(artifacts::plugin(name), file).expect("copied");
    }
    let manifest = "name = 'roles'\ncomponent = 'linked-handler.wasm'\nroutes = ['/roles']\n\
        [linked]\ntemplating = { component = 'templates.wasm', inherit = true }\n\
        [linked.sampling]\nany = 'samplers.wasm'\nother = 'samplers.wasm'\n";
    std::fs::write(dir.join("corral.toml"), manifest).expect("written");
    let tag = registry.reference("roles:1");
    let pushed = output(&["push", &tag, utf8(&dir)]);
    // The handler first, and each component once.
    let image = registry.image("roles", "1");
    let layers = image["layers"].as_array().expect("layers");
    assert_eq!(layers.len(), 3, "{image}");
    assert_eq!(layers[0]["mediaType"], "application/wasm");
    let handler = artifacts::component("linked-handler");
    assert_eq!(layers[0]["size"], handler.len());

    let pulled = scratch_dir().join("pulled");
    assert_eq!(output(&["pull", &tag, "--out", utf8(&pulled)]), pushed);
    std::fs::remove_dir_all(&dir).expect("removed");
    let ask = |at: &str| {
        let sum = RELIABLE_SUMS[0];
        let request = json!({"prompt": sum.question(), "max_tokens": 30, "settings": "greedy"});
        let answer = corral.post(at, request.to_string());
        assert_eq!(answer.ok_json()["text"], sum.answer());
    };
    corral.cli_output(&["deploy", &pushed]);
    ask("/roles/generate?sampler=any");
    ask("/roles/generate?sampler=other");
    // The pulled files are a project: deploying it makes the same manifest.
    corral.cli_output(&["deploy", utf8(&pulled)]);
    let revisions = &show(&corral, "roles")["revisions"];
    assert_eq!(revisions[0]["manifest"], revisions[1]["manifest"]);
    assert_eq!(revisions[0]["source"], json!(pushed));
    assert_eq!(revisions[1]["source"], Value::Null);
    ask("/roles/generate?sampler=any");
}

#[test]
fn registry_with_tls_wants_login() {
    let identity = Identity::new();
    let registry = Registry::start_with_login(&identity);
    let dir = scratch_dir();
    let [certificate, _] = identity.write(&dir);
    let certificate = utf8(&certificate);
    let password = dir.join("password");
    std::fs::write(&password, format!("{}\n", Registry::PASSWORD)).expect("written");
    let tag = registry.reference("a/b:1");
    let project = project("a", "1");
    let nobody = utf8(&dir);
    let push = |docker_config: &str, more: &[&str]| {
        let line = [
            &["push", &tag, &project, "--registry-ca", certificate],
            more,
        ]
        .concat();
        run_with(&[("DOCKER_CONFIG", docker_config)], line)
    };
    push(nobody, &[]).check_error(1, &["wants a login", "(401", "--registry-user"]);
    let wrong = dir.join("wrong");
    std::fs::write(&wrong, "guess").expect("written");
    let login = |file: &Path| {
        let file = utf8(file).to_owned();
        [
            "--registry-user",
            Registry::USER,
            "--registry-password-file",
        ]
        .map(str::to_owned)
        .into_iter()
        .chain([file])
        .collect::<Vec<_>>()
    };
    let words = login(&wrong);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    push(nobody, &words).check_error(1, &["refuses the user 'alice' and its password (401"]);
    let words = login(&password);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let pushed = push(nobody, &words).check_success();
    run_with(
        &[("DOCKER_CONFIG", nobody)],
        ["pull", &tag, "--registry-user", "alice"],
    )
    .check_error(2, &["--registry-password-file"]);

    // Docker's login, a credential helper, and standard input.
    let pair = BASE64.encode(format!("{}:{}", Registry::USER, Registry::PASSWORD).as_bytes());
    let config = json!({"auths": {&registry.host: {"auth": pair}}});
    std::fs::write(dir.join("config.json"), config.to_string()).expect("written");
    assert_eq!(push(nobody, &[]).stdout, pushed.stdout);
    let helper = dir.join("docker-credential-test");
    let secret = json!({"Username": Registry::USER, "Secret": Registry::PASSWORD});
    std::fs::write(
        &helper,
        format!("#!/bin/sh\ncat >/dev/null\necho '{secret}'\n"),
    )
    .expect("written");
    let executable = Command::new("chmod").arg("+x").arg(&helper).status();
    assert!(executable.expect("chmod").success());
    let config = json!({"credHelpers": {&registry.host: "test"}});
    std::fs::write(dir.join("config.json"), config.to_string()).expect("written");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", dir.display());
    let pull = [
        "pull",
        &tag,
        "--out",
        utf8(&dir),
        "--registry-ca",
        certificate,
    ];
    let pulled = run_with(&[("DOCKER_CONFIG", nobody), ("PATH", &path)], pull);
    assert_eq!(pulled.stdout, pushed.stdout, "{pulled:?}");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec \"$0\" \"$@\" <\"$PASSWORD\""])
        .arg(artifacts::binary())
        .args(pull)
        .args(["--registry-user", Registry::USER])
        .args(["--registry-password-file", "-"])
        .env("PASSWORD", &password);
    let pulled = run_command(&mut shell, TIMEOUT);
    assert_eq!(pulled.stdout, pushed.stdout, "{pulled:?}");

    std::fs::remove_file(dir.join("config.json")).expect("removed");
    // Without the certificate it is HTTP on this machine, and another name needs TLS.
    let deaf = run_with(&[("DOCKER_CONFIG", nobody)], ["pull", &tag]);
    deaf.check_error(1, &["answers 400 Bad Request", "if it uses TLS"]);
    let other = Identity::new().write(&scratch_dir());
    let distrust = ["pull", &tag, "--registry-ca", utf8(&other[0])];
    run_with(&[("DOCKER_CONFIG", nobody)], distrust)
        .check_error(1, &["is not trusted", "--registry-ca"]);
}

#[test]
fn changed_bytes_are_refused() {
    let registry = Registry::start();
    let tag = registry.reference("a:1");
    output(&["push", &tag, &project("a", "1")]);
    let component = registry.image("a", "1")["layers"][0]["digest"].clone();
    let component = component.as_str().expect("a digest");
    let file = registry.blob_file(component);
    let good = std::fs::read(&file).expect("a blob");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&file, &bad).expect("written");
    let out = scratch_dir().join("out");
    let pull = ["pull", &tag, "--out", utf8(&out)];
    run(pull).check_error(1, &[component, "is damaged or was changed"]);
    assert!(!out.exists());
    std::fs::write(&file, &good).expect("written");
    output(&pull);
}

#[test]
fn older_artifact_needs_a_route() {
    let registry = Registry::start();
    let corral = Corral::start_with_store(&[]);
    let config = registry.put_blob("c", "application/vnd.oci.image.config.v1+json", b"{}");
    // As Spin made it.
    let kind = "application/vnd.wasm.content.layer.v1+wasm";
    let old = registry.put_blob("c", kind, &artifacts::component("misbehave"));
    let image =
        json!({"schemaVersion": 2, "mediaType": IMAGE_TYPE, "config": config, "layers": [old]});
    registry.put_image("c", "old", &image);
    let reference = registry.reference("c:old");
    let ended = corral.cli(&["deploy", &reference]);
    ended.check_error(2, &["give --route /c"]);
    corral.cli_output(&["deploy", &reference, "--route", "/c", "--name", "old"]);
    assert_eq!(corral.get("/c/ok").status, 200);
    let source = &show(&corral, "old")["revisions"][0]["source"];
    assert!(source.as_str().expect("a source").starts_with(&reference));
}

/// Signs an artifact as cosign does.
fn sign(registry: &Registry, repository: &str, artifact: &str, signed: &str, key: &KeyPair) {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": format!("{}/{repository}", registry.host)},
            "image": {"docker-manifest-digest": signed},
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let payload = payload.to_string();
    let signature = BASE64.encode(&key.sign(payload.as_bytes()).expect("signed"));
    registry.put_signature(repository, artifact, &payload, &signature);
}

#[test]
fn only_signed_artifacts_are_deployed() {
    let registry = Registry::start();
    let (key, other) = (
        KeyPair::generate().expect("a key"),
        KeyPair::generate().expect("a key"),
    );
    assert_eq!(key.der_bytes().len(), 65);
    let dir = scratch_dir();
    let write = |name: &str, key: &KeyPair| {
        let file = dir.join(name);
        std::fs::write(&file, key.public_key_pem()).expect("written");
        utf8(&file).to_owned()
    };
    let (public, foreign) = (write("cosign.pub", &key), write("other.pub", &other));
    let open = Corral::start_with_store(&[]);
    let strict = Corral::start_with_store(&["--verify-key", &public]);
    let tag = registry.reference("a:1");
    let project = project("a", "1");
    let pushed = output(&["push", &tag, &project]);
    let digest = digest_of(&pushed);
    let refused = |ended: RunOutput, expected: &str| ended.check_error(1, &[expected]);

    let verify = ["deploy", &tag, "--verify-key", &public];
    refused(open.cli(&verify), "is not signed");
    refused(strict.cli(&["deploy", &tag]), "is not signed");
    refused(
        strict.cli(&["deploy", &project]),
        "this server deploys only signed artifacts",
    );
    sign(&registry, "a", digest, digest, &other);
    refused(open.cli(&verify), "has no signature by this key");
    refused(
        strict.cli(&["deploy", &tag]),
        "has no signature by this key",
    );
    let moved = format!("sha256:{}", "0".repeat(64));
    sign(&registry, "a", digest, &moved, &key);
    refused(
        open.cli(&verify),
        &format!("is for {moved}, not for {digest}"),
    );
    refused(strict.cli(&["deploy", &tag]), "has a signature that is for");
    assert_eq!(open.cli_json(&["list"])["deployments"][4], Value::Null);

    sign(&registry, "a", digest, digest, &key);
    open.cli_output(&verify);
    strict.cli_output(&["deploy", &tag]);
    assert_eq!(strict.get("/a/env").body, "VERSION=1\n");
    refused(
        open.cli(&["deploy", &tag, "--verify-key", &foreign]),
        "has no signature by this key",
    );
    let out = scratch_dir();
    output(&["pull", &tag, "--verify-key", &public, "--out", utf8(&out)]);
    // A key that is none stops the server's start, too.
    let bad = dir.join("bad.pub");
    std::fs::write(&bad, "no key").expect("written");
    for command in ["deploy", "pull"] {
        run([command, &tag, "--verify-key", utf8(&bad)]).check_error(1, &["ECDSA P-256"]);
    }
    corral_tests::serve(&["--verify-key", utf8(&bad)]).check_error(1, &["ECDSA P-256"]);
    corral_tests::serve(&["--verify-key", utf8(&bad), "--check"]).check_error(2, &["ECDSA P-256"]);
}

/// Forwards connections to a registry, and cuts the first one that carries more bytes of answers than this.
fn cut_first_download(registry: &Registry, bytes: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let registry = registry.host.clone();
    let was_cut = Arc::new(AtomicBool::new(false));
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            let mut server = TcpStream::connect(&registry).expect("it accepts");
            let mut requests = client.try_clone().expect("a socket");
            let mut sink = server.try_clone().expect("a socket");
            thread::spawn(move || std::io::copy(&mut requests, &mut sink));
            let was_cut = Arc::clone(&was_cut);
            thread::spawn(move || {
                let mut first = Read::by_ref(&mut server).take(bytes);
                // Either side may be gone.
                let copied = std::io::copy(&mut first, &mut client);
                let is_long = copied.is_ok_and(|copied| copied == bytes);
                if is_long && was_cut.swap(true, Ordering::Relaxed) {
                    let _ = std::io::copy(&mut server, &mut client);
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    host
}

#[test]
fn cut_download_is_tried_again() {
    let registry = Registry::start();
    let pushed = output(&["push", &registry.reference("a:1"), &project("a", "1")]);
    let host = cut_first_download(&registry, 16 << 10);
    let reference = pushed.replace(&registry.host, &host);
    let out = scratch_dir().join("out");
    let pulled = run(["pull", &reference, "--out", utf8(&out)]);
    assert_eq!(pulled.code, Some(0), "{pulled:?}");
    assert!(pulled.stderr.contains("trying again in"), "{pulled:?}");
    let found = std::fs::read(out.join("a.wasm")).expect("written");
    assert_eq!(found, artifacts::component("misbehave"));
}

#[test]
fn wit_packages_are_wasm_artifacts() {
    let registry = Registry::start();
    let dir = scratch_dir();
    let printed = output(&["wit", "--binary", "--out", utf8(&dir)]);
    assert!(printed.contains("corral:inference@0.1.0 in "), "{printed}");
    let file = dir.join("corral-inference-0.1.0.wasm");
    output(&[
        "push",
        &registry.reference("corral/inference:0.1.0"),
        utf8(&file),
    ]);
    let image = registry.image("corral/inference", "0.1.0");
    let expected = "application/vnd.wasm.config.v0+json";
    assert_eq!(image["config"]["mediaType"], expected);
    assert_eq!(image["layers"].as_array().map(Vec::len), Some(1));
    let layer = &image["layers"][0];
    assert_eq!(layer["mediaType"], "application/wasm");
    let blob = |part: &Value| {
        let digest = part["digest"].as_str().expect("a digest");
        registry.blob("corral/inference", digest)
    };
    assert_eq!(blob(layer), std::fs::read(&file).expect("written"));
    let config: Value = serde_json::from_slice(&blob(&image["config"])).expect("JSON");
    assert_eq!(config["os"], "wasip2");
    assert_eq!(config["layerDigests"], json!([layer["digest"]]));
    let exports = config["component"]["exports"].as_array().expect("names");
    let interface = json!("corral:inference/inference-async@0.1.0");
    assert!(exports.contains(&interface), "{exports:?}");
}
