//! Plugins in Python: the SDK's own suite, the examples, and a project of `corral new --lang python`.
//!
//! `tests/clients/setup.sh` installs componentize-py beside the clients.

use corral_tests::authoring::{
    BUILD_TIMEOUT, check_chat_and_job, check_saved_change, deploy_shout, root, succeeds,
};
use corral_tests::{
    EXAMPLES_IN_ALL_LANGUAGES, RELIABLE_SUMS, artifacts, check_uncaught_errors, run_command,
    scratch_dir, start_examples,
};
use std::path::{Path, PathBuf};
use std::process::Command;

fn tools() -> PathBuf {
    artifacts::clients().join("python/bin")
}

/// A program of the Python environment, in this directory.
fn command(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(tools().join(program));
    command
        .current_dir(dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("PYTHONPATH");
    command
}

/// `corral` with the tools of the environment in `PATH`, as after the activation of a project's own.
fn corral(dir: &Path, arguments: &[&str]) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(artifacts::binary());
    command
        .current_dir(dir)
        .args(arguments)
        .env("PATH", format!("{}:{path}", tools().display()))
        .env("XDG_CACHE_HOME", artifacts::scratch().join("python"));
    command
}

/// Copies files into a directory.
fn copy(files: impl IntoIterator<Item = PathBuf>, to: &Path) {
    std::fs::create_dir_all(to).expect("own directory");
    for file in files {
        let name = file.file_name().expect("a file");
        std::fs::copy(&file, to.join(name)).expect("copied");
    }
}

fn files(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "py"))
}

/// One component of all examples, since each has an interpreter: the last part of the path names the example.
fn examples() -> PathBuf {
    let dir = scratch_dir();
    copy(
        files(&root().join("plugins/python/corral_sdk")),
        &dir.join("corral_sdk"),
    );
    let examples = EXAMPLES_IN_ALL_LANGUAGES.map(|name| (name, name.replace('-', "_")));
    for (name, module) in &examples {
        let file = root().join(format!("examples/{name}/{module}.py"));
        copy([file], &dir);
    }
    let imports = examples
        .each_ref()
        .map(|(_, module)| format!("import {module}\n"));
    let table = examples
        .each_ref()
        .map(|(name, module)| format!("    {name:?}: {module}.handle,\n"));
    let app = format!(
        "from corral_sdk import handler\n{}EXAMPLES = {{\n{}}}\n\n\n@handler\nasync def handle(request):\n    \
         return await EXAMPLES[request.path.rsplit('/', 1)[1]](request)\n",
        imports.concat(),
        table.concat()
    );
    std::fs::write(dir.join("app.py"), app).expect("written");
    std::fs::write(dir.join("corral.toml"), "component = \"examples.wasm\"\n").expect("written");
    let printed = succeeds(corral(&dir, &["build"])).stdout;
    assert!(printed.contains("examples.wasm ("), "{printed}");
    dir.join("examples.wasm")
}

#[test]
fn sdk_suite_passes() {
    let mut suite = command("python", &root().join("plugins/python"));
    suite.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]);
    let ended = succeeds(suite);
    assert!(ended.stdout.contains(" passed"), "{ended:?}");
    assert!(!ended.stdout.contains("skipped"), "{ended:?}");
}

#[test]
fn examples_answer_as_in_rust() {
    let component = examples();
    let plugin = format!("/python={}", component.display());
    start_examples("/python", &EXAMPLES_IN_ALL_LANGUAGES, &[plugin]);
    check_uncaught_errors(&component, "/best-of-n");
}

#[test]
fn new_project_is_tested_built_and_watched() {
    let dir = scratch_dir();
    let printed = succeeds(corral(&dir, &["new", "shout", "--lang", "python"])).stdout;
    assert!(printed.contains("created shout"), "{printed}");
    let project = dir.join("shout");
    let mut suite = command("pytest", &project);
    suite.args(["-q", "-p", "no:cacheprovider"]);
    assert!(succeeds(suite).stdout.contains("1 passed"));
    let printed = succeeds(corral(&project, &["build"])).stdout;
    assert!(printed.contains("shout.wasm ("), "{printed}");
    let server = deploy_shout(&project);

    // A broken module is shown, and the old component stays.
    let app = project.join("app.py");
    let good = std::fs::read_to_string(&app).expect("readable");
    std::fs::write(&app, "def broken(:\n").expect("written");
    let ended = run_command(&mut corral(&project, &["build"]), BUILD_TIMEOUT);
    ended.check_error(1, &["the build failed"]);
    assert!(project.join("shout.wasm").is_file());

    // A saved change is served.
    std::fs::write(&app, good).expect("written");
    let watch = corral(&project, &["watch"]);
    let change = ["Response.text(await", "Response.text('= ' + await"];
    let expected = format!("= {}", RELIABLE_SUMS[0].answer());
    check_saved_change(watch, &server, &app, change, &expected);
}

#[test]
fn chat_and_job_are_tested_and_built() {
    check_chat_and_job("python", corral, |project| {
        let mut suite = command("pytest", project);
        suite.args(["-q", "-p", "no:cacheprovider"]);
        assert!(succeeds(suite).stdout.contains(" passed"));
        succeeds(corral(project, &["build"]));
    });
}

#[test]
fn missing_tool_is_named() {
    let dir = scratch_dir();
    succeeds(corral(&dir, &["new", "shout", "--lang", "python"]));
    let mut build = corral(&dir.join("shout"), &["build"]);
    build.env("PATH", "/nowhere");
    let ended = run_command(&mut build, BUILD_TIMEOUT);
    ended.check_error(1, &["cannot find componentize-py", "requirements.txt"]);
    let other = ["new", "other", "--lang", "python", "--template", "sampler"];
    let ended = run_command(&mut corral(&dir, &other), BUILD_TIMEOUT);
    ended.check_error(2, &["no template sampler in Python", "handler, chat, job"]);
}
