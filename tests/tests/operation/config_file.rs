//! `corral serve --config`, `--check` and reloads on SIGHUP. The unit tests of `corral-cli` have all kinds of errors.

use corral_tests::{
    Connection, Corral, HttpVersion, Identity, Response, artifacts, block_on, key_file, new_key,
    run, run_with, schema, scratch_dir, utf8,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A directory with the demo model, a plugin, and a configuration that names them.
struct Directory(PathBuf);

/// Options that each file of this test has.
const BASE: &str = "model = ['tiny=tiny.gguf']\nplugin = ['/generate=generate.wasm', '/hello=hello.wasm']\n\
                    listen = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\nthreads = 1\ncontext = 16384\ntime-limit = 300\n";

impl Directory {
    fn new(more: &str) -> Self {
        let dir = Directory(scratch_dir());
        symlink(artifacts::long_model(), dir.0.join("tiny.gguf")).expect("a new name");
        for plugin in ["generate", "hello"] {
            let file = dir.0.join(format!("{plugin}.wasm"));
            symlink(artifacts::plugin(plugin), file).expect("a new name");
        }
        let compiled = artifacts::scratch().join("compiled");
        let compiled = compiled.to_str().expect("a path in UTF-8");
        dir.write(&format!("cache-dir = '{compiled}'\n{more}"));
        dir
    }

    /// Writes the configuration: [`BASE`] and these lines.
    fn write(&self, more: &str) {
        std::fs::write(self.file(), format!("{BASE}{more}\n")).expect("written");
    }

    fn file(&self) -> PathBuf {
        self.0.join("server.toml")
    }

    fn start(&self) -> Corral {
        Corral::start_exactly(&["--config", utf8(&self.file())])
    }

    /// Creates an API key in a file of the directory.
    fn new_key(&self, file: &str) -> String {
        let key = new_key(self.0.join(file), &["--tenant", "alice"]);
        format!("Bearer {key}")
    }

    /// `corral serve --check` of the configuration, with more arguments.
    fn check(&self, arguments: &[&str]) -> corral_tests::RunOutput {
        let file = self.file();
        run([&["serve", "--check", "--config", utf8(&file)], arguments].concat())
    }
}

/// Asks `hello`, on a connection of its own.
fn ask(corral: &Corral, authorization: &str) -> Response {
    block_on(async {
        let client = Connection::connect(corral.public(), HttpVersion::Http1, None).await;
        let headers = [("authorization", authorization)];
        let answer = client
            .expect("connected")
            .request("/hello", &headers, "1+1=")
            .await;
        answer.expect("a response")
    })
}

#[test]
fn every_option_of_help_has_a_field() {
    let ended = run(["config", "schema"]).check_success();
    let published: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let fields = published["properties"].as_object().expect("fields");
    let help = run(["serve", "--help"]).stdout;
    let option = |line: &str| {
        let line = line
            .trim_start()
            .trim_start_matches("-v, ")
            .trim_start_matches("-h, ");
        let name = line.strip_prefix("--")?.split([' ', '\n']).next()?;
        Some(name.to_owned())
    };
    let mut options = BTreeSet::from_iter(help.lines().filter_map(option));
    for special in ["config", "check", "help"] {
        assert!(options.remove(special), "{special}: {help}");
    }
    assert_eq!(options, BTreeSet::from_iter(fields.keys().cloned()));
    // The values of a file, as an editor checks them.
    let fits = |value: Value| schema::validate(&published, &value);
    let good =
        serde_json::json!({"model": ["x.gguf"], "mmap": true, "kv-cells": 64, "grace-period": 0.5});
    assert_eq!(fits(good), Ok(()));
    for (field, value) in [
        ("kv-cell", Value::from(64)),
        ("kv-cells", Value::from(0)),
        ("kv-cells", Value::from("64")),
        ("preload", Value::from("frist")),
        ("model", Value::from("x.gguf")),
    ] {
        assert!(
            fits(serde_json::json!({field: value})).is_err(),
            "{field}: {value}"
        );
    }
}

#[test]
fn server_starts_from_file_with_relative_paths() {
    let dir = Directory::new("keys = 'keys.toml'\nopen-route = ['/generate']");
    let key = dir.new_key("keys.toml");
    let corral = dir.start();
    assert_eq!(corral.text("1+1="), "2");
    ask(&corral, "").problem(401, "missing-key");
    assert_eq!(ask(&corral, &key).status, 200);
}

#[test]
fn check_prints_plan_and_touches_nothing() {
    let dir = Directory::new("");
    dir.write(
        "cache-dir = 'cache'\nstore = 'store'\nsnapshot-dir = 'snapshots'\nkeys = 'keys.toml'\n\
         tls-cert = 'cert.pem'\ntls-key = 'key.pem'\nkv-cells = 20000",
    );
    dir.new_key("keys.toml");
    Identity::new().write(&dir.0);
    let files = || {
        BTreeSet::from_iter(
            dir.0
                .read_dir()
                .expect("a directory")
                .map(|file| file.expect("a file").path()),
        )
    };
    let before = files();
    let ended = dir.check(&[]);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
    for expected in [
        "model tiny is ",
        "20000 KV cells",
        "route /hello is ",
        "1 API keys in ",
        "certificate in ",
        "store ",
        "listening on https://127.0.0.1:0\n",
        "admin on 127.0.0.1:0\n",
        "nothing is wrong\n",
    ] {
        assert!(ended.stdout.contains(expected), "{expected}: {ended:?}");
    }
    assert_eq!(files(), before, "a check writes nothing");
    // Flags precede the file.
    let ended = dir.check(&["--kv-cells", "30000", "--listen", "localhost:1"]);
    assert!(ended.stdout.contains("30000 KV cells"), "{ended:?}");
    assert!(ended.stdout.contains("https://localhost:1\n"), "{ended:?}");
    // Options need no file.
    let model = artifacts::model();
    let ended = run(["serve", "--check", "--model", utf8(&model)]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("nothing is wrong\n"), "{ended:?}");
}

#[test]
fn check_succeeds_beside_running_server() {
    let dir = Directory::new("store = 'store'\nsnapshot-dir = 'snapshots'");
    let corral = dir.start();
    dir.check(&["--listen", corral.public()]).check_success();
}

#[test]
fn check_reports_all_problems_with_their_places() {
    let dir = Directory::new("");
    dir.write(
        "keys = 'keys.toml'\ntls-cert = 'cert.pem'\ntls-key = 'other.pem'\nadapter = [\n  'a=server.toml',\n]\n\
         store = 'server.toml'",
    );
    std::fs::write(dir.0.join("keys.toml"), "[[kee]]\n").expect("written");
    Identity::new().write(&dir.0);
    std::fs::write(dir.0.join("other.pem"), Identity::new().key).expect("written");
    let broken = ["plugin", "model"].map(|name| dir.0.join(name));
    std::fs::write(&broken[0], "no component").expect("written");
    std::fs::write(&broken[1], "no model").expect("written");
    let plugin = format!("/b={}", utf8(&broken[0]));
    let ended = dir.check(&[
        "--plugin",
        &plugin,
        "--admin",
        "nowhere",
        "--model",
        utf8(&broken[1]),
    ]);
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{ended:?}");
    let place = |line: usize, key: &str| format!("server.toml:{line}: {key}: ");
    for expected in [
        place(8, "keys"),
        place(9, "tls-cert"),
        place(12, "adapter"),
        place(14, "store"),
        "corral: cannot listen on nowhere".to_owned(),
        "corral: the plugin /b is not a WebAssembly component".to_owned(),
        utf8(&broken[1]).to_owned(),
    ] {
        assert!(
            ended.stderr.contains(&expected),
            "{expected}: {}",
            ended.stderr
        );
    }
    let lines = ended.stderr.lines();
    let problems = lines.filter(|line| line.starts_with("corral: ")).count();
    assert_eq!(problems, 7, "{}", ended.stderr);
}

#[test]
fn mistakes_in_file_are_one_line_errors() {
    let dir = Directory::new("");
    let file = dir.file();
    for (more, expected) in [
        (
            "kv-cel = 1",
            "server.toml:8: unknown field 'kv-cel'; did you mean 'kv-cells'?",
        ),
        (
            "kv-cells = '1'",
            "server.toml:8: kv-cells: expected an integer",
        ),
        (
            "kv-cells = 0",
            "server.toml:8: kv-cells: invalid value '0' for '--kv-cells <N>'",
        ),
        (
            "tls-cert = 'x'",
            "server.toml:8: tls-cert: the following required arguments",
        ),
        ("mmap =", "server.toml:8: "),
    ] {
        dir.write(more);
        let ended = run(["serve", "--config", utf8(&file)]);
        ended.check_error(2, &[expected]);
        dir.check(&[]).check_error(2, &[expected]);
    }
    let missing = dir.0.join("missing.toml");
    run(["serve", "--config", utf8(&missing)]).check_error(2, &["cannot read the configuration"]);
}

#[test]
fn variable_precedes_file() {
    let dir = Directory::new("");
    dir.write("admin-token-file = 'missing'");
    let file = dir.file();
    dir.check(&[])
        .check_error(2, &["cannot read the admin token"]);
    let line = ["serve", "--check", "--config", utf8(&file)];
    let ended = run_with(&[("CORRAL_ADMIN_TOKEN", &"t".repeat(32))], line);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn reload_applies_changes_while_stream_runs() {
    let dir = Directory::new("");
    let old = dir.new_key("old.toml");
    let new = dir.new_key("new.toml");
    let cache = format!(
        "cache-dir = '{}'\n",
        utf8(&artifacts::scratch().join("compiled"))
    );
    let write = |more: &str| dir.write(&format!("{cache}open-route = ['/generate']\n{more}"));
    write("keys = 'old.toml'");
    let corral = dir.start();
    let mut stream = corral.endless("/generate");
    assert_eq!(ask(&corral, &old).status, 200);
    ask(&corral, &new).problem(401, "invalid-key");

    // The server does not watch this file yet.
    write("keys = 'new.toml'\nkv-cells = 20000");
    corral.signal("HUP");
    corral.wait_for_stderr(
        "kv-cells changed from nothing to '20000', which takes effect with a restart",
    );
    corral.wait_for_stderr("reloaded the keys: there are 1");
    let expected = "server.toml: keys changed from ";
    assert!(corral.stderr().contains(expected), "{}", corral.stderr());
    ask(&corral, &old).problem(401, "invalid-key");
    assert_eq!(ask(&corral, &new).status, 200);
    stream.next_text();

    // Access and quotas of routes.
    write("keys = 'new.toml'\nquota = ['/hello=concurrent-requests:0']\nverbose = true");
    corral.signal("HUP");
    corral.wait_for_stderr("verbose changed from nothing to 'true'\n");
    corral.wait_until("the quota refuses", |_| ask(&corral, &new).status == 429);
    stream.next_text();

    // Broken files change nothing.
    let refused = |number: usize| {
        corral.signal("HUP");
        corral.wait_until("the file is refused", |_| {
            corral
                .stderr()
                .matches("is not applied, and nothing changes")
                .count()
                == number
        });
    };
    write("keys = 'old.toml'\nquoat = []");
    refused(1);
    write("keys = 'server.toml'");
    refused(2);
    let stderr = corral.stderr();
    let expected = "unknown field 'quoat'; did you mean 'quota'?";
    assert!(stderr.contains(expected), "{stderr}");
    assert!(stderr.contains("server.toml is not a key file"), "{stderr}");
    assert_eq!(ask(&corral, &new).status, 429);
    ask(&corral, &old).problem(401, "invalid-key");

    write("keys = 'new.toml'");
    corral.signal("HUP");
    corral.wait_until("the quota is gone", |_| ask(&corral, &new).status == 200);
    // Without `keys` the server stays closed until a restart.
    dir.write(&cache);
    corral.signal("HUP");
    corral.wait_for_stderr("to nothing, which takes effect with a restart");
    // Nor is any route open then.
    corral.wait_until("the policies are applied", |_| {
        corral.post("/generate", "").status == 401
    });
    ask(&corral, "").problem(401, "missing-key");
    stream.next_text();
}

#[test]
fn hangup_without_file_reloads_and_serves_on() {
    let (file, _) = key_file();
    let corral = Corral::start_with(&["--keys", &file, "--open-route", "/generate"]);
    corral.signal("HUP");
    corral.wait_for_stderr("reloaded the keys: there are 1");
    corral.check_alive();
    corral.wait_until_idle();
}
