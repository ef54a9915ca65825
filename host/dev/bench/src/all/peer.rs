//! Comparison of Corral's server with a peer that has OpenAI's API and the same model file: `corral bench load` measures
//! both in turns.

use super::part::{Kind, Part};
use super::parts::plugin;
use super::targets::{Bound, Target};
use crate::args::AllArgs;
use serde_json::Value;

/// The share of all these parts in minutes.
pub(super) const MINUTES: u64 = 12;

const ROUNDS: u64 = 5;

/// The options of each part, its target, and the bound.
const PARTS: [(&str, &str, f64); 3] = [
    (
        "--requests 40 --concurrency 8 --prompt-words 32 --output-tokens 50",
        "0.6b, 8 at once: tokens a second / the peer of --openai-peer",
        1.05,
    ),
    (
        "--requests 48 --concurrency 16 --prompt-words 32 --output-tokens 50 --mixed-lengths",
        "... 16 at once, mixed lengths",
        1.15,
    ),
    (
        "--requests 64 --concurrency 32 --prompt-words 32 --output-tokens 50 --mixed-lengths",
        "... 32 at once, mixed lengths",
        1.15,
    ),
];

/// All parts; without a peer none is run.
pub(super) fn parts(args: &AllArgs) -> Vec<Part> {
    let part = |(options, what, bound): (&str, &'static str, f64)| {
        let mut arguments = vec!["load".to_owned()];
        arguments.extend(args.openai_peer.iter().map(ToString::to_string));
        arguments.extend(options.split_whitespace().map(str::to_owned));
        let kind = match args.openai_peer {
            // A new server for each part, with an empty cache. The peer's may be filled.
            Some(_) => Kind::AgainstServer(serve_arguments(args)),
            None => Kind::Skipped,
        };
        let target = Target::new(what, Bound::AtLeast(bound), 1.0, |result| {
            ratio(result, "median")
        })
        .ends(
            |result| ratio(result, "least"),
            |result| ratio(result, "most"),
        );
        let minutes = MINUTES / PARTS.len() as u64;
        Part {
            kind,
            ..Part::with_rounds(arguments, ROUNDS, minutes).targets(vec![target])
        }
    };
    PARTS.into_iter().map(part).collect()
}

/// The arguments of `corral serve`. The default cells suffice for 32 requests of at most 48 words and 75 tokens.
fn serve_arguments(args: &AllArgs) -> Vec<String> {
    let openai = plugin(&args.plugins, "openai");
    // After a name, the name of a file may contain '='.
    let model = format!("bench={}", args.model.to_string_lossy());
    let route = format!("/v1={}", openai.to_string_lossy());
    let mut arguments: Vec<_> = [
        ["--model", model.as_str()],
        ["--plugin", route.as_str()],
        ["--listen", "127.0.0.1:0"],
        ["--admin", "127.0.0.1:0"],
        // As long as the client's timeout: slow machines are measured too.
        ["--time-limit", "600"],
    ]
    .into_iter()
    .flatten()
    .map(str::to_owned)
    .collect();
    arguments.extend(args.devices.to_arguments());
    arguments
}

/// Inserts the URL of Corral's server after the peer's, as ratios are those to the first URL.
pub(super) fn insert_url(mut arguments: Vec<String>, own: &str) -> Vec<String> {
    let second = arguments.len().min(2);
    arguments.insert(second, own.to_owned());
    arguments
}

/// Corral's throughput to the peer's, as median, minimum or maximum of the rounds. None if requests failed, since these
/// may have cost nothing.
fn ratio(result: &Value, which: &str) -> Option<f64> {
    let [peer, own] = result["rows"].as_array()?.as_slice() else {
        return None;
    };
    let is_complete = |row: &Value| row["failed"].as_u64() == Some(0);
    if !is_complete(peer) || !is_complete(own) {
        return None;
    }
    own["ratios"]["tokens_per_second"][which].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Bench;
    use crate::args::tests::parse;
    use clap::Parser;
    use corral_cli::args::{Command, CommandLine};
    use serde_json::json;

    fn parts_of(more: &str) -> Vec<Part> {
        let line = format!("all --model m/a=b.gguf --wide w.gguf --plugins p --device cpu {more}");
        match parse(&line) {
            Ok(Bench::All(args)) => parts(&args),
            other => panic!("not all: {other:?}"),
        }
    }

    #[test]
    fn corral_is_compared_with_the_peer() {
        let parts = parts_of("--openai-peer http://127.0.0.1:8090/");
        let lines: Vec<_> = parts
            .iter()
            .map(|part| insert_url(part.arguments.clone(), "http://own:1").join(" "))
            .collect();
        let both = "load http://127.0.0.1:8090 http://own:1";
        let tokens = "--prompt-words 32 --output-tokens 50";
        assert_eq!(
            lines,
            [
                format!("{both} --requests 40 --concurrency 8 {tokens}"),
                format!("{both} --requests 48 --concurrency 16 {tokens} --mixed-lengths"),
                format!("{both} --requests 64 --concurrency 32 {tokens} --mixed-lengths"),
            ]
        );
        for (part, line) in parts.iter().zip(&lines) {
            let line = format!("corral bench {line} --json");
            let parsed = CommandLine::try_parse_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{line}");
            let Kind::AgainstServer(serve) = &part.kind else {
                panic!("not against a server: {line}");
            };
            let line = format!("corral serve {}", serve.join(" "));
            let parsed = CommandLine::try_parse_from(line.split_whitespace());
            let Ok(Command::Serve(serve)) = parsed.map(|line| line.command) else {
                panic!("invalid line: {line}");
            };
            assert_eq!(serve.models.models[0].file.to_string_lossy(), "m/a=b.gguf");
            assert_eq!(serve.plugins[0].file.to_string_lossy(), "p/openai.wasm");
            assert_eq!(serve.listen, "127.0.0.1:0");
            assert_eq!(serve.admin, "127.0.0.1:0");
            assert_eq!(serve.models.devices.to_arguments(), ["--device", "cpu"]);
        }
    }

    #[test]
    fn missing_peer_leaves_targets_unmeasured() {
        let parts = parts_of("");
        assert_eq!(parts.len(), 3);
        for part in parts {
            assert!(matches!(part.kind, Kind::Skipped));
            let figure = part.targets[0].figure(&Value::Null).json();
            assert_eq!(figure["figure"], Value::Null);
            let bound = figure["bound"].as_str().expect("a text");
            assert!(bound.starts_with("at least 1."), "{bound}");
        }
    }

    #[test]
    fn failed_requests_leave_no_ratio() {
        let result = |failed: u64| {
            json!({"rows": [
                {"url": "http://a:1", "failed": failed, "failures": {"status_500": failed}, "ratios": null},
                {"url": "http://b:2", "failed": 0, "ratios": {"tokens_per_second": {"median": 1.2}}},
            ]})
        };
        assert_eq!(ratio(&result(0), "median"), Some(1.2));
        assert_eq!(ratio(&result(1), "median"), None);
        assert_eq!(ratio(&Value::Null, "median"), None);
    }
}
