//! The commands of the README and the guides work as typed, in a folder like the checkout.
//!
//! A shell runs the `sh` and `console` blocks of a document in order. `make run` and `corral serve` start servers in the
//! background, on free ports that replace those of the text. Downloads come from a hub on this machine. A `json` or
//! `text` block after a block is the end of its output: of JSON, at least the members shown.

use corral_tests::{
    Hub, HubFile, Registry, RunOutput, artifacts, free_ports, run_command, scratch_dir,
};
use serde_json::Value;
use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The repository of the documents, whose model is the demo model here.
const MODEL_REPO: &str = "Qwen/Qwen2.5-0.5B-Instruct-GGUF";
/// The registry of the documents.
const REGISTRY: &str = "localhost:5000";
/// Limit of a document's commands, and of a build. Far above what they take, because machines are busy.
const LIMIT: Duration = Duration::from_secs(1800);
/// Ends the output of a block.
const BLOCK_END: char = '\u{1e}';

/// What documents call, for a folder without the build. Needs the variables of [`Scratch::run`].
const PRELUDE: &str = r#"
set -eu
server=
ready() { command curl -skf $1://127.0.0.1:$ADMIN_PORT/readyz >ready.out; }
trap '[ -z "$server" ] || kill $server' EXIT
serve() {
  [ -z "$server" ] || { kill $server; wait $server || true; }
  command corral serve "$@" --listen 127.0.0.1:$PUBLIC_PORT --admin 127.0.0.1:$ADMIN_PORT \
    --threads 1 --cache-dir "$COMPILED" >serve.out 2>serve.err &
  server=$!
  until ready http || ready https; do
    kill -0 $server || { cat serve.err >&2; exit 1; }
    sleep 0.02
  done
}
corral() {
  case $1 in
    serve) shift; serve "$@" ;;
    *) command corral "$@" ;;
  esac
}
make() {
  case "$*" in
    *env) echo "export PLUGINS='$PLUGINS' STORE='$PWD/make-run'" ;;
    run | run\ MODEL=*)
      model=models/tiny/tiny.gguf
      [ $# = 1 ] || model=${2#MODEL=}
      serve --model "$model" --store make-run --plugin /generate="$PLUGINS/generate.wasm" \
        --plugin /="$PLUGINS/openai.wasm" --plugin /api="$PLUGINS/ollama.wasm" \
        --plugin /hello="$PLUGINS/hello.wasm" ;;
  esac
}
curl() { command curl --fail-with-body "$@"; }
make run
"#;

/// A fenced block: its language and its lines.
#[derive(Debug)]
struct Block {
    language: String,
    text: String,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(Block {
                language: language.to_owned(),
                text: text.join("\n"),
            });
        }
    }
    blocks
}

/// A folder with what a checkout has after `make plugins`, and `corral` in a folder of its own.
struct Scratch {
    dir: PathBuf,
    ports: [u16; 2],
    hub: Hub,
}

impl Scratch {
    fn new() -> Self {
        let dir = scratch_dir();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let link = |from: PathBuf, to: PathBuf| symlink(from, to).expect("own directory");
        let examples = example_names().map(|name| format!("examples/{name}"));
        let plugins = ["plugins/ollama", "plugins/openai"].map(str::to_owned);
        let port = free_ports();
        let ports = [port, port + 1];
        for crate_dir in examples.chain(plugins) {
            std::fs::create_dir_all(dir.join(&crate_dir)).expect("own directory");
            let manifest = format!("{crate_dir}/corral.toml");
            let text = std::fs::read_to_string(root.join(&manifest)).expect("readable");
            let text = with_ports(&text, ports);
            std::fs::write(dir.join(manifest), &text).expect("own directory");
            for component in text.split('"').filter(|text| text.ends_with(".wasm")) {
                let built = artifacts::plugin(component.trim_end_matches(".wasm"));
                link(built, dir.join(&crate_dir).join(component));
            }
            // The forms of an example in other languages.
            for entry in std::fs::read_dir(root.join(&crate_dir)).expect("a directory") {
                let file = entry.expect("readable").path();
                let ending = file.extension().and_then(|ending| ending.to_str());
                if let (Some("c" | "js" | "py"), Some(name)) = (ending, file.file_name()) {
                    let to = dir.join(&crate_dir).join(name);
                    link(file, to);
                }
            }
        }
        // Copies, since pip writes into the folder of a package.
        for package in ["corral_sdk", "corral_remote"] {
            let package = Path::new("plugins/python").join(package);
            std::fs::create_dir_all(dir.join(&package)).expect("own directory");
            for entry in std::fs::read_dir(root.join(&package)).expect("a directory") {
                let file = entry.expect("readable").path();
                let name = file.file_name().expect("an entry");
                if file.is_file() {
                    std::fs::copy(&file, dir.join(&package).join(name)).expect("copied");
                }
            }
        }
        let project = "plugins/python/pyproject.toml";
        std::fs::copy(root.join(project), dir.join(project)).expect("copied");
        for part in ["bin", "models/tiny"] {
            std::fs::create_dir_all(dir.join(part)).expect("own directory");
        }
        link(artifacts::binary(), dir.join("bin/corral"));
        link(artifacts::wasmtime(), dir.join("bin/wasmtime"));
        link(artifacts::go(), dir.join("bin/go"));
        link(artifacts::model(), dir.join("models/tiny/tiny.gguf"));
        link(artifacts::draft_model(), dir.join("models/tiny/draft.gguf"));
        let model = std::fs::read(artifacts::model()).expect("the demo model");
        let model = HubFile::new("qwen2.5-0.5b-instruct-q4_k_m.gguf", &model);
        let hub = Hub::start_with(MODEL_REPO, vec![model]);
        Scratch { dir, ports, hub }
    }

    /// Runs a script, which must succeed, and returns its output.
    fn run(&self, document: &Path, script: &str) -> String {
        let plugin = artifacts::plugin("hello");
        let plugins = plugin.parent().expect("a directory");
        let path = std::env::var("PATH").expect("a search path");
        let [public, admin] = self.ports.map(|port| port.to_string());
        let mut script = with_ports(script, self.ports);
        let registry = script.contains(REGISTRY).then(Registry::start);
        if let Some(registry) = &registry {
            script = script.replace(REGISTRY, &registry.host);
        }
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(&script)
            .current_dir(&self.dir)
            .env("PATH", format!("{}/bin:{path}", self.dir.display()))
            .env("CORRAL_ADMIN", format!("http://127.0.0.1:{admin}"))
            .env("PUBLIC_PORT", public)
            .env("ADMIN_PORT", admin)
            .env("PLUGINS", plugins)
            .env("COMPILED", artifacts::scratch().join("compiled"))
            .env("HF_ENDPOINT", &self.hub.endpoint)
            .env("NO_PROXY", "*")
            .env("XDG_CACHE_HOME", self.dir.join("cache"))
            // What `tests/clients/setup.sh` has downloaded for projects of plugins.
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", artifacts::clients().join("wheels"))
            .env("npm_config_offline", "true")
            .env("npm_config_cache", artifacts::clients().join("npm"))
            .env("npm_config_audit", "false")
            // That of `languages/go.rs`, with what Go has compiled of its library.
            .env("GOCACHE", artifacts::scratch().join("go/go-build"))
            .env_remove("HF_TOKEN")
            .env_remove("CORRAL_ADMIN_TOKEN");
        let RunOutput {
            code,
            stdout,
            stderr,
        } = run_command(&mut shell, LIMIT);
        let document = document.display();
        assert_eq!(code, Some(0), "{document}:\n{stdout}\n{stderr}");
        stdout
    }
}

/// The text with these ports of the public and the admin listener.
fn with_ports(text: &str, [public, admin]: [u16; 2]) -> String {
    let text = text.replace("127.0.0.1:8080", &format!("127.0.0.1:{public}"));
    text.replace("127.0.0.1:8081", &format!("127.0.0.1:{admin}"))
}

/// The commands of a block. Those for other machines are left out: GPUs, containers, and builds.
fn commands(block: &Block) -> Vec<&str> {
    let lines = block.text.lines();
    let lines = match block.language.as_str() {
        "sh" => lines.collect::<Vec<_>>(),
        "console" => lines.filter_map(|line| line.strip_prefix("$ ")).collect(),
        _ => vec![],
    };
    let is_elsewhere = |line: &&str| {
        ["--device", "--gpu-layers", "docker "]
            .iter()
            .any(|text| line.contains(text))
            || line.starts_with("make test")
    };
    lines
        .into_iter()
        .filter(|line| !is_elsewhere(line))
        .collect()
}

/// The README, all of docs/, and the guides of plugins and examples.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guides = std::fs::read_dir(root.join("docs")).expect("docs/ exists");
    let guides = guides.map(|entry| entry.expect("readable").path());
    let markdown = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "md");
    let examples = example_names().map(|name| root.join(format!("examples/{name}/README.md")));
    let others = [
        "README.md",
        "examples/README.md",
        "plugins/ollama/README.md",
        "plugins/openai/README.md",
    ];
    let others = others.map(|path| root.join(path));
    let guides = guides.filter(markdown);
    guides.chain(others).chain(examples).collect()
}

/// The directories in `examples/` with a plugin.
fn example_names() -> impl Iterator<Item = String> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let entries = std::fs::read_dir(examples).expect("examples/ exists");
    let dirs = entries
        .flatten()
        .filter(|entry| entry.path().join("corral.toml").is_file());
    dirs.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Asserts that `output` ends with what the block after its commands shows.
fn check_output(commands: &[&str], output: &str, shown: &Block) {
    let last = output.trim_end().lines().last().unwrap_or_default();
    match shown.language.as_str() {
        "json" => {
            let output: Value = serde_json::from_str(last).expect(output);
            let shown: Value = serde_json::from_str(&shown.text).expect(&shown.text);
            assert_shown(&output, &shown, commands);
        }
        "text" => assert_eq!(last, shown.text, "{commands:?}"),
        _ => {}
    }
}

/// Asserts that a JSON value has what is shown of it: objects may have more members.
fn assert_shown(output: &Value, shown: &Value, commands: &[&str]) {
    match shown {
        Value::Object(members) => {
            for (member, value) in members {
                assert_shown(&output[member], value, commands);
            }
        }
        Value::Array(items) => {
            let length = output.as_array().map(Vec::len);
            assert_eq!(length, Some(items.len()), "{output} of {commands:?}");
            for (index, item) in items.iter().enumerate() {
                assert_shown(&output[index], item, commands);
            }
        }
        _ => assert_eq!(output, shown, "{commands:?}"),
    }
}

#[test]
fn documented_commands_work_as_typed() {
    let mut count = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("readable");
        let blocks = blocks(&text);
        let commands: Vec<_> = blocks.iter().map(commands).collect();
        let mut script = PRELUDE.to_owned();
        for commands in &commands {
            count += commands.len();
            let commands = commands.join("\n");
            writeln!(script, "{commands}\nprintf '\\036'").expect("text");
        }
        let output = Scratch::new().run(&document, &script);
        let outputs = output.split(BLOCK_END);
        for (number, (commands, output)) in commands.iter().zip(outputs).enumerate() {
            if let (Some(shown), false) = (blocks.get(number + 1), commands.is_empty()) {
                check_output(commands, output, shown);
            }
        }
    }
    assert!(count >= 40, "only {count} commands found");
}

/// The snippets in Rust compile with the Cargo.toml of the SDK's guide, each as in the documentation of the SDK: in `main`.
#[test]
fn snippets_of_guides_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guides = ["plugins/README.md", "docs/authors.md"]
        .map(|guide| std::fs::read_to_string(root.join(guide)).expect("readable"));
    let dir = scratch_dir();
    symlink(&root, dir.join("corral")).expect("own directory");
    let shout = dir.join("shout");
    for part in ["src", "examples"] {
        std::fs::create_dir_all(shout.join(part)).expect("own directory");
    }
    let write = |file: &str, text: &str| std::fs::write(shout.join(file), text).expect("written");
    // A snippet of docs/authors.md includes it.
    write("examples/capitals.txt", "France:Paris\n");
    let mut count = 0;
    for block in blocks(&guides.concat()) {
        match (block.language.as_str(), count) {
            ("toml", _) if block.text.contains("[package]") => write("Cargo.toml", &block.text),
            ("rust", 0) => {
                write("src/lib.rs", &block.text);
                count += 1;
            }
            ("rust", _) => {
                let text = format!("#![allow(dead_code)]\nfn main() {{\n{}\n}}\n", block.text);
                write(&format!("examples/snippet{count}.rs"), &text);
                count += 1;
            }
            _ => {}
        }
    }
    assert!(count >= 12, "only {count} snippets found");
    // The versions that the plugins' tests have fetched.
    std::fs::copy(root.join("plugins/Cargo.lock"), shout.join("Cargo.lock")).expect("copied");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--offline", "--quiet"])
        // Those that docs/authors.md names.
        .args(["--features", "corral-sdk/config,corral-sdk/logging"])
        .current_dir(&shout)
        .env("CARGO_TARGET_DIR", artifacts::scratch().join("guide"));
    let ended = run_command(&mut cargo, LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("1 passed"), "{}", ended.stdout);
}

/// All Markdown files of the tree.
fn markdown_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let found = entries.flat_map(|entry| {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        match path.is_dir() {
            true if name.starts_with('.') || ["target", "node_modules"].contains(&&*name) => vec![],
            true => markdown_files(&path),
            false if name.ends_with(".md") => vec![path],
            false => vec![],
        }
    });
    found.collect()
}

/// The anchor of a heading, as forges derive it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_documents_resolve() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &Path| std::fs::read_to_string(path).expect("readable");
    for document in markdown_files(&root) {
        let text = read(&document);
        // Links in code blocks are examples.
        let prose = text.split("```").step_by(2);
        for link in prose.flat_map(|prose| prose.split("](").skip(1)) {
            let target = link.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => document.clone(),
                path => document.with_file_name(path),
            };
            assert!(file.exists(), "{}: {target}", document.display());
            let anchors = || {
                read(&file)
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == heading)
            };
            assert!(
                heading.is_empty() || anchors(),
                "{}: {target}",
                document.display()
            );
        }
    }
}

#[test]
fn readme_and_guides_stay_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guides = root.join("docs");
    for document in documents() {
        let limit = match &document {
            file if *file == root.join("README.md") => 200,
            file if file.starts_with(&guides) => 400,
            _ => continue,
        };
        let text = std::fs::read_to_string(&document).expect("readable");
        let lines = text.lines().count();
        assert!(lines < limit, "{}: {lines} lines", document.display());
    }
}

#[test]
fn readme_shows_the_hello_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("readable");
    let readme = read("README.md");
    let shown = blocks(&readme)
        .into_iter()
        .find(|block| block.language == "rust");
    let shown = shown.expect("the README shows a plugin").text;
    let text = read("examples/hello/src/lib.rs");
    assert!(text.contains(&shown), "{shown}");
}

#[test]
fn gallery_links_every_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let gallery = std::fs::read_to_string(root.join("examples/README.md")).expect("readable");
    for name in example_names() {
        let link = format!("| [`{name}`]({name}/README.md) |");
        assert!(gallery.contains(&link), "no row {link}");
    }
}
