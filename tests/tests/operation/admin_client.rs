//! The commands of an operator against a server with a token, TLS and API keys.

use corral_tests::{
    Corral, RunOutput, artifacts, new_key, run, run_with, scratch_dir, wait_for, wait_until,
};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// A certificate as operators make it: self-signed, and also an authority's. Without `names` it has a subject only.
fn openssl_certificate(dir: &Path, names: &[&str]) -> [String; 2] {
    let files = ["cert.pem", "key.pem"].map(|name| dir.join(name).display().to_string());
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-out",
            &files[0],
            "-keyout",
            &files[1],
        ])
        .args(names)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
    files
}

/// A server that other machines reach, over TLS, with a store and API keys; and the words that its clients add.
struct Remote {
    corral: Corral,
    admin: String,
    certificate: String,
    store: String,
    key: String,
}

impl Remote {
    fn start(names: &[&str]) -> Self {
        let dir = scratch_dir();
        let [certificate, private] = openssl_certificate(&dir, names);
        let [store, keys] = ["store", "keys.toml"].map(|name| dir.join(name).display().to_string());
        let key = new_key(&keys, &["--tenant", "alice"]);
        let corral = Corral::start_with(&[
            "--admin",
            "0.0.0.0:0",
            "--listen",
            "0.0.0.0:0",
            "--tls-cert",
            &certificate,
            "--tls-key",
            &private,
            "--store",
            &store,
            "--keys",
            &keys,
        ]);
        let port = corral.admin().rsplit(':').next().expect("a port");
        Remote {
            admin: format!("https://localhost:{port}"),
            corral,
            certificate,
            store,
            key,
        }
    }

    fn run(&self, arguments: &[&str]) -> RunOutput {
        let server = ["--admin", &self.admin, "--admin-ca", &self.certificate];
        run([arguments, &server].concat())
    }

    fn list(&self, admin: &str, ca: &str) -> RunOutput {
        let server = ["--admin", admin, "--admin-ca", ca];
        run([&["list", "--store", &self.store][..], &server].concat())
    }

    fn output(&self, arguments: &[&str]) -> String {
        let ended = self.run(&[arguments, &["--store", &self.store]].concat());
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    }
}

#[test]
fn all_commands_reach_a_remote_server() {
    let remote = Remote::start(&[]);
    let plugin = artifacts::plugin("misbehave");
    let plugin = plugin.to_str().expect("a path in UTF-8");
    remote.output(&["deploy", plugin, "--name", "a", "--route", "/a"]);
    assert!(remote.output(&["list"]).contains("\na  "));
    assert!(remote.output(&["show", "a"]).starts_with("a is serving"));
    assert!(remote.output(&["top", "--once"]).contains("\ntiny: "));
    let key = ["--key", &remote.key];
    let invoke = |path: &str| remote.output(&[&["invoke", "a", "--path", path], &key[..]].concat());
    assert_eq!(invoke("/a/ok"), "ok");
    invoke("/a/log");
    assert!(remote.output(&["logs", "a"]).contains(" stdout: "));
    let without_key = remote.run(&["invoke", "a", "--store", &remote.store]);
    assert_eq!(without_key.code, Some(1), "{without_key:?}");
    assert!(without_key.stderr.contains("'a' answered with 401"));
    // An unknown certificate, and a wrong name.
    let other = openssl_certificate(&scratch_dir(), &[]);
    let listed = remote.list(&remote.admin, &other[0]);
    listed.check_error(1, &["cannot verify", "--admin-ca FILE"]);
    let by_address = remote.admin.replace("localhost", "127.0.0.1");
    let listed = remote.list(&by_address, &remote.certificate);
    listed.check_error(1, &["cannot verify"]);
    assert!(!remote.corral.stderr().contains(&remote.key));
}

#[test]
fn certificate_with_alternative_names_is_accepted() {
    let names = ["-addext", "subjectAltName=IP:127.0.0.1"];
    let remote = Remote::start(&names);
    let by_address = remote.admin.replace("localhost", "127.0.0.1");
    let listed = remote.list(&by_address, &remote.certificate);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    // With alternative names the subject does not count.
    let listed = remote.list(&remote.admin, &remote.certificate);
    listed.check_error(1, &["cannot verify"]);
}

#[test]
fn token_comes_from_file_store_or_variable() {
    let corral = Corral::start_with_store(&["--admin", "0.0.0.0:0"]);
    let port = corral.admin().rsplit(':').next().expect("a port");
    let admin = format!("http://127.0.0.1:{port}");
    let store = corral.store().to_str().expect("a path in UTF-8");
    let file = format!("{store}/admin-token");
    let token = corral.token().expect("a token");
    let top = ["top", "--once", "--admin", &admin];
    run(top).check_error(
        1,
        &[
            "admin token",
            "--token-file",
            "--store",
            "CORRAL_ADMIN_TOKEN",
        ],
    );
    for more in [["--token-file", &file], ["--store", store]] {
        run([&top[..], &more].concat()).check_success();
    }
    let variables = [("CORRAL_ADMIN_TOKEN", &*token), ("CORRAL_ADMIN", &*admin)];
    for command in [&["top", "--once"][..], &["list"]] {
        run_with(&variables, command).check_success();
    }
    let wrong = [
        ("CORRAL_ADMIN_TOKEN", "wrong-wrong-wrong"),
        ("CORRAL_ADMIN", &*admin),
    ];
    run_with(&wrong, ["top"]).check_error(1, &["not the server's admin token"]);
    let useless = run(["list", "--admin", &admin, "--admin-ca", &file]);
    useless.check_error(2, &["--admin-ca is for https"]);
}

/// `corral top` in a terminal of 80 columns and 24 rows.
#[test]
fn top_fits_its_terminal_and_quits() {
    let corral = Corral::start();
    let stream = corral.endless("/generate");
    let binary = artifacts::binary();
    let top = format!(
        "stty cols 80 rows 24; exec '{}' top --admin http://{}",
        binary.display(),
        corral.admin()
    );
    let mut child = Command::new("script")
        .args([
            "--quiet",
            "--return",
            "--flush",
            "--command",
            &top,
            "/dev/null",
        ])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script");
    let seen = Arc::new(Mutex::new(String::new()));
    let mut stdout = child.stdout.take().expect("piped");
    let reader = std::thread::spawn({
        let seen = Arc::clone(&seen);
        move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut some) {
                let text = String::from_utf8_lossy(&some[..count]).into_owned();
                seen.lock().expect("no panic").push_str(&text);
            }
        }
    });
    let has_rate = |text: &str| {
        let rates = text
            .split(" tokens/s")
            .filter_map(|text| text.rsplit(' ').next());
        rates
            .into_iter()
            .any(|rate| rate.parse::<f64>().is_ok_and(|rate| rate > 0.0))
    };
    wait_until("a rate of tokens", || {
        has_rate(&seen.lock().expect("no panic"))
    });
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"jq").expect("taken");
    let status = wait_for("the end of top", || child.try_wait().expect("own child"));
    reader.join().expect("no panic");
    drop(stream);
    let text = seen.lock().expect("no panic").clone();
    assert!(status.success(), "{text}");
    assert!(text.contains("\x1b[7mREQUEST"), "no colors: {text:?}");
    assert!(
        text.trim_end().ends_with("\x1b[?1049l"),
        "the screen is restored: {text:?}"
    );
    for screen in text.split("\x1b[H").skip(1) {
        let lines: Vec<_> = screen.split("\r\n").collect();
        assert!(lines.len() <= 24, "{screen:?}");
        for line in lines {
            let shown: String = without_sequences(line);
            assert!(shown.chars().count() <= 80, "{shown}");
        }
    }
}

/// The text without control sequences.
fn without_sequences(text: &str) -> String {
    let mut pieces = text.split('\x1b');
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| c.is_ascii_alphabetic());
        shown += end.map_or("", |end| &piece[end + 1..]);
    }
    shown
}
