//! The deployment commands of the command line.

use corral_tests::{Corral, artifacts, run, scratch_dir};
use serde_json::Value;

#[test]
fn deployment_lifecycle_on_command_line() {
    let corral = Corral::start_with_store(&[]);
    let plugin = artifacts::plugin("misbehave");
    let plugin = plugin.to_str().expect("a path in UTF-8");
    let printed = corral.cli_output(&["deploy", plugin, "--name", "a", "--route", "/a"]);
    let expected = "deployed revision 1: a is serving at /a, traffic 1\n";
    assert_eq!(printed, expected);
    let dir = scratch_dir();
    let manifest = dir.join("corral.toml");
    let text = format!(
        "name = 'a'\ncomponent = {plugin:?}\nroutes = ['/a']\n[configuration]\nVERSION = '2'\n"
    );
    std::fs::write(&manifest, text).expect("written");
    let dir = dir.to_str().expect("a path in UTF-8");
    let deployed = corral.cli_json(&["deploy", dir]);
    assert_eq!(deployed["revision"]["number"], 2);
    let found = corral.cli_output(&["invoke", "a", "--path", "/a/env"]);
    assert_eq!(found, "VERSION=2\n");
    let answer = corral.cli_json(&["invoke", "a", "--path", "/a/echo", "--data", "hello"]);
    assert_eq!(answer["status"], 200);
    assert_eq!(answer["body"], "hello");
    let ended = corral.cli(&["invoke", "a"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("'a' answered with 404"), "{ended:?}");

    let list = corral.cli_output(&["list"]);
    for row in [
        ["a", "serving", "/a"],
        ["/generate", "serving", "/generate"],
    ] {
        let is_listed = list.lines().any(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            columns.starts_with(&row)
        });
        assert!(is_listed, "{row:?}: {list}");
    }
    assert_eq!(corral.cli_json(&["list"])["deployments"][4]["name"], "a");
    let shown = corral.cli_output(&["show", "a"]);
    let expected = "a is serving at /a, traffic 2\n";
    assert!(shown.starts_with(expected), "{shown}");
    assert_eq!(corral.cli_json(&["show", "a"])["revisions"][1]["number"], 2);
    let printed = corral.cli_output(&["split", "a", "1=3", "2=1"]);
    assert_eq!(printed, "a is serving at /a, traffic 1=3 2=1\n");
    assert_eq!(
        corral.cli_json(&["rollback", "a"])["traffic"][0]["revision"],
        2
    );
    let printed = corral.cli_output(&["rollback", "a", "--revision", "1"]);
    assert_eq!(printed, "a is serving at /a, traffic 1\n");
    assert_eq!(corral.cli_output(&["invoke", "a", "--path", "/a/env"]), "");
    let found = corral.cli_output(&["pause", "a"]);
    assert_eq!(found, "a is paused at /a, traffic 1\n");
    corral.get("/a/ok").problem(503, "paused");
    assert_eq!(corral.cli_json(&["resume", "a"])["state"], "serving");
    assert_eq!(corral.get("/a/log").status, 200);
    let logs = corral.cli_output(&["logs", "a"]);
    let expected = " stdout: a line on the standard output\n";
    assert!(logs.contains(expected), "{logs}");
    let line = corral.cli_output(&["logs", "a", "--after", "1", "--json"]);
    let found = &serde_json::from_str::<Value>(&line).expect("JSON")["number"];
    assert_eq!(*found, 2);
    assert_eq!(corral.cli_output(&["remove", "a"]), "removed a\n");
    let ended = corral.cli(&["show", "a"]);
    ended.check_error(1, &["there is no deployment 'a'"]);
    let schema: Value =
        serde_json::from_str(&corral.cli_output(&["deploy", "--schema"])).expect("JSON");
    assert_eq!(schema["title"], "Manifest");
}

/// Exit codes and arguments, and their errors.
const WRONG_COMMANDS: &str = "
1 deploy COMPONENT --route /x => exports nothing that Corral can call
2 deploy COMPONENT => give --route /unknown-export
2 deploy COMPONENT --route x => write '/x'
1 deploy /no.wasm --route /x => cannot read the component /no.wasm
1 deploy /no.toml => cannot read the manifest /no.toml
1 deploy MANIFEST => line 2, column 1: unknown field `color`
2 deploy MANIFEST --route /x => are for a component
2 show A => is not a valid name
2 split a => <REVISION=WEIGHT>
2 split a 1 => write REVISION=WEIGHT
1 rollback a => there is no deployment 'a'
";

#[test]
fn deploy_errors_are_one_line() {
    let corral = Corral::start_with_store(&[]);
    let component = scratch_dir().join("unknown-export.wasm");
    std::fs::write(&component, artifacts::unknown_export()).expect("written");
    let component = component.to_str().expect("a path in UTF-8");
    let manifest = scratch_dir().join("corral.toml");
    std::fs::write(&manifest, "name = 'a'\ncolor = 'red'\n").expect("written");
    let manifest = manifest.to_str().expect("a path in UTF-8");
    for line in WRONG_COMMANDS.trim().lines() {
        let (command, expected) = line.split_once(" => ").expect("an error");
        let (code, arguments) = command.split_once(' ').expect("arguments");
        let arguments = arguments.split(' ').map(|argument| match argument {
            "COMPONENT" => component,
            "MANIFEST" => manifest,
            other => other,
        });
        let ended = corral.cli(&arguments.collect::<Vec<_>>());
        ended.check_error(code.parse().expect("a number"), &[expected]);
    }
    let without_store = Corral::start();
    let ended = without_store.cli(&["deploy", component, "--route", "/x"]);
    ended.check_error(1, &["no store", "corral serve --store DIR"]);
    let list = |admin: &str| run(["list", "--admin", admin]);
    list(corral.admin()).check_error(1, &["--token-file"]);
    list(corral.public()).check_error(1, &["is not an admin listener"]);
    list("http://127.0.0.1:1").check_error(1, &["nothing answers at http://127.0.0.1:1"]);
}
