//! The benches in their order, with the sizes of the targets, and the targets of each. BENCHMARKS.md explains them.
//!
//! The shares of all parts, including those of [`peer`], add up to less than an hour.

use super::part::{Kind, Part};
use super::peer;
use super::targets::{Bound, Target, row};
use crate::args::AllArgs;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The files that the parts need.
pub(super) fn files(args: &AllArgs) -> Vec<PathBuf> {
    let plugins = ["classic", "generate", "measure", "min-p", "openai"];
    let plugins = plugins.map(|name| plugin(&args.plugins, name));
    let models = [&args.model, &args.small, &args.wide];
    models.into_iter().cloned().chain(plugins).collect()
}

/// All parts in their order.
pub(super) fn all(args: &AllArgs) -> Vec<Part> {
    let (model, small) = (&args.model, &args.small);
    let plugins = &args.plugins;
    let generate = plugin(plugins, "generate");
    let mut http = line("http").file("--plugin", &plugin(plugins, "classic"));
    if let Some(peer) = &args.peer {
        http = http.value("--peer", &peer.to_string());
    }
    let mut parts = vec![
        stages(model, plugins, [4, 1, 32, 32])
            .value("--stages", "0,8,9")
            .rounds(5, 3)
            .targets(one_stream_targets()),
        stages(model, plugins, [1, 1, 512, 128])
            .value("--stages", "0,8")
            .rounds(5, 2)
            .targets(long_targets()),
        stages(small, plugins, [40, 8, 32, 50])
            .rounds(5, 1)
            .targets(overhead_targets()),
        line("gap")
            .file("--model", model)
            .number("--prompts", 3)
            .rounds(5, 5)
            .targets(gap_targets()),
        line("boundary")
            .file("--model", model)
            .file("--plugin", &plugin(plugins, "measure"))
            .file("--sampler", &plugin(plugins, "min-p"))
            // Many rounds: the speed of a busy machine changes within seconds.
            .number("--output-tokens", 24)
            .rounds(12, 4)
            .targets(boundary_targets()),
        line("boundary")
            .file("--model", &args.wide)
            .file("--plugin", &plugin(plugins, "measure"))
            .file("--sampler", &plugin(plugins, "min-p"))
            .number("--output-tokens", 256)
            .rounds(5, 1)
            .targets(logits_targets()),
        line("flat")
            .file("--model", small)
            .file("--plugin", &generate)
            .no_rounds(1)
            .targets(flat_targets()),
        line("prefix")
            .file("--model", small)
            .file("--plugin", &generate)
            .rounds(5, 2)
            .targets(prefix_targets()),
        line("deploy")
            .file("--model", small)
            .file("--plugin", &generate)
            .rounds(5, 1)
            .targets(deploy_targets()),
        http.rounds(5, 2).targets(http_targets()),
    ];
    parts.extend(peer::parts(args));
    // The longest part is last: it gets the time that the others left, and that of a missing peer.
    let minutes = match args.openai_peer {
        Some(_) => 22,
        None => 22 + peer::MINUTES,
    };
    parts.push(
        stages(model, plugins, [40, 8, 32, 50])
            .rounds(5, minutes)
            .targets(eight_streams_targets()),
    );
    parts.push(on_a_gpu(model, plugins));
    for part in &mut parts {
        part.rounds = part
            .rounds
            .map(|rounds| rounds.min(args.rounds.unwrap_or(rounds)));
    }
    let devices = args.devices.to_arguments();
    let has_model = |part: &&mut Part| part.arguments.iter().any(|argument| argument == "--model");
    for part in parts.iter_mut().filter(has_model) {
        part.arguments.extend_from_slice(&devices);
    }
    parts
}

/// Builds the arguments of a bench.
struct Line(Vec<String>);

fn line(bench: &str) -> Line {
    Line(vec![bench.to_owned()])
}

/// `stages` with so many requests, requests at once, tokens in and tokens out.
fn stages(model: &Path, plugins: &Path, sizes: [u64; 4]) -> Line {
    let [requests, concurrency, prompt, output] = sizes;
    line("stages")
        .file("--model", model)
        .file("--plugins", plugins)
        .number("--requests", requests)
        .number("--concurrency", concurrency)
        .number("--prompt-tokens", prompt)
        .number("--output-tokens", output)
}

impl Line {
    fn value(mut self, option: &str, value: &str) -> Self {
        self.0.extend([option.to_owned(), value.to_owned()]);
        self
    }

    fn file(self, option: &str, file: &Path) -> Self {
        self.value(option, &file.to_string_lossy())
    }

    fn number(self, option: &str, number: u64) -> Self {
        self.value(option, &number.to_string())
    }

    /// Ends with the number of rounds and a share in minutes.
    fn rounds(self, rounds: u64, minutes: u64) -> Part {
        Part::with_rounds(self.0, rounds, minutes)
    }

    /// Ends without rounds, with a share in minutes.
    fn no_rounds(self, minutes: u64) -> Part {
        Part::without_rounds(self.0, minutes)
    }
}

/// The file of the component `name`.
pub(super) fn plugin(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.wasm"))
}

/// The target of a GPU, which `tests/gpu/run.sh` measures.
fn on_a_gpu(model: &Path, plugins: &Path) -> Part {
    let what = "GPU, 0.6b, 64 streams: HTTP over TCP / raw loop (tests/gpu)";
    let line = stages(model, plugins, [192, 64, 32, 50]).value("--stages", "0,8");
    Part {
        kind: Kind::Skipped,
        ..line.no_rounds(0).targets(vec![min_ratio::<8>(what, 0.95)])
    }
}

/// The ratio of stage `N`.
fn stage_ratio<const N: u64>(result: &Value) -> Option<f64> {
    stage_figure(result, N, "ratio")
}

/// A lower bound of the ratio of stage `N`.
fn min_ratio<const N: u64>(what: &'static str, bound: f64) -> Target {
    at_least(what, bound, stage_ratio::<N>).ends(
        |result| stage_figure(result, N, "ratio_min"),
        |result| stage_figure(result, N, "ratio_max"),
    )
}

fn stage_figure(result: &Value, number: u64, field: &str) -> Option<f64> {
    let stages = result["stages"].as_array()?;
    stages.iter().find(|stage| stage["stage"] == number)?[field].as_f64()
}

fn at_least(what: &'static str, bound: f64, find: fn(&Value) -> Option<f64>) -> Target {
    Target::new(what, Bound::AtLeast(bound), 1.0, find)
}

fn at_most(what: &'static str, bound: f64, scale: f64, find: fn(&Value) -> Option<f64>) -> Target {
    Target::new(what, Bound::AtMost(bound), scale, find)
}

fn eight_streams_targets() -> Vec<Target> {
    vec![
        min_ratio::<1>("0.6b, 8 at once: engine without sampling / raw loop", 0.97),
        min_ratio::<2>("0.6b, 8 at once: with sampling and text / raw loop", 0.97),
        min_ratio::<3>("0.6b, out of step / a raw loop that such clients ask", 0.97),
        min_ratio::<4>("0.6b, 8 at once: plugin, host's loop / raw loop", 0.97),
        min_ratio::<5>("0.6b, 8 at once: plugin's loop, top 64 / raw loop", 0.97),
        min_ratio::<6>(
            "0.6b, 8 at once: plugin's loop, full logits / raw loop",
            0.93,
        ),
        min_ratio::<7>("0.6b, 8 at once: HTTP in process / raw loop", 0.97),
        min_ratio::<8>("0.6b, 8 at once: HTTP over TCP / raw loop", 0.97),
        min_ratio::<9>("0.6b, 8 at once: SSE of OpenAI's API / raw loop", 0.97),
        at_least(
            "... with the same arrivals, minimum of stages 3 to 9 but 6",
            0.97,
            min_same_arrivals_ratio,
        ),
    ]
}

/// The minimum ratio to a raw loop with the same arrivals, of the stages with clients except whole rows of logits.
fn min_same_arrivals_ratio(result: &Value) -> Option<f64> {
    let stages =
        [3, 4, 5, 7, 8, 9].map(|number| stage_figure(result, number, "same_arrivals_ratio"));
    let ratios: Option<Vec<f64>> = stages.into_iter().collect();
    ratios?.into_iter().reduce(f64::min)
}

fn one_stream_targets() -> Vec<Target> {
    vec![
        min_ratio::<8>("0.6b, one stream: HTTP over TCP / raw loop", 0.97),
        min_ratio::<9>("0.6b, one stream: SSE of OpenAI's API / raw loop", 0.97),
    ]
}

fn long_targets() -> Vec<Target> {
    vec![min_ratio::<8>(
        "0.6b, one stream, 512 in, 128 out: HTTP / raw loop",
        0.97,
    )]
}

fn overhead_targets() -> Vec<Target> {
    vec![
        at_most(
            "demo model, 8 at once: µs of CPU a token, SSE less raw loop",
            25.0,
            1.0,
            |result| stage_figure(result, 9, "cpu_us_over_raw"),
        ),
        Target::new(
            "... of which the system takes to send an event, µs",
            Bound::None,
            1.0,
            |result| result["send_us_per_event"].as_f64(),
        ),
    ]
}

fn gap_targets() -> Vec<Target> {
    fn budgeted(result: &Value, field: &str) -> Option<f64> {
        row(result, &[("prefill", json!("budgeted"))], field)
    }
    vec![
        at_most(
            "0.6b, gap while long prompts come: p99 / decode step",
            2.0,
            1.0,
            |result| budgeted(result, "p99_ratio"),
        )
        .ends(
            |result| budgeted(result, "p99_ratio_min"),
            |result| budgeted(result, "p99_ratio_max"),
        ),
        at_most("... decode rows skipped", 0.0, 1.0, |result| {
            budgeted(result, "skipped_rows")
        }),
        at_most("... prompt tokens / prefill budget", 1.0, 1.0, |result| {
            Some(
                budgeted(result, "mixed_prefill_tokens")?
                    / budgeted(result, "mixed_budget_tokens")?,
            )
        }),
    ]
}

fn boundary_targets() -> Vec<Target> {
    fn figure(result: &Value, way: &str, streams: u64, field: &str) -> Option<f64> {
        row(
            result,
            &[("way", json!(way)), ("streams", json!(streams))],
            field,
        )
    }
    const TOP: &str = "next: the 64 likeliest";
    vec![
        at_least(
            "0.6b, one sequence: plugin's loop, top 64 / generate",
            0.98,
            |result| figure(result, TOP, 1, "ratio"),
        )
        .ends(
            |result| figure(result, TOP, 1, "ratio_min"),
            |result| figure(result, TOP, 1, "ratio_max"),
        ),
        at_least(
            "0.6b, 8 at once: plugin's loop, top 64 / generate",
            0.98,
            |result| figure(result, TOP, 8, "ratio"),
        )
        .ends(
            |result| figure(result, TOP, 8, "ratio_min"),
            |result| figure(result, TOP, 8, "ratio_max"),
        ),
        at_most("µs of a new instance, median", 25.0, 1e6, |result| {
            result["times"]["instance_p50_s"].as_f64()
        }),
        at_most("... p99", 150.0, 1e6, |result| {
            result["times"]["instance_p99_s"].as_f64()
        }),
    ]
}

/// A model that computes next to nothing has steps short enough to show the cost of logits.
fn logits_targets() -> Vec<Target> {
    fn over(result: &Value, streams: u64) -> Option<f64> {
        const LOGITS: &str = "next: whole rows of logits";
        let keys = [("way", json!(LOGITS)), ("streams", json!(streams))];
        row(result, &keys, "over_next_s")
    }
    vec![
        at_most(
            "151,936 tokens: µs a token of full logits over top 64",
            200.0,
            1e6,
            |result| over(result, 1),
        ),
        at_most("... 8 at once", 200.0, 1e6, |result| over(result, 8)),
    ]
}

fn flat_targets() -> Vec<Target> {
    vec![
        at_most(
            "1,000 one-token requests: growth, part of the median",
            0.05,
            1.0,
            |result| row(result, &[("asked_over", json!("engine"))], "growth"),
        ),
        at_most("... through HTTP", 0.05, 1.0, |result| {
            row(result, &[("asked_over", json!("HTTP"))], "growth")
        }),
        at_most(
            "idle server: wake-ups of the engine's thread a second",
            0.0,
            1.0,
            |result| result["idle_wake_ups_per_second"].as_f64(),
        ),
    ]
}

fn prefix_targets() -> Vec<Target> {
    fn cached(result: &Value, over: &str, field: &str) -> Option<f64> {
        let keys = [("prefix", json!("cached")), ("asked_over", json!(over))];
        row(result, &keys, field)
    }
    vec![
        at_most(
            "prefix of 2,048 cached: first token / uncached tail",
            1.05,
            1.0,
            |result| cached(result, "engine", "ratio_to_held"),
        )
        .ends(
            |result| cached(result, "engine", "least_to_held"),
            |result| cached(result, "engine", "most_to_held"),
        ),
        at_most("... through HTTP", 1.05, 1.0, |result| {
            cached(result, "HTTP", "ratio_to_held")
        })
        .ends(
            |result| cached(result, "HTTP", "least_to_held"),
            |result| cached(result, "HTTP", "most_to_held"),
        ),
        at_most("µs of a fork of 2,048 tokens, p99", 100.0, 1e6, |result| {
            result["fork"]["p99_s"].as_f64()
        }),
        at_most("... tokens decoded for it", 0.0, 1.0, |result| {
            result["fork"]["tokens_decoded"].as_f64()
        }),
    ]
}

fn deploy_targets() -> Vec<Target> {
    const STORED: &str = "stored, compiled";
    fn first(result: &Value, component: &str, field: &str) -> Option<f64> {
        row(result, &[("component", json!(component))], field)
    }
    vec![
        at_most("deploy of 1 MB to first response, s", 1.0, 1.0, |result| {
            first(result, "new", "first_answer_s")
        })
        .ends(
            |result| first(result, "new", "least_s"),
            |result| first(result, "new", "most_s"),
        ),
        at_most(
            "... ms, its compiled code in the cache",
            50.0,
            1e3,
            |result| first(result, STORED, "first_answer_s"),
        )
        .ends(
            |result| first(result, STORED, "least_s"),
            |result| first(result, STORED, "most_s"),
        ),
    ]
}

fn http_targets() -> Vec<Target> {
    fn ours(result: &Value, field: &str) -> Option<f64> {
        let keys = [("connections", json!(8)), ("server", json!("corral"))];
        row(result, &keys, field)
    }
    vec![
        Target::new(
            "HTTP without a model, 8 connections, requests/s",
            Bound::None,
            1.0,
            |result| ours(result, "requests_per_second"),
        )
        .ends(
            |result| ours(result, "least"),
            |result| ours(result, "most"),
        ),
        at_least("... / the peer of --peer", 1.0, |result| {
            ours(result, "ratio")
        })
        .ends(
            |result| ours(result, "ratio_least"),
            |result| ours(result, "ratio_most"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Bench;
    use crate::args::tests::parse;
    use std::time::Duration;

    #[test]
    fn shares_add_up_to_less_than_an_hour() {
        let line = "all --model m.gguf --wide w.gguf --plugins p --peer http://a:1 --openai-peer http://b:2";
        let Ok(Bench::All(args)) = parse(line) else {
            panic!("not all");
        };
        let parts = all(&args);
        let mut shares = Duration::ZERO;
        for part in &parts {
            let line = part.arguments_within(part.time_budget(shares, shares));
            // `corral` parses those of `load`.
            if line[0] != "load" {
                assert!(parse(&line.join(" ")).is_ok(), "{line:?}");
            }
            shares += part.share;
        }
        // As in BENCHMARKS.md.
        assert_eq!(shares, Duration::from_secs(56 * 60));
    }
}
