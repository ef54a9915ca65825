//! Deployments whose instances begin with the memory that the component's initialization left.

use corral_tests::artifacts::component;
use corral_tests::deployments::{
    deploy, deploy_plugin, manifest, show, try_deploy, upload, variant,
};
use corral_tests::{Corral, scratch_dir};
use serde_json::{Value, json};

/// The 10,000th prime number, how often the call computed the table, and the number of the call in its instance.
fn call(corral: &Corral, name: &str) -> String {
    corral.post_ok(&format!("/{name}"), "9999").body
}

/// What `corral show` knows of the initialization of the serving revision.
fn initialized(corral: &Corral, name: &str) -> Value {
    show(corral, name)["deployment"]["traffic"][0]["initialized"].clone()
}

fn children_started(corral: &Corral) -> f64 {
    corral.metrics().get("corral_child_processes_started_total")
}

#[test]
fn instances_begin_with_computed_table() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "plain", "initialized", json!({}));
    deploy_plugin(&corral, "ready", "initialized", json!({"initialize": true}));
    for _ in 0..3 {
        assert_eq!(call(&corral, "plain"), "104729 1 1");
        assert_eq!(call(&corral, "ready"), "104729 0 1");
    }
    assert_eq!(initialized(&corral, "plain"), Value::Null);
    let ready = initialized(&corral, "ready");
    // The sieve marks some 2.4 million numbers.
    let instructions = ready["instructions"].as_u64().expect("a number");
    assert!((2_400_000..200_000_000).contains(&instructions), "{ready}");
    // 78,498 numbers of 4 bytes, and what was left of the sieve.
    let added = ready["added_bytes"].as_u64().expect("a number");
    assert!((313_992..3_000_000).contains(&added), "{ready}");
    let page = corral.cli_output(&["show", "ready"]);
    let line = format!(
        "revision 1 is initialized: {instructions} instructions at its deploy, {added} bytes added to the component"
    );
    assert!(page.contains(&line), "{page}");
}

#[test]
fn initialization_works_with_reuse_and_middleware() {
    let corral = Corral::start_with_store(&[]);
    let middleware = upload(&corral, &component("middleware"));
    let more = json!({"initialize": true, "reuse": {}, "linked": {"middleware": [middleware]}});
    deploy_plugin(&corral, "ready", "initialized", more);
    assert_eq!(call(&corral, "ready"), "104729 0 1");
    corral_tests::wait_until("the instance waits", || {
        let waiting = "corral_deployment_instances_waiting{deployment=\"ready\"}";
        corral.metrics().get(waiting) == 1.0
    });
    assert_eq!(call(&corral, "ready"), "104729 0 2");
}

#[test]
fn restarted_server_initializes_nothing_again() {
    let dir = scratch_dir();
    // The cache has the components of earlier runs.
    let new = variant(&component("initialized"), rand::random());
    let corral = Corral::start_in(&dir, &[]);
    let before = children_started(&corral);
    let digest = upload(&corral, &new);
    deploy(
        &corral,
        &manifest("ready", &digest, json!({"initialize": true})),
    );
    // One initializes it, one compiles the result.
    assert_eq!(children_started(&corral), before + 2.0);
    // Without the initialization it is another component.
    deploy(&corral, &manifest("plain", &digest, json!({})));
    assert_eq!(children_started(&corral), before + 3.0);
    deploy(
        &corral,
        &manifest("again", &digest, json!({"initialize": true})),
    );
    assert_eq!(children_started(&corral), before + 3.0);
    let known = initialized(&corral, "ready");
    drop(corral);

    let corral = Corral::start_in(&dir, &[]);
    assert_eq!(children_started(&corral), 0.0);
    assert_eq!(initialized(&corral, "ready"), known);
    assert_eq!(call(&corral, "ready"), "104729 0 1");
    assert_eq!(call(&corral, "plain"), "104729 1 1");
}

/// A component whose initialization does `body`.
fn initialization(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
            (core module $main
                (memory (export "memory") 1)
                (func (export "initialize") (result i32) {body}))
            (core instance $main (instantiate $main))
            (alias core export $main "memory" (core memory $memory))
            (func $initialize (result (result (error string)))
                (canon lift (core func $main "initialize") (memory $memory)))
            (instance $initialization (export "initialize" (func $initialize)))
            (export "corral:plugin/initialization@0.1.0" (instance $initialization)))"#
    );
    wat::parse_str(text).expect("a component")
}

#[test]
fn refused_initialization_says_why() {
    let corral = Corral::start_with_store(&[]);
    let initialize = json!({"initialize": true});
    for (component, expected) in [
        (
            component("misbehave"),
            "cannot be initialized: it exports no corral:plugin/initialization@0.1.0; export it, or deploy it without `initialize`",
        ),
        (
            initialization("unreachable"),
            "its initialization ended with a trap",
        ),
        (
            initialization("(drop (memory.grow (i32.const 1024))) (i32.const 0)"),
            "its initialization needs more than the 64 MiB of memory that its instances may have",
        ),
    ] {
        let digest = upload(&corral, &component);
        let answer = try_deploy(&corral, &manifest("bad", &digest, initialize.clone()));
        let detail = answer.problem(422, "does-not-initialize");
        assert!(detail.contains(expected), "{detail}");
    }
    // The initialization itself succeeds here.
    let digest = upload(&corral, &initialization("(i32.const 0)"));
    let answer = try_deploy(&corral, &manifest("bad", &digest, initialize));
    answer.problem(422, "missing-export");
    let found = corral.metrics().get("corral_child_processes_failed_total");
    assert_eq!(found, 3.0);
    corral.check_alive();
}
