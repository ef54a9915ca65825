use super::*;
use crate::call_error::CallError;
use crate::composition::encode::HTTP_TYPES_IMPORTER;
use crate::runtime_config::CallOptions;
use http_body_util::Empty;

/// The error codes of `wasi:http` that the components below return, by their number.
const DENIED: u32 = 15;
const OF_HANDLER: u32 = 37;

/// The instance `$handler` of the core function `handle`.
const LIFTED: &str = r#"
    (type $q (own $request))
    (type $answer (result (own $response) (error $code)))
    (type $handle (func async (param "request" $q) (result $answer)))
    (func $handle (type $handle) (canon lift (core func $main "handle") (memory $m)))
    (instance $handler
        (export "request" (type $request))
        (export "response" (type $response))
        (export "error-code" (type $code))
        (export "handle" (func $handle)))"#;

/// The whole type `$http-types`.
fn http_types() -> &'static str {
    let text = include_str!("../http_types.wat");
    let (_, text) = text.split_once("(component\n").unwrap();
    let (types, _) = text.rsplit_once("(import ").unwrap();
    types
}

/// What imports `wasi:http/types` and, as `$next`, `wasi:http/handler`.
fn imports() -> String {
    let types = http_types();
    format!(
        r#"{types}
        (import "wasi:http/types@0.3.2" (instance $types (type $http-types)))
        (alias export $types "request" (type $request))
        (alias export $types "response" (type $response))
        (alias export $types "error-code" (type $code))
        (import "wasi:http/handler@0.3.1" (instance $next
            (alias outer 1 $request (type $request'))
            (export "request" (type $q (eq $request')))
            (alias outer 1 $response (type $response'))
            (export "response" (type $s (eq $response')))
            (alias outer 1 $code (type $code'))
            (export "error-code" (type $e (eq $code')))
            (export "handle" (func async (param "request" (own $q))
                (result (result (own $s) (error $e)))))))"#
    )
}

/// A component that imports and exports the handler. It passes a request on if it sees `variables` variables through the
/// environment of `version`, else it returns [`DENIED`].
fn middleware(version: &str, variables: u32, more: &str) -> Vec<u8> {
    let (imports, counting) = (imports(), counting(version));
    let text = format!(
        r#"(component {imports} {more} {counting}
        (core func $next (canon lower (func $next "handle") (memory $m) (realloc $realloc)))
        (core module $main
            (import "h" "memory" (memory 1))
            (import "h" "count" (func $count (result i32)))
            (import "h" "next" (func $next (param i32 i32)))
            (func (export "handle") (param i32) (result i32)
                (if (i32.eq (call $count) (i32.const {variables}))
                    (then (call $next (local.get 0) (i32.const 64)))
                    (else
                        (i32.store8 (i32.const 64) (i32.const 1))
                        (i32.store8 (i32.const 72) (i32.const {DENIED}))))
                (i32.const 64)))
        (core instance $main (instantiate $main (with "h" (instance (export "memory" (memory $m))
            (export "count" (func $count)) (export "next" (func $next))))))
        {LIFTED}
        (export "wasi:http/handler@0.3.2" (instance $handler)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Exports of a handler's further worlds, which a chain drops. They lack their functions, so the host refuses them without
/// a chain.
const OTHER_WORLDS: &str = r#"(instance $nothing)
        (export "wasi:http/incoming-handler@0.2.0" (instance $nothing))
        (export "wasmcloud:messaging/handler@0.3.0" (instance $nothing))"#;

/// A handler that returns [`OF_HANDLER`], for any world.
fn handler() -> Vec<u8> {
    handler_with(OTHER_WORLDS)
}

/// A handler with further exports.
fn handler_with(exports: &str) -> Vec<u8> {
    let types = http_types();
    let text = format!(
        r#"(component {types}
        (import "wasi:http/types@0.3.0" (instance $types (type $http-types)))
        (alias export $types "request" (type $request))
        (alias export $types "response" (type $response))
        (alias export $types "error-code" (type $code))
        (core module $main
            (memory (export "memory") 1)
            (func (export "handle") (param i32) (result i32)
                (i32.store8 (i32.const 64) (i32.const 1))
                (i32.store8 (i32.const 72) (i32.const {OF_HANDLER}))
                (i32.const 64)))
        (core instance $main (instantiate $main))
        (alias core export $main "memory" (core memory $m))
        {LIFTED}
        (export "wasi:http/handler@0.3.0" (instance $handler))
        {exports})"#
    );
    wat::parse_str(text).unwrap()
}

/// An import of these functions with types that do not fit: what needs no grant gets as far as that mismatch.
fn inference(functions: &[&str]) -> String {
    let functions = functions
        .iter()
        .map(|name| format!(r#"(export "{name}" (func))"#));
    let functions = functions.collect::<String>();
    format!(r#"(import "corral:inference/inference-async@0.1.0" (instance {functions}))"#)
}

fn with_middleware(handler: Vec<u8>, middleware: Vec<(Vec<u8>, bool)>) -> PluginComponents {
    let linked = |(bytes, inherit): (Vec<u8>, bool)| LinkedBytes {
        bytes: bytes.into(),
        inherit,
    };
    PluginComponents {
        middleware: middleware.into_iter().map(linked).collect(),
        ..PluginComponents::unlinked(handler)
    }
}

/// What a handler behind this middleware answers, with a variable in its environment.
async fn answer(middleware: Vec<(Vec<u8>, bool)>) -> String {
    let runtime = Runtime::new(config(8), ModelPool::loaded(Vec::new())).unwrap();
    let handler = match middleware.is_empty() {
        true => handler_with(""),
        false => handler(),
    };
    let linked = |(bytes, inherit): (Vec<u8>, bool)| LinkedComponent {
        component: bytes.into(),
        inherit,
    };
    let config = PluginConfig {
        environment: vec![("SECRET".to_owned(), "x".to_owned())],
        linked: LinkedComponents {
            middleware: middleware.into_iter().map(linked).collect(),
            ..LinkedComponents::default()
        },
        ..PluginConfig::default()
    };
    let deployment = runtime.new_deployment();
    let plugin = runtime
        .load_plugin_into(&deployment, "chat", handler, config)
        .await
        .unwrap();
    let request = http::Request::get("http://a/").body(Empty::<Bytes>::new());
    let answer = plugin.handle(request.unwrap(), CallOptions::default());
    match answer.await.unwrap_err() {
        CallError::ReturnedError { message } => message,
        other => other.to_string(),
    }
}

#[tokio::test]
async fn chain_passes_requests_to_the_handler() {
    let handler_answers = answer(Vec::new()).await;
    assert!(
        handler_answers.contains("ConfigurationError"),
        "{handler_answers}"
    );
    for length in [1, 2, MAX_MIDDLEWARE] {
        let pass = || (middleware("0.2.3", 0, ""), false);
        let chain = Vec::from_iter(std::iter::repeat_with(pass).take(length));
        assert_eq!(answer(chain).await, handler_answers, "{length}");
    }
    // The second one refuses.
    let chain = [0, 7].map(|variables| (middleware("0.3.0", variables, ""), false));
    let answered = answer(Vec::from(chain)).await;
    assert!(answered.contains("HttpRequestDenied"), "{answered}");
}

#[tokio::test]
async fn middleware_with_same_imports_has_own_grants() {
    for first_inherits in [false, true] {
        let part = |inherit: bool| (middleware("0.2.3", inherit.into(), ""), inherit);
        let chain = [first_inherits, !first_inherits].map(part);
        let answered = answer(Vec::from(chain)).await;
        assert!(answered.contains("ConfigurationError"), "{answered}");
    }
}

#[test]
fn unfit_middleware_is_refused_with_reason() {
    let pass = |more: &str| middleware("0.2.3", 0, more);
    for (components, code, expected) in [
        (with_middleware(handler(), vec![(pass(""), false)]), "", ""),
        (
            with_middleware(handler(), vec![(pass(""), false); 9]),
            "does-not-compose",
            "chat is linked with 9 components as middleware; at most 8",
        ),
        (
            with_middleware(handler(), vec![(pass(""), false), (handler(), false)]),
            "linked-not-imported",
            "chat (linked component 'middleware.2') does not import wasi:http/handler@0.3.0, so it passes",
        ),
        (
            with_middleware(handler(), vec![(template("0.2.3", ""), false)]),
            "linked-export-missing",
            "chat (linked component 'middleware.1') exports no wasi:http/handler@0.3.0, for which it is linked; it exports corral:plugin/templating",
        ),
        (
            with_middleware(handler(), vec![(pass(MODELS), false)]),
            "linked-import-refused",
            "corral:inference/models@0.1.0; build it without, or, if it",
        ),
        (
            with_middleware(handler(), vec![(pass(MODELS), true)]),
            "",
            "",
        ),
        (
            with_middleware(
                handler(),
                vec![(pass(&inference(&["collect", "frame"])), false)],
            ),
            "interface-mismatch",
            "instance export `collect` has the wrong type",
        ),
        (
            with_middleware(
                handler(),
                vec![(pass(&inference(&["collect", "generate"])), false)],
            ),
            "linked-import-refused",
            "corral:inference/inference-async@0.1.0; build it without",
        ),
        (
            with_middleware(exporting("", HTTP_2), vec![(pass(""), false)]),
            "no-handler-export",
            "chat exports no wasi:http/handler@0.3.0, to which its middleware passes requests; it exports wasi:http/incoming-handler@0.2.0; build",
        ),
        (
            with_middleware(pass(""), vec![(pass(""), false)]),
            "only-linkable",
            "the plugin chat is middleware: it passes",
        ),
        (
            PluginComponents::unlinked(pass("")),
            "only-linkable",
            "[linked] middleware = [\"FILE.wasm\"]",
        ),
    ] {
        let (found, text) = error_of(&components, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

/// The handler's template stays its own, and requests cannot enter behind the chain.
#[test]
fn middleware_joins_other_linked_components() {
    let mut components = with_middleware(handler(), vec![(middleware("0.2.3", 0, ""), false)]);
    let composition = compose("chat", &components, 1 << 20).unwrap();
    let world = World::read(&composition).unwrap();
    assert_eq!(world.exports, ["wasi:http/handler@0.3.0"]);
    assert_eq!(
        world.imports,
        [
            "wasi:http/types@0.3.0",
            "corral:denied/environment@0.2.3+middleware.1"
        ]
    );
    components.templating = Some(LinkedBytes {
        bytes: template("0.2.3", "").into(),
        inherit: false,
    });
    // The handler does not import it.
    assert_eq!(error_of(&components, 1 << 20).0, "linked-not-imported");
}

#[test]
fn shared_http_types_are_encoded() {
    let encoded = wat::parse_str(include_str!("../http_types.wat")).unwrap();
    if std::env::var_os("CORRAL_WRITE_SCHEMAS").is_some() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/composition/http_types.wasm"
        );
        return std::fs::write(file, encoded).unwrap();
    }
    assert!(
        encoded == HTTP_TYPES_IMPORTER,
        "encode it again: CORRAL_WRITE_SCHEMAS=1 cargo test"
    );
}

#[test]
fn shared_http_types_are_those_of_the_wit() {
    let wit = include_str!("../../../../../wit/deps/wasi-http-0.3.0.wit");
    let (_, wit) = wit.split_once("interface types {").unwrap();
    let (wit, _) = wit.split_once("\n}\n").unwrap();
    let code = wit
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"));
    let functions = code.filter(|line| line.contains("func(") || line.starts_with("constructor("));
    let encoded = http_types()
        .lines()
        .filter(|line| line.contains("(func (type"));
    assert_eq!(functions.count(), encoded.count());
    let types = wit.lines().filter_map(|line| {
        let words = Vec::from_iter(line.split([' ', '{', ';']).filter(|word| !word.is_empty()));
        match words[..] {
            ["variant" | "record" | "resource" | "type", name, ..] => Some(name),
            _ => None,
        }
    });
    for name in types {
        let export = format!("(export \"{name}\" (type");
        assert!(http_types().contains(&export), "{name}");
    }
}
