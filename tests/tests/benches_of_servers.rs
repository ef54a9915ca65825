//! `corral bench http` and `corral bench load` beside real servers, small: what they tell programs.

use corral_tests::benches::{
    WithFile, bench, check_members, check_positive, check_refused, check_rising, count, measure,
    number, object, plugin, rows, text,
};
use corral_tests::{Corral, scratch_folder};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpSocket;

fn url(corral: &Corral) -> String {
    format!("http://{}", corral.public())
}

/// Requests that a server counted at a route.
fn asked(corral: &Corral, route: &str) -> f64 {
    let sample = format!("corral_deployment_requests_total{{deployment=\"{route}\"}}");
    corral.metrics().get_or_zero(&sample)
}

/// A port that nobody else gets as long as it is held, and the URL at which nobody listens.
fn nobody() -> (TcpSocket, String) {
    let held = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    held.bind(any).expect("loopback");
    let url = format!("http://{}", held.local_addr().expect("bound"));
    (held, url)
}

/// What each row of `http` has, whoever answered.
const OF_HTTP: [&str; 6] = [
    "requests_per_second",
    "least",
    "most",
    "p50_s",
    "p99_s",
    "max_s",
];

#[test]
fn a_peer_is_asked_as_often_and_takes_turns() {
    let corral = Corral::start();
    let peer = url(&corral);
    let line = format!("http --path /classic --vs {peer} --connections 1,2 --requests 20");
    let line = format!("{line} --rounds 1 --workers 1 --json");
    let ended = bench(&line, &[plugin("classic")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Both answer with the path.
    assert!(!ended.stderr.contains("is not the same"), "{ended:?}");
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
        check_positive(row, &["ratio", "ratio_least", "ratio_most"]);
        // Of one round.
        for (one, middle) in [
            ("least", "requests_per_second"),
            ("most", "requests_per_second"),
            ("ratio_least", "ratio"),
            ("ratio_most", "ratio"),
        ] {
            assert_eq!(row[one], row[middle], "{one} in {row}");
        }
        match text(row, "server") {
            "corral" => check_positive(row, &["cpu_s"]),
            // Its processor time is not known.
            _ => assert_eq!((row.get("cpu_s"), &row["ratio"]), (None, &json!(1.0))),
        }
    }
    // A look; then in a round to warm up, and in one that counts, each number of connections.
    assert_eq!(asked(&corral, "/classic"), f64::from(1 + 2 * 2 * 20));
}

#[test]
fn answers_that_differ_are_told_and_without_a_peer_there_is_no_ratio() {
    let corral = Corral::start();
    let line = format!("http --vs {}/classic --connections 1", url(&corral));
    let line = format!("{line} --requests 2 --rounds 1 --json");
    // One answers with "/", the other with "/classic".
    let ended = bench(&line, &[plugin("classic")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let expected = "the peer's answer is not the same as Corral's; is it the same component?";
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
        check_rising(row, &["least", "requests_per_second", "most"]);
        assert_eq!(row.get("ratio"), None, "{row}");
    }
}

#[test]
fn what_can_not_answer_without_a_model_is_refused() {
    let words = "http --requests 2 --connections 1 --rounds 1";
    let missing = ("--plugin", scratch_folder().join("missing.wasm"));
    let expected = ["cannot read the plugin", "missing.wasm"];
    check_refused(&bench(words, &[missing]), 1, &expected);
    let expected = [
        "corral answered with 405",
        "is there a component that needs no model?",
    ];
    check_refused(&bench(words, &[plugin("generate")]), 1, &expected);
    let (_held, gone) = nobody();
    let ended = bench(&format!("{words} --vs {gone}"), &[plugin("classic")]);
    let expected = [
        format!("{gone} gave no answer"),
        "start the server, or name another URL".to_owned(),
    ];
    check_refused(&ended, 1, &expected.each_ref().map(String::as_str));
    for (line, expected) in [
        ("--connections 2,2", "--connections names a number twice"),
        (
            "--requests 1000000 --rounds 1000",
            "give less for --requests, --connections or --rounds",
        ),
        ("--path classic", "write one that begins with '/'"),
        ("--vs 127.0.0.1:8099", "write http://HOST:PORT"),
    ] {
        let ended = bench(&format!("http {line}"), &[plugin("classic")]);
        check_refused(&ended, 2, &[expected]);
    }
}

/// A server with OpenAI's API at `/v1`.
fn endpoint() -> Corral {
    Corral::start_with_routes(&[("/v1", "openai")], &[])
}

/// Sums of six tokens each, to which the demo model says something for sure.
const SUMS: &str = "31+27=\n45+54=\n20+22=\n";

/// A file of prompts, one on each line.
fn prompts(lines: &str) -> WithFile<'static> {
    let file = scratch_folder().join("prompts.txt");
    std::fs::write(&file, lines).expect("ours");
    ("--prompt-file", file)
}

/// Checks how times are spread.
fn check_spread(times: &Value) {
    check_positive(times, &["p50"]);
    check_rising(times, &["p50", "p90", "p99", "max"]);
}

#[test]
fn endpoints_are_asked_the_same_and_compared_round_by_round() {
    let corral = endpoint();
    let first = url(&corral);
    // The same one twice: as clients write it, and with where the API begins.
    let second = format!("{first}/v1");
    let line = format!("load {first} {second} --requests 2 --concurrency 2 --generate 8");
    let found = measure(&line, &[prompts(SUMS)]);
    let setup = json!({
        "rounds": 5,
        "requests": 2,
        "concurrency": 2,
        "rate": null,
        "prompt_words": null,
        "generate": 8,
        "mixed": false,
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
        check_spread(&row["first_token_s"]);
        check_spread(&row["whole_s"]);
        // Where each answer comes in one event there is none.
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
    // Each is looked at, and has a round to warm up and five that count.
    assert_eq!(asked(&corral, "/v1"), f64::from(2 * (1 + 6 * 2)));
}

#[test]
fn of_one_round_the_ratio_is_that_of_the_speeds() {
    let corral = endpoint();
    let first = url(&corral);
    let line = format!("load {first} {first} --rounds 1 --requests 4 --concurrency 1 --generate 4");
    let found = measure(&line, &[prompts(SUMS)]);
    let [one, other] = rows(&found) else {
        panic!("two rows in {found}");
    };
    for of in ["tokens_per_second", "requests_per_second"] {
        let expected = number(other, of) / number(one, of);
        let ratio = number(&other["ratios"][of], "median");
        assert!((ratio / expected - 1.0).abs() < 1e-9, "{of} in {found}");
    }
    // A single round has none before it.
    assert_eq!(asked(&corral, "/v1"), f64::from(2 * (1 + 4)));
    // Of five, as usual, one is measured after the one before where there is no time for more.
    let hasty = line.replace("--rounds 1", "--within 0.001");
    let found = measure(&hasty, &[prompts(SUMS)]);
    assert_eq!(found["rounds"], 1, "{found}");
    assert_eq!(asked(&corral, "/v1"), f64::from(2 * (1 + 4 + 1 + 2 * 4)));
}

#[test]
fn requests_at_a_rate_are_all_sent_or_counted_as_not_sent() {
    let corral = endpoint();
    let line = format!("load {} --rate 1000 --requests 10", url(&corral));
    let line = format!("{line} --prompt 3 --mixed");
    // All ten come within some ten milliseconds, and an answer of hundreds of tokens takes longer.
    for (more, generate, not_sent) in [("--under-way 1", 400, 1..=9), ("", 4, 0..=0)] {
        let found = measure(&format!("{line} --generate {generate} {more}"), &[]);
        let setup = json!({
            "rounds": 1,
            "concurrency": null,
            "rate": 1000.0,
            "prompt_words": 3,
            "mixed": true,
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
        check_spread(&row["whole_s"]);
    }
}

#[test]
fn whole_answers_of_a_chat_have_no_first_token() {
    let corral = endpoint();
    let line = format!("load {} --chat --no-stream --requests 3", url(&corral));
    let found = measure(
        &format!("{line} --concurrency 1 --prompt 3 --generate 4"),
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
    check_spread(&row["whole_s"]);
}

#[test]
fn answers_that_fail_are_counted_and_no_answer_at_all_is_an_error() {
    let corral = endpoint();
    // Every other prompt, the first one too, is longer than the context. The look takes the last one.
    let files = [prompts(&format!("{}\n31+27=\n", "1".repeat(17_000)))];
    let line = format!("load {} --concurrency 1 --generate 4", url(&corral));
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
    let told = format!("no request to {} was answered", url(&corral));
    assert!(ended.stderr.contains(&told), "{ended:?}");
    // What there is to tell is told, and what the server said beside the object.
    let of = format!("{}: 1 failed: ", url(&corral));
    let said = ended.stderr.lines().find_map(|line| line.strip_prefix(&of));
    assert!(said.is_some_and(|said| said.contains("400")), "{ended:?}");
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
fn what_is_no_endpoint_is_refused() {
    let (_held, gone) = nobody();
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
        // It answers, with plain text.
        ("/hello", "is no endpoint of OpenAI's API"),
    ] {
        let ended = bench(&format!("load {here} {here}{below} --json"), &[]);
        check_refused(&ended, 1, &[expected, below]);
    }
    let ended = bench(&format!("load {here}"), &[prompts("\n \n")]);
    check_refused(&ended, 1, &["there is no prompt in", "one on each line"]);
    let missing = ("--prompt-file", scratch_folder().join("missing.txt"));
    let ended = bench(&format!("load {here}"), &[missing]);
    check_refused(&ended, 1, &["missing.txt cannot be read"]);
    for (line, expected) in [
        ("", "<URL>"),
        ("http://a --rate 0", "write requests a second"),
        ("http://a --under-way 2", "--rate"),
        ("http://a --generate 0", "0 is not in 1..=100000"),
    ] {
        check_refused(&bench(&format!("load {line}"), &[]), 2, &[expected]);
    }
}
