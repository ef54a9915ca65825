//! A WASI 0.2 handler with blocking calls gives the results and errors of an async handler, and can be ended
//! while it blocks.

use corral_tests::deployments::deploy_dir;
use corral_tests::{
    Corral, MANY_CELLS, Metrics, RELIABLE_SUMS, Response, Sum, check_results, concurrently,
    distinct_sums, scratch_dir,
};
use std::net::TcpStream;

const ROUTES: [(&str, &str); 2] = [("/blocking", "blocking"), ("/others", "blocking")];
const RUNNING: &str = "corral_engine_requests_running";
const CANCELLED: &str = "corral_engine_requests_canceled_total";

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&ROUTES, arguments)
}

fn ask(corral: &Corral, way: &str, body: &str) -> String {
    corral.post_ok(&format!("/blocking/{way}"), body).body
}

/// Asserts that the plugin reports a failed call with these words.
fn refused(answer: &Response, words: &str) {
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains(words), "{words}: {answer:?}");
}

/// Starts a server with a store and deploys the plugin; `more` is added to the manifest.
fn deployed(arguments: &[&str], more: &str, components: &[&str]) -> Corral {
    let corral = Corral::start_with_store(arguments);
    let manifest =
        format!("name = 'deployed'\ncomponent = 'blocking.wasm'\nroutes = ['/deployed']\n{more}\n");
    deploy_dir(&corral, &manifest, components);
    corral
}

#[test]
fn blocking_guests_are_right_under_load() {
    let corral = start(&[]);
    concurrently(32, &distinct_sums(96), |&sum| {
        let question = sum.question();
        for way in ["generate", "outcome", "rest", "outlived", "next"] {
            assert_eq!(ask(&corral, way, &question), sum.answer(), "{way}");
        }
        let three = [sum, RELIABLE_SUMS[0], RELIABLE_SUMS[3]];
        let lines = |each: fn(Sum) -> String| three.map(each).join("\n");
        let output = ask(&corral, "many", &lines(Sum::question));
        assert_eq!(output, lines(Sum::answer));
        let under = format!("[0-9]{{1,3}}\n{question}");
        assert_eq!(ask(&corral, "match", &under), sum.answer());
    });
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    assert!(metrics.get("corral_engine_next_token_requests_total") > 0.0);
    // Dropping a sequence does not cancel its generation.
    assert_eq!(metrics.get(CANCELLED), 0.0);
}

/// A loop over blocking calls computes as many tokens as an async one.
#[test]
fn guest_loop_computes_each_token_once() {
    let corral = start(&[]);
    for sum in RELIABLE_SUMS {
        let decoded = corral.computed_tokens(|| {
            assert_eq!(ask(&corral, "next", &sum.question()), sum.answer());
        });
        let tokens = sum.question().len() + sum.answer().len();
        assert_eq!(decoded, tokens as f64);
    }
}

#[test]
fn embeddings_match_those_of_async_plugins() {
    let corral = start(&[]);
    let texts = "12+7=\nThe quiet owl looks at the river.";
    let numbers = |text: &str| {
        let lines = text
            .lines()
            .map(|line| line.split(' ').map(str::parse::<f64>));
        let lines = lines.map(|line| line.collect::<Result<Vec<_>, _>>().expect("numbers"));
        lines.collect::<Vec<_>>()
    };
    let blocking = numbers(&ask(&corral, "embed", texts));
    let other = numbers(&corral.post("/misbehave/embed", texts).body);
    assert_eq!((blocking.len(), other.len()), (2, 2));
    for (one, other) in blocking.iter().zip(&other) {
        assert_eq!(one.len(), other.len());
        let near = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-4;
        assert!(one.iter().zip(other).all(near), "{one:?} {other:?}");
    }
    corral.wait_until_idle();
}

#[test]
fn snapshot_survives_restart_for_its_deployment() {
    let dir = scratch_dir();
    let snapshots = ["--snapshot-dir", dir.to_str().expect("a path in UTF-8")];
    let sum = RELIABLE_SUMS[0];
    let kept = format!("fox\n{}", sum.question_in(200));
    let corral = start(&snapshots);
    assert_eq!(ask(&corral, "keep", &kept), sum.answer());
    refused(&corral.post("/others/kept", "fox"), "NotFound");
    corral.wait_until_idle();
    drop(corral);
    let corral = start(&snapshots);
    assert_eq!(ask(&corral, "kept", "fox"), sum.answer());
    assert_eq!(ask(&corral, "forget", "fox"), "ok");
    refused(&corral.post("/blocking/kept", "fox"), "NotFound");
    corral.wait_until_idle();
}

#[test]
fn errors_reach_the_guest() {
    let dir = scratch_dir();
    let corral = start(&["--snapshot-dir", dir.to_str().expect("a path in UTF-8")]);
    let output = ask(&corral, "errors", "");
    let expected = [
        ("an unknown model", "NotFound"),
        ("next of an empty sequence", "Invalid"),
        ("an empty generation", "Invalid"),
        ("an unknown sampler", "NotFound"),
        ("a wrong expression", "Invalid"),
        ("an empty input", "Invalid"),
        ("of twice the same", "ok 4"),
        ("of twice the same", "Invalid"),
        ("generate while it generates", "Invalid"),
        ("snapshot while it generates", "Invalid"),
        ("no name", "Invalid"),
        ("a name that is not there", "NotFound"),
    ];
    check_results(&output, &expected);
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn dropped_generation_is_cancelled() {
    let corral = start(&[]);
    for sum in RELIABLE_SUMS {
        assert_eq!(ask(&corral, "drop", &sum.question()), sum.answer());
    }
    let metrics = corral.wait_until_idle();
    // On a busy machine the engine may finish before the plugin reads its first chunk.
    let cancelled = metrics.get(CANCELLED);
    assert!((1.0..=5.0).contains(&cancelled), "{cancelled} of 5");
}

#[test]
fn hangup_during_blocking_call_frees_everything() {
    const GONE: usize = 8;
    let corral = start(&["--kv-cells", MANY_CELLS]);
    let before = corral.metrics();
    let calls = (0..GONE).map(|_| corral.begin_post("/blocking/endless", "1+1="));
    let calls: Vec<TcpStream> = calls.collect();
    let ended =
        |metrics: &Metrics| metrics.growth("corral_engine_requests_finished_total", &before);
    corral.wait_until("all run", |metrics| {
        metrics.get(RUNNING) == GONE as f64 || ended(metrics) > 0.0
    });
    drop(calls);
    let metrics = corral.wait_until_idle();
    let cancelled = metrics.growth(CANCELLED, &before);
    // On a busy machine some requests may finish before their client leaves.
    assert_eq!(cancelled + ended(&metrics), GONE as f64);
    assert!(cancelled > 0.0);
    drop(corral);

    // Requests in the queue are removed at once.
    let corral = start(&["--max-running", "1"]);
    let stream = corral.endless("/generate");
    let waiting: Vec<TcpStream> = ["generate", "outcome", "rest", "next", "many"]
        .map(|way| corral.begin_post(&format!("/blocking/{way}"), "12+7="))
        .into();
    corral.wait_for_queue(waiting.len());
    drop(waiting);
    corral.wait_for_queue(0);
    corral.wait_until("the instances are gone", |metrics| {
        metrics.get("corral_plugin_instances") <= 1.0
    });
    drop(stream);
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn time_limit_ends_blocking_call() {
    let limits = "[limits]\ntime-seconds = 0.3\n";
    let corral = deployed(&["--max-running", "1"], limits, &["blocking"]);
    // The host or the plugin may report it first.
    let check_late = |answer: &Response| match answer.status {
        504 => drop(answer.problem(504, "deadline")),
        _ => refused(answer, "Deadline"),
    };
    check_late(&corral.post("/deployed/endless", "1+1="));
    for way in ["generate", "outcome", "rest", "next", "many"] {
        let held = corral.endless("/generate");
        check_late(&corral.post(&format!("/deployed/{way}"), "1+1="));
        drop(held);
        corral.wait_until_idle();
    }
    corral.check_alive();
}

#[test]
fn sampling_plugin_serves_blocking_guest() {
    let links = "[linked.sampling]\nany = 'samplers.wasm'\n";
    let corral = deployed(&[], links, &["blocking", "samplers"]);
    let post = |settings: &str, question: &str| {
        corral.post("/deployed/sampled", format!("any\n{settings}\n{question}"))
    };
    concurrently(32, &distinct_sums(64), |&sum| {
        let answer = post("record history=4", &sum.question());
        assert_eq!(answer.status, 200, "{sum:?}");
        assert_eq!(answer.body, sum.answer(), "{sum:?}");
    });
    corral.with_neighbors(|| {
        for (settings, words) in [
            ("refuse:these-settings", "these-settings"),
            ("trap-start", "crashed"),
            ("spin-start", "that a call may take"),
            ("trap:1", "crashed"),
            ("spin:2", "that a call may take"),
            ("error:on-request", "on-request"),
            ("outside candidates=1", "that it was shown"),
        ] {
            refused(&post(settings, "1+1="), words);
        }
        let unknown = corral.post("/deployed/sampled", "nobody\n\n1+1=");
        refused(&unknown, "NotFound");
    });
    corral.wait_until_idle();
}
