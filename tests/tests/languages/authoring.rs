//! `corral new`, `build` and `watch`: every template works as its README says, and a saved change is served.
//!
//! Needs cargo, a compiler for WebAssembly (see `plugins/build.sh`) and the crates of `plugins/Cargo.lock` in cargo's
//! cache. All projects share one target directory and, except for one, the SDK of this checkout, so that it is built once.

use corral_tests::{
    Corral, RELIABLE_SUMS, RunOutput, Sum, Watch, artifacts, run_command, scratch_dir, signal,
    wait_for,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(900);
const SUM: Sum = RELIABLE_SUMS[0];

/// A program in this directory with the environment of an author.
fn command(program: impl AsRef<std::ffi::OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(program);
    let shared = artifacts::scratch().join("authoring");
    command
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", shared.join("target"))
        .env("XDG_CACHE_HOME", shared.join("cache"))
        .env("CARGO_NET_OFFLINE", "true")
        // Flags for the tests' own build.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUST_LOG");
    command
}

fn run(mut command: Command) -> RunOutput {
    run_command(&mut command, BUILD_TIMEOUT)
}

fn corral(dir: &Path, arguments: &[&str]) -> RunOutput {
    let mut command = command(artifacts::binary(), dir);
    command.args(arguments);
    run(command)
}

fn succeeds(dir: &Path, arguments: &[&str]) -> String {
    let ended = corral(dir, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.stdout
}

fn sdk() -> String {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/sdk");
    sdk.to_str().expect("a path in UTF-8").to_owned()
}

/// Creates a project with the SDK of this checkout.
fn project(template: &str) -> PathBuf {
    let dir = scratch_dir();
    let name = format!("try-{template}");
    succeeds(
        &dir,
        &["new", &name, "--template", template, "--sdk", &sdk()],
    );
    dir.join(name)
}

/// Tests, builds and deploys a project.
fn deploy(server: &Corral, project: &Path) {
    let mut test = command("cargo", project);
    test.args(["test", "--quiet"]);
    let ended = run(test).check_success();
    assert!(ended.stdout.contains(" passed"), "{ended:?}");
    let printed = succeeds(project, &["build"]);
    let name = project.file_name().expect("a name").to_string_lossy();
    assert!(printed.contains(&format!("{name}.wasm (")), "{printed}");
    assert!(printed.contains(" KiB)"), "{printed}");
    server.cli_output(&["deploy", project.to_str().expect("a path in UTF-8")]);
}

/// The answer of a deployment of [`project`].
fn post(server: &Corral, template: &str, body: impl AsRef<[u8]>) -> String {
    server.post_ok(&format!("/try-{template}"), body).body
}

/// The guide's commands as typed, beside a server that runs already.
#[test]
fn first_plugin_of_the_guide_answers() {
    let guide = include_str!("../../../docs/authors.md");
    let mut blocks = guide.split("```bash\n").skip(1);
    let block = blocks.find_map(|text| {
        let block = text.split("```").next()?;
        block.contains("corral new").then_some(block)
    });
    let lines = block.expect("a block with `corral new`").lines();
    let lines = lines.filter_map(|line| line.strip_prefix("$ "));
    let is_of_server = |line: &&str| line.starts_with("corral serve") || line.starts_with("export");
    let lines: Vec<_> = lines.filter(|line| !is_of_server(line)).collect();
    assert!(lines.len() >= 6, "{lines:?}");
    let server = Corral::start_with_store(&[]);
    let programs = artifacts::binary()
        .parent()
        .expect("a directory")
        .to_owned();
    let path = std::env::var("PATH").expect("a search path");
    let mut shell = command("sh", &scratch_dir());
    shell
        .args(["-euc", &lines.join("\n")])
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("CORRAL_ADMIN", server.admin())
        .env("CORRAL_ADMIN_TOKEN", server.token().expect("a store"));
    let ended = run(shell).check_success();
    assert_eq!(ended.stdout.lines().last(), Some("19"), "{ended:?}");
}

#[test]
fn every_template_answers_after_deploy() {
    let server = Corral::start_with_store(&[]);
    for template in [
        "handler",
        "chat",
        "sampler",
        "templater",
        "middleware",
        "job",
    ] {
        deploy(&server, &project(template));
    }
    for sum in RELIABLE_SUMS {
        let (question, right) = (sum.question(), sum.answer());
        assert_eq!(post(&server, "handler", &question), right);
        assert_eq!(post(&server, "templater", &question), right);
        assert_eq!(post(&server, "middleware", &question), right);
        let body = json!({"messages": [{"role": "user", "content": question}]});
        let answer: Value =
            serde_json::from_str(&post(&server, "chat", body.to_string())).expect("JSON");
        assert_eq!(answer, json!({"text": right}));
        let body = json!({"prompt": question, "settings": {"k": 1}});
        assert_eq!(post(&server, "sampler", body.to_string()), right);
    }
    let prompts: Vec<_> = RELIABLE_SUMS.iter().map(|sum| sum.question()).collect();
    let lines = post(&server, "job", json!({"prompts": prompts}).to_string());
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let expected = RELIABLE_SUMS.iter().enumerate();
    let expected = expected.map(|(index, sum)| json!({"prompt": index, "text": sum.answer()}));
    let expected: Vec<_> = expected.collect();
    assert_eq!(lines, expected);
    let long = server.post("/try-middleware", "x".repeat(1001));
    assert_eq!(long.status, 400, "{long:?}");
    // The linked sampling plugin runs, and its errors reach the client.
    let body = json!({"prompt": "1+1=", "settings": {"k": 0}});
    let answer = server.post("/try-sampler", body.to_string());
    answer.check_refused(400, "expected 1 to 4096");
}

/// Names and versions of the packages of a Cargo.lock that come from a registry.
fn locked(lock: &str) -> Vec<(String, String)> {
    let packages = lock.split("[[package]]\n").skip(1);
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key));
        line.map(|text| text.trim_matches('"').to_owned())
    };
    let packages = packages.filter(|package| package.contains("\nsource = "));
    let packages = packages.map(|package| {
        let name = value(package, "name = ").expect("a name");
        (name, value(package, "version = ").expect("a version"))
    });
    packages.collect()
}

#[test]
fn copied_sdk_builds_with_locked_versions() {
    let dir = scratch_dir();
    let printed = succeeds(&dir, &["new", "shout"]);
    assert!(printed.contains("cd shout && cargo test"), "{printed}");
    let project = dir.join("shout");
    let server = Corral::start_with_store(&[]);
    // Not built yet.
    let path = project.to_str().expect("a path in UTF-8");
    let ended = server.cli(&["deploy", path]);
    ended.check_error(1, &["shout.wasm", "corral build"]);
    deploy(&server, &project);
    assert_eq!(server.post("/shout", SUM.question()).body, SUM.answer());
    // Traps name functions: the symbols of the SDK are there.
    let component = std::fs::read(project.join("shout.wasm")).expect("built");
    let sdk = b"10corral_sdk";
    assert!(component.windows(sdk.len()).any(|bytes| bytes == sdk));
    let read = |file: PathBuf| std::fs::read_to_string(file).expect("readable");
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/Cargo.lock");
    let ours = locked(&read(ours));
    let theirs = locked(&read(project.join("Cargo.lock")));
    assert!(theirs.len() > 20, "{theirs:?}");
    for package in theirs {
        assert!(ours.contains(&package), "{package:?}");
    }
    // A broken source is an error, and cargo shows where.
    std::fs::write(project.join("src/lib.rs"), "fn broken( {}\n").expect("written");
    let ended = corral(&project, &["build"]);
    ended.check_error(1, &["the build failed"]);
    assert!(ended.stderr.contains("src/lib.rs:1:"), "{ended:?}");
}

/// A plugin without the SDK, from what `corral wit` writes: tools of other languages work alike.
#[test]
fn written_wit_builds_a_sync_handler() {
    let project = scratch_dir();
    succeeds(&project, &["wit", "--out", "wit", "--sync"]);
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins");
    std::fs::copy(plugins.join("Cargo.lock"), project.join("Cargo.lock")).expect("copied");
    for (name, text) in [
        (
            "Cargo.toml",
            "[package]\nname = \"sync-handler\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
             [lib]\ncrate-type = [\"cdylib\"]\n\n[dependencies]\nwit-bindgen = \"0.63\"\n\n[workspace]\n",
        ),
        (
            "corral.toml",
            "name = \"sync-handler\"\ncomponent = \"sync-handler.wasm\"\nroutes = [\"/sync-handler\"]\n",
        ),
        ("src/lib.rs", include_str!("authoring/sync_handler.rs")),
    ] {
        let file = project.join(name);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("created");
        std::fs::write(file, text).expect("written");
    }
    succeeds(&project, &["build"]);
    let server = Corral::start_with_store(&[]);
    server.cli_output(&["deploy", project.to_str().expect("a path in UTF-8")]);
    let answer = server.post("/sync-handler", SUM.question());
    assert_eq!((answer.status, answer.body), (200, SUM.answer()));
}

#[test]
fn watch_serves_what_is_saved() {
    let project = project("handler");
    let server = Corral::start_with_store(&[]);
    let mut command = command(artifacts::binary(), &project);
    command.arg("watch");
    let mut watch = Watch::start(command, &server);
    watch.wait_for("deployed revision 1", 1);
    assert_eq!(post(&server, "handler", SUM.question()), SUM.answer());

    let source = project.join("src/lib.rs");
    let original = std::fs::read_to_string(&source).expect("readable");
    let save = |text: &str| std::fs::write(&source, text).expect("written");
    let louder = original.replace(
        "Response::text(text)",
        "Response::text(format!(\"it is {text}\"))",
    );
    assert_ne!(louder, original);
    save(&louder);
    watch.wait_for("deployed revision 2", 1);
    let found = watch.output();
    assert!(found.contains(" after the save"), "{found}");
    let expected = format!("it is {}", SUM.answer());
    assert_eq!(post(&server, "handler", SUM.question()), expected);

    // An error is shown, and the last revision goes on serving.
    save(&louder.replace("Ok(Response", "Ok(Response(("));
    watch.wait_for("the last revision goes on serving", 1);
    let output = watch.output();
    assert!(output.contains("src/lib.rs:"), "{output}");
    assert!(output.contains("corral: the build failed"), "{output}");
    assert_eq!(post(&server, "handler", SUM.question()), expected);

    // So is one of the server.
    save(&original);
    watch.wait_for("deployed revision 3", 1);
    let manifest = project.join("corral.toml");
    let text = std::fs::read_to_string(&manifest).expect("readable");
    std::fs::write(&manifest, format!("{text}models = ['none']\n")).expect("written");
    watch.wait_for("the last revision goes on serving", 2);
    assert_eq!(post(&server, "handler", SUM.question()), SUM.answer());

    signal(watch.process().id(), "INT");
    let status = wait_for("the end of the watch", || {
        watch.process().try_wait().expect("own child")
    });
    assert_eq!(status.code(), Some(0), "{}", watch.output());
}

#[test]
fn wrong_projects_are_refused() {
    let dir = scratch_dir();
    let new = |arguments: &[&str]| corral(&dir, &[&["new"][..], arguments].concat());
    for (arguments, expected) in [
        (&["a/b"][..], "write a name, not a path"),
        (&["/tmp/a"], "write a name, not a path"),
        (&["2a"], "with a letter at the beginning"),
        (&["fn"], "choose another"),
        (&["a", "--template", "nothing"], "handler, chat, sampler"),
        (&["a", "--lang", "cobol"], "no templates in cobol yet"),
    ] {
        new(arguments).check_error(2, &[expected]);
    }
    new(&["a", "--sdk", "."]).check_error(1, &["is not the directory of the crate corral-sdk"]);
    assert_eq!(std::fs::read_dir(&dir).expect("own directory").count(), 0);
    assert_eq!(new(&["a"]).code, Some(0));
    new(&["a"]).check_error(1, &["'a' exists already"]);
    for command in ["build", "watch"] {
        let error = "no Cargo.toml, app.py, app.js, plugin.c or go.mod in";
        corral(&dir, &[command]).check_error(1, &[error, "corral new NAME"]);
        corral(&dir, &[command, "none"]).check_error(1, &[&format!("{error} none")]);
    }
}
