//! The JSON objects of `corral-bench http` and `corral bench load` against real servers.

use corral_tests::benches::{
    WithFile, bench, check_members, check_positive, check_refused, check_rising, count, measure,
    number, object, plugin, rows, text,
};
use corral_tests::{Corral, scratch_dir};
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
fn peer_gets_as_many_requests() {
    let corral = Corral::start();
    let peer = url(&corral);
    let line = format!("http --path /classic --peer {peer} --connections 1,2 --requests 20");
    let line = format!("{line} --rounds 1 --workers 1 --json");
    let ended = bench(&line, &[plugin("classic")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Both respond with the path.
    assert!(!ended.stderr.contains("differs from"), "{ended:?}");
    let found = object(&line, &ended);
    let setup =
        json!({"path": "/classic", "requests": 20, "rounds": 1, "workers": 1, "peer": peer});
    check_members(&found, &setup);
    let servers = rows(&found)
        .iter()
        .map(|row| (count(row, "connections"), text(row, "server")));
    let expected = [(1, "corral"), (1, "peer"), (2, "corral"), (2, "peer")];
    assert_eq!(servers.collect::<Vec<_>>(), expected);
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
        match text(row, "server") {
            "corral" => check_positive(row, &["cpu_s"]),
            // Its CPU time is unknown.
            _ => assert_eq!((row.get("cpu_s"), &row["ratio"]), (None, &json!(1.0))),
        }
    }
    // A probe; then two rounds, warm-up included, of both numbers of connections.
    assert_eq!(
        request_count(&corral, "/classic"),
        f64::from(1 + 2 * 2 * 20)
    );
}

#[test]
fn different_peer_response_is_reported() {
    let corral = Corral::start();
    let line = format!("http --peer {}/classic --connections 1", url(&corral));
    let line = format!("{line} --requests 2 --rounds 1 --json");
    // One responds with "/", the other with "/classic".
    let ended = bench(&line, &[plugin("classic")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let expected = "the peer's response differs from Corral's; is it the same component?";
    assert!(ended.stderr.contains(expected), "{ended:?}");
    assert_eq!(object(&line, &ended)["path"], "/");

    let line = "http --connections 1,3 --requests 10 --rounds 2";
    let found = measure(line, &[plugin("classic")]);
    check_members(&found, &json!({"peer": null, "rounds": 2, "requests": 10}));
    let connections = rows(&found).iter().map(|row| count(row, "connections"));
    assert_eq!(connections.collect::<Vec<_>>(), [1, 3]);
    for row in rows(&found) {
        assert_eq!(text(row, "server"), "corral");
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
fn http_needs_a_plugin_without_model() {
    let words = "http --requests 2 --connections 1 --rounds 1";
    let missing = ("--plugin", scratch_dir().join("missing.wasm"));
    let expected = ["cannot read the plugin", "missing.wasm"];
    check_refused(&bench(words, &[missing]), 1, &expected);
    let expected = [
        "corral answered with 405",
        "is there a component that needs no model?",
    ];
    check_refused(&bench(words, &[plugin("generate")]), 1, &expected);
    let (_held, gone) = unused_port();
    let ended = bench(&format!("{words} --peer {gone}"), &[plugin("classic")]);
    let expected = [
        format!("{gone} did not answer"),
        "start the server, or name another URL".to_owned(),
    ];
    check_refused(&ended, 1, &expected.each_ref().map(String::as_str));
    for (line, expected) in [
        ("--connections 2,2", "--connections names a number twice"),
        (
            "--requests 1000000 --rounds 1000",
            "lower --requests, --connections or --rounds",
        ),
        ("--path classic", "begins with '/'"),
        ("--peer 127.0.0.1:8099", "write http://HOST:PORT"),
    ] {
        let ended = bench(&format!("http {line}"), &[plugin("classic")]);
        check_refused(&ended, 2, &[expected]);
    }
}

/// Starts a server with OpenAI's API at `/v1`.
fn endpoint() -> Corral {
    Corral::start_with_routes(&[("/v1", "openai")], &[])
}

/// Sums of six tokens each that the demo model solves reliably.
const SUMS: &str = "31+27=\n45+54=\n20+22=\n";

/// Writes a file with a prompt on each line.
fn prompts(lines: &str) -> WithFile<'static> {
    let file = scratch_dir().join("prompts.txt");
    std::fs::write(&file, lines).expect("ours");
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
    let urls = rows(&found).iter().map(|row| text(row, "url"));
    assert_eq!(urls.collect::<Vec<_>>(), [&first, &second]);
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
        assert!(count(row, "cached_tokens") <= 60, "{row}");
        assert!(count(row, "events") >= 10, "{row}");
        check_positive(row, &["tokens_per_second_least", "requests_per_second"]);
        let speeds = [
            "tokens_per_second_least",
            "tokens_per_second",
            "tokens_per_second_most",
        ];
        check_rising(row, &speeds);
        let each = number(row, "tokens_per_second") / number(row, "requests_per_second");
        assert!((each - 8.0).abs() < 1e-6, "{row}");
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

#[test]
fn ratio_of_one_round_is_exact() {
    let corral = endpoint();
    let first = url(&corral);
    let line =
        format!("load {first} {first} --rounds 1 --requests 4 --concurrency 1 --output-tokens 4");
    let found = measure(&line, &[prompts(SUMS)]);
    let [one, other] = rows(&found) else {
        panic!("two rows in {found}");
    };
    for of in ["tokens_per_second", "requests_per_second"] {
        let expected = number(other, of) / number(one, of);
        let ratio = number(&other["ratios"][of], "median");
        assert!((ratio / expected - 1.0).abs() < 1e-9, "{of} in {found}");
    }
    // A single round has no warm-up.
    assert_eq!(request_count(&corral, "/v1"), f64::from(2 * (1 + 4)));
    // Without time for more, one of five rounds is measured after the warm-up.
    let hasty = line.replace("--rounds 1", "--within 0.001");
    let found = measure(&hasty, &[prompts(SUMS)]);
    assert_eq!(found["rounds"], 1, "{found}");
    assert_eq!(
        request_count(&corral, "/v1"),
        f64::from(2 * (1 + 4 + 1 + 2 * 4))
    );
}

#[test]
fn open_loop_counts_unsent_requests() {
    let corral = endpoint();
    let line = format!("load {} --rate 1000 --requests 10", url(&corral));
    let line = format!("{line} --prompt-words 3 --mixed-lengths");
    // All ten arrive within some ten milliseconds; a response of hundreds of tokens takes longer.
    for (more, generate, not_sent) in [("--max-in-flight 1", 400, 1..=9), ("", 4, 0..=0)] {
        let found = measure(&format!("{line} --output-tokens {generate} {more}"), &[]);
        let setup = json!({
            "rounds": 1,
            "concurrency": null,
            "rate": 1000.0,
            "prompt_words": 3,
            "mixed_lengths": true,
        });
        check_members(&found, &setup);
        let [row] = rows(&found) else {
            panic!("one row in {found}");
        };
        let (done, refused) = (count(row, "done"), count(row, "refused_by_client"));
        assert_eq!((done + refused, &row["failed"]), (10, &json!(0)), "{row}");
        assert!(not_sent.contains(&refused), "{row}");
        let asked = count(row, "asked_tokens");
        let half = generate / 2 * done;
        assert!((half..=3 * half).contains(&asked), "{row}");
        assert_eq!(row["generated_tokens"], asked, "{row}");
        assert!(number(row, "latest_start_s") >= 0.0, "{row}");
        check_quantiles(&row["whole_s"]);
    }
}

#[test]
fn whole_chat_responses_have_no_first_token() {
    let corral = endpoint();
    let line = format!("load {} --chat --no-stream --requests 3", url(&corral));
    let found = measure(
        &format!("{line} --concurrency 1 --prompt-words 3 --output-tokens 4"),
        &[],
    );
    let setup = json!({"chat": true, "stream": false, "rounds": 1, "concurrency": 1});
    check_members(&found, &setup);
    let [row] = rows(&found) else {
        panic!("one row in {found}");
    };
    let counts = json!({
        "done": 3,
        "failed": 0,
        "generated_tokens": 12,
        "asked_tokens": 12,
        "events": 0,
        "counted_by": "usage",
        "first_token_s": null,
        "gap_s": null,
        "ratios": null,
    });
    check_members(row, &counts);
    check_positive(row, &["tokens_per_second", "prompt_tokens"]);
    check_quantiles(&row["whole_s"]);
}

#[test]
fn failed_responses_are_counted() {
    let corral = endpoint();
    // Every other prompt, including the first, exceeds the context. The probe takes the last one.
    let files = [prompts(&format!("{}\n31+27=\n", "1".repeat(17_000)))];
    let line = format!("load {} --concurrency 1 --output-tokens 4", url(&corral));
    let found = measure(&format!("{line} --requests 4"), &files);
    let counts = json!({
        "done": 2,
        "failed": 2,
        "failures": {"status_400": 2},
        "asked_tokens": 8,
        "generated_tokens": 8,
    });
    check_members(&rows(&found)[0], &counts);

    let ended = bench(&format!("{line} --requests 1 --json"), &files);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let message = format!("no request to {} succeeded", url(&corral));
    assert!(ended.stderr.contains(&message), "{ended:?}");
    // The object is printed anyway, and the server's message on stderr.
    let of = format!("{}: 1 failed: ", url(&corral));
    let reason = ended.stderr.lines().find_map(|line| line.strip_prefix(&of));
    assert!(
        reason.is_some_and(|reason| reason.contains("400")),
        "{ended:?}"
    );
    let counts = json!({
        "done": 0,
        "failed": 1,
        "failures": {"status_400": 1},
        "tokens_per_second": 0.0,
        "first_token_s": null,
        "whole_s": null,
    });
    check_members(&rows(&object("load", &ended))[0], &counts);
}

#[test]
fn unusable_endpoint_is_refused() {
    let (_held, gone) = unused_port();
    let ended = bench(&format!("load {gone} --json"), &[]);
    let expected = [
        format!("nothing answers at {gone}"),
        "start the server, or name another URL".to_owned(),
    ];
    check_refused(&ended, 1, &expected.each_ref().map(String::as_str));

    let corral = endpoint();
    let here = url(&corral);
    for (below, expected) in [
        ("/elsewhere", "there is no /elsewhere/v1/completions at"),
        // It responds with plain text.
        ("/hello", "is not an endpoint of OpenAI's API"),
    ] {
        let ended = bench(&format!("load {here} {here}{below} --json"), &[]);
        check_refused(&ended, 1, &[expected, below]);
    }
    let ended = bench(&format!("load {here}"), &[prompts("\n \n")]);
    check_refused(&ended, 1, &["there is no prompt in", "one on each line"]);
    let missing = ("--prompt-file", scratch_dir().join("missing.txt"));
    let ended = bench(&format!("load {here}"), &[missing]);
    check_refused(&ended, 1, &["cannot read the prompts in"]);
    for (line, expected) in [
        ("", "<URL>"),
        ("http://a --rate 0", "write requests a second"),
        ("http://a --max-in-flight 2", "--rate"),
        ("http://a --output-tokens 0", "0 is not in 1..=100000"),
    ] {
        check_refused(&bench(&format!("load {line}"), &[]), 2, &[expected]);
    }
}
