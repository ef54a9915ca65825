//! What `corral pull` does with registries that `docker-registry` is not: tokens, redirects, failures and lies.

use corral_tests::deployments::digest;
use corral_tests::{StubRequest, artifacts, run_with, scratch_dir, serve_stub};
use serde_json::json;
use std::sync::{Arc, Mutex};

/// An answer: the status line's rest, headers and the body.
type Answer = (&'static str, Vec<(&'static str, String)>, Vec<u8>);

/// A server that answers each request as a function says. Its threads end with the process.
struct Fake {
    host: String,
    seen: Arc<Mutex<Vec<StubRequest>>>,
}

impl Fake {
    fn start(
        answer: impl Fn(&StubRequest, &[StubRequest]) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let seen: Arc<Mutex<Vec<StubRequest>>> = Arc::default();
        let all = Arc::clone(&seen);
        let host = serve_stub(move |request| {
            let mut all = all.lock().expect("not poisoned");
            let (status, more, body) = answer(&request, &all);
            all.push(request);
            let mut head = status.to_owned();
            if !more.iter().any(|(name, _)| *name == "content-length") {
                head += &format!("\r\ncontent-length: {}", body.len());
            }
            for (name, value) in more {
                head += &format!("\r\n{name}: {value}");
            }
            (head, body)
        });
        Fake { host, seen }
    }

    fn seen(&self) -> Vec<StubRequest> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

/// The image manifest of a plain artifact, and its component.
fn artifact() -> (Vec<u8>, Vec<u8>) {
    let component = artifacts::component("misbehave");
    let part = |kind: &str, size: usize| json!({"mediaType": kind, "digest": digest(&component), "size": size});
    let image = json!({
        "schemaVersion": 2,
        "config": part("application/vnd.wasm.config.v0+json", 1),
        "layers": [part("application/wasm", component.len())],
    });
    (image.to_string().into_bytes(), component)
}

fn ok(body: &[u8]) -> Answer {
    ("200 OK", Vec::new(), body.to_vec())
}

fn not_found() -> Answer {
    ("404 Not Found", Vec::new(), Vec::new())
}

/// Runs `corral pull` of `team/plugin:1` with a login for `host`.
fn pull(host: &str) -> (corral_tests::RunOutput, std::path::PathBuf) {
    pull_version(host, ":1")
}

/// Runs `corral pull` of `team/plugin` with a tag or a digest. A proxy that does not exist must not matter.
fn pull_version(host: &str, version: &str) -> (corral_tests::RunOutput, std::path::PathBuf) {
    let dir = scratch_dir();
    let login = json!({"auths": {host: {"auth": "YWxpY2U6c2VjcmV0"}}});
    std::fs::write(dir.join("config.json"), login.to_string()).expect("written");
    let out = dir.join("out");
    let variables = [
        ("DOCKER_CONFIG", dir.to_str().expect("UTF-8")),
        ("ALL_PROXY", "http://127.0.0.1:1"),
        ("NO_PROXY", ""),
    ];
    let reference = format!("oci://{host}/team/plugin{version}");
    let words = ["pull", &reference, "--out", out.to_str().expect("UTF-8")];
    (run_with(&variables, words), out)
}

#[test]
fn token_is_fetched_and_not_sent_to_storage() {
    let (image, component) = artifact();
    let storage = Fake::start({
        let component = component.clone();
        move |_, _| ok(&component)
    });
    let tokens = Fake::start(|_, _| ok(br#"{"token": "t1"}"#));
    let realm = format!("http://{}/token?a=b", tokens.host);
    let location = format!("http://{}/blob", storage.host);
    let registry = Fake::start(move |request, _| {
        if request.headers.get("authorization").map(String::as_str) != Some("Bearer t1") {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"the registry\"");
            return (
                "401 Unauthorized",
                vec![("www-authenticate", challenge)],
                Vec::new(),
            );
        }
        match request.target.as_str() {
            "/v2/team/plugin/manifests/1" => ok(&image),
            target if target.contains("/blobs/") => (
                "307 Temporary Redirect",
                vec![("location", location.clone())],
                Vec::new(),
            ),
            _ => not_found(),
        }
    });
    let (ended, out) = pull(&registry.host);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found = std::fs::read(out.join("plugin.wasm")).expect("written");
    assert_eq!(found, component);
    let asked = tokens.seen();
    assert_eq!(asked.len(), 1, "one token serves all requests: {asked:?}");
    let scope = "scope=repository%3Ateam%2Fplugin%3Apull&service=the%20registry";
    assert_eq!(asked[0].target, format!("/token?a=b&{scope}"));
    assert_eq!(asked[0].headers["authorization"], "Basic YWxpY2U6c2VjcmV0");
    let stored = storage.seen();
    assert_eq!(stored.len(), 1, "{stored:?}");
    assert!(!stored[0].headers.contains_key("authorization"));
}

#[test]
fn passing_failures_are_tried_again() {
    let (image, component) = artifact();
    let registry = Fake::start(move |request, earlier| {
        let is_repeated = earlier.iter().any(|one| one.target == request.target);
        match request.target.as_str() {
            "/v2/team/plugin/manifests/1" if is_repeated => ok(&image),
            "/v2/team/plugin/manifests/1" => (
                "429 Too Many Requests",
                vec![("retry-after", "0".to_owned())],
                Vec::new(),
            ),
            target if target.contains("/blobs/") && is_repeated => ok(&component),
            target if target.contains("/blobs/") => {
                ("503 Service Unavailable", Vec::new(), Vec::new())
            }
            _ => not_found(),
        }
    });
    let (ended, _) = pull(&registry.host);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        assert!(ended.stderr.contains(status), "{ended:?}");
    }
}

#[test]
fn more_bytes_than_announced_are_refused() {
    let (image, component) = artifact();
    let long = [&component[..], b"more"].concat();
    let registry = Fake::start(move |request, _| match request.target.as_str() {
        "/v2/team/plugin/manifests/1" => ok(&image),
        target if target.contains("/blobs/") => ok(&long),
        _ => not_found(),
    });
    let (ended, out) = pull(&registry.host);
    ended.check_error(1, &["sends more than", "bytes for the component"]);
    assert!(!out.exists());
    // An image manifest without an end: 4 MiB of it are read.
    let endless = Fake::start(|_, _| ok(&vec![b' '; 5 << 20]));
    let (ended, _) = pull(&endless.host);
    ended.check_error(1, &["sends more than 4194304 bytes for the image manifest"]);
}

#[test]
fn other_bytes_for_a_pinned_digest_are_refused() {
    let (image, component) = artifact();
    let pinned = digest(&image);
    // As good an artifact, which the registry gives for a digest that it does not have.
    let mut other: serde_json::Value = serde_json::from_slice(&image).expect("JSON");
    other["annotations"] = json!({"org.example": "another"});
    let other = other.to_string().into_bytes();
    let found = digest(&other);
    let registry = |image: Vec<u8>| {
        let component = component.clone();
        Fake::start(move |request, _| match request.target.as_str() {
            target if target.ends_with(".sig") => not_found(),
            target if target.contains("/manifests/") => ok(&image),
            target if target.contains("/blobs/") => ok(&component),
            _ => not_found(),
        })
    };
    let (honest, liar) = (registry(image), registry(other));
    for version in [format!("@{pinned}"), format!(":1@{pinned}")] {
        let (ended, out) = pull_version(&honest.host, &version);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.ends_with(&format!("@{pinned}\n")), "{ended:?}");
        assert!(out.join("plugin.wasm").exists());
        let (ended, out) = pull_version(&liar.host, &version);
        let problem = format!("with the digest {found} instead of {pinned}");
        ended.check_error(1, &[&problem, "is damaged or was changed"]);
        assert!(!out.exists());
    }
    let asked = format!("/v2/team/plugin/manifests/{pinned}");
    let seen = liar.seen();
    assert!(
        seen.iter().all(|one| one.target == asked),
        "nothing else is asked: {seen:?}"
    );
    // Without a pin, the answer is the artifact, and says which one it is.
    let (ended, _) = pull(&liar.host);
    assert!(ended.stdout.ends_with(&format!("@{found}\n")), "{ended:?}");
}

#[test]
fn refusals_say_what_the_registry_said() {
    let registry = Fake::start(|_, _| {
        let body = br#"{"errors": [{"code": "NAME_INVALID", "message": "no\u001b such name"}]}"#;
        ("400 Bad Request", Vec::new(), body.to_vec())
    });
    let (ended, _) = pull(&registry.host);
    ended.check_error(1, &["answers 400 Bad Request", ": no? such name"]);
    let forbidden = Fake::start(|_, _| ("403 Forbidden", Vec::new(), Vec::new()));
    let (ended, _) = pull(&forbidden.host);
    ended.check_error(1, &["does not let this login pull from team/plugin (403"]);
}
