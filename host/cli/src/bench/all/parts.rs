//! The benches in their order, with the sizes that the targets have, and what each is to show. The shares of all parts, those
//! of [`peer`] as well, are less than an hour.
//!
//! The targets stand in BENCHMARKS.md, with what they mean.

use super::part::{Part, Way};
use super::peer;
use super::targets::{Bound, Target, row};
use crate::arguments::AllBench;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The files that all parts together need.
pub(super) fn files(arguments: &AllBench) -> Vec<PathBuf> {
    let plugins = ["classic", "generate", "measure", "min-p", "openai"];
    let plugins = plugins.map(|name| plugin(&arguments.plugins, name));
    let models = [&arguments.model, &arguments.small, &arguments.wide];
    models.into_iter().cloned().chain(plugins).collect()
}

/// All parts.
pub(super) fn all(arguments: &AllBench) -> Vec<Part> {
    let (model, small) = (&arguments.model, &arguments.small);
    let plugins = &arguments.plugins;
    let generate = plugin(plugins, "generate");
    let mut http = words("http").file("--plugin", &plugin(plugins, "classic"));
    if let Some(peer) = &arguments.vs {
        http = http.value("--vs", &peer.to_string());
    }
    let mut parts = vec![
        stages(model, plugins, [4, 1, 32, 32])
            .numbers("--stages", "0,8,9")
            .rounds(5, 3)
            .targets(of_one()),
        stages(model, plugins, [1, 1, 512, 128])
            .numbers("--stages", "0,8")
            .rounds(5, 2)
            .targets(of_long()),
        stages(small, plugins, [40, 8, 32, 50])
            .rounds(5, 1)
            .targets(of_overhead()),
        words("gap")
            .file("--model", model)
            .number("--prompts", 3)
            .rounds(5, 5)
            .targets(of_gap()),
        words("boundary")
            .file("--model", model)
            .file("--plugin", &plugin(plugins, "measure"))
            .file("--sampler", &plugin(plugins, "min-p"))
            // Many rounds: a busy host's speed changes within seconds.
            .number("--generate", 24)
            .rounds(12, 4)
            .targets(of_boundary()),
        words("boundary")
            .file("--model", &arguments.wide)
            .file("--plugin", &plugin(plugins, "measure"))
            .file("--sampler", &plugin(plugins, "min-p"))
            .number("--generate", 256)
            .rounds(5, 1)
            .targets(of_rows()),
        words("flat")
            .file("--model", small)
            .file("--plugin", &generate)
            .whole(1)
            .targets(of_flat()),
        words("prefix")
            .file("--model", small)
            .file("--plugin", &generate)
            .rounds(5, 2)
            .targets(of_prefix()),
        words("deploy")
            .file("--model", small)
            .file("--plugin", &generate)
            .rounds(5, 1)
            .targets(of_deploy()),
        http.rounds(5, 2).targets(of_http()),
    ];
    parts.extend(peer::parts(arguments));
    // The longest one last: it may have what those before it left, and the time of a peer that is not there.
    let minutes = match arguments.vs_openai {
        Some(_) => 22,
        None => 22 + peer::MINUTES,
    };
    parts.push(
        stages(model, plugins, [40, 8, 32, 50])
            .rounds(5, minutes)
            .targets(of_eight()),
    );
    parts.push(on_a_gpu(model, plugins));
    for part in &mut parts {
        part.rounds = part
            .rounds
            .map(|rounds| rounds.min(arguments.rounds.unwrap_or(rounds)));
    }
    let offloading = arguments.offloading.words();
    let has_model = |part: &&mut Part| part.words.iter().any(|word| word == "--model");
    for part in parts.iter_mut().filter(has_model) {
        part.words.extend_from_slice(&offloading);
    }
    parts
}

/// What is asked of a bench, word by word.
struct Words(Vec<String>);

fn words(bench: &str) -> Words {
    Words(vec![bench.to_owned()])
}

/// `corral bench stages`: so many requests, at once, tokens in and tokens out.
fn stages(model: &Path, plugins: &Path, sizes: [u64; 4]) -> Words {
    let [requests, concurrency, prompt, generate] = sizes;
    words("stages")
        .file("--model", model)
        .file("--plugins", plugins)
        .number("--requests", requests)
        .number("--concurrency", concurrency)
        .number("--prompt", prompt)
        .number("--generate", generate)
}

impl Words {
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

    fn numbers(self, option: &str, numbers: &str) -> Self {
        self.value(option, numbers)
    }

    /// A part with so many rounds, and minutes as its share.
    fn rounds(self, rounds: u64, minutes: u64) -> Part {
        Part::in_rounds(self.0, rounds, minutes)
    }

    /// A part without rounds, and its share.
    fn whole(self, minutes: u64) -> Part {
        Part::whole(self.0, minutes)
    }
}

/// The file of the component `name`.
pub(super) fn plugin(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.wasm"))
}

/// What is promised of a GPU. It is measured by `tests/gpu/run.sh`, where there is one.
fn on_a_gpu(model: &Path, plugins: &Path) -> Part {
    let what = "GPU, 0.6b, 64 streams: HTTP over TCP / raw loop (tests/gpu)";
    let words = stages(model, plugins, [192, 64, 32, 50]).numbers("--stages", "0,8");
    Part {
        way: Way::Not,
        ..words
            .whole(0)
            .targets(vec![least_of_stage::<8>(what, 0.95)])
    }
}

/// A ratio of stage `N`.
fn stage<const N: u64>(found: &Value) -> Option<f64> {
    of_stage(found, N, "ratio")
}

/// A bound on the ratio of stage `N`.
fn least_of_stage<const N: u64>(what: &'static str, bound: f64) -> Target {
    least(what, bound, stage::<N>).ends(
        |found| of_stage(found, N, "ratio_min"),
        |found| of_stage(found, N, "ratio_max"),
    )
}

fn of_stage(found: &Value, number: u64, field: &str) -> Option<f64> {
    let stages = found["stages"].as_array()?;
    stages.iter().find(|stage| stage["stage"] == number)?[field].as_f64()
}

fn least(what: &'static str, bound: f64, find: fn(&Value) -> Option<f64>) -> Target {
    Target::new(what, Bound::AtLeast(bound), 1.0, find)
}

fn most(what: &'static str, bound: f64, scale: f64, find: fn(&Value) -> Option<f64>) -> Target {
    Target::new(what, Bound::AtMost(bound), scale, find)
}

fn of_eight() -> Vec<Target> {
    vec![
        least_of_stage::<1>("0.6b, 8 at once: engine without sampling / raw loop", 0.97),
        least_of_stage::<2>("0.6b, 8 at once: with sampling and text / raw loop", 0.97),
        least_of_stage::<3>("0.6b, out of step / a raw loop that such clients ask", 0.97),
        least_of_stage::<4>("0.6b, 8 at once: plugin, host's loop / raw loop", 0.97),
        least_of_stage::<5>("0.6b, 8 at once: plugin's loop, top 64 / raw loop", 0.97),
        least_of_stage::<6>(
            "0.6b, 8 at once: plugin's loop, full logits / raw loop",
            0.93,
        ),
        least_of_stage::<7>("0.6b, 8 at once: HTTP in process / raw loop", 0.97),
        least_of_stage::<8>("0.6b, 8 at once: HTTP over TCP / raw loop", 0.97),
        least_of_stage::<9>("0.6b, 8 at once: SSE of OpenAI's API / raw loop", 0.97),
        least(
            "... with the same arrivals, the least of stages 3 to 9 but 6",
            0.97,
            least_with_the_same_arrivals,
        ),
    ]
}

/// The least ratio to a raw loop that has a stage's own arrivals, of the stages that have some and send no whole rows.
fn least_with_the_same_arrivals(found: &Value) -> Option<f64> {
    let stages = [3, 4, 5, 7, 8, 9].map(|number| of_stage(found, number, "same_arrivals_ratio"));
    let ratios: Option<Vec<f64>> = stages.into_iter().collect();
    ratios?.into_iter().reduce(f64::min)
}

fn of_one() -> Vec<Target> {
    vec![
        least_of_stage::<8>("0.6b, one stream: HTTP over TCP / raw loop", 0.97),
        least_of_stage::<9>("0.6b, one stream: SSE of OpenAI's API / raw loop", 0.97),
    ]
}

fn of_long() -> Vec<Target> {
    vec![least_of_stage::<8>(
        "0.6b, one stream, 512 in, 128 out: HTTP / raw loop",
        0.97,
    )]
}

fn of_overhead() -> Vec<Target> {
    vec![
        most(
            "demo model, 8 at once: µs of CPU a token, SSE less raw loop",
            25.0,
            1.0,
            |found| of_stage(found, 9, "cpu_us_over_raw"),
        ),
        Target::new(
            "... of which the system takes to send an event, µs",
            Bound::None,
            1.0,
            |found| found["send_us_per_event"].as_f64(),
        ),
    ]
}

fn of_gap() -> Vec<Target> {
    fn budgeted(found: &Value, field: &str) -> Option<f64> {
        row(found, &[("prefill", json!("budgeted"))], field)
    }
    vec![
        most(
            "0.6b, gap while long prompts come: p99 / decode step",
            2.0,
            1.0,
            |found| budgeted(found, "p99_ratio"),
        )
        .ends(
            |found| budgeted(found, "p99_ratio_min"),
            |found| budgeted(found, "p99_ratio_max"),
        ),
        most("... rows left out of a step", 0.0, 1.0, |found| {
            budgeted(found, "skipped_rows")
        }),
        most(
            "... prompt tokens read / allowed by the budget",
            1.0,
            1.0,
            |found| {
                Some(
                    budgeted(found, "mixed_prefill_tokens")?
                        / budgeted(found, "mixed_budget_tokens")?,
                )
            },
        ),
    ]
}

fn of_boundary() -> Vec<Target> {
    fn of(found: &Value, way: &str, streams: u64, field: &str) -> Option<f64> {
        row(
            found,
            &[("way", json!(way)), ("streams", json!(streams))],
            field,
        )
    }
    const TOP: &str = "next: the 64 likeliest";
    vec![
        least(
            "0.6b, one sequence: plugin's loop, top 64 / generate",
            0.98,
            |found| of(found, TOP, 1, "ratio"),
        )
        .ends(
            |found| of(found, TOP, 1, "ratio_min"),
            |found| of(found, TOP, 1, "ratio_max"),
        ),
        least(
            "0.6b, 8 at once: plugin's loop, top 64 / generate",
            0.98,
            |found| of(found, TOP, 8, "ratio"),
        )
        .ends(
            |found| of(found, TOP, 8, "ratio_min"),
            |found| of(found, TOP, 8, "ratio_max"),
        ),
        most("µs of a new instance, median", 25.0, 1e6, |found| {
            found["times"]["instance_p50_s"].as_f64()
        }),
        most("... p99", 150.0, 1e6, |found| {
            found["times"]["instance_p99_s"].as_f64()
        }),
    ]
}

/// The step of a model that computes next to nothing is short enough for the rest to be seen.
fn of_rows() -> Vec<Target> {
    fn over(found: &Value, streams: u64) -> Option<f64> {
        const LOGITS: &str = "next: whole rows of logits";
        let keys = [("way", json!(LOGITS)), ("streams", json!(streams))];
        row(found, &keys, "over_next_s")
    }
    vec![
        most(
            "151,936 tokens: µs a token of full logits over top 64",
            200.0,
            1e6,
            |found| over(found, 1),
        ),
        most("... 8 at once", 200.0, 1e6, |found| over(found, 8)),
    ]
}

fn of_flat() -> Vec<Target> {
    vec![
        most(
            "1,000 one-token requests: growth, part of the median",
            0.05,
            1.0,
            |found| row(found, &[("asked_over", json!("engine"))], "growth"),
        ),
        most("... through HTTP", 0.05, 1.0, |found| {
            row(found, &[("asked_over", json!("HTTP"))], "growth")
        }),
        most(
            "idle server: wake-ups of the engine's thread a second",
            0.0,
            1.0,
            |found| found["idle_wake_ups_per_second"].as_f64(),
        ),
    ]
}

fn of_prefix() -> Vec<Target> {
    fn cached(found: &Value, over: &str, field: &str) -> Option<f64> {
        let keys = [("beginning", json!("cached")), ("asked_over", json!(over))];
        row(found, &keys, field)
    }
    vec![
        most(
            "prefix of 2,048 cached: first token / uncached tail",
            1.05,
            1.0,
            |found| cached(found, "engine", "ratio_to_held"),
        )
        .ends(
            |found| cached(found, "engine", "least_to_held"),
            |found| cached(found, "engine", "most_to_held"),
        ),
        most("... through HTTP", 1.05, 1.0, |found| {
            cached(found, "HTTP", "ratio_to_held")
        })
        .ends(
            |found| cached(found, "HTTP", "least_to_held"),
            |found| cached(found, "HTTP", "most_to_held"),
        ),
        most("µs of a fork of 2,048 tokens, p99", 100.0, 1e6, |found| {
            found["fork"]["p99_s"].as_f64()
        }),
        most("... tokens decoded for it", 0.0, 1.0, |found| {
            found["fork"]["tokens_decoded"].as_f64()
        }),
    ]
}

fn of_deploy() -> Vec<Target> {
    const KEPT: &str = "kept, compiled";
    fn first(found: &Value, component: &str, field: &str) -> Option<f64> {
        row(found, &[("component", json!(component))], field)
    }
    vec![
        most("deploy of 1 MB to first answer, s", 1.0, 1.0, |found| {
            first(found, "new", "first_answer_s")
        })
        .ends(
            |found| first(found, "new", "least_s"),
            |found| first(found, "new", "most_s"),
        ),
        most(
            "... ms, its compiled code in the cache",
            50.0,
            1e3,
            |found| first(found, KEPT, "first_answer_s"),
        )
        .ends(
            |found| first(found, KEPT, "least_s"),
            |found| first(found, KEPT, "most_s"),
        ),
    ]
}

fn of_http() -> Vec<Target> {
    fn ours(found: &Value, field: &str) -> Option<f64> {
        let keys = [("connections", json!(8)), ("server", json!("corral"))];
        row(found, &keys, field)
    }
    vec![
        Target::new(
            "HTTP without a model, 8 connections, requests/s",
            Bound::None,
            1.0,
            |found| ours(found, "requests_per_second"),
        )
        .ends(|found| ours(found, "least"), |found| ours(found, "most")),
        least("... / the peer given by --vs", 1.0, |found| {
            ours(found, "ratio")
        })
        .ends(
            |found| ours(found, "ratio_least"),
            |found| ours(found, "ratio_most"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Bench, Command, CommandLine};
    use clap::Parser;
    use std::time::Duration;

    #[test]
    fn the_shares_of_all_parts_are_less_than_an_hour() {
        let line = "corral bench all --model m.gguf --wide w.gguf --plugins p --vs http://a:1 --vs-openai http://b:2";
        let line = CommandLine::try_parse_from(line.split_whitespace()).expect("a good line");
        let Command::Bench(Bench::All(arguments)) = line.command else {
            panic!("it says bench all");
        };
        let parts = all(&arguments);
        let mut shares = Duration::ZERO;
        for part in &parts {
            let line = ["corral", "bench"].into_iter().map(str::to_owned);
            let words = part.line(part.time(shares, shares));
            let line: Vec<_> = line.chain(words).collect();
            assert!(CommandLine::try_parse_from(&line).is_ok(), "{line:?}");
            shares += part.share;
        }
        // BENCHMARKS.md says so.
        assert_eq!(shares, Duration::from_secs(56 * 60));
    }
}
