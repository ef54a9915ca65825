//! A faulty plugin loses its own request. Others notice nothing.

use corral_tests::{Corral, Metrics, words};

/// Short enough to wait for, long enough for 1+1 on a busy machine.
const LIMITS: [&str; 4] = ["--time-limit", "12", "--cpu-limit", "1"];

#[test]
fn each_fault_has_its_own_error() {
    let corral = Corral::start_with(&LIMITS);
    let asked = corral.with_neighbors(|| {
        for (fault, status, code, expected) in [
            ("trap", 500, "trapped", "crashed"),
            ("panic", 500, "trapped", "crashed"),
            ("spin", 504, "cpu-time", "endless loop"),
            ("hog", 500, "memory", "64 MiB"),
            ("fields", 500, "memory", "64 MiB"),
            ("methods", 500, "memory", "64 MiB"),
            ("sleeper", 504, "deadline", "12 s"),
            ("refuse", 500, "returned-error", "refused on request"),
            ("upgrade", 500, "returned-error", "invalid status 101"),
        ] {
            let answer = corral.post(&format!("/misbehave/{fault}"), "");
            let detail = answer.problem(status, code);
            assert!(detail.contains(expected), "{fault}: {detail}");
            assert!(!detail.contains("wasm-function"), "{fault}: {detail}");

            assert!(answer.header("x-request-id").is_some());
        }
    });
    assert!(asked >= 10, "1+1 was answered {asked} times meanwhile");
    let metrics = corral.wait_until_idle();
    for (code, count) in [
        ("trapped", 2.0),
        ("cpu-time", 1.0),
        ("memory", 3.0),
        ("deadline", 1.0),
        ("returned-error", 2.0),
        ("no-response", 0.0),
        ("internal", 0.0),
    ] {
        let name = format!("corral_plugin_calls_failed_total{{code=\"{code}\"}}");
        assert_eq!(metrics.get_or_zero(&name), count, "{code}");
    }
}

#[test]
fn many_hostile_calls_leave_others_served() {
    let corral = Corral::start_with(&LIMITS);
    let asked = corral.with_neighbors(|| {
        std::thread::scope(|scope| {
            for fault in ["spin", "hog", "trap", "sleeper"] {
                for _ in 0..6 {
                    let corral = &corral;
                    scope.spawn(move || {
                        let answer = corral.post(&format!("/misbehave/{fault}"), "");
                        let expected = [500, 503, 504].contains(&answer.status);
                        assert!(expected, "{fault}: {answer:?}");
                    });
                }
            }
        });
    });
    assert!(asked >= 5, "1+1 was answered {asked} times meanwhile");
    corral.wait_until_idle();
}

#[test]
fn spinning_tenants_take_turns_beside_neighbors() {
    const ROUTES: [(&str, usize); 2] = [("/many", 48), ("/few", 16)];
    let sample = |metrics: &Metrics, name: &str, route: &str| {
        metrics.get_or_zero(&format!(
            "corral_deployment_{name}{{deployment=\"{route}\"}}"
        ))
    };
    let turns =
        |metrics: &Metrics| ROUTES.map(|(route, _)| sample(metrics, "compute_turns_total", route));
    let plugins = ROUTES.map(|(route, _)| (route, "misbehave"));
    let limits = ["--cpu-limit", "300", "--time-limit", "300"];
    let corral = Corral::start_with_routes(&plugins, &limits);
    let asked = corral.with_neighbors(|| {
        let spinning = ROUTES.map(|(route, calls)| {
            let begin = |_| corral.begin_post(&format!("{route}/spin"), "");
            (0..calls).map(begin).collect::<Vec<_>>()
        });
        let before = corral.wait_until("turns of both tenants", |metrics| {
            let all_run = ROUTES
                .iter()
                .all(|(route, calls)| sample(metrics, "calls_running", route) == *calls as f64);
            all_run && turns(metrics).iter().all(|count| *count >= 5.0)
        });
        let grown = |metrics: &Metrics| {
            let ([many, few], [many_before, few_before]) = (turns(metrics), turns(&before));
            [many - many_before, few - few_before]
        };
        let after = corral.wait_until("200 turns", |metrics| {
            grown(metrics).iter().sum::<f64>() >= 200.0
        });
        let [many, few] = grown(&after);
        assert!(many < 2.0 * few && few < 2.0 * many, "{many}, {few} turns");
        assert!(after.get("corral_plugin_calls_waiting_for_turn") >= 1.0);
        // The guests hold and wait for turns when they are canceled.
        drop(spinning);
    });
    assert!(asked >= 20, "1+1 was answered {asked} times meanwhile");
    corral.wait_until_idle();
}

#[test]
fn call_that_waits_for_turn_ends_at_deadline() {
    let corral = Corral::start_with(&["--time-limit", "3", "--cpu-limit", "60"]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| corral.post("/misbehave/spin", "").problem(504, "deadline"));
        }
    });
    let metrics = corral.wait_until_idle();
    assert!(metrics.get("corral_deployment_compute_turns_total") >= 1.0);
}

#[test]
fn fault_after_head_aborts_response() {
    let corral = Corral::start_with(&LIMITS);
    corral.with_neighbors(|| {
        for fault in ["midtrap", "midspin"] {
            let mut stream = corral.post_stream(&format!("/misbehave/{fault}"), "");
            assert_eq!(stream.status, 200, "{fault}");
            let begun = stream.line().expect("a first line");
            assert_eq!(begun.as_deref(), Some("begun"), "{fault}");
            let rest = stream.line();
            assert!(rest.is_err(), "{fault}: the body was not cut off: {rest:?}");
        }
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_http_requests_aborted_total"), 2.0);
}

#[test]
fn endless_responses_end_with_reader_or_deadline() {
    let corral = Corral::start_with(&LIMITS);
    corral.with_neighbors(|| {
        for (fault, bytes) in [("drip", 15), ("flood", 10 << 20)] {
            let mut stream = corral.post_stream(&format!("/misbehave/{fault}"), "");
            let read = stream.bytes(bytes).expect("not cut off");
            assert_eq!(read.len() as u64, bytes, "{fault}");
            drop(stream);
        }
        // It ends even with a reader that never stops.
        corral.drip("/misbehave").check_cut_off();
    });
    corral.wait_until_idle();
}

#[test]
fn no_state_passes_between_requests() {
    let corral = Corral::start();
    for _ in 0..20 {
        assert_eq!(corral.post("/misbehave/state", "").body, "1");
    }
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_plugin_instances_started_total"), 20.0);
}

#[test]
fn plugin_output_is_logged_by_name() {
    let corral = Corral::start();
    assert_eq!(corral.post("/misbehave/log", "").body, "ok");
    corral.wait_until_idle();
    for line in [
        "a line on the standard output",
        "a line on the standard error",
    ] {
        let stderr = corral.wait_for_stderr(line);
        let logged = stderr.lines().find(|logged| logged.contains(line));
        let logged = logged.unwrap_or_else(|| panic!("{line:?} is not in {stderr}"));
        assert!(logged.contains("/misbehave"), "{logged}");
    }
}

#[test]
fn full_queue_answers_503_with_retry_after() {
    let limits = words("--max-calls 1 --max-queued-calls 1 --time-limit 5");
    let corral = Corral::start_with(&limits);
    std::thread::scope(|scope| {
        // One runs and one waits; chance decides which.
        let answers = (0..4).map(|_| scope.spawn(|| corral.post("/misbehave/sleeper", "")));
        let answers: Vec<_> = answers.collect();
        let answers: Vec<_> = answers
            .into_iter()
            .map(|answer| answer.join().expect("a response"))
            .collect();
        let busy = answers.iter().filter(|answer| answer.status == 503);
        let busy: Vec<_> = busy.collect();
        assert!(busy.len() >= 2, "{answers:?}");
        for answer in busy {
            answer.problem(503, "busy");
            answer.retry_after();
        }
    });
    // Another plugin has its own queue.
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn headers_in_the_host_count_as_memory() {
    // Beside a call's limit: its code, and what the allocator keeps.
    const MARGIN: u64 = 120 << 20;
    let corral = Corral::start_with(&LIMITS);
    corral.check_alive();
    let before = corral.peak_bytes();
    corral.with_neighbors(|| {
        for fault in ["fields", "methods"].repeat(5) {
            let answer = corral.post(&format!("/misbehave/{fault}"), "");
            answer.problem(500, "memory");
        }
    });
    let peak = corral.peak_bytes();
    println!("peak {before} bytes before, {peak} after");
    assert!(peak < before + (64 << 20) + MARGIN, "{before} {peak}");
    corral.wait_until_idle();
}
