//! Plugins in C: the SDK's own suite, the examples, and projects of `corral new --lang c`.
//!
//! `tests/clients/setup.sh` installs the compiler.

use corral_tests::authoring::{
    BUILD_TIMEOUT, check_chat_and_job, check_parts, check_saved_change, deploy_shout, root,
    succeeds,
};
use corral_tests::{
    EXAMPLES_IN_C, RELIABLE_SUMS, artifacts, check_uncaught_errors, run_command, scratch_dir,
    start_examples,
};
use std::path::{Path, PathBuf};
use std::process::Command;

fn corral(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(artifacts::binary());
    command
        .current_dir(dir)
        .args(arguments)
        .env("XDG_CACHE_HOME", artifacts::scratch().join("c"));
    command
}

/// A new project of this name; with this source, unless it is that of the template.
fn project(name: &str, source: Option<&Path>) -> PathBuf {
    let dir = scratch_dir();
    let printed = succeeds(corral(&dir, &["new", name, "--lang", "c"])).stdout;
    assert!(printed.contains("a handler in C"), "{printed}");
    let project = dir.join(name);
    if let Some(source) = source {
        std::fs::copy(source, project.join("plugin.c")).expect("copied");
    }
    project
}

/// Builds a project without warnings. Returns its component.
fn build(project: &Path) -> PathBuf {
    let built = succeeds(corral(project, &["build"]));
    assert_eq!(built.stderr, "");
    let name = project.file_name().expect("a name").to_string_lossy();
    let component = format!("{name}.wasm");
    let expected = format!("{component} (");
    assert!(built.stdout.starts_with(&expected), "{built:?}");
    let component = project.join(component);
    // Traps name functions.
    let bytes = std::fs::read(&component).expect("built");
    let name = b"corral_handle";
    assert!(bytes.windows(name.len()).any(|bytes| bytes == name));
    component
}

#[test]
fn json_suite_passes() {
    let dir = root().join("plugins/c");
    let program = scratch_dir().join("json_test");
    let mut compiler = Command::new("clang-19");
    compiler
        .current_dir(&dir)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I."])
        .args(["tests/json_test.c", "json.c", "-lm", "-o"])
        .arg(&program);
    succeeds(compiler);
    let ended = succeeds(Command::new(program));
    assert_eq!(ended.stdout, "5 tests passed\n", "{ended:?}");
}

#[test]
fn examples_answer_as_in_rust() {
    let components = EXAMPLES_IN_C.map(|name| {
        let source = format!("examples/{name}/{}.c", name.replace('-', "_"));
        (name, build(&project(name, Some(&root().join(source)))))
    });
    let plugin = |(name, file): &(&str, PathBuf)| format!("/c/{name}={}", file.display());
    let plugins = components.each_ref().map(plugin);
    start_examples("/c", &EXAMPLES_IN_C, &plugins);
    let [(name, best_of_n), _] = &components;
    assert_eq!(*name, "best-of-n");
    check_uncaught_errors(best_of_n, "");
}

#[test]
fn sdk_answers_and_maps_errors() {
    let source = root().join("tests/tests/languages/c/plugin.c");
    let project = project("parts", Some(&source));
    build(&project);
    let long = "x".repeat(40_000);
    let deep = "[".repeat(100);
    let answers = [
        ["handled", "", "not-found 0"],
        ["parts?a=b", "", "POST /parts/parts ?a=b - - dry"],
    ];
    let errors = [
        ("json", "\0", 400, "invalid-body"),
        ("json", &deep, 400, "invalid-body"),
        ("empty", "", 400, "invalid"),
        ("long", &long, 400, "context-full"),
        ("snapshot", "", 403, "not-granted"),
    ];
    let server = check_parts(&project, &answers, &errors);
    let answer = server.request("POST", "/parts/parts", &[("x-name", "Ada")], "");
    assert_eq!(answer.body, "POST /parts/parts ? Ada - dry");
}

/// The code of the guide, each block as a plugin.
#[test]
fn code_of_the_guide_compiles() {
    let guide = std::fs::read_to_string(root().join("docs/c.md")).expect("readable");
    let blocks = guide.split("\n```c\n").skip(1);
    let blocks: Vec<_> = blocks.map(|block| block.split("\n```\n").next()).collect();
    assert!(blocks.len() >= 2, "{blocks:?}");
    let project = project("guide", None);
    for block in blocks {
        let source = format!("{}\n", block.expect("an end"));
        std::fs::write(project.join("plugin.c"), source).expect("written");
        build(&project);
    }
}

#[test]
fn chat_and_job_are_built() {
    check_chat_and_job("c", corral, |project| drop(build(project)));
}

#[test]
fn saved_change_is_served() {
    let project = project("shout", None);
    build(&project);
    let server = deploy_shout(&project);
    let watch = corral(&project, &["watch"]);
    let change = [".max_tokens = 64", ".max_tokens = 1"];
    let expected = &RELIABLE_SUMS[0].answer()[..1];
    check_saved_change(watch, &server, &project.join("plugin.c"), change, expected);
}

#[test]
fn failed_build_keeps_the_component() {
    let project = project("shout", None);
    build(&project);
    std::fs::write(project.join("plugin.c"), "void broken( {\n").expect("written");
    let ended = run_command(&mut corral(&project, &["build"]), BUILD_TIMEOUT);
    ended.check_error(1, &["the build failed"]);
    assert!(ended.stderr.contains("plugin.c:1:"), "{ended:?}");
    // A missing handler is found when the files are linked.
    std::fs::write(project.join("plugin.c"), "#include \"corral.h\"\n").expect("written");
    let ended = run_command(&mut corral(&project, &["build"]), BUILD_TIMEOUT);
    ended.check_error(1, &["the build failed"]);
    assert!(ended.stderr.contains("corral_handle"), "{ended:?}");
    assert!(project.join("shout.wasm").is_file());

    let mut without = corral(&project, &["build"]);
    without.env("PATH", "/nowhere");
    let ended = run_command(&mut without, BUILD_TIMEOUT);
    ended.check_error(1, &["cannot find a C compiler", "wasi-libc", "zig"]);
    std::fs::remove_dir_all(project.join("corral-sdk")).expect("own directory");
    let ended = run_command(&mut corral(&project, &["build"]), BUILD_TIMEOUT);
    ended.check_error(1, &["no corral-sdk/corral.h", "corral new NAME --lang c"]);
}
