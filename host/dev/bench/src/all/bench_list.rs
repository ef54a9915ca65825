//! The benches in their order, with the sizes of the targets, and the targets of each. BENCHMARKS.md explains them.
//!
//! The shares of all benches add up to less than an hour.

use super::AllArgs;
use super::bench_run::{BenchRun, Kind};
use super::targets::{Bound, Target};
use crate::programs;
use std::path::{Path, PathBuf};

/// The share of the comparison with a peer that has OpenAI's API, in minutes.
const PEER_MINUTES: u64 = 12;
/// The share of the comparison with llama-bench.
const LLAMA_BENCH_MINUTES: u64 = 4;
/// The share of the programs, which are compared with the same peer.
const PROGRAM_MINUTES: u64 = 8;

/// The files that the benches need.
pub(super) fn files(args: &AllArgs) -> Vec<PathBuf> {
    let plugins = ["generate", "measure", "min-p", "openai", "wasi-p2-handler"];
    let plugins = plugins.into_iter().chain(programs::names());
    let plugins = plugins.map(|name| plugin(&args.plugins, name));
    let models = [&args.model, &args.small, &args.wide];
    models.into_iter().cloned().chain(plugins).collect()
}

/// The file of the component `name`.
fn plugin(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.wasm"))
}

/// All benches in their order.
pub(super) fn all(args: &AllArgs) -> Vec<BenchRun> {
    let [model, small, wide] = [&args.model, &args.small, &args.wide].map(PathBuf::as_path);
    let file = |name| plugin(&args.plugins, name);
    let (generate, measure, min_p) = (file("generate"), file("measure"), file("min-p"));
    let stages = |model, sizes: &str| {
        let files = [("--model", model), ("--plugins", args.plugins.as_path())];
        BenchRun::new(&format!("stages {sizes}"), &files)
    };
    let plugin_overhead = |model, tokens: u64| {
        let files = [
            ("--model", model),
            ("--plugin", measure.as_path()),
            ("--sampler", min_p.as_path()),
        ];
        BenchRun::new(&format!("plugin-overhead --output-tokens {tokens}"), &files)
    };
    let with_generate = |bench| {
        let files = [("--model", small), ("--plugin", generate.as_path())];
        BenchRun::new(bench, &files)
    };
    let peer = args.peer.iter().map(|url| format!(" --peer {url}"));
    let http = format!("http{}", peer.collect::<String>());
    let mut benches = vec![
        stages(
            model,
            "--requests 4 --concurrency 1 --prompt-tokens 32 --output-tokens 32 --stages 0,8,9",
        )
        .rounds(5)
        .minutes(3)
        .targets([
            stage_ratio(8, "0.6b, one stream: HTTP over TCP / raw loop", 0.97),
            stage_ratio(9, "0.6b, one stream: SSE of OpenAI's API / raw loop", 0.97),
        ]),
        stages(
            model,
            "--requests 1 --concurrency 1 --prompt-tokens 512 --output-tokens 128 --stages 0,8",
        )
        .rounds(5)
        .minutes(2)
        .targets([stage_ratio(
            8,
            "0.6b, one stream, 512 in, 128 out: HTTP / raw loop",
            0.97,
        )]),
        stages(
            small,
            "--requests 40 --concurrency 8 --prompt-tokens 32 --output-tokens 50",
        )
        .rounds(5)
        .minutes(1)
        .targets([at_most(
            "demo model, 8 at once: µs of CPU a token, SSE less raw loop",
            25.0,
            "/cpu_us_over_raw",
        )
        .of("stage", 9)]),
        BenchRun::new("inter-token-latency --prompts 3", &[("--model", model)])
            .rounds(5)
            .minutes(5)
            .targets(inter_token_latency_targets()),
        latency_bench(args),
        // Many rounds: the speed of a busy machine changes within seconds.
        plugin_overhead(model, 24)
            .rounds(12)
            .minutes(4)
            .targets(plugin_overhead_targets()),
        // A model that computes next to nothing has steps short enough to show the cost of logits.
        plugin_overhead(wide, 256)
            .rounds(5)
            .minutes(1)
            .targets(logits_targets()),
        with_generate("latency-drift")
            .minutes(1)
            .targets(latency_drift_targets()),
        with_generate("prefix")
            .rounds(5)
            .minutes(2)
            .targets(prefix_targets()),
        with_generate("deploy")
            .rounds(5)
            .minutes(1)
            .targets(deploy_targets()),
        BenchRun::new("first-load", &[("--model", model)])
            .rounds(5)
            .minutes(1)
            .targets([at_most(
                "0.6b, file not checked yet: load to first token / mapped without a check",
                1.2,
                "/ratio_to_mapped",
            )
            .of("file", "read, first load")
            .ends("/ratio_to_mapped_min", "/ratio_to_mapped_max")]),
        BenchRun::new(
            "isolation",
            &[("--model", model), ("--plugin", generate.as_path())],
        )
        .rounds(5)
        .minutes(1)
        .targets(isolation_targets()),
        with_generate("console")
            .rounds(5)
            .minutes(1)
            .targets([ratio(
                "demo model, 8 at once: tokens a second with 3 consoles open / none",
                0.97,
            )
            .of("consoles", 3)]),
        BenchRun::new(&http, &[("--plugin", &file("wasi-p2-handler"))])
            .rounds(5)
            .minutes(2)
            .targets(http_targets()),
    ];
    benches.extend(peer_benches(args));
    benches.push(programs_bench(args));
    benches.push(prefill_bench(args));
    // The longest bench is last: it gets the time that the others left, and that of a missing peer.
    let mut minutes = 6;
    if args.openai_peer.is_none() {
        minutes += PEER_MINUTES + PROGRAM_MINUTES;
    }
    if args.llama_bench.is_none() {
        minutes += LLAMA_BENCH_MINUTES;
    }
    benches.push(
        stages(
            model,
            // A round of 16 requests of 50 tokens takes seven minutes on slow machines.
            "--requests 8 --concurrency 8 --prompt-tokens 32 --output-tokens 32",
        )
        .rounds(5)
        .minutes(minutes)
        .targets(eight_streams_targets()),
    );
    // `tests/gpu/run.sh` measures it.
    let gpu = "GPU, 0.6b, 64 streams: HTTP over TCP / raw loop (tests/gpu)";
    let gpu = stages(model, "").targets([stage_ratio(8, gpu, 0.95)]);
    benches.push(gpu.kind(Kind::Skipped));
    let devices = args.devices.to_arguments();
    for bench in &mut benches {
        let most = args.rounds.unwrap_or(u64::MAX);
        bench.rounds = bench.rounds.map(|rounds| rounds.min(most));
        if bench.arguments.iter().any(|argument| argument == "--model") {
            bench.arguments.extend_from_slice(&devices);
        }
    }
    benches
}

/// Compares Corral's server with a peer that has OpenAI's API and the same model file: `corral bench load` measures both
/// in turns. Not measured without a peer.
fn peer_benches(args: &AllArgs) -> [BenchRun; 3] {
    let bench = |options: &str, what: &'static str, bound: f64| {
        let peer = args.openai_peer.iter().map(ToString::to_string);
        let peer = peer.collect::<String>();
        let kind = match args.openai_peer {
            // A new server for each bench, with an empty cache. The peer's may be filled.
            Some(_) => Kind::AgainstServer(serve_arguments(args)),
            None => Kind::Skipped,
        };
        // The second row is that of Corral's server.
        let target = at_least(what, bound, "/rows/1/ratios/tokens_per_second/median").ends(
            "/rows/1/ratios/tokens_per_second/least",
            "/rows/1/ratios/tokens_per_second/most",
        );
        let words = format!("load {peer} --prompt-words 32 --output-tokens 50 {options}");
        BenchRun::new(&words, &[])
            .rounds(5)
            .minutes(PEER_MINUTES / 3)
            .kind(kind)
            .targets([target])
    };
    [
        bench(
            "--requests 24 --concurrency 8",
            "0.6b, 8 at once: tokens a second / the peer of --openai-peer",
            1.1,
        ),
        bench(
            "--requests 48 --concurrency 16 --mixed-lengths",
            "... 16 at once, mixed lengths",
            1.3,
        ),
        bench(
            "--requests 64 --concurrency 32 --mixed-lengths",
            "... 32 at once, mixed lengths",
            1.3,
        ),
    ]
}

/// First tokens and gaps of the default latency, beside the peer's if there is one.
fn latency_bench(args: &AllArgs) -> BenchRun {
    let peer = args.openai_peer.iter();
    let peer = peer.map(|url| format!(" --openai-peer {url}"));
    let words = format!("latency --latency balanced{}", peer.collect::<String>());
    BenchRun::new(&words, &[("--model", args.model.as_path())])
        .rounds(2)
        .minutes(4)
        .targets(
            [
                at_most(
                    "0.6b, every fourth prompt long: gap p99 / decode step",
                    4.0,
                    "/gap_p99_ratio",
                ),
                at_most(
                    "... first token p99 / the peer of --openai-peer",
                    1.2,
                    "/first_token_p99_peer_ratio",
                ),
                at_least(
                    "... tokens a second / that peer",
                    1.1,
                    "/tokens_per_second_peer_ratio",
                ),
            ]
            .map(|target| target.of("policy", "balanced")),
        )
}

/// Compares programs as plugins with clients of the peer, one at once: a round of eight at once takes a quarter of an hour.
/// Not measured without a peer.
fn programs_bench(args: &AllArgs) -> BenchRun {
    let targets = [
        (
            "median",
            "0.6b, programs: client of --openai-peer / plugin, median of eight",
            2.0,
        ),
        ("lowest", "... lowest of eight", 1.0),
    ];
    let targets = targets.map(|(program, what, bound)| {
        at_least(what, bound, "/peer_ratio")
            .ends("/peer_ratio_min", "/peer_ratio_max")
            .of("program", program)
            .of("at_once", 1)
    });
    let peer = args.openai_peer.iter().map(|url| format!(" --peer {url}"));
    let words = format!("programs --at-once 1{}", peer.collect::<String>());
    let files = [
        ("--model", args.model.as_path()),
        ("--plugins", args.plugins.as_path()),
    ];
    let kind = match args.openai_peer {
        Some(_) => Kind::Alone,
        None => Kind::Skipped,
    };
    BenchRun::new(&words, &files)
        .rounds(5)
        .minutes(PROGRAM_MINUTES)
        .kind(kind)
        .targets(targets)
}

/// Compares prompts with those of llama-bench. Not measured without it.
fn prefill_bench(args: &AllArgs) -> BenchRun {
    let generate = plugin(&args.plugins, "generate");
    let mut files = vec![
        ("--model", args.model.as_path()),
        ("--plugin", generate.as_path()),
    ];
    files.extend(
        args.llama_bench
            .iter()
            .map(|file| ("--llama-bench", file.as_path())),
    );
    let kind = match args.llama_bench {
        Some(_) => Kind::Alone,
        None => Kind::Skipped,
    };
    BenchRun::new("prefill --lengths 512,4096", &files)
        .rounds(5)
        .minutes(LLAMA_BENCH_MINUTES)
        .kind(kind)
        .targets([
            ratio("0.6b, prompt of 512 tokens: HTTP / llama-bench", 0.97).of("prompt_tokens", 512),
            ratio("... of 4,096 tokens", 1.0).of("prompt_tokens", 4096),
        ])
}

/// The arguments of `corral serve`. The default cells suffice for 32 requests of at most 48 words and 75 tokens.
fn serve_arguments(args: &AllArgs) -> Vec<String> {
    let openai = plugin(&args.plugins, "openai");
    let mut arguments = vec![
        // After a name, the name of a file may contain '='.
        format!("--model=bench={}", args.model.to_string_lossy()),
        format!("--plugin=/v1={}", openai.to_string_lossy()),
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        // As long as the client's timeout: slow machines are measured too.
        "--time-limit=600".to_owned(),
    ];
    arguments.extend(args.devices.to_arguments());
    arguments
}

fn at_least(what: &'static str, bound: f64, field: &'static str) -> Target {
    Target::new(what, Bound::AtLeast(bound), field)
}

fn at_most(what: &'static str, bound: f64, field: &'static str) -> Target {
    Target::new(what, Bound::AtMost(bound), field)
}

/// A lower bound of a ratio, with its minimum and maximum.
fn ratio(what: &'static str, bound: f64) -> Target {
    at_least(what, bound, "/ratio").ends("/ratio_min", "/ratio_max")
}

/// A lower bound of the ratio of a stage.
fn stage_ratio(stage: u8, what: &'static str, bound: f64) -> Target {
    ratio(what, bound).of("stage", stage)
}

fn eight_streams_targets() -> [Target; 9] {
    [
        stage_ratio(
            1,
            "0.6b, 8 at once: engine without sampling / raw loop",
            0.97,
        ),
        stage_ratio(
            2,
            "0.6b, 8 at once: with sampling and text / raw loop",
            0.97,
        ),
        stage_ratio(
            3,
            "0.6b, 8 at once, mixed lengths: scheduler / raw loop",
            0.97,
        ),
        stage_ratio(4, "0.6b, 8 at once: plugin, host's loop / raw loop", 0.97),
        stage_ratio(5, "0.6b, 8 at once: plugin's loop, top 64 / raw loop", 0.97),
        stage_ratio(
            6,
            "0.6b, 8 at once: plugin's loop, full logits / raw loop",
            0.93,
        ),
        stage_ratio(7, "0.6b, 8 at once: HTTP in process / raw loop", 0.97),
        stage_ratio(8, "0.6b, 8 at once: HTTP over TCP / raw loop", 0.97),
        stage_ratio(9, "0.6b, 8 at once: SSE of OpenAI's API / raw loop", 0.97),
    ]
}

fn inter_token_latency_targets() -> [Target; 3] {
    [
        at_most(
            "0.6b, gap while long prompts are prefilled: p99 / decode step",
            2.0,
            "/p99_ratio",
        )
        .ends("/p99_ratio_min", "/p99_ratio_max"),
        at_most("... decode rows skipped", 0.0, "/skipped_rows"),
        at_most(
            "... prompt tokens / prefill budget",
            1.0,
            "/prefill_budget_ratio",
        ),
    ]
    .map(|target| target.of("prefill", "budgeted"))
}

fn plugin_overhead_targets() -> [Target; 4] {
    let top = |streams: u64, what| {
        let target = ratio(what, 0.98).of("variant", "next: the 64 likeliest");
        target.of("streams", streams)
    };
    [
        top(1, "0.6b, one sequence: plugin's loop, top 64 / generate"),
        top(8, "0.6b, 8 at once: plugin's loop, top 64 / generate"),
        at_most(
            "µs of a new instance, median",
            25.0,
            "/times/instance_p50_s",
        )
        .scale(1e6),
        at_most("... p99", 150.0, "/times/instance_p99_s").scale(1e6),
    ]
}

fn logits_targets() -> [Target; 2] {
    let logits = |streams: u64, what| {
        let target = at_most(what, 200.0, "/over_next_s").scale(1e6);
        let target = target.of("variant", "next: whole rows of logits");
        target.of("streams", streams)
    };
    [
        logits(1, "151,936 tokens: full logits minus top 64, µs a token"),
        logits(8, "... 8 at once"),
    ]
}

fn isolation_targets() -> [Target; 2] {
    let added = |input: &'static str, what, bound| {
        let target = at_most(what, bound, "/added_s").scale(1e3);
        let target = target.ends("/added_s_min", "/added_s_max");
        target.of("input", input)
    };
    [
        added(
            "component",
            "new component of 1 MB: ms added by its child process",
            100.0,
        ),
        added("grammar", "new grammar: ms added by its limits", 2.0),
    ]
}

fn latency_drift_targets() -> [Target; 3] {
    let growth = |interface, what| at_most(what, 0.05, "/growth").of("interface", interface);
    [
        growth(
            "engine",
            "1,000 one-token requests: growth / median service time",
        ),
        growth("HTTP", "... through HTTP"),
        at_most(
            "idle server: wake-ups of the engine's thread a second",
            0.0,
            "/idle_wakeups_per_second",
        ),
    ]
}

fn prefix_targets() -> [Target; 4] {
    let cached = |interface, what| {
        at_most(what, 1.05, "/ratio_to_held")
            .ends("/ratio_to_held_min", "/ratio_to_held_max")
            .of("prefix", "cached")
            .of("interface", interface)
    };
    [
        cached(
            "engine",
            "prefix of 2,048 cached: first token / of a held sequence",
        ),
        cached("HTTP", "... through HTTP"),
        at_most("µs of a fork of 2,048 tokens, p99", 100.0, "/fork/p99_s").scale(1e6),
        at_most("... tokens decoded for it", 0.0, "/fork/tokens_decoded"),
    ]
}

fn deploy_targets() -> [Target; 2] {
    let first = |component, what, bound| {
        at_most(what, bound, "/first_response_s")
            .ends("/first_response_min_s", "/first_response_max_s")
            .of("component", component)
    };
    [
        first("new", "deploy of 1 MB to first response, s", 1.0),
        first(
            "stored, compiled",
            "... ms, its compiled code in the cache",
            50.0,
        )
        .scale(1e3),
    ]
}

fn http_targets() -> [Target; 2] {
    let what = "HTTP without a model, 8 connections, requests/s";
    [
        Target::new(what, Bound::None, "/requests_per_second")
            .ends("/requests_per_second_min", "/requests_per_second_max"),
        ratio("... / the peer of --peer", 1.0),
    ]
    .map(|target| target.of("connections", 8).of("server", "corral"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandLine as BenchCommandLine;
    use crate::args::tests::parse;
    use clap::Parser;
    use corral_cli::command_line::{Command, CommandLine};
    use serde_json::Value;
    use std::time::Duration;

    const FILES: &str = "--model m/a=b.gguf --wide w.gguf --plugins p --device cpu";

    fn benches(more: &str) -> Vec<BenchRun> {
        all(&parse(&format!("{FILES} {more}")).expect("valid arguments"))
    }

    #[test]
    fn shares_add_up_to_less_than_an_hour() {
        let mut shares = Duration::ZERO;
        for bench in benches("--peer http://a:1 --openai-peer http://b:2 --llama-bench l") {
            let mut words = bench.arguments_within(bench.time_budget(shares, shares));
            words.insert(0, "bench".to_owned());
            let is_valid = match bench.kind {
                Kind::AgainstServer(_) => {
                    words.insert(0, "corral".to_owned());
                    words.push("http://own:1".to_owned());
                    CommandLine::try_parse_from(&words).is_ok()
                }
                _ => BenchCommandLine::try_parse_from(&words).is_ok(),
            };
            assert!(is_valid, "{words:?}");
            shares += bench.share;
        }
        // As in BENCHMARKS.md.
        assert_eq!(shares, Duration::from_secs(59 * 60));
    }

    #[test]
    fn corral_serves_the_model_beside_the_peer() {
        let benches = benches("--openai-peer http://127.0.0.1:8090/");
        let mut servers = 0;
        for bench in &benches {
            let Kind::AgainstServer(serve) = &bench.kind else {
                continue;
            };
            servers += 1;
            assert_eq!(bench.arguments[..2], ["load", "http://127.0.0.1:8090"]);
            let words = ["corral", "serve"].map(str::to_owned).into_iter();
            let parsed = CommandLine::try_parse_from(words.chain(serve.iter().cloned()));
            let Ok(Command::Serve(serve)) = parsed.map(|line| line.command) else {
                panic!("invalid arguments: {serve:?}");
            };
            assert_eq!(serve.models.models[0].file.to_string_lossy(), "m/a=b.gguf");
            assert_eq!(serve.plugins[0].file.to_string_lossy(), "p/openai.wasm");
            assert_eq!(serve.listen, "127.0.0.1:0");
            assert_eq!(serve.admin, "127.0.0.1:0");
            assert_eq!(serve.models.devices.to_arguments(), ["--device", "cpu"]);
        }
        assert_eq!(servers, 3);
    }

    #[test]
    fn missing_peer_leaves_targets_unmeasured() {
        let skipped = |bench: &BenchRun| matches!(bench.kind, Kind::Skipped);
        let benches: Vec<_> = benches("").into_iter().filter(skipped).collect();
        // The last one is for a GPU.
        assert_eq!(benches.len(), 6);
        for bench in benches {
            let figure = bench.targets[0].figure(&Value::Null).json();
            assert_eq!(figure["figure"], Value::Null);
        }
    }
}
