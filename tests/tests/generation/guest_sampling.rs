//! Loops that a plugin runs itself, over the real server: they give the host loop's tokens, compute each token
//! once, and do not affect other requests.

use corral_tests::deployments::deploy_plugin;
use corral_tests::{
    Corral, Metrics, RELIABLE_SUMS, Sum, check_results, concurrently, distinct_sums, scratch_dir,
};
use serde_json::json;

const ROUTES: [(&str, &str); 2] = [("/loops", "loops"), ("/others", "loops")];

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&ROUTES, arguments)
}

/// The response of a loop.
fn post(corral: &Corral, which: &str, body: &str) -> String {
    ask_at(corral, "/loops", which, body)
}

fn ask_at(corral: &Corral, route: &str, which: &str, body: &str) -> String {
    corral.post_ok(&format!("{route}/{which}"), body).body
}

fn engine(metrics: &Metrics, name: &str) -> f64 {
    metrics.get(&format!("corral_engine_{name}"))
}

/// Questions, one per line, and their answers.
fn lines(sums: &[Sum]) -> (String, String) {
    let join = |each: fn(Sum) -> String| {
        let all: Vec<_> = sums.iter().copied().map(each).collect();
        all.join("\n")
    };
    (join(Sum::question), join(Sum::answer))
}

#[test]
fn all_generation_interfaces_give_same_tokens() {
    let corral = start(&[]);
    concurrently(32, &distinct_sums(160), |sum| {
        let question = sum.question();
        for which in ["generate", "next", "logits", "only"] {
            assert_eq!(post(&corral, which, &question), sum.answer(), "{which}");
        }
        let four = [*sum, RELIABLE_SUMS[0], *sum, RELIABLE_SUMS[1]];
        let (questions, answers) = lines(&four);
        assert_eq!(post(&corral, "many", &questions), answers);
    });
    corral.check_alive();
    let metrics = corral.wait_until_idle();
    assert!(engine(&metrics, "next_token_requests_total") > 0.0);
    assert_eq!(engine(&metrics, "steps_failed_total"), 0.0);
}

/// Runs alone, so that every computed token is its own.
#[test]
fn guest_loop_computes_each_token_once() {
    let corral = start(&["--no-prefix-cache"]);
    let before = corral.wait_until_idle();
    // Without prefix cache every call computes the whole sequence: the cost without reuse.
    let sum = Sum { a: 12, b: 7 };
    assert_eq!(post(&corral, "next", &sum.question()), sum.answer());
    let between = corral.wait_until_idle();
    let (question, answer) = (sum.question().len() as f64, sum.answer().len() as f64);
    let requests = answer + 1.0;
    let found = between.growth("corral_engine_next_token_requests_total", &before);
    assert_eq!(found, requests);
    let recomputed = (0..requests as u32).map(|step| question + f64::from(step));
    let computed = between.growth("corral_engine_computed_tokens_total", &before);
    assert_eq!(computed, recomputed.sum::<f64>());
    drop(corral);

    let corral = start(&[]);
    let before = corral.wait_until_idle();
    for (which, sum) in ["next", "logits", "only"].into_iter().zip(RELIABLE_SUMS) {
        let computed = corral.computed_tokens(|| {
            assert_eq!(post(&corral, which, &sum.question()), sum.answer());
        });
        let tokens = sum.question().len() + sum.answer().len();
        assert_eq!(computed, tokens as f64, "{which}");
    }
    // Sixteen sequences in one call share their steps.
    let (questions, answers) = lines(&distinct_sums(16));
    let before_many = corral.wait_until_idle();
    assert_eq!(post(&corral, "many", &questions), answers);
    let after = corral.wait_until_idle();
    let steps = after.growth("corral_engine_steps_total", &before_many);
    // A step takes at most four prompts; then one step for each of two or three digits.
    assert!(steps <= 4.0 + 3.0, "{steps} steps");
    let found = after.growth("corral_engine_preemptions_total", &before);
    assert_eq!(found, 0.0);
}

#[test]
fn forks_share_computed_tokens() {
    let corral = start(&[]);
    for sum in RELIABLE_SUMS {
        let before = corral.wait_until_idle();
        let text = sum.question_in(200);
        assert_eq!(post(&corral, "beam", &text), sum.answer());
        let after = corral.wait_until_idle();
        let computed = after.growth("corral_engine_computed_tokens_total", &before);
        let requests = after.growth("corral_engine_next_token_requests_total", &before);
        // The text at most once, and one token for each call after the first.
        let most = 200.0 + requests - 1.0;
        assert!(computed <= most, "{computed} of {requests} requests");
    }
}

#[test]
fn truncated_sequence_generates_again() {
    let corral = start(&[]);
    let text = RELIABLE_SUMS[0].question_in(150);
    let story = text.strip_suffix(&RELIABLE_SUMS[0].question());
    let story = story.expect("the question is its end");
    let (questions, answers) = lines(&RELIABLE_SUMS);
    let body = format!("{}\n{questions}", story.replace('\n', "|"));
    // The story is computed once, for any number of forks.
    let computed = corral.computed_tokens(|| {
        assert_eq!(post(&corral, "again", &body), answers);
    });
    let output = RELIABLE_SUMS.map(|sum| sum.question().len() + sum.answer().len());
    let new = story.len() + output.iter().sum::<usize>();
    assert!(computed <= new as f64, "{computed} of {new}");
}

#[test]
fn guest_follows_grammar_step_by_step() {
    let corral = start(&[]);
    for sum in RELIABLE_SUMS {
        let question = sum.question();
        let found = post(&corral, "match", &format!("[0-9]+\n{question}"));
        assert_eq!(found, sum.answer());
        let output = post(&corral, "match", &format!("x[0-9]{{2}}y\n{question}"));
        let digits = output
            .strip_prefix('x')
            .and_then(|output| output.strip_suffix('y'));
        let digits = digits.unwrap_or_else(|| panic!("{output}"));
        assert!(
            digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit()),
            "{output}"
        );
        assert_eq!(post(&corral, "statistics", &question), "ok");
    }
    let info = post(&corral, "info", "");
    assert!(info.contains("Some("), "{info}");
    corral.wait_until_idle();
}

#[test]
fn snapshot_survives_restart_for_its_deployment() {
    let dir = scratch_dir();
    let dir = dir.to_str().expect("a path in UTF-8");
    let sum = RELIABLE_SUMS[0];
    let text = sum.question_in(300);
    let missing = |corral: &Corral, route: &str, which: &str, name: &str, why: &str| {
        let answer = corral.post(&format!("{route}/{which}"), name);
        answer.check_refused(400, why);
    };
    let corral = start(&["--snapshot-dir", dir]);
    assert_eq!(post(&corral, "keep", &format!("fox\n{text}")), sum.answer());
    missing(&corral, "/others", "kept", "fox", "NotFound");
    missing(&corral, "/loops", "kept", "owl", "NotFound");
    missing(&corral, "/loops", "forget", "owl", "NotFound");
    missing(&corral, "/loops", "kept", "../fox", "Invalid");
    missing(&corral, "/loops", "keep", ".fox\n1+1=", "Invalid");
    corral.wait_until_idle();
    drop(corral);

    let corral = start(&["--snapshot-dir", dir]);
    let computed = corral.computed_tokens(|| {
        assert_eq!(post(&corral, "kept", "fox"), sum.answer());
    });
    // The last token of the text and the answer: the snapshot holds the state.
    assert_eq!(computed, 1.0 + sum.answer().len() as f64);
    assert_eq!(post(&corral, "forget", "fox"), "ok");
    missing(&corral, "/loops", "kept", "fox", "NotFound");
    corral.wait_until_idle();
    drop(corral);

    let corral = start(&[]);
    missing(&corral, "/loops", "keep", "fox\n1+1=", "NotGranted");
    missing(&corral, "/loops", "kept", "fox", "NotGranted");
    missing(&corral, "/loops", "forget", "fox", "NotGranted");
}

#[test]
fn guest_tokens_count_toward_quota() {
    let corral = Corral::start_with_store(&[]);
    let limits = json!({"limits": {"tokens-per-request": 12}});
    deploy_plugin(&corral, "few", "loops", limits);
    deploy_plugin(&corral, "many", "loops", json!({}));
    let sum = RELIABLE_SUMS[0];
    let question = sum.question();
    let used = question.len() + sum.answer().len();
    let output = ask_at(&corral, "/few", "budget", &question);
    assert_eq!(output, format!("Some(12) Some({})", 12 - used));
    assert_eq!(ask_at(&corral, "/many", "budget", &question), "None None");
    let answer = corral.post("/few/next", Sum { a: 1, b: 1 }.question_in(13));
    answer.check_refused(400, "tokens-per-request");
}

#[test]
fn errors_reach_the_guest() {
    let corral = start(&[]);
    let output = post(&corral, "errors", "");
    let expected = [
        ("an unknown model", "NotFound"),
        ("next of an empty sequence", "Invalid"),
        ("an unknown token", "Invalid"),
        ("more than the context", "ContextFull"),
        ("an unknown adapter", "Invalid"),
        ("a snapshot", "NotGranted"),
        ("a restored one", "NotGranted"),
        ("too many candidates", "Invalid"),
        ("too many named", "Invalid"),
        ("an unknown one named", "Invalid"),
        ("a matcher and a row", "Invalid"),
        ("what does not match", "Invalid"),
        ("truncated beyond the end", "ok ()"),
        ("append while it generates", "Invalid"),
        ("truncate while it generates", "Invalid"),
        ("fork while it generates", "Invalid"),
        ("next while it generates", "Invalid"),
        ("generate while it generates", "Invalid"),
        ("a stream of its own, collected", "Invalid"),
        ("a stream of its own, framed", "Invalid"),
        ("a long framing", "Invalid"),
        ("one of two", "ok 4"),
        ("the same again", "Invalid"),
        ("of 257 at once", "ok 257"),
        ("the first of 257", "Invalid"),
        ("nothing at once", "ok 0"),
    ];
    check_results(&output, &expected);
    corral.wait_until_idle();
}

#[test]
fn generation_outlives_its_sequence() {
    let corral = start(&[]);
    let before = corral.metrics();
    for sum in RELIABLE_SUMS {
        let decoded = corral.computed_tokens(|| {
            assert_eq!(post(&corral, "outlived", &sum.question()), sum.answer());
        });
        let tokens = sum.question().len() + sum.answer().len();
        assert_eq!(decoded, tokens as f64);
    }
    let metrics = corral.wait_until_idle();
    let growth = |name: &str| metrics.growth(&format!("corral_engine_{name}"), &before);
    let all = RELIABLE_SUMS.len() as f64;
    assert_eq!(growth("requests_finished_total"), all);
    assert_eq!(growth("requests_canceled_total"), 0.0);

    // Sequences count until their generations end, and no longer.
    let sum = RELIABLE_SUMS[0];
    let output = post(&corral, "outliving", &sum.question());
    assert!(output.starts_with("256 Error::Invalid("), "{output}");
    assert!(output.ends_with(&format!("\n{}", sum.answer())), "{output}");
    corral.wait_until_idle();
}

#[test]
fn oversized_calls_fail_only_their_request() {
    let corral = start(&[]);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            for sum in distinct_sums(40) {
                assert_eq!(post(&corral, "next", &sum.question()), sum.answer());
            }
        });
        let output = post(&corral, "bomb", "");
        let counts: Vec<_> = output.lines().map(|line| line.split(' ').next()).collect();
        let expected = [Some("256"), Some("255"), Some("16")];
        assert_eq!(counts[..3], expected, "{output}");
        assert_eq!(output.matches("Invalid").count(), 4, "{output}");
        // Of 20 rows as many wait as may; one that is ready at once does not wait.
        let output = post(&corral, "rows", "");
        let mut words = output.splitn(3, ' ');
        let mut count = || words.next().and_then(|word| word.parse::<usize>().ok());
        let (waited, at_once) = (count().expect("a count"), count().expect("a count"));
        assert_eq!(waited, 16.min(20 - at_once), "{output}");
        assert_eq!(output.contains("Invalid"), at_once < 4, "{output}");
        for which in ["giant", "forged", "closed"] {
            let answer = corral.post(&format!("/loops/{which}"), "");
            let detail = answer.problem(500, "trapped");
            assert!(!detail.is_empty(), "{which}");
        }
        beside.join().expect("every sum is right");
    });
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn dropped_next_token_request_is_cancelled() {
    let corral = start(&[]);
    for sum in RELIABLE_SUMS {
        assert_eq!(post(&corral, "leave", &sum.question_in(300)), sum.answer());
    }
    corral.wait_until_idle();
}
