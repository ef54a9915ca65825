mod middleware;

use super::*;
use crate::compiled_plugin::compile;
use crate::component_source::ComponentSource;
use crate::component_structure::tests::deep_type;
use crate::runtime::Runtime;
use crate::runtime_config::{LinkedComponent, LinkedComponents, PluginConfig};
use crate::test_support::{compiler, config};
use corral_engine::ModelPool;

/// Start of the components below: `$count` calls `wasi:cli/environment` of `version` and returns the number of
/// variables.
fn counting(version: &str) -> String {
    format!(
        r#"
        (import "wasi:cli/environment@{version}" (instance $environment
            (export "get-environment" (func (result (list (tuple string string)))))))
        (core module $memory
            (memory (export "memory") 1)
            (global $next (mut i32) (i32.const 1024))
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
                (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
                (global.set $next (i32.add (local.get $at) (local.get 3)))
                (local.get $at)))
        (core instance $memory (instantiate $memory))
        (alias core export $memory "memory" (core memory $m))
        (alias core export $memory "realloc" (core func $realloc))
        (core func $get (canon lower (func $environment "get-environment")
            (memory $m) (realloc $realloc)))
        (core module $counting
            (import "h" "memory" (memory 1))
            (import "h" "get" (func $get (param i32)))
            (func (export "count") (result i32)
                (call $get (i32.const 0)) (i32.load (i32.const 4))))
        (core instance $counting (instantiate $counting (with "h" (instance
            (export "memory" (memory $m)) (export "get" (func $get))))))
        (alias core export $counting "count" (core func $count))"#
    )
}

/// A linkable template whose `render` returns the number of variables it sees. `more` are further imports.
fn template(version: &str, more: &str) -> Vec<u8> {
    let counting = counting(version);
    wat::parse_str(format!(
        r#"(component {more} {counting}
        (func $render (result u32) (canon lift (core func $count)))
        (instance $templating (export "render" (func $render)))
        (export "corral:plugin/templating@0.1.0" (instance $templating)))"#
    ))
    .unwrap()
}

/// A command that succeeds if it sees `own` variables and its template sees `linked`.
fn command(own: usize, linked: usize, more: &str) -> Vec<u8> {
    let counting = counting("0.2.3");
    wat::parse_str(format!(
        r#"(component {more}
        (import "corral:plugin/templating@0.1.3" (instance $templating
            (export "render" (func (result u32)))))
        {counting}
        (core func $render (canon lower (func $templating "render")))
        (core module $main
            (import "h" "count" (func $count (result i32)))
            (import "h" "render" (func $render (result i32)))
            (func (export "run") (result i32) (i32.or
                (i32.ne (call $count) (i32.const {own}))
                (i32.ne (call $render) (i32.const {linked})))))
        (core instance $main (instantiate $main (with "h" (instance
            (export "count" (func $count)) (export "render" (func $render))))))
        (func $run (result (result)) (canon lift (core func $main "run")))
        (instance $cli (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $cli)))"#
    ))
    .unwrap()
}

/// A component with these imports and one empty exported interface.
fn exporting(imports: &str, export: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component {imports} (instance $nothing) (export "{export}" (instance $nothing)))"#
    ))
    .unwrap()
}

/// A sampling plugin with `part` of its text replaced by `other`.
fn sampler(part: &str, other: &str) -> Vec<u8> {
    let text = include_str!("../sampling/sampler.wat");
    let text = ["{start}", "{needs}", "{sample}", part]
        .iter()
        .zip(["", "", "", other])
        .fold(text.to_owned(), |text, (part, other)| {
            text.replace(part, other)
        });
    wat::parse_str(text).unwrap()
}

const MODELS: &str = r#"(import "corral:inference/models@0.1.0" (instance
    (export "available" (func (result (list string))))))"#;

const CONFIG: &str = r#"(import "wasi:config/store@0.2.0-rc.1" (instance
    (type $config (variant (case "upstream" string) (case "io" string)))
    (export "error" (type $error (eq $config)))
    (export "get-all" (func (result (result (list (tuple string string)) (error $error)))))))"#;

const LOGGING: &str = r#"(import "wasi:logging/logging@0.1.0-draft" (instance
    (type $levels (enum "trace" "debug" "info" "warn" "error" "critical"))
    (export "level" (type $level (eq $levels)))
    (export "log" (func (param "level" $level) (param "context" string) (param "message" string)))))"#;

fn with_template(handler: Vec<u8>, template: Vec<u8>, inherit: bool) -> PluginComponents {
    PluginComponents {
        templating: Some(LinkedBytes {
            bytes: template.into(),
            inherit,
        }),
        ..PluginComponents::unlinked(handler)
    }
}

fn with_samplers(handler: Vec<u8>, samplers: &[(&str, Vec<u8>)]) -> PluginComponents {
    let named = |(name, bytes): &(&str, Vec<u8>)| ((*name).to_owned(), bytes.clone().into());
    PluginComponents {
        sampling: samplers.iter().map(named).collect(),
        ..PluginComponents::unlinked(handler)
    }
}

/// Code and text of the error of compiling the plugin `chat`; empty if it compiles.
fn error_of(components: &PluginComponents, limit: usize) -> (&'static str, String) {
    let compiler = compiler();
    match compile(&compiler, "chat", components, limit) {
        Ok(_) => ("", String::new()),
        Err(error) => (error.code(), error.to_string()),
    }
}

#[tokio::test]
async fn template_sees_environment_only_if_inherited() {
    let runtime = Runtime::new(config(2), ModelPool::loaded(Vec::new())).unwrap();
    // The handler's version, another one, and WASI 0.3.
    for version in ["0.2.3", "0.2.12", "0.3.0"] {
        for (inherit, sees) in [(false, 0), (true, 1)] {
            let component = ComponentSource::from(template(version, ""));
            let config = PluginConfig {
                environment: vec![("SECRET".to_owned(), "x".to_owned())],
                linked: LinkedComponents {
                    templating: Some(LinkedComponent { component, inherit }),
                    ..LinkedComponents::default()
                },
                ..PluginConfig::default()
            };
            let deployment = runtime.new_deployment();
            let handler = command(1, sees, "");
            let plugin = runtime
                .load_plugin_into(&deployment, "chat", handler, config)
                .await
                .unwrap();
            let exit = plugin.run(&[]).await.unwrap();
            assert!(exit.success(), "{version}, inherit: {inherit}");
        }
    }
}

#[test]
fn template_reads_configuration_only_if_inherited() {
    let link = |imports: &str, inherit: bool| {
        let components = with_template(command(0, 0, imports), template("0.2.3", imports), inherit);
        error_of(&components, 1 << 20)
    };
    assert_eq!(link(LOGGING, false), ("", String::new()));
    assert_eq!(link(CONFIG, true), ("", String::new()));
    let (code, text) = link(CONFIG, false);
    assert_eq!(code, "linked-import-refused");
    assert!(text.contains("wasi:config/store@0.2.0-rc.1"), "{text}");
    let mut components = with_template(command(0, 0, ""), template("0.2.3", ""), false);
    let sampler = exporting(CONFIG, SAMPLING);
    components.sampling.insert("a".to_owned(), sampler.into());
    assert_eq!(error_of(&components, 1 << 20).0, "linked-import-refused");
    assert_eq!(without_prerelease("0.2.0-rc.1+a-b"), "0.2.0+a-b");
}

/// `composition.rs` of the whole program has the usual mistakes.
#[test]
fn unfit_links_are_refused_with_reason() {
    let sampling = r#"(import "corral:plugin/sampling@0.1.0" (instance))"#;
    let sampler = || exporting("", SAMPLING);
    let handler = || command(0, 0, "");
    for (components, code, expected) in [
        (
            with_template(handler(), exporting("", "a:b/c@0.1.0"), true),
            "linked-export-missing",
            "chat (linked component 'templating') exports no corral:plugin/templating@0.1.0, for which it is linked; it exports a:b/c@0.1.0",
        ),
        (
            with_template(
                handler(),
                template(
                    "0.2.3",
                    r#"(import "wasi:http/outgoing-handler@0.2.1" (instance))
                       (import "wasi:http/client@0.3.0" (instance))"#,
                ),
                false,
            ),
            "linked-import-refused",
            "wasi:http/outgoing-handler@0.2.1, wasi:http/client@0.3.0; build",
        ),
        (
            with_template(
                handler(),
                template("0.2.3", r#"(import "a:b/c@1.0.0" (instance))"#),
                true,
            ),
            "unknown-import",
            "chat (linked component 'templating') imports what this host does not offer: a:b/c@1.0.0",
        ),
        (
            with_template(handler(), wat::parse_str("(module)").unwrap(), false),
            "not-a-component",
            "chat (linked component 'templating') is a core",
        ),
        (
            with_template(handler(), b"\0asm\x0d\0\x01\0rest".to_vec(), false),
            "does-not-compile",
            "chat (linked component 'templating') cannot be compiled",
        ),
        (
            with_template(handler(), exporting("", TEMPLATING), false),
            "does-not-compose",
            "; build both against one version of corral:plugin",
        ),
        (
            with_template(
                command(
                    0,
                    0,
                    r#"(import "wasi:clocks/wall-clock@0.2.3+templating" (instance))"#,
                ),
                template(
                    "0.2.3",
                    r#"(import "wasi:clocks/wall-clock@0.2.3" (instance))"#,
                ),
                false,
            ),
            "does-not-compose",
            "need the import 'wasi:clocks/wall-clock@0.2.3+templating' twice",
        ),
        (
            with_samplers(command(0, 0, sampling), &[("a", sampler())]),
            "not-linked",
            "imports corral:plugin/templating@0.1.0",
        ),
    ] {
        let (found, text) = error_of(&components, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn sampling_components_are_checked() {
    let run = || {
        let mut components = with_template(command(0, 0, ""), template("0.2.3", ""), false);
        components
            .sampling
            .insert("a".to_owned(), sampler("{}", "").into());
        components
    };
    assert_eq!(error_of(&run(), 1 << 20), ("", String::new()));
    for (sampler, code, expected) in [
        (
            exporting(MODELS, SAMPLING),
            "linked-import-refused",
            "chat (linked component 'sampling.a') imports what a linked component is not given: corral:inference/models@0.1.0; build it without",
        ),
        (
            template("0.2.3", ""),
            "linked-export-missing",
            "chat (linked component 'sampling.a') exports no corral:plugin/sampling@0.1.0",
        ),
        (
            exporting("", SAMPLING),
            "interface-mismatch",
            "chat (linked component 'sampling.a') does not fit this host's interfaces",
        ),
        (
            sampler(r#"(field "history" u32)"#, r#"(field "history" u64)"#),
            "interface-mismatch",
            "[method]sampler.needs has another type",
        ),
    ] {
        let mut components = run();
        components.sampling.insert("a".to_owned(), sampler.into());
        let (found, text) = error_of(&components, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("inherit"), "{text}");
    }
}

#[test]
fn composition_limits_bytes_and_types() {
    // One type beyond the limit. Each has one byte here and more in the composition.
    let head = [7, 0xc4, 0x84, 0x3d, 0xc1, 0x84, 0x3d];
    let types = [&head[..], &[0x7f; 1_000_001]].concat();
    let handler = [command(0, 0, ""), types].concat();
    let components = with_template(handler, template("0.2.3", ""), false);
    let (code, text) = error_of(&components, 64 << 20);
    assert_eq!(code, "does-not-compose", "{text}");
    assert!(text.contains("more than 1000000 types"), "{text}");
    let (code, text) = error_of(&components, 2 << 20);
    assert_eq!(code, "component-too-large", "{text}");
    assert!(text.contains("chat and its linked components together have more than the "));
}

#[test]
fn item_count_of_a_section_is_not_trusted() {
    // Announces 2^32 - 1 instances and contains none.
    let many = [5, 5, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let handler = [command(0, 0, ""), many.to_vec()].concat();
    let components = with_template(handler, template("0.2.3", ""), false);
    let (code, text) = error_of(&components, 1 << 20);
    assert_eq!(code, "does-not-compose", "{text}");
    assert!(!text.contains("build both"), "{text}");
}

/// A template with types nested `depth` deep.
fn deep(depth: usize) -> Vec<u8> {
    [template("0.2.3", ""), deep_type(depth)].concat()
}

#[test]
fn structure_is_checked_before_compilation() {
    let sampler = exporting("", SAMPLING);
    let handler = || command(0, 0, "");
    let nested = |number: usize| {
        let components = "(component)".repeat(number);
        template("0.2.3", &components)
    };
    let both_faulty = || {
        let mut components = with_template(handler(), exporting("", TEMPLATING), false);
        let samplers = [("a", sampler.clone()), ("b", deep(5_000))];
        components.sampling = with_samplers(Vec::new(), &samplers).sampling;
        components
    };
    for (components, code, expected) in [
        (with_template(handler(), deep(100), false), "", ""),
        (
            with_template(handler(), deep(101), false),
            "does-not-compile",
            "chat (linked component 'templating') cannot be compiled: component type nesting is too deep",
        ),
        (
            with_template(handler(), deep(5_000), false),
            "does-not-compile",
            "too deep",
        ),
        (
            PluginComponents::unlinked(deep(5_000)),
            "does-not-compile",
            "the plugin chat cannot be compiled: component type nesting",
        ),
        // Checked although another component is faulty too.
        (
            both_faulty(),
            "does-not-compile",
            "chat (linked component 'sampling.b') cannot be compiled: component type nesting",
        ),
        (
            with_template(handler(), nested(1_000), false),
            "does-not-compile",
            "chat (linked component 'templating') cannot be compiled: it consists of more than 1000",
        ),
        // Too many together with the handler.
        (
            with_template(handler(), nested(997), false),
            "does-not-compose",
            "it consists of more than 1000 components and modules",
        ),
    ] {
        let (found, text) = error_of(&components, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("build both"), "{text}");
    }
}

#[test]
fn long_lists_of_imports_are_cut() {
    let imports = |number: usize| {
        let one = |i| format!(r#"(import "a:b/c{i}@1.0.0" (instance (export "f" (func))))"#);
        Vec::from_iter((0..number).map(one)).concat()
    };
    let run =
        |number| PluginComponents::unlinked(exporting(&imports(number), "wasi:cli/run@0.2.0"));
    // Below wasmtime's limit of 1,000 instances, of which the export is one.
    let (code, text) = error_of(&run(900), 1 << 20);
    assert_eq!(code, "unknown-import", "{text}");
    assert!(
        text.contains("a:b/c14@1.0.0, a:b/c15@1.0.0, … and 884 more. It offers"),
        "{text}"
    );
    let (code, text) = error_of(&run(1_001), 1 << 20);
    assert_eq!(code, "does-not-compile");
    assert!(text.contains("more than 1000 imports"), "{text}");
}

/// Covers resources, aliases between imports, async functions, streams, and one interface in two versions with
/// different functions.
#[test]
fn parts_imports_are_not_merged() {
    let streams = |version: &str, function: &str| {
        format!(
            r#"
            (import "wasi:io/error@{version}" (instance $error (export "error" (type (sub resource)))))
            (alias export $error "error" (type $e))
            (import "wasi:io/streams@{version}" (instance $streams
                (export "input-stream" (type (sub resource)))
                (alias outer 1 $e (type $e'))
                (export "error" (type $error (eq $e')))
                (type $stream-error' (variant
                    (case "last-operation-failed" (own $error)) (case "closed")))
                (export "stream-error" (type $stream-error (eq $stream-error')))
                (export "output-stream" (type $stream (sub resource)))
                (export "[method]output-stream.{function}" (func (param "self" (borrow $stream))
                    (result (result (error $stream-error)))))))
            (alias export $streams "input-stream" (type $input))
            (import "wasi:cli/stdin@{version}" (instance
                (alias outer 1 $input (type $i'))
                (export "input-stream" (type $i (eq $i')))
                (export "get-stdin" (func (result (own $i))))))"#
        )
    };
    let clock = r#"(import "wasi:clocks/monotonic-clock@0.3.0" (instance
        (export "wait-for" (func async (param "how-long" u64)))))"#;
    let stdin = r#"
        (import "wasi:cli/types@0.3.0" (instance $types
            (type $code' (enum "io" "illegal-byte-sequence" "pipe"))
            (export "error-code" (type (eq $code')))))
        (alias export $types "error-code" (type $code))
        (import "wasi:cli/stdin@0.3.0" (instance
            (alias outer 1 $code (type $code'))
            (export "error-code" (type $error (eq $code')))
            (type $bytes (stream u8))
            (type $ended (future (result (error $error))))
            (export "read-via-stream" (func (result (tuple $bytes $ended))))))"#;
    let own = format!("{clock}{}{stdin}", streams("0.2.3", "flush"));
    for version in ["0.2.3", "0.2.12"] {
        let theirs = format!("{}{stdin}{clock}", streams(version, "blocking-flush"));
        let components = with_template(command(0, 0, &own), template("0.3.0", &theirs), false);
        assert_eq!(
            error_of(&components, 1 << 20),
            ("", String::new()),
            "{version}"
        );
    }
}
