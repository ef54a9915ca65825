//! The JSON objects of `corral-bench http` and `corral bench load` against real servers.

use corral_tests::benches::{
    FileOption, bench, check_members, check_positive, check_rising, measure, model, object, plugin,
    rows,
};
use corral_tests::{Corral, NOT_WORTH_WAITING, artifacts, scratch_dir};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpSocket;

fn url(corral: &Corral) -> String {
    format!("http://{}", corral.public())
}

/// Requests at a route, as the server counts them.
fn request_count(corral: &Corral, route: &str) -> f64 {
    let sample = format!("corral_deployment_requests_total{{deployment=\"{route}\"}}");
    corral.metrics().get_or_zero(&sample)
}

/// A bound port without a listener, and its URL.
fn unused_port() -> (TcpSocket, String) {
    let held = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    held.bind(any).expect("loopback");
    let url = format!("http://{}", held.local_addr().expect("bound"));
    (held, url)
}

/// The members of each row of `http`.
const OF_HTTP: [&str; 6] = [
    "requests_per_second",
    "requests_per_second_min",
    "requests_per_second_max",
    "p50_s",
    "p99_s",
    "max_s",
];

#[test]
fn http_bench_measures_variants_and_peer() {
    let corral = Corral::start();
    let peer = url(&corral);
    let line =
        format!("http --path /wasi-p2-handler --peer {peer} --connections 1,2 --requests 20");
    let line = format!("{line} --rounds 1 --traces --access-log --json");
    let ended = bench(&line, &[plugin("wasi-p2-handler")]).check_success();
    // Both respond with the path.
    assert!(!ended.stderr.contains("differs from"), "{ended:?}");
    // The measured round and the one before it, with one connection and with two, and none of other servers.
    let lines = ended.stderr.matches(r#"path="/wasi-p2-handler""#).count();
    assert!((60..=100).contains(&lines), "{lines} lines: {ended:?}");
    let found = object(&line, &ended);
    let setup = json!({"path": "/wasi-p2-handler", "requests": 20, "rounds": 1, "peer": peer});
    check_members(&found, &setup);
    let servers = rows(&found)
        .iter()
        .map(|row| [&row["connections"], &row["server"]]);
    let expected = json!([
        [1, "corral"],
        [1, "traced"],
        [1, "logged"],
        [1, "peer"],
        [2, "corral"],
        [2, "traced"],
        [2, "logged"],
        [2, "peer"],
    ]);
    assert_eq!(json!(servers.collect::<Vec<_>>()), expected);
    for row in rows(&found) {
        check_positive(row, &OF_HTTP);
        check_rising(row, &["p50_s", "p99_s", "max_s"]);
        check_positive(row, &["ratio", "ratio_min", "ratio_max"]);
        // There is one round.
        for (one, middle) in [
            ("requests_per_second_min", "requests_per_second"),
            ("requests_per_second_max", "requests_per_second"),
            ("ratio_min", "ratio"),
            ("ratio_max", "ratio"),
        ] {
            assert_eq!(row[one], row[middle], "{one} in {row}");
        }
        match row["server"] != "peer" {
            true => check_positive(row, &["cpu_s"]),
            // The CPU time of the peer is unknown.
            false => assert_eq!((row.get("cpu_s"), &row["ratio"]), (None, &json!(1.0))),
        }
    }
    // A probe; then two rounds, warm-up included, of both numbers of connections.
    let found = request_count(&corral, "/wasi-p2-handler");
    assert_eq!(found, f64::from(1 + 2 * 2 * 20));
}

#[test]
fn different_peer_response_is_reported() {
    let corral = Corral::start();
    let line = format!(
        "http --peer {}/wasi-p2-handler --connections 1",
        url(&corral)
    );
    let line = format!("{line} --requests 2 --rounds 1 --json");
    // One responds with "/", the other with "/wasi-p2-handler".
    let ended = bench(&line, &[plugin("wasi-p2-handler")]).check_success();
    let expected = "the peer's response differs from Corral's; is it the same component?";
    assert!(ended.stderr.contains(expected), "{ended:?}");
    assert_eq!(object(&line, &ended)["path"], "/");

    let line = "http --connections 1,3 --requests 10 --rounds 2";
    let found = measure(line, &[plugin("wasi-p2-handler")]);
    check_members(&found, &json!({"peer": null, "rounds": 2, "requests": 10}));
    let connections = rows(&found).iter().map(|row| &row["connections"]);
    assert_eq!(connections.collect::<Vec<_>>(), [1, 3]);
    for row in rows(&found) {
        assert_eq!(row["server"], "corral");
        check_positive(row, &OF_HTTP);
        check_positive(row, &["cpu_s"]);
        check_rising(
            row,
            &[
                "requests_per_second_min",
                "requests_per_second",
                "requests_per_second_max",
            ],
        );
        assert_eq!(row.get("ratio"), None, "{row}");
    }
}

#[test]
fn missing_peer_is_an_error() {
    let (_held, gone) = unused_port();
    let words = "http --requests 2 --connections 1 --rounds 1";
    let ended = bench(
        &format!("{words} --peer {gone}"),
        &[plugin("wasi-p2-handler")],
    );
    let no_answer = format!("{gone} did not answer");
    ended.check_error(1, &[&no_answer, "start the server, or name another URL"]);
}

/// Starts a server with OpenAI's API at `/v1`.
fn endpoint() -> Corral {
    Corral::start_with_routes(&[("/v1", "openai")], &[])
}

/// Sums of six tokens each that the demo model solves reliably.
const SUMS: &str = "31+27=\n45+54=\n20+22=\n";

/// Writes a file with a prompt on each line.
fn prompts(lines: &str) -> FileOption<'static> {
    let file = scratch_dir().join("prompts.txt");
    std::fs::write(&file, lines).expect("written");
    ("--prompt-file", file)
}

/// Asserts that quantiles ascend.
fn check_quantiles(times: &Value) {
    check_positive(times, &["p50"]);
    check_rising(times, &["p50", "p90", "p99", "max"]);
}

#[test]
fn endpoints_are_compared_round_by_round() {
    let corral = endpoint();
    let first = url(&corral);
    // The same server twice: with and without the prefix of the API.
    let second = format!("{first}/v1");
    let line = format!("load {first} {second} --requests 2 --concurrency 2 --output-tokens 8");
    let found = measure(&line, &[prompts(SUMS)]);
    let setup = json!({
        "rounds": 5,
        "requests": 2,
        "concurrency": 2,
        "rate": null,
        "prompt_words": null,
        "output_tokens": 8,
        "mixed_lengths": false,
        "chat": false,
        "stream": true,
    });
    check_members(&found, &setup);
    let urls = rows(&found).iter().map(|row| &row["url"]);
    assert_eq!(urls.collect::<Vec<_>>(), [first.as_str(), &second]);
    for row in rows(&found) {
        // Ten requests of six tokens for eight.
        let counts = json!({
            "done": 10,
            "failed": 0,
            "failures": {},
            "refused_by_client": 0,
            "prompt_tokens": 60,
            "generated_tokens": 80,
            "asked_tokens": 80,
            "counted_by": "usage",
            "latest_start_s": 0.0,
        });
        check_members(row, &counts);
        assert!(row["cached_tokens"].as_u64() <= Some(60), "{row}");
        assert!(row["events"].as_u64() >= Some(10), "{row}");
        check_positive(row, &["tokens_per_second_least", "requests_per_second"]);
        let speeds = [
            "tokens_per_second_least",
            "tokens_per_second",
            "tokens_per_second_most",
        ];
        check_rising(row, &speeds);
        check_quantiles(&row["first_token_s"]);
        check_quantiles(&row["whole_s"]);
        // Null if each response is one event.
        assert!(row.get("gap_s").is_some(), "{row}");
    }
    assert_eq!(rows(&found)[0]["ratios"], Value::Null, "{found}");
    let ratios = &rows(&found)[1]["ratios"];
    for of in [
        "tokens_per_second",
        "requests_per_second",
        "first_token_s",
        "whole_s",
    ] {
        check_positive(&ratios[of], &["least"]);
        check_rising(&ratios[of], &["least", "median", "most"]);
    }
    assert!(ratios.get("gap_s").is_some(), "{found}");
    // A probe and six rounds, warm-up included, for each URL.
    assert_eq!(request_count(&corral, "/v1"), f64::from(2 * (1 + 6 * 2)));
}

/// All ten arrive within some ten milliseconds; a response of hundreds of tokens takes longer.
#[test]
fn requests_at_a_rate_are_sent_or_counted() {
    let corral = endpoint();
    let line = format!("load {} --rate 1000 --requests 10", url(&corral));
    let line = format!("{line} --prompt-words 3 --mixed-lengths");
    for (options, tokens, not_sent) in [("--max-in-flight 1", 400, 1..=9), ("", 4, 0..=0)] {
        let found = measure(&format!("{line} --output-tokens {tokens} {options}"), &[]);
        let expected = json!({"rounds": 1, "concurrency": null, "rate": 1000.0});
        check_members(&found, &expected);
        let row = &rows(&found)[0];
        let count = |member: &str| row[member].as_u64().expect(member);
        let (done, refused) = (count("done"), count("refused_by_client"));
        assert_eq!((done + refused, count("failed")), (10, 0), "{row}");
        assert!(not_sent.contains(&refused), "{row}");
        let half = tokens / 2 * done;
        assert!((half..=3 * half).contains(&count("asked_tokens")), "{row}");
        assert_eq!(row["generated_tokens"], row["asked_tokens"], "{row}");
        check_quantiles(&row["whole_s"]);
    }
}

#[test]
fn failures_are_counted_and_reported() {
    let corral = endpoint();
    let here = url(&corral);
    // Every other prompt, including the first, exceeds the context. The probe takes the last one.
    let files = [prompts(&format!("{}\n31+27=\n", "1".repeat(17_000)))];
    let line = format!("load {here} --concurrency 1 --output-tokens 4 --json");
    let found = object("load", &bench(&format!("{line} --requests 4"), &files));
    let counts = json!({"done": 2, "failed": 2, "failures": {"status_400": 2}});
    check_members(&rows(&found)[0], &counts);
    // The object is printed although the command fails.
    let ended = bench(&format!("{line} --requests 1"), &files);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let message = format!("no request to {here} succeeded");
    assert!(ended.stderr.contains(&message), "{ended:?}");
    let reason = format!("{here}: 1 failed: ");
    assert!(ended.stderr.contains(&reason), "{ended:?}");
    let counts = json!({"done": 0, "failed": 1, "tokens_per_second": 0.0});
    check_members(&rows(&object("load", &ended))[0], &counts);

    let elsewhere = format!("load {here} {here}/elsewhere --json");
    let expected = "there is no /elsewhere/v1/completions at";
    bench(&elsewhere, &[]).check_error(1, &[expected]);
    let ended = bench(&format!("load {here}"), &[prompts("\n \n")]);
    ended.check_error(1, &["there is no prompt in", "one on each line"]);
    let missing = ("--prompt-file", scratch_dir().join("missing.txt"));
    let ended = bench(&format!("load {here}"), &[missing]);
    ended.check_error(1, &["cannot read the prompts in"]);
}

/// The programs of the bench, and the steps of a run: answers, thoughts or distributions.
const PROGRAMS: [(&str, u64); 8] = [
    ("best-of-n", 8),
    // Two answers may agree.
    ("self-consistency", 0),
    // One distribution, then those of four beams at each further token.
    ("beam-search", 1 + 3 * 4),
    ("tree-of-thought", 24),
    ("classifier", 10),
    ("batch-map", 16),
    ("skeleton-of-thought", 8),
    ("react-agent", 6),
];

/// Corral is its own peer.
#[test]
fn programs_compute_each_token_once() {
    const AT_ONCE: u64 = 2;
    let peer = Corral::start_with_routes(&[("/", "openai")], &[]);
    let line = format!("programs --peer {} --at-once {AT_ONCE}", url(&peer));
    let line = format!("{line} --prompt-tokens 100 --output-tokens 4 --threads 1 --rounds 1");
    let plugins = artifacts::plugin("openai");
    let plugins = plugins.parent().expect("a directory of plugins").to_owned();
    let found = measure(&line, &[model(), ("--plugins", plugins)]);
    let expected = json!({"prompt_tokens": 100, "output_tokens": 4, "rounds": 1});
    check_members(&found, &expected);
    let (programs, summaries) = rows(&found).split_at(PROGRAMS.len());
    for (row, (name, steps)) in programs.iter().zip(PROGRAMS) {
        check_members(row, &json!({"program": name, "at_once": AT_ONCE}));
        check_positive(row, &["plugin_s", "client_s", "peer_s", "peer_ratio"]);
        check_positive(row, &["plugin_engine_steps", "client_engine_steps"]);
        assert_eq!(
            row["peer_engine_steps"],
            Value::Null,
            "it is no llama.cpp: {row}"
        );
        for side in ["plugin", "client", "peer"] {
            let found = row[format!("{side}_steps")].as_f64();
            match steps {
                0 => assert!(found >= Some(5.0 * AT_ONCE as f64), "{row}"),
                steps => assert_eq!(found, Some((steps * AT_ONCE) as f64), "{side} in {row}"),
            }
        }
        // The way of a vote may differ between the forms, since each has its own prompts.
        if steps > 0 {
            let [plugin, fewest] = ["plugin_tokens", "fewest_tokens"]
                .map(|member| row[member].as_f64().expect(member));
            let repeated = (NOT_WORTH_WAITING as u64 * steps * AT_ONCE) as f64;
            assert!(plugin <= fewest + repeated, "{row}");
        }
    }
    let names = summaries.iter().map(|row| &row["program"]);
    assert_eq!(names.collect::<Vec<_>>(), ["median", "lowest"]);
    for summary in summaries {
        check_positive(summary, &["client_ratio", "peer_ratio"]);
    }
}
