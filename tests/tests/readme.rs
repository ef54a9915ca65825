//! The README's commands do what it says.
//!
//! Every block of `sh` whose line begins with `curl` or `corral` is carried out, curl by the tests'
//! own client. A block of `json` or `text` right behind it is what has to come back: of JSON, at
//! least the members shown.

use corral_tests::{Corral, artifacts, run};
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

/// The admin listener of `make run`.
const ADMIN: &str = "http://127.0.0.1:8081";

/// A fenced block: its language and its lines.
#[derive(Debug)]
struct Block {
    language: String,
    text: String,
}

fn blocks(readme: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = readme.lines();
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

/// Splits a command as a shell does, as far as quotes go.
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
    assert_eq!(quote, None, "a quote is left open in {command}");
    words.extend(word);
    words
}

/// What `curl` writes for these arguments, of which only those the README uses are known.
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

#[test]
fn documented_commands_work() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).expect("there is a README");
    let blocks = blocks(&readme);
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    let mut carried_out = 0;
    for (number, block) in blocks.iter().enumerate() {
        let words = words(&block.text);
        if block.language != "sh" || !["curl", "corral"].contains(&words[0].as_str()) {
            continue;
        }
        let output = match words[0].as_str() {
            "curl" => curl(&corral, &words[1..]),
            _ => {
                let arguments = words[1..].iter().map(|word| match word.as_str() {
                    "models/tiny/tiny.gguf" => OsString::from(artifacts::model()),
                    ADMIN => OsString::from(format!("http://{}", corral.admin())),
                    word => match word.strip_suffix(".wasm") {
                        Some(name) => OsString::from(artifacts::plugin(name)),
                        None => OsString::from(word),
                    },
                });
                let ended = run(arguments);
                assert_eq!(ended.code, Some(0), "{}: {ended:?}", block.text);
                ended.stdout
            }
        };
        assert!(!output.is_empty(), "{} writes something", block.text);
        carried_out += 1;
        match blocks.get(number + 1) {
            Some(shown) if shown.language == "json" => {
                let output: Value = serde_json::from_str(&output).expect(&output);
                let shown: Value = serde_json::from_str(&shown.text).expect(&shown.text);
                for (member, value) in shown.as_object().expect("an object") {
                    assert_eq!(output[member], *value, "{member} of {}", block.text);
                }
            }
            Some(shown) if shown.language == "text" => {
                assert_eq!(output.trim_end(), shown.text, "{}", block.text);
            }
            _ => {}
        }
    }
    assert!(
        carried_out >= 4,
        "{carried_out} commands found in the README"
    );
}
