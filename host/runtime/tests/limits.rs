//! Limits of calls: a plugin that exceeds one fails its own call and affects no other. `hostile_plugins.rs` of the
//! whole program has full queues and clients that disconnect.

mod support;

use bytes::Bytes;
use corral_runtime::{Body, CallError, CallOptions, Limits, Plugin};
use http_body_util::{BodyExt, Empty};
use std::time::{Duration, Instant};
use support::{blocked_parts, command, counter, http_2, http_3, idle, load, runtime};

const GOOD: &str = "(call $respond) (call $say) (call $finish)";
const SPIN: &str = "(loop (br 0))";
const ENDLESS: &str = "(call $respond) (loop (call $say) (br 0))";

fn limits() -> Limits {
    Limits {
        time: Duration::from_secs(20),
        cpu: Duration::from_millis(200),
        ..Limits::default()
    }
}

async fn get(plugin: &Plugin) -> Result<http::Response<Body>, CallError> {
    get_with(plugin, CallOptions::default()).await
}

async fn get_with(
    plugin: &Plugin,
    options: CallOptions,
) -> Result<http::Response<Body>, CallError> {
    let request = http::Request::get("http://localhost/").body(Empty::<Bytes>::new());
    plugin.handle(request.unwrap(), options).await
}

/// Calls a plugin that must fail, and checks the counters.
async fn error_of(bytes: Vec<u8>, limits: Limits) -> CallError {
    let runtime = runtime(2);
    let plugin = load(&runtime, bytes, limits).await;
    let error = get(&plugin).await.unwrap_err();
    idle(&runtime).await;
    let code = Some(error.code());
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_failed_total", code),
        1.0
    );
    assert_eq!(counter(&runtime, "corral_plugin_calls_total", None), 1.0);
    error
}

#[tokio::test]
async fn crash_is_a_500_with_reason() {
    for bytes in [http_2("unreachable"), http_3("unreachable")] {
        let error = error_of(bytes, limits()).await;
        assert_eq!((error.status(), error.code()), (500, "trapped"));
        assert!(error.to_string().contains("unreachable"), "{error}");
    }
}

#[tokio::test]
async fn endless_loop_is_a_504() {
    for bytes in [http_2(SPIN), http_3(&format!("{SPIN} unreachable"))] {
        let error = error_of(bytes, limits()).await;
        assert_eq!((error.status(), error.code()), (504, "cpu-time"));
    }
}

#[tokio::test]
async fn wall_time_limit_stops_a_loop() {
    let limits = Limits {
        time: Duration::from_millis(100),
        cpu: Duration::from_secs(60),
        ..limits()
    };
    let error = error_of(http_2(SPIN), limits).await;
    assert_eq!((error.status(), error.code()), (504, "deadline"));
}

#[tokio::test]
async fn caller_may_shorten_the_deadline() {
    let runtime = runtime(1);
    let plugin = load(&runtime, http_2(SPIN), limits()).await;
    let options = CallOptions {
        id: Some("r1".into()),
        deadline: Some(Instant::now() + Duration::from_millis(30)),
        ..CallOptions::default()
    };
    let error = get_with(&plugin, options).await.unwrap_err();
    assert_eq!(error.code(), "deadline");
    idle(&runtime).await;
}

#[tokio::test]
async fn loop_does_not_stop_other_calls() {
    // One thread runs everything, so the loop must yield.
    let runtime = runtime(2);
    let patient = Limits {
        time: Duration::from_secs(60),
        cpu: Duration::from_secs(60),
        ..limits()
    };
    let looping = load(&runtime, http_2(SPIN), patient).await;
    let good = load(&runtime, http_2(GOOD), limits()).await;
    let spinning = tokio::spawn(async move { get(&looping).await.map(drop) });
    tokio::task::yield_now().await;
    let response = get(&good).await.unwrap();
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "hello"
    );
    assert!(!spinning.is_finished());
    spinning.abort();
    assert!(spinning.await.unwrap_err().is_cancelled());
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_completed_total", None),
        1.0
    );
    idle(&runtime).await;
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_canceled_total", None),
        1.0
    );
}

#[tokio::test]
async fn unsent_bodies_count_as_memory() {
    // The host may buffer 128 KiB for each of 1,000 bodies.
    let bodies = "(loop
        (call $body (call $response (call $fields)) (i32.const 0))
        (i32.store (i32.const 256) (i32.add (i32.load (i32.const 256)) (i32.const 1)))
        (br_if 0 (i32.lt_u (i32.load (i32.const 256)) (i32.const 1000))))
        (call $respond) (call $say) (call $finish)";
    let error = error_of(http_2(bodies), limits()).await;
    assert_eq!((error.status(), error.code()), (500, "memory"));
}

#[tokio::test]
async fn memory_is_limited() {
    let eat = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    let error = error_of(http_2(eat), limits()).await;
    assert_eq!((error.status(), error.code()), (500, "memory"));
    assert!(error.to_string().contains("64 MiB"), "{error}");
    let little = Limits {
        memory: 1000,
        ..limits()
    };
    assert_eq!(code_of(http_2(GOOD), little).await, "memory");
}

async fn code_of(bytes: Vec<u8>, limits: Limits) -> &'static str {
    error_of(bytes, limits).await.code()
}

#[tokio::test]
async fn missing_response_has_its_own_code() {
    assert_eq!(code_of(http_2(""), limits()).await, "no-response");
}

#[tokio::test]
async fn error_of_the_plugin_is_reported() {
    // result = error, error-code = HTTP-request-denied
    let code = "(i32.store (i32.const 8) (i32.const 1)) (i32.store (i32.const 16) (i32.const 15)) (i32.const 8)";
    let error = error_of(http_3(code), limits()).await;
    assert_eq!((error.status(), error.code()), (500, "returned-error"));
    assert!(error.to_string().contains("RequestDenied"), "{error}");
}

#[tokio::test]
async fn crash_ends_the_body_with_error() {
    let runtime = runtime(2);
    for (code, end) in [("unreachable", "trapped"), (SPIN, "cpu-time")] {
        let code = format!("(call $respond) (call $say) {code}");
        let plugin = load(&runtime, http_2(&code), limits()).await;
        let mut body = get(&plugin).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "hello");
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(error.code(), end);
        assert!(body.frame().await.is_none());
        drop(body);
        idle(&runtime).await;
        let failures = counter(&runtime, "corral_plugin_calls_failed_total", Some(end));
        assert_eq!(failures, 1.0);
    }
}

#[tokio::test]
async fn unread_body_ends_at_the_deadline() {
    let runtime = runtime(1);
    let limits = Limits {
        time: Duration::from_millis(150),
        ..limits()
    };
    let plugin = load(&runtime, http_2(ENDLESS), limits).await;
    let mut body = get(&plugin).await.unwrap().into_body();
    idle(&runtime).await;
    let mut last = body.frame().await;
    while let Some(Ok(_)) = last {
        last = body.frame().await;
    }
    assert_eq!(last.unwrap().unwrap_err().code(), "deadline");
}

#[tokio::test]
async fn calls_share_a_small_pool() {
    let runtime = runtime(3);
    let plugin = load(&runtime, http_2(GOOD), limits()).await;
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let plugin = plugin.clone();
            tokio::spawn(async move {
                let response = get(&plugin).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), "hello");
    }
    idle(&runtime).await;
    assert!(counter(&runtime, "corral_plugin_instances_peak", None) <= 3.0);
    assert_eq!(counter(&runtime, "corral_plugin_calls_waiting", None), 0.0);
}

#[tokio::test]
async fn commands_run_and_exit() {
    let runtime = runtime(1);
    for version in ["0.2.0", "0.3.0"] {
        for (code, exit) in [("(i32.const 0)", 0), ("(i32.const 1)", 1)] {
            let plugin = load(&runtime, command(version, code), limits()).await;
            assert!(plugin.roles().cli);
            assert_eq!(plugin.run(&[]).await.unwrap().code(), exit);
            assert_eq!(get(&plugin).await.unwrap_err().code(), "missing-export");
        }
        for (code, end) in [
            ("unreachable", "trapped"),
            ("(loop (br 0)) unreachable", "cpu-time"),
        ] {
            let plugin = load(&runtime, command(version, code), limits()).await;
            assert_eq!(plugin.run(&[]).await.unwrap_err().code(), end);
        }
    }
    idle(&runtime).await;
}

#[tokio::test]
async fn blocked_composition_leaves_stacks_for_others() {
    const STACKS: &str = "corral_plugin_stacks";
    let runtime = runtime(64);
    let limits = Limits {
        waiting_calls: 0,
        ..Limits::default()
    };
    let blocked = load(&runtime, blocked_parts(40), limits.clone()).await;
    let good = load(&runtime, command("0.3.0", "(i32.const 0)"), limits.clone()).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let blocked = blocked.clone();
        calls.spawn(async move { blocked.run(&[]).await });
    }
    // Each takes 11 of the 56 permits that the deployment may hold.
    for _ in 0..64 - 5 {
        let refused = calls.join_next().await.unwrap().unwrap().unwrap_err();
        assert_eq!((refused.status(), refused.code()), (503, "busy"));
    }
    let blocked = async {
        while counter(&runtime, STACKS, None) < 5.0 * 41.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(60), blocked).await;
    all.expect("all parts block");
    for _ in 0..100 {
        assert!(good.run(&[]).await.unwrap().success());
    }
    let stacks = counter(&runtime, STACKS, None);
    assert!(stacks <= 5.0 * 43.0, "{stacks} stacks");
    calls.shutdown().await;
    idle(&runtime).await;
    assert_eq!(counter(&runtime, STACKS, None), 0.0);
}

#[tokio::test]
async fn thousand_calls_leave_no_instances() {
    let runtime = runtime(8);
    let plugin = load(&runtime, http_2(GOOD), limits()).await;
    assert!(plugin.roles().http && !plugin.roles().cli);
    for _ in 0..1000 {
        let response = get(&plugin).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "hello");
    }
    idle(&runtime).await;
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_completed_total", None),
        1000.0
    );
    assert_eq!(counter(&runtime, "corral_plugin_instances_peak", None), 1.0);
}
