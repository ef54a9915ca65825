//! `wasi:config`: a plugin reads its configuration and the secrets that its deployment is granted, nobody else sees a
//! secret, and a reload replaces it.

use corral_tests::deployments::{deploy_plugin, manifest, show, try_deploy, upload};
use corral_tests::{Corral, Response, artifacts, run, scratch_dir, serve, utf8, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Values of secrets, and the beginning of all.
const MARK: &str = "s3cret-";
const VARIABLE: &str = "s3cret-variable-41f7";
const FILE: &str = "s3cret-file-88d0";
const CREDENTIAL: &str = "s3cret-credential-c3a9";

/// What the test plugin at `/NAME` responds.
fn call(corral: &Corral, name: &str, call: &Value) -> Response {
    corral.post(&format!("/{name}"), call.to_string())
}

fn value(corral: &Corral, name: &str, key: &str) -> Value {
    call(corral, name, &json!({"get": key})).ok_json()
}

/// Fails if a text contains a secret.
fn check_hidden(text: &str) {
    assert!(!text.contains(MARK), "{text}");
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("readable").flatten();
    let below = entries.map(|entry| match entry.path() {
        path if path.is_dir() => files(&path),
        path => vec![path],
    });
    below.flatten().collect()
}

/// A directory with a configuration that defines these secrets, each with a file of its name.
struct Directory(PathBuf);

impl Directory {
    fn new(secrets: &[&str]) -> Self {
        let dir = Directory(scratch_dir());
        dir.define(secrets);
        dir
    }

    fn config(&self) -> PathBuf {
        self.0.join("server.toml")
    }

    fn define(&self, secrets: &[&str]) {
        let secrets = secrets.iter().map(|name| format!("{name}=file:{name}"));
        let secrets = Value::from(Vec::from_iter(secrets));
        std::fs::write(self.config(), format!("secret = {secrets}\n")).expect("written");
    }

    fn set(&self, secret: &str, value: &str) {
        std::fs::write(self.0.join(secret), value).expect("written");
    }

    fn start(&self, store: &Path) -> Corral {
        Corral::start_in(store, &["--config", utf8(&self.config())])
    }
}

/// Reloads the options and waits for the line of the log.
fn reload(corral: &Corral, line: &str) {
    let count = |text: &str| text.matches(line).count();
    let before = count(&corral.stderr());
    corral.signal("HUP");
    wait_until(line, || count(&corral.stderr()) > before);
}

#[test]
fn granted_secrets_are_read_and_never_shown() {
    let dir = scratch_dir();
    let file = dir.join("file-key");
    std::fs::write(&file, format!("{FILE}\n")).expect("written");
    std::fs::write(dir.join("service-key"), CREDENTIAL).expect("written");
    let setup = format!(
        "export TEST_SECRET={VARIABLE} CREDENTIALS_DIRECTORY='{}'",
        dir.display()
    );
    let secrets = [
        "variable-key=env:TEST_SECRET",
        &format!("file-key=file:{}", file.display()),
        "service-key=credential:service-key",
    ];
    let mut arguments = vec!["--log-format", "json", "--log-level", "debug"];
    arguments.extend(secrets.iter().flat_map(|secret| ["--secret", secret]));
    let store = scratch_dir();
    let corral = Corral::start_after(&setup, Some(&store), &arguments);
    deploy_plugin(
        &corral,
        "granted",
        "config",
        json!({"grants": {"secrets": ["variable-key", "service-key", "file-key"]},
               "configuration": {"GREETING": "hello"}}),
    );
    assert_eq!(value(&corral, "granted", "GREETING"), "hello");
    assert_eq!(value(&corral, "granted", "variable-key"), VARIABLE);
    assert_eq!(value(&corral, "granted", "file-key"), FILE);
    assert_eq!(value(&corral, "granted", "service-key"), CREDENTIAL);
    assert_eq!(value(&corral, "granted", "other"), Value::Null);
    let configuration = json!([["GREETING", "hello"]]);
    let all = call(&corral, "granted", &json!({"all": {}}));
    assert_eq!(all.json(), configuration, "without secrets");
    let environment = call(&corral, "granted", &json!({"environment": {}}));
    assert_eq!(environment.json(), configuration, "without secrets");

    // What is not granted.
    let more = json!({"grants": {"secrets": ["file-key"]}});
    deploy_plugin(&corral, "some", "config", more);
    assert_eq!(value(&corral, "some", "file-key"), FILE);
    assert_eq!(value(&corral, "some", "variable-key"), Value::Null);
    let answer = call(&corral, "some", &json!({"require": "variable-key"}));
    let detail = answer.problem(403, "not-granted");
    assert!(detail.contains("'variable-key'"), "{detail}");
    assert!(detail.contains("`grants.secrets`"), "{detail}");
    check_hidden(&answer.body);
    deploy_plugin(&corral, "none", "config", json!({}));
    for question in [json!({"get": "file-key"}), json!({"all": {}})] {
        let answer = call(&corral, "none", &question);
        let detail = answer.problem(403, "not-granted");
        assert!(detail.contains("`grants.secrets`"), "{detail}");
        check_hidden(&answer.body);
    }

    // The names are shown, and nothing shows a value.
    let shown = corral.cli_output(&["show", "granted"]);
    for line in [
        "revision 1 may read the secret variable-key\n",
        "revision 1 may read the secret service-key\n",
        "revision 1 has the configuration GREETING\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let names = &show(&corral, "granted")["revisions"][0]["manifest"]["grants"]["secrets"];
    assert_eq!(*names, json!(["variable-key", "service-key", "file-key"]));
    check_hidden(&shown);
    for command in [
        &["list"][..],
        &["show", "granted", "--json"],
        &["logs", "granted"],
    ] {
        check_hidden(&corral.cli_output(command));
    }
    for path in [
        "/deployments",
        "/deployments/granted",
        "/requests",
        "/metrics",
        "/openapi.json",
    ] {
        check_hidden(&corral.request_admin("GET", path, "").body);
    }
    reload(&corral, "reloaded the secrets: there are 3");
    std::fs::write(&file, "").expect("written");
    reload(&corral, "the old secrets stay in use");
    assert_eq!(value(&corral, "granted", "file-key"), FILE);
    check_hidden(&corral.stderr());
    for file in files(&store) {
        let bytes = std::fs::read(file).expect("readable");
        check_hidden(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn undefined_secret_refuses_its_deployment() {
    let corral = Corral::start_with_store(&["--secret", "other=env:PATH"]);
    let digest = upload(&corral, &artifacts::component("config"));
    let more = json!({"grants": {"secrets": ["other", "openai-key"]}});
    let wanted = manifest("a", &digest, more);
    let detail = try_deploy(&corral, &wanted).problem(422, "no-secret");
    for part in [
        "the secret 'openai-key'",
        "--secret openai-key=file:PATH",
        "`grants.secrets`",
    ] {
        assert!(detail.contains(part), "{detail}");
    }
    let more = json!({"grants": {"secrets": ["s3cret-VALUE"]}});
    let wanted = manifest("a", &digest, more);
    let answer = try_deploy(&corral, &wanted);
    answer.problem(422, "invalid-manifest");
    check_hidden(&answer.body);
}

#[test]
fn reload_replaces_secrets_of_configuration() {
    let dir = Directory::new(&["key"]);
    dir.set("key", "s3cret-first");
    let store = scratch_dir();
    let corral = dir.start(&store);
    let grants = json!({"grants": {"secrets": ["key"]}});
    deploy_plugin(&corral, "a", "config", grants);
    assert_eq!(value(&corral, "a", "key"), "s3cret-first");
    dir.set("key", "s3cret-second");
    reload(&corral, "reloaded the secrets");
    assert_eq!(value(&corral, "a", "key"), "s3cret-second");
    // A file that is wrong changes nothing.
    dir.set("key", "\n");
    reload(&corral, "nothing changes");
    assert_eq!(value(&corral, "a", "key"), "s3cret-second");
    // A secret that is taken away is gone at once.
    dir.define(&[]);
    reload(&corral, "secret changed from");
    wait_until("the end of the secret", || {
        let answer = call(&corral, "a", &json!({"get": "key"}));
        answer.status == 500 && answer.body.contains("the secret 'key'")
    });
    check_hidden(&corral.stderr());
    drop(corral);

    // A server without the secret does not serve the deployment until a reload defines it.
    let corral = dir.start(&store);
    let problem = corral.cli_output(&["show", "a"]);
    assert!(problem.contains("revision 1 cannot serve: "), "{problem}");
    assert!(problem.contains("the secret 'key'"), "{problem}");
    assert_eq!(call(&corral, "a", &json!({"get": "key"})).status, 503);
    dir.set("key", "s3cret-third");
    dir.define(&["key"]);
    reload(&corral, "reloaded the secrets");
    wait_until("the deployment", || {
        call(&corral, "a", &json!({"get": "key"})).status == 200
    });
    assert_eq!(value(&corral, "a", "key"), "s3cret-third");
}

#[test]
fn check_reads_secrets_and_shows_their_places() {
    let dir = Directory::new(&["key", "other"]);
    dir.set("key", "s3cret-first");
    let model = artifacts::long_model();
    let config = dir.config();
    let check = || {
        serve(&[
            "--check",
            "--model",
            utf8(&model),
            "--config",
            utf8(&config),
        ])
    };
    let ended = check();
    ended.check_error(
        2,
        &["server.toml:1: secret: cannot read the secret 'other' from the file"],
    );
    check_hidden(&format!("{ended:?}"));
    dir.set("other", "s3cret-other");
    let ended = check().check_success();
    let place = dir.0.join("key");
    let line = format!("secret key is in the file {}\n", place.display());
    assert!(ended.stdout.contains(&line), "{ended:?}");
    check_hidden(&format!("{ended:?}"));
    // A value in place of its source is not repeated.
    let ended = run([
        "serve",
        "--model",
        utf8(&model),
        "--secret",
        "key=s3cret-first",
    ]);
    ended.check_error(
        2,
        &["value 1 of --secret is wrong", "never the value itself"],
    );
    check_hidden(&format!("{ended:?}"));
}

#[test]
fn deploy_sets_entries_of_configuration() {
    let corral = Corral::start_with_store(&[]);
    let component = artifacts::plugin("config");
    let arguments = ["deploy", utf8(&component), "--route", "/config"];
    corral.cli_output(
        &[
            &arguments[..],
            &["--config", "GREETING=a=b", "--config", "X="],
        ]
        .concat(),
    );
    assert_eq!(value(&corral, "config", "GREETING"), "a=b");
    assert_eq!(value(&corral, "config", "X"), "");
    let wrong = corral.cli(&[&arguments[..], &["--config", "a b=c"]].concat());
    wrong.check_error(1, &["configuration.a b", "not a valid name"]);
}
