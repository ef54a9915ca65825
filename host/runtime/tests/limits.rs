//! Limits of calls: a plugin that exceeds one fails its own call and affects no other. `hostile_plugins.rs` of the
//! whole program has full queues and clients that disconnect.

mod support;

use bytes::Bytes;
use corral_runtime::{Body, CallError, CallOptions, Limits, Plugin};
use http_body_util::{BodyExt, Empty};
use std::time::{Duration, Instant};
use support::{blocked_command, command, counter, http_2, http_3, idle, load, runtime};

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
async fn unread_body_ends_at_the_deadline() {
    let runtime = runtime(1);
    let limits = Limits {
        time: Duration::from_secs(2),
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
    let blocked = load(&runtime, blocked_command(40), limits.clone()).await;
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
