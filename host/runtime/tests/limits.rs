//! What happens to plugins that misbehave, and to those beside them.

mod support;

use bytes::Bytes;
use corral_runtime::{Body, Call, Failure, Limits, Plugin};
use http_body_util::{BodyExt, Empty, Full};
use std::time::{Duration, Instant};
use support::{command, counter, http_2, http_3, idle, load, runtime};

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

async fn get(plugin: &Plugin) -> Result<http::Response<Body>, Failure> {
    plugin
        .handle(http::Request::new(Empty::<Bytes>::new()))
        .await
}

async fn failure(bytes: Vec<u8>, limits: Limits) -> Failure {
    let runtime = runtime(2);
    let plugin = load(&runtime, bytes, limits).await;
    let failure = get(&plugin).await.unwrap_err();
    idle(&runtime).await;
    let code = Some(failure.code());
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_failed_total", code),
        1.0
    );
    assert_eq!(counter(&runtime, "corral_plugin_calls_total", None), 1.0);
    failure
}

#[tokio::test]
async fn a_good_plugin_answers() {
    let runtime = runtime(2);
    let plugin = load(&runtime, http_2(GOOD), limits()).await;
    assert!(plugin.roles().http && !plugin.roles().cli);
    for _ in 0..100 {
        let response = get(&plugin).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "hello");
    }
    idle(&runtime).await;
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_completed_total", None),
        100.0
    );
    let starts = counter(&runtime, "corral_plugin_instance_start_seconds_total", None);
    println!("an instance starts in {:.1} µs", starts / 100.0 * 1e6);
}

#[tokio::test]
async fn a_crash_is_a_500_with_the_reason() {
    for bytes in [http_2("unreachable"), http_3("unreachable")] {
        let failure = failure(bytes, limits()).await;
        assert_eq!((failure.status(), failure.code()), (500, "trapped"));
        assert!(failure.to_string().contains("unreachable"), "{failure}");
    }
}

#[tokio::test]
async fn an_endless_loop_is_a_504() {
    for bytes in [http_2(SPIN), http_3(&format!("{SPIN} unreachable"))] {
        let begun = Instant::now();
        let failure = failure(bytes, limits()).await;
        assert_eq!((failure.status(), failure.code()), (504, "cpu-time"));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[tokio::test]
async fn the_wall_clock_stops_a_loop_too() {
    let limits = Limits {
        time: Duration::from_millis(100),
        cpu: Duration::from_secs(60),
        ..limits()
    };
    let failure = failure(http_2(SPIN), limits).await;
    assert_eq!((failure.status(), failure.code()), (504, "deadline"));
}

#[tokio::test]
async fn a_caller_may_bring_the_deadline_forward() {
    let runtime = runtime(1);
    let plugin = load(&runtime, http_2(SPIN), limits()).await;
    let mut request = http::Request::new(Empty::<Bytes>::new());
    request.extensions_mut().insert(Call {
        id: Some("r1".into()),
        deadline: Some(Instant::now() + Duration::from_millis(30)),
        ..Call::default()
    });
    assert_eq!(plugin.handle(request).await.unwrap_err().code(), "deadline");
    idle(&runtime).await;
}

#[tokio::test]
async fn a_loop_does_not_stop_others() {
    // One thread for everything: the loop must give way.
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
        counter(&runtime, "corral_plugin_calls_cancelled_total", None),
        1.0
    );
}

#[tokio::test]
async fn memory_is_bounded() {
    let eat = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    let failure = failure(http_2(eat), limits()).await;
    assert_eq!((failure.status(), failure.code()), (500, "memory"));
    assert!(failure.to_string().contains("64 MiB"), "{failure}");
    let little = Limits {
        memory: 1000,
        ..limits()
    };
    assert_eq!(code_of(http_2(GOOD), little).await, "memory");
}

async fn code_of(bytes: Vec<u8>, limits: Limits) -> &'static str {
    failure(bytes, limits).await.code()
}

#[tokio::test]
async fn no_response_is_said_so() {
    assert_eq!(code_of(http_2(""), limits()).await, "no-response");
}

#[tokio::test]
async fn an_error_instead_of_a_response_is_passed_on() {
    // result = error, error-code = HTTP-request-denied
    let code = "(i32.store (i32.const 8) (i32.const 1)) (i32.store (i32.const 16) (i32.const 15)) (i32.const 8)";
    let failure = failure(http_3(code), limits()).await;
    assert_eq!((failure.status(), failure.code()), (500, "gave-up"));
    assert!(failure.to_string().contains("RequestDenied"), "{failure}");
}

#[tokio::test]
async fn a_crash_on_the_way_cuts_the_body_off() {
    let runtime = runtime(2);
    for (code, end) in [("unreachable", "trapped"), (SPIN, "cpu-time")] {
        let code = format!("(call $respond) (call $say) {code}");
        let plugin = load(&runtime, http_2(&code), limits()).await;
        let mut body = get(&plugin).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "hello");
        let failure = body.frame().await.unwrap().unwrap_err();
        assert_eq!(failure.code(), end);
        assert!(body.frame().await.is_none());
        drop(body);
        idle(&runtime).await;
        let failures = counter(&runtime, "corral_plugin_calls_failed_total", Some(end));
        assert_eq!(failures, 1.0);
    }
}

#[tokio::test]
async fn a_body_that_nobody_reads_ends_at_the_deadline() {
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
async fn a_client_that_goes_away_stops_the_plugin() {
    let runtime = runtime(1);
    let plugin = load(&runtime, http_2(ENDLESS), limits()).await;
    let mut body = get(&plugin).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(counter(&runtime, "corral_plugin_instances", None), 1.0);
    drop(body);
    idle(&runtime).await;
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_cancelled_total", None),
        1.0
    );
    // Its place is free again.
    drop(get(&plugin).await.unwrap());
    idle(&runtime).await;
}

#[tokio::test]
async fn too_many_calls_are_refused_with_a_time_to_come_back() {
    let runtime = runtime(4);
    let limits = Limits {
        concurrent: 1,
        queue: 0,
        ..limits()
    };
    let plugin = load(&runtime, http_2(ENDLESS), limits).await;
    let held = get(&plugin).await.unwrap();
    let refused = get(&plugin).await.unwrap_err();
    assert_eq!((refused.status(), refused.code()), (503, "busy"));
    assert!(refused.retry_after().unwrap() >= Duration::from_secs(1));
    drop(held);
    idle(&runtime).await;
    assert!(get(&plugin).await.is_ok());
}

#[tokio::test]
async fn many_calls_share_a_small_pool() {
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
async fn a_body_that_says_it_is_too_long_is_refused() {
    let runtime = runtime(1);
    let limits = Limits {
        request_bytes: 4,
        ..limits()
    };
    let plugin = load(&runtime, http_2(GOOD), limits).await;
    let request = http::Request::builder()
        .header("content-length", "5")
        .body(Full::new(Bytes::from_static(b"12345")))
        .unwrap();
    let failure = plugin.handle(request).await.unwrap_err();
    assert_eq!(
        (failure.status(), failure.code()),
        (413, "request-too-large")
    );
}

#[tokio::test]
async fn commands_run_and_exit() {
    let runtime = runtime(1);
    for version in ["0.2.0", "0.3.0"] {
        for (code, exit) in [("(i32.const 0)", 0), ("(i32.const 1)", 1)] {
            let plugin = load(&runtime, command(version, code), limits()).await;
            assert!(plugin.roles().cli);
            assert_eq!(plugin.run(&[]).await.unwrap().code(), exit);
            assert_eq!(get(&plugin).await.unwrap_err().code(), "wrong-role");
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
async fn a_thousand_calls_leave_nothing() {
    let runtime = runtime(8);
    let plugin = load(&runtime, http_2(GOOD), limits()).await;
    for _ in 0..1000 {
        let response = get(&plugin).await.unwrap();
        response.into_body().collect().await.unwrap();
    }
    idle(&runtime).await;
    assert_eq!(
        counter(&runtime, "corral_plugin_calls_completed_total", None),
        1000.0
    );
    assert_eq!(counter(&runtime, "corral_plugin_instances_peak", None), 1.0);
}
