//! The commands of the README and the guides work as typed.
//!
//! Each one-line `sh` block that begins with `curl` or `corral` is run, `curl` by the tests' own client. A
//! `json` or `text` block after it is the expected output: of JSON, at least the members shown.

use corral_tests::{Corral, artifacts, run};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The admin listener of `make run`.
const ADMIN: &str = "http://127.0.0.1:8081";

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

/// Splits a command into words as a shell does, with quotes only.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![];
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    assert_eq!(quote, None, "unbalanced quotes in {command}");
    words.extend(word);
    words
}

/// The output of `curl` with these arguments. Supports only the options that the documents use.
fn curl(corral: &Corral, arguments: &[String]) -> String {
    let (mut url, mut data) = (None, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-s" | "-sN" | "-N" => {}
            "-d" => data = arguments.next(),
            other => assert_eq!(url.replace(other), None, "two addresses"),
        }
    }
    let url = url.expect("curl has an address");
    let public = url.strip_prefix("http://127.0.0.1:8080");
    let answer = match (public, url.strip_prefix(ADMIN), data) {
        (Some(path), _, Some(data)) => corral.post(path, data),
        (Some(path), _, None) => corral.get(path),
        (None, Some(path), None) => corral.get_admin(path),
        _ => panic!("{url} is not where `make run` serves"),
    };
    assert_eq!(answer.status, 200, "{url}: {answer:?}");
    answer.body
}

/// The README and every guide under `docs/`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guides = std::fs::read_dir(root.join("docs")).expect("docs/ exists");
    let guides = guides.map(|entry| entry.expect("readable").path());
    let markdown = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "md");
    let mut documents: Vec<_> = guides.filter(markdown).collect();
    documents.push(root.join("README.md"));
    documents
}

/// Runs a `corral` command with the paths and addresses of this test.
fn corral_output(corral: &Corral, command: &str, words: &[String]) -> String {
    let arguments = words.iter().map(|word| match word.as_str() {
        "models/tiny/tiny.gguf" => OsString::from(artifacts::model()),
        ADMIN => OsString::from(format!("http://{}", corral.admin())),
        word => match word.strip_suffix(".wasm") {
            Some(name) => OsString::from(artifacts::plugin(name)),
            None => OsString::from(word),
        },
    });
    let ended = run(arguments);
    assert_eq!(ended.code, Some(0), "{command}: {ended:?}");
    ended.stdout
}

/// Asserts that `output` is what the block after its command shows.
fn check_output(command: &str, output: &str, shown: &Block) {
    match shown.language.as_str() {
        "json" => {
            let output: Value = serde_json::from_str(output).expect(output);
            let shown: Value = serde_json::from_str(&shown.text).expect(&shown.text);
            for (member, value) in shown.as_object().expect("an object") {
                assert_eq!(output[member], *value, "{member} of {command}");
            }
        }
        "text" => assert_eq!(output.trim_end(), shown.text, "{command}"),
        _ => {}
    }
}

#[test]
fn documented_commands_work() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    let mut run = 0;
    for document in documents() {
        let text = std::fs::read_to_string(document).expect("readable");
        let blocks = blocks(&text);
        for (number, block) in blocks.iter().enumerate() {
            let command = &block.text;
            if block.language != "sh" || command.contains('\n') {
                continue;
            }
            let words = words(command);
            let output = match words[0].as_str() {
                "curl" => curl(&corral, &words[1..]),
                "corral" => corral_output(&corral, command, &words[1..]),
                _ => continue,
            };
            assert!(!output.is_empty(), "{command} prints something");
            run += 1;
            if let Some(shown) = blocks.get(number + 1) {
                check_output(command, &output, shown);
            }
        }
    }
    assert!(run >= 9, "only {run} commands found");
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
fn readme_shows_the_hello_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("readable");
    let readme = read("README.md");
    let shown = blocks(&readme)
        .into_iter()
        .find(|block| block.language == "rust");
    let shown = shown.expect("the README shows a plugin").text;
    assert!(
        read("examples/hello/src/lib.rs").contains(&shown),
        "{shown}"
    );
}
