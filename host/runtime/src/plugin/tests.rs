use super::*;
use crate::messages::MessageError;
use crate::messages::bindings::exports::wasmcloud::messaging::handler::Error;
use crate::runtime::Runtime;
use crate::test_support::config;
use corral_engine::ModelPool;

#[tokio::test]
async fn turns_and_engines_charge_the_same_tenant() {
    let runtime = Runtime::new(config(2), ModelPool::loaded(Vec::new())).unwrap();
    let text = r#"(component
        (core module $main (func (export "run") (result i32) (i32.const 0)))
        (core instance $main (instantiate $main))
        (func $run (result (result)) (canon lift (core func $main "run")))
        (instance $cli (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $cli)))"#;
    let component = wat::parse_str(text).unwrap();
    let loaded = runtime.load_plugin("x", component, Limits::default());
    let plugin = loaded.await.unwrap();
    let own = plugin.tenant();
    let [key, proxy] = [5, 9].map(|number| Some(Tenant(number)));
    for (tenant, fairness_tenant, expected) in [
        (None, None, own),
        (key, None, Tenant(5)),
        (key, proxy, Tenant(9)),
        (None, proxy, Tenant(9)),
    ] {
        let options = CallOptions {
            tenant,
            fairness_tenant,
            ..CallOptions::default()
        };
        let (outcome, ..) = plugin.begin(None, None);
        let call = plugin.admit(&outcome, &options).await.unwrap();
        let charged = (call.turns.tenant, plugin.caller(&call, &options).tenant);
        assert_eq!(charged, (expected, expected));
    }
}

#[test]
fn long_error_of_a_message_is_cut() {
    let error = MessageError::from(Error::Other("x".repeat(1 << 20)));
    assert!(error.message.len() < 10_000, "{}", error.message.len());
}
