//! The parts that compare Corral's server with another one that has OpenAI's API and the same model file: the
//! same client asks both in turns.

use super::part::{Part, Way};
use super::parts::plugin;
use super::targets::{Bound, Target};
use crate::arguments::AllBench;
use serde_json::Value;

/// The share of all these parts, in minutes.
pub(super) const MINUTES: u64 = 12;

/// Rounds of each part.
const ROUNDS: u64 = 5;

/// The options of each part, what is promised, and its bound.
const PARTS: [(&str, &str, f64); 3] = [
    (
        "--requests 40 --concurrency 8 --prompt 32 --generate 50",
        "0.6b, 8 at once: tokens a second / the peer of --vs-openai",
        1.05,
    ),
    (
        "--requests 48 --concurrency 16 --prompt 32 --generate 50 --mixed",
        "... 16 at once, mixed lengths",
        1.15,
    ),
    (
        "--requests 64 --concurrency 32 --prompt 32 --generate 50 --mixed",
        "... 32 at once, mixed lengths",
        1.15,
    ),
];

/// All of them; without a peer none is run.
pub(super) fn parts(arguments: &AllBench) -> Vec<Part> {
    let part = |(options, what, bound): (&str, &'static str, f64)| {
        let mut words = vec!["load".to_owned()];
        words.extend(arguments.vs_openai.iter().map(ToString::to_string));
        words.extend(options.split_whitespace().map(str::to_owned));
        let way = match arguments.vs_openai {
            // A server for each part: ours finds nothing that was cached for another one. The peer may.
            Some(_) => Way::Against(serve(arguments)),
            None => Way::Not,
        };
        let target = Target::new(what, Bound::AtLeast(bound), 1.0, |found| {
            ratio(found, "median")
        })
        .ends(|found| ratio(found, "least"), |found| ratio(found, "most"));
        Part {
            way,
            ..Part::in_rounds(words, ROUNDS, MINUTES / PARTS.len() as u64).targets(vec![target])
        }
    };
    PARTS.into_iter().map(part).collect()
}

/// What stands after `corral serve`. Its 64 sequences and 16,384 cells are more than 32 requests need, of at
/// most 48 words and 75 tokens each.
fn serve(arguments: &AllBench) -> Vec<String> {
    let openai = plugin(&arguments.plugins, "openai");
    // With a name before it, a file's name may hold '='.
    let model = format!("bench={}", arguments.model.to_string_lossy());
    let route = format!("/v1={}", openai.to_string_lossy());
    let mut words: Vec<_> = [
        ["--model", model.as_str()],
        ["--plugin", route.as_str()],
        ["--listen", "127.0.0.1:0"],
        ["--admin", "127.0.0.1:0"],
        // As long as the client waits for an answer: a slow machine is measured, too.
        ["--time-limit", "600"],
    ]
    .into_iter()
    .flatten()
    .map(str::to_owned)
    .collect();
    words.extend(arguments.offloading.words());
    words
}

/// The words of a part with the URL of Corral's server after the peer's: ratios are those to the first one.
pub(super) fn urls(mut words: Vec<String>, own: &str) -> Vec<String> {
    let second = words.len().min(2);
    words.insert(second, own.to_owned());
    words
}

/// Tokens a second by those of the peer: the median of the rounds, the least or the most. Nothing where requests failed, for
/// those may have cost nothing.
fn ratio(found: &Value, which: &str) -> Option<f64> {
    let [peer, own] = found["rows"].as_array()?.as_slice() else {
        return None;
    };
    let whole = |row: &Value| row["failed"].as_u64() == Some(0);
    if !whole(peer) || !whole(own) {
        return None;
    }
    own["ratios"]["tokens_per_second"][which].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Bench, Command, CommandLine};
    use clap::Parser;
    use serde_json::json;

    fn parts_of(more: &str) -> Vec<Part> {
        let line = format!(
            "corral bench all --model m/a=b.gguf --wide w.gguf --plugins p --device cpu {more}"
        );
        let line = CommandLine::try_parse_from(line.split_whitespace()).expect("a good line");
        let Command::Bench(Bench::All(arguments)) = line.command else {
            panic!("it says bench all");
        };
        parts(&arguments)
    }

    #[test]
    fn the_peer_is_the_first_and_corral_the_second() {
        let parts = parts_of("--vs-openai http://127.0.0.1:8090/");
        let lines: Vec<_> = parts
            .iter()
            .map(|part| urls(part.words.clone(), "http://own:1").join(" "))
            .collect();
        let both = "load http://127.0.0.1:8090 http://own:1";
        let tokens = "--prompt 32 --generate 50";
        assert_eq!(
            lines,
            [
                format!("{both} --requests 40 --concurrency 8 {tokens}"),
                format!("{both} --requests 48 --concurrency 16 {tokens} --mixed"),
                format!("{both} --requests 64 --concurrency 32 {tokens} --mixed"),
            ]
        );
        for (part, line) in parts.iter().zip(&lines) {
            // `load` takes them.
            let line = format!("corral bench {line} --json");
            let parsed = CommandLine::try_parse_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{line}");
            let Way::Against(serve) = &part.way else {
                panic!("not against a server: {line}");
            };
            let line = format!("corral serve {}", serve.join(" "));
            let parsed = CommandLine::try_parse_from(line.split_whitespace());
            let Ok(Command::Serve(serve)) = parsed.map(|line| line.command) else {
                panic!("no good line: {line}");
            };
            assert_eq!(serve.models.models[0].file.to_string_lossy(), "m/a=b.gguf");
            assert_eq!(serve.plugins[0].file.to_string_lossy(), "p/openai.wasm");
            assert_eq!(serve.listen, "127.0.0.1:0");
            assert_eq!(serve.admin, "127.0.0.1:0");
            assert_eq!(serve.models.offloading.words(), ["--device", "cpu"]);
        }
    }

    #[test]
    fn without_a_peer_nothing_is_run_and_the_targets_are_told() {
        let parts = parts_of("");
        assert_eq!(parts.len(), 3);
        for part in parts {
            assert!(matches!(part.way, Way::Not));
            let figure = part.targets[0].figure(&Value::Null).json();
            assert_eq!(figure["figure"], Value::Null);
            let bound = figure["bound"].as_str().expect("a text");
            assert!(bound.starts_with("at least 1."), "{bound}");
        }
    }

    #[test]
    fn the_ratio_is_that_of_the_second_and_none_where_requests_failed() {
        let found = |failed: u64| {
            json!({"rows": [
                {"url": "http://a:1", "failed": failed, "failures": {"status_500": failed}, "ratios": null},
                {"url": "http://b:2", "failed": 0, "ratios": {"tokens_per_second": {"median": 1.2}}},
            ]})
        };
        assert_eq!(ratio(&found(0), "median"), Some(1.2));
        assert_eq!(ratio(&found(1), "median"), None);
        assert_eq!(ratio(&Value::Null, "median"), None);
    }
}
