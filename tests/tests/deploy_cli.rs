//! The deployment commands of the command line.

use corral_tests::{Corral, Ended, artifacts, scratch_dir};
use serde_json::Value;
use std::path::PathBuf;

struct Cli {
    corral: Corral,
    admin: String,
    token: PathBuf,
}

impl Cli {
    fn start() -> Self {
        let dir = scratch_dir();
        let corral = Corral::start_with(&["--store", dir.to_str().expect("ours")]);
        let admin = format!("http://{}", corral.admin());
        let token = dir.join("admin-token");
        Cli {
            corral,
            admin,
            token,
        }
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let token = self.token.to_str().expect("ours");
        let server = ["--admin", &self.admin, "--token-file", token];
        corral_tests::run(arguments.iter().chain(&server))
    }

    /// Runs the command, which must succeed. Returns its output.
    fn run_ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.run_ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    }

    /// Runs the command, which must fail with one line. Returns that line.
    fn run_err(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_ne!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{arguments:?}: {ended:?}");
        ended.stderr
    }
}

#[test]
fn deployment_lifecycle_on_command_line() {
    let cli = Cli::start();
    let plugin = artifacts::plugin("misbehave");
    let plugin = plugin.to_str().expect("ours");
    let printed = cli.run_ok(&["deploy", plugin, "--name", "a", "--route", "/a"]);
    assert_eq!(
        printed,
        "deployed revision 1: a is serving at /a, traffic 1\n"
    );
    let dir = scratch_dir();
    let manifest = dir.join("corral.toml");
    let text = format!(
        "name = 'a'\ncomponent = {plugin:?}\nroutes = ['/a']\n[configuration]\nVERSION = '2'\n"
    );
    std::fs::write(&manifest, text).expect("ours");
    let dir = dir.to_str().expect("ours");
    let deployed = cli.json(&["deploy", dir]);
    assert_eq!(deployed["revision"]["number"], 2);
    assert_eq!(
        cli.run_ok(&["invoke", "a", "--path", "/a/env"]),
        "VERSION=2\n"
    );
    let answer = cli.json(&["invoke", "a", "--path", "/a/echo", "--data", "hello"]);
    assert_eq!(
        (&answer["status"], &answer["body"]),
        (&200.into(), &"hello".into())
    );
    let error = cli.run_err(&["invoke", "a"]);
    assert!(error.contains("'a' answered with 404"), "{error}");

    let list = cli.run_ok(&["list"]);
    assert!(list.contains("\na           serving  /a "), "{list}");
    assert!(list.contains("\n/generate   serving  /generate"), "{list}");
    assert_eq!(cli.json(&["list"])["deployments"][4]["name"], "a");
    let shown = cli.run_ok(&["show", "a"]);
    assert!(
        shown.starts_with("a is serving at /a, traffic 2\n"),
        "{shown}"
    );
    assert_eq!(cli.json(&["show", "a"])["revisions"][1]["number"], 2);
    let printed = cli.run_ok(&["split", "a", "1=3", "2=1"]);
    assert_eq!(printed, "a is serving at /a, traffic 1=3 2=1\n");
    assert_eq!(cli.json(&["rollback", "a"])["traffic"][0]["revision"], 2);
    let printed = cli.run_ok(&["rollback", "a", "--revision", "1"]);
    assert_eq!(printed, "a is serving at /a, traffic 1\n");
    assert_eq!(cli.run_ok(&["invoke", "a", "--path", "/a/env"]), "");
    assert_eq!(
        cli.run_ok(&["pause", "a"]),
        "a is paused at /a, traffic 1\n"
    );
    cli.corral.get("/a/ok").problem(503, "paused");
    assert_eq!(cli.json(&["resume", "a"])["state"], "serving");
    assert_eq!(cli.corral.get("/a/log").status, 200);
    let logs = cli.run_ok(&["logs", "a"]);
    assert!(
        logs.contains(" stdout: a line on the standard output\n"),
        "{logs}"
    );
    let line = cli.run_ok(&["logs", "a", "--after", "1", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&line).expect("JSON")["number"],
        2
    );
    assert_eq!(cli.run_ok(&["remove", "a"]), "removed a\n");
    assert!(
        cli.run_err(&["show", "a"])
            .contains("there is no deployment 'a'")
    );
    let schema: Value = serde_json::from_str(&cli.run_ok(&["deploy", "--schema"])).expect("JSON");
    assert_eq!(schema["title"], "Manifest");
}

#[test]
fn deploy_errors_are_one_line() {
    let cli = Cli::start();
    let unknown_export = artifacts::plugin("unknown-export");
    let unknown_export = unknown_export.to_str().expect("ours");
    let dir = scratch_dir();
    let manifest = dir.join("corral.toml");
    std::fs::write(&manifest, "name = 'a'\ncolour = 'red'\n").expect("ours");
    let manifest = manifest.to_str().expect("ours");
    for (arguments, expected) in [
        (
            vec!["deploy", unknown_export, "--route", "/x"],
            "exports no role",
        ),
        (
            vec!["deploy", unknown_export],
            "give --route /unknown-export",
        ),
        (vec!["deploy", unknown_export, "--route", "x"], "write '/x'"),
        (
            vec!["deploy", "/nowhere.wasm", "--route", "/x"],
            "cannot read the component /nowhere.wasm",
        ),
        (
            vec!["deploy", "/nowhere.toml"],
            "cannot read the manifest /nowhere.toml",
        ),
        (
            vec!["deploy", manifest],
            "line 2, column 1: unknown field `colour`",
        ),
        (
            vec!["deploy", manifest, "--route", "/x"],
            "are for a component",
        ),
        (vec!["show", "A"], "is not a valid name"),
        (vec!["split", "a"], "<REVISION=WEIGHT>"),
        (vec!["split", "a", "1"], "write REVISION=WEIGHT"),
        (vec!["rollback", "a"], "there is no deployment 'a'"),
    ] {
        let error = cli.run_err(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let ended = corral_tests::run(["list", "--admin", &cli.admin]);
    assert!(ended.stderr.contains("--token-file"), "{ended:?}");
    let public = format!("http://{}", cli.corral.public());
    let token = cli.token.to_str().expect("ours");
    let ended = corral_tests::run(["list", "--admin", &public, "--token-file", token]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let ended = corral_tests::run(["list", "--admin", "http://127.0.0.1:1"]);
    assert!(
        ended
            .stderr
            .contains("nothing answers at http://127.0.0.1:1"),
        "{ended:?}"
    );
}
