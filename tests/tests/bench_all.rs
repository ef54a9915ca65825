//! `corral-bench all` with the demo model in place of each model: every target has a figure.

use corral_tests::benches::{bench_within, model, object};
use corral_tests::{Corral, artifacts};
use std::time::Duration;

/// It takes a minute on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// The targets that need llama-bench, and the one that `tests/gpu` measures.
const UNMEASURED: [&str; 3] = [
    "0.6b, prompt of 512 tokens: HTTP / llama-bench",
    "... of 4,096 tokens",
    "GPU, 0.6b, 64 streams: HTTP over TCP / raw loop (tests/gpu)",
];
/// The target that needs the CPU times of threads, which only Linux reports.
const CPU_TARGET: &str = "demo model, 8 at once: µs of CPU a token, SSE less raw loop";
/// Targets with a minimum and a maximum of the rounds.
const WITH_ENDS: usize = 32;

/// A renamed member would otherwise lose its target in silence.
#[test]
#[ignore = "takes minutes: make soak"]
fn every_target_has_a_figure() {
    // Corral is its own peer of both kinds.
    let peer = Corral::start_with_routes(
        &[
            ("/", "wasi-p2-handler"),
            ("/v1", "openai"),
            ("/completion", "openai"),
        ],
        &[],
    );
    let url = format!("http://{}", peer.public());
    let openai = artifacts::plugin("openai");
    let dir = openai.parent().expect("a directory of plugins");
    let ended = bench_within(
        TIMEOUT,
        &format!("all --rounds 2 --json --peer {url} --openai-peer {url}"),
        &[
            model(),
            ("--small", artifacts::model()),
            ("--wide", artifacts::model()),
            ("--plugins", dir.into()),
        ],
    );
    let found = object("all", &ended);
    for bench in found["benches"].as_array().expect("benches") {
        assert!(bench["problem"].is_null(), "{bench}");
    }
    let targets = found["targets"].as_array().expect("targets");
    let without: Vec<_> = targets
        .iter()
        .filter(|target| target["figure"].is_null())
        .map(|target| target["target"].as_str().expect("a text"))
        .filter(|&target| cfg!(target_os = "linux") || target != CPU_TARGET)
        .collect();
    assert_eq!(without, UNMEASURED, "{ended:?}");
    let mut with_ends = 0;
    for target in targets {
        let [min, figure, max] = ["min", "figure", "max"].map(|end| target[end].as_f64());
        if min.is_some() {
            // The figure of several programs is of their medians; the ends are those of whole rounds.
            let of_programs = target["target"]
                .as_str()
                .is_some_and(|what| what.contains("of eight"));
            assert!(of_programs || min <= figure && figure <= max, "{target}");
            with_ends += 1;
        }
        let bound = target["bound"].as_str().expect("a text");
        let is_measured = UNMEASURED.iter().all(|what| target["target"] != *what);
        if bound.starts_with("at least") && is_measured {
            assert!(figure > Some(0.0), "{target}");
        }
        if target["target"] == "idle server: wake-ups of the engine's thread a second" {
            assert_eq!(figure, Some(0.0), "{target}");
        }
    }
    assert_eq!(with_ends, WITH_ENDS, "{targets:#?}");
}
