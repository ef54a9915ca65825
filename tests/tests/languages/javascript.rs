//! Plugins in JavaScript: the SDK's own suite, the examples, and a project of `corral new --lang javascript`.
//!
//! `tests/clients/setup.sh` installs componentize-qjs beside the clients.

use corral_tests::authoring::{
    BUILD_TIMEOUT, check_chat_and_job, check_saved_change, deploy_shout, root, succeeds,
};
use corral_tests::{
    Corral, EXAMPLES_IN_ALL_LANGUAGES, RELIABLE_SUMS, Sum, artifacts, check_uncaught_errors,
    run_command, scratch_dir, start_examples,
};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUM: Sum = RELIABLE_SUMS[0];
/// Answers what the examples do not: streams, random numbers and the log.
const OTHERS: &str = r#"import { Model, Response } from "corral-sdk";

export const framed = async (request) => {
  const generation = (await Model.open()).sequence(await request.text()).generate(8);
  return Response.textEvents(generation, (text) => ({ text }), async (events) => events.json(await generation.outcome()));
};
export const written = async (request) => {
  const generation = (await Model.open()).sequence(await request.text()).generate(8);
  return Response.events(async (events) => {
    for await (const { text } of generation) await events.json({ text });
    await events.json(await generation.outcome());
  });
};
export const random = async (request) => {
  console.log("drawing for", request.query.name);
  return Response.json([Math.random(), request.query.name]);
};
"#;

/// A program that finds componentize-qjs.
fn command(program: impl AsRef<OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(dir)
        .env("NODE_PATH", artifacts::clients().join("node/node_modules"));
    command
}

fn node(dir: &Path) -> Command {
    let mut command = command("node", dir);
    command.env("CORRAL_BIN", artifacts::binary());
    command
}

/// Copies a directory with those inside.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("own directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let file = entry.expect("readable").path();
        let copied = to.join(file.file_name().expect("a name"));
        if file.is_dir() {
            copy(&file, &copied);
        } else {
            std::fs::copy(&file, copied).expect("copied");
        }
    }
}

/// A project with the package.
fn project() -> PathBuf {
    let dir = scratch_dir();
    let package = dir.join("node_modules/corral-sdk");
    copy(&root().join("plugins/javascript"), &package);
    dir
}

fn build(dir: &Path) -> Command {
    let mut command = node(dir);
    command.args(["node_modules/corral-sdk/build.js", "app.js"]);
    command
}

/// One component of all examples, since each has an engine: the last part of the path names the example.
fn examples() -> PathBuf {
    let dir = project();
    for name in EXAMPLES_IN_ALL_LANGUAGES {
        let file = format!("{name}.js");
        let from = root().join("examples").join(name).join(&file);
        std::fs::copy(from, dir.join(file)).expect("copied");
    }
    std::fs::write(dir.join("others.js"), OTHERS).expect("written");
    let imports: String = (EXAMPLES_IN_ALL_LANGUAGES.iter().enumerate())
        .map(|(index, name)| format!("import example{index} from \"./{name}.js\";\n"))
        .collect();
    let table: String = (EXAMPLES_IN_ALL_LANGUAGES.iter().enumerate())
        .map(|(index, name)| format!("  {name:?}: example{index},\n"))
        .collect();
    let app = format!(
        "{imports}import * as others from \"./others.js\";\nconst HANDLERS = {{\n{table}  ...others,\n}};\n\n\
         export default (request) => HANDLERS[request.path.split(\"/\").at(-1)](request);\n"
    );
    std::fs::write(dir.join("app.js"), app).expect("written");
    let printed = succeeds(build(&dir)).stdout;
    assert!(printed.contains("app.wasm ("), "{printed}");
    dir.join("app.wasm")
}

fn post(corral: &Corral, name: &str, body: &Value) -> Value {
    corral.post_json(&format!("/javascript/{name}"), body)
}

#[test]
fn sdk_suite_passes() {
    let mut suite = node(&root().join("plugins/javascript"));
    suite.args(["--test", "tests/sdk.test.js", "tests/guide.test.js"]);
    let ended = succeeds(suite);
    for line in ["fail 0", "skipped 0", "todo 0"] {
        assert!(ended.stdout.contains(line), "{ended:?}");
    }
    assert!(!ended.stdout.contains("pass 0"), "{ended:?}");
}

#[test]
fn examples_answer_as_in_rust() {
    let component = examples();
    let corral = start_examples(
        "/javascript",
        &EXAMPLES_IN_ALL_LANGUAGES,
        &[format!("/javascript={}", component.display())],
    );
    // The host's events and the plugin's have the same text, and end with the outcome.
    for name in ["framed", "written"] {
        let answer = corral.post_ok(&format!("/javascript/{name}"), SUM.question());
        let events = answer.body.split_terminator("\n\n");
        let events = events.map(|event| event.strip_prefix("data: ").expect("an event"));
        let events = events.map(|event| serde_json::from_str(event).expect("JSON"));
        let mut events: Vec<Value> = events.collect();
        let outcome = events.pop().expect("an outcome");
        let texts = events.iter().map(|event| event["text"].as_str());
        let text: String = texts.map(|text| text.expect("text")).collect();
        assert_eq!(text, SUM.answer(), "{name}");
        assert_eq!(outcome["finish"], "end", "{name}: {outcome}");
        let found = &outcome["generatedTokens"];
        assert_eq!(*found, SUM.answer().len() + 1, "{name}: {outcome}");
    }
    // Instances draw different numbers, although all begin with the same state.
    let first = post(&corral, "random?name=a%20b", &json!({}));
    let second = post(&corral, "random?name=a+b", &json!({}));
    assert_ne!(first[0], second[0]);
    assert_eq!((&first[1], &second[1]), (&json!("a b"), &json!("a b")));
    check_uncaught_errors(&component, "/best-of-n");
}

fn corral(dir: &Path, arguments: &[&str]) -> Command {
    let mut corral = command(artifacts::binary(), dir);
    corral.args(arguments);
    corral
}

/// Links the SDK as `npm install` does, which the test of the guide runs.
fn link_sdk(project: &Path) {
    let modules = project.join("node_modules");
    std::fs::create_dir(&modules).expect("own directory");
    symlink("../corral-sdk", modules.join("corral-sdk")).expect("own directory");
}

#[test]
fn chat_and_job_are_tested_and_built() {
    check_chat_and_job("js", corral, |project| {
        link_sdk(project);
        let mut suite = node(project);
        suite.args(["--test", "app.test.js"]);
        assert!(!succeeds(suite).stdout.contains("pass 0"));
        succeeds(corral(project, &["build"]));
    });
}

#[test]
fn new_project_is_built_and_watched() {
    let dir = scratch_dir();
    let printed = succeeds(corral(&dir, &["new", "shout", "--lang", "javascript"])).stdout;
    assert!(printed.contains("a handler in JavaScript"), "{printed}");
    let project = dir.join("shout");
    let build = || run_command(&mut corral(&project, &["build"]), BUILD_TIMEOUT);
    build().check_error(1, &["the build failed"]);
    link_sdk(&project);
    let built = build().check_success();
    assert!(built.stdout.starts_with("shout.wasm ("), "{built:?}");
    let server = deploy_shout(&project);

    // A broken module is shown, and the old component stays.
    let app = project.join("app.js");
    let good = std::fs::read_to_string(&app).expect("readable");
    std::fs::write(&app, "export default async (request => {\n").expect("written");
    let ended = build();
    ended.check_error(1, &["the build failed"]);
    assert!(ended.stderr.contains("/app.js:"), "{ended:?}");
    assert!(project.join("shout.wasm").is_file());

    // A saved change is served.
    std::fs::write(&app, good).expect("written");
    let watch = corral(&project, &["watch"]);
    let change = ["Response.text(await", "Response.text('= ' + await"];
    let expected = format!("= {}", SUM.answer());
    check_saved_change(watch, &server, &app, change, &expected);
}

#[test]
fn failed_build_says_why() {
    let dir = project();
    let broken = "export default async (request => {\n";
    std::fs::write(dir.join("app.js"), broken).expect("written");
    let ended = run_command(&mut build(&dir), BUILD_TIMEOUT);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let named = ended.stderr.contains("corral-js: ") && ended.stderr.contains("/app.js:");
    assert!(named, "{ended:?}");
    assert!(!dir.join("app.wasm").exists());
    let mut without = build(&dir);
    without.env("CORRAL_BIN", "/nowhere/corral");
    let ended = run_command(&mut without, BUILD_TIMEOUT);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let hint = "corral-js: cannot find `corral`; put it into PATH, or set CORRAL_BIN";
    assert_eq!(ended.stderr.trim_end(), hint, "{ended:?}");
}
