use super::*;
use wasmtime::Engine;

const LIMITS: InitializationLimits = InitializationLimits {
    memory: 1 << 20,
    component: 1 << 20,
};

/// A component with a counter in a global and one in memory, whose start function adds 1 to each. `initialize` does
/// `body`, which leaves the address of its result; at address 0 there is a success. `get` returns the sum of the counters.
fn component(imports: &str, core_imports: &str, with: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
            {imports}
            (core module $m
                {core_imports}
                (memory (export "memory") 1)
                (table 1 funcref)
                (global $counter (mut i32) (i32.const 0))
                (func $add (param $number i32)
                    (global.set $counter (i32.add (global.get $counter) (local.get $number)))
                    (i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (local.get $number))))
                (func $start (call $add (i32.const 1)))
                (start $start)
                (func (export "initialize") (result i32) {body})
                (func (export "get") (result i32)
                    (i32.add (global.get $counter) (i32.load (i32.const 64)))))
            (core instance $i (instantiate $m {with}))
            (alias core export $i "memory" (core memory $memory))
            (func $initialize (result (result (error string)))
                (canon lift (core func $i "initialize") (memory $memory)))
            (instance $exported (export "initialize" (func $initialize)))
            (export "{INTERFACE}" (instance $exported))
            (func (export "get") (result s32) (canon lift (core func $i "get"))))"#
    );
    wat::parse_str(text).unwrap()
}

fn with_body(body: &str) -> Vec<u8> {
    component("", "", "", body)
}

fn error_of(component: &[u8]) -> String {
    initialize(component, LIMITS).unwrap_err()
}

/// What `get` of a new instance returns.
fn get(component: &[u8]) -> i32 {
    let engine = Engine::default();
    let component = Component::from_binary(&engine, component).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine)
        .instantiate(&mut store, &component)
        .unwrap();
    let get = instance.get_typed_func::<(), (i32,)>(&mut store, "get");
    get.unwrap().call(&mut store, ()).unwrap().0
}

#[test]
fn instances_begin_as_initialization_left_them() {
    let original = with_body("(call $add (i32.const 20)) (i32.const 0)");
    let snapshot = initialize(&original, LIMITS).unwrap();
    // The start function ran once, before the initialization.
    assert_eq!((get(&original), get(&snapshot.component)), (2, 42));
    assert!((10..100).contains(&snapshot.instructions), "{snapshot:?}");
    assert_eq!(initialize(&original, LIMITS), Ok(snapshot.clone()));
    // It can be initialized again.
    let second = initialize(&snapshot.component, LIMITS).unwrap();
    assert_eq!(get(&second.component), 82);
}

#[test]
fn grown_memory_is_kept() {
    let original = with_body(
        "(drop (memory.grow (i32.const 2))) (i32.store (i32.const 196604) (i32.const 1)) (i32.const 0)",
    );
    let snapshot = initialize(&original, LIMITS).unwrap();
    let size = |bytes: &[u8]| {
        let component = Component::from_binary(&Engine::default(), bytes).unwrap();
        component
            .resources_required()
            .unwrap()
            .max_initial_memory_size
    };
    assert_eq!(
        (size(&original), size(&snapshot.component)),
        (Some(1), Some(3))
    );
    // Pages of zeros take no room.
    assert!(snapshot.component.len() < original.len() + 100);
}

#[test]
fn call_of_the_host_is_refused() {
    let random = |package: &str| {
        component(
            &format!(
                r#"(import "wasi:{package}@0.2.3" (instance $host (export "get" (func (result u64)))))
                   (alias export $host "get" (func $get))
                   (core func $lowered (canon lower (func $get)))
                   (core instance $imports (export "get" (func $lowered)))"#
            ),
            r#"(import "host" "get" (func $get (result i64)))"#,
            r#"(with "host" (instance $imports))"#,
            "(drop (call $get)) (i32.const 0)",
        )
    };
    assert_eq!(
        error_of(&random("random/random")),
        "its initialization calls wasi:random/random@0.2.3.get of the host, as a HashMap of Rust's standard library does for its \
         keys (a BTreeMap does not); an initialization may call nothing of the host"
    );
    let error = error_of(&random("clocks/monotonic-clock"));
    assert!(
        error.contains("monotonic-clock@0.2.3.get of the host; "),
        "{error}"
    );
}

#[test]
fn handle_is_refused() {
    let with_handle = component(
        r#"(core func $new (canon waitable-set.new))
           (core instance $imports (export "new" (func $new)))"#,
        r#"(import "canon" "new" (func $new (result i32)))"#,
        r#"(with "canon" (instance $imports))"#,
        "(drop (call $new)) (i32.const 0)",
    );
    let error = error_of(&with_handle);
    assert!(
        error.starts_with("its initialization failed: ")
            && error.contains("cannot allocate another handle"),
        "{error}"
    );
}

#[test]
fn unused_imports_do_no_harm() {
    let imports = r#"
        (import "wasi:io/streams@0.2.3" (instance (export "stream" (type (sub resource)))))
        (import "wait" (func async (result u32)))
        (import "log" (func (param "text" string)))"#;
    let snapshot = initialize(&component(imports, "", "", "(i32.const 0)"), LIMITS);
    assert!(snapshot.is_ok(), "{snapshot:?}");
}

#[test]
fn failed_initialization_names_the_cause() {
    let returned = r#"
        (i32.store8 (i32.const 128) (i32.const 1))
        (i32.store (i32.const 132) (i32.const 140))
        (i32.store (i32.const 136) (i32.const 2))
        (i32.store16 (i32.const 140) (i32.const 0x6f6e))
        (i32.const 128)"#;
    for (body, expected) in [
        (returned, "its initialization failed: no"),
        (
            "unreachable",
            "its initialization ended with a trap: wasm trap: wasm `unreachable` instruction executed",
        ),
        (
            "(drop (memory.grow (i32.const 16))) (i32.const 0)",
            "its initialization needs more than the 1 MiB of memory that its instances may have; keep less, or raise `memory-mib`",
        ),
        (
            "(table.set 0 (i32.const 0) (ref.null func)) (i32.const 0)",
            "its memory cannot be kept: unsupported `table.set` instruction; deploy it without `initialize`",
        ),
    ] {
        assert_eq!(error_of(&with_body(body)), expected);
    }
    let invalid = error_of(&with_body(""));
    assert!(
        invalid.starts_with("it is not a valid component: type mismatch"),
        "{invalid}"
    );
    let plain = wat::parse_str("(component)").unwrap();
    assert_eq!(
        error_of(&plain),
        "it exports no corral:plugin/initialization@0.1.0; export it, or deploy it without `initialize`"
    );
}

#[test]
fn long_error_is_cut() {
    let body = r#"
        (memory.fill (i32.const 256) (i32.const 0x78) (i32.const 60000))
        (i32.store8 (i32.const 128) (i32.const 1))
        (i32.store (i32.const 132) (i32.const 256))
        (i32.store (i32.const 136) (i32.const 60000))
        (i32.const 128)"#;
    let error = error_of(&with_body(body));
    assert!(
        error.starts_with("its initialization failed: xxx"),
        "{error}"
    );
    assert!(error.len() < 10_000, "{}", error.len());
}

#[test]
fn endless_initialization_ends() {
    let endless = with_body("(loop $again (br $again)) (i32.const 0)");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let error = runtime.block_on(run(&endless, LIMITS, 1_000)).unwrap_err();
    assert_eq!(
        describe(&error),
        "its initialization takes more than 10 billion instructions; do less in it"
    );
}

#[test]
fn large_result_is_refused() {
    let original =
        with_body("(memory.fill (i32.const 256) (i32.const 1) (i32.const 65000)) (i32.const 0)");
    let limits = InitializationLimits {
        component: 60_000,
        ..LIMITS
    };
    let error = initialize(&original, limits).unwrap_err();
    assert!(
        error.starts_with("with its memory it has 65") && error.contains("this host accepts 60000"),
        "{error}"
    );
}
