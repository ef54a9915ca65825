//! TLS on the public listener.

use corral_tests::{
    Connection, Corral, HttpVersion, Identity, TIMEOUT, block_on, raw_exchange, run, scratch_dir,
    serve,
};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn start(files: &[PathBuf; 2], arguments: &[&str]) -> Corral {
    let [certificate, key] = files.each_ref().map(|file| file.to_str().expect("UTF-8"));
    Corral::start_with(&[&["--tls-cert", certificate, "--tls-key", key], arguments].concat())
}

async fn check_alive(client: &Connection) {
    let request = json!({"prompt": "1+1=", "max_tokens": 20}).to_string();
    let answer = client.request("/generate", &[], &request).await;
    let answer = answer.expect("a response");
    assert_eq!(answer.json()["text"], "2", "{answer:?}");
}

#[test]
fn plaintext_on_tls_port_is_closed() {
    let dir = scratch_dir();
    let identity = Identity::new();
    let corral = start(&identity.write(&dir), &["--header-timeout", "3"]);
    assert!(
        corral
            .announced()
            .iter()
            .any(|line| line.starts_with("listening on https://"))
    );
    block_on(async {
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let trust = identity.trust();
            let client = Connection::connect(corral.public(), version, Some(&trust)).await;
            check_alive(&client.expect("a handshake")).await;
            let unknown = Identity::new().trust();
            let refused = Connection::connect(corral.public(), version, Some(&unknown)).await;
            assert!(
                refused.is_err(),
                "the client accepts an unknown certificate"
            );
        }
    });
    let begun = Instant::now();
    // Silence, half a handshake, and a plaintext request.
    for sent in [
        &b""[..],
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        let answer = raw_exchange(corral.public(), sent, false, TIMEOUT);
        assert!(!answer.starts_with(b"HTTP"), "{sent:?}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(6));
    let metrics = corral.wait_until_idle();
    let failed = metrics.get("corral_http_terminations_total{reason=\"handshake\"}");
    assert_eq!(
        failed, 5.0,
        "two untrusted certificates, and three that are no TLS"
    );
    assert!(metrics.get("corral_tls_certificate_expiry_timestamp_seconds") > 1e9);
}

#[test]
fn certificate_reload_keeps_old_connections() {
    let dir = scratch_dir();
    let (old, new) = (Identity::new(), Identity::new());
    let corral = start(&old.write(&dir), &[]);
    let connect = async |identity: &Identity| {
        Connection::connect(corral.public(), HttpVersion::Http2, Some(&identity.trust())).await
    };
    block_on(async {
        let kept = connect(&old).await.expect("the old certificate");
        check_alive(&kept).await;
        // A half-finished renewal changes nothing, also on SIGHUP.
        std::fs::write(dir.join("cert.pem"), &new.certificate).expect("written");
        corral.signal("HUP");
        let failed = "corral_tls_reload_failures_total";
        corral.wait_until("the reload has failed", |metrics| {
            metrics.get(failed) >= 1.0
        });
        check_alive(&connect(&old).await.expect("the old certificate")).await;
        new.write(&dir);
        let begun = Instant::now();
        let client = loop {
            if let Ok(client) = connect(&new).await {
                break client;
            }
            assert!(begun.elapsed() < TIMEOUT, "the new certificate is not used");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        check_alive(&client).await;
        assert!(
            connect(&old).await.is_err(),
            "the old certificate is still used"
        );
        check_alive(&kept).await;
        // SIGHUP reloads at once.
        old.write(&dir);
        corral.signal("HUP");
        corral.wait_until("the certificate is reloaded", |metrics| {
            metrics.get("corral_tls_reloads_total") >= 2.0
        });
        check_alive(&connect(&old).await.expect("the first certificate")).await;
    });
    corral.wait_until_idle();
}

#[test]
fn remote_admin_listener_uses_certificate() {
    let dir = scratch_dir();
    let identity = Identity::new();
    let files = identity.write(&dir);
    let store = dir.join("store");
    let store = store.to_str().expect("a path in UTF-8");
    let everywhere = ["--admin", "0.0.0.0:0", "--store", store];
    let corral = start(&files, &everywhere);
    let port = corral.admin().strip_prefix("https://0.0.0.0:");
    let port = port.expect("an encrypted listener");
    let token = format!("{store}/admin-token");
    let list = |scheme: &str, more: &[&str]| {
        let admin = format!("{scheme}://localhost:{port}");
        run([&["list", "--admin", &admin, "--token-file", &token], more].concat())
    };
    let certificate = files[0].to_str().expect("UTF-8");
    let listed = list("https", &["--admin-ca", certificate]).check_success();
    assert!(listed.stdout.contains("/generate"), "{listed:?}");
    // The client trusts no other server, and the server accepts no plaintext.
    let unknown = Identity::new().write(&scratch_dir());
    let unknown = unknown[0].to_str().expect("UTF-8");
    for more in [&["--admin-ca", unknown][..], &["--admin-ca", &token], &[]] {
        let refused = list("https", more);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("--admin-ca FILE"), "{refused:?}");
    }
    assert_eq!(list("http", &[]).code, Some(1));
    assert!(!corral.stderr().contains("without encryption"));
    drop(corral);

    let corral = Corral::start_with(&everywhere);
    assert!(corral.admin().starts_with("0.0.0.0:"));
    corral.wait_for_stderr("without encryption");
}

#[test]
fn unusable_tls_files_are_one_line_errors() {
    let dir = scratch_dir();
    let [certificate, key] = Identity::new().write(&dir);
    let other = dir.join("other.pem");
    std::fs::write(&other, Identity::new().key).expect("written");
    for (certificate, key, expected) in [
        (dir.join("missing"), key.clone(), "cannot read"),
        (key.clone(), key.clone(), "there is no certificate in"),
        (
            certificate.clone(),
            certificate.clone(),
            "there is no private key in",
        ),
        (certificate, other, "does not belong to the certificate"),
    ] {
        let [certificate, key] =
            [&certificate, &key].map(|file| file.to_str().expect("a path in UTF-8"));
        serve(&["--tls-cert", certificate, "--tls-key", key]).check_error(1, &[expected]);
    }
}
